"""Announces events that happen now."""

from __future__ import annotations

import logging

from perphd.agent.records import Records
from perphd.agent.round_clock import RoundClock
from perphd.domain.control import Actor
from perphd.domain.event import Event, EventKind

log = logging.getLogger("perphd")


class Announcer:
    """Announces events with the time of the last round."""

    def __init__(self, records: Records, clock: RoundClock) -> None:
        self._records, self._clock = records, clock

    def tell(self, kind: EventKind, text: str, workload: str = "", by: Actor | None = None) -> None:
        """Announce an event that happens now; a requested one is also logged, with the requester."""
        event = Event(self._clock.now_s, kind, text, workload, by="" if by is None else str(by))
        self._records.event(event)
        if by is not None:
            fields = {"event": kind, "workload": workload, "by_uid": by.uid, "by_pid": by.pid}
            log.info("%s; by %s", text, by, extra={"fields": fields})
