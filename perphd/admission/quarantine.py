"""When a model's advice has failed: it is not asked for a while, and a ladder that needs no model takes over.

The ladder steps up what is suspected, then the next: batch's weight, its cores by halves, cores of the LRA's own; cache
ways and bandwidth by halves (``ladder``). What is enough is given back one rung at a time. Each step is judged by what
came of it, like any other. Pure functions and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from perphd.admission import inferer, ladder
from perphd.admission.backoff import doubled_s
from perphd.admission.outcomes import Came, Pending
from perphd.admission.scene import Scene
from perphd.admission.settings import PolicySettings
from perphd.admission.thresholds import HELPED_RATIO, WORSE_RATIO
from perphd.domain.allocation import IDLE, Allocation, CpuGrant
from perphd.domain.decision import Action, Cause
from perphd.domain.reading import available

GENTLE_WEIGHT = 25
"""The first rung: batch's weight against everybody's 100."""


@dataclass(frozen=True, slots=True)
class Quarantine:
    """What is held against a model.

    ``failures``: of its advice, since it last helped; ``until_s``: not asked before; ``times``: quarantines in a row.
    ``best``: the allocation that did best while it was not asked, and its score.
    """

    failures: int = 0
    until_s: float | None = None
    times: int = 0
    best: tuple[float, Allocation] | None = None

    def active(self, now_s: float) -> bool:
        """True while the model is not asked."""
        return self.until_s is not None and now_s < self.until_s

    def length_s(self, settings: PolicySettings) -> float:
        """How long the next quarantine would last."""
        return doubled_s(settings.quarantine_s, self.times)


def judged(
    state: Quarantine, pending: Pending, came: Came, score: float, now_s: float, settings: PolicySettings
) -> Quarantine:
    """After a change was judged. ``score``: what it came to (1: on target).

    Only advice to give more counts: a step back is a gamble by design, and exploration asks for no belief.
    """
    if state.active(now_s):
        better = state.best is None or score > state.best[0] * HELPED_RATIO
        return replace(state, best=(score, pending.after)) if better else state
    if pending.action is not Action.GROW or pending.unproven or _only_memory(pending):
        return state
    if came is Came.HELPED:
        return replace(state, failures=0)
    if available(pending.score_before) and pending.score_before >= 1.0:
        return state  # it was on target: what was done by way of precaution had nothing to cure
    if came not in (Came.NO_HELP, Came.WORSE):
        return state
    failures = state.failures + 1
    if failures < settings.quarantine_failures:
        return replace(state, failures=failures)
    # Forgiven once it has done well for as long as it was not asked.
    length_s = state.length_s(settings)
    forgiven = state.until_s is None or now_s - state.until_s > length_s
    again = replace(state, times=0) if forgiven else state
    return Quarantine(0, now_s + again.length_s(settings), again.times + 1)


def _only_memory(pending: Pending) -> bool:
    return replace(pending.before, memory_bytes=pending.after.memory_bytes) == pending.after


def cpu_rungs(scene: Scene) -> tuple[Allocation, ...]:
    """CPU protections from the gentlest to the strongest; the rest as it is in force."""
    knobs, total, floor = scene.knobs(), scene.nothing.cpu.total_cores, scene.floor_cores()
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
    return tuple(replace(scene.current, cpu=grant) for grant in grants)


def climb(
    scene: Scene, cause: Cause, regretted: Sequence[Allocation], state: Quarantine, score: float
) -> tuple[Allocation, str] | None:
    """The next rung up and why; None if nothing is left to try. ``score``: what is in force comes to."""
    cache = list(ladder.stronger(scene.current, cause, scene.snapshot.host, scene.giving()))
    other = Cause.MBW if cause is Cause.LLC else Cause.LLC
    late = list(ladder.stronger(scene.current, other, scene.snapshot.host, scene.giving()))
    cpu = [a for a in cpu_rungs(scene) if _is_above(a.cpu, scene.current.cpu)]
    for step in (*cache, *cpu, *late):
        if step not in regretted and step != scene.current:
            return step, "the next rung of the ladder"
    if state.best is None or state.best[1] == scene.current:
        return None
    value, best = state.best
    if value > score * HELPED_RATIO:
        return best, "the ladder is at its end: back to the rung that did best"
    if inferer.asks_no_more(best, scene.current) and score * WORSE_RATIO <= value:
        return best, "the ladder is at its end: back to the gentlest rung that did as well"
    return None


def descend(scene: Scene, regretted: Sequence[Allocation]) -> Allocation | None:
    """One rung down, CPU first: it is dearest for batch; None if nothing is left to give back."""
    rungs = cpu_rungs(scene)
    below = [a for a in rungs if _is_above(scene.current.cpu, a.cpu)]
    steps: list[Allocation] = [below[-1]] if below else []
    if not below and scene.current.cpu != scene.nothing.cpu:
        steps.append(replace(scene.current, cpu=scene.nothing.cpu))
    steps += ladder.weaker(scene.current, scene.snapshot.host)
    return next((a for a in steps if a not in regretted and a != scene.current), None)


def _is_above(a: CpuGrant, b: CpuGrant) -> bool:
    """True if ``a`` protects more: exclusive cores before shared ones, then fewer cores for batch, then less weight."""
    if a.exclusive != b.exclusive:
        return a.exclusive
    if a.batch_cores != b.batch_cores:
        return a.batch_cores < b.batch_cores
    return not a.exclusive and not inferer.protects_no_more(a, b)
