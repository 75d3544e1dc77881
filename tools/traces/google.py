"""Google's clusterdata-2011-2 (CSV parts without headers) and 2019 (tables of BigQuery as JSON lines or CSV).

Times are microseconds, 0 before the trace and 2^63-1 after it. CPU and memory are shares of the largest machine.
Latency classes 2 and 3 are LRAs, 0 and 1 batch. A task's application is its job; a job's application is its logical
name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from perphd.domain.trace import TraceMachine, TraceRecord, TraceWorkload, WorkloadUse
from perphd.domain.workload import Kind
from tools.traces.rows import BadRow, Format, Row, Table

_US: Final = 1e-6
_AFTER: Final = float(2**63 - 1)
_LARGEST: Final = "share of the largest machine"
_STATES_2011: Final = ("submit", "schedule", "evict", "fail", "finish", "kill", "lost", "update", "update")
_STATES_2019: Final = (
    "submit", "queue", "enable", "schedule", "evict", "fail", "finish", "kill", "lost", "update", "update"
)  # fmt: skip
_ENDS: Final = ("evict", "fail", "finish", "kill", "lost")
_ALLOC_SET: Final = 1.0


def _state(row: Row, column: str, states: tuple[str, ...]) -> str:
    cell = row.name(column)
    if (word := cell.lower().partition("_")[0]) in states:  # UPDATE_RUNNING is an update
        return word
    if not cell.isdigit() or int(cell) >= len(states):
        raise BadRow(f"{column} is unknown")
    return states[int(cell)]


def _life(row: Row, time: str, state: str) -> dict[str, Any]:
    """The meaning of an event: submitted, started or ended."""
    field = {"submit": "submitted_s", "schedule": "start_s"}.get(state, "end_s" if state in _ENDS else "")
    at = row.number(time, absent=(0.0, _AFTER), most=_AFTER)
    return {field: at * _US} if field and isinstance(at, float) else {}


def _kind(row: Row) -> Kind | None:
    latency = row.number("scheduling_class", most=3)
    return None if not isinstance(latency, float) else Kind.LRA if latency >= 2 else Kind.BATCH


def _machine(row: Row, removed: str) -> TraceMachine:
    return TraceMachine(
        row.time_s("time", _US), row.name("machine_id"), row.number("capacity_cpus"), row.number("capacity_memory"),
        row.text("type") not in (removed, "REMOVE"),
    )  # fmt: skip


def _machine_2011(row: Row) -> Iterator[TraceRecord]:
    yield _machine(row, "1")


def _machine_2019(row: Row) -> Iterator[TraceRecord]:
    yield _machine(row, "2")


def _placed_on(row: Row) -> str:
    machine = row.text("machine_id")
    return "" if machine in ("0", "-1") else machine


def _job_2011(row: Row) -> Iterator[TraceRecord]:
    state = _state(row, "type", _STATES_2011)
    yield TraceWorkload(
        row.name("job_id"), row.text("logical_name"), _kind(row), state=state, **_life(row, "time", state)
    )


def _task_2011(row: Row) -> Iterator[TraceRecord]:
    state = _state(row, "type", _STATES_2011)
    yield TraceWorkload(
        f"{row.name('job_id')}/{row.name('task_index')}", row.name("job_id"), _kind(row), state=state,
        machine=_placed_on(row), cpu_request=row.number("cpu_request"), memory_request=row.number("memory_request"),
        disk_request=row.number("disk_request"), **_life(row, "time", state),
    )  # fmt: skip


def _use_2011(row: Row) -> Iterator[TraceRecord]:
    start_s = row.time_s("start_time", _US)
    yield WorkloadUse(
        start_s, f"{row.name('job_id')}/{row.name('task_index')}", row.name("job_id"), _placed_on(row),
        interval_s=_interval(row, start_s), cpu=row.number("cpu"), cpu_max=row.number("cpu_max"),
        memory=row.number("memory"), memory_max=row.number("memory_max"), cpi=row.number("cpi"),
    )  # fmt: skip


def _interval(row: Row, start_s: float) -> float:
    interval_s = row.time_s("end_time", _US) - start_s
    if interval_s < 0:
        raise BadRow("the row ends before it starts")
    return interval_s


def v2011() -> Format:
    """12 500 machines, 29 days."""
    return Format(
        "google-2011",
        (
            Table("machine_events", r"machine_events", (
                "time", "machine_id", "type", "platform", "capacity_cpus", "capacity_memory"), _machine_2011,
                time="time", scale=_US),
            Table("job_events", r"job_events", (
                "time", "missing", "job_id", "type", "user", "scheduling_class", "name", "logical_name"), _job_2011),
            Table("task_events", r"task_events", (
                "time", "missing", "job_id", "task_index", "machine_id", "type", "user", "scheduling_class",
                "priority", "cpu_request", "memory_request", "disk_request", "different_machine"), _task_2011,
                time="time", scale=_US),
            Table("task_usage", r"task_usage", (
                "start_time", "end_time", "job_id", "task_index", "machine_id", "cpu", "memory", "memory_assigned",
                "page_cache_unmapped", "page_cache", "memory_max", "disk_io_time", "disk_space", "cpu_max",
                "disk_io_time_max", "cpi", "mai", "sample_portion", "aggregation_type", "cpu_sampled"), _use_2011,
                least=19, time="start_time", scale=_US),
        ),
        _LARGEST, _LARGEST,
    )  # fmt: skip


def _collection(row: Row) -> Iterator[TraceRecord]:
    if row.number("collection_type") == _ALLOC_SET:
        return
    state = _state(row, "type", _STATES_2019)
    yield TraceWorkload(
        row.name("collection_id"), row.text("collection_logical_name"), _kind(row), state=state,
        **_life(row, "time", state),
    )  # fmt: skip


def _instance(row: Row) -> Iterator[TraceRecord]:
    if row.number("collection_type") == _ALLOC_SET:
        return
    state = _state(row, "type", _STATES_2019)
    yield TraceWorkload(
        f"{row.name('collection_id')}/{row.name('instance_index')}", row.name("collection_id"), _kind(row),
        state=state, machine=_placed_on(row), cpu_request=row.number("resource_request_cpus"),
        memory_request=row.number("resource_request_memory"), **_life(row, "time", state),
    )  # fmt: skip


def _use_2019(row: Row) -> Iterator[TraceRecord]:
    if row.number("collection_type") == _ALLOC_SET:
        return
    start_s = row.time_s("start_time", _US)
    yield WorkloadUse(
        start_s, f"{row.name('collection_id')}/{row.name('instance_index')}", row.name("collection_id"),
        _placed_on(row), interval_s=_interval(row, start_s), cpu=row.number("average_usage_cpus"),
        cpu_max=row.number("maximum_usage_cpus"), memory=row.number("average_usage_memory"),
        memory_max=row.number("maximum_usage_memory"), cpi=row.number("cycles_per_instruction"),
    )  # fmt: skip


def v2019() -> Format:
    """Eight cells, May 2019. Rows of BigQuery are in no order; CSV needs a header."""
    return Format(
        "google-2019",
        (
            Table("machine_events", r"machine_events", (
                "time", "machine_id", "type", "switch_id", "capacity_cpus", "capacity_memory"), _machine_2019),
            Table("collection_events", r"collection_events", ("time", "type", "collection_id"), _collection),
            Table("instance_events", r"instance_events", ("time", "type", "collection_id"), _instance),
            Table("instance_usage", r"instance_usage", ("start_time", "end_time", "collection_id"), _use_2019),
        ),
        _LARGEST, _LARGEST,
    )  # fmt: skip
