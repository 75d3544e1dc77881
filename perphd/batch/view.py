"""The batch queue as it is shown: to clients, in the status, in metrics."""

from __future__ import annotations

from dataclasses import dataclass

from perphd.batch.job import JobState
from perphd.domain.reading import NOT_MEASURED, Reading, Unavailable
from perphd.qos.bands import QosBand


@dataclass(frozen=True, slots=True)
class Times:
    """A time that is not certain, in seconds since 1970: one in ten is earlier than ``p10``."""

    p10: float
    p50: float
    p90: float


@dataclass(frozen=True, slots=True)
class JobForecast:
    """When a job will start and end, and the probability that it meets its deadline; Unavailable: it has none."""

    start: Times
    end: Times
    meets_deadline: Reading = NOT_MEASURED


@dataclass(frozen=True, slots=True)
class JobDetail:
    """What only a job's owner and administrators see.

    Times are in seconds since 1970. ``ran_s``: of the present attempt; ``lost_s``: of earlier ones. ``array``: place
    and size. ``output``: the file that the job's owner named. ``failures``: attempts with another status than 0.
    ``elastic``: of a worker of an elastic job, the least and the greatest number of workers.
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


@dataclass(frozen=True, slots=True)
class JobRow:
    """One job. ``detail`` None: it is somebody else's."""

    id: int
    name: str
    state: JobState
    detail: JobDetail | None = None
