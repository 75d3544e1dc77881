"""What this host can measure and enforce, found once at start and frozen, but for resctrl, which can be mounted later.

Every item is present or absent with its reason, what the absence costs, and how a person gets it. Nothing is
written. What needs a system call instead of a file (perf, taskstats) is a parameter, so that simulated and
captured hosts answer for themselves.
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
from perphd.host.perf_events import EventSupport, probe_events
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
    """Why taskstats does not answer this process; empty if it does."""
    taskstats = open_taskstats(os.getpid())
    if isinstance(taskstats, Unavailable):
        return taskstats.reason
    taskstats.close()
    return ""


def look_again(fs: KernelFs, found: Capabilities) -> Capabilities:
    """The report with resctrl as it is now: it is mounted and unmounted while everything else stays as it is."""
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
    """Look once at everything that perphd can use. Never raises for what is missing: that is the answer.

    Args:
        fs: the host's files.
        hierarchies: its control groups.
        events: tries perf_event_open on a cgroup directory; None: with this host's own event codes.
        taskstats: says why taskstats does not answer, or nothing.
        egress: says why no control group's packets can be sent to a traffic class, or nothing.
        tcp: says why latency cannot be measured at control groups, or nothing.
        environment: where a service manager leaves NOTIFY_SOCKET.
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
