"""Selects the copper jobs that make room for a job with a deadline that is not admitted.

Problem. A plan counts expected consumption, while admission counts the whole distribution. A job may therefore be
planned to start now and not be admitted. Such a job waits for room while its deadline approaches.

Approach. Without preemption, the job is admitted after ``wait_s``, when enough running jobs are expected to have
ended. Waiting costs the job

    gain = E[U(0)] - E[U(wait_s)]

Copper jobs are selected by the amount of the lacking resource that they free per unit of cost, until the job
is admitted. Jobs that turn out not to be needed are deselected. The rest are preempted if together they cost
less than the gain.

They are frozen and keep their work, unless memory is lacking: frozen jobs keep their memory. In that case
jobs are requeued, including those that are already frozen.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from perphd.batch.admission import Admission
from perphd.batch.host_laws import HostLaws, Saved
from perphd.batch.job import QueuedJob
from perphd.batch.job_worth import preemption_cost, run_time_of, utility_of
from perphd.batch.look import BANDWIDTH, CPU, MEMORY, WAYS, QueueView
from perphd.batch.utility import expected

_WORDS: Final = {CPU: "CPUs", MEMORY: "memory", WAYS: "cache", BANDWIDTH: "memory bandwidth"}


@dataclass(frozen=True, slots=True)
class PreemptionPlan:
    """The jobs to freeze and to requeue, and the admission of the job for which they make room.

    ``reasons``: the reason and the cost, by preempted job.
    """

    freeze: tuple[int, ...]
    requeue: tuple[int, ...]
    admission: Admission
    reasons: Mapping[int, str]


def preempted_for(
    view: QueueView, host: HostLaws, job: QueuedJob, answer: Admission, spared: Sequence[int] = ()
) -> PreemptionPlan | None:
    """Make room on ``host`` for a job that was refused with ``answer``.

    Returns None and changes nothing if preemptions cannot make enough room, or if their cost is not below the gain.
    ``spared``: jobs that this pass has already acted on.
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
    reasons = {number: _reason(job, lacking, costs[number], gain) for number in found}
    if freezes:
        return PreemptionPlan(tuple(found), (), after, reasons)
    return PreemptionPlan((), tuple(found), after, reasons)


def _reason(job: QueuedJob, lacking: Sequence[str], cost: float, gain: float) -> str:
    """Why a job gives way to ``job``, with the cost and the gain (unit: see ``job_worth``)."""
    what = " and ".join(_WORDS.get(name, name) for name in lacking)
    return (
        f"job {job.id} needs its {what} to meet a deadline (cost {cost:.2f}, gain {gain:.2f}; "
        "a best-effort job is worth 1)"
    )


def _gain(view: QueueView, host: HostLaws, job: QueuedJob, before: Saved) -> float:
    """The job's loss if it waits until enough running jobs are expected to have ended."""
    ends = host.ending
    count = _fewest(host, before, job, len(ends), lambda n: host.without(ends[:n]))
    host.restored(before)
    run_time = run_time_of(view.outlooks[job.id], view.given(job))
    utility = utility_of(job, run_time, view.now_s, view.doubted)
    now = expected(utility, 0.0, run_time)
    return now if count > len(ends) else now - expected(utility, host.expected_ends_s[count - 1], run_time)


def _freed(host: HostLaws, lacking: Sequence[str], number: int) -> float:
    """The shares of the host that the end of job ``number`` frees, summed over the lacking resources."""
    return sum(host.expected_share(name, number) for name in lacking)


def _fewest(host: HostLaws, before: Saved, job: QueuedJob, most: int, take: Callable[[int], None]) -> int:
    """The smallest n for which ``job`` is admitted after ``take(n)``; greater than ``most`` if there is none."""

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
    """``found`` without the jobs that the others make unnecessary; the last one is known to be needed."""
    needed = list(found)
    for number in found[:-1]:
        host.restored(before)
        without = [each for each in needed if each != number]
        take(without)
        if host.admission(job).admitted:
            needed = without
    return needed
