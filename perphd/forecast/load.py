"""Forecasts an LRA's highest load within a horizon, by its season if there is one, else by a damped trend (Holt 1957).

The load is averaged over ``BIN_S``; forecasts use logarithms of these averages. Each forecast states the
typical error of recent ones.

The forecasters of ``series`` forecast one window and give a calibrated bound. The forecaster of this module
forecasts several bins, runs inside the control loop, and has a state of a few numbers. Both find seasons with
``season``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from perphd.forecast.season import season_of

BIN_S: Final = 10.0
"""Seconds over which loads are averaged."""
DAY_BIN_S: Final = 300.0
"""Seconds over which loads are averaged to find daily seasons."""
KEPT_BINS: Final = 1080
"""Number of averages to keep: three hours of ``BIN_S`` averages, almost four days of ``DAY_BIN_S``
averages. A season must fit twice.
"""
LEAST_SEASON_BINS: Final = 6
LEAST_CORRELATION: Final = 0.6
"""Autocorrelation from which a load counts as seasonal."""
LEAST_VARIANCE: Final = 1e-4
"""Minimum variance of the log load for a season; a steady load has none."""
SEARCH_EVERY_BINS: Final = 30
_LEVEL_GAIN, _TREND_GAIN, _DAMPING = 0.5, 0.2, 0.9
_ERROR_GAIN: Final = 0.05


@dataclass(frozen=True, slots=True)
class LoadForecast:
    """Forecaster state of one load.

    ``bin_s``: averaging time; ``bins``: logarithms of average loads, newest last; ``season_bins``: 0 if there
    is no season; ``level``, ``trend``: Holt's level and trend of those logarithms; ``error``: typical recent
    absolute error, in logarithms; ``told``: the forecast for the current bin, NaN if there was none.
    """

    bins: tuple[float, ...] = ()
    season_bins: int = 0
    level: float = math.nan
    trend: float = 0.0
    error: float = 0.5
    told: float = math.nan
    since_s: float = math.nan
    sum: float = 0.0
    count: int = 0
    taken: int = 0
    bin_s: float = BIN_S


@dataclass(frozen=True, slots=True)
class Expected:
    """A forecast: the load, the factor by which recent forecasts were off, and its season (0: none)."""

    load_per_s: float
    error_factor: float
    season_s: float


def observe(state: LoadForecast, load_per_s: float, now_s: float) -> LoadForecast:
    """Add one load (positive, per second). A gap of more than two bins restarts the state."""
    if not (math.isfinite(load_per_s) and load_per_s > 0):
        return state
    if math.isnan(state.since_s) or now_s - state.since_s > 3 * state.bin_s:
        return LoadForecast(since_s=now_s, sum=load_per_s, count=1, bin_s=state.bin_s)
    if now_s - state.since_s < state.bin_s:
        return replace(state, sum=state.sum + load_per_s, count=state.count + 1)
    closed = _closed(state, math.log(state.sum / state.count))
    return replace(closed, since_s=state.since_s + state.bin_s, sum=load_per_s, count=1)


def expect(state: LoadForecast, ahead_s: float) -> Expected | None:
    """The highest load expected within ``ahead_s``; None while there are too few averages."""
    if len(state.bins) < LEAST_SEASON_BINS:
        return None
    steps = max(1, math.ceil(ahead_s / state.bin_s))
    most = max(_at(state, step) for step in range(1, steps + 1))
    return Expected(math.exp(most), math.exp(state.error), state.season_bins * state.bin_s)


def _closed(state: LoadForecast, value: float) -> LoadForecast:
    """The state with one more average."""
    error = state.error
    if not math.isnan(state.told):
        error += _ERROR_GAIN * (abs(value - state.told) - error)
    level, trend = state.level, state.trend
    if math.isnan(level):
        level, trend = value, 0.0
    else:
        before = level
        level = _LEVEL_GAIN * value + (1.0 - _LEVEL_GAIN) * (level + _DAMPING * trend)
        trend = _TREND_GAIN * (level - before) + (1.0 - _TREND_GAIN) * _DAMPING * trend
    bins = (*state.bins, value)[-KEPT_BINS:]
    taken = state.taken + 1
    season = season_bins(bins) if taken % SEARCH_EVERY_BINS == 0 else state.season_bins
    new = replace(state, bins=bins, season_bins=season, level=level, trend=trend, error=error, taken=taken)
    return replace(new, told=_at(new, 1))


def _at(state: LoadForecast, step: int) -> float:
    """The logarithm of the load ``step`` bins ahead."""
    n, season = len(state.bins), state.season_bins
    if season and n >= season + 1:
        # Repeat the changes of one season ago from the present level, because the heights of seasons differ
        # persistently.
        then = n - season + (step - 1) % season
        base = n - 1 - season
        if base >= 0 and then < n:
            now, before = state.bins[-1], state.bins[base]
            return now + 0.8 * (state.bins[then] - before) + 0.2 * (state.bins[then] - now)
    damped = _DAMPING * (1.0 - _DAMPING**step) / (1.0 - _DAMPING)
    return state.level + damped * state.trend


def season_bins(bins: tuple[float, ...]) -> int:
    """The season in bins; 0 if there is none."""
    values = np.asarray(bins)
    n = len(values)
    if n < 2 * LEAST_SEASON_BINS:
        return 0
    centred = values - values.mean()
    if float(centred @ centred) <= n * LEAST_VARIANCE:
        return 0
    return season_of(centred, LEAST_SEASON_BINS, LEAST_CORRELATION) or 0
