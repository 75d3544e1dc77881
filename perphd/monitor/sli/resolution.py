"""Resolution of SLI sources, and rates over windows no shorter than it.

A counter can be exact at any moment (Redis, MariaDB), or change only when a reporter updates it:
PostgreSQL's backends flush their counts once a second, an exporter may answer from a cache for 15 s. Over
less than such a *resolution* its growth shows when reports came, not how much work was done: 0, 0, 1214, 0,
575 per second instead of 400.

Problem. The resolution is known for some sources. Otherwise it must be found while the source is read.

Approach. C(t) is the counter, U(t) the CPU time of the program (or the time, if that is unknown) and S(t) =
C(t) - c U(t) with c such that S ends where it began. S is work that is counted too late or too early. With the
mean growth mu between two readings and

  F(m) = mean (S(k + m) - S(k))^2 / (m mu (1 - m/n))  the Fano factor of counts over m of n readings

a Poisson process has F = 1 at every m, regardless of its rate: a counter that changes rarely because requests are
rare is not coarse. Load that comes in bursts has F > 1 that does not fall with m. A report that adds q events
at once has F(1) = q (1 - 1/R), and F falls to nearly 0 at m = R, because the events missing in one interval
come in the next. This also holds for several backends with staggered reports. A program that idles uses no
CPU time while it completes no events.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Final

from perphd.domain.reading import NOT_MEASURED, Awaited, Reading, Unavailable
from perphd.monitor.rates import FIRST_READING, NO_TIME_PASSED, WENT_BACKWARDS

ASSUMED_S: Final = 1.0
"""Shortest interval that is used while a source's resolution is unknown, in seconds."""
KEPT: Final = 65
"""Number of readings from which the resolution is found."""
FEWEST: Final = 18
"""Minimum number of readings for an estimate of the resolution."""
EVERY: Final = 8
"""Number of readings between two estimates."""
FEWEST_EVENTS: Final = 50.0
FALLS: Final = 4.0
"""Factor by which F must fall for a counter to count as coarse. F(1) must be at least this large as well."""
DEEP: Final = 5.0
"""F at the resolution is at most this multiple of the least F."""
NEGLIGIBLE: Final = 0.15
"""Relative error of a reading that needs no correction."""
MOST_STANDSTILLS: Final = 0.05
"""Share of readings at which a busy program's counter may stand still and still count as exact."""
ALIKE: Final = 1.5
"""Ratio of two estimates up to which they count as equal."""
CERTAIN_EVENTS: Final = 7.0
"""Number of expected events from which their absence is no coincidence: e^-7 is less than one in a thousand."""
PATIENCE: Final = 3.0
"""Number of resolutions for which a counter must stand still before that counts as no work."""
TWICE: Final = 1.8
"""Number of resolutions that a reading far from the previous one covers: two, less tick jitter."""
UNKNOWN_PATIENCE_S: Final = 30.0
"""Seconds for which a counter must stand still while the resolution is unknown (see ``PATIENCE``)."""
ALIGNED: Final = 10.0
"""Length in resolutions from which a window need not begin at a report: the error is at most a tenth."""
SHARE: Final = 0.9
"""Share of a window's length from which it counts as complete, since ticks jitter."""
PROVEN_SHARE: Final = 0.75
"""Share of a window's length from which it counts as complete, for a source whose counts were exact at every interval
tried.
"""
LONGEST_S: Final = 30.0
"""Maximum age of requests in a percentile, in seconds."""
LEAST_BEYOND: Final = 5.0
"""Minimum number of requests beyond a percentile.

With k requests beyond it, its rank is uncertain by 1/sqrt(k). If latencies fall off exponentially, the
percentile q itself is uncertain by 1/(ln(1/(1-q)) sqrt(k)): 15 % for p95 with k = 5. That is a third of the
accepted growth of delay (50 %), which two consecutive samples must exceed. The percentile p50 therefore needs 10
requests, p95 needs 100, and p99 needs 500.
"""


def least_requests(percentile: str) -> float:
    """Minimum number of requests for ``p50``, ``p95`` or ``p99``."""
    return LEAST_BEYOND / (1.0 - int(percentile.removeprefix("p")) / 100.0)


class Origin(StrEnum):
    """Origin of a known resolution."""

    STATED = "stated"  # this kind of source has a known resolution
    CONFIGURED = "configured"
    FOUND = "found"
    ASSUMED = "assumed"  # a placeholder until the resolution is found


@dataclass(frozen=True, slots=True)
class Resolution:
    """Reporting period of a source.

    ``seconds``: time between two reports; 0: the source is exact at any moment. ``proven_s``: the shortest
    interval at which exactness was observed; 0: no observation is needed.
    """

    seconds: float
    origin: Origin
    proven_s: float = 0.0

    @property
    def least_s(self) -> float:
        """Shortest window over which a count gives a rate, in seconds."""
        return max(SHARE * self.seconds, PROVEN_SHARE * self.proven_s)

    @property
    def reading(self) -> Reading:
        """Seconds between two reports; Unavailable until known."""
        return Unavailable("not known yet") if self.origin is Origin.ASSUMED else self.seconds

    @property
    def patience_s(self) -> float:
        """Seconds for which a counter must stand still before that counts as no work."""
        if self.origin is Origin.ASSUMED:
            return UNKNOWN_PATIENCE_S
        return PATIENCE * self.seconds

    def awaited(self) -> Awaited:
        """The reading before the next report is due."""
        if self.origin is Origin.ASSUMED:
            return Awaited("the reporting interval of the source is not known yet")
        return Awaited(f"the source reports every {max(self.seconds, self.proven_s):.3g} s")

    def __str__(self) -> str:
        if self.origin is Origin.ASSUMED:
            return f"not known yet ({ASSUMED_S:g} s is assumed)"
        if self.seconds > 0.0:
            return f"{self.seconds:.3g} s ({self.origin})"
        return (
            f"{self.proven_s:.3g} s or finer ({self.origin})" if self.proven_s else f"exact ({self.origin})"
        )


EXACT: Final = Resolution(0.0, Origin.STATED)
UNKNOWN: Final = Resolution(0.0, Origin.ASSUMED, ASSUMED_S)


class ResolutionFinder:
    """Finds how often a counter changes while its program works.

    ``known``: a given resolution; the finder then searches nothing.
    """

    def __init__(self, known: Resolution | None = None) -> None:
        self.resolution = known if known is not None else UNKNOWN
        self._finds = known is None
        self._read: list[tuple[float, float, float]] = []  # time, counter, CPU seconds until then
        self._cpu_s = 0.0
        self._cpu_known = True
        self._since = 0
        self._doubted: Resolution | None = None

    def update(self, total: float, at_s: float) -> Resolution:
        """Take one reading of the counter; returns the resolution known so far."""
        if not self._finds:
            return self.resolution
        read = self._read
        if read and (total < read[-1][1] or at_s <= read[-1][0]):
            read.clear()
        if len(read) >= 3 and not _alike(at_s - read[-1][0], _pace(read)):
            del read[:-1]  # the pace changed: do not mix intervals of different lengths
        read.append((at_s, total, self._cpu_s))
        del read[:-KEPT]
        self._since += 1
        if len(read) >= FEWEST and self._since >= EVERY:
            self._since = 0
            self._take(self._estimate())
        return self.resolution

    def worked(self, cpu_s: float | None) -> None:
        """Take the program's CPU time between the last two readings; None if unknown."""
        if not self._finds:
            return
        known = cpu_s is not None
        if known != self._cpu_known:
            self._read, self._cpu_known = self._read[-1:], known
        self._cpu_s += cpu_s or 0.0
        if self._read:
            at_s, total, _ = self._read[-1]
            self._read[-1] = (at_s, total, self._cpu_s)

    def _estimate(self) -> Resolution | None:
        """The resolution according to the kept readings; None if they are inconclusive."""
        read, pace_s = self._read[:-1], _pace(self._read)  # the last reading's CPU time is not known yet
        grown = read[-1][1] - read[0][1]
        if grown < FEWEST_EVENTS:
            return None
        effort = [cpu for _, _, cpu in read] if self._cpu_known else [at for at, _, _ in read]
        spent = effort[-1] - effort[0]
        if spent <= 0.0:
            return None
        per_effort = grown / spent
        lag = [
            total - read[0][1] - per_effort * (used - effort[0])
            for (_, total, _), used in zip(read, effort, strict=True)
        ]
        n = len(read) - 1
        mu = grown / n
        fano = [
            statistics.fmean((lag[k + m] - lag[k]) ** 2 for k in range(n + 1 - m)) / (m * mu * (1.0 - m / n))
            for m in range(1, n // 3 + 1)
        ]
        first = fano[0]
        fine = Resolution(0.0, Origin.FOUND, pace_s)
        if first < FALLS or math.sqrt(first / mu) < NEGLIGIBLE:
            return fine
        least = min(fano)
        for m, (value, after) in enumerate(pairwise(fano[1:]), 2):
            # Take the first deep minimum, because F rises again between multiples of the resolution.
            if FALLS * value <= first and value <= min(after, DEEP * least):
                return Resolution(m * pace_s, Origin.FOUND)
        if n < KEPT - 2:
            return None  # a changing load looks equally uneven
        usual = spent / n
        busy = [k for k in range(n) if effort[k + 1] - effort[k] >= 0.25 * usual]
        still = sum(read[k + 1][1] == read[k][1] for k in busy)
        return fine if mu < CERTAIN_EVENTS or still <= MOST_STANDSTILLS * len(busy) else None

    def _take(self, found: Resolution | None) -> None:
        """Adopt a new estimate only after it was found twice in a row (hysteresis)."""
        now = self.resolution
        if found is None or _agrees(now, found):
            self._doubted = None
        elif now.origin is Origin.ASSUMED or (found.seconds == now.seconds == 0.0):
            self.resolution = found  # no resolution was known, or only one for slower readings
        elif self._doubted is not None and _agrees(self._doubted, found):
            self.resolution, self._doubted = found, None
        else:
            self._doubted = found


def _agrees(known: Resolution, found: Resolution) -> bool:
    """True if the new estimate is consistent with the known resolution."""
    if known.origin is Origin.ASSUMED:
        return False
    if found.seconds > 0.0:
        return _alike(known.seconds, found.seconds)
    # If readings are no faster than the reports, every counter looks exact.
    return found.proven_s >= max(SHARE * known.seconds, known.proven_s / ALIKE)


def _alike(a: float, b: float) -> bool:
    return a > 0.0 and b > 0.0 and max(a, b) <= ALIKE * min(a, b)


def _pace(read: list[tuple[float, float, float]]) -> float:
    return statistics.median(b[0] - a[0] for a, b in pairwise(read))


class Deliveries:
    """Times at which an application delivered values; their usual spacing is its resolution."""

    def __init__(self) -> None:
        self._at_s: float | None = None
        self._gaps_s: deque[float] = deque(maxlen=5)

    def delivered(self, at_s: float) -> float | None:
        """Record one delivery; returns seconds since the previous one, None for the first."""
        gap_s = None if self._at_s is None else at_s - self._at_s
        self._at_s = at_s
        if gap_s:
            self._gaps_s.append(gap_s)
        return gap_s

    @property
    def resolution(self) -> Resolution:
        """The usual time between two deliveries."""
        if not self._gaps_s:
            return UNKNOWN
        return Resolution(statistics.median(self._gaps_s), Origin.FOUND)

    def age_s(self, now_s: float) -> float:
        """Seconds since the last delivery; infinite before the first."""
        return math.inf if self._at_s is None else now_s - self._at_s


@dataclass(frozen=True, slots=True)
class Counted:
    """A counter's growth per second, and the seconds that it covers.

    ``events``: the size of a plain count with the rate's relative noise; for an exact counter, its growth.
    """

    rate: Reading
    events: Reading = NOT_MEASURED
    window_s: Reading = NOT_MEASURED


class CountWindow:
    """One counter's growth per second, over windows that its resolution allows.

    Windows of an inexact counter begin and end at a report, as far as readings show, and last at least one
    resolution. Windows are contiguous: no event is lost or counted twice. A missed reading widens the window.
    There is no rate for the first reading, nor after a decrease.

    ``delivered``: the first total was read when it was reported, so that it can begin a window.
    """

    __slots__ = (
        "_aligned",
        "_at_s",
        "_base",
        "_delivered",
        "_last",
        "_moved_s",
        "_moved_to",
        "_rate",
        "_scarce",
    )

    def __init__(self, *, delivered: bool = False) -> None:
        self._delivered = delivered
        self._base: float | None = None
        self._at_s = self._moved_s = 0.0
        self._last = self._moved_to = 0.0
        self._aligned = False
        self._rate: float | None = None
        self._scarce = False

    def update(
        self,
        total: float,
        at_s: float,
        resolution: Resolution = EXACT,
        least_events: float = 0.0,
    ) -> Counted:
        """The growth since the window began, if it is due.

        ``least_events``: minimum number of events to wait for, up to LONGEST_S.
        """
        base, last = self._base, self._last
        if base is None or total < last:
            self._begin(total, at_s, aligned=self._delivered)
            self._rate = None  # the old program's rate no longer applies
            return Counted(FIRST_READING if base is None else WENT_BACKWARDS)
        window_s = at_s - self._at_s
        if window_s <= 0.0:
            return Counted(NO_TIME_PASSED)
        self._last = total
        moved = total > self._moved_to
        if moved:
            self._moved_s, self._moved_to = at_s, total
        events = total - base
        if not self._is_due(events, window_s, moved, at_s, resolution):
            return Counted(resolution.awaited())
        if events < least_events and window_s < LONGEST_S:
            words = f"waiting for requests: {events:.0f} of {least_events:.0f}"
            return Counted(Unavailable(words) if self._scarce else Awaited(words))
        self._begin(total, at_s, aligned=True)
        self._rate = events / window_s
        self._scarce = events < least_events
        if self._scarce:
            words = f"too few requests: {events:.0f} of {least_events:.0f} within {window_s:.0f} s"
            return Counted(Unavailable(words))
        return Counted(self._rate, events, window_s)

    @property
    def began_s(self) -> float:
        """Time at which the present window began."""
        return self._at_s

    def _is_due(
        self, events: float, window_s: float, moved: bool, at_s: float, resolution: Resolution
    ) -> bool:
        if resolution.seconds == 0.0 and resolution.origin is not Origin.ASSUMED:
            return window_s >= resolution.least_s
        coarse_s = max(resolution.seconds, resolution.proven_s)
        patient = at_s - max(self._moved_s, self._at_s) < resolution.patience_s
        if not self._aligned and window_s < ALIGNED * coarse_s:
            if moved:
                self._begin(self._last, at_s, aligned=True)
                return False
            return not patient
        if window_s < resolution.least_s:
            return False
        if not patient:
            return True
        if self._rate is not None and window_s < TWICE * coarse_s:
            usual = self._rate * window_s
            if abs(events - usual) > 0.5 * usual + 2.0 * math.sqrt(usual):
                return False  # one report too few or too many, or a real change: a window of twice the length will show
        if moved:
            return True
        # The counter stands still, which is a result only if events are so rare that none was expected.
        expected = math.inf if self._rate is None else self._rate * (at_s - self._moved_s)
        return expected < CERTAIN_EVENTS

    def _begin(self, total: float, at_s: float, *, aligned: bool) -> None:
        self._base = self._last = self._moved_to = total
        self._at_s = at_s
        self._aligned = aligned
