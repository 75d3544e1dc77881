"""Elastic jobs of the queue: each worker is a job of its own, and together they are a gang.

    least   workers of the core: they start together or not at all
    most    workers altogether; those beyond the core are elastic and run on what is left

Workers are stored at once, so that their numbers follow each other: the first one's number names the gang. A slot is a
worker that runs. How many elastic workers a gang may run is decided by ``perphd.batch.elastic``, in thousandths of a
CPU: cores first, then elastic workers in the order of arrival. An urgent job takes elastic workers of the youngest gang
first; they stand still until it has run. Once no worker of the core is left, none starts; those that run go on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from perphd.batch.elastic import ElasticRequest, ElasticShares, arrived, rebalanced
from perphd.batch.job import JobState, QueuedJob

UNITS: Final = 1000
"""Units of ``ElasticShares`` in a CPU."""


@dataclass(frozen=True, slots=True)
class Slots:
    """Workers of one elastic job that run now, and the bounds of their number."""

    granted: int
    least: int
    most: int


@dataclass(frozen=True, slots=True)
class Gang:
    """The workers of one elastic job that have not ended, in order."""

    number: int
    core: tuple[QueuedJob, ...]
    elastic: tuple[QueuedJob, ...]

    @property
    def one(self) -> QueuedJob:
        """Any worker: they are alike."""
        return (*self.core, *self.elastic)[0]

    def in_state(self, state: JobState) -> list[QueuedJob]:
        """Elastic workers in this state."""
        return [job for job in self.elastic if job.state is state]


def gang_of(job: QueuedJob) -> int | None:
    """The number of the gang that the job is a worker of; None if it is not elastic."""
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
    """Jobs to consider, those that start together with each of them, and elastic workers that could start.

    Of a core that waits, the first worker stands for all.
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
    """The slots of every gang of these jobs, by its number."""
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
    """Who holds what of ``capacity`` CPUs.

    ``waiting``: elastic workers that could start; ``cpus``: what a job needs.
    """
    serving: list[tuple[tuple[float, int], ElasticRequest]] = []
    gangs = gangs_of([*active, *waiting])
    elastic = {gang.number: gang for gang in gangs if gang.elastic}
    cores: dict[int, int] = {}
    for job in active:
        number = gang_of(job)
        if job.state is JobState.FROZEN or is_elastic(job):
            continue
        units = math.ceil(UNITS * cpus(job))
        if number is None:
            serving.append(((job.submitted_s, job.id), ElasticRequest(str(job.id), units, 0)))
        else:
            cores[number] = cores.get(number, 0) + units
    for gang in gangs:
        unit = max(1, math.ceil(UNITS * cpus(gang.one)))
        extra = elastic.get(gang.number)
        granted = 0 if extra is None else unit * len(extra.in_state(JobState.RUNNING))
        wanted = 0 if extra is None else unit * len(extra.elastic)
        request = ElasticRequest(str(gang.number), cores.get(gang.number, 0), wanted, 0, granted, unit)
        serving.append(((gang.one.submitted_s, gang.number), request))
    serving.sort(key=lambda each: each[0])
    return ElasticShares(math.floor(UNITS * capacity), tuple(request for _, request in serving))


def with_urgent(shares: ElasticShares, job: QueuedJob, cpus: float) -> ElasticShares:
    """The shares with room made for an urgent job out of elastic ones; the same if that would not be enough."""
    units = max(1, min(math.ceil(UNITS * cpus), shares.capacity))
    if units > shares.capacity:
        return shares
    after = arrived(shares, ElasticRequest(f"urgent {job.id}", units, 0, priority=1))
    return shares if after.preempting != shares.preempting or after.waiting != shares.waiting else after


def revoked(gangs: Sequence[Gang], shares: ElasticShares) -> list[QueuedJob]:
    """Running elastic workers that are beyond their grant, the last of each gang first."""
    found = []
    for gang, granted in _grants(gangs, shares):
        running = gang.in_state(JobState.RUNNING)
        found += running[granted:][::-1]
    return found


def admitted(gangs: Sequence[Gang], shares: ElasticShares) -> list[QueuedJob]:
    """Elastic workers that may run on what is free: those that stand still first, by gang in order of arrival.

    No slot of a younger gang goes to an older one: its worker would stand still for no urgent job's sake.
    """
    found = []
    free = shares.free
    units = {request.name: request.unit for request in shares.serving}
    for gang, granted in _grants(gangs, rebalanced(shares)):
        unit = units[str(gang.number)]
        more = max(0, min(granted - len(gang.in_state(JobState.RUNNING)), free // unit))
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
