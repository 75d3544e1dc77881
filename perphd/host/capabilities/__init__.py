"""Capabilities of this host for measuring and enforcing. They are probed at start; only resctrl is probed again.

Every item is present, or absent with its reason, the cost of its absence, and a remedy. Nothing is written.
Probes that use a system call instead of a file (perf, taskstats) are parameters, so that simulated and captured hosts
give their own answers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from perphd.domain.capability import Capabilities
from perphd.domain.reading import Unavailable
from perphd.host.capabilities.enforcement import probe_enforcement
from perphd.host.capabilities.measurement import EventProbe, TaskstatsProbe, probe_measurement
from perphd.host.capabilities.network import EgressProbe, egress_refusal, probe_network
from perphd.host.capabilities.resctrl import probe_resctrl
from perphd.host.capabilities.service import probe_service
from perphd.host.capabilities.tcp import TcpProbe, probe_tcp, tcp_refusal
from perphd.host.cgroup.hierarchy import Hierarchies
from perphd.host.fs import KernelFs
from perphd.host.perf_event_types import EventSupport
from perphd.host.perf_events import probe_events
from perphd.host.pmu import read_event_codes
from perphd.host.taskstats import open_taskstats

__all__ = [
    "EgressProbe",
    "EventProbe",
    "TaskstatsProbe",
    "TcpProbe",
    "egress_refusal",
    "look_again",
    "probe",
    "taskstats_refusal",
]


def taskstats_refusal() -> str:
    """Reason why taskstats does not answer this process; empty if it does."""
    taskstats = open_taskstats(os.getpid())
    if isinstance(taskstats, Unavailable):
        return taskstats.reason
    taskstats.close()
    return ""


def look_again(fs: KernelFs, found: Capabilities) -> Capabilities:
    """The report with resctrl's present state, since it may be mounted and unmounted at any time."""
    now = {item.name: item for item in probe_resctrl(fs)}
    return Capabilities(tuple(now.get(item.name, item) for item in found.items))


def probe(
    fs: KernelFs,
    hierarchies: Hierarchies,
    *,
    events: EventProbe | None = None,
    taskstats: TaskstatsProbe = taskstats_refusal,
    egress: EgressProbe = egress_refusal,
    tcp: TcpProbe = tcp_refusal,
    environment: Mapping[str, str] = os.environ,
) -> Capabilities:
    """Probe everything that perphd can use. Never raises for missing features.

    Args:
        fs: the host's files.
        hierarchies: its control groups.
        events: tries perf_event_open on a cgroup directory; None: try it with this host's own event codes.
        taskstats: returns why taskstats does not answer, or an empty text.
        egress: returns why packets of control groups cannot be assigned to traffic classes, or an empty text.
        tcp: returns why latency cannot be measured at control groups, or an empty text.
        environment: may contain the service manager's NOTIFY_SOCKET.
    """
    if events is None:
        codes = read_event_codes(fs)

        def events(directory: str) -> EventSupport:
            return probe_events(directory, codes)

    return Capabilities(
        (
            *probe_enforcement(fs, hierarchies),
            *probe_network(hierarchies, egress),
            *probe_measurement(fs, hierarchies, events, taskstats),
            *probe_tcp(fs, hierarchies, tcp),
            *probe_resctrl(fs),
            *probe_service(fs, environment),
        )
    )
