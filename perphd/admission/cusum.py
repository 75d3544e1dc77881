"""Significance: has the residual of a signal moved for good, at a known rate of false alarms?

Residual -> AR(1) whitening -> robust scale -> one-sided CUSUM (Page 1954). Samples of one second are not independent:
without whitening the same threshold alarms tens of times as often. The baseline forgets over ``MEMORY`` samples and
stands still while there is evidence, so that a degradation is not learned away.

The threshold calibrates itself: evidence also rises where nothing is wrong, and falls to nothing again. How often it
rises above a low level, and how high it then comes, is counted; the heights of such rises are exponentially
distributed (Lundberg's bound for random walks with a negative drift, met closely), so that what was seen of low rises
tells how rare the threshold's height is. All state is a value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

MEMORY = 600
"""Samples over which the baseline (mean, correlation, scale) forgets."""
LEAST_SAMPLES = 40
"""Before so many samples of a signal nothing is called significant."""
CLIP_SIGMA = 3.0
"""What one sample can add at most: heavy tails are no shift."""
_MEAN_DEVIATION = 1.2533
_LEAST_SCALE = 0.005
_MOST_RHO = 0.95
_TAILS = 1.19
"""By how much thresholds exceed those of independent normal noise before a signal's own noise is known: for clipped
Student t(4) noise with an AR(1) correlation that is itself estimated, found by simulation (tools/bench/detector)."""
RISE_SHARE, HIGH_SHARE = 0.37, 0.85
"""Rises of the evidence count from the first share of the threshold; above the second they are cut off: what comes so
high may be no noise."""
BELIEF = 50
"""Rises whose weight the threshold for unknown noise has, against those that were seen."""
ENOUGH_RISES = 10
"""Rises from which what a signal does is extrapolated without any belief of what others do."""
LONGEST = 7 * 86400
"""Samples after which what was counted of rises is worth half."""
LOWEST, HIGHEST = 0.75, 1.8
"""How far a signal's own threshold may be from that for unknown noise (factors)."""
_CAUTION = 0.75
"""Share of the wanted rate that is aimed at: where scale or mean wander, heights have a longer tail."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """What a signal's residual does when nothing is wrong, and the evidence that it no longer does.

    ``mean``; ``variance`` and ``lagged`` (covariance with the sample before) give the correlation; ``deviation``: mean
    absolute innovation; ``last``: the residual before, less the mean; ``evidence``: the CUSUM, in sigma, at most twice
    the threshold, so that what is over is soon forgotten. ``peak``: its greatest value since it was nothing;
    ``watched``: samples for which rises were counted; ``rises``: those that have ended or were cut off; ``ended``:
    those that fell to nothing by themselves; ``height``: by how much they came above the level from which they count,
    all together, in sigma.
    """

    n: int = 0
    mean: float = 0.0
    variance: float = 0.0
    lagged: float = 0.0
    deviation: float = 0.0
    last: float = 0.0
    evidence: float = 0.0
    peak: float = 0.0
    watched: float = 0.0
    rises: float = 0.0
    ended: float = 0.0
    height: float = 0.0

    @property
    def rho(self) -> float:
        """Correlation of one sample with the next."""
        if self.variance <= 0:
            return 0.0
        return min(max(self.lagged / self.variance, 0.0), _MOST_RHO)

    @property
    def scale(self) -> float:
        """Robust standard deviation of one innovation."""
        return max(self.deviation * _MEAN_DEVIATION, _LEAST_SCALE)


def step(state: Baseline, residual: float, k: float, h: float, weight: float = 1.0) -> Baseline:
    """Take in one residual (positive is bad). ``k``: slack, ``h``: threshold, both in sigma.

    ``weight``: the share of a period that it covers, at most 1: a shift adds evidence in proportion to the time for
    which it was seen. A residual that is not finite changes nothing.
    """
    if not math.isfinite(residual):
        return state
    if weight < 1.0:
        return _short_step(state, residual, k, h, weight)
    if state.n == 0:
        return replace(state, n=1, mean=residual)
    error = residual - state.mean
    innovation = error - state.rho * state.last
    z = min(max(innovation / state.scale, -CLIP_SIGMA), CLIP_SIGMA) if state.n >= LEAST_SAMPLES else 0.0
    evidence = min(max(0.0, state.evidence + z - k), 2.0 * h) if state.n >= LEAST_SAMPLES else 0.0
    if evidence <= 0.0 and state.peak > RISE_SHARE * h:
        state = _counted(state, h, by_itself=True)
    peak = max(state.peak, evidence) if evidence > 0.0 else 0.0
    watched = state.watched + 1.0 if state.n >= LEAST_SAMPLES else 0.0
    if evidence > h / 2.0:
        # Something may be wrong: what is seen now is not what is usual.
        return replace(state, last=error, evidence=evidence, peak=peak, watched=watched)
    gain = 1.0 / min(state.n + 1, MEMORY)
    bound = CLIP_SIGMA * state.scale if state.n >= LEAST_SAMPLES else math.inf
    clipped = min(max(error, -bound), bound)
    return Baseline(
        n=min(state.n + 1, MEMORY),
        mean=state.mean + gain * clipped,
        variance=state.variance + gain * (clipped * clipped - state.variance),
        lagged=state.lagged + gain * (clipped * min(max(state.last, -bound), bound) - state.lagged),
        deviation=state.deviation + gain * (min(abs(innovation), bound) - state.deviation),
        last=error,
        evidence=evidence,
        peak=peak,
        watched=watched,
        rises=state.rises,
        ended=state.ended,
        height=state.height,
    )


def _short_step(state: Baseline, residual: float, k: float, h: float, weight: float) -> Baseline:
    """What a part of a period adds to the evidence; of what is usual for whole periods it tells nothing."""
    if state.n < LEAST_SAMPLES:
        return state
    z = (residual - state.mean - state.rho * state.last) / state.scale
    bound = CLIP_SIGMA / math.sqrt(weight)  # it scatters so much more
    z = min(max(z, -bound), bound)
    evidence = min(max(0.0, state.evidence + weight * (z - k)), 2.0 * h)
    if evidence <= 0.0 and state.peak > RISE_SHARE * h:
        state = _counted(state, h, by_itself=True)
    return replace(state, evidence=evidence, peak=max(state.peak, evidence) if evidence > 0.0 else 0.0)


def cleared(state: Baseline, h: float = math.inf) -> Baseline:
    """Without the evidence: after an alarm was answered, or an own change. ``h``: counts a rise that was cut off."""
    if state.peak > RISE_SHARE * h:
        state = _counted(state, h, by_itself=False)
    return replace(state, evidence=0.0, peak=0.0)


def _counted(state: Baseline, h: float, *, by_itself: bool) -> Baseline:
    """One rise more. One that was cut off, or came too high, tells only that it came so far."""
    kept = 0.5 if state.watched > LONGEST else 1.0
    ended = by_itself and state.peak < HIGH_SHARE * h
    return replace(
        state,
        watched=kept * state.watched,
        rises=kept * state.rises + 1.0,
        ended=kept * state.ended + ended,
        height=kept * state.height + min(state.peak, HIGH_SHARE * h) - RISE_SHARE * h,
    )


def has_moved(state: Baseline, h: float, false_alarms_per_day: float, period_s: float, k: float) -> bool:
    """True if the evidence is above the signal's own threshold. ``h``: that for unknown noise."""
    if state.evidence < LOWEST * h:
        return False
    return state.evidence >= own_threshold(state, h, false_alarms_per_day, period_s, k)


def own_threshold(state: Baseline, h: float, false_alarms_per_day: float, period_s: float, k: float) -> float:
    """The threshold for the wanted rate of false alarms, by the rises of the evidence that were seen so far.

    With rises above a level coming at a rate r, and heights above it exponential with the exponent t (by maximum
    likelihood: those that ended over all heights), ``level + x`` is exceeded at the rate r exp(-t x). ``h``, the
    threshold for unknown noise, has the weight of ``BELIEF`` rises.
    """
    wanted = _CAUTION * false_alarms_per_day * period_s / 86400.0
    level = RISE_SHARE * h
    exponent = 2.0 * k  # of independent normal noise
    usual = wanted * math.exp(min(exponent * (h - level), 50.0))
    rate = (state.rises + BELIEF) / (state.watched + BELIEF / usual)
    exponent = (state.ended + BELIEF) / (state.height + BELIEF / exponent)
    own = level + math.log(rate / wanted) / exponent
    return min(max(own, LOWEST * h), HIGHEST * h)


def expected_per_day(state: Baseline, least: float, h: float, period_s: float) -> float | None:
    """Alarms per day that the signal's own rises promise at the threshold ``least`` where nothing is wrong.

    Nothing is assumed of its noise: what was counted alone is extrapolated. None before ``ENOUGH_RISES``. ``h``: the
    threshold for unknown noise, from which rises were counted.
    """
    if state.ended < ENOUGH_RISES or state.height <= 0.0:
        return None
    exponent = state.ended / state.height
    rate = state.rises / max(state.watched, 1.0)
    return rate * math.exp(-exponent * max(least - RISE_SHARE * h, 0.0)) * 86400.0 / period_s


def threshold(false_alarms_per_day: float, period_s: float, k: float) -> float:
    """The CUSUM threshold h (sigma) for a rate of false alarms per day and signal.

    Siegmund's approximation of the mean time between false alarms (1985), (exp(2kb) - 2kb - 1) / (2k^2) samples with
    b = h + 1.166, solved for h and raised for tails.
    """
    samples = 86400.0 / period_s / false_alarms_per_day
    wanted = 2.0 * k * k * samples
    x = math.log(max(wanted, 2.0) + 1.0)
    for _ in range(20):
        x = math.log(wanted + 1.0 + x)
    return max(1.0, _TAILS * (x / (2.0 * k) - 1.166))
