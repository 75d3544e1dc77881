"""Readings: a measured number, or Unavailable with the reason. Never a silent 0."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, TypeGuard


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A missing value, with the reason. Arithmetic with it is a type error by design."""

    reason: str

    def __bool__(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class Awaited(Unavailable):
    """No value yet: the next reading is not due, and the last one stays valid until then."""


Reading: TypeAlias = float | Unavailable

NOT_MEASURED = Unavailable("not measured")


def available(reading: Reading) -> TypeGuard[float]:
    """True if the reading is a number."""
    return not isinstance(reading, Unavailable)


def value_or(reading: Reading, default: float) -> float:
    """The number, or ``default``. For displays, and for features that carry a separate missing flag."""
    return default if isinstance(reading, Unavailable) else reading


def ratio(numerator: Reading, denominator: Reading, what: str) -> Reading:
    """``numerator / denominator``; Unavailable if one of them is Unavailable, or if the denominator is not above 0.

    ``what`` names the ratio in the reason.
    """
    if isinstance(numerator, Unavailable):
        return numerator
    if isinstance(denominator, Unavailable):
        return denominator
    if denominator <= 0:
        return Unavailable(f"{what}: nothing to divide by in this interval")
    return numerator / denominator


def fmap(function: Callable[[float], float], reading: Reading) -> Reading:
    """Apply ``function`` to the number; pass an Unavailable through unchanged."""
    return reading if isinstance(reading, Unavailable) else function(reading)
