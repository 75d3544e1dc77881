"""Rates of a counter to which several reporters add, each about once per resolution.

Problem. PostgreSQL's backends keep their counts to themselves. They add them to the common counter at the end
of a transaction, but at most once a second. When such a *flush* comes close to an end of a window of one or
two seconds, the window contains one flush of a backend too few or too many. With one backend, or with several that
flush together, the window then contains half of all events or twice as many.

Approach. The counter is read several times per resolution P. The growth between two readings is a *jump*: n
events of the P before it, assumed to be evenly spread. The share

  A(x) = (x - (at - P)) / P, at least 0, at most 1

of a jump lies before the moment x, and a window (a, b] contains the sum of n (A(b) - A(a)) over all jumps. A
flush at the end of a window has a share near 0 or 1, whether it was seen just before or just after that end.
Every event is counted once: an event reported too late for its window counts in the next one.

Uncertainty, one sigma, of each of the two ends x:

  timing   n d / (P sqrt(12)) for each jump that x cuts: its flush came at any moment between two readings, d
           apart
  split    c n sqrt(A (1 - A)), added up: work is not evenly spread. c is the relative difference between the
           rates of consecutive windows, at least EVEN
  counts   n A (1 - A): requests arrive at random
  unseen   events before x whose flushes are still to come, as many as the backends did P earlier
  overdue  events of flushes that should have come: how many events fewer the last P brought than those before it
  late     events before a that were reported too late for the previous window

A window ends where the uncertainty is least: at a flush if there are few backends or all flush together, anywhere if
there are many. A reading is withheld while waiting can halve the reading's uncertainty, for at most ``LONGEST``
resolutions. It carries n^2 / (sigma^2 + n) events: the size of a plain count with the same relative noise.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from perphd.domain.reading import Unavailable
from perphd.monitor.rates import FIRST_READING, WENT_BACKWARDS
from perphd.monitor.sli.resolution import SHARE, TWICE, Counted, Resolution

LATE: Final = 1.1
"""Usual maximum time between flushes, in resolutions: the transaction in progress must end first."""
EVEN: Final = 0.1
"""Lower bound on the relative unevenness of work within one resolution."""
UNEVEN: Final = 0.5
"""Upper bound on the relative unevenness. At this value, a split is as uncertain as possible."""
RATES_KEPT: Final = 8
"""Number of readings from which the unevenness is estimated."""
POOR: Final = 0.15
"""Relative uncertainty above which a reading is withheld, unless random arrivals alone explain it."""
LONGEST: Final = 4.0
"""Number of resolutions after which a reading is returned regardless of its uncertainty."""
NEWS: Final = 0.5
"""Relative change from the previous reading above which a reading covers two resolutions instead of one."""
FINEST, COARSEST = 0.1, 0.25
"""Shortest and longest time between two looks, as a share of the resolution."""
TIMING: Final = 0.025
"""Accepted relative error from the time between looks. An error up to half of the random error is accepted too."""


_ROUNDS: Final = 3
"""Number of resolutions whose events are remembered. A backend may miss two flushes in a row."""


class FlushLook(NamedTuple):
    """One value of the counter, read at some moment between query and answer."""

    asked_s: float
    answered_s: float
    total: float


@dataclass(slots=True)
class _Jump:
    """Growth of the counter between two looks around ``at_s``.

    - ``spread_s``: uncertainty of ``at_s``: the time between the looks. If the flush was late, its delay is
      added, because several delayed backends then flush at once.
    - ``began_s``, ``length_s``: period in which the events happened.
    - ``booked``: share of the events already given in readings.
    """

    at_s: float
    spread_s: float
    events: float
    began_s: float
    length_s: float
    booked: float = 0.0

    def before(self, x: float) -> float:
        """Share of the jump's events that happened before ``x``."""
        return min(1.0, max(0.0, (x - self.began_s) / self.length_s))

    def cut(self, x: float) -> tuple[float, float, float]:
        """Uncertainty at the end x of a window: timing, split and counts (a variance)."""
        timing = 0.0
        if self.began_s - self.spread_s < x < self.at_s + self.spread_s:
            timing = self.events * min(1.0, self.spread_s / self.length_s) / math.sqrt(12.0)
        share = self.before(x)
        even = share * (1.0 - share)
        return timing, self.events * math.sqrt(even), self.events * even


class FlushWindow:
    """One counter's growth per second over windows that end where flushes allow it.

    ``look`` takes each value of the counter; ``take`` returns the reading that is due.
    """

    def __init__(self, resolution: Resolution) -> None:
        self._resolution = resolution
        self._every_s = resolution.seconds
        self._restart(None)

    def _restart(self, last: FlushLook | None) -> None:
        self._last = last
        self._jumps: list[_Jump] = []
        self._began_s = math.inf if last is None else last.answered_s
        self._rates: deque[float] = deque(maxlen=RATES_KEPT)
        self._unevenness = EVEN
        self._reason: Unavailable | None = FIRST_READING if last is None else WENT_BACKWARDS

    def look(self, look: FlushLook) -> None:
        """Take one value of the counter."""
        last = self._last
        if last is not None and look.total < last.total:
            self._restart(look)
            return
        self._last = look
        if last is None:
            self._began_s = look.answered_s
        elif look.total > last.total:
            at_s, spread_s = 0.5 * (last.asked_s + look.answered_s), look.answered_s - last.asked_s
            length_s = max(self._every_s, spread_s)
            began_s = at_s - 0.5 * (self._every_s + length_s)
            since_s = at_s - self._jumps[-1].at_s if self._jumps else 0.0
            if since_s > LATE * self._every_s:
                spread_s += min(since_s - self._every_s, self._every_s)
            jump = _Jump(at_s, spread_s, look.total - last.total, began_s, length_s)
            if not self._rates:
                jump.booked = jump.before(self._began_s)  # events before the first window are not reported
            self._jumps.append(jump)

    def take(self) -> Counted:
        """The growth since the window began, if it is due."""
        if self._last is None:
            return Counted(FIRST_READING)
        reason, self._reason = self._reason, None
        if reason is not None:
            return Counted(reason)
        now_s, every_s = self._last.answered_s, self._every_s
        before_var = self._variance_of_start()
        found = [self._candidate(x, now_s, before_var) for x in self._ends(now_s)]
        if not found:
            return Counted(self._resolution.awaited())
        end = min(found, key=lambda candidate: candidate.relative)
        if now_s - self._began_s < LONGEST * every_s and self._can_improve(end):
            return Counted(self._resolution.awaited())
        return self._give(end, now_s)

    @property
    def ended_s(self) -> float:
        """End of the last reading's window."""
        return self._began_s

    @property
    def age_s(self) -> float:
        """Seconds from the end of the last reading's window to the last look."""
        return 0.0 if self._last is None else max(0.0, self._last.answered_s - self._began_s)

    @property
    def pause_s(self) -> float:
        """Seconds until the next look, shorter when large flushes are due."""
        newest_s = 0.0 if self._last is None else self._last.answered_s
        recent = [jump for jump in self._jumps if jump.at_s > newest_s - LATE * self._every_s]
        lumps, events = math.hypot(*(jump.events for jump in recent)), sum(jump.events for jump in recent)
        longest_s = COARSEST * self._every_s
        if lumps <= 0.0:
            return longest_s
        accepted = max(TIMING * events, 0.5 * math.sqrt(events))
        fine_s = min(
            longest_s, max(FINEST * self._every_s, math.sqrt(6.0) * accepted / lumps * self._every_s)
        )
        due_s = min(
            (jump.at_s + self._every_s for jump in recent if jump.events > TIMING * events), default=math.inf
        )
        return min(longest_s, max(fine_s, due_s - 0.5 * fine_s - newest_s))

    def _ends(self, now_s: float) -> Iterable[float]:
        """Candidate ends of the window: the latest moment whose events are all reported, and recent flushes."""
        least_s = self._began_s + SHARE * self._every_s
        latest_s = now_s - LATE * self._every_s
        near_s = now_s - (1.0 + LATE) * self._every_s
        flushes = (jump.at_s for jump in self._jumps if jump.at_s > near_s)
        return (x for x in itertools.chain([latest_s], flushes) if x >= least_s)

    def _candidate(self, x: float, now_s: float, before_var: float) -> _End:
        events = sum(jump.events * max(0.0, jump.before(x) - jump.booked) for jump in self._jumps)
        variance = before_var + self._variance(x) + self._awaited(x, now_s) ** 2
        return _End(x, x - self._began_s, events, variance)

    def _awaited(self, x: float, now_s: float) -> float:
        """Expected number of events before ``x`` that are not reported yet: those unseen and those overdue."""
        unseen = due = 0.0
        rounds = [0.0] * _ROUNDS  # events by age, the newest first
        for jump in self._jumps:
            age = int((now_s - jump.at_s) / (LATE * self._every_s))
            if age >= _ROUNDS:
                continue
            rounds[age] += jump.events
            done = jump.events * min(1.0, max(0.0, x - jump.at_s) / self._every_s)
            if age:
                due += done
            else:
                unseen += done
        return unseen + min(due, max(0.0, max(rounds[1:]) - rounds[0]))

    def _variance(self, x: float) -> float:
        timing = split = counts = 0.0
        for jump in self._jumps:
            one_timing, one_split, one_counts = jump.cut(x)
            timing += one_timing**2
            split += one_split
            counts += one_counts
        return timing + (self._unevenness * split) ** 2 + counts

    def _variance_of_start(self) -> float:
        a = self._began_s
        late = sum(jump.events * max(0.0, jump.before(a) - jump.booked) for jump in self._jumps)
        return self._variance(a) + late**2

    def _can_improve(self, end: _End) -> bool:
        """True if waiting one more resolution is likely to reduce the uncertainty much."""
        if end.window_s >= TWICE * self._every_s:
            return False
        if end.relative > POOR and end.variance > end.events:
            return True
        if not self._rates:
            return False
        usual = self._rates[-1] * end.window_s
        return abs(end.events - usual) > NEWS * usual + 2.0 * math.sqrt(usual)

    def _give(self, end: _End, now_s: float) -> Counted:
        for jump in self._jumps:
            jump.booked = max(jump.booked, jump.before(end.at_s))
        self._began_s = end.at_s
        self._rates.append(end.events / end.window_s)
        self._unevenness = _unevenness(self._rates)
        oldest_s = min(end.at_s, now_s - _ROUNDS * LATE * self._every_s)
        self._jumps = [j for j in self._jumps if j.booked < 1.0 or j.at_s + j.spread_s > oldest_s]
        equal = end.events**2 / (end.variance + end.events) if end.events > 0.0 else 0.0
        return Counted(end.events / end.window_s, equal, end.window_s)


@dataclass(frozen=True, slots=True)
class _End:
    """A candidate end of the window, with its reading."""

    at_s: float
    window_s: float
    events: float
    variance: float

    @property
    def relative(self) -> float:
        return math.sqrt(self.variance) / max(self.events, 1.0)


def _unevenness(rates: Iterable[float]) -> float:
    """Relative difference between the rates of consecutive windows, from ``EVEN`` to ``UNEVEN``."""
    found = [((b - a) / (0.5 * (a + b))) ** 2 / 2.0 for a, b in itertools.pairwise(rates) if a + b > 0.0]
    return min(UNEVEN, max(EVEN, math.sqrt(statistics.fmean(found)))) if len(found) > 1 else EVEN
