"""What batch gets done, as far as a counter of instructions tells: compared with itself only, before and after.

Logarithms of instructions per second, job by job, so that no job's unit counts for more than another's and a change is
a share. Where instructions are not counted nothing is said.
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
"""Use of CPU (of hardware threads) from which a job counts: the rate of one that hardly runs says nothing."""

Rates = tuple[tuple[str, float], ...]
"""By job: the natural logarithm of its millions of instructions per second."""


def is_busy(view: WorkloadView) -> bool:
    """True if this job runs enough for its rate to mean something, and its instructions are counted."""
    sample = view.sample
    if sample is None or sample.has(Quality.GONE, Quality.FIRST, Quality.RESTARTED):
        return False
    return value_or(sample.cpu_usage_cores, 0.0) >= BUSY_CORES and value_or(sample.mips, 0.0) > 0.0


def rate_of(view: WorkloadView) -> float:
    """The rate of a job that is busy (see ``Rates``)."""
    assert view.sample is not None
    return math.log(value_or(view.sample.mips, 1.0))


def changes(before: Sequence[Rates], after: Sequence[Rates]) -> dict[str, float]:
    """By job: the mean logarithm after less that before; empty where it was not the same jobs throughout."""
    rows = [dict(row) for row in (*before, *after)]
    if not before or not after or any(row.keys() != rows[0].keys() for row in rows):
        return {}
    old, new = rows[: len(before)], rows[len(before) :]
    return {n: statistics.fmean(r[n] for r in new) - statistics.fmean(r[n] for r in old) for n in rows[0]}


def standard_error(rates: Sequence[Rates]) -> float:
    """Of the mean of all jobs' logarithms over these samples; infinite for fewer than two."""
    means = [statistics.fmean(value for _, value in row) for row in rates]
    return statistics.stdev(means) / math.sqrt(len(means)) if len(means) > 1 else math.inf
