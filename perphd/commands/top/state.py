"""The state of ``perphctl top``: data and selections. Pure except for its own fields."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from perphd.commands.top.rows import ORDERS
from perphd.commands.top.source import EventLine, Frame, event_lines
from perphd.domain.history import History

KEPT_EVENTS: Final = 500


@dataclass(slots=True)
class TopState:
    """``at_unix_s``: the chosen past moment; None: now. ``said``: a sentence, until the next key."""

    frame: Frame | None = None
    history: History | None = None
    problem: str = ""
    order: str = ORDERS[0]
    wanted: str = ""
    span: str = "1h"
    at_unix_s: float | None = None
    said: str = ""
    heard: deque[EventLine] = field(default_factory=lambda: deque(maxlen=KEPT_EVENTS))

    def events(self) -> list[EventLine]:
        """Events up to the shown moment, newest first."""
        if self.frame is not None and self.frame.at_unix_s is not None:
            return event_lines(self.frame)
        return list(self.heard)

    def take_stored(self, stored: list[EventLine]) -> None:
        """Add events from before this program started, or from a time when the daemon did not answer; newest first."""
        known = {(round(item.at_unix_s), item.text) for item in self.heard}
        missed = [item for item in stored if (round(item.at_unix_s), item.text) not in known]
        self.heard = deque(
            sorted([*self.heard, *missed], key=lambda item: -item.at_unix_s)[:KEPT_EVENTS], KEPT_EVENTS
        )

    def moments(self) -> list[float]:
        """Times of day of all known changes, oldest first."""
        if self.frame is None:
            return []
        known = {change.at_s for change in self.frame.view.changes}
        if self.history is not None:
            known |= {change.at_s for change in self.history.changes}
        return sorted(at_s + self.frame.offset_s for at_s in known)
