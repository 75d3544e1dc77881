"""Scatter of single scores between samples, independent of their level.

The scatter of an undisturbed reference also contains effects of load and time, and an absolute objective has no
reference. Differences of consecutive scores contain neither (von Neumann 1941): sd = mean |difference| x sqrt(pi) / 2.

A score is the lower one of the scores of work and delay. While the target is kept with slack, it shows only
the scatter of work, not that of latency, which is several times larger: a percentile of n requests scatters
by 1 to 2 over sqrt(n), and more where queues begin. As the slack shrinks, latency suddenly determines the score.
The scatter of latency is therefore always measured separately.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from perphd.domain.quick import replace
from perphd.domain.reading import available
from perphd.domain.signals import Performance

MEMORY = 30
"""Number of differences over which the mean is taken."""
LEAST_DIFFERENCES = 6
"""Number of differences from which the scatter is known."""
LEAST_SD = 0.01
REACH = 2.0
"""Number of standard deviations within which latency can push a sample's score below that of work."""
BLATANT_RATIO, BLATANT_SIGMA, SURELY_BLATANT = 0.85, 4.0, 0.5
"""Bounds below which one sample alone shows a shortfall: ratio to the target, multiple of its scatter, and the ratio
that no scatter explains."""
CLEAR_SIGMA = 1.5
"""Multiple of its scatter below which one sample suffices to undo a reduction that was just made."""
_CLIP = 4.0
_PER_DIFFERENCE = math.sqrt(math.pi) / 2.0


@dataclass(frozen=True, slots=True)
class Scatter:
    """State: ``n`` differences seen; ``mean_step``: their mean size (log units); ``last``: previous score, NaN after a
    change.
    """

    n: int = 0
    mean_step: float = 0.0
    last: float = math.nan

    @property
    def sd(self) -> float | None:
        """Standard deviation of one score in log units; None while there are too few differences."""
        return max(_PER_DIFFERENCE * self.mean_step, LEAST_SD) if self.n >= LEAST_DIFFERENCES else None


def step(state: Scatter, log_score: float, interval_s: float = 1.0) -> Scatter:
    """The state after one score; a jump counts at most four times the usual difference.

    ``interval_s``: length of the sample. Differences are scaled to samples of one second, because counting
    noise falls with the square root of time.
    """
    if not math.isfinite(log_score):
        return broken(state)
    if not math.isfinite(state.last):
        return replace(state, last=log_score)
    size = abs(log_score - state.last) * math.sqrt(interval_s)
    if state.n >= LEAST_DIFFERENCES:
        size = min(size, _CLIP * max(state.mean_step, LEAST_SD))
    n = min(state.n + 1, MEMORY)
    return Scatter(n, state.mean_step + (size - state.mean_step) / n, log_score)


def of_latency(state: Scatter, perf: Performance, interval_s: float) -> Scatter:
    """The scatter of latency after one sample; other measures of delay are ignored."""
    told = perf.delay_source.startswith("latency") and available(perf.delay) and perf.delay > 0
    log_delay = math.log(perf.delay) if told and available(perf.delay) and interval_s > 0 else math.nan
    return step(state, log_delay, interval_s)


def reached(
    noise_sd: float, delays: Scatter, work_score: float, delay_score: float, interval_s: float
) -> float:
    """Scatter of one score (log units); at least the scatter of latency, if latency can determine the score.

    Args:
        noise_sd: scatter of the latest scores.
        delays: scatter of latency, scaled to samples of one second.
        work_score: work / target.
        delay_score: target / delay.
        interval_s: length of the sample.
    """
    known_sd = delays.sd
    if known_sd is None or interval_s <= 0:
        return noise_sd
    sd = known_sd / math.sqrt(interval_s)
    return max(noise_sd, sd) if delay_score * math.exp(-REACH * sd) < work_score else noise_sd


def blatant_below(noise_sd: float) -> float:
    """Score below which one sample alone shows a shortfall; ``noise_sd``: scatter of one score."""
    return min(BLATANT_RATIO, max(math.exp(-BLATANT_SIGMA * noise_sd), SURELY_BLATANT))


def clear_below(own_sd: float, noise_sd: float) -> float:
    """Score below which one sample suffices to undo a reduction that was just made.

    Such a reduction is often too much, and undoing it wrongly costs batch little. ``own_sd``: scatter of the latest
    scores. ``noise_sd``: the same, but at least the scatter of latency if latency can determine scores.
    """
    return min(BLATANT_RATIO, math.exp(-BLATANT_SIGMA * own_sd), math.exp(-CLEAR_SIGMA * noise_sd))


def broken(state: Scatter) -> Scatter:
    """The state after perphd changed something, so that no difference spans the change."""
    return state if math.isnan(state.last) else replace(state, last=math.nan)


def mean(scores: Sequence[float]) -> float:
    """Geometric mean of ratios; with three or more, the lowest and the highest are left out as possible outliers."""
    logs = sorted(math.log(max(s, 1e-3)) for s in scores)
    kept = logs[1:-1] if len(logs) >= 3 else logs
    return math.exp(sum(kept) / len(kept))
