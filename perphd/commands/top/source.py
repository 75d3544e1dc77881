"""Queries of ``perphctl top`` to the daemon as blocking calls: the present, the past, the history."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from perphd.commands.explain import REMEMBERED, answer_parts, explain_parts
from perphd.commands.view import View, view_of
from perphd.control.client import Client
from perphd.control.table import Part, text
from perphd.domain.event import EventKind
from perphd.domain.history import History, StoredEvent
from perphd.domain.status import AgentStatus
from perphd.domain.topology import Topology
from perphd.domain.wire import decode

TOPOLOGY_S: Final = 60.0
"""Seconds between two reads of the processors, since CPUs can be hot-plugged."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Everything about one moment. ``offset_s``: seconds since the epoch minus the daemon's monotonic clock.

    ``at_unix_s``: the moment of the past; None: now. ``events``: those up to a moment of the past, newest first.
    """

    status: AgentStatus
    view: View
    offset_s: float
    at_unix_s: float | None = None
    events: tuple[StoredEvent, ...] = ()
    stored_since_unix_s: float | None = None

    @property
    def unix_s(self) -> float:
        """The time of day of the shown moment."""
        return self.view.at_s + self.offset_s


@dataclass(frozen=True, slots=True)
class EventLine:
    """An event for display."""

    at_unix_s: float
    kind: str
    text: str

    def __str__(self) -> str:
        moment = datetime.datetime.fromtimestamp(self.at_unix_s)
        return f"{moment:%H:%M:%S}  {self.kind:<9} {self.text}"


class Source:
    """Queries one daemon. Every method raises the errors of ``Client.send``."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._topology: tuple[float, Topology] | None = None

    def now(self) -> Frame:
        """The present."""
        data = self._client.get("status")
        status, clock = decode(AgentStatus, data), data["clock"]
        now_s = float(clock["monotonic_s"])
        return Frame(status, view_of(status, self._processors(), now_s), float(clock["unix_s"]) - now_s)

    def at(self, unix_s: float) -> Frame:
        """A moment of the past."""
        data = self._client.get("past", at=f"{unix_s:.3f}")
        status, clock = decode(AgentStatus, data["status"], "status"), data["clock"]
        then_s = float(clock["monotonic_s"])
        return Frame(
            status,
            view_of(status, self._processors(), then_s),
            float(clock["unix_s"]) - then_s,
            unix_s,
            decode(tuple[StoredEvent, ...], data["events"], "events"),
            data["stored_since_unix_s"],
        )

    def history(self, last_s: float, slots: int, until_unix_s: float | None) -> History:
        """The last ``last_s`` seconds before a moment, or before now."""
        until = None if until_unix_s is None else f"{until_unix_s:.3f}"
        answer = self._client.get("history", last_s=f"{last_s:g}", slots=slots, until=until)
        return decode(History, answer)

    def explain(self, workload: str, frame: Frame) -> list[Part]:
        """Explanation of a workload, with the alternatives that were considered."""
        if frame.at_unix_s is None:
            data = self._client.get("explain", workload=workload, limit=REMEMBERED)
            return answer_parts(data, workload, verbose=True)
        item = next(item for item in frame.status.workloads if item.spec.name == workload)
        if item.decision is None:
            return [text(f"No decision about {workload} is stored from before then.")]
        return explain_parts([item.decision], frame.offset_s, verbose=True)

    def stored_events(self) -> list[EventLine]:
        """The last events, newest first."""
        return event_lines(self.at(time.time()))

    def events(self) -> Iterator[EventLine]:
        """Future events, as they happen."""
        offset_s = time.time() - time.monotonic()
        for name, data in self._client.events():
            if name == "hello":
                offset_s = data["clock"]["unix_s"] - data["clock"]["monotonic_s"]
            elif name != EventKind.TICK:
                yield event_line(name, data["workload"], data["text"], data["at_s"] + offset_s)

    def change(self, method: str, route: str, body: dict[str, Any]) -> Any:
        """Request a change."""
        return self._client.send(method, route, body)

    def _processors(self) -> Topology:
        now_s = time.monotonic()
        if self._topology is None or now_s - self._topology[0] > TOPOLOGY_S:
            data = self._client.get("doctor")
            self._topology = (now_s, decode(Topology, data["topology"], "topology"))
        return self._topology[1]


def event_lines(frame: Frame) -> list[EventLine]:
    """The events up to a moment of the past, newest first."""
    return [
        event_line(item.kind, item.workload, item.text, item.at_s + frame.offset_s) for item in frame.events
    ]


def event_line(kind: str, workload: str, said: str, at_unix_s: float) -> EventLine:
    """The text of an event, with the workload concerned."""
    return EventLine(at_unix_s, kind, f"{workload}: {said}" if workload else said)
