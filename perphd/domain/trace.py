"""Trace of a fleet: machines, workloads, and their resource use, independent of the published format.

Times are seconds from the start of the trace (negative: before it). ``cpu`` and ``memory`` are amounts in the
trace's units: CPUs and bytes for one's own hosts, mostly shares of the largest machine in published traces.
``*_of_request`` and ``*_share`` are ratios (1: all of it). Values missing from a trace are Unavailable, never
0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from perphd.domain.reading import NOT_MEASURED, Reading, Unavailable
from perphd.domain.workload import Kind


@dataclass(frozen=True, slots=True)
class TraceMachine:
    """A machine from ``at_s`` on. ``in_service``: False if it left the fleet at that time."""

    at_s: float
    machine: str
    cpus: Reading = NOT_MEASURED
    memory: Reading = NOT_MEASURED
    in_service: bool = True


@dataclass(frozen=True, slots=True)
class TraceWorkload:
    """Facts of one row about a workload: a pod, task instance or VM. Later rows of the same name add facts.

    - ``app``: the application that similar workloads share.
    - ``qos``, ``state``: as published.
    - ``submitted_s``: time of its request. ``start_s``, ``end_s``: time range of its run.
    - ``*_mean``, ``*_max``: mean and maximum over its whole run.
    """

    workload: str
    app: str = ""
    kind: Kind | None = None
    qos: str = ""
    state: str = ""
    machine: str = ""
    submitted_s: Reading = NOT_MEASURED
    start_s: Reading = NOT_MEASURED
    end_s: Reading = NOT_MEASURED
    instances: Reading = NOT_MEASURED
    cpu_request: Reading = NOT_MEASURED
    cpu_limit: Reading = NOT_MEASURED
    memory_request: Reading = NOT_MEASURED
    memory_limit: Reading = NOT_MEASURED
    disk_request: Reading = NOT_MEASURED
    disk_limit: Reading = NOT_MEASURED
    cpu_mean: Reading = NOT_MEASURED
    cpu_max: Reading = NOT_MEASURED
    memory_mean: Reading = NOT_MEASURED
    memory_max: Reading = NOT_MEASURED


@dataclass(frozen=True, slots=True)
class MachineUse:
    """Resource use of a machine at ``at_s``."""

    at_s: float
    machine: str
    cpu: Reading = NOT_MEASURED
    cpu_share: Reading = NOT_MEASURED
    memory_share: Reading = NOT_MEASURED
    disk_share: Reading = NOT_MEASURED
    disk_io_share: Reading = NOT_MEASURED
    network_capacity_bytes_per_s: Reading = NOT_MEASURED
    network_in_bytes_per_s: Reading = NOT_MEASURED
    network_out_bytes_per_s: Reading = NOT_MEASURED
    memory_bandwidth: Reading = NOT_MEASURED
    llc_mpki: Reading = NOT_MEASURED
    load1: Reading = NOT_MEASURED


@dataclass(frozen=True, slots=True)
class WorkloadUse:
    """Resource use and performance of a workload at ``at_s``. Stall shares (PSI) are in % of the last 10, 60 and
    300 s.
    """

    at_s: float
    workload: str
    app: str = ""
    machine: str = ""
    interval_s: Reading = NOT_MEASURED
    cpu: Reading = NOT_MEASURED
    cpu_of_request: Reading = NOT_MEASURED
    cpu_max: Reading = NOT_MEASURED
    memory: Reading = NOT_MEASURED
    memory_of_request: Reading = NOT_MEASURED
    memory_max: Reading = NOT_MEASURED
    read_bytes_per_s: Reading = NOT_MEASURED
    write_bytes_per_s: Reading = NOT_MEASURED
    reads_per_s: Reading = NOT_MEASURED
    writes_per_s: Reading = NOT_MEASURED
    network_out_bytes_per_s: Reading = NOT_MEASURED
    network_in_bytes_per_s: Reading = NOT_MEASURED
    cpu_some_10_pct: Reading = NOT_MEASURED
    cpu_some_60_pct: Reading = NOT_MEASURED
    cpu_some_300_pct: Reading = NOT_MEASURED
    cpu_some_total_us: Reading = NOT_MEASURED
    memory_full_10_pct: Reading = NOT_MEASURED
    memory_some_10_pct: Reading = NOT_MEASURED
    memory_full_60_pct: Reading = NOT_MEASURED
    memory_some_60_pct: Reading = NOT_MEASURED
    memory_full_300_pct: Reading = NOT_MEASURED
    memory_some_300_pct: Reading = NOT_MEASURED
    memory_full_total_us: Reading = NOT_MEASURED
    memory_some_total_us: Reading = NOT_MEASURED
    io_full_10_pct: Reading = NOT_MEASURED
    io_some_10_pct: Reading = NOT_MEASURED
    io_full_60_pct: Reading = NOT_MEASURED
    io_some_60_pct: Reading = NOT_MEASURED
    io_full_300_pct: Reading = NOT_MEASURED
    io_some_300_pct: Reading = NOT_MEASURED
    io_full_total_us: Reading = NOT_MEASURED
    io_some_total_us: Reading = NOT_MEASURED
    web_rate_per_s: Reading = NOT_MEASURED
    rate_per_s: Reading = NOT_MEASURED
    response_time_ms: Reading = NOT_MEASURED
    cpi: Reading = NOT_MEASURED
    llc_mpki: Reading = NOT_MEASURED


TraceRecord: TypeAlias = TraceMachine | TraceWorkload | MachineUse | WorkloadUse
RECORD_TABLES: Final[dict[str, type[TraceRecord]]] = {
    "machines": TraceMachine,
    "workloads": TraceWorkload,
    "machine_use": MachineUse,
    "workload_use": WorkloadUse,
}
"""Names of the tables of an imported trace."""
Cell: TypeAlias = str | float | int | None


def columns(kind: type[TraceRecord]) -> dict[str, str]:
    """Columns of a table of these records, with their SQL types."""
    return {
        name: "TEXT" if said in ("str", "Kind | None") else "REAL" for name, said in _FIELDS[kind].items()
    }


def to_row(record: TraceRecord) -> tuple[Cell, ...]:
    """The record as cells, in the order of ``columns``; None: unavailable."""
    values = (getattr(record, name) for name in _FIELDS[type(record)])
    return tuple(
        None if isinstance(value, Unavailable) else float(value) if isinstance(value, bool) else value
        for value in values
    )


def from_row(kind: type[TraceRecord], row: tuple[Any, ...]) -> TraceRecord:
    """Parse a record from cells. Cells may be text, as in a CSV file, where an empty cell is unavailable.

    Raises:
        ValueError: a cell is not a number.
    """
    return kind(*(_READERS[said](cell) for said, cell in zip(_FIELDS[kind].values(), row, strict=True)))


_FIELDS: Final[dict[type[TraceRecord], dict[str, str]]] = {
    kind: {f.name: str(f.type) for f in dataclasses.fields(kind)} for kind in RECORD_TABLES.values()
}
_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    "str": lambda cell: "" if cell is None else str(cell),
    "Kind | None": lambda cell: Kind(cell) if cell else None,
    "bool": lambda cell: bool(float(cell)),
    "float": float,
    "Reading": lambda cell: NOT_MEASURED if cell is None or cell == "" else float(cell),
}
