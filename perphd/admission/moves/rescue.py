"""Growth: selects the allocation that relieves an LRA below its target.

CPU, cache ways and bandwidth are inferred together in one model call. Effects of cache and bandwidth that the model has
not seen are estimated from counters: if batch makes instructions take ``slower`` times as long, taking a part of its
cache and bandwidth recovers a part of that (``ladder.relief``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from perphd.admission.context import giving_now, model_context
from perphd.admission.detector.judge import Judgement, Target
from perphd.admission.detector.scatter import mean
from perphd.admission.inference import inferer, ladder
from perphd.admission.inference.domains import protections_beside
from perphd.admission.inference.inferer import Assessed
from perphd.admission.review.lra_context import LraContext
from perphd.admission.review.outcomes import FEW, PATIENCE
from perphd.admission.settings import PolicySettings
from perphd.admission.thresholds import HELPED_RATIO, SURE
from perphd.domain.allocation import IDLE, Allocation
from perphd.domain.decision import Action, Candidate, Cause, Prediction
from perphd.domain.policy import ResPerfModel
from perphd.domain.reading import available
from perphd.domain.sample import Sample
from perphd.domain.smt import SMT_SLOWER

RECENT = 5
"""Number of latest samples whose scores represent the present performance."""
SURPRISE_SIGMA = 2.0
"""Number of sigmas between score and prediction above which the score corrects the model at once."""


MINOR_PART = 0.3
"""Exponent on the slowdown factor if cache and bandwidth are not the main cause."""
SEEN_NOW = "the present slowdown, reduced as far as batch is restricted"
"""Basis of a rescue's corrections to the model's predictions."""
KEPT_BEFORE = "it kept the target here before"
"""Reason given for an allocation that was measured to be enough."""
AS_GOOD = 0.97
"""Ratio of a predicted score to the measured one, both below the target, from which the two count as equal."""


@dataclass(frozen=True, slots=True)
class Move:
    """A decision about one LRA before it is recorded.

    ``cooldown``: an allocation that was not enough and enters a cooldown. ``unproven``, ``home``: see
    ``outcomes.Pending``. ``to_best``: see ``Decision``.
    """

    action: Action
    chosen: Allocation
    reason: str
    candidates: tuple[Candidate, ...] = ()
    cooldown: Allocation | None = None
    unproven: bool = False
    home: Allocation | None = None
    to_best: bool = False


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Facts about an LRA below its target.

    ``judged``: the judgement. ``scores``: clean scores since the last change. ``regretted``: allocations in
    cooldown.
    ``kept``: allocations that kept the target here.
    """

    judged: Judgement
    scores: Sequence[float]
    regretted: Sequence[Allocation]
    kept: Sequence[Allocation] = ()

    def measured(self, otherwise: float) -> float:
        """The present score: the last sample if blatant, else the mean of the last few, else ``otherwise``."""
        if self.judged.blatant and available(self.judged.score):
            return self.judged.score
        return mean(self.scores[-RECENT:]) if self.scores else otherwise

    def is_lasting(self, settings: PolicySettings) -> bool:
        """True if there are enough samples since the last change, and the last few are below target."""
        enough = len(self.scores) >= PATIENCE * settings.evaluate_ticks
        return enough and mean(self.scores[-FEW:]) < 1.0


def rescue(lra: LraContext, model: ResPerfModel, target: Target, shortfall: Shortfall) -> Move:
    """The move that relieves an LRA; HOLD if nothing is predicted to help."""
    judged, current = shortfall.judged, lra.current
    cause = judged.verdict.cause
    # Fewer cores for batch also mean less cache and bandwidth, but do not relieve memory or disks.
    if cause in (Cause.MEMORY, Cause.IO) and not lra.cpu_is_contended():
        return Move(
            Action.HOLD,
            current,
            f"{cause} is contended: CPU would not help, and batch's use of it cannot be limited here",
        )
    blind = lra.view.sample is not None and _is_blind(lra.view.sample, judged)
    move = _infer(lra, model, target, shortfall, _cache_options(lra, judged.hierarchy))
    if move.action is not Action.HOLD or not blind or mean(shortfall.scores or (0.0,)) >= 1.0:
        return move
    # CPU steps are exhausted: try cache and bandwidth, although no counter can show that they are the cause.
    for option in _cache_options(lra, Cause.LLC)[1:]:
        if not _barred(option, shortfall.regretted):
            why = f"{move.reason}; trying cache and bandwidth next"
            return Move(Action.EXPLORE, option, why, move.candidates)
    return move


def _is_blind(sample: Sample, judged: Judgement) -> bool:
    """True if no counter can rule out cache and bandwidth as causes.

    An unchanged CPI rules them out. If it rose, only misses or stalls distinguish memory from an SMT sibling.
    """
    if not available(sample.cpi):
        return True
    told = available(sample.llc_mpki) or available(sample.memory_stall_ratio)
    return not told and judged.hierarchy is not Cause.NONE


def _infer(
    lra: LraContext, model: ResPerfModel, target: Target, shortfall: Shortfall, options: Sequence[Allocation]
) -> Move:
    z = lra.settings.confidence_z
    assessed = _assess(lra, model, target, shortfall, options)
    current = next(a for a in assessed if a.allocation == lra.current)
    measured = shortfall.measured(current.prediction.score)
    near = lra.current != lra.nothing and measured >= 1.0 - lra.settings.min_effect_pct / 100.0
    eligible = tuple(
        a
        for a in assessed
        if a.allocation == lra.current
        or (not _barred(a.allocation, shortfall.regretted) and _fits(lra, a, near, assessed))
    )
    if near and len(eligible) == 1:
        return _hold(
            lra, "best effort: slightly below target, and no untried allocation is certain to do better"
        )
    if lra.current == lra.nothing and len(eligible) > 1:
        eligible = tuple(a for a in eligible if a.allocation != lra.current)  # it misses the target
    chosen, why = inferer.choose(eligible, lra.current, z)
    exploring = why == inferer.EXPLORING
    if exploring and lra.current != lra.nothing and not shortfall.is_lasting(lra.settings):
        return _hold(lra, "no known allocation is better, and it is too early to explore: watching")
    spell = shortfall.scores and mean(shortfall.scores) >= 1.0 and not shortfall.judged.blatant
    if lra.current != lra.nothing and spell:
        stay = inferer.chance(current.prediction, 1.0, z)
        if stay >= inferer.chance(chosen.prediction, 1.0, z):
            # Experience outweighs a few bad samples; the model learns from lasting ones.
            return _hold(lra, f"best effort: the allocation in force has the best chance ({stay:.0%})")
    candidates = lra.candidates(assessed, chosen, current)
    hopeless = chosen.prediction.score < measured * HELPED_RATIO and chosen.prediction.lower < 1.0
    may_hold = lra.current != lra.nothing or target.reach < 1.0
    if chosen.allocation == lra.current or (hopeless and not exploring and may_hold):
        open_ = [a for a in assessed if not _barred(a.allocation, shortfall.regretted)]
        gentle = gentler(open_, current, measured, lra.stakes) if shortfall.scores else None
        if gentle is not None:
            text = "nothing helps; an equally good allocation gives batch more"
            return Move(Action.ROLLBACK, gentle.allocation, text, lra.candidates(assessed, gentle, current))
        if chosen.allocation == lra.current:
            return _hold(lra, "best effort: " + why, candidates)
        text = "best effort: no allocation is predicted to do clearly better than the one in force"
        return _hold(lra, text, candidates)
    chosen, why = _kept_before(lra, model, target, shortfall.kept, chosen, why)
    what = _relieved(lra.current, chosen.allocation)
    cooldown = lra.current if lra.current != lra.nothing else None  # insufficient, so it enters a cooldown
    return Move(
        Action.EXPLORE if exploring else Action.GROW, chosen.allocation, what + why, candidates, cooldown
    )


def _kept_before(
    lra: LraContext,
    model: ResPerfModel,
    target: Target,
    kept: Sequence[Allocation],
    chosen: Assessed,
    why: str,
) -> tuple[Assessed, str]:
    """The allocation that kept the target here and leaves batch most, with the reason; else ``chosen``."""
    if not kept:
        return chosen, why
    asked = lra.assess_these([chosen.allocation, *kept], model, target)
    best = max(asked, key=lra.batch_value)
    return (chosen, why) if best.allocation == chosen.allocation else (best, KEPT_BEFORE)


def gentler(
    assessed: Sequence[Assessed], current: Assessed, measured: float, stakes: inferer.Stakes
) -> Assessed | None:
    """A tried allocation predicted as good as the one in force that leaves batch clearly more, or None.

    It must be as good for the model itself, too. What the latest samples correct is known for the allocation in force
    alone, and trouble that came since may be the same in both.
    """
    here = current.allocation.cpu
    believed = (current.asked or current.prediction).score
    least = current.batch_cores * inferer.LEAST_GAIN_SHARE + inferer.NEGLIGIBLE_CORES
    if measured >= 1.0 or current.prediction.score >= 1.0:
        return None
    equal = [
        a
        for a in assessed
        if a.prediction.support >= inferer.VISITED
        and a.prediction.score >= AS_GOOD * measured
        and (a.asked or a.prediction).score >= AS_GOOD * believed
        and a.batch_cores - current.batch_cores > least
        and stakes.most_gain_cores(here, a.allocation.cpu) > least
        and inferer.asks_no_more(a.allocation, current.allocation)
    ]
    return max(equal, key=lambda a: a.batch_cores, default=None)


def _assess(
    lra: LraContext, model: ResPerfModel, target: Target, shortfall: Shortfall, options: Sequence[Allocation]
) -> tuple[Assessed, ...]:
    """Every CPU grant with the cache and bandwidth in force, and strong grants with every cache option."""
    grants = inferer.lattice(lra.current, lra.floor_cores(), lra.knobs())
    strong = [a for a in grants if a.cpu.exclusive or a.cpu.batch_weight is IDLE or a == lra.current]
    allocations = list(grants)
    for option in options:
        if option != lra.current:
            allocations += [replace(option, cpu=a.cpu) for a in strong]
    judged = shortfall.judged
    slower = max(1.0, judged.slower / _by_siblings(lra))
    if judged.hierarchy not in (Cause.LLC, Cause.MBW):
        slower = 1.0
    elif judged.verdict.cause not in (Cause.LLC, Cause.MBW):
        slower **= MINOR_PART  # threads that alternate on a core also find its caches cold
    context = model_context(lra.snapshot, lra.view, model)
    # Slower instructions also need more CPU; half of that is expected to remain.
    demand_cores = min(context.lra_demand_cores * math.sqrt(slower), context.total_cores)
    context = replace(context, lra_demand_cores=demand_cores)
    assessed = inferer.assess(allocations, model, context, target, lra.settings.confidence_z)
    believed = next(a.prediction.score for a in assessed if a.allocation == lra.current)
    surprise = math.log(max(shortfall.measured(believed), 1e-3) / believed)
    if abs(surprise) <= SURPRISE_SIGMA * judged.noise_sd / math.sqrt(
        max(1, min(len(shortfall.scores), RECENT))
    ):
        surprise = 0.0
    found = []
    for item in assessed:
        p = item.prediction
        gain = 1.0
        alike = inferer.likeness(lra.current, item.allocation, lra.snapshot.host.llc_ways)
        if item.allocation != lra.current:
            # Experience from before this trouble reveals little about it. Without model support, assume
            # that restricting batch relieves the present slowdown, but less in allocations unlike the present one.
            seen = min(1.0, p.support / inferer.VISITED) if surprise == 0.0 else 0.0
            relief = ladder.relief(lra.current, item.allocation, judged.hierarchy, lra.snapshot.host)
            gain = slower ** ((relief - (1.0 - alike)) * (1.0 - seen))
        # Present samples outweigh predictions, here and in similar allocations.
        gain *= math.exp(surprise * alike)
        doubt = math.exp(-lra.settings.confidence_z * abs(surprise) * alike * (1.0 - alike))
        prediction = Prediction(p.score * gain, p.lower * gain * doubt, p.upper * gain / doubt, p.support)
        value = lra.batch_value(item)
        if prediction == p:
            found.append(replace(item, batch_cores=value))
        else:
            found.append(replace(item, prediction=prediction, batch_cores=value, asked=p, basis=SEEN_NOW))
    return tuple(found)


def _by_siblings(lra: LraContext) -> float:
    """Slowdown by batch on SMT siblings alone, under the present allocation."""
    topology, cpu = lra.snapshot.host.topology, lra.current.cpu
    if len(topology.usable) <= len(topology.usable_cores) or cpu.exclusive:
        return 1.0
    return 1.0 + (SMT_SLOWER - 1.0) * cpu.batch_cores / cpu.total_cores


def _fits(lra: LraContext, item: Assessed, near: bool, assessed: Sequence[Assessed]) -> bool:
    """True if the step suits the distance to the target.

    Far from the target, only fast relief suits. Near the target, an almost certain step or a step of one unit suits.
    """
    here, there = lra.current, item.allocation
    if not near:
        # A CPU step must relieve fast: exclusive cores, or the idle class for batch. Excess is given back later.
        weak = there.cpu.exclusive or there.cpu.batch_weight is IDLE or there.cpu == here.cpu
        return weak or not lra.knobs().batch_weight
    if inferer.chance(item.prediction, 1.0, lra.settings.confidence_z) >= SURE:
        return True
    if there.cpu == here.cpu:
        return inferer.asks_no_more(here, there)
    # Near the target, an uncertain step may lose more than it gains.
    same = replace(there, cpu=here.cpu) == here
    counts = inferer.core_counts(assessed)
    return (
        same
        and inferer.protects_no_more(here.cpu, there.cpu)
        and inferer.is_step(here.cpu, there.cpu, counts)
    )


def _barred(allocation: Allocation, regretted: Sequence[Allocation]) -> bool:
    """True if the allocation protects no more than one in cooldown on the same cores."""
    return any(
        inferer.no_stronger_here(allocation.cpu, r.cpu)
        and allocation.llc_ways <= r.llc_ways
        and allocation.mbw_pct >= r.mbw_pct
        and allocation.memory_bytes <= r.memory_bytes
        for r in regretted
    )


def _cache_options(lra: LraContext, cause: Cause) -> tuple[Allocation, ...]:
    """The present allocation, and those that protect more cache, bandwidth, or both.

    These protect more than is in force on batch in its L3 domains, including restrictions for other LRAs.
    """
    beside = protections_beside(lra.snapshot, lra.view)
    ways, pct = ladder.strictest_cache([lra.current, *beside])
    in_force = replace(lra.current, llc_ways=ways, mbw_pct=pct)
    rungs = ladder.stronger(in_force, cause, lra.snapshot.host, giving_now(lra.snapshot))
    own = [
        replace(lra.current, llc_ways=r.llc_ways)
        if r.llc_ways != ways
        else replace(lra.current, mbw_pct=r.mbw_pct)
        for r in rungs
    ]
    more_ways = [a for a in own if a.llc_ways != lra.current.llc_ways]
    less_bandwidth = [a for a in own if a.mbw_pct != lra.current.mbw_pct]
    both = [replace(a, mbw_pct=b.mbw_pct) for a in more_ways[:2] for b in less_bandwidth[:1]]
    return tuple(dict.fromkeys([lra.current, *own, *both]))


def _relieved(before: Allocation, after: Allocation) -> str:
    parts = []
    if after.llc_ways > before.llc_ways:
        parts.append("cache")
    if after.mbw_pct < before.mbw_pct:
        parts.append("memory bandwidth")
    return f"batch gets less {' and '.join(parts)}; " if parts else ""


def _hold(lra: LraContext, reason: str, candidates: tuple[Candidate, ...] = ()) -> Move:
    return Move(Action.HOLD, lra.current, reason, candidates)
