"""The peak of a host's use, by every applicable predictor, with a back-test on the host's own past.

The host's use in a window is the sum of its workloads' maxima there: an upper bound of the true peak, because
maxima of one window need not coincide. A back-test predicts at up to ``MOST_PREDICTIONS`` past windows, from
the data known at that time, and compares with the next window and with the maximum of the next ``HORIZON``.
Neighbouring predictions share most of their horizon, so n predictions contain less information than n
independent ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from perphd.domain.reading import Reading, Unavailable
from perphd.forecast import backtest
from perphd.forecast.backtest import PeakScore
from perphd.forecast.histogram import Floats
from perphd.forecast.peaks import PREDICTORS, HostUsage, Tenant
from perphd.forecast.usage_profile import PodSample, UsageProfile, observed

HORIZON: Final = 60
"""Windows ahead whose peak is predicted: one hour."""
PERIOD: Final = 1440
"""Windows of history that predictors use: one day."""
LEAST_HISTORY: Final = 60
MOST_PREDICTIONS: Final = 300
PRESENT: Final = 60
"""A workload without a value in this number of windows has left the host."""
FROM_REQUESTS: Final = frozenset({"borg", "max", "ero", "ero-matched"})
"""Predictors that need every workload's reservation."""
FROM_PAIRS: Final = frozenset({"ero", "ero-matched"})
"""Predictors that are defined only for CPU."""
MOST_PAIRED: Final = 24
"""Maximum number of workloads for which pairs are formed; the number of pairs grows with its square."""


@dataclass(frozen=True, slots=True, eq=False)
class TenantHistory:
    """One workload: its reservation, and its maximum in every window (NaN: none)."""

    name: str
    request: Reading
    usage: Floats


@dataclass(frozen=True, slots=True)
class PeakOutlook:
    """One predictor: its present prediction, and its errors against the next window and the horizon's peak."""

    name: str
    peak: Reading
    instant: PeakScore | None = None
    horizon: PeakScore | None = None


@dataclass(frozen=True, slots=True)
class HostOutlook:
    """All predictors, the selected one (None: use reservations), the resulting peak, and the reason."""

    windows: int
    predictors: tuple[PeakOutlook, ...]
    picked: str | None
    peak: Reading
    reason: str


def host_outlook(tenants: Sequence[TenantHistory], *, pairs: bool) -> HostOutlook:
    """The outlook for one resource. ``pairs``: whether predictors from pairs apply."""
    usage = np.stack([tenant.usage for tenant in tenants], axis=1) if tenants else np.empty((0, 0))
    lacking = absent(tenants, pairs=pairs)
    names = [name for name in PREDICTORS if pairs or name not in FROM_PAIRS]
    usable = [name for name in names if name not in lacking]
    windows = len(usage)
    start = max(LEAST_HISTORY, windows // 4)
    least = LEAST_HISTORY + HORIZON + 1
    if windows < least:
        short = Unavailable(f"{windows} of {least} windows")
        return HostOutlook(windows, tuple(PeakOutlook(n, short) for n in names), None, short, short.reason)
    every = -(-(windows - HORIZON - start) // MOST_PREDICTIONS)
    total = np.nansum(usage, axis=1)
    predicted: dict[str, list[float]] = {name: [] for name in usable}
    times = range(start, windows - HORIZON + 1, every)
    profile, learned = UsageProfile(), 0
    for at in (*times, windows):
        if any(name in FROM_PAIRS for name in usable):
            profile = _learned(profile, tenants, usage, range(learned, at))
        learned = at
        view = host_usage(tenants, usage[max(0, at - PERIOD) : at], total[max(0, at - PERIOD) : at], profile)
        for name in usable:
            predicted[name].append(PREDICTORS[name](view))
    peaks = backtest.horizon_peaks(total, HORIZON)[list(times)]
    found, scores = [], {}
    for name in names:
        if name in lacking:
            found.append(PeakOutlook(name, Unavailable(lacking[name])))
            continue
        past = np.array(predicted[name][:-1])
        instant = backtest.errors(past, total[list(times)])
        ahead = backtest.errors(past, peaks)
        if len(ahead):
            scores[name] = backtest.score(ahead)
        found.append(
            PeakOutlook(
                name,
                predicted[name][-1],
                backtest.score(instant) if len(instant) else None,
                scores.get(name),
            )
        )
    return with_choice(windows, tuple(found), backtest.chosen(scores), tenants)


def with_choice(
    windows: int, found: tuple[PeakOutlook, ...], picked: str | None, tenants: Sequence[TenantHistory]
) -> HostOutlook:
    """The outlook with this predictor selected; None: use reservations, if every workload has one."""
    budget = f"{backtest.BUDGET:.0%}"
    if picked is not None:
        peak = next(each.peak for each in found if each.name == picked)
        reason = (
            f"{picked} is the tightest predictor whose chance of an under-estimate by more than "
            f"{backtest.TOLERANCE:.0%} stays within {budget}"
        )
        return HostOutlook(windows, found, picked, peak, reason)
    why = (
        f"no predictor has shown a chance of at most {budget} of an under-estimate by more than "
        f"{backtest.TOLERANCE:.0%}"
    )
    if _unreserved(tenants):
        why += ", and some workloads have no reservation"
        return HostOutlook(windows, found, None, Unavailable(why), why)
    total = sum(tenant.request for tenant in tenants if not isinstance(tenant.request, Unavailable))
    return HostOutlook(windows, found, None, total, f"{why}: using the sum of the reservations")


def absent(tenants: Sequence[TenantHistory], *, pairs: bool) -> dict[str, str]:
    """Predictors that do not apply, with the reason."""
    found = {}
    if unreserved := _unreserved(tenants):
        few = ", ".join(unreserved[:3]) + (f" and {len(unreserved) - 3} more" if len(unreserved) > 3 else "")
        found = dict.fromkeys(FROM_REQUESTS, f"needs a reservation for every workload; without one: {few}")
    if pairs and len(tenants) > MOST_PAIRED:
        found |= dict.fromkeys(FROM_PAIRS, f"skipped: more than {MOST_PAIRED} workloads")
    return found


def _unreserved(tenants: Sequence[TenantHistory]) -> list[str]:
    return [tenant.name for tenant in tenants if isinstance(tenant.request, Unavailable)]


def _request(tenant: TenantHistory) -> float:
    return 0.0 if isinstance(tenant.request, Unavailable) else tenant.request


def _learned(
    profile: UsageProfile, tenants: Sequence[TenantHistory], usage: Floats, times: range
) -> UsageProfile:
    for at in times:
        pods = [
            PodSample(tenant.name, _request(tenant), float(value))
            for tenant, value in zip(tenants, usage[at].tolist(), strict=True)
            if not math.isnan(value)
        ]
        profile = observed(profile, pods, at // PERIOD)
    return profile


def host_usage(
    tenants: Sequence[TenantHistory], recent: Floats, total: Floats, profile: UsageProfile
) -> HostUsage:
    """The predictors' input: workloads present at the end of ``recent``, whose columns follow ``tenants``."""
    known = ~np.isnan(recent)
    present = [
        Tenant(tenant.name, _request(tenant), recent[known[:, i], i])
        for i, tenant in enumerate(tenants)
        if known[-PRESENT:, i].any()
    ]
    return HostUsage(present, total, profile)
