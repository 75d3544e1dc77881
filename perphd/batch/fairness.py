"""Which waiting jobs may be chosen, without starvation (Prophet, ICAC 2016).

Each job becomes overdue three times the average wait after its arrival. An overdue job starts before all
others, as soon as it fits. Otherwise the choice is among the longest-waiting half, by how well a job fits the
resources that will be available. Jobs that would over-allocate too much are left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from perphd.qos.availability import GREATEST_OVER_RATIO

PATIENCE: Final = 3.0
"""Multiple of the average wait after which a job goes first."""


@dataclass(frozen=True, slots=True)
class StartCandidate:
    """A waiting job: whether its CPU and memory fit, and how it fits the shared resources.

    ``distance`` and ``over_ratio`` are those of ``perphd.qos.availability``.
    """

    name: str
    arrived_s: float
    overdue_s: float
    fits: bool
    distance: float = 0.0
    over_ratio: float = 0.0


def overdue_after(arrived_s: float, average_wait_s: float) -> float:
    """The time from which a job that arrives now goes first."""
    return arrived_s + PATIENCE * average_wait_s


def longest_waiting(waiting: Sequence[StartCandidate]) -> list[StartCandidate]:
    """The longest-waiting half, rounded up, longest first."""
    return sorted(waiting, key=lambda job: (job.arrived_s, job.name))[: math.ceil(len(waiting) / 2)]


def next_start(
    waiting: Sequence[StartCandidate], now_s: float, greatest_over_ratio: float = GREATEST_OVER_RATIO
) -> StartCandidate | None:
    """The job to start next, or None if none may start now."""
    overdue = [job for job in waiting if job.fits and now_s > job.overdue_s]
    if overdue:
        return min(overdue, key=lambda job: (job.arrived_s, job.name))
    suited = [job for job in longest_waiting(waiting) if job.fits and job.over_ratio <= greatest_over_ratio]
    return min(suited, key=lambda job: (job.distance, job.arrived_s, job.name), default=None)
