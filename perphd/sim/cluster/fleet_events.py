"""Log of a simulated fleet's events: every start, end, eviction and rejection, and its replay."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class FleetEventKind(StrEnum):
    """Kind of event in the life of a pod."""

    SUBMITTED = "submitted"
    STARTED = "started"
    ENDED = "ended"
    EVICTED = "evicted"  # for lack of memory or for another pod; the pod waits again
    CONFLICT = "conflict"  # another scheduler's proposal for the node scored higher


@dataclass(frozen=True, slots=True)
class FleetEvent:
    """One event. ``node``: -1 if the event concerns no node."""

    at_s: float
    kind: FleetEventKind
    pod: int
    node: int = -1


def replayed(events: Iterable[FleetEvent]) -> dict[int, int]:
    """Node of every pod that runs after these events.

    Raises:
        ValueError: the events contradict each other, or are out of order.
    """
    where: dict[int, int] = {}
    known: set[int] = set()
    before_s = float("-inf")
    for event in events:
        if event.at_s < before_s:
            raise ValueError(f"{event} is earlier than {before_s:g} s")
        before_s = event.at_s
        if event.kind is FleetEventKind.SUBMITTED:
            known.add(event.pod)
        elif event.kind is FleetEventKind.STARTED:
            if event.pod not in known or event.pod in where:
                raise ValueError(f"{event}: the pod is already running or was never submitted")
            where[event.pod] = event.node
        elif event.kind is not FleetEventKind.CONFLICT and where.pop(event.pod, None) != event.node:
            raise ValueError(f"{event}: the pod is not running on that node")
    return where


def digest(events: Iterable[FleetEvent]) -> str:
    """Digest of a whole log: equal logs have equal digests."""
    found = hashlib.sha256()
    for event in events:
        found.update(f"{event.at_s!r} {event.kind} {event.pod} {event.node}\n".encode())
    return found.hexdigest()
