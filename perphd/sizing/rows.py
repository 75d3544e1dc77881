"""Sizes as rows, one for each workload and resource, for reports, tables and other programs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from perphd.domain.reading import Reading, Unavailable, available
from perphd.forecast.following import latest_stretch
from perphd.forecast.replay import Outlook, outlook
from perphd.sizing.recommendation import Recommendation, Reservation, recommend
from perphd.sizing.shaper import Resource


@dataclass(frozen=True, slots=True)
class SizeHistory:
    """Windows of one resource of one workload, oldest first.

    ``missing``: reason why there are none; empty if there are some. ``most``: the host's capacity.
    """

    workload: str
    resource: Resource
    numbers: Sequence[int]
    values: Sequence[float]
    now: Reading
    reservation: Reservation
    missing: str = ""
    most: float = math.inf


@dataclass(frozen=True, slots=True)
class SizeRow:
    """Sizes of one resource, in cores or bytes.

    ``mean``, ``bound``: forecast of the next minute; ``size_now``: the target for that minute.
    """

    workload: str
    resource: str
    reserved: Reading
    now: Reading
    p50: Reading
    p95: Reading
    p99: Reading
    greatest: Reading
    mean: Reading
    bound: Reading
    size_now: Reading
    recommended: Reading
    reclaimable: Reading
    confidence: str
    reason: str


def recommendation(history: SizeHistory) -> Recommendation:
    """The sizes for one history and its forecast."""
    if history.missing:
        ahead = Outlook(0, Unavailable(history.missing))
    else:
        ahead = outlook(latest_stretch(history.numbers, history.values), history.most)
    values = np.asarray(history.values, dtype=np.float64)
    return recommend(history.resource, values, history.now, ahead, history.reservation)


def size_rows(histories: Iterable[SizeHistory]) -> tuple[SizeRow, ...]:
    """One row for each history, in order."""
    return tuple(row(each.workload, recommendation(each)) for each in histories)


def row(workload: str, found: Recommendation) -> SizeRow:
    """A recommendation as a row."""
    used, ahead = found.used, found.outlook.next_window
    return SizeRow(
        workload=workload,
        resource=found.resource.value,
        reserved=found.reservation.amount,
        now=used if isinstance(used, Unavailable) else used.now,
        p50=used if isinstance(used, Unavailable) else used.p50,
        p95=used if isinstance(used, Unavailable) else used.p95,
        p99=used if isinstance(used, Unavailable) else used.p99,
        greatest=used if isinstance(used, Unavailable) else used.greatest,
        mean=ahead if isinstance(ahead, Unavailable) else ahead.mean,
        bound=ahead if isinstance(ahead, Unavailable) else ahead.p99,
        size_now=found.next_window,
        recommended=found.recommended,
        reclaimable=found.reclaimable,
        confidence=found.confidence,
        reason=found.reason,
    )


def saved(rows: Iterable[SizeRow]) -> dict[str, float]:
    """Reserved minus recommended amounts by resource, summed over rows that have both."""
    found: dict[str, float] = {}
    for each in rows:
        if available(each.reserved) and available(each.recommended):
            found[each.resource] = found.get(each.resource, 0.0) + each.reserved - each.recommended
    return found
