"""Forecasts as the forecast worker publishes them: what workloads and the host will use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from perphd.domain.reading import Reading

PUBLISHED_FILE: Final = "forecasts.json"
SUMMARY_FILE: Final = "summary.json"
MEMORY_FILE: Final = "memory.json"
"""Files in which the worker publishes ``Forecasts``, its summary, and ``MemoryForecast`` by workload."""


@dataclass(frozen=True, slots=True)
class SeriesForecasts:
    """One series of a workload: the greatest value of the next window, and how earlier bounds did.

    ``model``: the one that acts; empty where none does, and ``mean``, ``p90``, ``p99`` say why. ``p99`` is the
    calibrated bound. ``loss``: mean pinball loss of the last bounds, ``covered_ratio``: the share of values that they
    covered.
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
    """A workload's greatest working set in the window ``number`` (minutes since the epoch), for the resource shaper.

    ``bound``: what 99 % of the windows do not exceed, calibrated; ``model``: the one that acts.
    """

    number: int
    model: str
    mean_bytes: float
    bound_bytes: float


@dataclass(frozen=True, slots=True)
class WorkloadForecasts:
    """One workload: its series, as far as they are measured, and what is reserved for it."""

    workload: str
    series: tuple[SeriesForecasts, ...]
    reserved_cores: Reading
    reserved_bytes: Reading


@dataclass(frozen=True, slots=True)
class PredictorForecast:
    """One peak predictor: its newest prediction and its back-test against the peaks that followed.

    ``under_ratio``: predictions too low by more than 10 %; ``under_bound``: the bound on it that decides.
    """

    predictor: str
    peak: Reading
    predictions: int
    under_ratio: Reading
    under_bound: Reading
    mean_error: Reading


@dataclass(frozen=True, slots=True)
class HostForecast:
    """The peak of one resource of the host within the next hour. ``picked``: the predictor that counts; may be none."""

    resource: str
    workloads: int
    windows: int
    picked: str
    peak: Reading
    reason: str
    predictors: tuple[PredictorForecast, ...]


@dataclass(frozen=True, slots=True)
class ForecastSummary:
    """What the worker did and what it costs. ``made_unix_s``: when; ``newest_unix_s``: the newest sample it saw.

    ``cpu_pct``: of one CPU, on average over the last hour; ``problem``: why there is nothing newer.
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
    """Everything that is published."""

    summary: ForecastSummary
    workloads: tuple[WorkloadForecasts, ...] = ()
    hosts: tuple[HostForecast, ...] = ()
