"""Giving back: the step that is worth most to batch, for the risk that the target is missed, and when it is due.

Pure questions to the model; since when there is something to give back is the turn's to remember.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from perphd.admission import inferer, ladder, outcomes
from perphd.admission.detector import Target
from perphd.admission.inferer import Assessed
from perphd.admission.rescue import Move
from perphd.admission.scene import Scene
from perphd.admission.thresholds import FAIR, LIKELY, SURE
from perphd.domain.allocation import Allocation
from perphd.domain.decision import Action
from perphd.domain.policy import ResPerfModel

SURE_FREE: Final = 2
"""Steps back that harmed before one that is as good as certain is waited for any longer."""


@dataclass(frozen=True, slots=True)
class GiveBack:
    """What a step back is looked for with.

    ``regretted``: allocations that have shown not to be enough and are not tried now; ``stride``: units of cores,
    ways or throttle that may be given back at once; ``harmed``: steps back that proved too much here.
    """

    scene: Scene
    model: ResPerfModel
    target: Target
    regretted: Sequence[Allocation]
    stride: int
    harmed: int = 0

    def smaller(self, assessed: Sequence[Assessed], current: Assessed) -> Assessed | None:
        """The step to take; None: nothing smaller is predicted to keep the target.

        Args:
            assessed: every CPU grant that can be enforced here, with what the model says of it.
            current: the one in force, of those.
        """
        scene, stakes = self.scene, self.scene.stakes
        # What was too little with no less of cache, bandwidth and memory is so with what is in force of them.
        avoid = [a for a in self.regretted if inferer.asks_no_more(replace(scene.current, cpu=a.cpu), a)]
        # What does well here although it protects no more speaks against that regret.
        avoid = [a for a in avoid if not inferer.protects_no_more(scene.current.cpu, a.cpu)]
        steps = [self._less_cache(), inferer.cheaper(assessed, current, stakes, avoid, self.stride)]
        found = [step for step in steps if step is not None]
        if not found:
            return self._less_memory(current)
        if len(found) == 2 and self.stride > 1 and (both := self._at_once(found)) is not None:
            return both
        # The dearest first: what gives batch most.
        return max(found, key=scene.batch_value)

    def move(
        self, assessed: tuple[Assessed, ...], current: Assessed, smaller: Assessed, waited_s: float
    ) -> Move:
        """The step, once it was waited for long enough; HOLD until then.

        Args:
            assessed: as for ``smaller``.
            current: the one in force, of those.
            smaller: the step.
            waited_s: for how long there has been one.
        """
        settings, stakes = self.scene.settings, self.scene.stakes
        sure = inferer.chance(smaller.prediction, stakes.need, stakes.z) >= SURE
        waits_s = (0.0, settings.shrink_sure_after_s, settings.shrink_after_s)
        # Where the last step has left more than enough there is no need to look long; there is where some were undone.
        wait_s = waits_s[(not sure) + (self.stride == 1)]
        wait_s *= outcomes.patience(self.regretted, self.harmed - (SURE_FREE if sure else 0))
        if waited_s < wait_s:
            reason = "more than enough; waiting before a step is given back"
            return Move(Action.HOLD, self.scene.current, reason)
        reason = "more than enough for long enough: a step that leaves batch more"
        reason += " and is as good as certain to keep the target" if sure else ""
        candidates = self.scene.candidates(assessed, smaller, current)
        return Move(Action.SHRINK, smaller.allocation, reason, candidates)

    def is_weaker_than_regretted(self, allocation: Allocation) -> bool:
        """True if it protects no more than what has shown to be too little, on the same cores."""
        return any(allocation.cpu == r.cpu and inferer.asks_no_more(allocation, r) for r in self.regretted)

    def _less_cache(self) -> Assessed | None:
        """Cache or bandwidth back to batch: a unit where that has a fair chance, more where a likely one."""
        current, host, stakes = self.scene.current, self.scene.snapshot.host, self.scene.stakes
        if current.llc_ways == 0 and current.mbw_pct == 100:
            return None
        units = sorted({self.stride, (self.stride + 1) // 2, 1}, reverse=True)
        # What several counts come to (little is left to give back) is a step of the fewest.
        fewest = {step: n for n in units for step in ladder.weaker(current, host, n)}
        order = [step for step in fewest if not self.is_weaker_than_regretted(step)]
        if not order:
            return None
        for item in self.scene.assess_these(order, self.model, self.target):
            least = FAIR if fewest[item.allocation] == 1 else LIKELY
            if inferer.chance(item.prediction, stakes.need, stakes.z) >= least:
                return item
        return None

    def _at_once(self, steps: Sequence[Assessed]) -> Assessed | None:
        """A step of cache and bandwidth and a step of cores in one, where the model gives that a likely chance."""
        cache, cpu = (step.allocation for step in steps)
        stakes = self.scene.stakes
        both = self.scene.assess_these([replace(cache, cpu=cpu.cpu)], self.model, self.target)[0]
        likely = inferer.chance(both.prediction, stakes.need, stakes.z) >= LIKELY
        return both if likely and not self.is_weaker_than_regretted(both.allocation) else None

    def _less_memory(self, current: Assessed) -> Assessed | None:
        """Memory is given back whole, when nothing stalls for it any more."""
        step = replace(self.scene.current, memory_bytes=0)
        if step == self.scene.current or self.scene.memory_pressed() or step in self.regretted:
            return None
        return replace(current, allocation=step, batch_cores=current.batch_cores + 1.0)
