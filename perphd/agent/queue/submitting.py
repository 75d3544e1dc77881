"""Checks submissions. A job that this host can never run is refused immediately, instead of being stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from perphd.agent.queue.planning import MEMORY_SHARE
from perphd.batch.job import JobSpec, QueuedJob
from perphd.config.tables import QueueConfig
from perphd.domain.errors import ConfigError
from perphd.domain.units import format_bytes
from perphd.qos.bands import MEMORY_LIMIT_RATIO


def refused(key: str, problem: str, allowed: str) -> ConfigError:
    """The refusal of a request, for its sender."""
    return ConfigError("request", key, problem, allowed)


def check(
    specs: Sequence[JobSpec],
    config: QueueConfig,
    capacity: tuple[float, float],
    find: Callable[[int], QueuedJob | None],
    waiting: int,
) -> None:
    """Check new jobs, all or none.

    Args:
        specs: the new jobs.
        config: the queue's limits.
        capacity: the host's CPUs, and its memory in bytes.
        find: returns the job with a number, or None.
        waiting: number of jobs already waiting.

    Raises:
        ConfigError: they are refused.
    """
    cpus, memory_bytes = capacity
    for spec in specs:
        if spec.cpus > cpus:
            raise refused("cores", f"{spec.cpus:g} are more CPUs than the host has", f"at most {cpus:g}")
        share = MEMORY_SHARE if spec.band.protected else MEMORY_LIMIT_RATIO
        most_bytes = share * memory_bytes
        if spec.memory_bytes > most_bytes:
            asked = f"a {spec.band} job of {format_bytes(float(spec.memory_bytes))}"
            most = f"{format_bytes(most_bytes)}, {share:.0%} of the host's memory"
            raise refused("memory", f"{asked} never starts", f"at most {most}")
        core = 1 if spec.elastic is None else spec.elastic[0]
        if spec.cpus * core > cpus or spec.memory_bytes * core > most_bytes:
            raise refused("elastic", f"the host has no room for {core} such workers", "a smaller core")
        if core > config.most_running:
            most = f"{config.most_running} ([tuning.queue] most_running)"
            raise refused("elastic", f"a core of {core} workers can never run", most)
        for number in spec.after:
            if find(number) is None:
                raise refused("after", f"there is no job {number}", "the number of a job")
    if waiting + len(specs) > config.most_waiting:
        most = f"{config.most_waiting} ([tuning.queue] most_waiting)"
        raise refused("queue", f"{waiting} jobs are already waiting", most)
