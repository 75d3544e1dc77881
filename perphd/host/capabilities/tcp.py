"""Probes whether this host can measure TCP latency passively per control group (the SLI source tcp)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from perphd.domain.capability import Area, Capability
from perphd.host.capabilities.facts import release, release_text
from perphd.host.cgroup.hierarchy import Hierarchies
from perphd.host.fs import KernelFs

TcpProbe = Callable[[], str]
"""Returns the reason why the programs cannot be loaded; empty if they can."""

_NEEDS: Final = (5, 7)
_COST: Final = 'no request rate or latency from source = "tcp"; the other sources of [lra.sli] remain'


def tcp_refusal() -> str:
    """Reason why this machine cannot load the programs; empty if it can. Loads and discards them without attaching."""
    from perphd.host.tcp_latency import probe_refusal

    return probe_refusal()


def probe_tcp(fs: KernelFs, hierarchies: Hierarchies, tcp: TcpProbe) -> Iterator[Capability]:
    """One capability for kernel, control groups and privileges of the source tcp."""
    missing, remedy = "", ""
    if hierarchies.unified is None:
        missing = "no cgroup v2 hierarchy is mounted"
        remedy = "mount -t cgroup2 none DIRECTORY, beside v1 too; no controller is needed"
    elif (0, 0) < release(fs) < _NEEDS:
        missing, remedy = (
            f"Linux {release_text(fs)} cannot link BPF programs to cgroups",
            "Linux 5.7 or newer",
        )
    elif missing := tcp():
        remedy = (
            "CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON and SystemCallFilter=bpf: the drop-in tcp.conf among the package's "
            "examples (docs/how-to/tcp-latency.md)"
        )
    if missing:
        yield Capability("tcp.latency", Area.MEASURE, False, missing, _COST, remedy)
    else:
        yield Capability("tcp.latency", Area.MEASURE, True, 'BPF programs load: source = "tcp" in [lra.sli]')
