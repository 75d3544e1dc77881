"""Selects the reduction with the best value to batch for its risk, and decides when it is due.

These are pure queries to the model; the controller remembers the time since which a reduction has been
possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from perphd.admission.detector.judge import Target
from perphd.admission.inference import inferer, ladder
from perphd.admission.inference.inferer import Assessed
from perphd.admission.moves.rescue import Move
from perphd.admission.review import outcomes
from perphd.admission.review.lra_context import LraContext
from perphd.admission.thresholds import FAIR, LIKELY, SURE
from perphd.domain.allocation import Allocation
from perphd.domain.decision import Action
from perphd.domain.policy import ResPerfModel

SURE_FREE: Final = 2
"""Number of harmful reductions after which even a reduction that is nearly certain must wait longer."""


@dataclass(frozen=True, slots=True)
class GiveBack:
    """Context of the search for a reduction.

    ``regretted``: allocations in cooldown. ``stride``: units of cores, ways or throttle that may be given back at once.
    ``harmed``: number of reductions that proved harmful here.
    """

    lra: LraContext
    model: ResPerfModel
    target: Target
    regretted: Sequence[Allocation]
    stride: int
    harmed: int = 0

    def smaller(self, assessed: Sequence[Assessed], current: Assessed) -> Assessed | None:
        """The reduction to make; None if no reduction is expected to be worth its risk.

        Args:
            assessed: every enforceable CPU grant, with its prediction.
            current: the one in force, from ``assessed``.
        """
        lra, stakes = self.lra, self.lra.stakes
        # If an allocation with more cache, bandwidth and memory was too little, its CPU grant is too little here.
        avoid = [a for a in self.regretted if inferer.asks_no_more(replace(lra.current, cpu=a.cpu), a)]
        # If the present allocation does well without protecting more, it contradicts that cooldown.
        avoid = [a for a in avoid if not inferer.protects_no_more(lra.current.cpu, a.cpu)]
        steps = [self._less_cache(), inferer.cheaper(assessed, current, stakes, avoid, self.stride)]
        found = [step for step in steps if step is not None]
        if not found:
            return self._less_memory(current)
        if len(found) == 2 and self.stride > 1 and (both := self._at_once(found)) is not None:
            return both
        # The reduction of most value to batch comes first.
        return max(found, key=lra.batch_value)

    def move(
        self, assessed: tuple[Assessed, ...], current: Assessed, smaller: Assessed, waited_s: float
    ) -> Move:
        """The reduction if it has been possible for long enough, else HOLD.

        Args:
            assessed: as for ``smaller``.
            current: the one in force, from ``assessed``.
            smaller: the reduction.
            waited_s: seconds for which a reduction has been possible.
        """
        settings, stakes = self.lra.settings, self.lra.stakes
        sure = inferer.chance(smaller.prediction, stakes.need, stakes.z) >= SURE
        waits_s = (0.0, settings.shrink_sure_after_s, settings.shrink_after_s)
        # Wait less if the last reduction left more than enough, and longer if some were rolled back.
        wait_s = waits_s[(not sure) + (self.stride == 1)]
        wait_s *= outcomes.patience(self.regretted, self.harmed - (SURE_FREE if sure else 0))
        if waited_s < wait_s:
            reason = "more than enough; waiting before giving back a step"
            return Move(Action.HOLD, self.lra.current, reason)
        reason = "more than enough for long enough: a step that leaves batch more"
        reason += " and is almost certain to keep the target" if sure else ""
        candidates = self.lra.candidates(assessed, smaller, current)
        return Move(Action.SHRINK, smaller.allocation, reason, candidates)

    def is_weaker_than_regretted(self, allocation: Allocation) -> bool:
        """True if this allocation protects no more than one in cooldown with the same CPU grant."""
        return any(allocation.cpu == r.cpu and inferer.asks_no_more(allocation, r) for r in self.regretted)

    def _less_cache(self) -> Assessed | None:
        """A reduction of cache or bandwidth: one unit if the chance is fair, or more units if success is likely."""
        current, host, stakes = self.lra.current, self.lra.snapshot.host, self.lra.stakes
        if current.llc_ways == 0 and current.mbw_pct == 100:
            return None
        units = sorted({self.stride, (self.stride + 1) // 2, 1}, reverse=True)
        # Different numbers of units can lead to the same allocation; count it as the fewest.
        fewest = {step: n for n in units for step in ladder.weaker(current, host, n)}
        order = [step for step in fewest if not self.is_weaker_than_regretted(step)]
        if not order:
            return None
        for item in self.lra.assess_these(order, self.model, self.target):
            least = FAIR if fewest[item.allocation] == 1 else LIKELY
            if inferer.chance(item.prediction, stakes.need, stakes.z) >= least:
                return item
        return None

    def _at_once(self, steps: Sequence[Assessed]) -> Assessed | None:
        """A step of cache or bandwidth combined with a step of cores; None unless both together are likely to
        succeed.
        """
        cache, cpu = (step.allocation for step in steps)
        stakes = self.lra.stakes
        both = self.lra.assess_these([replace(cache, cpu=cpu.cpu)], self.model, self.target)[0]
        likely = inferer.chance(both.prediction, stakes.need, stakes.z) >= LIKELY
        return both if likely and not self.is_weaker_than_regretted(both.allocation) else None

    def _less_memory(self, current: Assessed) -> Assessed | None:
        """A reduction that gives all protected memory back; None while the LRA stalls for memory."""
        step = replace(self.lra.current, memory_bytes=0)
        if step == self.lra.current or self.lra.memory_pressed() or step in self.regretted:
            return None
        return replace(current, allocation=step, batch_cores=current.batch_cores + 1.0)
