"""The event that reduces copper: its record in the state directory, and the share that copper gets now."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from perphd.domain.errors import ConfigError
from perphd.domain.queue import EventStatus
from perphd.domain.wire import WireError
from perphd.host.state_files import replace_text
from perphd.qos.event_mode import CopperEvent, ended_now, event_of, event_record, share_at

FILE: Final = "event.json"
STEP: Final = 0.05
"""Step of shares during a ramp: ceilings change 20 times instead of in every round."""


class QueueEvent:
    """The event in force, if there is one. An unreadable record counts as no event; ``problem`` says why."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._event: CopperEvent | None = None
        self.problem = ""

    def read(self, now_s: float) -> None:
        """Load the record of an earlier daemon."""
        try:
            self._event = event_of(json.loads(self._path.read_text(encoding="utf-8")), now_s)
        except FileNotFoundError:
            self._event = None
        except (OSError, ValueError, WireError) as exc:
            self.problem = f"{self._path}: the event cannot be read: {exc}; no event is in force"

    def begin(self, event: CopperEvent) -> EventStatus:
        """Store a new event, which replaces any other. Raises ConfigError if it cannot be written."""
        self._write(event)
        self._event, self.problem = event, ""
        return EventStatus(
            self.share(event.begins_s), event.copper_share, event.ends_s, event.over_s, event.reason
        )

    def end(self, now_s: float) -> EventStatus | None:
        """End the event: its ramp begins. None if there is none. Raises ConfigError if it cannot be written."""
        if self.status(now_s) is None or self._event is None:
            return None
        ended = ended_now(self._event, now_s)
        self._write(ended)
        self._event = ended
        return self.status(now_s)

    def share(self, now_s: float) -> float:
        """The share of its offer that copper gets at ``now_s``, rounded to steps of ``STEP`` during a ramp."""
        share = share_at(self._event, now_s)
        return (
            share
            if share >= 1.0 or self._event is None
            else max(self._event.copper_share, int(share / STEP + 1e-9) * STEP)
        )

    def status(self, now_s: float) -> EventStatus | None:
        """The event; None if there is none, or it is over."""
        event = self._event
        if event is None or now_s >= event.over_s:
            return None
        return EventStatus(self.share(now_s), event.copper_share, event.ends_s, event.over_s, event.reason)

    def _write(self, event: CopperEvent | None) -> None:
        if event is None:
            try:
                self._path.unlink(missing_ok=True)
            except OSError as exc:
                raise ConfigError(str(self._path), "", f"cannot be removed: {exc.strerror}") from exc
            return
        replace_text(self._path, json.dumps(event_record(event)) + "\n")
