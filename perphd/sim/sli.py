"""What a simulated application tells about itself: totals, and readers that difference them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from perphd.sim.node.outcome import Outcome


@dataclass(frozen=True, slots=True)
class SliWindow:
    """Indicators over the time since the same reader's last reading.

    ``load_per_s``: what was asked (None in a closed loop: what is asked is then what is answered). Latencies
    are None when nothing was answered.
    """

    work_rate_per_s: float
    load_per_s: float | None
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None


class SliTotals:
    """Requests answered, and their latencies weighted by them, since the start."""

    __slots__ = ("asked", "done", "latency", "open_loop")

    def __init__(self, open_loop: bool) -> None:
        self.open_loop = open_loop
        self.done = self.asked = 0.0
        self.latency = (0.0, 0.0, 0.0)

    def add(self, done: float, activity: Outcome, noise: float, dt_s: float) -> None:
        """Count ``done`` requests that had this activity's latencies."""
        self.done += done
        self.asked += activity.offered_per_s * dt_s
        p50, p95, p99 = self.latency
        weight = done * noise
        self.latency = (
            p50 + activity.p50_ms * weight,
            p95 + activity.p95_ms * weight,
            p99 + activity.p99_ms * weight,
        )


class SliCursor:
    """One reader: remembers where it read last."""

    def __init__(self, totals: SliTotals, clock: Callable[[], float]) -> None:
        self._totals, self._clock = totals, clock
        self._mark = (clock(), totals.done, totals.asked, totals.latency)

    def read(self) -> SliWindow | None:
        """The window since the last reading; None while no time has passed."""
        totals = self._totals
        at_s, done, asked, latency = self._mark
        now_s = self._clock()
        if now_s <= at_s:
            return None
        self._mark = (now_s, totals.done, totals.asked, totals.latency)
        answered, elapsed = totals.done - done, now_s - at_s
        p50, p95, p99 = (
            (new - old) / answered if answered > 0 else None
            for new, old in zip(totals.latency, latency, strict=True)
        )
        load = (totals.asked - asked) / elapsed if totals.open_loop else None
        return SliWindow(answered / elapsed, load, p50, p95, p99)
