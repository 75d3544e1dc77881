"""Computes rates from growing counters, over the interval actually covered."""

from __future__ import annotations

from perphd.domain.reading import Reading, Unavailable

FIRST_READING = Unavailable("first reading: a rate needs two")
WENT_BACKWARDS = Unavailable("the counter went backwards")
NO_TIME_PASSED = Unavailable("no time has passed since the last reading")


class Rate:
    """One counter's growth per second. The last reading is kept, so a missed reading widens the interval.

    ``update`` returns Unavailable for the first reading and after a decrease, which starts a new interval.
    """

    __slots__ = ("_at_s", "_value")

    def __init__(self) -> None:
        self._value: float | None = None
        self._at_s = 0.0

    def update(self, value: float, now_s: float) -> Reading:
        """Growth per second since the last call."""
        before, self._value = self._value, value
        elapsed_s, self._at_s = now_s - self._at_s, now_s
        if before is None:
            return FIRST_READING
        if value < before:
            return WENT_BACKWARDS
        if elapsed_s <= 0.0:
            # Keep the earlier reading as base: the present growth belongs to the next interval.
            self._value, self._at_s = before, now_s - elapsed_s
            return NO_TIME_PASSED
        return (value - before) / elapsed_s
