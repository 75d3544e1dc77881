"""Which copper jobs make room for a job with a deadline that is not admitted.

Problem. A plan counts with expected consumption, admission with the law of it. A job may therefore be planned to start
now and not be admitted. It then waits for room while its deadline comes nearer.

Approach. It is admitted after ``wait_s``, when enough of what runs is expected to have ended. Waiting costs it

    gain = E[U(0)] - E[U(wait_s)]

Copper jobs are taken by how much of the lacking resource they free for their cost, until the job is admitted. Those
that turn out not to be needed are left alone. They are preempted if together they cost less than the gain.

They are frozen and keep their work, unless memory is lacking: frozen jobs keep theirs. Jobs are requeued then, those
that stand still already included.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from perphd.batch.admission import Admission
from perphd.batch.host_laws import HostLaws, Saved
from perphd.batch.job import QueuedJob
from perphd.batch.job_worth import preemption_cost, run_time_of, utility_of
from perphd.batch.look import MEMORY, QueueView
from perphd.batch.utility import expected


@dataclass(frozen=True, slots=True)
class Preemption:
    """The jobs to freeze and to requeue, and the admission of the job that they make room for."""

    freeze: tuple[int, ...]
    requeue: tuple[int, ...]
    admission: Admission


def preempted_for(
    view: QueueView, host: HostLaws, job: QueuedJob, answer: Admission, spared: Sequence[int] = ()
) -> Preemption | None:
    """Make room on ``host`` for a job that was refused with ``answer``; None, and no change, if it does not pay.

    ``spared``: jobs that this look has dealt with.
    """
    lacking = [name for name, over in answer.over.items() if over > view.epsilon[name]]
    freezes = MEMORY not in lacking
    costs = {
        each.job.id: cost
        for each in view.active
        if each.job.id not in spared
        and (cost := preemption_cost(view, each, requeued=not freezes)) is not None
    }
    if not costs or not lacking:
        return None
    before = host.saved()
    gain = _gain(view, host, job, before)
    take = host.standing if freezes else host.without
    ranked = sorted(costs, key=lambda number: -_freed(host, lacking, number) / costs[number])
    count = _fewest(host, before, job, len(ranked), lambda n: take(ranked[:n]))
    found = _needed(host, before, job, ranked[:count], take) if count <= len(ranked) else []
    if not found or sum(costs[number] for number in found) >= gain:
        host.restored(before)
        return None
    host.restored(before)
    take(found)
    after = host.admission(job)
    return Preemption(tuple(found), (), after) if freezes else Preemption((), tuple(found), after)


def _gain(view: QueueView, host: HostLaws, job: QueuedJob, before: Saved) -> float:
    """What the job loses if it waits until enough of what runs is expected to have ended."""
    ends = host.ending
    count = _fewest(host, before, job, len(ends), lambda n: host.without(ends[:n]))
    host.restored(before)
    run_time = run_time_of(view.outlooks[job.id])
    utility = utility_of(job, run_time, view.now_s, view.doubted)
    now = expected(utility, 0.0, run_time)
    return now if count > len(ends) else now - expected(utility, host.expected_ends_s[count - 1], run_time)


def _freed(host: HostLaws, lacking: Sequence[str], number: int) -> float:
    """What the end of this job frees of the lacking resources, as shares of the host."""
    return sum(host.expected_share(name, number) for name in lacking)


def _fewest(host: HostLaws, before: Saved, job: QueuedJob, most: int, take: Callable[[int], None]) -> int:
    """The least n for which ``job`` is admitted after ``take(n)``; more than ``most`` if there is none."""

    def admitted(count: int) -> bool:
        host.restored(before)
        take(count)
        return host.admission(job).admitted

    return 1 + bisect_left(range(1, most + 1), True, key=admitted)


def _needed(
    host: HostLaws,
    before: Saved,
    job: QueuedJob,
    found: Sequence[int],
    take: Callable[[Sequence[int]], None],
) -> list[int]:
    """``found`` without those whose place the others make up for; the last one is known to be needed."""
    needed = list(found)
    for number in found[:-1]:
        host.restored(before)
        without = [each for each in needed if each != number]
        take(without)
        if host.admission(job).admitted:
            needed = without
    return needed
