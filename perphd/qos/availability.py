"""Availability of a shared resource over time, and the fit of a job's demand (Prophet, ICAC 2016).

A running job has a peak demand in each of its stages. Between the breakpoints of all running jobs, the
available amount is constant:

    A(t) = capacity - sum of the running jobs' peaks at t          negative: over-allocated

A candidate with n stages of peak P_k is compared with that timeline. For each interval of length d in which
stage k meets a constant A:

    unused F += (A - P_k) d w_k  if P_k < A        w_k = 1 - k / n: near stages are predicted better
    over   O += (P_k - A) d w_k  if P_k > A
    overall   = 0.7 O + 0.3 F

The published sums only cover intervals that lie within one stage, and ignore those that straddle a stage
boundary. The intervals here are therefore those between the breakpoints of both.

The candidate with the smallest norm over all resources fits best. Each resource is divided by its capacity
and by the candidate's length, so that devices of different speed have equal weight.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

ETA: Final = 0.3
"""Weight of unused resources; over-allocated ones weigh 1 - ETA."""
GREATEST_OVER_RATIO: Final = 0.15
"""Over-allocation, as a share of capacity x duration, above which a job waits unless it is overdue."""


@dataclass(frozen=True, slots=True)
class DemandStage:
    """A job's peak demand from ``start_s`` to ``end_s``, in the resource's unit (bytes/s, ways ...)."""

    start_s: float
    end_s: float
    peak: float


@dataclass(frozen=True, slots=True)
class AvailableInterval:
    """The amount of a resource that is free from ``start_s`` to ``end_s`` (infinity for the last interval)."""

    start_s: float
    end_s: float
    available: float


@dataclass(frozen=True, slots=True)
class ResourceFit:
    """The fit of a candidate to one resource: unused and over-allocated areas, in the resource's unit x s."""

    unused: float
    over: float

    @property
    def overall(self) -> float:
        """Weighted sum of both areas; a lower value is a better fit."""
        return (1.0 - ETA) * self.over + ETA * self.unused


def availability(capacity: float, running: Sequence[Sequence[DemandStage]]) -> tuple[AvailableInterval, ...]:
    """The free amount from time 0 on: constant between the merged breakpoints of all running jobs."""
    stages = [stage for job in running for stage in job if stage.end_s > max(0.0, stage.start_s)]
    times = sorted({0.0, *(max(0.0, t) for stage in stages for t in (stage.start_s, stage.end_s))})
    line: list[AvailableInterval] = []
    for start_s, end_s in zip(times, [*times[1:], math.inf], strict=True):
        demanded = math.fsum(
            stage.peak for stage in stages if stage.start_s <= start_s and stage.end_s >= end_s
        )
        free = capacity - demanded
        same = bool(line) and line[-1].available == free
        line.append(AvailableInterval(line.pop().start_s if same else start_s, end_s, free))
    return tuple(line)


def fit(candidate: Sequence[DemandStage], line: Sequence[AvailableInterval]) -> ResourceFit:
    """Unused and over-allocated areas if ``candidate`` started at 0."""
    unused = over = 0.0
    for k, stage in enumerate(candidate):
        weight = 1.0 - k / len(candidate)
        for interval in line:
            overlap_s = min(interval.end_s, stage.end_s) - max(interval.start_s, stage.start_s)
            if overlap_s > 0:
                spare = interval.available - stage.peak
                unused += max(0.0, spare) * overlap_s * weight
                over += max(0.0, -spare) * overlap_s * weight
    return ResourceFit(unused, over)


def distance(fits: Mapping[str, ResourceFit], capacities: Mapping[str, float], length_s: float) -> float:
    """The norm over all resources, each as a share of its capacity and of the candidate's length."""
    if length_s <= 0:
        return 0.0
    return math.hypot(*(each.overall / (capacities[name] * length_s) for name, each in fits.items()))


def over_ratio(fits: Mapping[str, ResourceFit], capacities: Mapping[str, float], length_s: float) -> float:
    """The over-allocation of all resources, each as a share of capacity x duration, added up."""
    if length_s <= 0:
        return 0.0
    return sum(each.over / (capacities[name] * length_s) for name, each in fits.items())
