"""Elastic jobs: core components that a job needs, and elastic ones that make it faster (Zoe; Pace 2018, chapter 3).

A job has C core and E elastic components of one unit each, and its work is W = T (C + E). With G elastic components
it runs at the rate C + G. The rule serves as few jobs as fill the capacity, and gives what is left to elastic
components in the order of service:

    while sum of (C + E) of those in service < capacity:
        serve the next job if its core fits beside all cores in service, else stop
    give elastic components to the jobs in service, oldest first, until nothing is left

A job with a higher priority takes elastic components of others, never core ones. The youngest job in service loses its
elastic components first, since the oldest are given theirs first.

Differences from the printed algorithms, each with a test:

* A core fits if it is *at most* what is left. With "less than", a job as large as the host blocks the queue forever.
* A preempting job needs ``C <= free + elastic components granted``. Against the sum of *wanted* elastic components, the
  printed test overcommits: 13 of 10 units in the example.
* A job whose core exceeds the capacity is refused at submission.
* The queue of preempting jobs is tested for emptiness before its head is read. While a job is in it, no other job is
  admitted: smaller ones would keep it waiting without end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class ElasticRequest:
    """One job: units of its core, of its elastic part, and its priority. ``granted`` are its elastic units in use.

    ``unit``: elastic units are granted in multiples of this, one component each.
    """

    name: str
    core: int
    elastic: int
    priority: int = 0
    granted: int = 0
    unit: int = 1


@dataclass(frozen=True, slots=True)
class ElasticShares:
    """Jobs in service, preempting jobs and the queue, each in order. ``free`` is what no job uses."""

    capacity: int
    serving: tuple[ElasticRequest, ...] = ()
    preempting: tuple[ElasticRequest, ...] = ()
    waiting: tuple[ElasticRequest, ...] = ()

    @property
    def free(self) -> int:
        """Units that no component uses."""
        return self.capacity - sum(job.core + job.granted for job in self.serving)


def arrived(shares: ElasticShares, job: ElasticRequest) -> ElasticShares:
    """The shares after a submission. Raises ``ValueError`` for a job that never fits."""
    if not 0 < job.core <= shares.capacity or job.elastic < 0:
        raise ValueError(f"{job.name} needs a core of 1 to {shares.capacity} units, not {job.core}")
    job = replace(job, granted=0)
    if shares.serving and job.priority > shares.serving[-1].priority:
        if job.core <= shares.free + sum(each.granted for each in shares.serving):
            return rebalanced(replace(shares, serving=_ordered(shares.serving, job)))
        return replace(shares, preempting=_ordered(shares.preempting, job))
    waiting = replace(shares, waiting=_ordered(shares.waiting, job))
    # Without preemption an arrival takes only what no component uses.
    return rebalanced(waiting) if waiting.waiting[0] is job and job.core <= shares.free else waiting


def departed(shares: ElasticShares, name: str) -> ElasticShares:
    """The shares after a job has ended or was cancelled, wherever it was."""
    serving, preempting, waiting = (
        tuple(job for job in jobs if job.name != name)
        for jobs in (shares.serving, shares.preempting, shares.waiting)
    )
    while preempting and preempting[0].core + sum(job.core for job in serving) <= shares.capacity:
        serving, preempting = _ordered(serving, preempting[0]), preempting[1:]
    return rebalanced(ElasticShares(shares.capacity, serving, preempting, waiting))


def rebalanced(shares: ElasticShares) -> ElasticShares:
    """The shares with as many jobs in service as fill the capacity, and elastic components given oldest first."""
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
    """``jobs`` with ``job`` behind all of at least its priority."""
    place = next((n for n, each in enumerate(jobs) if each.priority < job.priority), len(jobs))
    return (*jobs[:place], job, *jobs[place:])
