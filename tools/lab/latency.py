"""Latency histograms: reading sysbench's, adding and subtracting them, percentiles."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

_LINE = re.compile(r"\s*([0-9]+\.[0-9]+)\s*\|\**\s*([0-9]+)\s*")


@dataclass(frozen=True, slots=True)
class Histogram:
    """Numbers of transactions by latency: upper bucket bound in ms -> count."""

    counts: Mapping[float, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Number of transactions."""
        return sum(self.counts.values())

    def __add__(self, other: Histogram) -> Histogram:
        counts = dict(self.counts)
        for value, count in other.counts.items():
            counts[value] = counts.get(value, 0) + count
        return Histogram(counts)

    def __sub__(self, earlier: Histogram) -> Histogram:
        """The part of this cumulative histogram after ``earlier``.

        Raises:
            ValueError: ``earlier`` has more in some bucket: it is not an earlier state of this one.
        """
        counts = dict(self.counts)
        for value, count in earlier.counts.items():
            counts[value] = counts.get(value, 0) - count
            if counts[value] < 0:
                raise ValueError(f"bucket {value} ms shrank: not an earlier state of the same histogram")
        return Histogram({value: count for value, count in counts.items() if count})

    def percentile(self, percent: float) -> float | None:
        """The latency in ms that ``percent`` % of the transactions did not exceed; None for no transactions."""
        total = self.total
        if total == 0:
            return None
        wanted = max(1, math.ceil(total * percent / 100 - 1e-9))
        seen = 0
        for value in sorted(self.counts):
            seen += self.counts[value]
            if seen >= wanted:
                return value
        raise AssertionError("the counts do not add up to their own total")


def merge(parts: Iterable[Histogram]) -> Histogram:
    """The sum of histograms."""
    counts: dict[float, int] = {}
    for part in parts:
        for value, count in part.counts.items():
            counts[value] = counts.get(value, 0) + count
    return Histogram(counts)


def histogram_line(line: str) -> tuple[float, int] | None:
    """One line of sysbench's histogram as (ms, count); None if the line is something else."""
    found = _LINE.fullmatch(line.rstrip("\n"))
    return (float(found[1]), int(found[2])) if found else None
