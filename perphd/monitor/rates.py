"""From ever-growing counters to rates over the interval that was really covered."""

from __future__ import annotations

from perphd.domain.reading import Reading, Unavailable

FIRST_READING = Unavailable("first reading: a rate needs two")
WENT_BACKWARDS = Unavailable("counter went backwards")
NO_TIME_PASSED = Unavailable("no time passed since the last reading")


class Rate:
    """One counter's growth per second. Remembers its own last reading, so a missed one widens the interval.

    ``update`` gives Unavailable for the first reading and when the counter went backwards; it is based anew then.
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
            # Keep the older base: the growth seen now belongs to the next interval.
            self._value, self._at_s = before, now_s - elapsed_s
            return NO_TIME_PASSED
        return (value - before) / elapsed_s
