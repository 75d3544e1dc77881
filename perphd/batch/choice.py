"""Chooses the waiting job that a pass tries next, with the reason.

    1  jobs with a deadline ahead that the plan starts now, by deadline
    2  overdue jobs, by arrival
    3  other jobs that the plan starts now, or all others where nothing is planned
    4  jobs that the plan starts later, those with a deadline ahead first

Jobs without a deadline ahead are ordered as in Prophet (``fairness``). They become overdue after three times the
average wait. In tiers 3 and 4, the half of the jobs that has waited longest goes before the rest. Within each half,
the job goes first that best fits the disk and memory bandwidth that the running jobs leave free over its run
(``start_score``). Among equal jobs, the oldest goes first. Every start changes these scores.

Admission decides whether the job starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from perphd.batch.fairness import StartCandidate, StartTiers, overdue_after, tiers
from perphd.batch.host_laws import HostLaws
from perphd.batch.job import QueuedJob
from perphd.batch.job_worth import has_deadline
from perphd.batch.look import QueueView
from perphd.batch.planner import JobPlan
from perphd.batch.start_score import StartScore, TimeLines, distances, score_on, stages_of

CONSIDERED: Final = 20
"""Maximum number of jobs considered per pass. With 32 running jobs and all candidates refused, a pass takes 0.03 s of
CPU time.
"""
LEAST_PATIENCE_S: Final = 15.0
"""Minimum wait after which a job may become overdue, in seconds."""
OVERDUE: Final = "it has waited more than three times the average"


def candidates(view: QueueView) -> list[QueuedJob]:
    """The jobs that a pass considers: by deadline, then overdue jobs, then the others by arrival.

    Jobs with deadlines go before overdue jobs: on a busy host, most jobs without a deadline are overdue.
    """
    urgent = [job for job in view.waiting if has_deadline(view, job)]
    urgent.sort(key=lambda job: (job.spec.deadline_s or 0.0, job.id))
    others = [job for job in view.waiting if not has_deadline(view, job)]
    others.sort(key=lambda job: (not is_overdue(view, job), job.submitted_s, job.id))
    return [*urgent, *others][:CONSIDERED]


def overdue_at(view: QueueView, job: QueuedJob) -> float:
    """The time at which a job without a deadline ahead becomes overdue."""
    return max(overdue_after(job.submitted_s, view.average_wait_s), job.submitted_s + LEAST_PATIENCE_S)


def is_overdue(view: QueueView, job: QueuedJob) -> bool:
    """True for a job without a deadline ahead that has waited beyond ``overdue_at``."""
    return not has_deadline(view, job) and view.now_s > overdue_at(view, job)


def is_urgent(view: QueueView, job: QueuedJob) -> bool:
    """True for a job for which elastic workers may be frozen: it has a deadline ahead, or is overdue."""
    return has_deadline(view, job) or is_overdue(view, job)


class StartChoice:
    """One pass over the candidates. ``plan``: None if none of them has a deadline.

    ``causes``: why a job was chosen before older ones, by job number.
    """

    def __init__(
        self, view: QueueView, host: HostLaws, tried: Sequence[QueuedJob], plan: JobPlan | None
    ) -> None:
        self._view, self._lines = view, TimeLines(view, host)
        self._now = None if plan is None else frozenset(plan.now)
        self._left = {job.id: job for job in tried}
        self._urgent = {job.id: job for job in tried if has_deadline(view, job)}
        self._waits = {job.id: job for job in tried if job.id not in self._urgent}
        self._waiting = sum(not has_deadline(view, job) for job in view.waiting)
        self._scores: dict[int, StartScore] = {}
        self.causes: dict[int, str] = {}

    def next(self) -> QueuedJob | None:
        """The job to try next; None after all were tried."""
        if not self._left:
            return None
        job = self._first()
        del self._left[job.id]
        return job

    def started(self, job: QueuedJob) -> None:
        """Note that the job starts, and that the host has less room for the others."""
        self._urgent.pop(job.id, None)
        if self._waits.pop(job.id, None) is not None:
            self._waiting -= 1
        self._lines.changed()
        self._scores.clear()

    def order(self) -> dict[int, str]:
        """Describe the position of each candidate that has not started, with the reason, by job number."""
        found = dict.fromkeys(self._urgent, "by its deadline, before jobs without one")
        tier = self._tiers()
        found |= dict.fromkeys(map(_number, tier.overdue), f"before all jobs without a deadline: {OVERDUE}")
        near = self._distances([self._waits[_number(each)] for each in tier.longest])
        places = sorted(near, key=lambda number: (near[number], self._waits[number].submitted_s, number))
        for each in tier.longest:
            number = _number(each)
            place = f"place {places.index(number) + 1} of {len(places)}"
            fits = (
                f", by its fit to the free resources ({near[number]:.2f}, {place})"
                if len(set(near.values())) > 1
                else ""
            )
            found[number] = f"in the half that has waited longest{fits}{self._overdue_in(each)}"
        for each in tier.others:
            found[_number(each)] = f"after the half that has waited longest{self._overdue_in(each)}"
        return found

    def _overdue_in(self, each: StartCandidate) -> str:
        left_s = each.overdue_s - self._view.now_s
        return f"; goes before all of them in {left_s:.0f} s, having waited three times the average"

    def _first(self) -> QueuedJob:
        urgent = [job for number, job in self._urgent.items() if number in self._left]
        planned = [job for job in urgent if self._starts_now(job)]
        if planned:
            return planned[0]
        tier = self._tiers()
        overdue = self._untried(tier.overdue)
        if overdue:
            self.causes[overdue[0].id] = OVERDUE
            return overdue[0]
        groups = [self._untried(tier.longest), self._untried(tier.others)]
        for group in groups:
            if now := [job for job in group if self._starts_now(job)]:
                return self._best(now)
        if urgent:
            return urgent[0]
        return self._best(groups[0] or groups[1])

    def _starts_now(self, job: QueuedJob) -> bool:
        return self._now is None or str(job.id) in self._now

    def _tiers(self) -> StartTiers:
        """The tiers of jobs without a deadline that have not started, including those already tried."""
        view = self._view
        waiting = [
            StartCandidate(_name(job), job.submitted_s, overdue_at(view, job), True)
            for job in self._waits.values()
        ]
        return tiers(waiting, view.now_s, self._waiting)

    def _untried(self, tier: Sequence[StartCandidate]) -> list[QueuedJob]:
        return [self._left[number] for number in map(_number, tier) if number in self._left]

    def _best(self, group: Sequence[QueuedJob]) -> QueuedJob:
        """The job of a tier that fits best; ``group`` is sorted by arrival."""
        near = self._distances(group)
        job = min(group, key=lambda each: near[each.id])  # the oldest among equal jobs
        older = [each for each in group[: group.index(job)] if each.submitted_s < job.submitted_s]
        if older:
            number = older[0].id
            self.causes[job.id] = (
                f"it fits the free resources better than {_counted(len(older))} that waited longer "
                f"({near[job.id]:.2f}, job {number}: {near[number]:.2f}; 0 is best)"
            )
        return job

    def _distances(self, group: Sequence[QueuedJob]) -> Mapping[int, float]:
        if len(group) < 2:
            return {job.id: 0.0 for job in group}
        for job in group:
            if job.id not in self._scores:
                self._scores[job.id] = score_on(self._lines, stages_of(self._view, job))
        return distances({job.id: self._scores[job.id] for job in group})


def _counted(jobs: int) -> str:
    return "one job" if jobs == 1 else f"{jobs} jobs"


def _name(job: QueuedJob) -> str:
    return f"{job.id:020d}"  # sorts like the number


def _number(candidate: StartCandidate) -> int:
    return int(candidate.name)
