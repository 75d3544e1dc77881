"""Whether the change window is open now, in the host's local time."""

from __future__ import annotations

import datetime
from collections.abc import Callable

from perphd.domain.window import parse_window


class Window:
    """One configured window. ``wall_clock``: seconds since 1970."""

    def __init__(self, allow: str, wall_clock: Callable[[], float]) -> None:
        self._window, self._wall_clock = parse_window(allow), wall_clock

    def is_open(self) -> bool:
        """True if the operator allows riskier changes now."""
        if not self._window.spans:
            return True
        now = datetime.datetime.fromtimestamp(self._wall_clock()).astimezone()
        return self._window.is_open(now.weekday(), 60 * now.hour + now.minute)
