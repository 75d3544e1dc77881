"""The condition of a workload in one word, for people."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from perphd.domain.allocation import Settings
from perphd.domain.decision import Decision, Health
from perphd.domain.progress import IDLE_CORES, is_starved
from perphd.domain.reading import Reading, available, value_or
from perphd.domain.sample import Quality, Sample
from perphd.domain.signals import performance

STALLS_PCT: Final = 50.0
"""Pressure, in % of the time, from which an application that completes nothing counts as stalled."""
THROTTLED_PCT: Final = 50.0
"""Throttled share of time, in %, from which batch counts as throttled by its own CPU quota."""


class BatchCondition(StrEnum):
    """Conditions of a batch workload."""

    RUNNING = "running"
    STARVED = "starved"  # the workload waits for a CPU and gets none
    THROTTLED = "throttled"  # its own quota holds it back
    FROZEN = "frozen"  # perphd has stopped it
    IDLE = "idle"  # it demands no CPU time
    GONE = "gone"  # its control group does not exist, or has no process


class LraCondition(StrEnum):
    """Conditions of an LRA that its health does not express."""

    NO_LOAD = "no load"  # the application receives no requests
    STALLED = "stalled"  # requests wait, none is completed
    BELOW_TARGET = "below target"  # its last sample misses the target, though its health is good


def batch_condition(sample: Sample | None, in_force: Settings) -> BatchCondition:
    """The condition of a batch workload, from its last sample and the settings in force."""
    if sample is None or sample.has(Quality.GONE) or (available(sample.threads) and sample.threads == 0.0):
        return BatchCondition.GONE
    if in_force.frozen is True:
        return BatchCondition.FROZEN
    if value_or(sample.cpu_throttled_pct, 0.0) >= THROTTLED_PCT:
        return BatchCondition.THROTTLED
    if available(sample.cpu_usage_cores) and sample.cpu_usage_cores >= IDLE_CORES:
        return BatchCondition.RUNNING
    return BatchCondition.STARVED if is_starved(sample) else BatchCondition.IDLE


def lra_condition(sample: Sample | None, decision: Decision | None, percentile: str) -> LraCondition | None:
    """The condition of an LRA; None if its health already describes it.

    ``sample``: the last sample that holds a new report of the LRA's SLI.
    """
    if sample is None or sample.has(Quality.GONE):
        return None
    if available(sample.work_rate_per_s) and sample.work_rate_per_s == 0.0:
        return LraCondition.STALLED if _waits(sample) else LraCondition.NO_LOAD
    if decision is None or decision.verdict.health not in (Health.HEALTHY, Health.OVERPROVISIONED):
        return None
    seen = performance(sample, percentile)
    short = _is_less(seen.work, decision.target_work) or _is_less(decision.target_delay, seen.delay)
    return LraCondition.BELOW_TARGET if short else None


def _waits(sample: Sample) -> bool:
    """True if an application that completes nothing has requests to work on."""
    if available(sample.load_per_s):
        return sample.load_per_s > 0.0
    stalls = (sample.cpu_some_pct, sample.memory_some_pct, sample.io_some_pct, sample.cpu_throttled_pct)
    return any(value_or(stall, 0.0) >= STALLS_PCT for stall in stalls)


def _is_less(a: Reading, b: Reading) -> bool:
    return available(a) and available(b) and a < b
