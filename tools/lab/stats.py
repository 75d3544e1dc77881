"""Statistics over the lab's records. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

SUSTAIN = 3
"""Seconds over which the mean must meet the target before it counts as reached."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and extremes of a figure over repetitions."""

    median: float
    low: float
    high: float
    count: int


def spread(values: Sequence[float | None]) -> Spread | None:
    """The spread of these measurements; None if there are none."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return Spread(statistics.median(known), min(known), max(known), len(known))


def ratio(value: float | None, reference: float | None) -> float | None:
    """value / reference; None if either is missing or the reference is 0."""
    if value is None or reference is None or reference == 0:
        return None
    return value / reference


def recovery_s(
    ends_s: Sequence[float], values: Sequence[float], good: Callable[[float], bool], sustain: int = SUSTAIN
) -> float | None:
    """Time from 0 until the target is met and stays met.

    ``ends_s``: when each interval ended, in seconds after the antagonist's start; ``values``: its measurement. The
    answer is the end of the first interval that is good and opens ``sustain`` intervals whose mean is good (single
    seconds swing by a third even undisturbed; fewer at the end of the record do not count); None: never. A workload
    that was never disturbed recovers at the end of its first interval.
    """
    for index in range(len(values) - sustain + 1):
        if good(values[index]) and good(sum(values[index : index + sustain]) / sustain):
            return ends_s[index]
    return None


def share_good(values: Sequence[float], good: Callable[[float], bool]) -> float | None:
    """Share of the intervals that met the target; None without intervals."""
    if not values:
        return None
    return sum(1 for value in values if good(value)) / len(values)


def rotated(names: Sequence[str], repetition: int) -> list[str]:
    """The order of a repetition: rotated a little further each time, every second one reversed.

    No scheme then always follows the same other scheme, or is always early or late.
    """
    if not names:
        return []
    turn = (repetition + repetition % 2) % len(names)
    order = [*names[turn:], *names[:turn]]
    return order[::-1] if repetition % 2 else order
