"""Change windows: weekly hours in which an operator allows riskier changes (``sat,sun 00:00-24:00``)."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY_MIN: Final = 24 * 60
ALLOWED: Final = (
    'days and times such as "mon-fri 02:00-05:00; sat,sun 00:00-24:00", or "" for always; '
    "a window over midnight is 22:00-04:00"
)
_SPAN: Final = re.compile(r"(\d{1,2}):(\d{2})-(\d{1,2}):(\d{2})")


@dataclass(frozen=True, slots=True)
class Span:
    """Part of one day of the week (0 is Monday), in minutes: ``start_min`` included, ``end_min`` excluded."""

    day: int
    start_min: int
    end_min: int


@dataclass(frozen=True, slots=True)
class ChangeWindow:
    """Spans of the week. Without spans it is always open."""

    spans: tuple[Span, ...] = ()

    def is_open(self, day: int, minute: int) -> bool:
        """True if minute ``minute`` of day ``day`` (0 is Monday) lies in one of the spans."""
        return not self.spans or any(
            span.day == day and span.start_min <= minute < span.end_min for span in self.spans
        )


def parse_window(text: str) -> ChangeWindow:
    """Parse a window (``ALLOWED`` states the format). Raises ValueError."""
    spans: list[Span] = []
    for part in filter(None, (piece.strip() for piece in text.lower().split(";"))):
        days, _, times = part.partition(" ")
        if not times:
            days, times = "mon-sun", days
        found = _SPAN.fullmatch(times.strip())
        if found is None:
            raise ValueError(f"has no times such as 02:00-05:00 in {part!r}")
        start_min, end_min = (_minute(*found.group(n, n + 1)) for n in (1, 3))
        if start_min in (end_min, DAY_MIN):
            raise ValueError(f"has a span in {part!r} that is empty or begins at 24:00")
        for day in _days(days):
            if start_min < end_min:
                spans.append(Span(day, start_min, end_min))
                continue
            spans.append(Span(day, start_min, DAY_MIN))
            if end_min:
                spans.append(Span((day + 1) % 7, 0, end_min))
    return ChangeWindow(tuple(spans))


def _minute(hour: str, minute: str) -> int:
    total = 60 * int(hour) + int(minute)
    if int(minute) > 59 or total > DAY_MIN:
        raise ValueError(f"has a time after 24:00, or minutes above 59: {hour}:{minute}")
    return total


def _days(text: str) -> list[int]:
    found: list[int] = []
    for piece in text.split(","):
        first, dash, last = piece.partition("-")
        if first not in DAYS or (dash and last not in DAYS):
            raise ValueError(f"has no day of the week in {piece!r} ({', '.join(DAYS)})")
        start = DAYS.index(first)
        count = (DAYS.index(last) - start) % 7 + 1 if dash else 1
        found += [(start + n) % 7 for n in range(count)]
    return list(dict.fromkeys(found))


class Window:
    """A configured change window. ``wall_clock``: returns seconds since the epoch."""

    def __init__(self, allow: str, wall_clock: Callable[[], float]) -> None:
        self._window, self._wall_clock = parse_window(allow), wall_clock

    def is_open(self) -> bool:
        """True if the operator allows riskier changes now."""
        if not self._window.spans:
            return True
        now = datetime.datetime.fromtimestamp(self._wall_clock()).astimezone()
        return self._window.is_open(now.weekday(), 60 * now.hour + now.minute)
