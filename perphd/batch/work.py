"""Predicts the run time of a job by the clock or by its work.

By the clock, a job runs as long as earlier jobs like it. That is wrong for a job that gets more or less of the host
than they got. By its work, it runs until it has done as much work as they did:

    left = (W - done) / rate         P(left > t) = P(W > done + rate t) / P(W > done)

W is the work of earlier jobs: instructions where they are counted, otherwise CPU time. ``rate`` is the work per second
that the job gets. For a running job it is measured, and limited by the CPUs that the job may use now. For a waiting job
it is the rate of earlier jobs; if the job will have fewer CPUs ``c`` than the ``peak`` that they used, only its time on
the CPU takes longer:

    1 / rate = 1 / usual + 1 / c - 1 / peak                              in CPUs, c < peak

A job that has done more than every earlier one is assumed to be half complete (Harchol-Balter, 1997). By the clock, its
end moves by exponential increments instead (``perphd.forecast.running``).

The prediction with the smaller errors is used. At 1, 2, 4, 8 ... minutes of its run, both predict when a job ends. The
history keeps the share that errors by work have in the sum of both errors. Before three jobs are scored, the quantity
that varies less among earlier jobs is used; work may vary slightly more, since it follows the allocation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np

from perphd.batch.utility import RunTime
from perphd.domain.quick import replace
from perphd.forecast.histogram import Histogram, quantiles, shares_to, survival

LEAST_SCORED: Final = 3
"""Minimum number of jobs with scored predictions before the errors decide which prediction is used."""
NEAR: Final = 1.15
"""Maximum ratio of the spread of earlier jobs' work to the spread of their run time at which work predicts a job's end.

It applies until errors of predictions are known.
"""
LEAST_CPUS: Final = 0.05
"""CPU use, in CPUs, below which a job waits for other resources: its CPU time does not predict its end."""
LEAST_RATE_RATIO: Final = 0.01
"""Minimum rate that is assumed for a running job, as a share of the usual rate."""
FIRST_LOOK_S: Final = 60.0
"""Seconds of observation after which a rate counts as measured and the first scored prediction is made."""
SEEN_SHARE: Final = 0.9
"""Minimum share of its run for which a job must have been measured for its work to be known."""
UNSEEN_S: Final = 15.0
"""Seconds of a run of any length that may be unmeasured, because measurements come every few seconds."""
RATE_SHARE: Final = 0.25
RATE_S: Final = (60.0, 900.0)
"""A rate is a mean in which older values fade. They fade over this share of the run, within these bounds in seconds."""


class WorkKind(StrEnum):
    """The quantity that a prediction of run time is based on."""

    CPU_TIME = "CPU time"
    INSTRUCTIONS = "instructions"
    RUN_TIME = "run time"
    NOTHING = "no history"


@dataclass(frozen=True, slots=True, eq=False)
class WorkOutlook:
    """The work of earlier jobs and their usual rate (work per second).

    ``cpus``: CPUs that they used on average; ``peak_cpus``: CPUs that they used at most, over some seconds.
    ``error_share``: the share that errors by work have in the sum of both errors, None before enough jobs are scored.
    """

    kind: WorkKind
    law: Histogram
    rate: float
    cpus: float
    peak_cpus: float
    error_share: float | None = None


@dataclass(frozen=True, slots=True)
class WorkDone:
    """Work of one attempt: total and present rate per second. ``seconds``: duration of the measurement."""

    cpu_s: float = 0.0
    cpus: float = 0.0
    seconds: float = 0.0
    instructions: float = 0.0
    instructions_per_s: float = 0.0
    counted_s: float = 0.0

    def with_use(self, seconds: float, cpus: float, instructions_per_s: float | None) -> WorkDone:
        """A copy with one more interval; None: instructions were not counted."""
        total_s = self.seconds + seconds
        fade_s = min(max(RATE_SHARE * total_s, RATE_S[0]), RATE_S[1])
        rate = _faded(self.cpus, cpus, seconds / min(total_s, fade_s))
        found = replace(self, cpu_s=self.cpu_s + seconds * cpus, cpus=rate, seconds=total_s)
        if instructions_per_s is None:
            return found
        counted_s = self.counted_s + seconds
        counted = _faded(self.instructions_per_s, instructions_per_s, seconds / min(counted_s, fade_s))
        return replace(
            found,
            instructions=self.instructions + seconds * instructions_per_s,
            instructions_per_s=counted,
            counted_s=counted_s,
        )

    def of(self, kind: WorkKind, ran_s: float) -> tuple[float, float] | None:
        """Work done and present rate of a kind; None if too much of the run was not measured (``SEEN_SHARE``)."""
        seen_s = self.counted_s if kind is WorkKind.INSTRUCTIONS else self.seconds
        if seen_s < min(SEEN_SHARE * ran_s, ran_s - UNSEEN_S):
            return None
        unseen = max(1.0, ran_s / seen_s) if seen_s > 0.0 else 1.0  # assume the same rate in the rest
        if kind is WorkKind.INSTRUCTIONS:
            return unseen * self.instructions, self.instructions_per_s
        return unseen * self.cpu_s, self.cpus


@dataclass(frozen=True, slots=True)
class RunTimeBasis:
    """The basis of a prediction of run time. ``why``: the reason for this basis.

    ``done``: work so far (CPU seconds, instructions, or seconds of the run); ``usual``: median of earlier jobs;
    ``rate``: work per second that is assumed.
    """

    by: WorkKind
    why: str = ""
    done: float = 0.0
    usual: float = 0.0
    rate: float = 1.0


def stretched(cpus: float, peak_cpus: float, given: float) -> float:
    """Mean CPU use of a job that may use at most ``given`` CPUs. ``cpus``: its mean use without a limit."""
    if given >= peak_cpus or cpus <= 0.0:
        return cpus
    return 1.0 / (1.0 / cpus + 1.0 / max(given, LEAST_CPUS) - 1.0 / max(peak_cpus, cpus))


def waiting_rate(outlook: WorkOutlook, given: float) -> float:
    """The rate that a job is expected to have with at most ``given`` CPUs."""
    if outlook.cpus <= 0.0:
        return outlook.rate
    return outlook.rate * stretched(outlook.cpus, outlook.peak_cpus, given) / outlook.cpus


def running_rate(outlook: WorkOutlook, done: WorkDone, rate: float, given: float) -> float:
    """The rate that a running job is expected to keep with at most ``given`` CPUs."""
    if done.seconds < FIRST_LOOK_S:
        return waiting_rate(outlook, given)
    limited = rate * min(1.0, given / done.cpus) if done.cpus > 0.0 else rate
    return max(limited, LEAST_RATE_RATIO * outlook.rate)


def work_left(law: Histogram, done: float, rate: float) -> RunTime:
    """Distribution of the time that the rest of the work takes at this rate."""
    beyond = survival(law, done)
    if beyond <= 0.0:
        left_s = done / rate
        return RunTime(lambda t: np.where((t <= 0.0) | (t < left_s), 1.0, 0.0), left_s)
    return RunTime(
        lambda t: np.minimum(1.0, (1.0 - shares_to(law, done + rate * np.maximum(t, 0.0))) / beyond),
        (law.most - done) / rate,
    )


def by_work(outlook: WorkOutlook, run_time_s: Histogram) -> tuple[bool, str]:
    """True if work predicts the run time better than the clock, with the reason."""
    kind = outlook.kind
    if outlook.cpus < LEAST_CPUS:
        return False, f"jobs like it use {outlook.cpus:.2f} CPUs: they wait for other resources"
    if outlook.error_share is not None:
        work, clock = outlook.error_share, 1.0 - outlook.error_share
        return work <= clock, f"shares of past errors: {kind} {work:.0%}, {WorkKind.RUN_TIME} {clock:.0%}"
    varies, clock_varies = spread(outlook.law), spread(run_time_s)
    text = f"spread among similar jobs: {kind} {varies:.0%}, {WorkKind.RUN_TIME} {clock_varies:.0%}"
    return varies <= NEAR * clock_varies, text


def spread(law: Histogram) -> float:
    """Distance between the 10 % and 90 % quantiles, divided by the median; infinite without values."""
    if not law.count:
        return math.inf
    p10, p50, p90 = quantiles(law, np.array([0.1, 0.5, 0.9]))
    return float((p90 - p10) / p50) if p50 > 0.0 else math.inf


def error_share(predicted: Sequence[tuple[float, float]], ran_s: float) -> float | None:
    """The share that errors by work have in the sum of both errors; None without predictions.

    ``predicted``: pairs of run times in seconds, predicted by work and by the clock.
    """
    if not predicted:
        return None
    work = sum(abs(by - ran_s) for by, _ in predicted)
    clock = sum(abs(by - ran_s) for _, by in predicted)
    return work / (work + clock) if work + clock > 0.0 else 0.5


def _faded(before: float, now: float, gain: float) -> float:
    return before + min(1.0, gain) * (now - before)
