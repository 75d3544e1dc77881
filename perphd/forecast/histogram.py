"""Streaming histogram of Ben-Haim and Tom-Tov (2010): a distribution in constant memory.

A histogram is at most ``bins`` pairs (centre, weight), sorted by centre. Inserting a value adds a pair of weight 1;
if there are too many pairs, the two closest ones merge:

    (p, m), (q, k)  ->  ((p m + q k) / (m + k), m + k)

Between two neighbouring centres the density changes linearly, so the number of values up to b, p_i <= b < p_{i+1}, is

    m_b    = m_i + (m_{i+1} - m_i) z,    z = (b - p_i) / (p_{i+1} - p_i)
    sum(b) = m_1 + ... + m_{i-1} + m_i / 2 + (m_i + m_b) / 2 * z

and quantiles are the inverse of ``sum``. Least value, greatest value, number and sum of the values are kept exactly:
they bound the two outer halves, where the density falls to 0.

On the logarithmic scale the centres are logarithms. Run times and memory are heavy-tailed: on the linear scale most
pairs then end up in the tail, and the median of a lognormal (sigma 2) is off by more than 100 %.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

BINS: Final = 80
"""Pairs per histogram: the number published for 3Sigma."""
LEAST_LOGARITHM: Final = math.log(1e-9)
"""On the logarithmic scale, smaller values (and 0) count as 1e-9. The exact least value is kept separately."""
_MEAN_POINTS: Final = 64
_KEPT_SEGMENTS: Final = 256
"""Cached histograms, 2 KiB each: one scheduling pass queries 50 jobs' histories many times."""

Floats = NDArray[np.float64]


class Scale(Enum):
    """The scale on which centres are averaged and densities are linear."""

    LINEAR = "linear"
    LOGARITHMIC = "logarithmic"


@dataclass(frozen=True, slots=True)
class Histogram:
    """The distribution of ``count`` values. ``centres`` are on ``scale``; ``least``, ``most``, ``total`` are values.

    An empty histogram has ``count`` 0, ``least`` infinity and ``most`` minus infinity.
    """

    scale: Scale = Scale.LINEAR
    bins: int = BINS
    centres: tuple[float, ...] = ()
    weights: tuple[float, ...] = ()
    count: int = 0
    total: float = 0.0
    least: float = math.inf
    most: float = -math.inf

    @property
    def mean(self) -> float:
        """The exact mean; NaN if empty."""
        return self.total / self.count if self.count else math.nan


def of_values(values: Iterable[float], scale: Scale = Scale.LINEAR, bins: int = BINS) -> Histogram:
    """The histogram of ``values``, inserted in their order."""
    built = Histogram(scale, bins)
    for value in values:
        built = insert(built, value)
    return built


def insert(histogram: Histogram, value: float) -> Histogram:
    """``histogram`` with one more value, which must be finite and, on the logarithmic scale, not negative."""
    if not math.isfinite(value) or (histogram.scale is Scale.LOGARITHMIC and value < 0):
        raise ValueError(
            f"a {histogram.scale.value} histogram cannot take {value!r}: values must be finite"
            f"{', and 0 or more' if histogram.scale is Scale.LOGARITHMIC else ''}"
        )
    at = _scaled(histogram.scale, value)
    centres, weights = list(histogram.centres), list(histogram.weights)
    place = bisect_left(centres, at)
    if place < len(centres) and centres[place] == at:
        weights[place] += 1.0
    else:
        centres.insert(place, at)
        weights.insert(place, 1.0)
        _reduce(centres, weights, histogram.bins)
    return replace(
        histogram,
        centres=tuple(centres),
        weights=tuple(weights),
        count=histogram.count + 1,
        total=histogram.total + value,
        least=min(histogram.least, value),
        most=max(histogram.most, value),
    )


def merge(first: Histogram, second: Histogram) -> Histogram:
    """The histogram of both histograms' values; they must share scale and number of bins."""
    if (first.scale, first.bins) != (second.scale, second.bins):
        raise ValueError(
            f"histograms of {first.bins} {first.scale.value} and {second.bins} {second.scale.value} bins "
            "cannot be merged"
        )
    pairs: dict[float, float] = dict(zip(first.centres, first.weights, strict=True))
    for centre, weight in zip(second.centres, second.weights, strict=True):
        pairs[centre] = pairs.get(centre, 0.0) + weight
    centres = sorted(pairs)
    weights = [pairs[centre] for centre in centres]
    _reduce(centres, weights, first.bins)
    return replace(
        first,
        centres=tuple(centres),
        weights=tuple(weights),
        count=first.count + second.count,
        total=first.total + second.total,
        least=min(first.least, second.least),
        most=max(first.most, second.most),
    )


def sum_to(histogram: Histogram, value: float) -> float:
    """The estimated number of values up to ``value``."""
    return float(shares_to(histogram, np.array([value]))[0]) * histogram.count


def share_to(histogram: Histogram, value: float) -> float:
    """The estimated probability of a value of at most ``value``."""
    return float(shares_to(histogram, np.array([value]))[0])


def shares_to(histogram: Histogram, values: Floats) -> Floats:
    """``share_to`` of many values."""
    _require_values(histogram)
    knots, weights, sums = _segments(histogram)
    at = _scaled_many(histogram.scale, values)
    left = np.clip(np.searchsorted(knots, at, side="right") - 1, 0, len(knots) - 2)
    width = knots[left + 1] - knots[left]
    z = np.clip(at - knots[left], 0.0, width) / np.where(width > 0, width, 1.0)
    start, slope = weights[left], weights[left + 1] - weights[left]
    found = sums[left] + start * z + slope * z * z / 2
    shares = np.asarray(found / histogram.count, dtype=np.float64)
    shares[values < histogram.least] = 0.0
    shares[values >= histogram.most] = 1.0
    return np.clip(shares, 0.0, 1.0)


def quantile(histogram: Histogram, share: float) -> float:
    """The value that ``share`` (0 to 1) of all values do not exceed."""
    return float(quantiles(histogram, np.array([share]))[0])


def quantiles(histogram: Histogram, shares: Floats) -> Floats:
    """``quantile`` of many shares: the inverse of ``shares_to``."""
    _require_values(histogram)
    if np.any((shares < 0) | (shares > 1)):
        raise ValueError("a share of values must be from 0 to 1")
    knots, weights, sums = _segments(histogram)
    wanted = shares * histogram.count
    left = np.clip(np.searchsorted(sums, wanted, side="right") - 1, 0, len(knots) - 2)
    rest = np.maximum(wanted - sums[left], 0.0)
    start, slope = weights[left], weights[left + 1] - weights[left]
    root = np.sqrt(np.maximum(start * start + 2 * slope * rest, 0.0))
    divisor = start + root  # rest = start z + slope z^2 / 2, solved without cancellation
    z = np.clip(np.where(divisor > 0, 2 * rest / np.where(divisor > 0, divisor, 1.0), 0.0), 0.0, 1.0)
    found = _unscaled_many(histogram.scale, knots[left] + (knots[left + 1] - knots[left]) * z)
    return np.clip(found, histogram.least, histogram.most)


def survival(histogram: Histogram, value: float) -> float:
    """The probability of more than ``value``."""
    return 1.0 - share_to(histogram, value)


def survival_given(histogram: Histogram, value: float, exceeded: float) -> float:
    """The probability of more than ``value`` when ``exceeded`` has been exceeded already.

    NaN if no known value exceeds ``exceeded``: the history has no such case.
    """
    beyond = survival(histogram, exceeded)
    if beyond <= 0.0:
        return math.nan
    return min(1.0, survival(histogram, max(value, exceeded)) / beyond)


def mean_given(histogram: Histogram, exceeded: float) -> float:
    """The mean of the values above ``exceeded``; NaN if there is none."""
    below = share_to(histogram, exceeded)
    if below >= 1.0:
        return math.nan
    middles = (np.arange(_MEAN_POINTS) + 0.5) / _MEAN_POINTS
    return max(exceeded, float(np.mean(quantiles(histogram, below + (1.0 - below) * middles))))


def _reduce(centres: list[float], weights: list[float], bins: int) -> None:
    """Merge the closest pair until at most ``bins`` are left; the leftmost of equally close pairs first."""
    while len(centres) > bins:
        gaps = [right - left for left, right in pairwise(centres)]
        place = gaps.index(min(gaps))
        weight = weights[place] + weights[place + 1]
        share = weights[place + 1] / weight
        centres[place] += share * (centres[place + 1] - centres[place])
        weights[place] = weight
        del centres[place + 1], weights[place + 1]


@lru_cache(_KEPT_SEGMENTS)
def _segments(histogram: Histogram) -> tuple[Floats, Floats, Floats]:
    """Knots, the density's weight at each knot, and the number of values up to each knot. Must not be
    modified.

    The outer knots are the exact least and greatest value, where the weight is 0. If the outermost centre is that
    value itself, its outer half lies on the value: the sum starts at half a weight, or ends half a weight short.
    """
    low, high = _scaled(histogram.scale, histogram.least), _scaled(histogram.scale, histogram.most)
    inner = np.asarray(histogram.weights)
    knots = np.concatenate(
        ([min(low, histogram.centres[0])], histogram.centres, [max(high, histogram.centres[-1])])
    )
    weights = np.concatenate(([0.0], inner, [0.0]))
    sums = np.concatenate(([0.0], np.cumsum(inner) - inner / 2, [float(np.sum(inner))]))
    return knots, weights, sums


def _require_values(histogram: Histogram) -> None:
    if not histogram.count:
        raise ValueError("an empty histogram has no distribution")


def _scaled(scale: Scale, value: float) -> float:
    if scale is Scale.LINEAR:
        return value
    return max(LEAST_LOGARITHM, math.log(value)) if value > 0 else LEAST_LOGARITHM


def _scaled_many(scale: Scale, values: Floats) -> Floats:
    if scale is Scale.LINEAR:
        return np.asarray(values, dtype=np.float64)
    return np.log(np.maximum(values, math.exp(LEAST_LOGARITHM)))


def _unscaled_many(scale: Scale, values: Floats) -> Floats:
    return np.asarray(values if scale is Scale.LINEAR else np.exp(values), dtype=np.float64)


def as_record(histogram: Histogram) -> dict[str, Any]:
    """The histogram as JSON values; an empty one has no ``least`` and ``most``."""
    record: dict[str, Any] = {
        "scale": histogram.scale.value,
        "bins": histogram.bins,
        "centres": list(histogram.centres),
        "weights": list(histogram.weights),
        "count": histogram.count,
        "total": histogram.total,
    }
    return record | ({"least": histogram.least, "most": histogram.most} if histogram.count else {})


def from_record(record: Mapping[str, Any]) -> Histogram:
    """The histogram that ``as_record`` described."""
    read = Histogram(
        Scale(record["scale"]),
        int(record["bins"]),
        tuple(map(float, record["centres"])),
        tuple(map(float, record["weights"])),
        int(record["count"]),
        float(record["total"]),
        float(record.get("least", math.inf)),
        float(record.get("most", -math.inf)),
    )
    if len(read.centres) != len(read.weights) or list(read.centres) != sorted(set(read.centres)):
        raise ValueError("a histogram needs ascending centres and one weight for each of them")
    if (read.count == 0) != (not read.centres) or any(weight <= 0 for weight in read.weights):
        raise ValueError("a histogram needs positive weights: none if its count is 0, else at least one")
    return read
