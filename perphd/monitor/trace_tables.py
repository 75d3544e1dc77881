"""The tables of Alibaba's cluster-trace-v2023, as rows: node use, pods, and pod use.

A row has the columns that are published, in their order; -1 means unavailable (for a time, an empty cell). The
published trace is scaled to 0..1 in each column; a trace that perphd writes has CPUs, bytes, milliseconds and
ratios. The publication does not define ``pod_cpu_limit_usage``. perphd takes it for the amount of CPU used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from perphd.domain.reading import Reading, Unavailable
from perphd.domain.trace import MachineUse, TraceMachine, TraceWorkload, WorkloadUse
from perphd.domain.workload import Kind

NODES: Final = "NodeResourceUsage/node_resource_usage_0.csv"
PODS: Final = "PodMetaInfo/pod_meta_info.csv"
POD_USE: Final = "PodResourceUsage/pod_resource_usage_0.csv"
NODE_COLUMNS: Final[Mapping[str, str]] = {
    "collect_timestamp": "at_s", "node_name": "machine", "node_cpu_usage": "cpu", "node_memory_util": "memory_share",
    "node_memory_total_bytes": "memory", "node_network_bandwidth": "network_capacity_bytes_per_s",
    "node_network_receive_bps": "network_in_bytes_per_s", "node_network_transmit_bps": "network_out_bytes_per_s",
    "node_cpu_cores": "cpus", "node_disk_io_usage": "disk_io_share",
}  # fmt: skip
"""Columns as published, and the fields of ``MachineUse`` or, for capacities, of ``TraceMachine``."""
CAPACITIES: Final = ("cpus", "memory")
POD_COLUMNS: Final[Mapping[str, str]] = {
    "create_timestamp": "submitted_s", "pod": "workload", "cpu": "cpu_request", "memory": "memory_request",
    "disk": "disk_request", "cpu_limit": "cpu_limit", "memory_limit": "memory_limit", "disk_limit": "disk_limit",
    "qos": "qos",
}  # fmt: skip
_STALLS: Final = tuple(
    f"{{}}_{how}_{window}"
    for window in ("10_pct", "60_pct", "300_pct", "total_us")
    for how in ("full", "some")
)
PSI_COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "cpu_psi": ("cpu_some_10_pct", "cpu_some_60_pct", "cpu_some_300_pct", "cpu_some_total_us"),
    "mem_psi": tuple(name.format("memory") for name in _STALLS),
    "disk_psi": tuple(name.format("io") for name in _STALLS),
}
"""Columns that hold several numbers, separated by semicolons, and their fields."""
POD_USE_COLUMNS: Final[Mapping[str, str]] = {
    "collect_timestamp": "at_s", "node_name": "machine", "pod": "workload", "app_group": "app",
    "pod_cpu_limit_usage": "cpu", "pod_cpu_request_util": "cpu_of_request", "pod_memory_util": "memory_of_request",
    "pod_memory_usage_bytes": "memory", "pod_disk_read_bps_total": "read_bytes_per_s",
    "pod_disk_write_bps_total": "write_bytes_per_s", "pod_disk_read_iops_total": "reads_per_s",
    "pod_disk_write_iops_total": "writes_per_s", "pod_network_transmit_bytes_ps_total": "network_out_bytes_per_s",
    "pod_network_receive_bytes_ps_total": "network_in_bytes_per_s", "cpu_psi": "", "mem_psi": "", "disk_psi": "",
    "web_qps": "web_rate_per_s", "qps": "rate_per_s", "rt": "response_time_ms",
}  # fmt: skip
QOS_KINDS: Final[Mapping[str, Kind]] = {"LS": Kind.LRA, "LSR": Kind.LRA, "BE": Kind.BATCH}
"""Kind of workload that each value of the column ``qos`` means to perphd. Other values have no objective."""
QOS_OF: Final[Mapping[Kind | None, str]] = {Kind.LRA: "LS", Kind.BATCH: "BE", None: ""}


def node_row(use: MachineUse, machine: TraceMachine) -> list[str]:
    """A row of node use; capacities are the machine's."""
    return [_cell(getattr(machine if field in CAPACITIES else use, field)) for field in NODE_COLUMNS.values()]


def pod_row(workload: TraceWorkload) -> list[str]:
    """A row of the table of pods."""
    submitted_s, *others = (getattr(workload, field) for field in POD_COLUMNS.values())
    # A missing time is an empty cell, because readers do not take -1 for a missing time.
    return ["" if isinstance(submitted_s, Unavailable) else _cell(submitted_s), *map(_cell, others)]


def pod_use_row(use: WorkloadUse) -> list[str]:
    """A row of pod use."""
    return [
        _cell(getattr(use, field)) if field else _together(use, PSI_COLUMNS[column])
        for column, field in POD_USE_COLUMNS.items()
    ]


def _together(use: WorkloadUse, fields: Sequence[str]) -> str:
    return ";".join(_cell(getattr(use, field)) for field in fields)


def _cell(value: Reading | str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Unavailable):
        return "-1"
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))
