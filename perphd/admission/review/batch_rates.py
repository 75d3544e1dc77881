"""Batch throughput from instruction counters, which is comparable only for the same jobs before and after a change.

Rates are logarithms of instructions per second and job, so every job has equal weight and a difference is a
relative change. Without instruction counters there is no result.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Final

from perphd.domain.policy import WorkloadView
from perphd.domain.reading import value_or
from perphd.domain.sample import Quality

BUSY_CORES: Final = 0.25
"""CPU use (hardware threads) from which a job's instruction rate is meaningful."""

Rates = tuple[tuple[str, float], ...]
"""Pairs of job name and natural logarithm of its million instructions per second."""


def is_busy(view: WorkloadView) -> bool:
    """True if this job's instructions are counted and it runs enough for a meaningful rate."""
    sample = view.sample
    if sample is None or sample.has(Quality.GONE, Quality.FIRST, Quality.RESTARTED):
        return False
    return value_or(sample.cpu_usage_cores, 0.0) >= BUSY_CORES and value_or(sample.mips, 0.0) > 0.0


def rate_of(view: WorkloadView) -> float:
    """Natural logarithm of a busy job's million instructions per second."""
    assert view.sample is not None
    return math.log(value_or(view.sample.mips, 1.0))


def changes(before: Sequence[Rates], after: Sequence[Rates]) -> dict[str, float]:
    """Change of each job's mean logarithm, after minus before; empty unless all samples cover the same jobs."""
    rows = [dict(row) for row in (*before, *after)]
    if not before or not after or any(row.keys() != rows[0].keys() for row in rows):
        return {}
    old, new = rows[: len(before)], rows[len(before) :]
    return {n: statistics.fmean(r[n] for r in new) - statistics.fmean(r[n] for r in old) for n in rows[0]}


def standard_error(rates: Sequence[Rates]) -> float:
    """Standard error of the mean over jobs across these samples; infinite for fewer than two samples."""
    means = [statistics.fmean(value for _, value in row) for row in rates]
    return statistics.stdev(means) / math.sqrt(len(means)) if len(means) > 1 else math.inf
