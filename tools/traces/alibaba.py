"""Alibaba's cluster-trace-v2017, v2018 and v2023: the tables as published, and the meaning of their columns.

In v2017 and v2018, CPU is in hundredths of a core and memory is a share of the largest machine. Utilisations of -1 and
101 are invalid; a time of 0 lies before or after the trace.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any, Final

from perphd.domain.reading import NOT_MEASURED, Reading, available
from perphd.domain.trace import MachineUse, TraceMachine, TraceRecord, TraceWorkload, WorkloadUse
from perphd.domain.workload import Kind
from perphd.monitor.trace_tables import (
    CAPACITIES,
    NODE_COLUMNS,
    POD_COLUMNS,
    POD_USE_COLUMNS,
    PSI_COLUMNS,
    QOS_KINDS,
)
from tools.traces.rows import BadRow, Format, Row, Table

_PCT: Final = 0.01
_INVALID: Final = (-1.0, 101.0)
_LARGEST: Final = "share of the largest machine"
_MOST_KNOWN: Final = 200_000
"""Number of machines whose capacity is remembered, to record it only when it changes."""


def _share(row: Row, column: str) -> Reading:
    return row.number(column, _PCT, _INVALID, most=100.0)


def _time(row: Row, column: str) -> Reading:
    if not row.text(column):
        return NOT_MEASURED
    at_s = row.time_s(column)
    return at_s if at_s else NOT_MEASURED


def _ended(row: Row, column: str, state: str) -> Reading:
    return _time(row, column) if state in ("terminated", "failed", "cancelled") else NOT_MEASURED


# --- v2017 -----------------------------------------------------------------------------------------------------


def _server_event(row: Row) -> Iterator[TraceRecord]:
    yield TraceMachine(
        row.time_s("timestamp"), row.name("machine_id"), row.number("cpus"), row.number("memory"),
        row.text("event_type").lower() == "add",
    )  # fmt: skip


def _server_usage(row: Row) -> Iterator[TraceRecord]:
    yield MachineUse(
        row.time_s("timestamp"), row.name("machine_id"), cpu_share=_share(row, "cpu"),
        memory_share=_share(row, "memory"), disk_share=_share(row, "disk"), load1=row.number("load1", absent=(-1,)),
    )  # fmt: skip


def _task_2017(row: Row) -> Iterator[TraceRecord]:
    task = f"{row.text('job_id')}/{row.name('task_id')}"
    state = row.text("status").lower()
    yield TraceWorkload(
        task, task, Kind.BATCH, state=state, submitted_s=_time(row, "create_timestamp"),
        end_s=_ended(row, "modify_timestamp", state), instances=row.number("instances"),
        cpu_request=row.number("plan_cpu", _PCT), memory_request=row.number("plan_mem"),
    )  # fmt: skip


def _instance_2017(row: Row) -> Iterator[TraceRecord]:
    # Some rows lack job and task, as the trace's page states; they are still runs on a machine.
    task = f"{row.text('job_id')}/{row.text('task_id')}"
    state = row.name("status").lower()
    yield TraceWorkload(
        f"{task}/{row.line}", "" if task == "/" else task, Kind.BATCH, state=state, machine=row.text("machine_id"),
        start_s=_time(row, "start_timestamp"), end_s=_ended(row, "end_timestamp", state),
        cpu_max=row.number("cpu_max"), cpu_mean=row.number("cpu_avg"),
        memory_max=row.number("mem_max"), memory_mean=row.number("mem_avg"),
    )  # fmt: skip


def _container_event(row: Row) -> Iterator[TraceRecord]:
    event = row.name("event").lower()
    at_s = _time(row, "ts")
    created = event == "create"
    yield TraceWorkload(
        row.name("instance_id"), kind=Kind.LRA, state=event, machine=row.text("machine_id"),
        start_s=at_s if created else NOT_MEASURED, end_s=NOT_MEASURED if created else at_s,
        cpu_request=row.number("plan_cpu"), memory_request=row.number("plan_mem"), disk_request=row.number("plan_disk"),
    )  # fmt: skip


def _container_usage_2017(row: Row) -> Iterator[TraceRecord]:
    yield WorkloadUse(
        row.time_s("ts"), row.name("instance_id"), interval_s=300.0, cpu_of_request=_share(row, "cpu_util"),
        memory_of_request=_share(row, "mem_util"), cpi=row.number("avg_cpi"), llc_mpki=row.number("avg_mpki"),
    )  # fmt: skip


def v2017() -> Format:
    """1300 machines, 12 hours."""
    return Format(
        "alibaba-v2017",
        (
            Table("server_event", r"server_event", (
                "timestamp", "machine_id", "event_type", "event_detail", "cpus", "memory", "disk"), _server_event),
            Table("server_usage", r"server_usage", (
                "timestamp", "machine_id", "cpu", "memory", "disk", "load1", "load5", "load15"), _server_usage),
            Table("batch_task", r"batch_task", (
                "create_timestamp", "modify_timestamp", "job_id", "task_id", "instances", "status", "plan_cpu",
                "plan_mem"), _task_2017),
            Table("batch_instance", r"batch_instance", (
                "start_timestamp", "end_timestamp", "job_id", "task_id", "machine_id", "status", "seq_no",
                "total_seq_no", "cpu_max", "cpu_avg", "mem_max", "mem_avg"), _instance_2017),
            Table("container_event", r"container_event", (
                "ts", "event", "instance_id", "machine_id", "plan_cpu", "plan_mem", "plan_disk", "cpuset"),
                _container_event),
            Table("container_usage", r"container_usage", (
                "ts", "instance_id", "cpu_util", "mem_util", "disk_util", "load1", "load5", "load15", "avg_cpi",
                "avg_mpki", "max_cpi", "max_mpki"), _container_usage_2017),
        ),
        "CPUs", _LARGEST,
    )  # fmt: skip


# --- v2018 -----------------------------------------------------------------------------------------------------


def _machine_meta(row: Row) -> Iterator[TraceRecord]:
    yield TraceMachine(
        row.time_s("time_stamp"), row.name("machine_id"), row.number("cpu_num"), _share(row, "mem_size")
    )


def _machine_usage(row: Row) -> Iterator[TraceRecord]:
    yield MachineUse(
        row.time_s("time_stamp"), row.name("machine_id"), cpu_share=_share(row, "cpu_util_percent"),
        memory_share=_share(row, "mem_util_percent"), disk_io_share=_share(row, "disk_io_percent"),
        memory_bandwidth=_share(row, "mem_gps"), llc_mpki=row.number("mkpi", absent=_INVALID[:1]),
    )  # fmt: skip


def _container_meta(row: Row) -> Iterator[TraceRecord]:
    state = row.text("status").lower()
    at_s = _time(row, "time_stamp")
    yield TraceWorkload(
        row.name("container_id"), row.text("app_du"), Kind.LRA, state=state, machine=row.text("machine_id"),
        start_s=at_s if state == "started" else NOT_MEASURED, end_s=at_s if state == "stopped" else NOT_MEASURED,
        cpu_request=row.number("cpu_request", _PCT), cpu_limit=row.number("cpu_limit", _PCT),
        memory_request=_share(row, "mem_size"),
    )  # fmt: skip


def _container_usage(row: Row) -> Iterator[TraceRecord]:
    yield WorkloadUse(
        row.time_s("time_stamp"), row.name("container_id"), machine=row.text("machine_id"),
        cpu_of_request=_share(row, "cpu_util_percent"), memory_of_request=_share(row, "mem_util_percent"),
        cpi=row.number("cpi", absent=_INVALID[:1]), llc_mpki=row.number("mpki", absent=_INVALID[:1]),
    )  # fmt: skip


def _task_2018(row: Row) -> Iterator[TraceRecord]:
    task = f"{row.name('job_name')}/{row.name('task_name')}"
    state = row.text("status").lower()
    yield TraceWorkload(
        task, task, Kind.BATCH, state=state, start_s=_time(row, "start_time"), end_s=_ended(row, "end_time", state),
        instances=row.number("instance_num"), cpu_request=row.number("plan_cpu", _PCT),
        memory_request=_share(row, "plan_mem"),
    )  # fmt: skip


def _instance_2018(row: Row) -> Iterator[TraceRecord]:
    task = f"{row.name('job_name')}/{row.name('task_name')}"
    state = row.text("status").lower()
    yield TraceWorkload(
        f"{task}/{row.name('instance_name')}", task, Kind.BATCH, state=state, machine=row.text("machine_id"),
        start_s=_time(row, "start_time"), end_s=_ended(row, "end_time", state),
        cpu_mean=row.number("cpu_avg", _PCT), cpu_max=row.number("cpu_max", _PCT),
        memory_mean=_share(row, "mem_avg"), memory_max=_share(row, "mem_max"),
    )  # fmt: skip


def v2018() -> Format:
    """4000 machines, 8 days."""
    return Format(
        "alibaba-v2018",
        (
            Table("machine_meta", r"machine_meta", (
                "machine_id", "time_stamp", "failure_domain_1", "failure_domain_2", "cpu_num", "mem_size", "status"),
                _machine_meta),
            Table("machine_usage", r"machine_usage", (
                "machine_id", "time_stamp", "cpu_util_percent", "mem_util_percent", "mem_gps", "mkpi", "net_in",
                "net_out", "disk_io_percent"), _machine_usage, time="time_stamp", within="machine_id"),
            Table("container_meta", r"container_meta", (
                "container_id", "machine_id", "time_stamp", "app_du", "status", "cpu_request", "cpu_limit",
                "mem_size"), _container_meta),
            Table("container_usage", r"container_usage", (
                "container_id", "machine_id", "time_stamp", "cpu_util_percent", "mem_util_percent", "cpi", "mem_gps",
                "mpki", "net_in", "net_out", "disk_io_percent"), _container_usage, time="time_stamp",
                within="container_id"),
            Table("batch_task", r"batch_task", (
                "task_name", "instance_num", "job_name", "task_type", "status", "start_time", "end_time", "plan_cpu",
                "plan_mem"), _task_2018),
            Table("batch_instance", r"batch_instance", (
                "instance_name", "task_name", "job_name", "task_type", "status", "start_time", "end_time",
                "machine_id", "seq_no", "total_seq_no", "cpu_avg", "cpu_max", "mem_avg", "mem_max"), _instance_2018),
        ),
        "CPUs", _LARGEST,
    )  # fmt: skip


# --- v2023 -----------------------------------------------------------------------------------------------------


def _field(row: Row, column: str, field: str) -> Any:
    """The field of a record for a column of v2023."""
    if field in ("at_s", "submitted_s"):
        return row.time_s(column) if row.text(column) or field == "at_s" else NOT_MEASURED
    if field in ("machine", "workload"):
        return row.name(column)
    return row.text(column) if field in ("app", "qos") else row.number(column, absent=(-1.0,))


def _fields(row: Row, columns: Mapping[str, str]) -> dict[str, Any]:
    return {field: _field(row, column, field) for column, field in columns.items() if field}


class _Nodes:
    """Node rows repeat the capacity, so a machine is recorded only when it changes."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[Reading, Reading]] = OrderedDict()

    def __call__(self, row: Row) -> Iterator[TraceRecord]:
        found = _fields(row, NODE_COLUMNS)
        cpus, memory = (found.pop(name) for name in CAPACITIES)
        use = MachineUse(**found)
        if self._known.get(use.machine) != (cpus, memory):
            yield TraceMachine(use.at_s, use.machine, cpus, memory)
            self._known[use.machine] = cpus, memory
            if len(self._known) > _MOST_KNOWN:
                self._known.popitem(last=False)
        share = use.cpu / cpus if available(use.cpu) and available(cpus) and cpus > 0 else NOT_MEASURED
        yield MachineUse(**found | {"cpu_share": share})


def _pod(row: Row) -> Iterator[TraceRecord]:
    found = _fields(row, POD_COLUMNS)
    yield TraceWorkload(**found, kind=QOS_KINDS.get(found["qos"].upper()))


def _pod_use(row: Row) -> Iterator[TraceRecord]:
    found = _fields(row, POD_USE_COLUMNS)
    for column, fields in PSI_COLUMNS.items():
        cells = [cell.strip() for cell in row.text(column).split(";")]
        if cells in ([""], ["-1"], ["-1.0"]):
            continue
        if len(cells) != len(fields):
            raise BadRow(f"{column} has not {len(fields)} numbers")
        parts = Row(dict(zip(fields, cells, strict=True)), row.line)
        found |= {name: parts.number(name, absent=(-1.0,)) for name in fields}
    yield WorkloadUse(**found)


def v2023() -> Format:
    """9000 machines, a week; also what ``perphctl trace export`` writes."""
    return Format(
        "alibaba-v2023",
        (
            Table("node use", r"(?i)node_?resource_?usage", tuple(NODE_COLUMNS), _Nodes(), time="collect_timestamp"),
            Table("pods", r"(?i)pod_?meta_?info", tuple(POD_COLUMNS), _pod),
            Table("pod use", r"(?i)pod_?resource_?usage", tuple(POD_USE_COLUMNS), _pod_use, time="collect_timestamp"),
        ),
        "share of the largest value", "share of the largest value",
    )  # fmt: skip
