"""Published forecasts as metrics. An unknown value is an absent series, never a 0."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from perphd.control.metrics.text import Page, labels
from perphd.domain.reading import Unavailable

_SUMMARY: Final = {
    "made_unix_s": ("perphd_forecast_made_timestamp_seconds", 1.0),
    "series": ("perphd_forecast_series", 1.0),
    "forecasts": ("perphd_forecast_series_forecast", 1.0),
    "cpu_pct": ("perphd_forecast_worker_cpu_cores", 0.01),
    "rss_bytes": ("perphd_forecast_worker_resident_bytes", 1.0),
}
_SERIES: Final = {
    "mean": "perphd_forecast_mean",
    "p99": "perphd_forecast_p99",
    "covered_ratio": "perphd_forecast_covered_ratio",
}
_PREDICTORS: Final = {"peak": "perphd_host_peak_predicted", "under_ratio": "perphd_host_peak_under_ratio"}


def add_forecasts(page: Page, published: bytes | Unavailable) -> None:
    """Add all metrics of the forecasts; none if there are no forecasts."""
    if isinstance(published, Unavailable):
        return
    try:
        found = _lines(json.loads(published))
    except (ValueError, KeyError, TypeError):  # written by another version; the worker soon replaces it
        return
    for name, value, pairs in found:
        page.add(name, value, pairs)


def _lines(data: Mapping[str, Any]) -> list[tuple[str, float, str]]:
    found = [
        (name, factor * value, "")
        for key, (name, factor) in _SUMMARY.items()
        if _is_number(value := data["summary"][key])
    ]
    for workload in data["workloads"]:
        for series in workload["series"]:
            pairs = labels(workload=workload["workload"], series=series["series"])
            found += _known(series, _SERIES.items(), pairs)
    for host in data["hosts"]:
        resource = labels(resource=host["resource"])
        found += _known(host, (("peak", "perphd_host_peak"),), resource)
        for each in host["predictors"]:
            found += _known(each, _PREDICTORS.items(), f"{resource},{labels(predictor=each['predictor'])}")
    return found


def _known(
    data: Mapping[str, Any], names: Iterable[tuple[str, str]], pairs: str
) -> list[tuple[str, float, str]]:
    return [(name, value, pairs) for key, name in names if _is_number(value := data[key])]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
