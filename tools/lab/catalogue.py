"""The lab's catalogue by name: servers, their loads, and the cells (a load beside a batch job)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tools.lab.batch import JOBS
from tools.lab.load import Load
from tools.lab.servers import kafka, keyed, mariadb, postgresql
from tools.lab.servers.seam import Place, Server

SERVERS: dict[str, Callable[[Place], Server]] = {
    "mariadb": mariadb.MariaDb,
    "postgresql": postgresql.PostgreSql,
    "redis": keyed.Redis,
    "memcached": keyed.Memcached,
    "http": keyed.Http,
    "kafka": kafka.Kafka,
}
LOADS: dict[str, Load] = {
    load.name: load for load in (*mariadb.LOADS, *postgresql.LOADS, *keyed.LOADS, *kafka.LOADS)
}


@dataclass(frozen=True, slots=True)
class Cell:
    """A load and a batch job, e.g. ``closed-pi4``. ``usual``: run when no cell is named."""

    load: str
    job: str
    usual: bool = False

    @property
    def name(self) -> str:
        """Its name in options and reports."""
        return f"{self.load}-{self.job}"


_USUAL = ("closed-pi4", "open-pi4", "closed-stream2", "open-stream2", "slap-pi4")
CELLS = tuple(
    Cell(load, job, f"{load}-{job}" in _USUAL)
    for load, jobs in {
        "closed": JOBS,
        "open": JOBS,
        **dict.fromkeys((name for name in LOADS if name not in ("closed", "open")), ("pi4", "stream2")),
    }.items()
    for job in jobs
)
"""Every load beside both classic jobs; sysbench's beside all."""

GROUPS = {
    "paper": ("tpcc-pi4", "slap-pi4", "tpch-pi4", "kafka-pi4", "kafka-open-pi4"),
    "all": tuple(cell.name for cell in CELLS),
}
"""Names for several cells at once. ``paper``: those in which the Perph paper reports figures."""


def load_of(cell: str) -> Load:
    """The load of a cell, by the cell's name."""
    return LOADS[cell.rpartition("-")[0]]


def job_of(cell: str) -> str:
    """The name of a cell's batch job."""
    return cell.rpartition("-")[2]
