"""Indicators of a simulated application: totals, and readers that compute differences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from perphd.sim.node.outcome import Outcome


@dataclass(frozen=True, slots=True)
class SliWindow:
    """Indicators over the time since the same reader's last reading.

    ``load_per_s``: offered requests (None in a closed loop, where they equal the answered ones). Latencies
    are None when nothing was answered.
    """

    work_rate_per_s: float
    load_per_s: float | None
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None


Told: TypeAlias = tuple[float, float, tuple[float, float, float]]
"""Requests answered, requests offered, and the sums over answered requests of their p50, p95 and p99 (ms)."""


class SliTotals:
    """Since the start: requests answered (``done``), requests offered (``asked``), and the latencies p50, p95 and p99
    summed over the answered requests.
    """

    __slots__ = ("_flushed", "_next", "_passed_s", "asked", "done", "every_s", "latency", "open_loop")

    def __init__(self, open_loop: bool) -> None:
        self.open_loop = open_loop
        self.done = self.asked = 0.0
        self.latency = (0.0, 0.0, 0.0)
        self.every_s = self._passed_s = 0.0
        self._flushed: list[Told] = []
        self._next = 0

    def report_every(self, seconds: float, backends: int = 1) -> None:
        """Show readers only reported values from now on.

        Each backend reports once per interval (``seconds``), in turn.
        """
        self.every_s, self._passed_s, self._next = seconds, 0.0, 0
        self._flushed = [(self.done, self.asked, self.latency)] * backends

    @property
    def told(self) -> Told:
        """The totals that readers see: the present ones, or the mean of those that each backend has reported."""
        if not self._flushed:
            return self.done, self.asked, self.latency
        share = 1.0 / len(self._flushed)
        done = sum(told[0] for told in self._flushed) * share
        asked = sum(told[1] for told in self._flushed) * share
        p50, p95, p99 = (sum(told[2][i] for told in self._flushed) * share for i in range(3))
        return done, asked, (p50, p95, p99)

    def add(self, done: float, activity: Outcome, noise: float, dt_s: float) -> None:
        """Count ``done`` requests with this activity's latencies."""
        self.done += done
        self.asked += activity.offered_per_s * dt_s
        p50, p95, p99 = self.latency
        weight = done * noise
        self.latency = (
            p50 + activity.p50_ms * weight,
            p95 + activity.p95_ms * weight,
            p99 + activity.p99_ms * weight,
        )
        if self._flushed:
            self._passed_s += dt_s
            step_s = self.every_s / len(self._flushed)
            while self._passed_s >= step_s - 1e-9:
                self._passed_s -= step_s
                self._flushed[self._next] = (self.done, self.asked, self.latency)
                self._next = (self._next + 1) % len(self._flushed)


class SliCursor:
    """One reader, with its last position."""

    def __init__(self, totals: SliTotals, clock: Callable[[], float]) -> None:
        self._totals, self._clock = totals, clock
        self._mark = (clock(), *totals.told)

    @property
    def now(self) -> tuple[float, Told]:
        """The time and the application's totals at that time."""
        return self._clock(), self._totals.told

    @property
    def open_loop(self) -> bool:
        """True for an open loop, in which the offered load is known."""
        return self._totals.open_loop

    def read(self) -> SliWindow | None:
        """The window since the last reading; None if no time has passed."""
        totals = self._totals
        at_s, done, asked, latency = self._mark
        now_s = self._clock()
        if now_s <= at_s:
            return None
        new_done, new_asked, new_latency = totals.told
        self._mark = (now_s, new_done, new_asked, new_latency)
        answered, elapsed = new_done - done, now_s - at_s
        p50, p95, p99 = (
            (new - old) / answered if answered > 0 else None
            for new, old in zip(new_latency, latency, strict=True)
        )
        load = (new_asked - asked) / elapsed if totals.open_loop else None
        return SliWindow(answered / elapsed, load, p50, p95, p99)
