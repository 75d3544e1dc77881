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
    working set > .8 of the limit, and memory pressure above the pilot's that explains the slow-down:
    at least  EXPLAINED_SHARE (1 - performance / the pilot's);  refaults where the kernel tells no pressure

Where the witness of performance is no work that is done, but CPU time, swapping counts as work. There, a stall of all
tasks for more than  SLOWDOWN / (1 + SLOWDOWN)  of the time, above the pilot's, is such a slow-down, too.

Neither is enough alone: a full limit is what the search is for, and a neighbour's CPU slows as well. Without a
witness of memory an epoch decides nothing and the limit stays; so it does without a witness of performance, unless
memory is short: then the limit counts as bad. An epoch in the crash zone need not
be endured: ``after_epoch(..., urgent=True)`` takes its first ``URGENT_SAMPLES`` samples for the verdict.

Refaults are pages that the group needed and had lost; while there are many, the file cache that it uses is its working
set, whatever list the kernel keeps it on. Where use stays above the limit (anonymous memory without swap cannot be
reclaimed), the limit has no effect any more: the search ends at that use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from perphd.domain.reading import NOT_MEASURED, Reading, Unavailable

LEVELS: Final = ((1.0, 0.6827), (2.0, 0.9545), (3.0, 0.9973))
"""Deviations and level of each interval, the smallest first."""
SLOWDOWN: Final = 0.5
STALLED: Final = SLOWDOWN / (1 + SLOWDOWN)
"""Share of time in which all tasks wait for memory, above the pilot's, that is a slow-down by itself."""
GREATEST_COLLECTION_RATIO: Final = 0.7
FULL_RATIO: Final = 0.8
STEP: Final = 0.05
TOLERANCE: Final = 0.08
LEAST_SAMPLES: Final = 60
URGENT_SAMPLES: Final = 8
"""Right after a limit was lowered the kernel drops some pages that are in use, until it knows them."""
ATTAINED_RATIO: Final = 1.02
"""Use that stays above the limit by this factor shows that the limit cannot be had."""
PRESSURE_MARGIN: Final = 0.02
"""Memory pressure (share of time) that is above the pilot's by less than this is the pilot's."""
EXPLAINED_SHARE: Final = 0.2
"""Pressure counts all tasks that wait at once, so that it shows a part of the time that is lost to memory."""
REFAULT_FACTOR: Final = 2.0
LEAST_REFAULTS_PER_S: Final = 100.0
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
    share of time in garbage collection. ``current_bytes``: all that it used, on average, and ``least_bytes`` at least.
    ``is_work``: False if the performance is time or instructions that swapping takes as well.
    """

    samples: int
    footprint: Mapping[float, int]
    working_set_bytes: Reading
    performance: Reading
    full_pressure_ratio: Reading
    refaults_per_s: Reading
    collection_ratio: Reading
    current_bytes: Reading = NOT_MEASURED
    least_bytes: Reading = NOT_MEASURED
    is_work: bool = True


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
    step: float = STEP
    epoch_samples: int = LEAST_SAMPLES

    @property
    def recommended_bytes(self) -> float | None:
        """The last good limit and a safety; None before there is one."""
        return None if self.last_good_bytes is None else self.last_good_bytes * (1 + SAFETY)


@dataclass(frozen=True, slots=True)
class FitView:
    """A search as people see it. ``limit_bytes``: in force now; ``estimate_bytes``: of the last epoch's footprint."""

    workload: str
    phase: str
    epochs: int
    samples: int
    epoch_samples: int
    limit_bytes: int | None
    last_good_bytes: float | None
    first_bad_bytes: float | None
    recommended_bytes: float | None
    estimate_bytes: Reading
    crashes: int
    witness: str
    applied: bool
    reason: str


_NONE_LEFT: Final = "no limit is left to try between the last good and the first bad"


def evidence(fit: MemoryFit, epoch: FitEpoch) -> Evidence:
    """Whether an epoch was slow, and whether memory was why; None where no witness can tell."""
    if fit.pilot is None:
        return Evidence(None, None, "no pilot to compare with")
    slow, memory = _is_slow(fit.pilot, epoch), _starved(fit, epoch)
    told = {None: "unknown", True: "yes", False: "no"}
    return Evidence(
        slow, memory, f"slow: {told[slow]}, memory short: {told[memory]} ({_figures(fit.pilot, epoch)})"
    )


def _figures(pilot: FitEpoch, epoch: FitEpoch) -> str:
    """What the witnesses said, as far as they said anything."""
    found = []
    if not isinstance(epoch.performance, Unavailable) and not isinstance(pilot.performance, Unavailable):
        kept = epoch.performance / pilot.performance if pilot.performance > 0 else 0.0
        found.append(f"{kept:.0%} of the pilot's work")
    if not isinstance(epoch.full_pressure_ratio, Unavailable):
        found.append(f"stalled on memory {epoch.full_pressure_ratio:.1%}")
    if not isinstance(epoch.refaults_per_s, Unavailable):
        found.append(f"{epoch.refaults_per_s:.0f} refaults/s")
    if not isinstance(epoch.collection_ratio, Unavailable):
        found.append(f"garbage collection {epoch.collection_ratio:.0%}")
    return ", ".join(found) or "nothing was measured"


def is_crash(fit: MemoryFit, epoch: FitEpoch) -> bool:
    """Whether an epoch, or its beginning, lies in the crash zone without a doubt."""
    if fit.limit_bytes is None or epoch.samples < URGENT_SAMPLES:
        return False
    return _is_bad(fit, epoch)


def _is_bad(fit: MemoryFit, epoch: FitEpoch) -> bool:
    """A witness of performance that falls silent while memory is short does not speak for the limit."""
    return fit.pilot is not None and bool(_starved(fit, epoch)) and _is_slow(fit.pilot, epoch) is not False


def after_epoch(fit: MemoryFit, epoch: FitEpoch, *, urgent: bool = False) -> MemoryFit:
    """The search after one epoch under ``fit.limit_bytes``; its new limit is the action that is to be taken."""
    if fit.phase is FitPhase.CONVERGED:
        return fit
    if epoch.samples < fit.epoch_samples and not (urgent and is_crash(fit, epoch)):
        return replace(fit, reason=f"{epoch.samples} of {fit.epoch_samples} samples: the epoch goes on")
    if fit.pilot is None or fit.limit_bytes is None:
        return _piloted(fit, epoch)
    seen = evidence(fit, epoch)
    if _is_bad(fit, epoch):
        return _crashed(fit, fit.limit_bytes, seen)
    least = epoch.least_bytes
    if not seen.slow and not isinstance(least, Unavailable) and least > ATTAINED_RATIO * fit.limit_bytes:
        found = replace(fit, phase=FitPhase.CONVERGED, last_good_bytes=least)
        reason = "what it uses cannot be reclaimed: the limit has no effect any more"
        return replace(found, limit_bytes=found.recommended_bytes, reason=reason)
    if seen.slow is None or seen.memory is None or seen.slow:
        return replace(fit, reason=f"{seen.reason}: the limit stays")
    return _lowered(replace(fit, last_good_bytes=fit.limit_bytes), fit.limit_bytes, epoch)


def after_harm(fit: MemoryFit) -> MemoryFit:
    """The search after its limit was in force while the application was degraded: whatever harmed it, that is bad.

    A neighbour may have done it; the result is then larger than it had to be, and never harmful.
    """
    if fit.limit_bytes is None:
        return fit
    return _crashed(
        fit, fit.limit_bytes, Evidence(None, None, "the application was degraded under this limit")
    )


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
                fit, phase=FitPhase.CONVERGED, limit_bytes=fit.recommended_bytes, reason=_NONE_LEFT
            )
        middle = (limit + fit.first_bad_bytes) / 2
        figures = "" if fit.pilot is None else f" ({_figures(fit.pilot, epoch)})"
        return replace(
            fit, phase=FitPhase.BISECT, limit_bytes=middle, reason=f"good: the gap is halved{figures}"
        )
    lower = max(estimate_of_container(epoch.footprint), (1 - fit.step) * limit)
    if lower >= limit:
        return replace(
            fit,
            phase=FitPhase.CONVERGED,
            limit_bytes=fit.recommended_bytes,
            reason="the estimate is the limit",
        )
    figures = "" if fit.pilot is None else f" ({_figures(fit.pilot, epoch)})"
    return replace(fit, limit_bytes=lower, reason=f"good: the next limit is lower{figures}")


def _crashed(fit: MemoryFit, limit: float, seen: Evidence) -> MemoryFit:
    peak = max(fit.pilot.footprint) if fit.pilot else limit
    good = fit.last_good_bytes if fit.last_good_bytes is not None else peak
    found = replace(fit, last_good_bytes=good, first_bad_bytes=limit, crashes=fit.crashes + 1)
    if limit >= good * (1 - TOLERANCE):
        return replace(
            found,
            phase=FitPhase.CONVERGED,
            limit_bytes=found.recommended_bytes,
            reason=f"{seen.reason}; {_NONE_LEFT}",
        )
    return replace(
        found, phase=FitPhase.BISECT, limit_bytes=good, reason=f"{seen.reason}: the last good limit returns"
    )


def _is_slow(pilot: FitEpoch, epoch: FitEpoch) -> bool | None:
    """CPU time goes on where all of it is spent on swapping: there, stalls on memory alone are a slow-down, too."""
    if not epoch.is_work and _stalled(pilot.full_pressure_ratio, epoch.full_pressure_ratio):
        return True
    return _slow(pilot.performance, epoch.performance)


def _slow(pilot: Reading, now: Reading) -> bool | None:
    if isinstance(pilot, Unavailable) or isinstance(now, Unavailable):
        return None
    return now <= 0 or pilot / now - 1 > SLOWDOWN


def _stalled(pilot: Reading, now: Reading) -> bool:
    """Whether all tasks wait for memory so long that it is a slow-down."""
    if isinstance(pilot, Unavailable) or isinstance(now, Unavailable):
        return False
    return now - pilot > STALLED


def _starved(fit: MemoryFit, epoch: FitEpoch) -> bool | None:
    """Whether any witness says that memory is short; False only if one could have said so and none did."""
    share = epoch.collection_ratio
    if not isinstance(share, Unavailable) and share > GREATEST_COLLECTION_RATIO:
        return True
    unseen = None if isinstance(share, Unavailable) else False
    if isinstance(epoch.working_set_bytes, Unavailable) or fit.limit_bytes is None or fit.pilot is None:
        return unseen
    margin = max(PRESSURE_MARGIN, EXPLAINED_SHARE * _lost(fit.pilot.performance, epoch.performance))
    pressed = _above(fit.pilot.full_pressure_ratio, epoch.full_pressure_ratio, lambda before: before + margin)
    refaulting = _above(
        fit.pilot.refaults_per_s,
        epoch.refaults_per_s,
        lambda before: max(REFAULT_FACTOR * before, LEAST_REFAULTS_PER_S),
    )
    if pressed is None and refaulting is None:
        return unseen
    held = epoch.working_set_bytes
    short = refaulting if pressed is None else pressed
    if refaulting and not isinstance(epoch.current_bytes, Unavailable):
        held = max(held, epoch.current_bytes)
    return held > FULL_RATIO * fit.limit_bytes and bool(short)


def _lost(pilot: Reading, now: Reading) -> float:
    """The share of the pilot's performance that is missing; 0 where nobody knows."""
    if isinstance(pilot, Unavailable) or isinstance(now, Unavailable) or pilot <= 0:
        return 0.0
    return max(0.0, 1.0 - now / pilot)


def _above(pilot: Reading, now: Reading, bound: Callable[[float], float]) -> bool | None:
    if isinstance(pilot, Unavailable) or isinstance(now, Unavailable):
        return None
    return now > bound(pilot)
