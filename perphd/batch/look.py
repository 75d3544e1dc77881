"""Input and output of one scheduling pass over the queue."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from perphd.batch.calibration import UsageCalibration
from perphd.batch.job import QueuedJob
from perphd.batch.utility import OVERESTIMATE_THRESHOLD
from perphd.batch.work import WorkDone, WorkOutlook
from perphd.forecast.grid import GridDistribution
from perphd.forecast.histogram import Histogram
from perphd.forecast.running import Overrun

CPU: Final = "cpu"
MEMORY: Final = "memory"
WAYS: Final = "cache_ways"
BANDWIDTH: Final = "memory_bandwidth"
RESOURCES: Final = (CPU, MEMORY)
SHARED: Final = (WAYS, BANDWIDTH)
"""Resources that admission considers if the host's capacity of them is known."""
DISK: Final = "disk"
"""Bytes per second that a job reads and writes; counts for the choice of the next job, not for admission."""
EVERY: Final = (*RESOURCES, *SHARED, DISK)
INSTRUCTIONS: Final = "instructions"
"""Instructions per second, in measurements of jobs; a rate of work, not a resource."""
LEAST_CEILING_CPUS: Final = 0.05
"""Minimum number of CPUs that an event leaves to a copper job. If copper's share is 0, the job is frozen instead."""


@dataclass(frozen=True, slots=True, eq=False)
class JobOutlook:
    """The history of similar jobs. An empty histogram: no history.

    ``run_time_s``, ``cpus`` and ``memory_bytes`` are those of one attempt; ``shared``: use of ``SHARED``
    resources and of disks; ``works``: their work, the kind to use first.
    """

    run_time_s: Histogram = field(default_factory=Histogram)
    cpus: Histogram = field(default_factory=Histogram)
    memory_bytes: Histogram = field(default_factory=Histogram)
    shared: Mapping[str, Histogram] = field(default_factory=dict)
    works: tuple[WorkOutlook, ...] = ()

    def of(self, resource: str) -> Histogram:
        """Usage of one resource by similar jobs."""
        known = {CPU: self.cpus, MEMORY: self.memory_bytes}
        return known[resource] if resource in known else self.shared.get(resource, Histogram())


@dataclass(frozen=True, slots=True, eq=False)
class ActiveJob:
    """A job with a unit: its observed usage, and its extended end if it has outlived its history.

    ``done``: work of the present attempt; ``given``: CPUs that it may use now.
    """

    job: QueuedJob
    outlook: JobOutlook
    cpus: Histogram = field(default_factory=Histogram)
    memory_bytes: Histogram = field(default_factory=Histogram)
    observed_s: float = 0.0
    overrun: Overrun = Overrun()
    shared: Mapping[str, Histogram] = field(default_factory=dict)
    done: WorkDone = WorkDone()
    given: float = math.inf

    def of(self, resource: str) -> Histogram:
        """Observed usage of one resource."""
        known = {CPU: self.cpus, MEMORY: self.memory_bytes}
        return known[resource] if resource in known else self.shared.get(resource, Histogram())


@dataclass(frozen=True, slots=True, eq=False)
class EarlierUse:
    """Observed usage of a job's earlier attempts by resource, and the seconds for which they were observed."""

    seen: Mapping[str, Histogram]
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class QueueView:
    """The input of one scheduling pass. ``others_*``: observed usage of everything on the host that is not a job.

    ``cpus`` and ``memory_bytes``: capacity for the queue and the others together. ``preempts``: copper may be
    frozen. ``copper_share``: share of the unused capacity that copper may use; below 1 during an event.
    ``most_running``: maximum number of jobs with a unit. ``epsilon``: accepted P(over) by resource.
    ``together``: the jobs that can start only together with a waiting job. ``workers``: elastic workers that
    could start. ``doubted``: chance to meet a deadline below which the history is assumed to over-estimate
    the job. ``calibration``: by resource. ``shared``: the host's capacity of each ``SHARED`` resource, if
    known; ``scored``: that of resources that count only for the choice of the next job; ``others_shared``: the
    others' usage of both. ``earlier``: usage of earlier attempts, by waiting job. ``batch_cpus``: the CPUs to
    which batch is confined.
    """

    now_s: float
    cpus: float
    memory_bytes: float
    waiting: Sequence[QueuedJob]
    active: Sequence[ActiveJob]
    outlooks: Mapping[int, JobOutlook]
    others_cpus: Histogram
    others_memory: Histogram
    average_wait_s: float
    epsilon: Mapping[str, float]
    most_running: int
    preempts: bool = False
    copper_share: float = 1.0
    together: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    workers: Sequence[QueuedJob] = ()
    doubted: float = OVERESTIMATE_THRESHOLD
    calibration: Mapping[str, UsageCalibration] = field(default_factory=dict)
    shared: Mapping[str, float] = field(default_factory=dict)
    others_shared: Mapping[str, Histogram] = field(default_factory=dict)
    earlier: Mapping[int, EarlierUse] = field(default_factory=dict)
    scored: Mapping[str, float] = field(default_factory=dict)
    batch_cpus: float = math.inf

    @property
    def resources(self) -> tuple[str, ...]:
        """Resources that admission considers."""
        return (*RESOURCES, *(name for name in SHARED if name in self.shared))

    def others(self, resource: str) -> Histogram:
        """Observed usage of one resource by everything that is not a job."""
        known = {CPU: self.others_cpus, MEMORY: self.others_memory}
        return known[resource] if resource in known else self.others_shared.get(resource, Histogram())

    def given(self, job: QueuedJob) -> float:
        """Upper bound of the CPUs that a waiting job may expect: those to which batch is confined, those that others
        leave, and those that an event leaves to the job, whichever is least.
        """
        left = max(0.0, self.cpus - (self.others_cpus.mean if self.others_cpus.count else 0.0))
        most = min(self.batch_cpus, left)
        if self.copper_share < 1.0 and not job.spec.band.protected:
            most = min(most, event_ceiling(self.copper_share, job))
        return most

    def tasks(self, job: QueuedJob) -> int:
        """Number of jobs that start with this one, itself included."""
        return 1 + len(self.together.get(job.id, ()))


def event_ceiling(copper_share: float, job: QueuedJob) -> float:
    """The CPUs that an event leaves to a copper job."""
    return max(LEAST_CEILING_CPUS, copper_share * job.spec.cpus)


@dataclass(frozen=True, slots=True, eq=False)
class ExpectedSum:
    """Distribution of the usage of ``members`` and everything else on the host, as ``job`` starts."""

    job: int
    resource: str
    members: tuple[int, ...]
    law: GridDistribution


@dataclass(frozen=True, slots=True)
class QueueStep:
    """The output of a scheduling pass: actions in this order. ``reasons``: why jobs wait; ``plan``: planned starts.

    ``revoke``: elastic workers that lose their slots. ``expected``: the distributions that admission used.
    ``over``: P(over) by job and resource. ``causes``: why a job stops, continues, or starts before older ones; for a
    preempted job, also the cost. ``order``: for each waiting job that was considered, its position and the reason.
    """

    requeue: tuple[int, ...] = ()
    freeze: tuple[int, ...] = ()
    revoke: tuple[int, ...] = ()
    thaw: tuple[int, ...] = ()
    start: tuple[int, ...] = ()
    reasons: Mapping[int, str] = field(default_factory=dict)
    plan: Mapping[int, float] = field(default_factory=dict)
    over: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    expected: tuple[ExpectedSum, ...] = ()
    causes: Mapping[int, str] = field(default_factory=dict)
    order: Mapping[int, str] = field(default_factory=dict)
