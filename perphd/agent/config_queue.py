"""Table ``[queue]``: the node's batch queue."""

from __future__ import annotations

from dataclasses import dataclass

from perphd.agent.config_schema import setting
from perphd.domain.units import parse_size_bytes


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """Table ``[queue]``."""

    enabled: bool = setting(
        False, "perphctl run takes jobs; they start when the host has room for them, as batch workloads"
    )
    group: str = setting(
        "perphd",
        "members may submit jobs, and see and cancel their own; to reach the socket they are also in daemon.read_group",
        kind="group",
    )
    most_running: int = setting(32, "jobs that run at the same time", low=1, high=256)
    most_waiting: int = setting(20_000, "further jobs are refused", low=1, high=100_000, expert=True)
    default_memory_bytes: int = setting(
        parse_size_bytes("1G"),
        "memory that a job without --memory is taken to need; it is not limited to it",
        kind="size",
        key="default_memory",
    )
    cpu_risk: float = setting(
        0.1,
        "a job starts if the probability that the host then lacks CPUs is at most this",
        low=0.001,
        high=1.0,
    )
    memory_risk: float = setting(
        0.01,
        "a job starts if the probability that the host then lacks memory is at most this",
        low=0.0001,
        high=1.0,
    )
    keep_h: float = setting(
        168.0, "jobs that have ended and their logs are deleted", low=0.1, high=8760.0, unit="h", expert=True
    )
