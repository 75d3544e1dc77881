"""Estimates for one job: run time, remaining time, utility, demand, cost of preemption.

The unit of utility and cost is the utility of a best-effort job that ends at once.
"""

from __future__ import annotations

import math
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
from perphd.batch.work import (
    RunTimeBasis,
    WorkKind,
    WorkOutlook,
    by_work,
    running_rate,
    waiting_rate,
    work_left,
)
from perphd.forecast.histogram import Histogram, quantile
from perphd.forecast.running import Overrun, moved_end

DEADLINE_WORTH: Final = 10.0
"""Utility of a met deadline (3Sigma, 5)."""
PATIENCE_S: Final = 24 * 3600.0
"""Seconds after its submission at which a best-effort job has lost its utility, but at least an hour from now."""
PREEMPTION_COST: Final = 1.0
"""Cost of a preemption. Each hour of work that may be lost costs the same again."""
UNKNOWN_RUN_S: Final = (60.0, 3600.0)
"""Run time in seconds of a job without a history: uniform between these bounds."""
LEAST_COST: Final = 1e-3
UNMEASURED: Final = "perphd did not measure enough of its run"
PLANNED_SHARE: Final = 0.9
"""Quantile of usage for forecasts and elastic shares."""


def has_deadline(view: QueueView, job: QueuedJob) -> bool:
    """True for a job whose deadline has not passed."""
    return job.spec.deadline_s is not None and job.spec.deadline_s > view.now_s


def run_time_of(outlook: JobOutlook, given: float = math.inf) -> RunTime:
    """Distribution of a waiting job's run time with at most ``given`` CPUs."""
    return run_time_with_basis(outlook, given)[0]


def run_time_with_basis(outlook: JobOutlook, given: float = math.inf) -> tuple[RunTime, RunTimeBasis]:
    """Distribution of a waiting job's run time, and the basis of that distribution."""
    history = outlook.run_time_s
    if not history.count:
        return uniform(*UNKNOWN_RUN_S), RunTimeBasis(WorkKind.NOTHING)
    why = ""
    if outlook.works:
        work = outlook.works[0]
        better, why = by_work(work, history)
        if better:
            rate = waiting_rate(work, given)
            law = work_left(work.law, 0.0, rate)
            return law, RunTimeBasis(work.kind, why, 0.0, quantile(work.law, 0.5), rate)
    return of_history(history), RunTimeBasis(WorkKind.RUN_TIME, why, 0.0, quantile(history, 0.5))


def left_of(active: ActiveJob, now_s: float) -> RunTime:
    """Distribution of a running job's remaining time. Without a history, its mean is about the run time so far."""
    return left_with_basis(active, now_s)[0]


def left_with_basis(active: ActiveJob, now_s: float) -> tuple[RunTime, RunTimeBasis]:
    """Distribution of a running job's remaining time, and the basis of that distribution."""
    ran_s = active.job.has_run_s(now_s)
    history = active.outlook.run_time_s
    if not history.count:
        return uniform(0.0, max(UNKNOWN_RUN_S[0], 2.0 * ran_s)), RunTimeBasis(WorkKind.NOTHING)
    by, why = _by_work(active, ran_s), UNMEASURED if active.outlook.works else ""
    if by is not None:
        work, done, rate = by
        better, why = by_work(work, history)
        if better:
            law = work_left(work.law, done, rate)
            return law, RunTimeBasis(work.kind, why, done, quantile(work.law, 0.5), rate)
    law = remaining(history, ran_s, active.overrun)
    return law, RunTimeBasis(WorkKind.RUN_TIME, why, ran_s, quantile(history, 0.5))


def both_ends(active: ActiveJob, now_s: float) -> tuple[float, float] | None:
    """The total run time of a running job as predicted by its work and by the clock; None unless both are known."""
    ran_s = active.job.has_run_s(now_s)
    by = _by_work(active, ran_s)
    if by is None or not active.outlook.run_time_s.count:
        return None
    work, done, rate = by
    clock = remaining(active.outlook.run_time_s, ran_s, active.overrun)
    return ran_s + work_left(work.law, done, rate).median_s, ran_s + clock.median_s


def _by_work(active: ActiveJob, ran_s: float) -> tuple[WorkOutlook, float, float] | None:
    """The work of earlier jobs, this job's work so far and its rate per second; None if its work is not known."""
    for work in active.outlook.works:
        found = active.done.of(work.kind, ran_s)
        if found is not None:
            done, rate = found[0], running_rate(work, active.done, found[1], active.given)
            return (work, done, rate) if rate > 0.0 else None
    return None


def with_overrun(active: ActiveJob, now_s: float, cycle_s: float) -> Overrun:
    """The job's expected end, moved if the job has reached it. ``cycle_s``: length of the first extension."""
    history = active.outlook.run_time_s
    longest_s = history.most if history.count else 0.0
    return moved_end(active.overrun, longest_s, active.job.has_run_s(now_s), cycle_s)


def utility_of(
    job: QueuedJob, run_time: RunTime, now_s: float, doubted: float = OVERESTIMATE_THRESHOLD
) -> Utility:
    """The utility of completing the job, as a function of time from now.

    ``doubted``: chance to meet a deadline below which the history is assumed to over-estimate the job.
    """
    if job.spec.deadline_s is None:
        waited_s = max(0.0, now_s - job.submitted_s)
        return Utility(1.0, patience_s=max(PATIENCE_S - waited_s, UNKNOWN_RUN_S[1]))
    left_s = job.spec.deadline_s - now_s
    if left_s <= 0.0:  # the deadline has passed: the utility of best effort
        return Utility(1.0, patience_s=PATIENCE_S)
    waited_s = max(0.0, now_s - job.submitted_s)
    return adapted(Utility(DEADLINE_WORTH, deadline_s=left_s), run_time, waited_s, doubted)


def preemption_cost(view: QueueView, active: ActiveJob, requeued: bool = False) -> float | None:
    """Cost of preempting a running job; None: it may not be preempted.

    ``requeued``: its work is lost. Frozen jobs are then candidates as well, since freezing was their
    preemption.
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
    """Demand of a job by resource: the quantile of usage that plans assume."""
    return {
        CPU: planned_use(outlook.cpus, job.spec.cpus),
        MEMORY: planned_use(outlook.memory_bytes, float(job.spec.memory_bytes)),
    }


def planned_use(seen: Histogram, unknown: float = 0.0) -> float:
    """The use that plans assume, given the observed values; ``unknown`` if there are none."""
    return quantile(seen, PLANNED_SHARE) if seen.count else unknown
