"""Sequential test for a lasting shift of a signal beyond its target, at a known rate of false alarms.

Problem: samples scatter and are autocorrelated. Two samples in a row beyond a target are significant if the target
lies four standard deviations away, and meaningless if it lies half a standard deviation away. One rule must cover
both cases.

Approach: two CUSUMs (Page 1954) of the whitened shortfall against the target itself:
    y      = log(how far a sample is beyond its target); negative while it keeps the target
    z      = (y - rho y') / scale           rho, scale: of the signal's noise; y': y of the previous sample
    small  = max(0, small + min(z, clip))             rises only while the target is missed
    large  = max(0, large + min(z - extra, clip))     the same for large shifts, which this one finds sooner
    margin = distance of the undisturbed signal from its target (log units)
    k      = margin (1 - rho) / scale       mean distance of z below zero when nothing is wrong
    extra  = max(0, K - k)                  K: ``tuning.policy.cusum_k``

Thresholds follow from the accepted rate. With normal noise, a CUSUM with slack k passes h once in (Siegmund 1985)
    T = (exp(2kb) - 2kb - 1) / (2 k^2)      samples, with b = h + 1.166

No sample adds much more than 1/``ticks`` of a threshold, so a single outlier is not evidence. For low h this makes
alarms rarer, and h (1 - exp(-1.2 (h - 1.3))) has the same T (fitted to the integral equation of the run length, Brook
and Evans 1972: tools/bench/detector/run_length.py). If two samples in a row beyond the target are rarer than the
accepted rate, nothing more is required.

Noise is estimated online, clipped, over ``MEMORY`` samples. Estimation pauses while there is evidence, so that harm is
not learned as normal. Errors of the estimates, and heavy tails, are corrected by counting: evidence also rises and
falls back to zero when nothing is wrong. The rate and heights of such rises predict how rarely they reach the
threshold, because their heights are approximately exponential (Lundberg's bound for random walks with
negative drift). All state is a value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

MEMORY: Final = 3600
"""Memory, in samples, of mean, correlation and scale.

The time between false alarms grows with exp(2 k h), about 50,000, so an error of 10 % in the scale changes it at
least fivefold.
"""
LEAST_SAMPLES: Final = 40
"""Number of samples from which values are clipped and false alarms are extrapolated."""
CLIP_SIGMA: Final = 3.0
"""Largest contribution of one sample in sigma, because a heavy tail is not a shift."""
LEAST_K: Final = 0.1
"""Minimum slack in sigma.

With less, the undisturbed signal is at its target, and no threshold keeps an accepted rate.
"""
LEAST_MARGIN: Final = 0.25
"""Minimum share of the margin that is used, however close to its target the signal usually is."""
PRIOR_SAMPLES: Final = 10.0
"""Weight, in samples, of the reference's scatter as prior for the noise."""
PRIOR_RHO, PRIOR_RHO_SAMPLES = 0.4, 10.0
"""Prior correlation, and its weight in samples."""
_MEAN_DEVIATION: Final = 1.2533
_LEAST_SCALE: Final = 0.005
_MOST_RHO: Final = 0.95
_LEAST_THRESHOLD: Final = 0.05
_MOST_K: Final = 20.0
_LEAST_EXPONENT: Final = 2.0
_OVERSHOOT: Final = 1.166
_STEEP, _TWO = 1.2, 1.3
_FREE_SHARE: Final = 0.1
"""Share of the accepted rate of false alarms.

A signal whose noise causes fewer false alarms by two samples in a row does not count when the rate is divided.
"""
_SPLIT: Final = 1.3
"""Rate of alarms of both CUSUMs together, relative to one (by simulation); they usually alarm together."""
_ROOM: Final = 0.1
"""Share of the threshold added before it is divided by ``ticks``. A sample may add one such part to the sum."""
RISE_SHARE, HIGH_SHARE = 0.37, 0.85
"""Shares of the threshold between which the height of a rise is measured.

Rises are cut off at the second share, because higher ones may not be noise.
"""
LEARN_BELOW: Final = 0.45
"""Share of the threshold above which estimation pauses."""
BELIEF: Final = 50
"""Weight of the prior from normal noise, as a number of rises."""
ENOUGH_RISES: Final = 10
"""Number of observed rises that makes the prior unnecessary."""
ENOUGH_WATCHED: Final = 3600
"""Number of samples after which the absence of rises is informative."""
LONGEST: Final = 7 * 86400
"""Number of samples after which counted rises lose half their weight."""
LOWEST, HIGHEST = 0.75, 1.8
"""Bounds of a signal's own threshold, as multiples of the threshold for normal noise."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """A signal's noise when nothing is wrong, and the evidence of a shift.

    ``mean``: mean of the shortfall y. ``variance`` and ``lagged`` (covariance with the previous sample) give the
    correlation.
    ``deviation``: mean absolute innovation. ``last``: the previous y less the mean. ``usual_s``: usual length of a
    sample in seconds. ``small``, ``large``: the CUSUMs in sigma, at most twice their thresholds, so that an ended shift
    is soon forgotten. ``ratio``: the larger of them over its threshold for normal noise. ``peak``: largest ``ratio``
    since it was zero. ``watched``: samples over which rises were counted. ``rises``: rises that ended or were cut off.
    ``ended``: rises that fell to zero by themselves. ``height``: sum of the rises' heights above ``RISE_SHARE``.
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
    """Parameters of the test for one sample of one signal, from its noise and the accepted rate.

    ``rho``, ``scale``: correlation and scale of the noise. ``k``: slack below the target. ``extra``: further
    slack of the CUSUM for large shifts; 0: not used. ``small``, ``large``: thresholds for normal noise
    (sigma). ``own``: factor on both thresholds, from observed rises. ``exponent``: decrease in the log
    frequency of rises from height zero to the threshold. ``clip``: largest share of a threshold that one
    sample adds.
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
    """The threshold (sigma) that a CUSUM with slack ``k`` passes once in ``samples`` samples of normal noise.

    Args:
        samples: mean time between false alarms.
        k: slack, in sigma, above 0.
        ticks: minimum number of samples for an alarm.
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
        state: observations of the signal.
        prior_sd: prior scatter of one sample.
        interval_s: length of the sample; a sample shorter than usual scatters more.
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
    """Distance by which an undisturbed signal's innovations lie below those at the target, in sigma.

    ``margin``: distance of the reference from the target (log units). A signal usually closer to its target than the
    reference gets less, but at least ``LEAST_MARGIN`` of the margin.
    """
    margin = max(margin, 0.0)
    usual = min(max(-state.mean, LEAST_MARGIN * margin), margin) if state.n >= LEAST_SAMPLES else margin
    return min(max(usual * (1.0 - rho) / scale, LEAST_K), _MOST_K)


def limits(
    state: Baseline, rho: float, scale: float, k: float, wanted: float, large_k: float, ticks: int
) -> Limits:
    """Test parameters for the next sample of a signal.

    Args:
        state: observations of its noise.
        rho: correlation of that noise.
        scale: scale of one innovation, log units.
        k: slack below the target, in sigma.
        wanted: accepted false alarms per sample.
        large_k: slack of the CUSUM for large shifts.
        ticks: minimum number of samples for an alarm.
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
    """Slack above which two samples in a row beyond the target use almost nothing of the accepted rate."""
    return tail(math.sqrt(_FREE_SHARE * wanted))


def distance(rho: float, k: float) -> float:
    """Distance of the target from the undisturbed signal, in standard deviations of one sample."""
    return k * math.sqrt((1.0 + rho) / (1.0 - rho))


def uses_part(rho: float, k: float, wanted: float) -> bool:
    """True if noise takes this signal beyond its target often enough to use its part of the accepted rate."""
    return k < free_from(wanted) and distance(rho, k) < tail(_FREE_SHARE * wanted)


def tail(chance: float) -> float:
    """Upper quantile of the normal distribution for a small ``chance``, in standard deviations.

    Asymptotic: exp(-z^2/2) / (z sqrt(2 pi)).
    """
    twice = 2.0 * math.log(1.0 / chance)
    return math.sqrt(max(twice - math.log(twice) - math.log(2.0 * math.pi), 1.0))


def _rises(state: Baseline, exponent: float, wanted: float) -> tuple[float, float]:
    """Rises above ``RISE_SHARE`` per sample, and the exponent of their height distribution; both include the prior."""
    usual = wanted * math.exp(min(exponent * (1.0 - RISE_SHARE), 50.0))
    rate = (state.rises + BELIEF) / (state.watched + BELIEF / usual)
    return rate, (state.ended + BELIEF) / (state.height + BELIEF / exponent)


def _own(state: Baseline, exponent: float, wanted: float) -> float:
    """The signal's own threshold over that for normal noise, from observed rises.

    With rises above a level at rate r, and exponential heights above it with exponent t (maximum likelihood: ended
    rises over total height), ``level + x`` is exceeded at the rate r exp(-t x).
    """
    rate, exponent = _rises(state, exponent, wanted)
    return min(max(RISE_SHARE + math.log(rate / wanted) / exponent, LOWEST), HIGHEST)


def surprise(state: Baseline, shortfall: float, at: Limits) -> float:
    """Deviation of one sample from the undisturbed signal, in sigma."""
    return _innovation(state, shortfall, at) + at.k


def _innovation(state: Baseline, shortfall: float, at: Limits) -> float:
    """The whitened shortfall z against the target, in sigma.

    A sample far better than usual does not turn the next one into a loss.
    """
    before = max(state.last, -_bound(state)) + state.mean if state.n else shortfall
    return (shortfall - at.rho * before) / at.scale


def _bound(state: Baseline) -> float:
    """Largest deviation from the mean with which a sample counts."""
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
    """Process one sample.

    Args:
        state: state before.
        shortfall: log of how far the sample is beyond the target; ignored if not finite.
        at: limits for it.
        interval_s: length of the sample; a sample much shorter than usual is not used for estimation.
        weight: share of a period that the sample covers, at most 1; evidence grows in proportion to it.
        learns: False while a change by perphd settles; nothing is estimated then.
    """
    if not math.isfinite(shortfall):
        return state
    z = _innovation(state, shortfall, at)
    most = CLIP_SIGMA if weight >= 1.0 else CLIP_SIGMA / math.sqrt(weight)  # short samples scatter more
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
        # Something may be wrong, so exclude the sample from estimation.
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
    """The state without its evidence, after an alarm was answered or perphd changed something."""
    if state.ratio <= 0.0 and state.peak <= 0.0:
        return state
    if state.peak > RISE_SHARE:
        state = _counted(state, by_itself=False)
    return replace(state, small=0.0, large=0.0, ratio=0.0, peak=0.0)


def _counted(state: Baseline, *, by_itself: bool) -> Baseline:
    """Count one rise.

    A rise that was cut off, or is higher than ``HIGH_SHARE``, does not count as ended.
    """
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
    """The share of the threshold required when ``times`` the accepted rate may be spent.

    It is always more than one sample can add, unless the settings let one sample suffice.
    """
    least = at.clip + 0.01 if at.clip <= 1.0 else 0.5
    return max(at.own - math.log(times) / at.exponent, least)


def expected(state: Baseline, at: Limits) -> float | None:
    """Expected false alarms per sample, extrapolated from the signal's own rises; None while there are too
    few of them.

    From ``ENOUGH_RISES`` on, the observed rises alone are used. A signal that was watched for long with hardly any
    rises is assumed to have one more.
    """
    if state.ended >= ENOUGH_RISES and state.height > 0.0:
        rate, exponent = state.rises / max(state.watched, 1.0), state.ended / state.height
    elif state.watched >= ENOUGH_WATCHED:
        rate, exponent = (state.rises + 1.0) / state.watched, at.exponent
    else:
        return None
    return rate * math.exp(-exponent * max(at.own - RISE_SHARE, 0.0))
