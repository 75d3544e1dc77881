"""Growth: from an LRA that is short of its target to the allocation that is to relieve it.

CPU, cache ways and bandwidth are inferred together, in one model call. What the model has not seen of cache and
bandwidth yet is expected from the counters: instructions that take ``slower`` times as long do so because of what
batch has, and taking a part of that away wins a part of it back (``ladder.relief``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from perphd.admission import inferer, ladder
from perphd.admission.context import giving_now, model_context
from perphd.admission.detector import Judgement, Target
from perphd.admission.domains import protections_beside
from perphd.admission.inferer import Assessed
from perphd.admission.outcomes import FEW, PATIENCE
from perphd.admission.scatter import mean
from perphd.admission.scene import Scene
from perphd.admission.settings import PolicySettings
from perphd.admission.thresholds import HELPED_RATIO, SURE
from perphd.domain.allocation import IDLE, Allocation
from perphd.domain.decision import Action, Candidate, Cause, Prediction
from perphd.domain.policy import ResPerfModel
from perphd.domain.reading import available
from perphd.domain.sample import Sample
from perphd.domain.smt import SMT_SLOWER

RECENT = 5
"""Samples that count as now."""
SURPRISE_SIGMA = 2.0
"""A score that is so many sigma from what the model believes of the present allocation corrects that belief at once."""


MINOR_PART = 0.3
"""Exponent on how much slower instructions are where cache and bandwidth are not what it suffers from most."""
SEEN_NOW = "as slow as now, less what batch gives up"
"""By what a rescue corrects the model's answers."""
AS_GOOD = 0.97
"""A score that is this share of another counts as equal where neither is enough."""


@dataclass(frozen=True, slots=True)
class Move:
    """What was decided for one LRA, before it becomes a record.

    ``regret``: it has shown not to be enough; ``unproven``, ``home``: see ``outcomes.Pending``.
    """

    action: Action
    chosen: Allocation
    reason: str
    candidates: tuple[Candidate, ...] = ()
    regret: Allocation | None = None
    unproven: bool = False
    home: Allocation | None = None


@dataclass(frozen=True, slots=True)
class Plight:
    """What is known of an LRA that is short: the detector's answer, clean scores since the last change, and what is
    regretted now.
    """

    judged: Judgement
    scores: Sequence[float]
    regretted: Sequence[Allocation]

    def measured(self, otherwise: float) -> float:
        """What is seen now: the last sample if it is blatant, else the mean of the last few; ``otherwise``: of none."""
        if self.judged.blatant and available(self.judged.score):
            return self.judged.score
        return mean(self.scores[-RECENT:]) if self.scores else otherwise

    def is_lasting(self, settings: PolicySettings) -> bool:
        """True if the samples since the last change have had their time, and the last few are below target."""
        enough = len(self.scores) >= PATIENCE * settings.evaluate_ticks
        return enough and mean(self.scores[-FEW:]) < 1.0


def rescue(scene: Scene, model: ResPerfModel, target: Target, plight: Plight) -> Move:
    """The move that relieves it; HOLD where nothing is believed to."""
    judged, current = plight.judged, scene.current
    cause = judged.verdict.cause
    # Fewer cores for batch also take less cache and bandwidth; memory and disks they do not relieve.
    if cause in (Cause.MEMORY, Cause.IO) and not scene.cpu_is_contended():
        return Move(
            Action.HOLD,
            current,
            f"{cause} is contended: CPU would not help, and batch's use of it is not limited here",
        )
    blind = scene.view.sample is not None and _is_blind(scene.view.sample, judged)
    move = _infer(scene, model, target, plight, _cache_options(scene, judged.hierarchy))
    if move.action is not Action.HOLD or not blind or mean(plight.scores or (0.0,)) >= 1.0:
        return move
    # CPU went as far as it goes: cache and bandwidth are tried where no counter can speak for them.
    for option in _cache_options(scene, Cause.LLC)[1:]:
        if not _barred(option, plight.regretted):
            why = f"{move.reason}; what is left to try is its cache and bandwidth"
            return Move(Action.EXPLORE, option, why, move.candidates)
    return move


def _is_blind(sample: Sample, judged: Judgement) -> bool:
    """True if no counter can say that cache and bandwidth are innocent.

    CPI as usual says so by itself. Where it rose, only misses or stalls tell memory from a hyperthread.
    """
    if not available(sample.cpi):
        return True
    told = available(sample.llc_mpki) or available(sample.memory_stall_ratio)
    return not told and judged.hierarchy is not Cause.NONE


def _infer(
    scene: Scene, model: ResPerfModel, target: Target, plight: Plight, options: Sequence[Allocation]
) -> Move:
    z = scene.settings.confidence_z
    assessed = _assess(scene, model, target, plight, options)
    current = next(a for a in assessed if a.allocation == scene.current)
    measured = plight.measured(current.prediction.score)
    near = scene.current != scene.nothing and measured >= 1.0 - scene.settings.min_effect_pct / 100.0
    eligible = tuple(
        a
        for a in assessed
        if a.allocation == scene.current
        or (not _barred(a.allocation, plight.regretted) and _fits(scene, a, near, assessed))
    )
    if near and len(eligible) == 1:
        return _hold(
            scene, "best effort: slightly below target, and nothing is left that is sure to do better"
        )
    if scene.current == scene.nothing and len(eligible) > 1:
        eligible = tuple(a for a in eligible if a.allocation != scene.current)  # doing nothing has failed
    chosen, why = inferer.choose(eligible, scene.current, z)
    exploring = why == inferer.EXPLORING
    if exploring and scene.current != scene.nothing and not plight.is_lasting(scene.settings):
        return _hold(scene, "nothing is known to do better, and it is too early to explore: watching")
    spell = plight.scores and mean(plight.scores) >= 1.0 and not plight.judged.blatant
    if scene.current != scene.nothing and spell:
        stay = inferer.chance(current.prediction, 1.0, z)
        if stay >= inferer.chance(chosen.prediction, 1.0, z):
            # What was learned here outweighs a bad spell; if it lasts, it is learned as well.
            return _hold(scene, f"best effort: what is in force has the best chance ({stay:.0%}) of all")
    candidates = scene.candidates(assessed, chosen, current)
    hopeless = chosen.prediction.score < measured * HELPED_RATIO and chosen.prediction.lower < 1.0
    may_hold = scene.current != scene.nothing or target.reach < 1.0
    if chosen.allocation == scene.current or (hopeless and not exploring and may_hold):
        open_ = [a for a in assessed if not _barred(a.allocation, plight.regretted)]
        gentle = _gentler(open_, current, measured) if plight.scores else None
        if gentle is not None:
            text = "nothing helps; what was no worse for it gives batch more"
            return Move(Action.ROLLBACK, gentle.allocation, text, scene.candidates(assessed, gentle, current))
        if chosen.allocation == scene.current:
            return _hold(scene, "best effort: " + why, candidates)
        text = "best effort: nothing is predicted to do clearly better than what is in force"
        return _hold(scene, text, candidates)
    what = _relieved(scene.current, chosen.allocation)
    regret = scene.current if scene.current != scene.nothing else None  # it did not do: not again soon
    return Move(
        Action.EXPLORE if exploring else Action.GROW, chosen.allocation, what + why, candidates, regret
    )


def _gentler(assessed: Sequence[Assessed], current: Assessed, measured: float) -> Assessed | None:
    """What was tried, is believed to be as good as what is in force, and leaves batch clearly more; None if nothing."""
    if measured >= 1.0 or current.prediction.score >= 1.0:
        return None
    equal = [
        a
        for a in assessed
        if a.prediction.support >= inferer.VISITED
        and a.prediction.score >= AS_GOOD * measured
        and a.batch_cores > current.batch_cores * (1.0 + inferer.LEAST_GAIN_SHARE) + inferer.NEGLIGIBLE_CORES
        and inferer.asks_no_more(a.allocation, current.allocation)
    ]
    return max(equal, key=lambda a: a.batch_cores, default=None)


def _assess(
    scene: Scene, model: ResPerfModel, target: Target, plight: Plight, options: Sequence[Allocation]
) -> tuple[Assessed, ...]:
    """Every CPU grant with what is in force of cache and bandwidth, and the strong ones with every option of those."""
    grants = inferer.lattice(scene.current, scene.floor_cores(), scene.knobs())
    strong = [a for a in grants if a.cpu.exclusive or a.cpu.batch_weight is IDLE or a == scene.current]
    allocations = list(grants)
    for option in options:
        if option != scene.current:
            allocations += [replace(option, cpu=a.cpu) for a in strong]
    judged = plight.judged
    slower = max(1.0, judged.slower / _by_siblings(scene))
    if judged.hierarchy not in (Cause.LLC, Cause.MBW):
        slower = 1.0
    elif judged.verdict.cause not in (Cause.LLC, Cause.MBW):
        slower **= MINOR_PART  # threads that take turns on a core also find its caches cold
    context = model_context(scene.snapshot, scene.view, model)
    # Slower instructions also need more of the cores: half of that is expected to stay.
    demand_cores = min(context.lra_demand_cores * math.sqrt(slower), context.total_cores)
    context = replace(context, lra_demand_cores=demand_cores)
    assessed = inferer.assess(allocations, model, context, target, scene.settings.confidence_z)
    believed = next(a.prediction.score for a in assessed if a.allocation == scene.current)
    surprise = math.log(max(plight.measured(believed), 1e-3) / believed)
    if abs(surprise) <= SURPRISE_SIGMA * judged.noise_sd / math.sqrt(max(1, min(len(plight.scores), RECENT))):
        surprise = 0.0
    found = []
    for item in assessed:
        p = item.prediction
        gain = 1.0
        alike = inferer.likeness(scene.current, item.allocation, scene.snapshot.host.llc_ways)
        if item.allocation != scene.current:
            # What was seen elsewhere before this trouble tells little of it. Where the model knows nothing of it either
            # (the less, the less alike), instructions are as slow there as here, but for what batch is to lose.
            seen = min(1.0, p.support / inferer.VISITED) if surprise == 0.0 else 0.0
            relief = ladder.relief(scene.current, item.allocation, judged.hierarchy, scene.snapshot.host)
            gain = slower ** ((relief - (1.0 - alike)) * (1.0 - seen))
        # What is seen here now outweighs what is believed, here and in all places alike.
        gain *= math.exp(surprise * alike)
        doubt = math.exp(-scene.settings.confidence_z * abs(surprise) * alike * (1.0 - alike))
        prediction = Prediction(p.score * gain, p.lower * gain * doubt, p.upper * gain / doubt, p.support)
        value = scene.batch_value(item)
        if prediction == p:
            found.append(replace(item, batch_cores=value))
        else:
            found.append(replace(item, prediction=prediction, batch_cores=value, asked=p, basis=SEEN_NOW))
    return tuple(found)


def _by_siblings(scene: Scene) -> float:
    """By how much batch on sibling threads alone makes instructions slower, at the present allocation."""
    topology, cpu = scene.snapshot.host.topology, scene.current.cpu
    if len(topology.usable) <= len(topology.usable_cores) or cpu.exclusive:
        return 1.0
    return 1.0 + (SMT_SLOWER - 1.0) * cpu.batch_cores / cpu.total_cores


def _fits(scene: Scene, item: Assessed, near: bool, assessed: Sequence[Assessed]) -> bool:
    """Far from the target only what relieves at once; near it only what is sure, or one step."""
    here, there = scene.current, item.allocation
    if not near:
        # Relief at once: the weakest batch of every place; what of it is not needed is given back afterwards.
        weak = there.cpu.exclusive or there.cpu.batch_weight is IDLE or there.cpu == here.cpu
        return weak or not scene.knobs().batch_weight
    if inferer.chance(item.prediction, 1.0, scene.settings.confidence_z) >= SURE:
        return True
    if there.cpu == here.cpu:
        return inferer.asks_no_more(here, there)
    # Close to the target, a guess may lose more than it wins.
    same = replace(there, cpu=here.cpu) == here
    counts = inferer.core_counts(assessed)
    return (
        same
        and inferer.protects_no_more(here.cpu, there.cpu)
        and inferer.is_step(here.cpu, there.cpu, counts)
    )


def _barred(allocation: Allocation, regretted: Sequence[Allocation]) -> bool:
    """True if it protects no more than something that was found to be too little, in the same place."""
    return any(
        inferer.no_stronger_here(allocation.cpu, r.cpu)
        and allocation.llc_ways <= r.llc_ways
        and allocation.mbw_pct >= r.mbw_pct
        and allocation.memory_bytes <= r.memory_bytes
        for r in regretted
    )


def _cache_options(scene: Scene, cause: Cause) -> tuple[Allocation, ...]:
    """The present allocation, and those that protect more of cache, of bandwidth, or of both.

    More than what is in force on batch in its L3 domains, whoever asked for that.
    """
    beside = protections_beside(scene.snapshot, scene.view)
    ways, pct = ladder.strictest_cache([scene.current, *beside])
    in_force = replace(scene.current, llc_ways=ways, mbw_pct=pct)
    rungs = ladder.stronger(in_force, cause, scene.snapshot.host, giving_now(scene.snapshot))
    own = [
        replace(scene.current, llc_ways=r.llc_ways)
        if r.llc_ways != ways
        else replace(scene.current, mbw_pct=r.mbw_pct)
        for r in rungs
    ]
    more_ways = [a for a in own if a.llc_ways != scene.current.llc_ways]
    less_bandwidth = [a for a in own if a.mbw_pct != scene.current.mbw_pct]
    both = [replace(a, mbw_pct=b.mbw_pct) for a in more_ways[:2] for b in less_bandwidth[:1]]
    return tuple(dict.fromkeys([scene.current, *own, *both]))


def _relieved(before: Allocation, after: Allocation) -> str:
    parts = []
    if after.llc_ways > before.llc_ways:
        parts.append("cache")
    if after.mbw_pct < before.mbw_pct:
        parts.append("memory bandwidth")
    return f"batch gets less {' and '.join(parts)}; " if parts else ""


def _hold(scene: Scene, reason: str, candidates: tuple[Candidate, ...] = ()) -> Move:
    return Move(Action.HOLD, scene.current, reason, candidates)
