"""Computes how much of one resource a workload should reserve, from its history.

There are two amounts for two purposes.

``next_window``: the amount that the resource shaper would leave the workload for the next window,

    target = mean + K1 R + K2 spread,  never below present use, never above the reservation R unless use exceeds it

where  mean + 3 spread  is the calibrated 99 % bound. The rest of R can be lent to others now, and must be
given back as soon as the forecast rises.

``recommended``: the value for a unit file, which is rarely revised. It covers the whole history:

    T = max(peak, min(mean + K2 spread, 2 greatest)) + K1 T

``peak`` is the greatest use of memory, whose shortage kills, and the 99th percentile of CPU use, whose
shortage slows. T is the fixed point of the rule: it does not depend on the present reservation. If nothing is
reserved, the shaper's R is the T of the forecast alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from perphd.domain.reading import Reading, Unavailable
from perphd.forecast.following import LEAST_WINDOWS, NextWindow, too_short
from perphd.forecast.histogram import Floats
from perphd.forecast.replay import Outlook
from perphd.sizing.shaper import Component, Demand, Resource, Role, ShaperMode, ShaperSettings, shape

BOUND_SPREADS: Final = 3.0
"""Spreads between a forecast's mean and its calibrated bound."""
DAY_WINDOWS: Final = 1368
"""Number of windows that counts as a day: 95 % of 1440, because some are always missing."""
WEEK_WINDOWS: Final = 7 * DAY_WINDOWS
HELD_BACK_RATIO: Final = 0.95
"""Ratio of use to reservation above which the reservation may limit the use."""
GREATEST_RATIO: Final = 2.0
"""A forecast and its buffer count only up to this multiple of the greatest use."""
SETTINGS: Final = ShaperSettings()


@dataclass(frozen=True, slots=True)
class Usage:
    """Present use, and percentiles of the windows' maxima."""

    now: float
    p50: float
    p95: float
    p99: float
    greatest: float


@dataclass(frozen=True, slots=True)
class Reservation:
    """A reserved amount and its source; ``least``: the minimum that the workload must have."""

    amount: Reading
    source: str = ""
    least: float = 0.0


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Sizes of one resource of one workload. A missing amount has its reason; ``reason`` explains ``recommended``."""

    resource: Resource
    windows: int
    reservation: Reservation
    used: Usage | Unavailable
    outlook: Outlook
    next_window: Reading
    reclaimable: Reading
    recommended: Reading
    confidence: str
    reason: str


def usage(values: Sequence[float], now: Reading) -> Usage | Unavailable:
    """Percentiles of a history. Present use is the use of the last complete window if the present one has no
    sample.
    """
    if not values:
        return Unavailable("not measured")
    p50, p95, p99 = (float(q) for q in np.percentile(values, (50, 95, 99)))
    present = values[-1] if isinstance(now, Unavailable) else max(now, values[-1])
    return Usage(present, p50, p95, p99, max(*values, present))


def recommend(
    resource: Resource, values: Floats, now: Reading, outlook: Outlook, reservation: Reservation
) -> Recommendation:
    """The sizes for a history of complete windows and its forecast."""
    used = usage(values.tolist(), now)
    found = outlook.next_window
    why = too_short(len(values)) if len(values) < LEAST_WINDOWS else ""
    if isinstance(used, Unavailable):
        why = found.reason if isinstance(found, Unavailable) else used.reason
    elif not why and isinstance(found, Unavailable):
        why = found.reason
    if why or isinstance(used, Unavailable) or isinstance(found, Unavailable):
        none = Unavailable(why)
        return Recommendation(
            resource, len(values), reservation, used, outlook, none, none, none, "none", why
        )
    target = _target(resource, used, found, reservation, outlook.windows)
    amount, reason = _lasting(resource, used, found, reservation)
    held = reservation.amount
    return Recommendation(
        resource,
        len(values),
        reservation,
        used,
        outlook,
        target,
        Unavailable("nothing is reserved") if isinstance(held, Unavailable) else max(0.0, held - target),
        amount,
        _confidence(len(values), used, reservation),
        reason,
    )


def _spread(found: NextWindow) -> float:
    return (found.p99 - found.mean) / BOUND_SPREADS


def _ahead(resource: Resource, used: Usage, found: NextWindow) -> float:
    """The forecast and its buffer, capped at ``GREATEST_RATIO`` times the greatest use.

    After a jump, the 99 % bound that determines the buffer may far exceed any host.
    """
    return min(found.mean + SETTINGS.k2[resource] * _spread(found), GREATEST_RATIO * used.greatest)


def _target(
    resource: Resource, used: Usage, found: NextWindow, reservation: Reservation, samples: int
) -> float:
    """The target that the shaper would choose for a component with this use and forecast."""
    wanted = _ahead(resource, used, found) / (1 - SETTINGS.k1)
    held = reservation.amount
    reserved = max(wanted, reservation.least) if isinstance(held, Unavailable) else held
    demand = Demand(reserved, used.now, reserved, found.mean, _spread(found), reservation.least)
    alone = Component("", "", 0, Role.CORE, 0.0, {resource: demand}, samples, shaped=False)
    return shape([alone], {}, ShaperMode.OBSERVE, SETTINGS).sizes[0].target


def _lasting(
    resource: Resource, used: Usage, found: NextWindow, reservation: Reservation
) -> tuple[float, str]:
    peak, named = (
        (used.greatest, "the greatest use")
        if resource is Resource.MEMORY
        else (used.p99, "the 99th percentile of use")
    )
    ahead = _ahead(resource, used, found)
    share = f"{SETTINGS.k1:.0%}"
    amount = max(peak, ahead) / (1 - SETTINGS.k1)
    reason = f"{named if peak >= ahead else 'the forecast and its spread'}, and {share} in reserve"
    floor = max(used.now if resource is Resource.MEMORY else 0.0, reservation.least)
    if amount < floor:
        return (
            floor,
            "the minimum that the configuration sets" if reservation.least == floor else "present use",
        )
    return amount, reason


def _confidence(windows: int, used: Usage, reservation: Reservation) -> str:
    held = reservation.amount
    if not isinstance(held, Unavailable) and used.greatest >= HELD_BACK_RATIO * held:
        return "low: use reached the reservation, so demand may be higher"
    if windows < DAY_WINDOWS:
        return "low: less than a day of samples"
    return "medium: less than a week of samples" if windows < WEEK_WINDOWS else "high: a week of samples"
