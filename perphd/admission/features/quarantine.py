"""Circuit breaker: a model whose advice failed is suspended, and a ladder without a model takes over.

The ladder strengthens the suspected resource first, then the others: batch's weight, its cores by halves, exclusive
cores for the LRA; cache ways and bandwidth by halves (``ladder``). Excess is given back one rung at a time. Each step
is evaluated like any other change. Pure functions and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perphd.admission.inference import inferer, ladder
from perphd.admission.review.lra_context import LraContext
from perphd.admission.review.outcomes import Came, Pending
from perphd.admission.settings import PolicySettings
from perphd.admission.thresholds import HELPED_RATIO, WORSE_RATIO
from perphd.domain.allocation import IDLE, Allocation, CpuGrant
from perphd.domain.backoff import doubled_s
from perphd.domain.decision import Action, Cause
from perphd.domain.quick import replace
from perphd.domain.reading import available

GENTLE_WEIGHT = 25
"""Batch's weight on the first rung; the default is 100."""


@dataclass(frozen=True, slots=True)
class Quarantine:
    """State of a model's circuit breaker.

    ``failures``: number of failures of its advice since the advice last helped. ``until_s``: end of the suspension;
    None: never suspended.
    ``times``: consecutive suspensions. ``best``: the best score during the suspension, and its allocation.
    """

    failures: int = 0
    until_s: float | None = None
    times: int = 0
    best: tuple[float, Allocation] | None = None

    def active(self, now_s: float) -> bool:
        """True while the model is suspended."""
        return self.until_s is not None and now_s < self.until_s

    def length_s(self, settings: PolicySettings) -> float:
        """Length of the next suspension in seconds."""
        return doubled_s(settings.quarantine_s, self.times)


def judged(
    state: Quarantine, pending: Pending, came: Came, score: float, now_s: float, settings: PolicySettings
) -> Quarantine:
    """The state after a change was evaluated. ``score``: score after the change (1: on target).

    Only advice to give the LRA more counts. A reduction takes a risk by design, and exploration does not rely on the
    prediction.
    """
    if state.active(now_s):
        better = state.best is None or score > state.best[0] * HELPED_RATIO
        return replace(state, best=(score, pending.after)) if better else state
    if pending.action is not Action.GROW or pending.unproven or _only_memory(pending):
        return state
    if came is Came.HELPED:
        return replace(state, failures=0)
    if available(pending.score_before) and pending.score_before >= 1.0:
        return state  # a precaution while on target had nothing to improve
    if came not in (Came.NO_HELP, Came.WORSE):
        return state
    failures = state.failures + 1
    if failures < settings.quarantine_failures:
        return replace(state, failures=failures)
    # Forget earlier suspensions after a trouble-free time as long as the last one.
    length_s = state.length_s(settings)
    forgiven = state.until_s is None or now_s - state.until_s > length_s
    again = replace(state, times=0) if forgiven else state
    return Quarantine(0, now_s + again.length_s(settings), again.times + 1)


def _only_memory(pending: Pending) -> bool:
    return replace(pending.before, memory_bytes=pending.after.memory_bytes) == pending.after


def cpu_rungs(lra: LraContext) -> tuple[Allocation, ...]:
    """CPU protections from the gentlest to the strongest. Other resources keep the settings in force."""
    knobs, total, floor = lra.knobs(), lra.nothing.cpu.total_cores, lra.floor_cores()
    grants: list[CpuGrant] = []
    if knobs.batch_weight:
        grants += [CpuGrant(total, total, GENTLE_WEIGHT), CpuGrant(total, total, IDLE)]
    halves: list[int] = []
    left = total // 2
    while knobs.batch_cpus and left > floor:
        halves.append(left)
        left //= 2
    if knobs.batch_cpus and floor < total:
        halves.append(floor)
    weakest = IDLE if knobs.batch_weight else 100
    grants += [CpuGrant(total, cores, weakest) for cores in halves]
    if knobs.lra_cpus:
        grants += [CpuGrant(total, cores, 100, exclusive=True) for cores in halves]
    return tuple(replace(lra.current, cpu=grant) for grant in grants)


def climb(
    lra: LraContext, cause: Cause, regretted: Sequence[Allocation], state: Quarantine, score: float
) -> tuple[Allocation, str] | None:
    """The next rung up, and the reason; None if no rung is left. ``score``: score of the allocation in force."""
    cache = list(ladder.stronger(lra.current, cause, lra.snapshot.host, lra.giving()))
    other = Cause.MBW if cause is Cause.LLC else Cause.LLC
    late = list(ladder.stronger(lra.current, other, lra.snapshot.host, lra.giving()))
    cpu = [a for a in cpu_rungs(lra) if _is_above(a.cpu, lra.current.cpu)]
    for step in (*cache, *cpu, *late):
        if step not in regretted and step != lra.current:
            return step, "the next rung of the ladder"
    if state.best is None or state.best[1] == lra.current:
        return None
    value, best = state.best
    if value > score * HELPED_RATIO:
        return best, "the ladder is exhausted: back to the best rung"
    if inferer.asks_no_more(best, lra.current) and score * WORSE_RATIO <= value:
        return best, "the ladder is exhausted: back to the gentlest rung that was as good"
    return None


def descend(lra: LraContext, regretted: Sequence[Allocation]) -> Allocation | None:
    """The next rung down: CPU first, because it is most valuable to batch. None if no rung is left."""
    rungs = cpu_rungs(lra)
    below = [a for a in rungs if _is_above(lra.current.cpu, a.cpu)]
    steps: list[Allocation] = [below[-1]] if below else []
    if not below and lra.current.cpu != lra.nothing.cpu:
        steps.append(replace(lra.current, cpu=lra.nothing.cpu))
    steps += ladder.weaker(lra.current, lra.snapshot.host)
    return next((a for a in steps if a not in regretted and a != lra.current), None)


def _is_above(a: CpuGrant, b: CpuGrant) -> bool:
    """True if ``a`` protects more: exclusive before shared, then fewer batch cores, then lower batch weight."""
    if a.exclusive != b.exclusive:
        return a.exclusive
    if a.batch_cores != b.batch_cores:
        return a.batch_cores < b.batch_cores
    return not a.exclusive and not inferer.protects_no_more(a, b)
