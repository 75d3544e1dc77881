"""Results of a trial: the effect on every metric with its confidence interval, and the carry-over.

Problem: the load of a host changes between day and night, and its noise is correlated over minutes. A
comparison of all enforced with all observed readings mistakes this for an effect, and an interval that treats
readings as independent is far too narrow.

Approach: one difference per pair of blocks. A coin decided which mode came first, so any other difference
between the two blocks of a pair has a random sign, and differences of pairs are uncorrelated. Their mean is
the effect.

    delay:        d = log(enforce) - log(observe);       change = exp(mean d) - 1
    work, batch:  d = (enforce - R observe) / mean observe;  R = sum enforce / sum observe, change = R - 1

The interval is Student's, with the variance of successive differences (``statistics.of_pairs``); tools/bench/trial
measures how often it covers.

A trial has several metrics. Each interval alone has a coverage of 95 %. An effect is *claimed* only where
Holm's procedure over all metrics rejects "no effect" at ``CLAIM_LEVEL``, so a daemon that does nothing is
credited with any effect in at most 5 % of trials.

Carry-over: if the state before a switch outlasts the washout, pairs that begin with a switch show a smaller effect
than pairs that follow a block of the same mode. The difference is the carry-over; the coin of the previous
pair decides which case applies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from perphd.domain.reading import Reading, Unavailable
from perphd.domain.workload import Mode
from perphd.trial.design import MIN_PAIRS, Metric, Signal
from perphd.trial.record import Block, TrialRecord
from perphd.trial.statistics import MeanEstimate, holm, no_effect_p, of_pairs, of_two

CONFIDENCE: Final = 0.95
CLAIM_LEVEL: Final = 0.03
"""Accepted probability of any false claim according to the formulas. Student's tails are approximate; the aim
is 5 %.
"""


@dataclass(frozen=True, slots=True)
class MetricChange:
    """A change from observe to enforce in %, with its 95 % interval."""

    pct: float
    low_pct: float
    high_pct: float
    p: float


@dataclass(frozen=True, slots=True)
class TrialEffect:
    """Result for one metric.

    ``claimed``: "no effect" is rejected, tested together with all other metrics. ``missing``: reason why
    there is no change.
    ``carried_over``: the carry-over is significant.
    """

    metric: Metric
    pairs: int
    observe_mean: Reading
    enforce_mean: Reading
    change: MetricChange | None
    missing: str = ""
    claimed: bool = False
    carry_over: MetricChange | None = None
    carried_over: bool = False

    @property
    def is_better(self) -> bool:
        """True if the change is an improvement."""
        if self.change is None:
            return False
        return self.change.pct < 0 if self.metric.signal is Signal.DELAY else self.change.pct > 0


@dataclass(frozen=True, slots=True)
class Analysis:
    """Results of a trial. ``used``, ``void``: numbers of blocks after the run-in that count and that do not,
    by mode.
    """

    effects: tuple[TrialEffect, ...]
    used: tuple[tuple[Mode, int], ...]
    void: tuple[tuple[Mode, int], ...]


@dataclass(frozen=True, slots=True)
class BlockPair:
    """One metric in one pair. ``after_switch``: the block before the pair had a different mode than its first block."""

    observe: float
    enforce: float
    after_switch: bool


def analyse(record: TrialRecord) -> Analysis:
    """The effects of a trial in the part that ran."""
    found = [_effect(metric, pairs_of(record, metric.name)) for metric in record.plan.metrics]
    known = [i for i, effect in enumerate(found) if effect.change is not None]
    claims = holm([p for i in known if (p := _p(found[i].change)) is not None], CLAIM_LEVEL)
    carried = holm([p for i in known if (p := _p(found[i].carry_over)) is not None], CLAIM_LEVEL)
    claimed = dict(zip(known, claims, strict=True))
    with_carry = [i for i in known if found[i].carry_over is not None]
    carried_over = dict(zip(with_carry, carried, strict=True))
    effects = tuple(
        replace(e, claimed=claimed.get(i, False), carried_over=carried_over.get(i, False))
        for i, e in enumerate(found)
    )
    after_run_in = [block for block in record.blocks if block.number]
    return Analysis(effects, _by_mode(after_run_in, void=False), _by_mode(after_run_in, void=True))


def pairs_of(record: TrialRecord, metric: str) -> tuple[BlockPair, ...]:
    """The pairs in which both blocks count and have this metric, in order of time."""
    known = {
        block.number: mean.mean
        for block in record.blocks
        if not block.void
        for mean in block.means
        if mean.metric == metric
    }
    pairs = []
    for first in range(1, record.plan.blocks, 2):
        if first in known and first + 1 in known:
            mode = record.plan.mode(first)
            one, other = known[first], known[first + 1]
            observe, enforce = (one, other) if mode is Mode.OBSERVE else (other, one)
            pairs.append(BlockPair(observe, enforce, record.plan.mode(first - 1) is not mode))
    return tuple(pairs)


def _effect(metric: Metric, pairs: Sequence[BlockPair]) -> TrialEffect:
    is_log = metric.signal is Signal.DELAY
    if is_log:
        pairs = [pair for pair in pairs if pair.observe > 0 and pair.enforce > 0]
    n = len(pairs)
    if n < MIN_PAIRS:
        missing = f"{n} complete pairs of blocks; {MIN_PAIRS} are needed"
        reading = Unavailable(missing)
        return TrialEffect(metric, n, reading, reading, None, missing)
    observe, enforce = (
        sum(pair.observe for pair in pairs) / n,
        sum(pair.enforce for pair in pairs) / n,
    )
    if not is_log and observe <= 0:
        missing = "it was 0 in all observed blocks"
        return TrialEffect(metric, n, observe, enforce, None, missing)
    ratio = 1.0 if is_log else enforce / observe
    differences = [_difference(pair, is_log, ratio, observe) for pair in pairs]
    estimate = of_pairs(differences)
    assert estimate is not None
    shifted = MeanEstimate(estimate.mean + (0.0 if is_log else ratio - 1.0), estimate.error, estimate.freedom)
    p = no_effect_p([d + shifted.mean - estimate.mean for d in differences])
    plain = [_difference(pair, is_log, 1.0, observe) for pair in pairs]
    carry = of_two(
        [d for d, pair in zip(plain, pairs, strict=True) if not pair.after_switch],
        [d for d, pair in zip(plain, pairs, strict=True) if pair.after_switch],
    )
    change = _change(shifted, is_log, p)
    carry_over = None if carry is None else _change(carry, is_log, carry.p)
    return TrialEffect(metric, n, observe, enforce, change, carry_over=carry_over)


def _difference(pair: BlockPair, is_log: bool, ratio: float, observe: float) -> float:
    if is_log:
        return math.log(pair.enforce / pair.observe)
    return (pair.enforce - ratio * pair.observe) / observe


def _change(estimate: MeanEstimate, is_log: bool, p: float) -> MetricChange:
    low, high = estimate.interval(CONFIDENCE)
    values = (estimate.mean, low, high)
    mean, low, high = (math.expm1(v) if is_log else v for v in values)
    return MetricChange(100.0 * mean, 100.0 * low, 100.0 * high, p)


def _p(change: MetricChange | None) -> float | None:
    return None if change is None else change.p


def _by_mode(blocks: Sequence[Block], *, void: bool) -> tuple[tuple[Mode, int], ...]:
    return tuple(
        (mode, sum(1 for block in blocks if block.mode is mode and bool(block.void) is void)) for mode in Mode
    )
