"""The performance of a workload as perphd judges it: a work rate and a delay, each with its source.

Under open-loop load the work rate does not fall while latency explodes; in a closed loop both change. An
LRA's performance is therefore always this pair. Without the application's own latency, the delay is the time
its threads wait for a processor per unit of work. (Measured: run-queue delay per query has a rank correlation
of +0.88 with p99 latency over all loads; queries/s has +0.04.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from perphd.domain.quick import maker
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
"""Share of CPU time that is added to waiting time. With it, a negligible wait that doubles stays negligible."""


@dataclass(frozen=True, slots=True)
class Performance:
    """Work rate and delay of one sample.

    ``work``: units of ``work_source`` per second (higher is better). ``delay``: units of ``delay_source``
    (lower is better). ``load``: requests per second that arrive, or Unavailable. ``in_flight``: mean number of the
    workload's threads that ran or waited for a processor.
    """

    work: Reading
    work_source: str
    delay: Reading
    delay_source: str
    load: Reading
    in_flight: Reading = NOT_MEASURED

    def in_flight_ratio(self, reference: float | None) -> float | None:
        """Threads in flight, as a ratio to ``reference``; None if one of them is unknown."""
        return self.in_flight / reference if available(self.in_flight) and reference else None


_make_performance = maker(Performance)


def performance(sample: Sample, latency_percentile: str = "p95") -> Performance:
    """Choose the best available work and delay signal of a sample.

    Work: the application's SLI, else MIPS, else CPU seconds per second. Delay: the SLI's latency percentile
    (ms), else waiting for a processor (plus ``SERVICE_PART`` of the CPU time) per unit of SLI work (ms) or
    per CPU second, else 1 + the CPU pressure share.
    """
    work, work_source = _work(sample)
    delay, delay_source = _delay(sample, latency_percentile)
    usage, waiting = sample.cpu_usage_cores, sample.run_delay_cores
    in_flight = usage + waiting if available(usage) and available(waiting) else NOT_MEASURED
    return _make_performance(work, work_source, delay, delay_source, sample.load_per_s, in_flight)


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
    return Unavailable(
        "none of latency, run-queue delay (schedstat) and CPU pressure (PSI) is measured"
    ), "none"


def score(perf: Performance, target_work: Reading, target_delay: Reading) -> Reading:
    """Performance divided by target, the lower of work's and delay's; >= 1 meets the target."""
    scores = []
    if available(perf.work) and available(target_work) and target_work > 0:
        scores.append(perf.work / target_work)
    if available(perf.delay) and available(target_delay) and perf.delay > 0:
        scores.append(target_delay / perf.delay)
    return (
        min(scores)
        if scores
        else Unavailable("no measured work or delay can be compared with a target above 0")
    )


def work_unit(source: str) -> str:
    """Unit of a work signal."""
    return {"sli": "/s", "mips": "MIPS", "cpu": "cores"}.get(source, "")


CPU_TIME_ONLY = "judged by CPU time only: a slowdown by cache or memory bandwidth cannot be seen"
NO_MISSES = (
    "cache misses are not counted: slower instructions are detected, but cache, memory bandwidth "
    "and hyperthreads are distinguished only by memory traffic and busy siblings"
)
"""Warnings for displays where CPU time is used as work. Contention then looks like more work."""
WAITING_RATIO = 1.15
"""Ratio of the delay to its reference from which threads count as waiting."""
SAME_LOAD_RATIO = 0.7
"""Threads in flight, relative to the reference, from which the load counts as unchanged."""


def contended_ratio(
    work_ratio: float, delay_ratio: float | None, in_flight_ratio: float | None, closed: bool
) -> float:
    """The part of a decrease in work that contention explains, as a work ratio of at most 1.

    If at least as many threads are in flight as at the reference, and they wait longer or the load is a
    closed loop, contention explains the whole decrease. If fewer are in flight, demand has decreased, and
    contention explains only max(work ratio, 1 / delay ratio), by Little's law.

    Args:
        work_ratio: work rate / work rate at the reference.
        delay_ratio: delay / delay at the reference; None without a delay signal: the whole decrease counts.
        in_flight_ratio: threads in flight / threads at the reference; None if unknown: 1 is assumed.
        closed: the load is known to be a closed loop.
    """
    if delay_ratio is None:
        return min(work_ratio, 1.0)
    busy = in_flight_ratio is None or in_flight_ratio >= SAME_LOAD_RATIO
    if busy and (closed or delay_ratio >= WAITING_RATIO):
        return min(work_ratio, 1.0)
    return min(max(work_ratio, 1.0 / max(delay_ratio, 1.0)), 1.0)
