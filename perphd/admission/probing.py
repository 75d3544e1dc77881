"""Bounded probing: now and then one step aside from an allocation that is just enough, so that the model knows what
lies around it.

A policy that only moves when it must sees one place, and sees others in bad times only: a model taught by that takes
what is given in bad times for their cause, and does not notice that the application has changed where it never goes.
A step aside is one unit of one resource, up or down, to the place that the least is known of. It is made only while
there is slack, after a long calm, and so many times an hour at most; a step down that proves too little is taken back
and regretted as any step back to batch is, a step up always goes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from perphd.admission import inferer, ladder
from perphd.admission.detector import Target
from perphd.admission.inferer import Assessed
from perphd.admission.rescue import Move
from perphd.admission.scatter import mean
from perphd.admission.scene import Scene
from perphd.admission.settings import PolicySettings
from perphd.domain.allocation import Allocation
from perphd.domain.decision import Action
from perphd.domain.policy import HostView, ResPerfModel, WorkloadView

HOUR_S: Final = 3600.0
ALIKE: Final = 0.95
"""Share of the present place's support from which the model can hardly tell a place from it: nothing to learn there."""
SAFE: Final = 0.6
"""Least chance of keeping the target that a step must have, whichever way it goes."""
REMEMBERED: Final = 16
"""Places whose last visit by a step aside is remembered, at most."""
SEEN: Final = 10
"""Clean scores that must speak for the slack."""


@dataclass(frozen=True, slots=True)
class Probing:
    """What is remembered. ``steps_s``: when the steps aside of the last hour were made (monotonic); ``been``: where
    they went, the last one at the end; ``out``: where the last step up went, ``home``: where from; both
    None when there is nothing to go back from.
    """

    steps_s: tuple[float, ...] = ()
    been: tuple[Allocation, ...] = ()
    out: Allocation | None = None
    home: Allocation | None = None

    def stepped(self, at: Assessed, current: Allocation, now_s: float) -> Probing:
        """After a step aside was decided."""
        recent = (*(s for s in self.steps_s if now_s - s < HOUR_S), now_s)
        been = (*(a for a in self.been if a != at.allocation), at.allocation)[-REMEMBERED:]
        up = not inferer.asks_no_more(at.allocation, current)
        return Probing(recent, been, at.allocation, current) if up else Probing(recent, been)

    def way_home(self, current: Allocation) -> Allocation | None:
        """Where to go back to, if a step up is still in force."""
        return self.home if self.out == current else None

    def back(self) -> Probing:
        """After the way home was taken."""
        return Probing(self.steps_s, self.been)

    def made(self, now_s: float) -> int:
        """Steps aside within the last hour."""
        return sum(now_s - s < HOUR_S for s in self.steps_s)


def may_step(
    probing: Probing, scores: Sequence[float], calm_s: float, now_s: float, settings: PolicySettings
) -> bool:
    """True if a step aside can be afforded now.

    Args:
        probing: what is remembered.
        scores: clean scores since the last change (1: on target).
        calm_s: for how long nothing was changed and the LRA was healthy.
        now_s: the time, monotonic.
        settings: ``step_aside_*``.
    """
    if probing.made(now_s) >= settings.step_aside_per_h or calm_s < settings.step_aside_calm_s:
        return False
    last = scores[-SEEN:]
    slack = 1.0 + settings.step_aside_slack_pct / 100.0
    return len(last) >= SEEN and mean(last) >= slack


def around(current: Allocation, host: HostView, batch: Sequence[WorkloadView]) -> tuple[Allocation, ...]:
    """One unit more and less of cache and of bandwidth, where they can be set; the CPU is that of ``current``."""
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
    """The neighbour of ``current`` where no step aside was for longest; None if none can be risked.

    Of several where none ever was, that of which the model knows least, and of those the one that leaves batch more.

    Args:
        assessed: allocations with what the model says of them; those that are no step away do not count.
        current: in force, among them.
        barred: what is regretted: neither that nor what protects less is tried.
        been: where steps aside have been, the last at the end.
        z: at how many standard deviations the lower bounds lie.
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
        return True  # ``around`` made it
    # Cores of one's own instead of shared ones are another instrument, not a step of the same.
    same = a.cpu.exclusive == b.cpu.exclusive and replace(a, cpu=b.cpu) == b
    return same and inferer.is_step(a.cpu, b.cpu, counts)


def aside(
    scene: Scene,
    model: ResPerfModel,
    target: Target,
    assessed: tuple[Assessed, ...],
    probing: Probing,
    scores: Sequence[float],
    barred: Sequence[Allocation],
    healthy_since_s: float,
) -> tuple[Move, Probing] | None:
    """The step aside that one LRA's turn makes now, and what is to be remembered of it; None if it makes none.

    Args:
        scene: of the decision.
        model: of the LRA.
        target: of the LRA.
        assessed: the CPU grants that can be enforced, with what the model says of them.
        probing: what is remembered.
        scores: clean scores since the last change.
        barred: what is regretted now.
        healthy_since_s: since when it is healthy (monotonic).
    """
    settings, view = scene.settings, scene.view
    calm_s = scene.now_s - max(view.protected_since_s, healthy_since_s)
    if scene.current == scene.nothing or not view.enforced:
        return None
    if not may_step(probing, scores, calm_s, scene.now_s, settings):
        return None
    cache = around(scene.current, scene.snapshot.host, scene.giving())
    if cache:
        assessed = (*assessed, *scene.assess_these(cache, model, target))
    found = step(assessed, scene.current, barred, probing.been, settings.confidence_z)
    if found is None:
        return None
    after = probing.stepped(found, scene.current, scene.now_s)
    here = next(a for a in assessed if a.allocation == scene.current)
    action = Action.EXPLORE if after.out is not None else Action.SHRINK
    candidates = scene.candidates(assessed, found, here)
    return Move(action, found.allocation, told(after, settings), candidates), after


def told(probing: Probing, settings: PolicySettings) -> str:
    """Why, for the explanation. ``probing``: after the step."""
    up = "one step more, which goes back"
    down = "one step back to batch, which is undone if it is too little"
    return (
        "a step aside while there is slack, so that the model knows what lies around: "
        f"{down if probing.out is None else up} "
        f"({len(probing.steps_s)} of at most {settings.step_aside_per_h:g} within an hour)"
    )
