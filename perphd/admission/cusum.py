"""Significance: is a signal beyond its target for good, at a known rate of false alarms?

Problem: samples scatter, and neighbours in time alike. Two samples in a row beyond a target are news where the target
lies four standard deviations away, and nothing where it lies half of one away. One rule has to do for both.

Approach: two CUSUMs (Page 1954) of the shortfall, whitened, against the target itself:

    y      = log(how far a sample is beyond its target); negative while it keeps it
    z      = (y - rho y') / scale           rho, scale: of the signal's own noise, y': of the sample before
    small  = max(0, small + min(z, clip))             rises only while the target is missed
    large  = max(0, large + min(z - extra, clip))     the same for shifts far beyond it, which it finds sooner
    margin = how far the undisturbed signal lies from its target (log units)
    k      = margin (1 - rho) / scale       by so much z lies below zero, in the mean, where nothing is wrong
    extra  = max(0, K - k)                  K: ``policy.cusum_k``

Thresholds follow from the accepted rate. Of normal noise a CUSUM with slack k passes h once in (Siegmund 1985)

    T = (exp(2kb) - 2kb - 1) / (2 k^2)      samples, with b = h + 1.166

No sample adds much more than one part in ``ticks`` of a threshold, so that an outlier alone is no evidence. Where h is
low this makes alarms rarer, and h (1 - exp(-1.2 (h - 1.3))) has the same T (fitted to the integral equation of the run
length, Brook and Evans 1972: tools/bench/detector/run_length.py). Where two samples in a row beyond the target are
rarer than is accepted anyhow, nothing more is asked.

Noise is estimated online, clipped, over ``MEMORY`` samples, and stands still while there is evidence: what harms is not
learned away. Errors of the estimates, and tails, are made good by counting: evidence also rises where nothing is wrong,
and falls to nothing again. How often it rises above a low level, and how high it then comes, tells how rare the
threshold's height is, since the heights of such rises are exponentially distributed (Lundberg's bound for random walks
with a negative drift, met closely). All state is a value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

MEMORY: Final = 3600
"""Samples over which mean, correlation and scale forget: the rate of false alarms grows with exp(2 k h), about 50,000,
so that an error of a tenth in the scale is one of five times in the rate."""
LEAST_SAMPLES: Final = 40
"""Before so many samples nothing is clipped, and no false alarms are extrapolated."""
CLIP_SIGMA: Final = 3.0
"""What one sample can add at most: heavy tails are no shift."""
LEAST_K: Final = 0.1
"""Where the target lies nearer than this the truth is at its target, and no threshold keeps a rate."""
LEAST_MARGIN: Final = 0.25
"""Share of the margin that is counted on at least, however near the target the signal usually is."""
PRIOR_SAMPLES: Final = 10.0
"""Samples whose weight the scatter of a reference has beside what was seen of the noise itself."""
PRIOR_RHO, PRIOR_RHO_SAMPLES = 0.4, 10.0
"""Correlation before any was seen, with the weight of so many samples."""
_MEAN_DEVIATION: Final = 1.2533
_LEAST_SCALE: Final = 0.005
_MOST_RHO: Final = 0.95
_LEAST_THRESHOLD: Final = 0.05
_MOST_K: Final = 20.0
_LEAST_EXPONENT: Final = 2.0
_OVERSHOOT: Final = 1.166
_STEEP, _TWO = 1.2, 1.3
_FREE_SHARE: Final = 0.1
"""Share of the accepted rate below which what two samples in a row do is left out of account."""
_SPLIT: Final = 1.3
"""Two CUSUMs of one signal mostly alarm together: by simulation, together 1.3 times as often as one."""
_ROOM: Final = 0.1
"""By so much more than its part of the threshold a sample may add, so that so many reach it."""
RISE_SHARE, HIGH_SHARE = 0.37, 0.85
"""Rises of the evidence count from the first share of the threshold; above the second they are cut off: what comes so
high may be no noise."""
LEARN_BELOW: Final = 0.45
"""Nothing is learned of what is usual from this share of the threshold on: less than one part of two."""
BELIEF: Final = 50
"""Rises whose weight the threshold for normal noise has, against those that were seen."""
ENOUGH_RISES: Final = 10
"""Rises from which what a signal does is extrapolated without any belief of what others do."""
ENOUGH_WATCHED: Final = 3600
"""Samples after which the absence of rises tells as well."""
LONGEST: Final = 7 * 86400
"""Samples after which what was counted of rises is worth half."""
LOWEST, HIGHEST = 0.75, 1.8
"""How far a signal's own threshold may be from that for normal noise (factors)."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """What a signal's shortfall does when nothing is wrong, and the evidence that it no longer does.

    ``mean`` of the shortfall y; ``variance`` and ``lagged`` (covariance with the sample before) give the correlation;
    ``deviation``: mean absolute innovation; ``last``: y of the sample before, less the mean; ``usual_s``: seconds that
    samples usually cover; ``small``, ``large``: the CUSUMs, in sigma, at most twice their thresholds, so that what is
    over is soon forgotten; ``ratio``: the greater of them over its threshold for normal noise. ``peak``: the greatest
    ``ratio`` since it was nothing; ``watched``: samples for which rises were counted; ``rises``: those that have ended
    or were cut off; ``ended``: those that fell to nothing by themselves; ``height``: by how much they came above the
    level from which they count, all together.
    """

    n: int = 0
    mean: float = 0.0
    variance: float = 0.0
    lagged: float = 0.0
    deviation: float = 0.0
    last: float = 0.0
    usual_s: float = 0.0
    small: float = 0.0
    large: float = 0.0
    ratio: float = 0.0
    peak: float = 0.0
    watched: float = 0.0
    rises: float = 0.0
    ended: float = 0.0
    height: float = 0.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What follows from the noise and the accepted rate for one sample of one signal.

    ``rho``, ``scale``: of the noise; ``k``: slack below the target; ``extra``: that of the CUSUM for large shifts
    beside it, 0 where that is not used; ``small``, ``large``: thresholds for normal noise (sigma); ``own``: factor on
    both by what was seen of rises; ``exponent``: by how much the logarithm of its frequency falls over a rise to the
    threshold; ``clip``: share of a threshold that one sample adds at most.
    """

    rho: float
    scale: float
    k: float
    extra: float
    small: float
    large: float
    own: float
    exponent: float
    clip: float


def threshold(samples: float, k: float, ticks: int = 2) -> float:
    """The height h (sigma) that a CUSUM with slack ``k`` passes once in so many samples of normal noise.

    Args:
        samples: mean time between false alarms.
        k: slack, in sigma, above 0.
        ticks: samples that an alarm takes at least.
    """
    h = _siegmund(samples, k)
    if ticks > 1 and h < 2.0 * CLIP_SIGMA:
        h *= 1.0 - math.exp(-_STEEP * max(h - _TWO, 0.0))
    return max(h, _LEAST_THRESHOLD)


def _siegmund(samples: float, k: float) -> float:
    wanted = 2.0 * k * k * samples
    x = math.log(max(wanted, 2.0) + 1.0)
    for _ in range(4):
        x = math.log(wanted + 1.0 + x)
    return x / (2.0 * k) - _OVERSHOOT


def noise(state: Baseline, prior_sd: float, interval_s: float = 0.0) -> tuple[float, float]:
    """Correlation and scale (of one innovation, log units) of a signal's noise.

    Args:
        state: what was seen of it.
        prior_sd: scatter of one sample as far as it is known without that.
        interval_s: what the sample covers: one that covers less than usual scatters more.
    """
    n = state.n
    rho = min(max(state.lagged / state.variance, 0.0), _MOST_RHO) if state.variance > 0.0 else 0.0
    rho = (n * rho + PRIOR_RHO_SAMPLES * PRIOR_RHO) / (n + PRIOR_RHO_SAMPLES)
    seen = state.deviation * _MEAN_DEVIATION
    prior = prior_sd * prior_sd * (1.0 - rho * rho)
    scale = math.sqrt((n * seen * seen + PRIOR_SAMPLES * prior) / (n + PRIOR_SAMPLES))
    if 0.0 < interval_s < state.usual_s:
        scale *= math.sqrt(state.usual_s / interval_s)
    return rho, max(scale, _LEAST_SCALE)


def slack(state: Baseline, margin: float, rho: float, scale: float) -> float:
    """How far an undisturbed signal's innovations lie below the target's, in sigma.

    ``margin``: distance of the reference from the target (log units). Less of it counts where the signal is usually
    nearer its target than its reference is, but never less than ``LEAST_MARGIN`` of it.
    """
    margin = max(margin, 0.0)
    usual = min(max(-state.mean, LEAST_MARGIN * margin), margin) if state.n >= LEAST_SAMPLES else margin
    return min(max(usual * (1.0 - rho) / scale, LEAST_K), _MOST_K)


def limits(
    state: Baseline, rho: float, scale: float, k: float, wanted: float, large_k: float, ticks: int
) -> Limits:
    """Thresholds for the next sample of a signal.

    Args:
        state: what was seen of its noise.
        rho: correlation of that noise.
        scale: of one innovation, log units.
        k: slack below the target, in sigma.
        wanted: false alarms a sample that are accepted.
        large_k: slack of the CUSUM for large shifts.
        ticks: samples that an alarm takes at least.
    """
    extra = large_k - k
    if extra > 0.0:
        wanted /= _SPLIT
        small, large = threshold(1.0 / wanted, k, ticks), threshold(1.0 / wanted, large_k, ticks)
    else:
        extra, small, large = 0.0, threshold(1.0 / wanted, k, ticks), math.inf
    exponent = max(2.0 * k * _siegmund(1.0 / wanted, k), _LEAST_EXPONENT)
    own = _own(state, exponent, wanted)
    clip = (max(own, 1.0) + _ROOM) / ticks if ticks > 1 else 2.0
    return Limits(rho, scale, k, extra, small, large, own, exponent, clip)


def free_from(wanted: float) -> float:
    """Slack from which on two samples in a row beyond the target use up next to none of what is accepted."""
    return tail(math.sqrt(_FREE_SHARE * wanted))


def distance(rho: float, k: float) -> float:
    """How far the target lies from the undisturbed signal, in standard deviations of one sample."""
    return k * math.sqrt((1.0 + rho) / (1.0 - rho))


def uses_part(rho: float, k: float, wanted: float) -> bool:
    """True if noise ever brings this signal beyond its target often enough to use its part of the accepted rate."""
    return k < free_from(wanted) and distance(rho, k) < tail(_FREE_SHARE * wanted)


def tail(chance: float) -> float:
    """How far a normal variable lies above its mean with a small chance (asymptotic: exp(-z^2/2) / (z sqrt(2 pi)))."""
    twice = 2.0 * math.log(1.0 / chance)
    return math.sqrt(max(twice - math.log(twice) - math.log(2.0 * math.pi), 1.0))


def _rises(state: Baseline, exponent: float, wanted: float) -> tuple[float, float]:
    """Rises above the level a sample, and the exponent of their heights, with what is believed before any was seen."""
    usual = wanted * math.exp(min(exponent * (1.0 - RISE_SHARE), 50.0))
    rate = (state.rises + BELIEF) / (state.watched + BELIEF / usual)
    return rate, (state.ended + BELIEF) / (state.height + BELIEF / exponent)


def _own(state: Baseline, exponent: float, wanted: float) -> float:
    """The signal's own threshold over that for normal noise, by the rises that were seen so far.

    With rises above a level coming at a rate r, and heights above it exponential with the exponent t (by maximum
    likelihood: those that ended over all heights), ``level + x`` is exceeded at the rate r exp(-t x).
    """
    rate, exponent = _rises(state, exponent, wanted)
    return min(max(RISE_SHARE + math.log(rate / wanted) / exponent, LOWEST), HIGHEST)


def surprise(state: Baseline, shortfall: float, at: Limits) -> float:
    """How far one sample lies from what is usual, in sigma: the innovation against the undisturbed signal."""
    return _innovation(state, shortfall, at) + at.k


def _innovation(state: Baseline, shortfall: float, at: Limits) -> float:
    """z: the whitened shortfall against the target, in sigma.

    One sample that is far better than usual does not make the next one a loss.
    """
    before = max(state.last, -_bound(state)) + state.mean if state.n else shortfall
    return (shortfall - at.rho * before) / at.scale


def _bound(state: Baseline) -> float:
    """How far from its mean a sample counts at most."""
    if state.n < LEAST_SAMPLES:
        return math.inf
    return CLIP_SIGMA * max(math.sqrt(max(state.variance, 0.0)), _LEAST_SCALE)


def step(
    state: Baseline,
    shortfall: float,
    at: Limits,
    interval_s: float = 0.0,
    weight: float = 1.0,
    *,
    learns: bool = True,
) -> Baseline:
    """Take in one sample.

    Args:
        state: so far.
        shortfall: log of how far it is beyond the target; one that is not finite changes nothing.
        at: limits for it.
        interval_s: seconds that it covers; one that covers much less than usual tells nothing of what is usual.
        weight: the share of a period that it covers, at most 1: a shift adds evidence in proportion to the time for
            which it was seen.
        learns: it tells of what is usual; not while an own change takes effect.
    """
    if not math.isfinite(shortfall):
        return state
    z = _innovation(state, shortfall, at)
    most = CLIP_SIGMA if weight >= 1.0 else CLIP_SIGMA / math.sqrt(weight)  # it scatters so much more
    small = state.small + weight * min(z, most, at.clip * at.small / weight)
    small = min(max(small, 0.0), 2.0 * at.small)
    ratio, large = small / at.small, 0.0
    if at.extra > 0.0:
        large = state.large + weight * min(z - at.extra, most, at.clip * at.large / weight)
        large = min(max(large, 0.0), 2.0 * at.large)
        ratio = max(ratio, large / at.large)
    if ratio <= 0.0 and state.peak > RISE_SHARE:
        state = _counted(state, by_itself=True)
    peak = max(state.peak, ratio) if ratio > 0.0 else 0.0
    if weight < 1.0:
        return replace(state, small=small, large=large, ratio=ratio, peak=peak)
    n, error = state.n, shortfall - state.mean if state.n else 0.0
    watched = state.watched + 1.0
    usual_s = max(interval_s, state.usual_s - state.usual_s / MEMORY)
    partial = interval_s < 0.6 * usual_s
    if ratio >= LEARN_BELOW or partial or not learns:
        # Something may be wrong: what is seen now is not what is usual.
        return replace(
            state,
            last=error,
            usual_s=usual_s,
            small=small,
            large=large,
            ratio=ratio,
            peak=peak,
            watched=watched,
        )
    gain, bound = 1.0 / min(n + 1, MEMORY), _bound(state)
    clipped = min(max(error, -bound), bound)
    before = min(max(state.last, -bound), bound)
    raw = state.lagged / state.variance if state.variance > 0.0 else 0.0
    innovation = abs(error - min(max(raw, 0.0), _MOST_RHO) * before)
    if n >= LEAST_SAMPLES:
        innovation = min(innovation, CLIP_SIGMA * max(state.deviation * _MEAN_DEVIATION, _LEAST_SCALE))
    return Baseline(
        n=min(n + 1, MEMORY),
        mean=state.mean + gain * clipped if n else shortfall,
        variance=state.variance + gain * (clipped * clipped - state.variance),
        lagged=state.lagged + gain * (clipped * before - state.lagged),
        deviation=state.deviation + gain * (innovation - state.deviation),
        last=error,
        usual_s=usual_s,
        small=small,
        large=large,
        ratio=ratio,
        peak=peak,
        watched=watched,
        rises=state.rises,
        ended=state.ended,
        height=state.height,
    )


def cleared(state: Baseline) -> Baseline:
    """Without the evidence: after an alarm was answered, or an own change."""
    if state.ratio <= 0.0 and state.peak <= 0.0:
        return state
    if state.peak > RISE_SHARE:
        state = _counted(state, by_itself=False)
    return replace(state, small=0.0, large=0.0, ratio=0.0, peak=0.0)


def _counted(state: Baseline, *, by_itself: bool) -> Baseline:
    """One rise more. One that was cut off, or came too high, tells only that it came so far."""
    kept = 0.5 if state.watched > LONGEST else 1.0
    ended = by_itself and state.peak < HIGH_SHARE
    return replace(
        state,
        watched=kept * state.watched,
        rises=kept * state.rises + 1.0,
        ended=kept * state.ended + ended,
        height=kept * state.height + min(state.peak, HIGH_SHARE) - RISE_SHARE,
    )


def bar(at: Limits, times: float) -> float:
    """The share of the threshold that is asked for where so many times the accepted rate may be spent.

    What one sample adds is not enough, but where one is to be.
    """
    least = at.clip + 0.01 if at.clip <= 1.0 else 0.5
    return max(at.own - math.log(times) / at.exponent, least)


def expected(state: Baseline, at: Limits) -> float | None:
    """Alarms a sample that the signal's own rises promise where nothing is wrong; None while too few were seen.

    Nothing is assumed of its noise from ``ENOUGH_RISES`` on: what was counted alone is extrapolated. A signal that was
    watched for long and hardly ever rose has at most one rise more.
    """
    if state.ended >= ENOUGH_RISES and state.height > 0.0:
        rate, exponent = state.rises / max(state.watched, 1.0), state.ended / state.height
    elif state.watched >= ENOUGH_WATCHED:
        rate, exponent = (state.rises + 1.0) / state.watched, at.exponent
    else:
        return None
    return rate * math.exp(-exponent * max(at.own - RISE_SHARE, 0.0))
