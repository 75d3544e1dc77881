"""Exploration: occasional small steps from a just-enough allocation, so that the model knows its neighbourhood.

A policy that moves only under pressure sees other allocations only in bad times. Its model then attributes
bad times to the allocation, and misses changes of the application elsewhere.

An exploration step is one unit of one resource, up or down, to the allocation about which least is known. The
controller explores only with slack, after a long calm, and at a limited rate per hour. A step down that proves too
little is rolled back with a cooldown, like any reduction; a step up always goes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from perphd.admission.detector.judge import Target
from perphd.admission.detector.scatter import mean
from perphd.admission.inference import inferer, ladder
from perphd.admission.inference.inferer import Assessed
from perphd.admission.moves.rescue import Move
from perphd.admission.review.lra_context import LraContext
from perphd.admission.settings import PolicySettings
from perphd.domain.allocation import Allocation
from perphd.domain.decision import Action
from perphd.domain.policy import HostView, ResPerfModel, WorkloadView

HOUR_S: Final = 3600.0
ALIKE: Final = 0.95
"""Share of the present allocation's support above which another allocation would teach nothing new."""
SAFE: Final = 0.6
"""Minimum predicted chance of keeping the target for a step in either direction."""
REMEMBERED: Final = 16
"""Maximum number of allocations whose last exploration is remembered."""
SEEN: Final = 10
"""Number of clean scores required as evidence of slack."""


@dataclass(frozen=True, slots=True)
class Probing:
    """State of exploration.

    ``steps_s``: times of the last hour's steps (monotonic). ``been``: allocations explored, latest last. ``out``,
    ``home``: destination and origin of the last step up; both None if there is no step to revert.
    """

    steps_s: tuple[float, ...] = ()
    been: tuple[Allocation, ...] = ()
    out: Allocation | None = None
    home: Allocation | None = None

    def stepped(self, at: Assessed, current: Allocation, now_s: float) -> Probing:
        """The state after an exploration step."""
        recent = (*(s for s in self.steps_s if now_s - s < HOUR_S), now_s)
        been = (*(a for a in self.been if a != at.allocation), at.allocation)[-REMEMBERED:]
        up = not inferer.asks_no_more(at.allocation, current)
        return Probing(recent, been, at.allocation, current) if up else Probing(recent, been)

    def way_home(self, current: Allocation) -> Allocation | None:
        """The allocation to return to if a step up is still in force; else None."""
        return self.home if self.out == current else None

    def back(self) -> Probing:
        """The state after the return from a step up."""
        return Probing(self.steps_s, self.been)

    def made(self, now_s: float) -> int:
        """Number of exploration steps within the last hour."""
        return sum(now_s - s < HOUR_S for s in self.steps_s)


def may_step(
    probing: Probing, scores: Sequence[float], calm_s: float, now_s: float, settings: PolicySettings
) -> bool:
    """True if an exploration step is affordable now.

    Args:
        probing: the state.
        scores: clean scores since the last change (1: on target).
        calm_s: seconds for which the LRA was healthy and nothing changed.
        now_s: monotonic time.
        settings: the LRA's settings (``step_aside_*``).
    """
    if probing.made(now_s) >= settings.step_aside_per_h or calm_s < settings.step_aside_calm_s:
        return False
    last = scores[-SEEN:]
    slack = 1.0 + settings.step_aside_slack_pct / 100.0
    return len(last) >= SEEN and mean(last) >= slack


def around(current: Allocation, host: HostView, batch: Sequence[WorkloadView]) -> tuple[Allocation, ...]:
    """Allocations on the same CPUs with one unit more or less of cache or bandwidth, where it can be set."""
    found: list[Allocation] = []
    if ladder.can_protect_llc(host, batch):
        for ways in (current.llc_ways - 1, current.llc_ways + 1):
            if 0 <= ways <= host.llc_ways - host.min_cbm_bits:
                found.append(replace(current, llc_ways=ways))
    if ladder.can_protect_mbw(host, batch):
        levels = sorted({*host.mba_levels_pct, 100})
        above = [level for level in levels if level > current.mbw_pct][:1]
        below = [level for level in levels if level < current.mbw_pct][-1:]
        found += [replace(current, mbw_pct=level) for level in (*above, *below)]
    return tuple(found)


def step(
    assessed: Sequence[Assessed],
    current: Allocation,
    barred: Sequence[Allocation],
    been: Sequence[Allocation],
    z: float,
) -> Assessed | None:
    """The neighbour of ``current`` least recently explored; None if none is safe enough.

    Unexplored neighbours come first, then those with least support, then those that leave batch more.

    Args:
        assessed: allocations with predictions; those farther than one step are ignored.
        current: the allocation in force.
        barred: allocations in cooldown; allocations that protect no more than these are not tried.
        been: explored allocations, latest last.
        z: standard deviations between prediction and lower bound.
    """
    counts = inferer.core_counts(assessed)
    known = max((i.prediction.support for i in assessed if i.allocation == current), default=0.0)
    found: list[tuple[int, float, bool, Assessed]] = []
    for item in assessed:
        a, at = item.allocation, item.prediction
        if a == current or not _is_one_step(a, current, counts) or at.support >= ALIKE * known:
            continue
        if inferer.chance(at, 1.0, z) < SAFE or any(inferer.asks_no_more(a, r) for r in barred):
            continue
        last = been.index(a) if a in been else -1
        found.append((last, at.support, not inferer.asks_no_more(a, current), item))
    return min(found, key=lambda one: one[:3])[3] if found else None


def _is_one_step(a: Allocation, b: Allocation, counts: Sequence[int]) -> bool:
    if a.cpu == b.cpu:
        return True  # ``around`` offers only single steps
    # Exclusive instead of shared cores are a different instrument, not one step.
    same = a.cpu.exclusive == b.cpu.exclusive and replace(a, cpu=b.cpu) == b
    return same and inferer.is_step(a.cpu, b.cpu, counts)


def aside(
    lra: LraContext,
    model: ResPerfModel,
    target: Target,
    assessed: tuple[Assessed, ...],
    probing: Probing,
    scores: Sequence[float],
    barred: Sequence[Allocation],
    healthy_since_s: float,
) -> tuple[Move, Probing] | None:
    """The exploration step that an LRA makes now, with the new state; None if it makes none.

    Args:
        lra: context of the decision.
        model: the LRA's model.
        target: the LRA's target.
        assessed: enforceable CPU grants with predictions.
        probing: the state.
        scores: clean scores since the last change.
        barred: allocations in cooldown.
        healthy_since_s: time since which it is healthy (monotonic).
    """
    settings, view = lra.settings, lra.view
    calm_s = lra.now_s - max(view.protected_since_s, healthy_since_s)
    if lra.current == lra.nothing or not view.enforced:
        return None
    if not may_step(probing, scores, calm_s, lra.now_s, settings):
        return None
    cache = around(lra.current, lra.snapshot.host, lra.giving())
    if cache:
        assessed = (*assessed, *lra.assess_these(cache, model, target))
    found = step(assessed, lra.current, barred, probing.been, settings.confidence_z)
    if found is None:
        return None
    after = probing.stepped(found, lra.current, lra.now_s)
    here = next(a for a in assessed if a.allocation == lra.current)
    action = Action.EXPLORE if after.out is not None else Action.SHRINK
    candidates = lra.candidates(assessed, found, here)
    return Move(action, found.allocation, told(after, settings), candidates), after


def told(probing: Probing, settings: PolicySettings) -> str:
    """The reason for a step, for the explanation. ``probing``: state after the step."""
    up = "one step more, which is reverted"
    down = "one step back to batch, which is undone if it leaves too little"
    return (
        "an exploration step while there is slack: "
        f"{down if probing.out is None else up} "
        f"({len(probing.steps_s)} of at most {settings.step_aside_per_h:g} within an hour)"
    )
