"""Which last-level caches a workload uses: the L3 domains in which its protection has to hold. Pure.

An LRA on one socket needs nothing from batch on another one. A workload's domains are those of the CPUs that are
decided for it, else of those that its cgroup may use; of these only those where its threads were seen to run, where
that is known. What cannot be known counts as everywhere: protection is then laid on every domain.
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
    """The L3 domains that a workload uses; all of the host's where nothing is known.

    Args:
        topology: the host.
        view: the workload.
        cpus: the CPUs that were decided for it; KEEP: none were, those that its cgroup may use count.
    """
    may = view.allowed if cpus is KEEP else cpus
    allowed = () if may is None else domains_with(topology, may)
    allowed = allowed or tuple(each.domain for each in topology.l3_domains)
    return tuple(domain for domain in allowed if domain in view.seen_domains) or allowed


@once
def _protected(snapshot: Snapshot) -> tuple[tuple[frozenset[int], Allocation], ...]:
    """Allocations in force by LRA, and the domains in which each LRA runs."""
    topology = snapshot.host.topology
    return tuple(
        (frozenset(domains_of(topology, view)), view.protection)
        for view in lras(snapshot)
        if view.protection is not None
    )


def protections_beside(snapshot: Snapshot, view: WorkloadView) -> list[Allocation]:
    """Allocations in force for the LRAs that share an L3 domain with this one, its own included."""
    mine = frozenset(domains_of(snapshot.host.topology, view))
    return [held for there, held in _protected(snapshot) if not mine or there & mine]
