"""Resource Inferer: the allocation that is of the greatest use, by what the model believes.

The CPU lattice of a host is small, so every candidate is asked in one vectorised model call. Growing takes the one with
the greatest expected use: the chance to meet the target, times what the host then yields. Shrinking takes the step that
is worth most to batch for the risk ("just enough").
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from perphd.admission.context import work_of
from perphd.admission.detector import Target
from perphd.admission.thresholds import BOLD, FAIR, LIKELY, SLIM, SURE
from perphd.domain.allocation import IDLE, Allocation, CpuGrant, Weight
from perphd.domain.decision import Candidate, Estimate, Prediction
from perphd.domain.policy import Band, ModelContext, ResPerfModel

WEIGHTS: tuple[Weight, ...] = (IDLE, 6, 12, 25, 50, 100)
"""Batch weights tried, weakest first. 100 is everybody's default: batch is never raised above an LRA."""
MAX_CORE_STEPS = 16
"""At most so many different batch core counts are tried; on large hosts they are spread geometrically."""
LEAST_GAIN_SHARE, LEAST_SURE_SHARE = 0.05, 0.02
"""A step back must promise batch this share more than it has: less is within the noise of what is measured; the smaller
one if it is as good as certain to keep the target."""
CONTENT_SHARE = 0.7
"""Batch that has this share of what it wants is not worth a step that is only hoped to give it more."""
RESCUE_SCORE = 1.03
"""What a rescue aims at: a little above the target, or noise alone would call for the next."""
VISITED = 2.0
"""Support from which an allocation counts as tried."""
CAUTION = 2.0
"""Exponent on the chance of meeting the target: how much dearer a missed target is than batch's work."""
EXPLORING = "the target is missed and this is untried: exploring"
"""Why ``choose`` takes a place of which nothing is believed."""
EQUAL_USE = 0.97
"""Expected uses that differ by less than this count as equal."""
NEGLIGIBLE_CORES = 0.02
"""Differences in batch's share below this are no reason to prefer a candidate."""


@dataclass(frozen=True, slots=True)
class Knobs:
    """Which CPU knobs can be turned here: batch's cpuset, batch's weight, the LRAs' cpuset.

    ``siblings``: cores have sibling threads. A weight keeps nobody off a sibling, so that the weights between the
    weakest and the usual one make no difference worth a step.
    """

    batch_cpus: bool
    batch_weight: bool
    lra_cpus: bool
    siblings: bool = False


def untouched(total: int) -> Allocation:
    """The allocation that protects nothing."""
    return Allocation(CpuGrant(total, total, 100))


def core_steps(total: int, floor: int) -> tuple[int, ...]:
    """Batch core counts to try, descending from ``total`` to ``floor``; all of them if they are few."""
    low = max(1, min(floor, total))
    if total - low + 1 <= MAX_CORE_STEPS:
        return tuple(range(total, low - 1, -1))
    ratio = (low / total) ** (1.0 / (MAX_CORE_STEPS - 1))
    steps = {max(low, round(total * ratio**i)) for i in range(MAX_CORE_STEPS)}
    return tuple(sorted(steps | {low, total}, reverse=True))


def lattice(current: Allocation, floor_cores: int, knobs: Knobs) -> tuple[Allocation, ...]:
    """Every CPU grant that can be enforced here; memory, LLC and bandwidth stay as in ``current``.

    Always contains the current allocation and "nothing".
    """
    total = current.cpu.total_cores
    weights: tuple[Weight, ...] = (100,)
    if knobs.batch_weight:
        weights = (WEIGHTS[0], WEIGHTS[-1]) if knobs.siblings else WEIGHTS
    grants: dict[CpuGrant, None] = {CpuGrant(total, total, 100): None, current.cpu: None}
    for cores in core_steps(total, floor_cores) if knobs.batch_cpus else (total,):
        for weight in weights:
            grants[CpuGrant(total, cores, weight)] = None
        if knobs.lra_cpus and knobs.batch_cpus and cores < total:
            grants[CpuGrant(total, cores, 100, exclusive=True)] = None
    return tuple(Allocation(g, current.memory_bytes, current.llc_ways, current.mbw_pct) for g in grants)


@dataclass(frozen=True, slots=True)
class Assessed:
    """One allocation with the score band to decide by and what batch is predicted to get (sd in cores).

    ``asked``: the model's own answer, where ``prediction`` is more than that: what is seen at the moment, or a rule
    named ``basis``, has moved it.
    """

    allocation: Allocation
    prediction: Prediction
    batch_cores: float
    batch_sd_cores: float = 0.0
    asked: Prediction | None = None
    basis: str = ""


def assess(
    allocations: Sequence[Allocation],
    model: ResPerfModel,
    context: ModelContext,
    target: Target,
    z: float,
) -> tuple[Assessed, ...]:
    """Predicted score (see ``domain.decision.Prediction``) of every allocation, in one model call per channel."""
    work = model.predict_work(allocations, context)
    delay = model.predict_delay(allocations, context)
    batch = model.batch_cores(allocations, context)
    return tuple(
        Assessed(
            allocation,
            _score(work[i], delay[i], target, z),
            batch[i].value,
            batch[i].value * batch[i].sd,
        )
        for i, allocation in enumerate(allocations)
    )


def chance(prediction: Prediction, need: float, z: float) -> float:
    """Probability that the score is at least ``need``, the band being log-normal with ``lower`` at ``z`` sigma."""
    if z <= 0 or prediction.lower <= 0 or prediction.score <= prediction.lower:
        return 1.0 if prediction.score >= need else 0.0
    sd = math.log(prediction.score / prediction.lower) / z
    return 0.5 * (1.0 + math.erf(math.log(prediction.score / need) / (sd * math.sqrt(2.0))))


def choose(assessed: Sequence[Assessed], current: Allocation, z: float) -> tuple[Assessed, str]:
    """The allocation to rescue an LRA with, and why.

    The greatest expected use: the chance of meeting the target times what the host then yields (the LRA's own
    1 plus batch's share of the cores). Above ``SURE`` a chance counts as certain, so that among allocations that
    are enough the cheapest wins. A wrong guess is seen and corrected after a few samples. When nothing has a
    fair chance: an untried place if there is one that could do and is not expected to do worse, else what comes
    nearest, at least cost.

    What protects less than the present allocation and was never tried is considered only when nothing else has a
    fair chance: a model that was just wrong about here is not to be trusted to do with less.
    """
    stronger = [
        a
        for a in assessed
        if a.prediction.support >= VISITED
        or a.allocation == current
        or not asks_no_more(a.allocation, current)
    ]
    if len(stronger) < len(assessed) and any(chance(a.prediction, 1.0, z) >= FAIR for a in stronger):
        assessed = stronger
    chances = {a.allocation: chance(a.prediction, RESCUE_SCORE, z) for a in assessed}
    use = {
        a.allocation: min(chances[a.allocation] / SURE, 1.0) ** CAUTION
        * (1.0 + a.batch_cores / a.allocation.cpu.total_cores)
        for a in assessed
    }
    most = max(use.values())
    near = [a for a in assessed if use[a.allocation] >= EQUAL_USE * most]
    # Among equals the gentlest instrument (batch on most cores), and there the safest.
    best = max(near, key=lambda a: (a.allocation.cpu.batch_cores, a.prediction.lower))
    if chances[best.allocation] >= SURE:
        return best, "the cheapest allocation that is expected to meet the target for sure"
    if chances[best.allocation] >= FAIR:
        return best, f"a {chances[best.allocation]:.0%} chance to meet the target, at the best price"
    here = max((a.prediction.score for a in assessed if a.allocation == current), default=0.0)
    hopeful = [
        a
        for a in assessed
        if a.prediction.support < 1.0
        and chances[a.allocation] >= SLIM
        and a.prediction.score >= EQUAL_USE * here
    ]
    if hopeful:
        best = max(hopeful, key=lambda a: (chances[a.allocation], a.batch_cores))
        return best, EXPLORING
    nearest = max(a.prediction.score for a in assessed)
    closest = [a for a in assessed if a.prediction.score >= 0.98 * nearest]
    return _cheapest(closest), "no allocation is predicted to meet the target; this one comes nearest"


@dataclass(frozen=True, slots=True)
class Stakes:
    """What a step back to batch can win and lose.

    ``need``: score that the smaller allocation must reach; ``win_s``: how long the step's gain is enjoyed;
    ``loss_s``: how long a target is missed until the step is taken back; ``price_cores``: what a missed target
    costs, in cores of batch work; ``z``: sigmas between a prediction's score and its lower bound;
    ``wanted_cores``: what batch would use if it could; ``beside_cores``: what all others use; ``threads_per_core``:
    hardware threads.
    """

    need: float
    win_s: float
    loss_s: float
    price_cores: float
    z: float
    wanted_cores: float = math.inf
    beside_cores: float = 0.0
    threads_per_core: float = 1.0

    def batch_work(self, item: Assessed) -> float:
        """What batch is predicted to get done there, in cores that are busy with all their hardware threads.

        The others are on batch's cores with what they find no room for elsewhere.
        """
        cpu = item.allocation.cpu
        beside = 0.0 if cpu.exclusive else max(0.0, self.beside_cores - (cpu.total_cores - cpu.batch_cores))
        return work_of(item.batch_cores, cpu.batch_cores, self.threads_per_core, beside)

    def wanted_work(self, total_cores: int) -> float:
        """The same of all that batch wants, had it the whole host beside the others."""
        return work_of(self.wanted_cores, total_cores, self.threads_per_core, self.beside_cores)


def cheaper(
    assessed: Sequence[Assessed],
    current: Assessed,
    stakes: Stakes,
    avoid: Sequence[Allocation],
    stride: int = 1,
) -> Assessed | None:
    """The step back towards batch with the greatest expected gain, if that is positive; None if there is none.

    A step is a neighbour on the lattice with some chance to keep the target, or, likely to keep it, one up to
    ``stride`` cores away; where that is as good as certain it may be further, for on a plateau no single neighbour
    promises anything. What protects no more than an allocation in ``avoid`` is left out.
    """
    best: tuple[float, Assessed] | None = None
    counts = core_counts(assessed)
    has = stakes.batch_work(current)
    content = has >= CONTENT_SHARE * stakes.wanted_work(current.allocation.cpu.total_cores)
    for item in assessed:
        gives = stakes.batch_work(item)
        sd = item.batch_sd_cores * gives / max(item.batch_cores, NEGLIGIBLE_CORES)
        gain_cores = gives - has if content else _expected_gain(gives - has, sd)
        keeps = chance(item.prediction, stakes.need, stakes.z)
        share = LEAST_SURE_SHARE if keeps >= SURE else LEAST_GAIN_SHARE
        if gain_cores <= max(NEGLIGIBLE_CORES, share * has):
            continue
        if protects_no_more(current.allocation.cpu, item.allocation.cpu):
            continue  # tighter in every way: whatever the figures say, that is no step back
        if any(protects_no_more(item.allocation.cpu, a.cpu) for a in avoid):
            continue
        here, there = current.allocation.cpu, item.allocation.cpu
        near = is_step(here, there, counts) or (keeps >= LIKELY and is_step(here, there, counts, stride))
        if keeps < BOLD or (keeps < SURE and not near):
            continue
        worth = keeps * gain_cores * stakes.win_s - (1.0 - keeps) * stakes.price_cores * stakes.loss_s
        if worth > 0 and (best is None or worth > best[0]):
            best = (worth, item)
    return best[1] if best is not None else None


def _expected_gain(difference: float, sd: float) -> float:
    """E[max(0, what batch gets there - what it gets here)]: the expected improvement of a normal prediction.

    What is uncertain is worth a look in proportion to how much better it could be (Mockus 1978).
    """
    if sd <= 0:
        return max(0.0, difference)
    u = difference / sd
    cumulative = 0.5 * (1.0 + math.erf(u / math.sqrt(2.0)))
    density = math.exp(-0.5 * u * u) / math.sqrt(2.0 * math.pi)
    return sd * (u * cumulative + density)


def protects_no_more(a: CpuGrant, b: CpuGrant) -> bool:
    """True if ``a`` leaves batch at least what ``b`` does, in cores and in weight."""
    return a.exclusive == b.exclusive and a.batch_cores >= b.batch_cores and a.weight_ratio >= b.weight_ratio


def asks_no_more(a: Allocation, b: Allocation) -> bool:
    """True if ``a`` takes no more from batch than ``b`` in any dimension."""
    return (
        protects_no_more(a.cpu, b.cpu)
        and a.memory_bytes <= b.memory_bytes
        and a.llc_ways <= b.llc_ways
        and a.mbw_pct >= b.mbw_pct
    )


def no_stronger_here(a: CpuGrant, b: CpuGrant) -> bool:
    """True if ``a`` is on the same cores as ``b`` with no less weight for batch: what ``b`` lacked, ``a`` lacks."""
    return (a.exclusive, a.batch_cores) == (b.exclusive, b.batch_cores) and a.weight_ratio >= b.weight_ratio


def likeness(a: Allocation, b: Allocation, llc_ways: int) -> float:
    """How much what is seen under ``a`` says of ``b``: 1 for the same, falling with the distance on the lattice.

    The length scales are those of the model's local correction: 0.4 of all cores, of all ways, 0.6 of the throttle;
    a factor of 3 in weight; cores of one's own are half a world apart from shared ones.
    """
    cores = (a.cpu.batch_cores - b.cpu.batch_cores) / max(a.cpu.total_cores, 1) / 0.4
    weight = math.log10((a.cpu.weight_ratio + 0.02) / (b.cpu.weight_ratio + 0.02)) / 0.5
    ways = (a.llc_ways - b.llc_ways) / max(llc_ways, 1) / 0.4
    throttle = (a.mbw_pct - b.mbw_pct) / 100.0 / 0.6
    split = 1.0 if a.cpu.exclusive != b.cpu.exclusive else 0.0
    if split:
        weight = 0.0
    return math.exp(-0.5 * (cores**2 + weight**2 + ways**2 + throttle**2 + split))


def is_step(a: CpuGrant, b: CpuGrant, counts: Sequence[int], stride: int = 1) -> bool:
    """True if the grants differ by one step in one dimension; ``counts``: the core counts of the lattice.

    A step of cores may be to the next count, or up to ``stride`` cores long.
    """
    same_weight, same_cores = a.batch_weight == b.batch_weight, a.batch_cores == b.batch_cores
    few, many = sorted((a.batch_cores, b.batch_cores))
    adjacent = many - few <= stride or not any(few < c < many for c in counts)
    if a.exclusive != b.exclusive:
        shared, split = (a, b) if b.exclusive else (b, a)
        return same_cores or (adjacent and split.batch_cores < shared.batch_cores)
    if same_cores and not same_weight:
        return abs(_weight_index(a.batch_weight) - _weight_index(b.batch_weight)) in (1, len(WEIGHTS) - 1)
    return same_weight and not same_cores and adjacent


def core_counts(assessed: Sequence[Assessed]) -> list[int]:
    """Batch's core counts on this lattice, ascending."""
    return sorted({item.allocation.cpu.batch_cores for item in assessed})


def as_candidate(item: Assessed, most_batch: float, verdict: str) -> Candidate:
    """The record of a candidate for the explanation."""
    lost = max(0.0, most_batch - item.batch_cores)
    if item.asked is None:
        return Candidate(item.allocation, item.prediction, lost, verdict)
    estimate = Estimate(item.prediction.score, item.basis)
    return Candidate(item.allocation, item.asked, lost, verdict, estimate)


def _weight_index(weight: Weight) -> int:
    return WEIGHTS.index(weight) if weight in WEIGHTS else len(WEIGHTS)


def _cheapest(items: Sequence[Assessed]) -> Assessed:
    most = max(a.batch_cores for a in items)
    equal = [a for a in items if a.batch_cores >= most - NEGLIGIBLE_CORES]
    # Among equals the gentlest instrument: more cores for batch, then the better score.
    return max(equal, key=lambda a: (a.allocation.cpu.batch_cores, a.prediction.lower))


def _score(work: Band, delay: Band, target: Target, z: float) -> Prediction:
    """Band of min(work/target work, target delay/delay), combined conservatively channel by channel."""
    value = lower = upper = math.inf
    support = math.inf
    if target.work_band is not None and isinstance(target.work, float) and target.work > 0:
        factor = target.work_band.value / target.work
        value, lower, upper = factor * work.value, factor * work.at(-z), factor * work.at(z)
        support = work.support
    if target.delay_band is not None and isinstance(target.delay, float) and target.delay > 0:
        factor = target.delay / target.delay_band.value
        value = min(value, factor / delay.value)
        lower = min(lower, factor / delay.at(z))
        upper = min(upper, factor / delay.at(-z))
        support = min(support, delay.support)
    if math.isinf(value):
        return Prediction(1.0, 0.0, math.inf, 0.0)
    return Prediction(value, lower, upper, support)
