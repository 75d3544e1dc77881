"""Memory fit: the smallest memory limit under which a workload still runs near its best (MEER; Xu 2019, chapter 3).

Estimate. A footprint is a histogram of a container's memory use x with frequencies P(x). m tasks run in the
container; a task's use is normal with mean mu and deviation sigma, so that the container's intervals are  m (mu +-
z sigma), z = 1, 2, 3, with levels .6827, .9545, .9973:

    R = sum over x of  x P(x) gamma(x),      gamma(x) = level of the smallest interval that holds x

What lies outside all intervals is not defined in the publication. ``OutsideWeight.KEEP`` gives it the weight 1 and
is the default: of all readings, those that keep it alone over-estimate without a dangerous under-estimate.
``DROP`` gives it 0.

Search. An epoch is one phase of the workload, at least ``LEAST_SAMPLES`` samples, under a limit R:

    R(n) = max(estimate of epoch n - 1,  (1 - STEP) R(n - 1))

The plain recursion does not stop by itself and overshoots by half, therefore the step. The search ends at the
first epoch in the crash zone, with an immediate return to the last good limit; if more than ``TOLERANCE`` lies
between that and the first bad one, it goes on halving the gap. The crash zone is a slow-down of more than
``SLOWDOWN`` *and* evidence that memory is its cause:

    share of time in garbage collection > .7,   or
    working set > .8 of the limit, and memory pressure or refaults above the pilot's

Neither is enough alone: a full limit is what the search is for, and a neighbour's CPU slows as well. Without a
witness of performance, or of memory, an epoch decides nothing and the limit stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from perphd.domain.reading import Reading, Unavailable

LEVELS: Final = ((1.0, 0.6827), (2.0, 0.9545), (3.0, 0.9973))
"""Deviations and level of each interval, the smallest first."""
SLOWDOWN: Final = 0.5
GREATEST_COLLECTION_RATIO: Final = 0.7
FULL_RATIO: Final = 0.8
STEP: Final = 0.07
TOLERANCE: Final = 0.08
LEAST_SAMPLES: Final = 60
PRESSURE_MARGIN: Final = 0.02
"""Memory pressure (share of time) that is above the pilot's by less than this is the pilot's."""
REFAULT_FACTOR: Final = 2.0
LEAST_REFAULTS_PER_S: Final = 10.0
SAFETY: Final = 0.05
"""The recommendation stands this share above the last good limit."""


class OutsideWeight(Enum):
    """Weight of what lies outside the widest interval."""

    KEEP = 1.0
    DROP = 0.0


def estimate_bytes(
    footprint: Mapping[float, int],
    task_mean: float,
    task_deviation: float,
    tasks: int,
    outside: OutsideWeight = OutsideWeight.KEEP,
) -> float:
    """The estimate from a footprint {bytes: samples} and a task's mean and deviation."""
    samples = sum(footprint.values())
    if samples <= 0:
        raise ValueError("a footprint has samples")
    return sum(
        used * count / samples * _level(used, tasks * task_mean, tasks * task_deviation, outside)
        for used, count in footprint.items()
    )


def estimate_of_container(
    footprint: Mapping[float, int], outside: OutsideWeight = OutsideWeight.KEEP
) -> float:
    """The estimate around the container's own mean and deviation, where there is no pilot of single tasks."""
    samples = sum(footprint.values())
    if samples <= 0:
        raise ValueError("a footprint has samples")
    mean = sum(used * count for used, count in footprint.items()) / samples
    deviation = (sum((used - mean) ** 2 * count for used, count in footprint.items()) / samples) ** 0.5
    return estimate_bytes(footprint, mean, deviation, 1, outside)


def _level(used: float, mean: float, deviation: float, outside: OutsideWeight) -> float:
    for deviations, level in LEVELS:
        if abs(used - mean) <= deviations * deviation:
            return level
    return outside.value


class FitPhase(Enum):
    """How far a search is."""

    PILOT = "pilot"
    SEARCH = "search"
    BISECT = "bisect"
    CONVERGED = "converged"


@dataclass(frozen=True, slots=True)
class FitEpoch:
    """What one epoch showed.

    ``performance``: work per second, any unit. ``working_set_bytes``: anonymous and active file memory, at most.
    ``full_pressure_ratio``: share of time in which all tasks waited for memory. ``collection_ratio``: a JVM's
    share of time in garbage collection.
    """

    samples: int
    footprint: Mapping[float, int]
    working_set_bytes: Reading
    performance: Reading
    full_pressure_ratio: Reading
    refaults_per_s: Reading
    collection_ratio: Reading


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the witnesses say of one epoch, and in what words."""

    slow: bool | None
    memory: bool | None
    reason: str


@dataclass(frozen=True, slots=True)
class MemoryFit:
    """A search: its phase, the limit of the running epoch (None: none), the bounds found, and the pilot's epoch."""

    phase: FitPhase = FitPhase.PILOT
    limit_bytes: float | None = None
    last_good_bytes: float | None = None
    first_bad_bytes: float | None = None
    pilot: FitEpoch | None = None
    crashes: int = 0
    reason: str = "no epoch yet"

    @property
    def recommended_bytes(self) -> float | None:
        """The last good limit and a safety; None before there is one."""
        return None if self.last_good_bytes is None else self.last_good_bytes * (1 + SAFETY)


def evidence(fit: MemoryFit, epoch: FitEpoch) -> Evidence:
    """Whether an epoch was slow, and whether memory was why; None where no witness can tell."""
    if fit.pilot is None:
        return Evidence(None, None, "no pilot to compare with")
    slow = _slow(fit.pilot.performance, epoch.performance)
    memory = _starved(fit, epoch)
    told = {None: "unknown", True: "yes", False: "no"}
    return Evidence(slow, memory, f"slow: {told[slow]}, memory short: {told[memory]}")


def after_epoch(fit: MemoryFit, epoch: FitEpoch) -> MemoryFit:
    """The search after one epoch under ``fit.limit_bytes``; its new limit is the action that is to be taken."""
    if fit.phase is FitPhase.CONVERGED:
        return fit
    if epoch.samples < LEAST_SAMPLES:
        return replace(fit, reason=f"{epoch.samples} of {LEAST_SAMPLES} samples: the epoch goes on")
    if fit.pilot is None or fit.limit_bytes is None:
        return _piloted(fit, epoch)
    seen = evidence(fit, epoch)
    if seen.slow and seen.memory:
        return _crashed(fit, fit.limit_bytes, seen)
    if seen.slow is None or seen.memory is None or seen.slow:
        return replace(fit, reason=f"{seen.reason}: the limit stays")
    return _lowered(replace(fit, last_good_bytes=fit.limit_bytes), fit.limit_bytes, epoch)


def _piloted(fit: MemoryFit, epoch: FitEpoch) -> MemoryFit:
    if isinstance(epoch.performance, Unavailable):
        return replace(fit, reason=f"no witness of performance: {epoch.performance.reason}")
    peak = max(epoch.footprint)
    return replace(
        fit,
        phase=FitPhase.SEARCH,
        pilot=epoch,
        limit_bytes=peak,
        reason="pilot done: its peak is the first limit",
    )


def _lowered(fit: MemoryFit, limit: float, epoch: FitEpoch) -> MemoryFit:
    if fit.first_bad_bytes is not None:
        if fit.first_bad_bytes >= limit * (1 - TOLERANCE):
            return replace(
                fit, phase=FitPhase.CONVERGED, limit_bytes=fit.recommended_bytes, reason="converged"
            )
        middle = (limit + fit.first_bad_bytes) / 2
        return replace(fit, phase=FitPhase.BISECT, limit_bytes=middle, reason="good: the gap is halved")
    lower = max(estimate_of_container(epoch.footprint), (1 - STEP) * limit)
    if lower >= limit:
        return replace(
            fit,
            phase=FitPhase.CONVERGED,
            limit_bytes=fit.recommended_bytes,
            reason="the estimate is the limit",
        )
    return replace(fit, limit_bytes=lower, reason="good: the next limit is lower")


def _crashed(fit: MemoryFit, limit: float, seen: Evidence) -> MemoryFit:
    peak = max(fit.pilot.footprint) if fit.pilot else limit
    good = fit.last_good_bytes if fit.last_good_bytes is not None else peak
    found = replace(fit, last_good_bytes=good, first_bad_bytes=limit, crashes=fit.crashes + 1)
    if limit >= good * (1 - TOLERANCE):
        return replace(
            found,
            phase=FitPhase.CONVERGED,
            limit_bytes=found.recommended_bytes,
            reason=f"{seen.reason}: converged",
        )
    return replace(
        found, phase=FitPhase.BISECT, limit_bytes=good, reason=f"{seen.reason}: the last good limit returns"
    )


def _slow(pilot: Reading, now: Reading) -> bool | None:
    if isinstance(pilot, Unavailable) or isinstance(now, Unavailable):
        return None
    return now <= 0 or pilot / now - 1 > SLOWDOWN


def _starved(fit: MemoryFit, epoch: FitEpoch) -> bool | None:
    """Whether any witness says that memory is short; False only if one could have said so and none did."""
    share = epoch.collection_ratio
    if not isinstance(share, Unavailable) and share > GREATEST_COLLECTION_RATIO:
        return True
    unseen = None if isinstance(share, Unavailable) else False
    if isinstance(epoch.working_set_bytes, Unavailable) or fit.limit_bytes is None or fit.pilot is None:
        return unseen
    pressed = _above(
        fit.pilot.full_pressure_ratio, epoch.full_pressure_ratio, lambda before: before + PRESSURE_MARGIN
    )
    refaulting = _above(
        fit.pilot.refaults_per_s,
        epoch.refaults_per_s,
        lambda before: max(REFAULT_FACTOR * before, LEAST_REFAULTS_PER_S),
    )
    if pressed is None and refaulting is None:
        return unseen
    return epoch.working_set_bytes > FULL_RATIO * fit.limit_bytes and bool(pressed or refaulting)


def _above(pilot: Reading, now: Reading, bound: Callable[[float], float]) -> bool | None:
    if isinstance(pilot, Unavailable) or isinstance(now, Unavailable):
        return None
    return now > bound(pilot)
