"""The host's peak use, followed window by window, with a continuous back-test of the predictors.

``headroom`` tests the predictors on a whole stored history. In this module every predictor predicts once in
``EVERY`` windows from the maxima so far. The latest ``KEPT_ERRORS`` errors of a predictor decide whether it
stays within its budget.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from perphd.domain.reading import Reading, Unavailable
from perphd.forecast import backtest
from perphd.forecast.calibration import appended
from perphd.forecast.headroom import (
    FROM_PAIRS,
    HORIZON,
    LEAST_HISTORY,
    PERIOD,
    PRESENT,
    HostOutlook,
    PeakOutlook,
    TenantHistory,
    absent,
    host_usage,
    with_choice,
)
from perphd.forecast.histogram import Floats
from perphd.forecast.peaks import PREDICTORS
from perphd.forecast.usage_profile import UsageProfile

EVERY: Final = 5
"""Windows between two predictions. Neighbouring predictions share most of their horizon and add little."""
KEPT_ERRORS: Final = 1000
"""Number of errors kept: three and a half days of 60-second windows."""
LEAST_KNOWN: Final = 0.9
"""Share of a horizon's windows that must be known; otherwise its peak is unknown."""


@dataclass(frozen=True, slots=True)
class PendingPeak:
    """Predictions made after window ``number``."""

    number: int
    predicted: Mapping[str, float]


@dataclass(frozen=True, slots=True, eq=False)
class HostPeaks:
    """One resource of the host after window ``number``.

    ``usage``: maxima of the last ``PERIOD`` windows by workload (NaN: none); ``windows``: number of windows
    ever known. ``instant``, ``horizon``: errors by predictor, newest last.
    """

    number: int = 0
    windows: int = 0
    usage: Mapping[str, Floats] = field(default_factory=dict)
    pending: tuple[PendingPeak, ...] = ()
    predicted: Mapping[str, float] = field(default_factory=dict)
    instant: Mapping[str, Floats] = field(default_factory=dict)
    horizon: Mapping[str, Floats] = field(default_factory=dict)


def advanced(
    host: HostPeaks, number: int, values: Mapping[str, float], requests: Mapping[str, Reading],
    profile: UsageProfile, *, pairs: bool,
) -> HostPeaks:  # fmt: skip
    """The host after window ``number``, with the workloads' maxima in ``values``; unchanged for a past window.

    ``pairs``: whether predictors from pairs apply; ``profile``: knowledge about pairs.
    """
    if number <= host.number or not values:
        return host
    usage = _shifted(host, number, values)
    totals = _totals(usage)
    host = _scored(
        HostPeaks(number, host.windows + 1, usage, host.pending, host.predicted, host.instant, host.horizon),
        totals,
    )
    if number % EVERY or host.windows < LEAST_HISTORY:
        return host
    predicted = _predictions(host, totals, requests, profile, pairs=pairs)
    pending = (*host.pending, PendingPeak(number, predicted))
    return HostPeaks(number, host.windows, usage, pending, predicted, host.instant, host.horizon)


def outlook(host: HostPeaks, requests: Mapping[str, Reading], *, pairs: bool) -> HostOutlook:
    """The newest prediction and the errors of every predictor, and the selected one."""
    tenants = _tenants(host, requests)
    lacking = absent(tenants, pairs=pairs)
    found, scores = [], {}
    for name in _names(pairs=pairs):
        if name in lacking or name not in host.predicted:
            why = lacking.get(name) or f"{host.windows} of {LEAST_HISTORY} windows"
            found.append(PeakOutlook(name, Unavailable(why)))
            continue
        if len(host.horizon.get(name, ())):
            scores[name] = backtest.score(host.horizon[name])
        instant = backtest.score(host.instant[name]) if len(host.instant.get(name, ())) else None
        found.append(PeakOutlook(name, host.predicted[name], instant, scores.get(name)))
    return with_choice(host.windows, tuple(found), backtest.chosen(scores), tenants)


def _shifted(host: HostPeaks, number: int, values: Mapping[str, float]) -> dict[str, Floats]:
    """Usage up to window ``number``. A workload without a value in the whole period is forgotten."""
    steps = min(PERIOD, number - host.number) if host.windows else PERIOD
    shifted = {}
    for name in host.usage.keys() | values.keys():
        row = np.full(PERIOD, np.nan)
        if name in host.usage:
            row[: PERIOD - steps] = host.usage[name][steps:]
        row[-1] = values.get(name, np.nan)
        if name in values or not np.isnan(row).all():
            shifted[name] = row
    return shifted


def _totals(usage: Mapping[str, Floats]) -> Floats:
    """The host's use in every window; NaN if unknown."""
    stacked = np.stack(list(usage.values()))
    return np.where(np.isnan(stacked).all(axis=0), np.nan, np.nansum(stacked, axis=0))


def _scored(host: HostPeaks, totals: Floats) -> HostPeaks:
    """``host`` with the errors of all predictions whose next window or horizon has ended."""
    instant, horizon, waiting = dict(host.instant), dict(host.horizon), []
    for each in host.pending:
        age = host.number - each.number
        if age == 1:
            _add(instant, each.predicted, float(totals[-1]))
        if age < HORIZON:
            waiting.append(each)
            continue
        ahead = totals[PERIOD - age : PERIOD - age + HORIZON] if age <= PERIOD else np.empty(0)
        known = ahead[~np.isnan(ahead)]
        if len(known) >= LEAST_KNOWN * HORIZON:
            _add(horizon, each.predicted, float(np.max(known)))
    return HostPeaks(host.number, host.windows, host.usage, tuple(waiting), host.predicted, instant, horizon)


def _add(errors: dict[str, Floats], predicted: Mapping[str, float], actual: float) -> None:
    if not actual > 0:
        return
    for name, value in predicted.items():
        errors[name] = appended(errors.get(name, np.empty(0)), (value - actual) / actual, KEPT_ERRORS)


def _predictions(
    host: HostPeaks, totals: Floats, requests: Mapping[str, Reading], profile: UsageProfile, *, pairs: bool
) -> dict[str, float]:
    tenants = _tenants(host, requests)
    lacking = absent(tenants, pairs=pairs)
    recent = np.stack([tenant.usage for tenant in tenants], axis=1)
    view = host_usage(tenants, recent, totals[~np.isnan(totals)], profile)
    return {name: PREDICTORS[name](view) for name in _names(pairs=pairs) if name not in lacking}


def _names(*, pairs: bool) -> list[str]:
    return [name for name in PREDICTORS if pairs or name not in FROM_PAIRS]


def _tenants(host: HostPeaks, requests: Mapping[str, Reading]) -> list[TenantHistory]:
    """The workloads present on the host."""
    unknown = Unavailable("unknown")
    return [
        TenantHistory(name, requests.get(name, unknown), usage)
        for name, usage in sorted(host.usage.items())
        if not np.isnan(usage[-PRESENT:]).all()
    ]
