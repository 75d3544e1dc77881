"""Forecasts of resource use by workloads and the host, as the forecast worker publishes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from perphd.domain.reading import Reading

PUBLISHED_FILE: Final = "forecasts.json"
SUMMARY_FILE: Final = "summary.json"
MEMORY_FILE: Final = "memory.json"
"""Names of the files in which the worker publishes ``Forecasts``, ``ForecastSummary`` and each workload's
``MemoryForecast``.
"""


@dataclass(frozen=True, slots=True)
class SeriesForecasts:
    """Forecast of one series of a workload: its maximum in the next window.

    ``model``: the model in use; empty if there is none. ``mean``, ``p90`` and ``p99`` then hold the reason. ``p99``
    is the calibrated bound. ``scored``: number of past forecasts compared with the actual values. ``loss``: mean
    pinball loss of the recent bounds; ``covered_ratio``: share of the actual values within those bounds.
    """

    series: str
    windows: int
    model: str
    mean: Reading
    p90: Reading
    p99: Reading
    scored: int
    loss: Reading
    covered_ratio: Reading


@dataclass(frozen=True, slots=True)
class MemoryForecast:
    """A workload's maximum working set in one window, for the resource shaper.

    ``number``: the window, in minutes since the epoch. ``bound_bytes``: calibrated bound that 99 % of the windows
    do not exceed. ``model``: the model in use.
    """

    number: int
    model: str
    mean_bytes: float
    bound_bytes: float


@dataclass(frozen=True, slots=True)
class WorkloadForecasts:
    """Forecasts and reservations of one workload, as far as they are known."""

    workload: str
    series: tuple[SeriesForecasts, ...]
    reserved_cores: Reading
    reserved_bytes: Reading


@dataclass(frozen=True, slots=True)
class PredictorForecast:
    """One peak predictor: its newest prediction, and its back-test against the peaks that followed.

    ``predictions``: number of predictions that were back-tested. ``under_ratio``: share of predictions that were more
    than 10 % too low. ``under_bound``: upper confidence bound of that share, which decides whether the predictor is
    accepted.
    """

    predictor: str
    peak: Reading
    predictions: int
    under_ratio: Reading
    under_bound: Reading
    mean_error: Reading


@dataclass(frozen=True, slots=True)
class HostForecast:
    """Predicted peak of one resource of the host within the next hour.

    ``picked``: the predictor in use. If no predictor is good enough, it is empty and ``reason`` says why.
    """

    resource: str
    workloads: int
    windows: int
    picked: str
    peak: Reading
    reason: str
    predictors: tuple[PredictorForecast, ...]


@dataclass(frozen=True, slots=True)
class ForecastSummary:
    """Figures about the last run of the forecast worker.

    ``made_unix_s``: time of the run. ``newest_unix_s``: time of the newest sample used. ``cpu_pct``: the worker's
    mean CPU use over the last hour, in % of one CPU. ``problem``: why there is no newer forecast.
    """

    made_unix_s: float
    newest_unix_s: Reading
    series: int
    forecasts: int
    peak_cores: Reading
    peak_bytes: Reading
    cpu_pct: Reading
    rss_bytes: Reading
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Forecasts:
    """Everything that the forecast worker publishes."""

    summary: ForecastSummary
    workloads: tuple[WorkloadForecasts, ...] = ()
    hosts: tuple[HostForecast, ...] = ()
