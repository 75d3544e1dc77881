"""The performance of a workload as perphd judges it: a work rate and a delay, each with its source.

Under open-loop load the work rate does not fall while latency explodes; in a closed loop both move. So
an LRA's performance is always this pair. Without a latency of the application's own, the stand-in is its
*residence*: CPU time plus run-queue waiting time per unit of work, which is what a request spends on the
host's processors (measured: run-queue delay per unit of work has a rank correlation of +0.88 with p99
latency over all loads, queries/s +0.04).
"""

from __future__ import annotations

from dataclasses import dataclass

from perphd.domain.reading import Reading, Unavailable, available
from perphd.domain.sample import Sample


@dataclass(frozen=True, slots=True)
class Performance:
    """Work per second and delay of one sample; the sources say what the numbers are.

    ``work``: units of ``work_source`` per second (higher is better).
    ``delay``: units of ``delay_source`` (lower is better).
    ``load``: how much is asked of the application, or Unavailable.
    """

    work: Reading
    work_source: str
    delay: Reading
    delay_source: str
    load: Reading


def performance(sample: Sample, latency_percentile: str = "p95") -> Performance:
    """Choose the best available work and delay signal of a sample.

    Work: the application's SLI, else MIPS, else CPU seconds per second. Delay: the SLI's latency
    percentile (ms), else residence per unit of SLI work (ms), else residence per CPU second ("stretch", >= 1),
    else 1 + the CPU pressure share.
    """
    work, work_source = _work(sample)
    delay, delay_source = _delay(sample, latency_percentile)
    return Performance(work, work_source, delay, delay_source, sample.load_per_s)


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
        if available(work) and work > 0:
            return (usage + waiting) / work * 1000.0, "residence_ms_per_work"
        if usage > 0:
            return (usage + waiting) / usage, "stretch"
    if available(sample.cpu_some_pct):
        return 1.0 + sample.cpu_some_pct / 100.0, "cpu_pressure"
    return Unavailable("no latency, schedstat or PSI"), "none"


WAITING_RATIO = 1.15
"""Growth of delay from which something is believed to wait."""
SAME_LOAD_RATIO = 0.6
"""Work in flight, relative to the reference, from which the load counts as what it was."""


def contended_ratio(work_ratio: float, delay_ratio: float | None) -> float:
    """The part of a fall of work that contention explains, as a work ratio of at most 1.

    Little's law: work rate x delay = work in flight. If delay grew and about as much is in flight as at the
    reference, all of the fall counts. If much less is in flight, less was asked for, and only what waiting
    explains counts: max(work ratio, 1 / delay ratio).

    Args:
        work_ratio: work rate / work rate at the reference.
        delay_ratio: delay / delay at the reference; None if there is no delay signal: all of the fall counts.
    """
    if delay_ratio is None:
        return min(work_ratio, 1.0)
    if delay_ratio >= WAITING_RATIO and work_ratio * delay_ratio >= SAME_LOAD_RATIO:
        return min(work_ratio, 1.0)
    return min(max(work_ratio, 1.0 / max(delay_ratio, 1.0)), 1.0)
