"""The queue's jobs in the form shown to clients, in the status and in metrics."""

from __future__ import annotations

from dataclasses import dataclass

from perphd.batch.job import JobState
from perphd.batch.work import RunTimeBasis, WorkKind
from perphd.domain.reading import NOT_MEASURED, Reading, Unavailable
from perphd.qos.bands import QosBand


@dataclass(frozen=True, slots=True)
class Times:
    """An uncertain time as quantiles, in seconds since 1970."""

    p10: float
    p50: float
    p90: float


@dataclass(frozen=True, slots=True)
class JobForecast:
    """Predicted start and end of a job, and the probability of meeting its deadline (Unavailable: it has none).

    ``basis``: whether the predicted run time follows from work or from the clock, and why.
    """

    start: Times
    end: Times
    meets_deadline: Reading = NOT_MEASURED
    basis: RunTimeBasis = RunTimeBasis(WorkKind.NOTHING)


@dataclass(frozen=True, slots=True)
class JobDetail:
    """Details of a job that only its owner and administrators see.

    Times are in seconds since 1970. ``ran_s``: run time of the present attempt; ``lost_s``: of earlier ones.
    ``array``: index and size. ``output``: the file that the job's owner named. ``failures``: number of failed
    attempts. ``elastic``: minimum and maximum number of workers, for a worker of an elastic job.
    ``order``: position of a waiting job in the queue, with the reason; empty unless the next pass considers the job.
    """

    user: str
    command: tuple[str, ...]
    directory: str
    output: str
    cpus: float
    memory_bytes: int
    band: QosBand
    deadline_unix_s: float | None
    after: tuple[int, ...]
    array: tuple[int, int] | None
    submitted_unix_s: float
    since_unix_s: float
    reason: str
    attempt: int
    failures: int
    retries: int
    status: int | None
    ran_s: float
    lost_s: float
    preemptions: int
    unit: str
    workload: str
    forecast: JobForecast | Unavailable = NOT_MEASURED
    elastic: tuple[int, int] | None = None
    order: str = ""


@dataclass(frozen=True, slots=True)
class JobRow:
    """One job. ``detail``: None if the reader may not see it."""

    id: int
    name: str
    state: JobState
    detail: JobDetail | None = None
