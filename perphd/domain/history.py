"""The stored past of a host: values in equal slots of time, and the changes among them."""

from __future__ import annotations

from dataclasses import dataclass

from perphd.domain.event import EventKind
from perphd.domain.status import Change
from perphd.domain.workload import Kind


@dataclass(frozen=True, slots=True)
class WorkloadHistory:
    """One workload, a value per slot; None where nothing is stored. Values are means of the samples looked at.

    ``score``: performance by target, the median, 1 is on target; ``lowest``: the lowest of them; ``health``: the worst,
    empty where nothing was decided. Batch has CPUs alone. ``*_source``: what the numbers are (``domain.signals``).
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
    """The host, a mean per slot, in CPUs but for the last; None where nothing is stored."""

    capacity: tuple[float | None, ...]
    lras: tuple[float | None, ...]
    batch: tuple[float | None, ...]
    undeclared: tuple[float | None, ...]
    idle: tuple[float | None, ...]
    cpu_some_pct: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event as it is stored: without its detail. ``workload`` empty: the host's."""

    at_s: float
    kind: EventKind
    workload: str
    text: str


@dataclass(frozen=True, slots=True)
class History:
    """``slots`` slots of ``step_s`` seconds that begin at ``since_unix_s``.

    ``stored_since_unix_s``, ``stored_until_unix_s``: what the store holds at all; None: nothing. ``changes``: newest
    first; their ``at_s`` is on the daemon's present monotonic clock, and negative for what happened before it began.
    """

    since_unix_s: float
    step_s: float
    slots: int
    stored_since_unix_s: float | None
    stored_until_unix_s: float | None
    host: HostHistory
    workloads: tuple[WorkloadHistory, ...]
    changes: tuple[Change, ...] = ()
