"""Latency measured by a database server: percentiles from the growth of its cumulative histogram."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

from perphd.domain.reading import Reading, Unavailable
from perphd.monitor.sli.prometheus import HistogramGrowth, quantile
from perphd.monitor.sli.reading import SampleSize, SliReading, behind
from perphd.monitor.sli.resolution import least_requests

WIDEST: Final = 2.6
"""Largest ratio of adjacent histogram bounds from which percentiles are computed."""
COARSE: Final = "the bounds of the server's histogram are too far apart for percentiles"
_ROUNDED_MS: Final = 0.01
"""Latency in ms below which servers round bounds to microseconds, which makes the bounds uneven."""
_REDIS_BOUNDS: Final = 32
"""Number of Redis's buckets, which double from 1 us on."""

Totals = dict[float, float]
"""Cumulative requests by upper bound of latency (ms), since the server began to count."""


class ServerLatency:
    """Computes p50, p95 and p99, each over as many requests as it needs."""

    def __init__(self) -> None:
        self._growth = {name: HistogramGrowth(least_requests(name)) for name in ("p50", "p95", "p99")}

    def joined(self, reading: SliReading, totals: Totals | Unavailable, at_s: float) -> SliReading:
        """``reading``, completed with the latency at ``at_s``.

        ``totals``: cumulative counts from the server, or the reason why there are none.
        """
        found = {name: self._one(name, totals, at_s) for name in self._growth}
        return replace(
            reading,
            latency_p50_ms=found["p50"][0],
            latency_p95_ms=found["p95"][0],
            latency_p99_ms=found["p99"][0],
            p50=found["p50"][1],
            p95=found["p95"][1],
            p99=found["p99"][1],
        )

    def _one(self, name: str, totals: Totals | Unavailable, at_s: float) -> tuple[Reading, SampleSize]:
        if isinstance(totals, Unavailable):
            self._growth[name] = HistogramGrowth(least_requests(name))
            return totals, SampleSize()
        counted, grown = self._growth[name].update(totals, at_s)
        told = quantile(grown, int(name[1:]) / 100.0) if grown else counted.rate
        return told, behind(counted)


def totals_of(buckets: Iterable[tuple[float, float]]) -> Totals | Unavailable:
    """Cumulative counts of buckets (upper bound in ms, requests in it); Unavailable if the buckets are too wide."""
    totals: Totals = {}
    upto = 0.0
    for bound, count in sorted(buckets):
        upto += count
        totals[bound] = upto
    finite = [bound for bound in totals if _ROUNDED_MS < bound < math.inf]
    if not finite:
        return Unavailable("the server's histogram of latency is empty")
    if any(above > WIDEST * below for below, above in pairwise(finite)):
        return Unavailable(COARSE)
    return totals


def of_redis(answer: object, left_out: Sequence[str]) -> Totals | Unavailable:
    """Cumulative counts from the answer to LATENCY HISTOGRAM, without commands that begin with ``left_out``.

    For each command that was called, the answer has pairs of a bound in microseconds and the cumulative calls.
    Each bound is twice the previous one.
    """
    counts = [0.0] * (_REDIS_BOUNDS + 1)
    for name, told in _pairs(answer):
        if name.startswith(tuple(left_out)):
            continue
        values = dict(_pairs(told))
        before = 0.0
        for bound, upto in _pairs(values.get("histogram_usec", ())):
            place = min(max(int(bound), 1).bit_length() - 1, _REDIS_BOUNDS)
            counts[place] += float(str(upto)) - before
            before = float(str(upto))
    if not any(counts):
        return Unavailable(
            "the server has no latency histogram yet, or keeps none (CONFIG SET latency-tracking yes)"
        )
    return totals_of((2.0**place / 1000.0, count) for place, count in enumerate(counts))


def _pairs(found: object) -> list[tuple[str, object]]:
    """Pairs of names and values, from a map or a flat list."""
    if isinstance(found, Mapping):
        return [(_text(name), value) for name, value in found.items()]
    items = list(found) if isinstance(found, Sequence) else []
    return [(_text(name), value) for name, value in zip(items[::2], items[1::2], strict=False)]


def _text(name: object) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name)
