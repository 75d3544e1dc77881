"""Resource inferer: selects the allocation with the greatest expected value according to the model.

A host's CPU lattice is small, so all candidates are evaluated in one vectorised model call. Growing selects the
greatest expected value: the chance of meeting the target times the work that the host then does. Shrinking selects the
step that is worth most to batch for its risk ("just enough").
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from perphd.admission.context import work_of
from perphd.admission.detector.judge import Target
from perphd.admission.thresholds import BOLD, FAIR, LIKELY, SLIM, SURE
from perphd.domain.allocation import IDLE, Allocation, CpuGrant, Weight
from perphd.domain.decision import Candidate, Estimate, Prediction
from perphd.domain.policy import Band, ModelContext, ResPerfModel
from perphd.domain.smt import SMT_SLOWER

WEIGHTS: tuple[Weight, ...] = (IDLE, 6, 12, 25, 50, 100)
"""Batch weights tried, lowest first. 100 is the kernel's default: batch is never raised above an LRA."""
MAX_CORE_STEPS = 16
"""Maximum number of core counts for batch that are tried. On large hosts, they are spaced geometrically."""
LEAST_GAIN_SHARE, LEAST_SURE_SHARE = 0.05, 0.02
"""Minimum relative gain of batch that justifies a reduction, and the same for one that almost certainly keeps the
target.
"""
CONTENT_SHARE = 0.7
"""Share of batch's demand. If batch gets more, a reduction with a merely possible gain is not worth its risk."""
RESCUE_SCORE = 1.03
"""Score aimed at by a rescue: slightly above the target, so that noise does not trigger another."""
VISITED = 2.0
"""Support from which an allocation counts as tried."""
CAUTION = 2.0
"""Exponent on the chance of meeting the target, which makes a miss more costly than lost batch work."""
EXPLORING = "the target is missed, and this allocation is untried: exploring"
"""Reason given if ``choose`` selects an allocation without support."""
EQUAL_USE = 0.97
"""Ratio to the greatest expected value from which an allocation's expected value counts as equal to it."""
NEGLIGIBLE_CORES = 0.02
"""Difference in batch's cores below which candidates count as equal."""


@dataclass(frozen=True, slots=True)
class Knobs:
    """CPU knobs that can be set here: batch's cpuset, batch's weight, the LRAs' cpuset.

    ``siblings``: cores have SMT siblings. A weight does not keep batch off any sibling, so intermediate weights
    make too little difference to be tried.
    """

    batch_cpus: bool
    batch_weight: bool
    lra_cpus: bool
    siblings: bool = False


def untouched(total: int) -> Allocation:
    """The allocation that protects nothing."""
    return Allocation(CpuGrant(total, total, 100))


def core_steps(total: int, floor: int) -> tuple[int, ...]:
    """Batch core counts to try, descending from ``total`` to ``floor``; all of them if there are few."""
    low = max(1, min(floor, total))
    if total - low + 1 <= MAX_CORE_STEPS:
        return tuple(range(total, low - 1, -1))
    ratio = (low / total) ** (1.0 / (MAX_CORE_STEPS - 1))
    steps = {max(low, round(total * ratio**i)) for i in range(MAX_CORE_STEPS)}
    return tuple(sorted(steps | {low, total}, reverse=True))


def lattice(current: Allocation, floor_cores: int, knobs: Knobs) -> tuple[Allocation, ...]:
    """Every enforceable CPU grant; memory, LLC and bandwidth stay as in ``current``.

    Always contains the current and the unprotected allocation.
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
    """One allocation with its score band and batch's predicted cores (with standard deviation).

    ``asked``: the model's own prediction if present observations or the rule named ``basis`` adjusted
    ``prediction``; None: not adjusted.
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
    """Assess every allocation: its predicted score (``domain.decision.Prediction``) and batch's cores.

    The model is called once per channel.
    """
    work = model.predict_work(allocations, context)
    delay = model.predict_delay(allocations, context)
    batch = model.batch_cores(allocations, context)
    return tuple(
        Assessed(
            allocation,
            score_of(work[i], delay[i], target, z),
            batch[i].value,
            batch[i].value * batch[i].sd,
        )
        for i, allocation in enumerate(allocations)
    )


def chance(prediction: Prediction, need: float, z: float) -> float:
    """Probability of a score of at least ``need``; the band is log-normal with ``lower`` at ``z`` sigma."""
    if z <= 0 or prediction.lower <= 0 or prediction.score <= prediction.lower:
        return 1.0 if prediction.score >= need else 0.0
    sd = math.log(prediction.score / prediction.lower) / z
    return 0.5 * (1.0 + math.erf(math.log(prediction.score / need) / (sd * math.sqrt(2.0))))


def choose(assessed: Sequence[Assessed], current: Allocation, z: float) -> tuple[Assessed, str]:
    """The allocation that should rescue an LRA, and the reason.

    Maximises expected value: the chance of meeting the target times the host's work (1 for the LRA plus batch's share
    of the cores). Above ``SURE`` a chance counts as certain, so that the cheapest sufficient allocation wins.
    The controller detects and corrects a wrong guess after a few samples. If nothing has a fair chance,
    prefer an untried allocation that may suffice and is not expected to be worse; else the one with the best
    score, at least cost.

    Untried allocations that protect less than the present one are considered only if nothing else has a fair chance,
    because the model was just wrong here.
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
    # Among equals prefer the gentlest instrument (batch on most cores), then the safest.
    best = max(near, key=lambda a: (a.allocation.cpu.batch_cores, a.prediction.lower))
    if chances[best.allocation] >= SURE:
        return best, "the cheapest allocation that is almost certain to meet the target"
    if chances[best.allocation] >= FAIR:
        likely = f"a chance of {chances[best.allocation]:.0%} to meet the target"
        return best, f"{likely}, the best compromise with batch's work"
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
    """Possible gain and loss of a reduction.

    ``need``: score required of the smaller allocation. ``win_s``: time for which its gain lasts. ``loss_s``: time for
    which the target is missed until a rollback. ``price_cores``: cost of a missed target, in cores of batch work.
    ``z``: sigmas between a prediction's score and its lower bound. ``wanted_cores``: batch's demand. ``beside_cores``:
    CPU use of all others. ``threads_per_core``: hardware threads per core. ``used_cores``: CPU that batch uses now;
    ``idle_cores``: CPU that it could use and nobody uses now (both infinite if not measured). ``batch_groups``: number
    of batch workloads.
    """

    need: float
    win_s: float
    loss_s: float
    price_cores: float
    z: float
    wanted_cores: float = math.inf
    beside_cores: float = 0.0
    threads_per_core: float = 1.0
    used_cores: float = math.inf
    idle_cores: float = math.inf
    batch_groups: int = 1

    def most_gain_cores(self, here: CpuGrant, there: CpuGrant) -> float:
        """The most CPU that batch can gain by this change; infinite unless only its weight changes.

        The kernel leaves no CPU idle while a thread waits for it. A group therefore gets at least its fair share, and
        beyond that what the others leave, whatever its weight is. If batch already uses more than its fair share at the
        greater weight, that weight gains it nothing but the CPU that is idle now.
        """
        only_weight = (here.batch_cores, here.exclusive) == (there.batch_cores, there.exclusive)
        if not only_weight or math.isinf(self.used_cores):
            return math.inf
        weight = self.batch_groups * there.weight_ratio
        fair_cores = there.batch_cores * weight / (weight + 1.0)
        return max(0.0, fair_cores - self.used_cores) + self.idle_cores

    def batch_work(self, item: Assessed) -> float:
        """Predicted batch work under this allocation, in cores with all hardware threads busy.

        Other work uses batch's cores only if it finds no room elsewhere.
        """
        cpu = item.allocation.cpu
        beside = 0.0 if cpu.exclusive else max(0.0, self.beside_cores - (cpu.total_cores - cpu.batch_cores))
        return work_of(item.batch_cores, cpu.batch_cores, self.threads_per_core, beside)

    def wanted_work(self, total_cores: int) -> float:
        """Batch's work if it had all that the others leave of the host, in the unit of ``batch_work``."""
        return work_of(self.wanted_cores, total_cores, self.threads_per_core, self.beside_cores)


def cheaper(
    assessed: Sequence[Assessed],
    current: Assessed,
    stakes: Stakes,
    avoid: Sequence[Allocation],
    stride: int = 1,
) -> Assessed | None:
    """The reduction with the greatest positive expected gain; None if there is none.

    Candidates are neighbours on the lattice with some chance of keeping the target, and likely ones up to ``stride``
    cores away. Nearly certain ones may be farther away, because on a plateau no neighbour promises a gain.
    Allocations that protect no more than one in ``avoid`` are skipped.
    """
    best: tuple[float, Assessed] | None = None
    counts = core_counts(assessed)
    has = stakes.batch_work(current)
    content = has >= CONTENT_SHARE * stakes.wanted_work(current.allocation.cpu.total_cores)
    here = current.allocation.cpu
    for item in assessed:
        there = item.allocation.cpu
        gives = stakes.batch_work(item)
        sd = item.batch_sd_cores * gives / max(item.batch_cores, NEGLIGIBLE_CORES)
        gain_cores = gives - has
        if not content:
            most = math.inf
            if here.batch_cores == here.total_cores:  # on fewer cores, a weight is also a way to more of them
                most = SMT_SLOWER * stakes.most_gain_cores(here, there)
            gain_cores = max(gain_cores, min(_expected_gain(gives - has, sd), most))
        keeps = chance(item.prediction, stakes.need, stakes.z)
        share = LEAST_SURE_SHARE if keeps >= SURE else LEAST_GAIN_SHARE
        if gain_cores <= max(NEGLIGIBLE_CORES, share * has):
            continue
        if protects_no_more(here, there):
            continue  # protects no less in any way, so it is not a reduction
        if any(protects_no_more(there, a.cpu) for a in avoid):
            continue
        near = is_step(here, there, counts) or (keeps >= LIKELY and is_step(here, there, counts, stride))
        if keeps < BOLD or (keeps < SURE and not near):
            continue
        worth = keeps * gain_cores * stakes.win_s - (1.0 - keeps) * stakes.price_cores * stakes.loss_s
        if worth > 0 and (best is None or worth > best[0]):
            best = (worth, item)
    return best[1] if best is not None else None


def _expected_gain(difference: float, sd: float) -> float:
    """E[max(0, gain)] of a normally distributed gain (Mockus 1978), in cores.

    The value of trying an uncertain step is proportional to its possible gain.
    """
    if sd <= 0:
        return max(0.0, difference)
    u = difference / sd
    cumulative = 0.5 * (1.0 + math.erf(u / math.sqrt(2.0)))
    density = math.exp(-0.5 * u * u) / math.sqrt(2.0 * math.pi)
    return sd * (u * cumulative + density)


def protects_no_more(a: CpuGrant, b: CpuGrant) -> bool:
    """True if ``a`` leaves batch at least as many cores and as much weight as ``b``."""
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
    """True if ``a`` has the same cores as ``b`` and no less batch weight, and thus protects no more."""
    return (a.exclusive, a.batch_cores) == (b.exclusive, b.batch_cores) and a.weight_ratio >= b.weight_ratio


def likeness(a: Allocation, b: Allocation, llc_ways: int) -> float:
    """Relevance of observations under ``a`` for ``b``: 1 if equal, falling with distance on the lattice.

    The length scales are those of the model's local correction: 0.4 of all cores and of all ways, 0.6 of the
    throttle, a factor of 3 in weight. Exclusive and shared cores differ by one further unit.
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
    """True if the grants differ by one step in one dimension; ``counts``: the lattice's core counts.

    A step of cores leads to the next count, or is at most ``stride`` cores long.
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
    # Among equals prefer the gentlest instrument: more cores for batch, then the better score.
    return max(equal, key=lambda a: (a.allocation.cpu.batch_cores, a.prediction.lower))


def score_of(work: Band, delay: Band, target: Target, z: float) -> Prediction:
    """Band of min(work/target work, target delay/delay), combined conservatively from both channels."""
    value = lower = upper = math.inf
    support = math.inf
    if (factor := work_factor(target)) is not None:
        value, lower, upper = factor * work.value, factor * work.at(-z), factor * work.at(z)
        support = work.support
    if (factor := delay_factor(target)) is not None:
        value = min(value, factor / delay.value)
        lower = min(lower, factor / delay.at(z))
        upper = min(upper, factor / delay.at(-z))
        support = min(support, delay.support)
    if math.isinf(value):
        return Prediction(1.0, 0.0, math.inf, 0.0)
    return Prediction(value, lower, upper, support)


def work_factor(target: Target) -> float | None:
    """Undisturbed work over target work; None if one of them is unknown."""
    if target.work_band is None or not isinstance(target.work, float) or target.work <= 0:
        return None
    return target.work_band.value / target.work


def delay_factor(target: Target) -> float | None:
    """Target delay over undisturbed delay; None if one of them is unknown."""
    if target.delay_band is None or not isinstance(target.delay, float) or target.delay <= 0:
        return None
    return target.delay / target.delay_band.value
