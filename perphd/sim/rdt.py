"""The simulated host's resctrl tree: its machine, the threads that it groups, and its counters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from perphd.sim.inforce import InForce, Tenant
from perphd.sim.kernel import Directory
from perphd.sim.kernel.cgroup2 import CgroupTree
from perphd.sim.kernel.resctrl import (
    BandwidthControl,
    CacheControl,
    Domain,
    Monitoring,
    RdtMachine,
    ResctrlTree,
)
from perphd.sim.node.machine import Machine

_CLOSIDS: Final = 16
_MBA_CLOSIDS: Final = 8
_RMIDS_PER_CPU: Final = 4
_UNIT_BYTES: Final = 65536
_INIT_PID: Final = 1


class CgroupThreads:
    """The threads that resctrl groups: those in the cgroup tree."""

    def __init__(self, cgroups: CgroupTree) -> None:
        self._cgroups = cgroups

    def threads(self) -> Iterator[int]:
        """TIDs of all processes, by age."""
        for process in sorted(self._cgroups.root.all_processes(), key=lambda one: one.pid):
            yield from process.tids

    def exists(self, tid: int) -> bool:
        """True for a live thread."""
        return any(tid in process.tids for process in self._cgroups.root.all_processes())

    def caller(self) -> int:
        """PID of the init process, which belongs to no workload."""
        return _INIT_PID

    def may_move(self, uid: int, tid: int) -> bool:
        """True for root and an existing thread, because all threads belong to root."""
        return uid == 0 and self.exists(tid)


def rdt_machine(machine: Machine) -> RdtMachine:
    """Cache allocation, bandwidth allocation and monitoring as on a Xeon of this shape."""
    domains = tuple(Domain(socket, machine.socket_cpus(socket)) for socket in range(machine.sockets))
    return RdtMachine(
        name="simulated",
        source="the simulated host: one L3 domain a socket",
        cpus=machine.online,
        caches=(CacheControl("L3", domains, machine.l3_bytes, machine.llc_ways, _CLOSIDS, cdp=True),),
        bandwidths=(BandwidthControl("MB", domains, _MBA_CLOSIDS),),
        monitoring=Monitoring(domains, machine.l3_bytes, _RMIDS_PER_CPU * machine.cpus, _UNIT_BYTES),
    )


def mounted(machine: Machine, mount_point: Directory, cgroups: CgroupTree, options: str = "") -> ResctrlTree:
    """The tree, mounted with ``-o options``."""
    tree = ResctrlTree(rdt_machine(machine), mount_point, CgroupThreads(cgroups))
    tree.mount(options)
    return tree


def account(
    tree: ResctrlTree,
    in_force: InForce,
    tenants: Sequence[Tenant],
    occupancy: Sequence[Sequence[float]],
    traffic_bytes: Sequence[Sequence[float]],
) -> None:
    """Give the monitors each workload's occupancy of each domain's cache, and its memory traffic since the
    last call.
    """
    held: dict[tuple[int, int], float] = {}
    for tenant, cache, traffic in zip(tenants, occupancy, traffic_bytes, strict=True):
        _, rmid = in_force.ids(tenant)
        for domain, (size, moved) in enumerate(zip(cache, traffic, strict=True)):
            held[rmid, domain] = held.get((rmid, domain), 0.0) + size
            tree.account_rmid(rmid, domain, mbm_total_bytes=moved, mbm_local_bytes=moved)
    for (rmid, domain), size in held.items():
        tree.account_rmid(rmid, domain, llc_bytes=size)
