"""Elastic jobs: core components that a job needs, elastic ones that make it faster (Zoe; Pace 2018, chapter 3).

A job has C core and E elastic components of one unit each, and its work is W = T (C + E). With G elastic
components it runs at the rate C + G. The rule serves the smallest number of jobs that fills the capacity, and
gives the remainder to elastic components in the order of service:

    while sum of (C + E) of the jobs in service < capacity:
        serve the next job if its core fits beside all cores in service, else stop
    give elastic components to the jobs in service, oldest first, until nothing is left

A job with a higher priority takes elastic components of other jobs, never core components. The youngest job in service
loses its elastic components first.

Differences from the printed algorithms, each with a test:

* A core fits if it is *at most* the free capacity. With "less than", a job as large as the host blocks the queue
  forever.
* A preempting job needs ``C <= free + elastic components granted``. The printed test uses the sum of *wanted* elastic
  components, which overcommits: it grants 13 of 10 units in the example.
* A job whose core exceeds the capacity is refused at submission.
* The queue of preempting jobs is tested for emptiness before its head is read. While it is not empty, no other job is
  admitted; otherwise smaller jobs would delay it indefinitely.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class ElasticRequest:
    """One job: units of its core and of its elastic part, its priority, and its elastic units in use (``granted``).

    ``unit``: units of one elastic component; elastic units are granted in multiples of it.
    """

    name: str
    core: int
    elastic: int
    priority: int = 0
    granted: int = 0
    unit: int = 1


@dataclass(frozen=True, slots=True)
class ElasticShares:
    """Jobs in service, preempting jobs and waiting jobs, each in order."""

    capacity: int
    serving: tuple[ElasticRequest, ...] = ()
    preempting: tuple[ElasticRequest, ...] = ()
    waiting: tuple[ElasticRequest, ...] = ()

    @property
    def free(self) -> int:
        """Units that no component uses."""
        return self.capacity - sum(job.core + job.granted for job in self.serving)


def arrived(shares: ElasticShares, job: ElasticRequest) -> ElasticShares:
    """The shares after a submission. Raises ``ValueError`` for a job that can never fit."""
    if not 0 < job.core <= shares.capacity or job.elastic < 0:
        raise ValueError(
            f"{job.name}: its core is {job.core} units (allowed: 1 to {shares.capacity}), "
            f"its elastic part {job.elastic} (allowed: 0 or more)"
        )
    job = replace(job, granted=0)
    if shares.serving and job.priority > shares.serving[-1].priority:
        if job.core <= shares.free + sum(each.granted for each in shares.serving):
            return rebalanced(replace(shares, serving=_ordered(shares.serving, job)))
        return replace(shares, preempting=_ordered(shares.preempting, job))
    waiting = replace(shares, waiting=_ordered(shares.waiting, job))
    # Without preemption, an arrival takes only free units.
    return rebalanced(waiting) if waiting.waiting[0] is job and job.core <= shares.free else waiting


def departed(shares: ElasticShares, name: str) -> ElasticShares:
    """The shares after a job has ended or been cancelled, whatever its state was."""
    serving, preempting, waiting = (
        tuple(job for job in jobs if job.name != name)
        for jobs in (shares.serving, shares.preempting, shares.waiting)
    )
    while preempting and preempting[0].core + sum(job.core for job in serving) <= shares.capacity:
        serving, preempting = _ordered(serving, preempting[0]), preempting[1:]
    return rebalanced(ElasticShares(shares.capacity, serving, preempting, waiting))


def rebalanced(shares: ElasticShares) -> ElasticShares:
    """The shares with jobs served until the capacity is full, and elastic components granted oldest first."""
    serving, waiting = list(shares.serving), list(shares.waiting)
    while (
        waiting and not shares.preempting and sum(job.core + job.elastic for job in serving) < shares.capacity
    ):
        if waiting[0].core + sum(job.core for job in serving) > shares.capacity:
            break
        serving.append(waiting.pop(0))
    left = shares.capacity - sum(job.core for job in serving)
    granted = []
    for job in serving:
        given = max(0, min(job.elastic, left)) // job.unit * job.unit
        left -= given
        granted.append(replace(job, granted=given))
    return replace(shares, serving=tuple(granted), waiting=tuple(waiting))


def _ordered(jobs: Sequence[ElasticRequest], job: ElasticRequest) -> tuple[ElasticRequest, ...]:
    """``jobs`` with ``job`` inserted after all jobs of the same or a higher priority."""
    place = next((n for n, each in enumerate(jobs) if each.priority < job.priority), len(jobs))
    return (*jobs[:place], job, *jobs[place:])
