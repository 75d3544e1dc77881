"""Log of a simulated fleet's events: every start, end, eviction and rejection, and its replay."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class FleetEventKind(StrEnum):
    """What happened to a pod."""

    SUBMITTED = "submitted"
    STARTED = "started"
    ENDED = "ended"
    EVICTED = "evicted"  # for memory, or for another pod; it waits again
    CONFLICT = "conflict"  # another scheduler's proposal for the node scored higher


@dataclass(frozen=True, slots=True)
class FleetEvent:
    """One event. ``node``: -1 where there is none."""

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
            raise ValueError(f"{event} lies before {before_s:g} s")
        before_s = event.at_s
        if event.kind is FleetEventKind.SUBMITTED:
            known.add(event.pod)
        elif event.kind is FleetEventKind.STARTED:
            if event.pod not in known or event.pod in where:
                raise ValueError(f"{event}: the pod runs already, or nobody submitted it")
            where[event.pod] = event.node
        elif event.kind is not FleetEventKind.CONFLICT and where.pop(event.pod, None) != event.node:
            raise ValueError(f"{event}: the pod does not run there")
    return where


def digest(events: Iterable[FleetEvent]) -> str:
    """One value for a whole log: equal logs have equal digests."""
    found = hashlib.sha256()
    for event in events:
        found.update(f"{event.at_s!r} {event.kind} {event.pod} {event.node}\n".encode())
    return found.hexdigest()
