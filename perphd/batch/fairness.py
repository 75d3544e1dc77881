"""Chooses among waiting jobs without starvation (Prophet, ICAC 2016).

Each job becomes overdue three times the average wait after its arrival. An overdue job starts before all
others, as soon as it fits. Otherwise the choice is among the longest-waiting half, by how well a job fits the
resources that will be available.

``next_start`` is the published rule: it omits jobs that would over-allocate too much, and the half that arrived last.
The queue of a host (``perphd.batch.choice``) uses the same tiers. It also considers the half that arrived last, after
the other half, because a host that has room for a job should not leave it waiting.
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


@dataclass(frozen=True, slots=True)
class StartTiers:
    """Waiting jobs in tiers of decreasing precedence, each ordered by arrival.

    ``longest``: the longest-waiting half without overdue jobs. ``others``: the rest.
    """

    overdue: tuple[StartCandidate, ...]
    longest: tuple[StartCandidate, ...]
    others: tuple[StartCandidate, ...]


def overdue_after(arrived_s: float, average_wait_s: float) -> float:
    """The time from which a job that arrived at ``arrived_s`` is overdue."""
    return arrived_s + PATIENCE * average_wait_s


def longest_waiting(waiting: Sequence[StartCandidate], among: int | None = None) -> list[StartCandidate]:
    """The longest-waiting half, rounded up, longest first.

    ``among``: the number of all waiting jobs, if ``waiting`` are only those that have waited longest.
    """
    return sorted(waiting, key=_by_arrival)[: math.ceil((len(waiting) if among is None else among) / 2)]


def tiers(waiting: Sequence[StartCandidate], now_s: float, among: int | None = None) -> StartTiers:
    """Divide the waiting jobs into tiers. The longest-waiting half is half of all jobs, overdue ones included.

    ``among``: the number of all waiting jobs, if ``waiting`` are only those that have waited longest.
    """
    order, longest = sorted(waiting, key=_by_arrival), longest_waiting(waiting, among)
    return StartTiers(
        tuple(job for job in order if now_s > job.overdue_s),
        tuple(job for job in longest if now_s <= job.overdue_s),
        tuple(job for job in order[len(longest) :] if now_s <= job.overdue_s),
    )


def by_fit(job: StartCandidate) -> tuple[float, float, str]:
    """Sorting key: the best fit first, then the oldest."""
    return job.distance, job.arrived_s, job.name


def next_start(
    waiting: Sequence[StartCandidate], now_s: float, greatest_over_ratio: float = GREATEST_OVER_RATIO
) -> StartCandidate | None:
    """The job to start next, or None if none may start now."""
    found = tiers(waiting, now_s)
    overdue = next((job for job in found.overdue if job.fits), None)
    if overdue is not None:
        return overdue
    suited = [job for job in found.longest if job.fits and job.over_ratio <= greatest_over_ratio]
    return min(suited, key=by_fit, default=None)


def _by_arrival(job: StartCandidate) -> tuple[float, str]:
    return job.arrived_s, job.name
