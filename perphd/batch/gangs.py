"""Elastic jobs of the queue: each worker is a job, and the workers together are a gang.

    least   number of workers of the core; they start together or not at all
    most    number of all workers; those beyond the core are elastic and use the remaining CPUs

All workers are stored at once with consecutive numbers; the first number names the gang. A slot is a running
worker. ``perphd.batch.elastic`` decides how many elastic workers a gang may run, in thousandths of a CPU:
cores first, then elastic workers in the order of arrival. An urgent job takes slots of elastic workers, those of
the youngest gang first, but none of silver; these workers are frozen until CPUs are free again. When the last worker
of the core has ended, no further worker starts; running ones continue.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from perphd.batch.elastic import ElasticRequest, ElasticShares, arrived, rebalanced
from perphd.batch.job import JobState, QueuedJob

UNITS: Final = 1000
"""``ElasticShares`` units per CPU."""


@dataclass(frozen=True, slots=True)
class Slots:
    """Number of running workers of one elastic job, and the bounds of that number."""

    granted: int
    least: int
    most: int


@dataclass(frozen=True, slots=True)
class Gang:
    """Workers of one elastic job that have not ended, in order."""

    number: int
    core: tuple[QueuedJob, ...]
    elastic: tuple[QueuedJob, ...]

    @property
    def one(self) -> QueuedJob:
        """One worker of the gang. All workers have the same specification."""
        return (*self.core, *self.elastic)[0]

    def in_state(self, state: JobState) -> list[QueuedJob]:
        """Elastic workers in this state."""
        return [job for job in self.elastic if job.state is state]

    @property
    def giving(self) -> list[QueuedJob]:
        """Running elastic workers that an urgent job may take; those of silver count as parts of the core."""
        return [] if self.one.spec.band.protected else self.in_state(JobState.RUNNING)


def gang_of(job: QueuedJob) -> int | None:
    """The number of the job's gang; None if the job is not elastic."""
    if job.spec.elastic is None or job.spec.array is None:
        return None
    return job.id - job.spec.array[0]


def is_elastic(job: QueuedJob) -> bool:
    """True for a worker beyond the core."""
    spec = job.spec
    return spec.elastic is not None and spec.array is not None and spec.array[0] >= spec.elastic[0]


def gangs_of(jobs: Iterable[QueuedJob]) -> list[Gang]:
    """The gangs of these jobs, oldest first."""
    found: dict[int, list[QueuedJob]] = {}
    for job in jobs:
        number = gang_of(job)
        if number is not None:
            found.setdefault(number, []).append(job)
    gangs = []
    for number, workers in sorted(found.items()):
        workers.sort(key=lambda job: job.id)
        core = tuple(job for job in workers if not is_elastic(job))
        gangs.append(Gang(number, core, tuple(job for job in workers if is_elastic(job))))
    return gangs


def led(
    startable: Sequence[QueuedJob],
) -> tuple[list[QueuedJob], dict[int, tuple[int, ...]], list[QueuedJob]]:
    """Jobs to consider, the jobs that start together with each of them, and elastic workers that could start.

    The first worker of a waiting core represents all of them.
    """
    considered: list[QueuedJob] = []
    together: dict[int, tuple[int, ...]] = {}
    workers: list[QueuedJob] = []
    leaders: dict[int, int] = {}
    for job in startable:
        gang = gang_of(job)
        if gang is None:
            considered.append(job)
        elif is_elastic(job):
            workers.append(job)
        elif gang in leaders:
            together[leaders[gang]] = (*together.get(leaders[gang], ()), job.id)
        else:
            leaders[gang] = job.id
            considered.append(job)
    return considered, together, workers


def slots_of(live: Iterable[QueuedJob]) -> dict[int, Slots]:
    """The slots of every gang among these jobs, by gang number."""
    found = {}
    for gang in gangs_of(live):
        least, most = gang.one.spec.elastic or (1, 1)
        running = [job for job in (*gang.core, *gang.elastic) if job.state is JobState.RUNNING]
        found[gang.number] = Slots(len(running), least, most)
    return found


def shares_of(
    capacity: float,
    active: Sequence[QueuedJob],
    waiting: Sequence[QueuedJob],
    cpus: Callable[[QueuedJob], float],
) -> ElasticShares:
    """The shares of ``capacity`` CPUs.

    ``waiting``: elastic workers that could start; ``cpus``: the CPUs that a job needs.
    """
    serving: list[tuple[tuple[float, int], ElasticRequest]] = []
    gangs = gangs_of([*active, *waiting])
    elastic = {gang.number: gang for gang in gangs if gang.elastic}
    cores: dict[int, int] = {}
    for job in active:
        number = gang_of(job)
        if job.state is JobState.FROZEN or (is_elastic(job) and not job.spec.band.protected):
            continue
        units = math.ceil(UNITS * cpus(job))
        if number is None:
            serving.append(((job.submitted_s, job.id), ElasticRequest(str(job.id), units, 0)))
        else:
            cores[number] = cores.get(number, 0) + units
    for gang in gangs:
        unit = max(1, math.ceil(UNITS * cpus(gang.one)))
        extra = elastic.get(gang.number)
        granted = 0 if extra is None else unit * len(extra.giving)
        kept = 0 if extra is None else len(extra.in_state(JobState.RUNNING)) - len(extra.giving)
        wanted = 0 if extra is None else unit * (len(extra.elastic) - kept)
        request = ElasticRequest(str(gang.number), cores.get(gang.number, 0), wanted, 0, granted, unit)
        serving.append(((gang.one.submitted_s, gang.number), request))
    serving.sort(key=lambda each: each[0])
    return ElasticShares(math.floor(UNITS * capacity), tuple(request for _, request in serving))


def with_urgent(shares: ElasticShares, job: QueuedJob, cpus: float) -> ElasticShares:
    """The shares after elastic workers made room for an urgent job; unchanged if they cannot free enough."""
    units = max(1, min(math.ceil(UNITS * cpus), shares.capacity))
    if units > shares.capacity:
        return shares
    # No gang grows here: otherwise an older one would take further slots from a younger one.
    held = replace(shares, serving=tuple(replace(each, elastic=each.granted) for each in shares.serving))
    after = arrived(held, ElasticRequest(f"urgent {job.id}", units, 0, priority=1))
    return shares if after.preempting != shares.preempting or after.waiting != shares.waiting else after


def revoked(gangs: Sequence[Gang], shares: ElasticShares) -> list[QueuedJob]:
    """Running elastic workers beyond their gang's grant, the last of each gang first."""
    found = []
    for gang, granted in _grants(gangs, shares):
        found += gang.giving[granted:][::-1]
    return found


def admitted(gangs: Sequence[Gang], shares: ElasticShares) -> list[QueuedJob]:
    """Elastic workers that may run on free CPUs: frozen ones first, by gang in order of arrival.

    No slot moves from a younger gang to an older one: that would freeze a worker without an urgent job.
    """
    found = []
    free = shares.free
    units = {request.name: request.unit for request in shares.serving}
    for gang, granted in _grants(gangs, rebalanced(shares)):
        unit = units[str(gang.number)]
        more = max(0, min(granted - len(gang.giving), free // unit))
        standing = gang.in_state(JobState.FROZEN)
        fresh = [job for job in gang.elastic if not job.state.active]
        chosen = [*standing, *fresh][:more]
        free -= unit * len(chosen)
        found += chosen
    return found


def _grants(gangs: Sequence[Gang], shares: ElasticShares) -> list[tuple[Gang, int]]:
    by_name: Mapping[str, ElasticRequest] = {request.name: request for request in shares.serving}
    return [
        (gang, by_name[str(gang.number)].granted // by_name[str(gang.number)].unit)
        for gang in gangs
        if str(gang.number) in by_name
    ]
