"""Keeps the time of the last round, and the number of rounds."""

from __future__ import annotations

from collections.abc import Callable


class RoundClock:
    """The time and the count of rounds. Only the control loop advances them.

    Args:
        clock: monotonic clock; None: ticks bring the time (virtual time).
    """

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock
        self._began_s: float | None = None
        self.now_s = 0.0
        self.rounds = 0

    @property
    def has_begun(self) -> bool:
        """True once a round has begun."""
        return self._began_s is not None

    @property
    def uptime_s(self) -> float:
        """Seconds from the first round to the last one."""
        return self.now_s - self._began_s if self._began_s is not None else 0.0

    def time_s(self, otherwise_s: float) -> float:
        """The present time by the clock; ``otherwise_s`` if ticks bring the time."""
        return self._clock() if self._clock is not None else otherwise_s

    def begin_round(self, now_s: float) -> float:
        """Note the time of a new round, and return it. ``now_s``: the time that the tick brought."""
        self.now_s = self.time_s(now_s)
        if self._began_s is None:
            self._began_s = self.now_s
        return self.now_s

    def end_round(self) -> None:
        """Count a complete round."""
        self.rounds += 1
