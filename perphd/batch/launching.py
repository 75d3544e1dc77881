"""Decides which waiting jobs may start, by their dependencies on other jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perphd.batch.gangs import gang_of, is_elastic
from perphd.batch.job import STARTABLE, JobState, QueuedJob


@dataclass(frozen=True, slots=True)
class Dependencies:
    """Jobs that may start, and reasons by job number for those that must wait or can never start."""

    startable: tuple[QueuedJob, ...]
    blocked: Mapping[int, str]
    impossible: Mapping[int, str]


def dependencies(live: Sequence[QueuedJob], ended: Mapping[int, QueuedJob]) -> Dependencies:
    """Classify waiting jobs by their dependencies.

    ``live``: jobs that have not ended; ``ended``: the others.
    """
    states = {job.id: job.state for job in live} | {number: job.state for number, job in ended.items()}
    startable: list[QueuedJob] = []
    blocked: dict[int, str] = {}
    impossible: dict[int, str] = {}
    cores: dict[int | None, list[QueuedJob]] = {}
    for job in live:
        if job.spec.elastic is not None and not is_elastic(job):
            cores.setdefault(gang_of(job), []).append(job)
    for job in live:
        if job.state not in STARTABLE:
            continue
        before = [(number, states.get(number)) for number in job.spec.after]
        left = [(number, state) for number, state in before if state is not JobState.DONE]
        over = [(number, state) for number, state in left if state is None or state.ended]
        if over:
            number, state = over[0]
            told = "is no longer known" if state is None else f"is {state}"
            impossible[job.id] = f"job {number}, on which it depends, {told}"
        elif is_elastic(job) and not cores.get(gang_of(job)):
            impossible[job.id] = "the core of its elastic job has ended"
        elif left:
            number, state = left[0]
            blocked[job.id] = f"it follows job {number}, which is {state}"
        elif is_elastic(job) and not all(each.state.active for each in cores[gang_of(job)]):
            blocked[job.id] = "the core of its elastic job does not run yet"
        else:
            startable.append(job)
    return Dependencies(tuple(startable), blocked, impossible)
