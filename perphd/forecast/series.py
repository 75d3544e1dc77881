"""Series forecasters: the next window's maximum of one quantity of one workload.

A forecaster has two parts. ``fit`` is expensive, runs in a worker from time to time, and returns plain
numbers. ``predict`` is cheap and runs for every window. Both use only the latest ``history`` values of the
series.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Final, Protocol, TypeAlias, runtime_checkable

import numpy as np

from perphd.forecast.histogram import Floats
from perphd.forecast.season import season_of

Fitted: TypeAlias = tuple[float, ...]
"""Parameters of a forecaster: plain numbers, which can be sent between processes and stored in files."""
NEVER: Final = 10**9
"""Refit interval, in windows, of a model without parameters."""
_NORMAL: Final = NormalDist()


@dataclass(frozen=True, slots=True)
class SeriesForecast:
    """The next value: its mean and its spread (one standard deviation)."""

    mean: float
    spread: float

    def quantile(self, share: float) -> float:
        """The value that the next one does not exceed with probability ``share``, for normal errors."""
        return self.mean + self.spread * _NORMAL.inv_cdf(share)


class Forecaster(Protocol):
    """One model. It needs ``least`` values for a fit, which is repeated after ``refit_every`` windows."""

    @property
    def name(self) -> str:
        """The model's name in configuration, commands and metrics."""

    @property
    def history(self) -> int:
        """Number of latest values that it uses."""

    @property
    def least(self) -> int:
        """Number of values that it needs."""

    @property
    def refit_every(self) -> int:
        """Number of windows between fits."""

    def fit(self, values: Floats) -> Fitted | None:
        """Learn from a history. Returns None if the model does not apply to it."""

    def predict(self, fitted: Fitted, values: Floats) -> SeriesForecast:
        """Forecast the value after ``values``."""


@runtime_checkable
class ManyAtOnce(Protocol):
    """A model that forecasts many series faster together than one by one."""

    def predict_all(self, fitted: Sequence[Fitted], values: Sequence[Floats]) -> list[SeriesForecast]:
        """``predict`` for each series."""


def predictions(
    model: Forecaster, fitted: Sequence[Fitted], values: Sequence[Floats]
) -> list[SeriesForecast]:
    """The model's forecasts of many series, each with its parameters."""
    if isinstance(model, ManyAtOnce):
        return model.predict_all(fitted, values)
    return [model.predict(each, own) for each, own in zip(fitted, values, strict=True)]


@dataclass(frozen=True, slots=True)
class LastValue:
    """The next value is the last one; the spread is the root mean square of recent steps."""

    history: int = 30
    name: str = "last"
    least: int = 3
    refit_every: int = NEVER

    def fit(self, values: Floats) -> Fitted | None:
        """Return no parameters."""
        return ()

    def predict(self, fitted: Fitted, values: Floats) -> SeriesForecast:
        """The last value and the root mean square of steps."""
        recent = values[-self.history - 1 :]
        return SeriesForecast(float(recent[-1]), _rms(recent[1:] - recent[:-1]))


SMOOTHING_GRID: Final = np.linspace(0.05, 1.0, 20)
"""Candidate smoothing factors; 1 is the last value."""


@dataclass(frozen=True, slots=True)
class Smoothing:
    """Simple exponential smoothing, which is ARIMA(0,1,1):  level += factor * (value - level)."""

    history: int = 30
    name: str = "ses"
    least: int = 5
    refit_every: int = 10

    def fit(self, values: Floats) -> Fitted | None:
        """Select the factor with the least squared one-step errors."""
        found = _one_step_errors(values[-self.history - 1 :], self.history)
        return (float(SMOOTHING_GRID[int(np.argmin(np.add.reduce(found * found, axis=1)))]),)

    def predict(self, fitted: Fitted, values: Floats) -> SeriesForecast:
        """The level and the root mean square of one-step errors."""
        first, *rest = values[-self.history - 1 :].tolist()
        level, factor, squares = first, fitted[0], 0.0
        for value in rest:
            error = value - level
            level += factor * error
            squares += error * error
        return SeriesForecast(level, math.sqrt(squares / len(rest)) if rest else 0.0)


def _one_step_errors(values: Floats, steps: int) -> Floats:
    """Errors of each factor (rows) at each value after the first, of which there are at most ``steps``."""
    moved = values[1:] - values[0]
    n = len(moved)
    return np.asarray(_smoothing_weights(steps)[:, :n, :n] @ moved, dtype=np.float64)


@lru_cache(maxsize=4)
def _smoothing_weights(steps: int) -> Floats:
    """Weights of all values in each error. Smoothing is linear, and a loop over it takes ten times as long.

    error_i = value_i - sum over j < i of  factor (1 - factor)^(i - 1 - j) value_j,  of values less the first
    one.
    """
    place = np.arange(steps)
    age = place[:, None] - 1 - place[None, :]
    factors = SMOOTHING_GRID[:, None, None]
    past = np.where(age >= 0, factors * (1.0 - factors) ** np.maximum(age, 0), 0.0)
    return np.asarray(np.eye(steps) - past, dtype=np.float64)


LEAST_CORRELATION: Final = 0.3
"""Minimum autocorrelation at which a lag counts as a season."""
SHORTEST_SEASON: Final = 3
SEASONS: Final = 3
"""Number of past seasons in the average."""


@dataclass(frozen=True, slots=True)
class Seasonal:
    """The average of the last seasons at the same phase, plus the share of the last error that persists.

    The season (``season``) must fit twice into the history.
    """

    history: int = 720
    name: str = "seasonal"
    least: int = 4 * SHORTEST_SEASON
    refit_every: int = 30

    def fit(self, values: Floats) -> Fitted | None:
        """Season, persistence and spread; None without a season."""
        recent = values[-self.history :]
        left = detrended(recent)
        season = None if left is None else season_of(left, SHORTEST_SEASON, LEAST_CORRELATION)
        if season is None:
            return None
        found = recent[season:] - _phase_means(recent, season)
        energy = float(found[:-1] @ found[:-1])
        persistence = min(1.0, max(0.0, float(found[1:] @ found[:-1]) / energy)) if energy > 0 else 0.0
        return float(season), persistence, _rms(found[1:] - persistence * found[:-1])

    def predict(self, fitted: Fitted, values: Floats) -> SeriesForecast:
        """The phase's average, corrected by the last error."""
        season, persistence, spread = int(fitted[0]), fitted[1], fitted[2]
        recent = values[-(SEASONS + 1) * season - 1 :]
        end = len(recent)
        error = recent[-1] - _phase_mean(recent, end - 1, season) if end > season else 0.0
        return SeriesForecast(float(_phase_mean(recent, end, season) + persistence * error), spread)


def detrended(values: Floats) -> Floats | None:
    """The values less their linear trend; None if they are too few, or the rest is too small, for a season."""
    n = len(values)
    if n <= 2 * SHORTEST_SEASON:
        return None
    times = np.arange(n)
    slope, start = np.polyfit(times, values, 1)
    left = np.asarray(values - start - slope * times, dtype=np.float64)
    flat = float(left @ left) <= 1e-12 * n * max(1e-300, float(np.max(np.abs(values))) ** 2)
    return None if flat else left


def _phase_mean(values: Floats, place: int, season: int) -> float:
    return (
        float(np.mean(values[place - season :: -season][:SEASONS])) if place >= season else float(values[0])
    )


def _phase_means(values: Floats, season: int) -> Floats:
    """``_phase_mean`` of every position from ``season`` on."""
    n = len(values) - season
    total, count = np.zeros(n), np.zeros(n)
    for past in range(1, SEASONS + 1):
        first = (past - 1) * season
        if first >= n:
            break
        total[first:] += values[: n - first]
        count[first:] += 1.0
    return np.asarray(total / count, dtype=np.float64)


def _rms(found: Floats) -> float:
    return math.sqrt(float(found @ found) / len(found)) if len(found) else 0.0
