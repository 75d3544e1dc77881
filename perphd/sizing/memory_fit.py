"""Memory fit: the smallest memory limit under which a workload still runs near its best (MEER; Xu 2019, chapter 3).

Estimate. A footprint is a histogram of a container's memory use x with frequencies P(x). m tasks run in the
container; a task's use is normal with mean mu and deviation sigma, so that the container's intervals are  m
(mu +- z sigma), z = 1, 2, 3, with levels .6827, .9545, .9973:

    R = sum over x of  x P(x) gamma(x),      gamma(x) = level of the smallest interval that holds x

The publication does not define gamma outside all intervals. ``OutsideWeight.KEEP`` gives such values the
weight 1 and is the default: it is the only variant that over-estimates without a dangerous under-estimate.
``DROP`` gives them 0.

Search. An epoch is one phase of the workload, at least ``LEAST_SAMPLES`` samples, under a limit R:

    R(n) = max(estimate of epoch n - 1,  (1 - STEP) R(n - 1))

The plain recursion does not stop by itself and overshoots by half; the step prevents this. At the first epoch in
the crash zone, the last good limit returns at once. The search ends if the first bad limit is at most ``TOLERANCE``
below the last good one; otherwise it continues by bisection. The crash zone is a slowdown of more than ``SLOWDOWN``
*and* evidence that memory is its cause:

    share of time in garbage collection > .7,   or
    working set > .8 of the limit, and memory pressure above the pilot's that explains the slowdown:
        at least  EXPLAINED_SHARE (1 - performance / the pilot's);  refaults if the kernel reports no pressure

If performance is measured as CPU time rather than completed work, swapping counts as work. A stall of all
tasks for more than  SLOWDOWN / (1 + SLOWDOWN)  of the time, above the pilot's, then counts as a slowdown as
well.

Neither condition is enough alone: a full limit is the aim of the search, and CPU contention also slows a
workload. Without a memory signal an epoch decides nothing and the limit stays. The same holds without a
performance signal, unless memory is short: then the limit counts as bad. An epoch in the crash zone can be
cut short: ``after_epoch(..., urgent=True)`` decides from its first ``URGENT_SAMPLES`` samples.

Refaults are reads of pages that the group needed and had lost. While there are many, the file cache in use
belongs to the working set, whichever list the kernel keeps it on. If use stays above the limit (anonymous
memory without swap cannot be reclaimed), the limit has no effect, and the search ends at that use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from perphd.domain.reading import NOT_MEASURED, Reading, Unavailable

LEVELS: Final = ((1.0, 0.6827), (2.0, 0.9545), (3.0, 0.9973))
"""Width (in standard deviations) and level of each interval, the narrowest first."""
SLOWDOWN: Final = 0.5
STALLED: Final = SLOWDOWN / (1 + SLOWDOWN)
"""Share of time, above the pilot's, in which all tasks wait for memory, that counts as a slowdown by itself."""
GREATEST_COLLECTION_RATIO: Final = 0.7
FULL_RATIO: Final = 0.8
STEP: Final = 0.05
TOLERANCE: Final = 0.08
LEAST_SAMPLES: Final = 60
URGENT_SAMPLES: Final = 8
"""Number of samples that an urgent verdict needs. Just after a limit is lowered, the kernel drops some pages in use."""
ATTAINED_RATIO: Final = 1.02
"""Ratio of use to limit. If use stays above this ratio, the limit cannot be attained."""
PRESSURE_MARGIN: Final = 0.02
"""Memory pressure (share of time) above the pilot's that still counts as equal."""
EXPLAINED_SHARE: Final = 0.2
"""Share of a slowdown that pressure must explain. Pressure counts only stalls of all tasks at once."""
REFAULT_FACTOR: Final = 2.0
LEAST_REFAULTS_PER_S: Final = 100.0
SAFETY: Final = 0.05
"""Margin of the recommendation above the last good limit, as a share."""


class OutsideWeight(Enum):
    """Weight of values outside the widest interval."""

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
        raise ValueError("the footprint has no samples; at least 1 is needed")
    return sum(
        used * count / samples * _level(used, tasks * task_mean, tasks * task_deviation, outside)
        for used, count in footprint.items()
    )


def estimate_of_container(
    footprint: Mapping[float, int], outside: OutsideWeight = OutsideWeight.KEEP
) -> float:
    """The estimate from the container's own mean and deviation, for use without a pilot of single tasks."""
    samples = sum(footprint.values())
    if samples <= 0:
        raise ValueError("the footprint has no samples; at least 1 is needed")
    mean = sum(used * count for used, count in footprint.items()) / samples
    deviation = (sum((used - mean) ** 2 * count for used, count in footprint.items()) / samples) ** 0.5
    return estimate_bytes(footprint, mean, deviation, 1, outside)


def _level(used: float, mean: float, deviation: float, outside: OutsideWeight) -> float:
    for deviations, level in LEVELS:
        if abs(used - mean) <= deviations * deviation:
            return level
    return outside.value


class FitPhase(Enum):
    """The phase of a search."""

    PILOT = "pilot"
    SEARCH = "search"
    BISECT = "bisect"
    CONVERGED = "converged"


@dataclass(frozen=True, slots=True)
class FitEpoch:
    """Measurements of one epoch.

    ``performance``: work per second, in any unit. ``working_set_bytes``: peak of anonymous and active file
    memory. ``full_pressure_ratio``: share of time in which all tasks waited for memory. ``collection_ratio``:
    share of time that a JVM spent in garbage collection. ``current_bytes``: mean total use; ``least_bytes``:
    its minimum. ``is_work``: False if the performance is CPU time or instructions, which swapping consumes as
    well.
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
class FitEvidence:
    """Whether an epoch was slow and short of memory, with an explanation. None: no signal."""

    slow: bool | None
    memory: bool | None
    reason: str


@dataclass(frozen=True, slots=True)
class MemoryFit:
    """A search: its phase, the running epoch's limit (None: no limit), the bounds found, and the pilot's epoch."""

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
        """The last good limit plus a margin; None before there is one."""
        return None if self.last_good_bytes is None else self.last_good_bytes * (1 + SAFETY)


@dataclass(frozen=True, slots=True)
class FitView:
    """A search for display. ``limit_bytes``: limit now in force; ``estimate_bytes``: estimate from the last
    epoch's footprint.
    """

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


_NONE_LEFT: Final = "no limit is left to try between the last good one and the first bad one"


def evidence(fit: MemoryFit, epoch: FitEpoch) -> FitEvidence:
    """Whether an epoch was slow, and whether memory was the cause; None for a question without a signal."""
    if fit.pilot is None:
        return FitEvidence(None, None, "no pilot to compare with")
    slow, memory = _is_slow(fit.pilot, epoch), _starved(fit, epoch)
    told = {None: "unknown", True: "yes", False: "no"}
    return FitEvidence(
        slow, memory, f"slow: {told[slow]}, memory short: {told[memory]} ({_figures(fit.pilot, epoch)})"
    )


def _figures(pilot: FitEpoch, epoch: FitEpoch) -> str:
    """The available measurements as text."""
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
    """Whether an epoch, or its beginning, is certainly in the crash zone."""
    if fit.limit_bytes is None or epoch.samples < URGENT_SAMPLES:
        return False
    return _is_bad(fit, epoch)


def _is_bad(fit: MemoryFit, epoch: FitEpoch) -> bool:
    """Whether the limit is bad. A missing performance signal does not count as good while memory is short."""
    return fit.pilot is not None and bool(_starved(fit, epoch)) and _is_slow(fit.pilot, epoch) is not False


def after_epoch(fit: MemoryFit, epoch: FitEpoch, *, urgent: bool = False) -> MemoryFit:
    """The search after one epoch under ``fit.limit_bytes``; its new limit is the action to take."""
    if fit.phase is FitPhase.CONVERGED:
        return fit
    if epoch.samples < fit.epoch_samples and not (urgent and is_crash(fit, epoch)):
        return replace(fit, reason=f"{epoch.samples} of {fit.epoch_samples} samples: the epoch continues")
    if fit.pilot is None or fit.limit_bytes is None:
        return _piloted(fit, epoch)
    seen = evidence(fit, epoch)
    if _is_bad(fit, epoch):
        return _crashed(fit, fit.limit_bytes, seen)
    least = epoch.least_bytes
    if not seen.slow and not isinstance(least, Unavailable) and least > ATTAINED_RATIO * fit.limit_bytes:
        found = replace(fit, phase=FitPhase.CONVERGED, last_good_bytes=least)
        reason = "its use cannot be reclaimed: the limit no longer has an effect"
        return replace(found, limit_bytes=found.recommended_bytes, reason=reason)
    if seen.slow is None or seen.memory is None or seen.slow:
        return replace(fit, reason=f"{seen.reason}: the limit stays")
    return _lowered(replace(fit, last_good_bytes=fit.limit_bytes), fit.limit_bytes, epoch)


def after_harm(fit: MemoryFit) -> MemoryFit:
    """The search after the application was degraded under its limit, which counts as bad whatever the cause.

    If a neighbour was the cause, the result is larger than necessary, which does no harm.
    """
    if fit.limit_bytes is None:
        return fit
    return _crashed(
        fit, fit.limit_bytes, FitEvidence(None, None, "the application was degraded under this limit")
    )


def _piloted(fit: MemoryFit, epoch: FitEpoch) -> MemoryFit:
    if isinstance(epoch.performance, Unavailable):
        return replace(fit, reason=f"no performance signal: {epoch.performance.reason}")
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
            fit, phase=FitPhase.BISECT, limit_bytes=middle, reason=f"good: continuing by bisection{figures}"
        )
    lower = max(estimate_of_container(epoch.footprint), (1 - fit.step) * limit)
    if lower >= limit:
        return replace(
            fit,
            phase=FitPhase.CONVERGED,
            limit_bytes=fit.recommended_bytes,
            reason="the estimate has reached the limit",
        )
    figures = "" if fit.pilot is None else f" ({_figures(fit.pilot, epoch)})"
    return replace(fit, limit_bytes=lower, reason=f"good: the next limit is lower{figures}")


def _crashed(fit: MemoryFit, limit: float, seen: FitEvidence) -> MemoryFit:
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
    """Whether the epoch was slow. CPU time includes swapping, so stalls on memory alone count as a slowdown, too."""
    if not epoch.is_work and _stalled(pilot.full_pressure_ratio, epoch.full_pressure_ratio):
        return True
    return _slow(pilot.performance, epoch.performance)


def _slow(pilot: Reading, now: Reading) -> bool | None:
    if isinstance(pilot, Unavailable) or isinstance(now, Unavailable):
        return None
    return now <= 0 or pilot / now - 1 > SLOWDOWN


def _stalled(pilot: Reading, now: Reading) -> bool:
    """Whether all tasks wait for memory long enough for a slowdown."""
    if isinstance(pilot, Unavailable) or isinstance(now, Unavailable):
        return False
    return now - pilot > STALLED


def _starved(fit: MemoryFit, epoch: FitEpoch) -> bool | None:
    """Whether any signal shows a memory shortage; False only if there is a signal and no signal shows a shortage."""
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
    """The missing share of the pilot's performance; 0 if unknown."""
    if isinstance(pilot, Unavailable) or isinstance(now, Unavailable) or pilot <= 0:
        return 0.0
    return max(0.0, 1.0 - now / pilot)


def _above(pilot: Reading, now: Reading, bound: Callable[[float], float]) -> bool | None:
    if isinstance(pilot, Unavailable) or isinstance(now, Unavailable):
        return None
    return now > bound(pilot)
