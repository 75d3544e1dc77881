"""What a look reckons of single jobs: their run time, what is left of it, what they are worth, demand, preemption."""

from __future__ import annotations

from typing import Final

from perphd.batch.job import JobState, QueuedJob
from perphd.batch.look import CPU, MEMORY, ActiveJob, JobOutlook, QueueView
from perphd.batch.utility import (
    OVERESTIMATE_THRESHOLD,
    RunTime,
    Utility,
    adapted,
    of_history,
    remaining,
    uniform,
)
from perphd.forecast.histogram import Histogram, quantile
from perphd.forecast.running import Overrun, moved_end

DEADLINE_WORTH: Final = 10.0
"""A met deadline is worth as much as ten best-effort jobs that end at once (3Sigma, 5)."""
PATIENCE_S: Final = 24 * 3600.0
"""Best-effort work is worth nothing a day later."""
PREEMPTION_COST: Final = 1.0
"""A preemption costs one best-effort job, and as much again for each hour of work that may be lost."""
UNKNOWN_RUN_S: Final = (60.0, 3600.0)
"""Run time of a job of which nothing is known: anything up to an hour."""
LEAST_COST: Final = 1e-3
PLANNED_SHARE: Final = 0.9
"""Quantile of a usage that forecasts and elastic shares count with."""


def has_deadline(view: QueueView, job: QueuedJob) -> bool:
    """True for a job whose deadline is still ahead."""
    return job.spec.deadline_s is not None and job.spec.deadline_s > view.now_s


def run_time_of(outlook: JobOutlook) -> RunTime:
    """The law of a run time."""
    return of_history(outlook.run_time_s) if outlook.run_time_s.count else uniform(*UNKNOWN_RUN_S)


def left_of(active: ActiveJob, now_s: float) -> RunTime:
    """The law of what is left of a running job. Of an unknown one: about what it has run already."""
    ran_s = active.job.has_run_s(now_s)
    history = active.outlook.run_time_s
    if history.count:
        return remaining(history, ran_s, active.overrun)
    return uniform(0.0, max(UNKNOWN_RUN_S[0], 2.0 * ran_s))


def with_overrun(active: ActiveJob, now_s: float, cycle_s: float) -> Overrun:
    """The moved end of a job that has outlived its history."""
    history = active.outlook.run_time_s
    longest_s = history.most if history.count else 0.0
    return moved_end(active.overrun, longest_s, active.job.has_run_s(now_s), cycle_s)


def utility_of(
    job: QueuedJob, run_time: RunTime, now_s: float, doubted: float = OVERESTIMATE_THRESHOLD
) -> Utility:
    """What it is worth to complete the job, from now on."""
    if job.spec.deadline_s is None:
        waited_s = max(0.0, now_s - job.submitted_s)
        return Utility(1.0, patience_s=max(PATIENCE_S - waited_s, UNKNOWN_RUN_S[1]))
    left_s = job.spec.deadline_s - now_s
    if left_s <= 0.0:  # missed: worth what best effort is
        return Utility(1.0, patience_s=PATIENCE_S)
    waited_s = max(0.0, now_s - job.submitted_s)
    return adapted(Utility(DEADLINE_WORTH, deadline_s=left_s), run_time, waited_s, doubted)


def preemption_cost(view: QueueView, active: ActiveJob, requeued: bool = False) -> float | None:
    """What it costs to preempt a running job; None: it is not to be preempted.

    ``requeued``: its work is lost, and a job that stands still already may be taken: that was its preemption.
    """
    job = active.job
    if not view.preempts or job.spec.band.protected or job.spec.deadline_s is not None:
        return None
    lost = PREEMPTION_COST * job.has_run_s(view.now_s) / 3600.0
    if requeued and job.state is JobState.FROZEN:
        return max(LEAST_COST, lost)
    if job.state is not JobState.RUNNING or not job.confirmed or view.now_s < job.not_preempted_before_s:
        return None
    return PREEMPTION_COST + lost


def demand_of(job: QueuedJob, outlook: JobOutlook) -> dict[str, float]:
    """What a plan counts with."""
    return {
        CPU: planned_use(outlook.cpus, job.spec.cpus),
        MEMORY: planned_use(outlook.memory_bytes, float(job.spec.memory_bytes)),
    }


def planned_use(seen: Histogram, unknown: float = 0.0) -> float:
    """The use that a plan counts with, given what was seen; ``unknown`` where nothing was."""
    return quantile(seen, PLANNED_SHARE) if seen.count else unknown
