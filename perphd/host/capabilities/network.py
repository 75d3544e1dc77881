"""Whether traffic classes can be had: programs at control groups, and a way to speak to tc."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Final

from perphd.domain.capability import Area, Capability
from perphd.host.cgroup.hierarchy import Hierarchies
from perphd.host.egress_bpf import BpfPrograms

EgressProbe = Callable[[], str]
"""Why no control group's packets can be sent to a class; empty if they can."""

_COST: Final = "batch can fill a link: what LRAs send then waits behind it"


def egress_refusal() -> str:
    """Of this machine. Loads a program of four instructions, and lets it go."""
    if reason := BpfPrograms().refusal():
        return reason
    if find_spec("pyroute2") is None and shutil.which("tc") is None:
        return "neither pyroute2 nor tc(8) is installed"
    return ""


def probe_network(hierarchies: Hierarchies, egress: EgressProbe) -> Iterator[Capability]:
    """Egress ceilings. That devices must be named in the configuration is not a matter of the host."""
    if hierarchies.unified is None:
        reason = "no cgroup v2 hierarchy is mounted: v1's net_cls would need a filter on every device"
        remedy = "mount cgroup2; on a v1 host beside it, as a hybrid"
        yield Capability("network.egress", Area.ENFORCE, False, reason, _COST, remedy)
    elif reason := egress():
        remedy = (
            "Linux 5.7 or newer with CONFIG_CGROUP_BPF and NET_SCH_HTB, bpffs on /sys/fs/bpf, iproute2; a unit needs "
            "CAP_BPF, SystemCallFilter=bpf and ReadWritePaths=/sys/fs/bpf/perphd (docs/knobs.md)"
        )
        yield Capability("network.egress", Area.ENFORCE, False, reason, _COST, remedy)
    else:
        detail = "HTB classes on the devices that [network] names, found by BPF programs at control groups"
        yield Capability("network.egress", Area.ENFORCE, True, detail)
