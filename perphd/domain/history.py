"""The stored history of a host: values in equal time slots, and the changes made in that time."""

from __future__ import annotations

from dataclasses import dataclass

from perphd.domain.event import EventKind
from perphd.domain.status import Change
from perphd.domain.workload import Kind


@dataclass(frozen=True, slots=True)
class WorkloadHistory:
    """One workload's history, one value per slot; None where nothing is stored.

    Values are means over the slot's samples. ``score``: median of performance divided by target (1: exactly on target);
    ``lowest``: the lowest score of the slot. ``health``: the worst health of the slot; empty where there was no
    decision. For batch, only the CPU values are present. ``*_source``: the signals behind work and delay
    (``domain.signals``).
    """

    workload: str
    kind: Kind
    work_source: str
    delay_source: str
    score: tuple[float | None, ...]
    lowest: tuple[float | None, ...]
    work: tuple[float | None, ...]
    target_work: tuple[float | None, ...]
    delay: tuple[float | None, ...]
    target_delay: tuple[float | None, ...]
    cpu_cores: tuple[float | None, ...]
    wanted_cores: tuple[float | None, ...]
    health: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HostHistory:
    """The host's history, one mean per slot in CPUs; None where nothing is stored.

    ``cpu_some_pct``: CPU pressure in %.
    """

    capacity: tuple[float | None, ...]
    lras: tuple[float | None, ...]
    batch: tuple[float | None, ...]
    undeclared: tuple[float | None, ...]
    idle: tuple[float | None, ...]
    cpu_some_pct: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event as stored, without its detail. ``workload``: empty if the event concerned the whole host."""

    at_s: float
    kind: EventKind
    workload: str
    text: str


@dataclass(frozen=True, slots=True)
class History:
    """``slots`` slots of ``step_s`` seconds each, starting at ``since_unix_s``.

    ``stored_since_unix_s``, ``stored_until_unix_s``: the time range that the store covers; None if it is empty.
    ``changes``: newest first. Their ``at_s`` is on the daemon's monotonic clock, negative for changes before
    its start.
    """

    since_unix_s: float
    step_s: float
    slots: int
    stored_since_unix_s: float | None
    stored_until_unix_s: float | None
    host: HostHistory
    workloads: tuple[WorkloadHistory, ...]
    changes: tuple[Change, ...] = ()
