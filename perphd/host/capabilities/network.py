"""Probes whether network traffic can be classed: BPF programs attached to control groups, and access to tc."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Final

from perphd.domain.capability import Area, Capability
from perphd.host.cgroup.hierarchy import Hierarchies
from perphd.host.egress_bpf import BpfPrograms

EgressProbe = Callable[[], str]
"""Returns the reason why packets of control groups cannot be assigned to a class; empty if they can."""

_COST: Final = "batch can fill a link, and LRAs' packets then wait behind batch's"


def egress_refusal() -> str:
    """Reason why this machine cannot assign packets to classes; empty if it can. Loads a small program."""
    if reason := BpfPrograms().refusal():
        return reason
    if find_spec("pyroute2") is None and shutil.which("tc") is None:
        return "neither pyroute2 nor tc(8) is installed"
    return ""


def probe_network(hierarchies: Hierarchies, egress: EgressProbe) -> Iterator[Capability]:
    """The capability of egress limits. It does not depend on the configured devices."""
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
