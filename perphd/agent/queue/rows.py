"""Converts jobs of the queue for display and for the list of workloads."""

from __future__ import annotations

from collections.abc import Mapping

from perphd.agent.queue.planning import user_name
from perphd.batch.job import QueuedJob
from perphd.batch.view import JobDetail, JobForecast, JobRow
from perphd.domain.reading import NOT_MEASURED, Unavailable
from perphd.domain.workload import Kind, WorkloadSpec


def row_of(
    job: QueuedJob, sees: bool, reasons: Mapping[int, str], order: Mapping[int, str], now_s: float
) -> JobRow:
    """One job as a row. ``sees``: the requester may see the job's details.

    ``reasons``, ``order``: why each waiting job waits, and its position in the queue, by job number.
    """
    if not sees:
        return JobRow(job.id, job.spec.name, job.state)
    spec = job.spec
    waits = not job.state.active and not job.state.ended
    reason = reasons.get(job.id, job.reason) if waits else job.reason
    forecast: JobForecast | Unavailable = NOT_MEASURED
    detail = JobDetail(
        user_name(spec.uid),
        spec.command,
        spec.directory,
        spec.output,
        spec.cpus,
        spec.memory_bytes,
        spec.band,
        spec.deadline_s,
        spec.after,
        spec.array,
        job.submitted_s,
        job.since_s,
        reason,
        job.attempt,
        job.failures,
        spec.retries,
        job.status,
        job.has_run_s(now_s),
        job.lost_s,
        job.preemptions,
        job.unit if job.attempt else "",
        workload_name(job) if job.state.active else "",
        forecast,
        spec.elastic,
        order.get(job.id, "") if waits else "",
    )
    return JobRow(job.id, spec.name, job.state, detail)


def workload_name(job: QueuedJob) -> str:
    """The name of a running job as a workload."""
    return f"job-{job.id}"


def workload_of(job: QueuedJob) -> WorkloadSpec:
    """The batch workload that represents a running job in the control loop."""
    spec = job.spec
    return WorkloadSpec(
        workload_name(job), Kind.BATCH, job.cgroup, band=spec.band.value, takes_hints=spec.hints
    )
