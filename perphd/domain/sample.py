"""Samples: all measurements of one workload over one interval."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from operator import itemgetter

from perphd.domain.quick import changer, maker
from perphd.domain.reading import NOT_MEASURED, Reading, Unavailable


class Quality(StrEnum):
    """Flags for limited trust in a sample. Models skip samples with most of them (``predictor.model``)."""

    FIRST = "first"  # no earlier reading: no rates
    LATE = "late"  # the interval is much longer than the period
    GONE = "gone"  # the cgroup vanished
    RESTARTED = "restarted"  # same path, another cgroup: counters restarted
    SLI_MISSING = "sli-missing"  # an SLI is configured and did not answer
    BETWEEN = "between"  # the SLI's next reading is not due yet: the last one stays valid
    MULTIPLEXED = "multiplexed"  # perf counters ran for too small a share of the time, or not on all CPUs
    SETTLING = "settling"  # perphd's own change is still taking effect
    ROTATED = "rotated"  # too few monitoring ids: cache and bandwidth are measured in rotation


@dataclass(frozen=True, slots=True)
class DomainUse:
    """Cache occupancy and memory traffic of a workload in one L3 domain (resctrl's domain id)."""

    domain: int
    llc_occupancy_bytes: Reading = NOT_MEASURED
    mbw_bytes_per_s: Reading = NOT_MEASURED


@dataclass(frozen=True, slots=True)
class Sample:
    """All readings of one workload over ``interval_s`` seconds that ended at ``at_s`` (monotonic clock).

    - Rates are deltas divided by the measured interval. Some of batch's readings cover a longer interval, or
      are a few samples old (``perphd.monitor.files.Pace``).
    - ``*_some_pct``, ``*_full_pct``: PSI stall shares of the interval (0..100), from the ``total`` counters.
    - ``run_delay_cores``: run-queue waiting time of all threads per second (schedstat); it may exceed 1.
    - ``backend_stall_ratio``: share (0..1) of cycles in which nothing was executed; ``memory_stall_ratio``:
      share of cycles that waited for memory beyond the last-level cache.
    - ``llc_occupancy_bytes``, ``mbw_bytes_per_s``: sums over ``domains``, which is empty where they are not
      measured.
    - ``work_events``, ``latency_events``: requests behind the SLI's work rate and behind the objective's
      latency percentile. A rate of n events has a relative noise of 1/sqrt(n). A rate that is less
      certain than that has a lower number.
    - ``sli_window_s``: seconds that the SLI covers; ``sli_resolution_s``: its reporting period, or the seconds
      since its window ended.
    """

    workload: str
    at_s: float
    interval_s: float
    cpu_usage_cores: Reading = NOT_MEASURED
    cpu_throttled_pct: Reading = NOT_MEASURED
    run_delay_cores: Reading = NOT_MEASURED
    threads: Reading = NOT_MEASURED
    cpu_some_pct: Reading = NOT_MEASURED
    memory_some_pct: Reading = NOT_MEASURED
    memory_full_pct: Reading = NOT_MEASURED
    io_some_pct: Reading = NOT_MEASURED
    io_full_pct: Reading = NOT_MEASURED
    memory_current_bytes: Reading = NOT_MEASURED
    memory_working_set_bytes: Reading = NOT_MEASURED
    refaults_per_s: Reading = NOT_MEASURED
    major_faults_per_s: Reading = NOT_MEASURED
    read_bytes_per_s: Reading = NOT_MEASURED
    write_bytes_per_s: Reading = NOT_MEASURED
    context_switches_per_s: Reading = NOT_MEASURED
    mips: Reading = NOT_MEASURED
    cpi: Reading = NOT_MEASURED
    llc_mpki: Reading = NOT_MEASURED
    backend_stall_ratio: Reading = NOT_MEASURED
    memory_stall_ratio: Reading = NOT_MEASURED
    llc_occupancy_bytes: Reading = NOT_MEASURED
    mbw_bytes_per_s: Reading = NOT_MEASURED
    work_rate_per_s: Reading = NOT_MEASURED
    load_per_s: Reading = NOT_MEASURED
    latency_p50_ms: Reading = NOT_MEASURED
    latency_p95_ms: Reading = NOT_MEASURED
    latency_p99_ms: Reading = NOT_MEASURED
    work_events: Reading = NOT_MEASURED
    latency_events: Reading = NOT_MEASURED
    sli_window_s: Reading = NOT_MEASURED
    sli_resolution_s: Reading = NOT_MEASURED
    domains: tuple[DomainUse, ...] = ()
    quality: tuple[Quality, ...] = ()

    def reading(self, name: str) -> Reading:
        """The reading of this field; AttributeError if there is no such reading."""
        if name not in READINGS:
            raise AttributeError(name)
        value: float | Unavailable = getattr(self, name)
        return value

    def has(self, *flags: Quality) -> bool:
        """True if any of these quality flags is set."""
        return bool(self.quality) and any(flag in self.quality for flag in flags)


def reach_s(sample: Sample) -> float:
    """Age of the sample's oldest data in seconds: its interval, or its SLI's window plus reporting delay."""
    window_s = sample.sli_window_s
    if isinstance(window_s, Unavailable):
        return sample.interval_s
    late_s = sample.sli_resolution_s
    return max(sample.interval_s, window_s + (0.0 if isinstance(late_s, Unavailable) else late_s))


SHORT_SHARE = 0.5


def is_short(sample: Sample, period_s: float) -> bool:
    """True if the sample covers less than half of a period (an early tick on pressure).

    Such a sample is noisier than a regular one. It may raise an alarm, but nothing is learned from it.
    """
    return 0.0 < sample.interval_s < SHORT_SHARE * period_s


JITTER_SHARE = 0.2


def lies_after(sample: Sample, at_s: float, period_s: float) -> bool:
    """True if everything in the sample happened after ``at_s``, within a fifth of a period (tick jitter)."""
    return sample.at_s - reach_s(sample) + JITTER_SHARE * period_s >= at_s


READINGS: tuple[str, ...] = tuple(
    f.name for f in fields(Sample) if f.name not in ("workload", "at_s", "interval_s", "domains", "quality")
)
"""Names of all readings, in order: the columns of the store and of the exports."""

NOTHING_MEASURED: Mapping[str, Reading] = dict.fromkeys(READINGS, NOT_MEASURED)
"""Readings of a sample for which nothing was read."""
_values_of = itemgetter(*READINGS)
_make = maker(Sample)
_with_quality = changer(Sample, "quality")


def sample_of(
    workload: str,
    at_s: float,
    interval_s: float,
    readings: Mapping[str, Reading],
    quality: tuple[Quality, ...],
    domains: tuple[DomainUse, ...] = (),
) -> Sample:
    """A sample of these readings, one for every name in ``READINGS``. Raises KeyError if one is missing."""
    return _make(workload, at_s, interval_s, *_values_of(readings), domains, quality)


def with_flag(sample: Sample, flag: Quality) -> Sample:
    """The same sample with one more quality flag."""
    return _with_quality(sample, (*sample.quality, flag))
