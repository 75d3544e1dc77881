"""State of several LRAs that share one decision, and the conditions for that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from perphd.admission.arbiter.member import Member
from perphd.admission.arbiter.partition_cache import CacheState
from perphd.admission.arbiter.partition_reach import SharedReach
from perphd.admission.arbiter.placement import Cores
from perphd.admission.context import batches, lras, total_cores
from perphd.admission.detector.origin import nothing_to_give
from perphd.admission.review.lra_context import LraContext
from perphd.admission.settings import PolicySettings
from perphd.domain.allocation import Allocation, CpuGrant
from perphd.domain.decision import Decision, Health, Outcome
from perphd.domain.host_account import HostAccount
from perphd.domain.policy import Snapshot, WorkloadView
from perphd.domain.sample import Quality
from perphd.domain.workload import Touch

PLAIN, PLAINLY = 2, 0.9
"""Number of consecutive scores below PLAINLY that count as trouble without a corroborating signal."""
LEAST_LRAS: Final = 2
"""Minimum number of LRAs that can disturb each other."""


@dataclass(frozen=True, slots=True)
class PartitionState:
    """State of the LRAs that share one decision.

    ``members``, ``placed``: states and cores, by name. ``batch_cores``: number of cores on which batch may run.
    ``lent``: those of them that belong to LRAs, if batch has too few of its own; batch is in the idle class then.
    ``quiet_since_s``: time since which batch has been idle or gone.
    ``trouble_was_quiet``: batch was absent when the LRAs disturbed each other. ``caches``: cache and bandwidth, by
    L3 domain. ``reach``: the episode of unreachable targets.
    """

    members: Mapping[str, Member] = field(default_factory=dict)
    placed: Mapping[str, Cores] = field(default_factory=dict)
    batch_cores: int = 0
    lent: Cores = ()
    quiet_since_s: float | None = None
    trouble_was_quiet: bool = False
    caches: Mapping[int, CacheState] = field(default_factory=dict)
    reach: SharedReach = SharedReach()


@dataclass(frozen=True, slots=True)
class PartitionResult:
    """Result of one tick. ``partitioned``: None when all LRAs share cores again."""

    partitioned: PartitionState | None
    decisions: tuple[Decision, ...]
    outcomes: tuple[Outcome, ...]
    protections: Mapping[str, Allocation]


def present(snapshot: Snapshot) -> tuple[WorkloadView, ...]:
    """The LRAs that are present, with a sample and a model."""
    return tuple(
        v
        for v in lras(snapshot)
        if v.sample is not None and v.model is not None and not v.sample.has(Quality.GONE)
    )


def can_part(snapshot: Snapshot) -> bool:
    """True if there are several LRAs, all are enforced, and the cores suffice for each of them and for batch."""
    here = present(snapshot)
    everybody = batches(snapshot)
    giving = [v for v in everybody if v.enforced]
    if len(here) < LEAST_LRAS or (everybody and not giving):
        return False
    if not all(v.enforced and v.spec.touch is Touch.ALL and "cpus" in v.enforceable for v in here):
        return False
    if not all("cpus" in v.enforceable for v in giving if v.sample is not None):
        return False
    return total_cores(snapshot) >= len(here) + floor_cores(snapshot, here[0], PolicySettings())


def floor_cores(snapshot: Snapshot, view: WorkloadView, settings: PolicySettings) -> int:
    """Cores that batch always keeps; 0 if there is no batch."""
    if not any(v.sample is not None for v in batches(snapshot)):
        return 0
    return LraContext(settings, snapshot, view).floor_cores()


def in_trouble(
    decisions: Sequence[Decision], scores: Mapping[str, Sequence[float]], account: HostAccount | None = None
) -> bool:
    """True if an LRA beside others is below its target, from a cause against which resources may help.

    It is below its target if it is DEGRADED, or if its latest ``PLAIN`` scores are all below ``PLAINLY``. ``scores``:
    clean scores of each LRA since its last change, newest last. ``account``: the host account.
    """
    curable = {d.workload for d in decisions if not nothing_to_give(d.verdict.cause, account)}
    if any(d.verdict.health is Health.DEGRADED and d.workload in curable for d in decisions):
        return True
    return any(len(s) >= PLAIN and max(s[-PLAIN:]) < PLAINLY for name, s in scores.items() if name in curable)


def sharing_again(snapshot: Snapshot) -> Snapshot:
    """The snapshot with the LRAs' exclusive cores merged into one shared, exclusive set."""
    own = [v.protection.cpu.own_cores for v in lras(snapshot) if v.protection is not None]
    apart = sum(cores for cores in own if cores is not None)
    if apart == 0:
        return snapshot
    total = total_cores(snapshot)
    cpu = CpuGrant(total, max(1, total - apart), exclusive=True)
    views = tuple(
        replace(v, protection=replace(v.protection, cpu=cpu))
        if v.protection is not None and v.protection.cpu.own_cores is not None
        else v
        for v in snapshot.workloads
    )
    return replace(snapshot, workloads=views)
