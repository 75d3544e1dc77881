"""Relief: what copper gives back when it holds more than its offer, mildest first.

    rung                frees           cost
    CPU ceiling         CPUs            slower, nothing lost
    reclaim             cold memory     reads it again when needed
    freeze              CPUs            stands still, keeps its memory; counts as a preemption
    requeue             everything      all work since the start

CPUs are taken by ceilings first, in proportion to use, down to a tenth of what each job asked for; then by freezing.
Memory is reclaimed first. Then jobs that are frozen are requeued, and one other is frozen, to be requeued in the next
round if memory is still short. ``urgent`` requeues at once.

Jobs go in this order (DistSched, 5.3.2): those that use more than they asked for, those that use more than was
predicted, then those with the least work to lose. No job is preempted within its back-off, and only copper is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from perphd.qos.ledger import Amounts

LEAST_CPU_SHARE: Final = 0.1
_ROUNDING: Final = 1e-9


class ReliefRung(StrEnum):
    """How a job gives back, mildest first."""

    CPU_CEILING = "cpu ceiling"
    RECLAIM = "reclaim"
    FREEZE = "freeze"
    REQUEUE = "requeue"


@dataclass(frozen=True, slots=True)
class CopperJob:
    """A copper job that runs or is frozen.

    ``predicted`` is the most that it was predicted to use, ``cold_bytes`` the memory that it has not touched lately,
    and ``ran_s`` the work that a requeue loses.
    """

    name: str
    requested: Amounts
    used: Amounts
    predicted: Amounts
    cold_bytes: int = 0
    frozen: bool = False
    ran_s: float = 0.0
    not_preempted_before_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Relief:
    """One step: the job, the rung, what it frees, the seconds of work that it loses, and why this job."""

    name: str
    rung: ReliefRung
    frees: Amounts
    lost_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class ReliefPlan:
    """The steps in order, and what is still in excess after them."""

    steps: tuple[Relief, ...]
    unrelieved: Amounts


def relieved(excess: Amounts, jobs: Sequence[CopperJob], now_s: float, urgent: bool = False) -> ReliefPlan:
    """The steps that give ``excess`` back."""
    steps = [*_ceilings(excess.cpus, jobs), *_reclaims(excess.memory_bytes, jobs)]
    left = _left(excess, steps)
    ordered = sorted(jobs, key=_order)
    for job in [each for each in ordered if each.frozen]:  # frozen for this already: no new preemption
        if left.memory_bytes > 0:
            steps.append(_step(job, ReliefRung.REQUEUE, steps))
            left = _left(excess, steps)
    for job in [each for each in ordered if not each.frozen and each.not_preempted_before_s <= now_s]:
        if left.cpus <= _ROUNDING and left.memory_bytes <= 0:
            break
        rung = ReliefRung.REQUEUE if urgent and left.memory_bytes > 0 else ReliefRung.FREEZE
        step = _step(job, rung, steps)
        helps_memory = left.memory_bytes > 0 and job.used.memory_bytes > 0
        if not helps_memory and not (left.cpus > _ROUNDING and step.frees.cpus > 0):
            continue
        steps.append(step)
        left = _left(excess, steps)
        if rung is ReliefRung.FREEZE and left.cpus <= _ROUNDING:
            break  # frees no memory yet: one job a round
    return ReliefPlan(tuple(steps), left.at_least_nothing())


def _ceilings(excess_cpus: float, jobs: Sequence[CopperJob]) -> list[Relief]:
    """CPU ceilings in proportion to what each job uses above the least that it keeps."""
    spare = {
        job.name: max(0.0, job.used.cpus - LEAST_CPU_SHARE * job.requested.cpus)
        for job in jobs
        if not job.frozen
    }
    total = sum(spare.values())
    if excess_cpus <= 0 or total <= 0:
        return []
    share = min(1.0, excess_cpus / total)
    reason = f"copper holds {excess_cpus:g} CPUs beyond its offer"
    return [
        Relief(name, ReliefRung.CPU_CEILING, Amounts(cpus * share), 0.0, reason)
        for name, cpus in spare.items()
        if cpus > 0
    ]


def _reclaims(excess_bytes: int, jobs: Sequence[CopperJob]) -> list[Relief]:
    """Cold memory, from whoever has most of it."""
    steps: list[Relief] = []
    for job in sorted(jobs, key=lambda each: (-each.cold_bytes, each.name)):
        taken = min(excess_bytes, job.cold_bytes, job.used.memory_bytes)
        if taken <= 0:
            break
        excess_bytes -= taken
        steps.append(
            Relief(job.name, ReliefRung.RECLAIM, Amounts(0.0, taken), 0.0, "it has most cold memory")
        )
    return steps


def _step(job: CopperJob, rung: ReliefRung, earlier: Sequence[Relief]) -> Relief:
    """A preemption: it frees what earlier steps have left to the job."""
    given = sum((step.frees for step in earlier if step.name == job.name), Amounts())
    held = (job.used - given).at_least_nothing()
    whole = rung is ReliefRung.REQUEUE
    frees = Amounts(0.0 if job.frozen else held.cpus, held.memory_bytes if whole else 0)
    return Relief(job.name, rung, frees, job.ran_s if whole else 0.0, _reason(job))


def _order(job: CopperJob) -> tuple[bool, bool, float, str]:
    return job.used.fits(job.requested), job.used.fits(job.predicted), job.ran_s, job.name


def _reason(job: CopperJob) -> str:
    if not job.used.fits(job.requested):
        return f"it uses {job.used} and asked for {job.requested}"
    if not job.used.fits(job.predicted):
        return f"it uses {job.used}, and {job.predicted} were predicted"
    return f"it has the least work to lose: {job.ran_s:.0f} s"


def _left(excess: Amounts, steps: Sequence[Relief]) -> Amounts:
    return excess - sum((step.frees for step in steps), Amounts())
