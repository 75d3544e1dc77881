"""The VM traces of the Azure public dataset, V1 (2017) and V2 (2019).

A VM's application is its deployment. Utilisation is relative to the VM's own cores. In V2, sizes are buckets; the one
without an upper bound (">24") is unavailable.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from perphd.domain.reading import NOT_MEASURED, Reading
from perphd.domain.trace import TraceRecord, TraceWorkload, WorkloadUse
from perphd.domain.workload import Kind
from tools.traces.rows import Format, Row, Table

_KINDS: Final = {"delay-insensitive": Kind.BATCH, "interactive": Kind.LRA}
_GIB: Final = float(1 << 30)


def _bucket(row: Row, column: str, scale: float) -> Reading:
    return NOT_MEASURED if row.text(column).startswith(">") else row.number(column, scale)


def _of(share: Reading, cores: Reading) -> Reading:
    return share * cores if isinstance(share, float) and isinstance(cores, float) else NOT_MEASURED


def _vm(row: Row) -> Iterator[TraceRecord]:
    cores = _bucket(row, "vm_cores", 1.0)
    category = row.text("category")
    yield TraceWorkload(
        row.name("vm_id"), row.text("deployment_id"), _KINDS.get(category.lower()), category,
        submitted_s=row.time_s("created"), start_s=row.time_s("created"), end_s=row.time_s("deleted"),
        cpu_request=cores, memory_request=_bucket(row, "vm_memory_gb", _GIB),
        cpu_mean=_of(row.number("cpu_avg_pct", 0.01), cores), cpu_max=_of(row.number("cpu_max_pct", 0.01), cores),
    )  # fmt: skip


def _reading(row: Row) -> Iterator[TraceRecord]:
    yield WorkloadUse(
        row.time_s("timestamp"),
        row.name("vm_id"),
        interval_s=300.0,
        cpu_of_request=row.number("cpu_avg_pct", 0.01),
    )


def _format(name: str) -> Format:
    vm = (
        "vm_id", "subscription_id", "deployment_id", "created", "deleted", "cpu_max_pct", "cpu_avg_pct",
        "cpu_p95_pct", "category", "vm_cores", "vm_memory_gb",
    )  # fmt: skip
    readings = ("timestamp", "vm_id", "cpu_min_pct", "cpu_max_pct", "cpu_avg_pct")
    return Format(
        name,
        (
            Table("vmtable", r"vmtable", vm, _vm),
            Table("vm_cpu_readings", r"cpu_readings", readings, _reading, time="timestamp"),
        ),
        "CPUs", "bytes",
    )  # fmt: skip


def v1() -> Format:
    """2 million VMs, 30 days of 2016 to 2017."""
    return _format("azure-v1")


def v2() -> Format:
    """2.7 million VMs, 30 days of 2019."""
    return _format("azure-v2")
