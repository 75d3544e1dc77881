"""The L3 domains that a workload uses, in which its protection must hold. Pure.

An LRA on one socket needs no protection from batch on another socket. A workload's domains are those of the CPUs
decided for it, else of the CPUs that its cgroup may use, reduced to the domains where its threads were seen. If
nothing is known, all domains count.
"""

from __future__ import annotations

from perphd.admission.context import lras, once
from perphd.domain.allocation import KEEP, Allocation, Keep
from perphd.domain.cpuset import CpuSet
from perphd.domain.policy import Snapshot, WorkloadView
from perphd.domain.topology import Topology


def domains_with(topology: Topology, cpus: CpuSet) -> tuple[int, ...]:
    """The L3 domains with at least one of these CPUs, in the host's order."""
    return tuple(each.domain for each in topology.l3_domains if each.cpus & cpus & topology.usable)


def domains_of(topology: Topology, view: WorkloadView, cpus: CpuSet | Keep = KEEP) -> tuple[int, ...]:
    """The L3 domains that a workload uses; all domains of the host if unknown.

    Args:
        topology: the host.
        view: the workload.
        cpus: the CPUs decided for it; KEEP: there are none, so its cgroup's CPUs count.
    """
    may = view.allowed if cpus is KEEP else cpus
    allowed = () if may is None else domains_with(topology, may)
    allowed = allowed or tuple(each.domain for each in topology.l3_domains)
    return tuple(domain for domain in allowed if domain in view.seen_domains) or allowed


@once
def _protected(snapshot: Snapshot) -> tuple[tuple[frozenset[int], Allocation], ...]:
    """Each LRA's domains, with its allocation in force."""
    topology = snapshot.host.topology
    return tuple(
        (frozenset(domains_of(topology, view)), view.protection)
        for view in lras(snapshot)
        if view.protection is not None
    )


def protections_beside(snapshot: Snapshot, view: WorkloadView) -> list[Allocation]:
    """Allocations in force of the LRAs that share an L3 domain with this one, including its own."""
    mine = frozenset(domains_of(snapshot.host.topology, view))
    return [held for there, held in _protected(snapshot) if not mine or there & mine]
