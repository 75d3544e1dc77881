"""The performance of a workload as perphd judges it: a work rate and a delay, each with its source.

Under open-loop load the work rate does not fall while latency explodes; in a closed loop both move. So an
LRA's performance is always this pair. Without a latency of the application's own, the stand-in is how long its
threads wait for a processor per unit of work (measured: run-queue delay per query has a rank correlation of +0.88
with p99 latency over all loads, queries/s +0.04).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from perphd.domain.reading import NOT_MEASURED, Reading, Unavailable, available
from perphd.domain.sample import Sample

READINGS: Final = (
    "cpu_usage_cores",
    "run_delay_cores",
    "cpu_some_pct",
    "mips",
    "work_rate_per_s",
    "latency_p50_ms",
    "latency_p95_ms",
    "latency_p99_ms",
)
"""The readings of a sample that ``performance`` needs, by name."""
SERVICE_PART = 0.1
"""Part of the CPU time that is added to waiting time, so that waiting twice as long as next to nothing is nothing."""


@dataclass(frozen=True, slots=True)
class Performance:
    """Work per second and delay of one sample; the sources say what the numbers are.

    ``work``: units of ``work_source`` per second (higher is better).
    ``delay``: units of ``delay_source`` (lower is better).
    ``load``: how much is asked of the application, or Unavailable.
    ``in_flight``: threads of it that ran or waited for a processor, on average: how busy it is kept.
    """

    work: Reading
    work_source: str
    delay: Reading
    delay_source: str
    load: Reading
    in_flight: Reading = NOT_MEASURED

    def in_flight_ratio(self, reference: float | None) -> float | None:
        """Threads in flight relative to the reference's; None if either is not known."""
        return self.in_flight / reference if available(self.in_flight) and reference else None


def performance(sample: Sample, latency_percentile: str = "p95") -> Performance:
    """Choose the best available work and delay signal of a sample.

    Work: the application's SLI, else MIPS, else CPU seconds per second. Delay: the SLI's latency percentile (ms),
    else waiting for a processor (plus ``SERVICE_PART`` of the CPU time) per unit of SLI work (ms) or per CPU
    second, else 1 + the CPU pressure share.
    """
    work, work_source = _work(sample)
    delay, delay_source = _delay(sample, latency_percentile)
    usage, waiting = sample.cpu_usage_cores, sample.run_delay_cores
    in_flight = usage + waiting if available(usage) and available(waiting) else NOT_MEASURED
    return Performance(work, work_source, delay, delay_source, sample.load_per_s, in_flight)


def _work(sample: Sample) -> tuple[Reading, str]:
    if available(sample.work_rate_per_s):
        return sample.work_rate_per_s, "sli"
    if available(sample.mips):
        return sample.mips, "mips"
    return sample.cpu_usage_cores, "cpu"


def _delay(sample: Sample, percentile: str) -> tuple[Reading, str]:
    latency = sample.reading(f"latency_{percentile}_ms")
    if available(latency):
        return latency, f"latency_{percentile}_ms"
    usage, waiting, work = sample.cpu_usage_cores, sample.run_delay_cores, sample.work_rate_per_s
    if available(usage) and available(waiting):
        waited = waiting + SERVICE_PART * usage
        if available(work) and work > 0:
            return waited / work * 1000.0, "wait_ms_per_work"
        if usage > 0:
            return waited / usage, "wait_per_cpu"
    if available(sample.cpu_some_pct):
        return 1.0 + sample.cpu_some_pct / 100.0, "cpu_pressure"
    return Unavailable("no latency, schedstat or PSI"), "none"


def score(perf: Performance, target_work: Reading, target_delay: Reading) -> Reading:
    """Performance divided by target, the worse of work and delay: at 1 and above the target is met."""
    scores = []
    if available(perf.work) and available(target_work) and target_work > 0:
        scores.append(perf.work / target_work)
    if available(perf.delay) and available(target_delay) and perf.delay > 0:
        scores.append(target_delay / perf.delay)
    return min(scores) if scores else Unavailable("no target, or nothing to compare with it")


def work_unit(source: str) -> str:
    """Unit of a work signal."""
    return {"sli": "/s", "mips": "MIPS", "cpu": "cores"}.get(source, "")


CPU_TIME_ONLY = "judged by CPU time only: a slowdown by cache or memory bandwidth cannot be seen"
NO_MISSES = (
    "cache misses are not counted: instructions that take longer beside others are seen, but cache, memory bandwidth "
    "and hyperthreads are told apart by traffic and busy siblings alone"
)
"""What must be said wherever work is CPU time: whoever needs more of it for the same work seems to do more."""
WAITING_RATIO = 1.15
"""Growth of delay from which something is believed to wait."""
SAME_LOAD_RATIO = 0.7
"""Threads in flight, relative to the reference, from which the load counts as what it was."""


def contended_ratio(
    work_ratio: float, delay_ratio: float | None, in_flight_ratio: float | None, closed: bool
) -> float:
    """The part of a fall of work that contention explains, as a work ratio of at most 1.

    If as many threads are in flight as at the reference, and they wait longer (or the load is a closed loop, which
    always asks again), all of the fall counts. If fewer are, less was asked for, and only what waiting explains
    counts: max(work ratio, 1 / delay ratio), by Little's law.

    Args:
        work_ratio: work rate / work rate at the reference.
        delay_ratio: delay / delay at the reference; None if there is no delay signal: all of the fall counts.
        in_flight_ratio: threads in flight / those at the reference; None if not measured: taken to be 1.
        closed: the load is known to be a closed loop.
    """
    if delay_ratio is None:
        return min(work_ratio, 1.0)
    busy = in_flight_ratio is None or in_flight_ratio >= SAME_LOAD_RATIO
    if busy and (closed or delay_ratio >= WAITING_RATIO):
        return min(work_ratio, 1.0)
    return min(max(work_ratio, 1.0 / max(delay_ratio, 1.0)), 1.0)
