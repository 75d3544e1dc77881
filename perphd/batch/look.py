"""What one look at the queue is about, and what it decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from perphd.batch.calibration import Calibration
from perphd.batch.job import QueuedJob
from perphd.batch.utility import OVERESTIMATE_THRESHOLD
from perphd.forecast.grid import GridDistribution
from perphd.forecast.histogram import Histogram
from perphd.forecast.running import Overrun

CPU: Final = "cpu"
MEMORY: Final = "memory"
WAYS: Final = "cache_ways"
BANDWIDTH: Final = "memory_bandwidth"
RESOURCES: Final = (CPU, MEMORY)
SHARED: Final = (WAYS, BANDWIDTH)
"""Resources that admission considers where the host's amount of them is known."""
EVERY: Final = (*RESOURCES, *SHARED)


@dataclass(frozen=True, slots=True, eq=False)
class JobOutlook:
    """What the history of jobs like this one tells. An empty histogram: nothing.

    ``run_time_s``, ``cpus`` and ``memory_bytes`` are those of one attempt; ``shared``: use of ``SHARED`` resources.
    """

    run_time_s: Histogram = field(default_factory=Histogram)
    cpus: Histogram = field(default_factory=Histogram)
    memory_bytes: Histogram = field(default_factory=Histogram)
    shared: Mapping[str, Histogram] = field(default_factory=dict)

    def of(self, resource: str) -> Histogram:
        """The use of one resource."""
        known = {CPU: self.cpus, MEMORY: self.memory_bytes}
        return known[resource] if resource in known else self.shared.get(resource, Histogram())


@dataclass(frozen=True, slots=True, eq=False)
class ActiveJob:
    """A job with a unit: what it used, how its end was moved, and whether its preemption is possible."""

    job: QueuedJob
    outlook: JobOutlook
    cpus: Histogram = field(default_factory=Histogram)
    memory_bytes: Histogram = field(default_factory=Histogram)
    observed_s: float = 0.0
    overrun: Overrun = Overrun()
    shared: Mapping[str, Histogram] = field(default_factory=dict)

    def of(self, resource: str) -> Histogram:
        """What was seen of its use of one resource."""
        known = {CPU: self.cpus, MEMORY: self.memory_bytes}
        return known[resource] if resource in known else self.shared.get(resource, Histogram())


@dataclass(frozen=True, slots=True, eq=False)
class QueueView:
    """Everything that one look is about. ``others_*``: what everything else on the host was seen to use.

    ``cpus`` and ``memory_bytes``: what the queue may use together with the others. ``preempts``: copper may be frozen.
    ``most_running``: jobs with a unit at a time. ``epsilon``: accepted P(over) by resource. ``together``: the jobs that
    start with a waiting one, or not at all. ``workers``: elastic workers that could start. ``doubted``: chance to meet
    a deadline below which the history is taken to over-estimate the job. ``calibration``: by resource. ``shared``: the
    host's amount of each ``SHARED`` resource that is known; ``others_shared``: what everything else used of it.
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
    calibration: Mapping[str, Calibration] = field(default_factory=dict)
    shared: Mapping[str, float] = field(default_factory=dict)
    others_shared: Mapping[str, Histogram] = field(default_factory=dict)

    @property
    def resources(self) -> tuple[str, ...]:
        """What admission considers."""
        return (*RESOURCES, *(name for name in SHARED if name in self.shared))

    def others(self, resource: str) -> Histogram:
        """What everything that is no job was seen to use of one resource."""
        known = {CPU: self.others_cpus, MEMORY: self.others_memory}
        return known[resource] if resource in known else self.others_shared.get(resource, Histogram())

    def tasks(self, job: QueuedJob) -> int:
        """Jobs that start with this one, itself included."""
        return 1 + len(self.together.get(job.id, ()))


@dataclass(frozen=True, slots=True, eq=False)
class ExpectedSum:
    """The law of what ``members`` and everything else on the host use of a resource, as job ``job`` starts."""

    job: int
    resource: str
    members: tuple[int, ...]
    law: GridDistribution


@dataclass(frozen=True, slots=True)
class QueueStep:
    """What is to be done, in this order. ``reasons``: why jobs wait, by job; ``plan``: planned starts, by job.

    ``revoke``: elastic workers that lose their slots. ``expected``: what admission counted with.
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
