"""Load traces: factors on an LRA's load over time. Pure functions of the time in seconds."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol


class LoadTrace(Protocol):
    """A factor on the specified load as a function of time."""

    def at(self, now_s: float) -> float:
        """The factor at this time; not negative."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Piecewise constant: each factor applies from its time on; 1 before the first."""

    steps: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        if list(self.steps) != sorted(self.steps):
            raise ValueError("steps must be in order of time")

    def at(self, now_s: float) -> float:
        """The factor of the last step at or before this time."""
        index = bisect_right(self.steps, now_s, key=lambda step: step[0])
        return self.steps[index - 1][1] if index else 1.0


@dataclass(frozen=True, slots=True)
class Diurnal:
    """A daily cycle: a cosine with its minimum at the start of a period and its maximum in the middle."""

    low: float
    high: float
    period_s: float = 86_400.0

    def at(self, now_s: float) -> float:
        """The factor at this time of the day."""
        phase = 0.5 - 0.5 * math.cos(2.0 * math.pi * now_s / self.period_s)
        return self.low + (self.high - self.low) * phase


@dataclass(frozen=True, slots=True)
class Bursts:
    """``base`` with bursts to ``peak`` of length ``length_s`` at random times, on average every ``every_s``.

    The same seed gives the same bursts.
    """

    base: float = 1.0
    peak: float = 2.0
    every_s: float = 60.0
    length_s: float = 5.0
    seed: int = 0
    until_s: float = 86_400.0
    _starts: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        random, now, starts = Random(self.seed), 0.0, []
        while now < self.until_s:
            now += self.length_s + random.expovariate(1.0 / max(self.every_s - self.length_s, 1e-9))
            starts.append(now)
        object.__setattr__(self, "_starts", tuple(starts))

    def at(self, now_s: float) -> float:
        """``peak`` within a burst, else ``base``."""
        index = bisect_right(self._starts, now_s)
        inside = index > 0 and now_s < self._starts[index - 1] + self.length_s
        return self.peak if inside else self.base


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Recorded arrivals, counted in bins of ``bin_s``. The factor is a bin's count relative to the mean count. The
    trace repeats after its end.
    """

    counts: tuple[float, ...]
    bin_s: float

    @classmethod
    def of(cls, times_s: Sequence[float], bin_s: float) -> Arrivals:
        """Count arrival times (s, from 0, in any order) into bins of ``bin_s``."""
        counts = [0.0] * (int(max(times_s) // bin_s) + 1)
        for time_s in times_s:
            counts[int(time_s // bin_s)] += 1.0
        return cls(tuple(counts), bin_s)

    def at(self, now_s: float) -> float:
        """The factor of the bin in which this time lies."""
        mean = sum(self.counts) / len(self.counts)
        return self.counts[int(now_s // self.bin_s) % len(self.counts)] / mean
