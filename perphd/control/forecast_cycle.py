"""One cycle of the forecast worker: reads new windows from the store and produces forecasts.

This module is separate from the worker's process (``forecast_worker``), so that tests and other commands can run cycles
as well.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from perphd.control.forecast_files import Known
from perphd.domain.forecast import (
    Forecasts,
    ForecastSummary,
    HostForecast,
    MemoryForecast,
    PredictorForecast,
    SeriesForecasts,
    WorkloadForecasts,
)
from perphd.domain.reading import Reading, Unavailable, available
from perphd.forecast import host_peaks
from perphd.forecast.backtest import PeakScore
from perphd.forecast.following import (
    EARLY_WINDOWS,
    LEAST_WINDOWS,
    LONG_GAP,
    Followed,
    choice_score,
    continued,
    forecast_together,
    heavy_fits,
    next_window,
    started,
)
from perphd.forecast.headroom import MOST_PAIRED, HostOutlook
from perphd.forecast.host_peaks import HostPeaks
from perphd.forecast.usage_profile import PodSample, UsageProfile, observed, with_memory
from perphd.monitor.windows import SERIES, WINDOW_S, SeriesWindows, StoreWindows
from perphd.sizing.shaper import Resource

log = logging.getLogger("perphd.forecast")

FIRST_S: Final = 12 * 3600.0
"""History read at the first start, in seconds: the history of the longest model."""
REPLAYED: Final = 60
"""Number of windows of that history that are forecast one by one, to obtain scores."""
FORGET_AFTER: Final = 60
"""Number of successive windows without a value after which a series is forgotten."""
SERIES_OF: Final = {Resource.CPU: "cpu_usage_cores", Resource.MEMORY: "memory_working_set_bytes"}
DAY_WINDOWS: Final = 1440
MEMORY_EVERY: Final = 60
"""Number of windows between two updates of the memory part of the usage profile."""
LEAST_FITS: Final = 10
FITTED_SHARE: Final = 0.05
"""Share of the series whose heavy models are fitted in one cycle; at least ``LEAST_FITS`` are. It is twice the average
need. The other series wait, because series that began together would otherwise all be fitted in the same minute.
"""
FAILURES: Final = (ValueError, ArithmeticError)
"""Errors of a model that cannot use the values; numpy's ``LinAlgError`` is a ``ValueError``."""
_COSTS: Final = 61
_NONE: Final = Unavailable("no forecast yet")


@dataclass(frozen=True, slots=True)
class Costs:
    """CPU time and wall clock at the end of the latest cycles."""

    points: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_COSTS))

    @property
    def cpu_pct(self) -> Reading:
        """CPU use between the oldest and the newest stored cycle, in % of one CPU."""
        if len(self.points) < 2:
            return Unavailable("not measured before the second cycle")
        (first_s, used_s), (last_s, now_s) = self.points[0], self.points[-1]
        return 100.0 * (now_s - used_s) / (last_s - first_s) if last_s > first_s else _NONE


class Cycles:
    """The state of all series and of the host; ``take`` advances it.

    Args:
        known: the state of an earlier process.
        profile: usage of pairs, learned here or elsewhere.
        node: this node's name in usage profiles.

    Attributes:
        most: the host's capacity by series, the upper bound of forecasts.
        priors: losses of the models on other hosts, by workload and reading, for young series.
    """

    def __init__(self, known: Known, profile: UsageProfile, node: str) -> None:
        self._series = dict(known.series)
        self._hosts = {resource: known.hosts.get(resource.value, HostPeaks()) for resource in Resource}
        self.profile, self._node = profile, node
        self.most: Mapping[str, float] = {}
        self.priors: Mapping[tuple[str, str], Mapping[str, float]] = {}
        self._fits_left = 0
        self._number = max((host.number for host in self._hosts.values()), default=0)

    @property
    def known(self) -> Known:
        """The state from which the next process continues."""
        return Known(self._series, {resource.value: host for resource, host in self._hosts.items()})

    def young(self, names: Sequence[str]) -> set[tuple[str, str]]:
        """Series of these workloads that do not have enough scores of their own yet."""
        keys = {(name, each) for name in names for each in SERIES}
        return {
            key for key in keys if key not in self._series or self._series[key].ladder.seen < LEAST_WINDOWS
        }

    @property
    def number(self) -> int:
        """Number of the last window that was processed; 0 before the first."""
        return self._number

    def take(
        self, found: StoreWindows, names: Sequence[str], reserved: Mapping[str, Mapping[Resource, Reading]]
    ) -> None:
        """Process the windows of these workloads.

        After the clock was set back, everything restarts from the store's history, which the next call gets.
        """
        last = int(found.newest_s // WINDOW_S) - 1
        if self._number - last > LONG_GAP:
            log.warning("the clock was set back by %d minutes: forecasts restart", self._number - last)
            self._series.clear()
            self._hosts = {resource: HostPeaks() for resource in Resource}
            self._number = 0
            return
        listed = set(names)
        workloads = [each for each in found.workloads if each.workload in listed]
        self._fits_left = max(LEAST_FITS, int(FITTED_SHARE * len(self._series)))
        ahead: list[tuple[str, str]] = []
        for each in workloads:
            for name in SERIES:
                windows = each.series[name]
                if not windows.numbers:
                    continue
                if self._take_series((each.workload, name), windows):
                    ahead.append((each.workload, name))
        self._forecast(ahead)
        for key in [key for key, series in self._series.items() if series.number < last - FORGET_AFTER]:
            del self._series[key]
        for resource in Resource:
            self._take_host(resource, workloads_of(found, listed, SERIES_OF[resource]), reserved)
        self._number = max(self._number, last)

    def outlook(self, resource: Resource, reserved: Mapping[str, Mapping[Resource, Reading]]) -> HostForecast:
        """Forecast of the host's peak of one resource."""
        requests = {name: by.get(resource, _NONE) for name, by in reserved.items()}
        found = host_peaks.outlook(self._hosts[resource], requests, pairs=resource is Resource.CPU)
        return _host(resource, len(self._hosts[resource].usage), found)

    def forecasts(
        self, names: Sequence[str], reserved: Mapping[str, Mapping[Resource, Reading]], made_s: float,
        newest_s: Reading, costs: Costs, rss_bytes: Reading, problem: str = "",
    ) -> Forecasts:  # fmt: skip
        """Forecasts of workloads and host, with figures about the worker, in the published form."""
        workloads = []
        for name in names:
            by = reserved.get(name, {})
            series = tuple(
                _series(each, self._series[name, each], self._most(each), self._least((name, each)))
                for each in SERIES
                if (name, each) in self._series
            )
            workloads.append(
                WorkloadForecasts(name, series, by.get(Resource.CPU, _NONE), by.get(Resource.MEMORY, _NONE))
            )
        hosts = tuple(self.outlook(resource, reserved) for resource in Resource)
        given = [each for workload in workloads for each in workload.series]
        summary = ForecastSummary(
            made_s, newest_s, len(given), sum(bool(each.model) for each in given),
            hosts[0].peak, hosts[1].peak, costs.cpu_pct, rss_bytes, problem,
        )  # fmt: skip
        return Forecasts(summary, tuple(workloads), hosts)

    def memory(self, names: Sequence[str]) -> dict[str, MemoryForecast]:
        """The next window's memory of each of these workloads that has a forecast."""
        found, most = {}, self._most(SERIES_OF[Resource.MEMORY])
        for name in names:
            key = name, SERIES_OF[Resource.MEMORY]
            series = self._series.get(key)
            ahead = _NONE if series is None else next_window(series, most, self._least(key))
            if series is not None and not isinstance(ahead, Unavailable):
                found[name] = MemoryForecast(series.number + 1, ahead.model, ahead.mean, ahead.p99)
        return found

    def _least(self, key: tuple[str, str]) -> int:
        return EARLY_WINDOWS if key in self.priors else LEAST_WINDOWS

    def _most(self, series: str) -> float:
        return self.most.get(series, math.inf)

    def _take_series(self, key: tuple[str, str], windows: SeriesWindows) -> bool:
        """Process one series. If its values make a model fail, only this series restarts.

        Returns True if the forecast of the next window is still missing.
        """
        known, prior = self._series.pop(key, None), self.priors.get(key)
        numbers, values, may_fit = windows.numbers, windows.values, self._fits_left > 0
        try:
            series = (
                started(numbers, values, REPLAYED, prior)
                if known is None
                else continued(known, numbers, values, may_fit=may_fit, ahead=False, prior=prior)
            )
        except FAILURES as exc:
            self._restart(key, exc)
            return False
        if series is not None:
            self._series[key] = series
        if series is None or known is None or series is known:
            return False
        self._fits_left -= heavy_fits(series)
        return True

    def _forecast(self, keys: Sequence[tuple[str, str]]) -> None:
        """Forecast the next window of these series: together, or one by one if that fails."""
        try:
            found = forecast_together([self._series[key] for key in keys], list(map(self.priors.get, keys)))
        except FAILURES as exc:
            if len(keys) == 1:
                del self._series[keys[0]]
                self._restart(keys[0], exc)
            else:
                for key in keys:
                    self._forecast([key])
            return
        self._series.update(zip(keys, found, strict=True))

    def _restart(self, key: tuple[str, str], exc: Exception) -> None:
        log.warning("%s %s: its forecasts restart: %r", *key, exc)

    def _take_host(
        self, resource: Resource, windows: Mapping[int, Mapping[str, float]],
        reserved: Mapping[str, Mapping[Resource, Reading]],
    ) -> None:  # fmt: skip
        host, pairs = self._hosts[resource], resource is Resource.CPU
        requests = {name: by.get(resource, _NONE) for name, by in reserved.items()}
        for number in sorted(number for number in windows if number > host.number):
            self._learn(resource, number, windows[number], requests)
            host = host_peaks.advanced(host, number, windows[number], requests, self.profile, pairs=pairs)
        self._hosts[resource] = host

    def _learn(
        self, resource: Resource, number: int, values: Mapping[str, float], requests: Mapping[str, Reading]
    ) -> None:
        known = {
            name: request
            for name in values
            if available(request := requests.get(name, _NONE)) and request > 0
        }
        if resource is Resource.MEMORY:
            if number % MEMORY_EVERY == 0:
                ratios = {name: (values[name] / request,) for name, request in known.items()}
                self.profile = with_memory(self.profile, self._node, ratios)
            return
        pods = [PodSample(name, known[name], values[name]) for name in sorted(known)[:MOST_PAIRED]]
        self.profile = observed(self.profile, pods, number // DAY_WINDOWS)


def workloads_of(found: StoreWindows, names: set[str], series: str) -> dict[int, dict[str, float]]:
    """Values of one series, by number of the window and name of the workload."""
    windows: dict[int, dict[str, float]] = {}
    for each in found.workloads:
        if each.workload in names:
            for number, value in zip(each.series[series].numbers, each.series[series].values, strict=True):
                windows.setdefault(number, {})[each.workload] = value
    return windows


def _series(name: str, series: Followed, most: float, least: int) -> SeriesForecasts:
    found, score = next_window(series, most, least), choice_score(series)
    loss, covered = (score.loss, score.covered_ratio) if score else (_NONE, _NONE)
    scored = score.scored if score else 0
    if isinstance(found, Unavailable):
        return SeriesForecasts(name, series.ladder.seen, "", found, found, found, scored, loss, covered)
    return SeriesForecasts(
        name, series.ladder.seen, found.model, found.mean, found.p90, found.p99, scored, loss, covered
    )


def _host(resource: Resource, workloads: int, found: HostOutlook) -> HostForecast:
    predictors = tuple(
        PredictorForecast(each.name, each.peak, *_scores(each.horizon)) for each in found.predictors
    )
    return HostForecast(
        resource.value, workloads, found.windows, found.picked or "", found.peak, found.reason, predictors
    )


def _scores(score: PeakScore | None) -> tuple[int, Reading, Reading, Reading]:
    none = Unavailable("no prediction has been tested yet")
    if score is None:
        return 0, none, none, none
    return score.predictions, score.under_ratio, score.under_bound, score.mean_error
