"""Counting noise: the uncertainty of a rate, a share or a percentile from a number of events.

A count of n random events scatters by the square root of n. The sample percentile q of n latencies is the
latency at a level that scatters as the k-th of n uniform numbers does, k = ceil(q n): a beta distribution.
"""

from __future__ import annotations

import math
from random import Random
from statistics import NormalDist
from typing import Final

_NORMAL: Final = NormalDist()
LEVELS: Final = (0.50, 0.95, 0.99)
_Z: Final = tuple(_NORMAL.inv_cdf(level) for level in LEVELS)
_MANY: Final = 200.0
"""Events from which a count is drawn from a normal distribution, which then approximates it well."""
SLICE_S: Final = 0.004
"""Length of the slices in which CPU time and waits for it come (the kernel's tick and default slice are 3 to 4 ms)."""
STALL_S: Final = 0.010
"""Length of the episodes in which stalls for memory and disk come."""


def count(random: Random, expected: float) -> float:
    """A random number of events with this expectation."""
    if expected <= 0.0:
        return 0.0
    if expected >= _MANY:
        return max(0.0, round(random.gauss(expected, math.sqrt(expected))))
    seen, left = 0, expected - random.expovariate(1.0)
    while left > 0.0:
        seen, left = seen + 1, left - random.expovariate(1.0)
    return float(seen)


def factor(random: Random, events: float, most: float = 0.5) -> float:
    """Random factor of a reading made up of this many events; its relative noise is at most ``most``."""
    sd = min(most, 1.0 / math.sqrt(max(events, 1e-9)))
    return math.exp(random.gauss(0.0, sd) - sd * sd / 2.0)


def percentiles(
    random: Random, answered: float, truth: tuple[float, float, float]
) -> tuple[float, float, float]:
    """p50, p95 and p99 of a sample of this many requests from a distribution with these percentiles. With few requests,
    the greatest values take their place.

    The logarithm of latency is interpolated linearly between them on the normal scale, and extrapolated linearly
    beyond.
    """
    n = max(1, round(answered))
    logs = [math.log(max(value, 1e-9)) for value in truth]
    found = []
    for level in LEVELS:
        k = min(n, max(1, math.ceil(level * n)))
        at = min(max(random.betavariate(k, n + 1 - k), 1e-9), 1.0 - 1e-9)
        z = _NORMAL.inv_cdf(at)
        low = 0 if z < _Z[1] else 1
        slope = (logs[low + 1] - logs[low]) / (_Z[low + 1] - _Z[low])
        found.append(math.exp(logs[low] + slope * (z - _Z[low])))
    found.sort()
    return found[0], found[1], found[2]
