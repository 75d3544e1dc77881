"""Computes distributions of the host's usage, job by job, for admission, plans and preemptions.

A waiting job has the distribution of its history; a running one has that distribution conditioned on its
observed usage (``admission``). A job without history and observations counts by its request. ``HostLaws`` also
answers for hypothetical hosts, with jobs added, frozen or removed.

A scheduling pass asks about many sets of jobs that differ in a few members. Sums are therefore kept in a
binary tree over the positions of the jobs: a set that differs in k of n jobs costs at most k log n pairwise
sums. Jobs are ordered by expected end, because preemption asks for the usage that remains after the first of them
have ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from perphd.batch.admission import (
    LEAST_OBSERVED_S,
    Admission,
    ResourceRisk,
    TotalUsage,
    WorkloadUsage,
    admission,
    conditioned,
)
from perphd.batch.calibration import UsageCalibration
from perphd.batch.job import JobState, QueuedJob
from perphd.batch.job_worth import PLANNED_SHARE, left_of, run_time_of
from perphd.batch.look import CPU, MEMORY, ActiveJob, ExpectedSum, JobOutlook, QueueView
from perphd.forecast.grid import (
    GridDistribution,
    added,
    mean_of,
    nothing,
    of_histogram,
    of_outcomes,
    quantile_of,
)
from perphd.forecast.histogram import Histogram

CELLS: Final = 256
Saved: TypeAlias = dict[str, dict[int, GridDistribution]]


class HostLaws:
    """Distributions of the host's usage, including the jobs that this pass adds."""

    def __init__(self, view: QueueView) -> None:
        self._view = view
        names = view.resources
        self._calibration = {name: view.calibration.get(name, UsageCalibration()) for name in names}
        self._capacity = {CPU: max(view.cpus, 1e-6), MEMORY: max(view.memory_bytes, 1.0), **view.shared}
        self._others = {name: self._law(name, view.others(name)) for name in names}
        self._nothing = {name: nothing(self._capacity[name], CELLS) for name in names}
        self._tasks: dict[tuple[str, int], GridDistribution] = {}
        ends = {each.job.id: left_of(each, view.now_s).median_s for each in view.active}
        active = sorted(view.active, key=lambda each: (ends[each.job.id], each.job.id))
        self.ending: Final = tuple(each.job.id for each in active if each.job.state is JobState.RUNNING)
        """Jobs running at the start of the pass, by expected end."""
        self.expected_ends_s: Final = tuple(ends[number] for number in self.ending)
        self.ends_s: Final = ends
        """Median time left of each job, by number, including those that this pass adds."""
        self._frozen = {each.job.id: each for each in active if each.job.state is JobState.FROZEN}
        self._places = {each.job.id: place for place, each in enumerate(active)}
        self._jobs: Saved = {
            name: {each.job.id: self._active(name, each) for each in active} for name in names
        }
        self._sums: dict[str, GridDistribution] = {}
        self._totals: dict[tuple[GridDistribution | None, ...], TotalUsage] = {}

    def _active(self, resource: str, each: ActiveJob) -> GridDistribution:
        """Distribution of an active job's usage. A frozen job uses only memory."""
        if resource != MEMORY and each.job.id in self._frozen:
            return self._nothing[resource]
        return self._observed(resource, each)

    def _observed(self, resource: str, each: ActiveJob) -> GridDistribution:
        """Distribution of a job's usage while it runs, given what was observed so far."""
        again = each.job.id in self._view.earlier
        usage = WorkloadUsage(each.outlook.of(resource), each.of(resource), each.observed_s, again)
        return self._given(resource, each.job, usage)

    def _given(self, resource: str, job: QueuedJob, usage: WorkloadUsage) -> GridDistribution:
        """Distribution of a job's use given its observed use. Without a history, its request counts until it has been
        observed for ``LEAST_OBSERVED_S``.
        """
        if not usage.prior.count and not (usage.observed.count and usage.observed_s >= LEAST_OBSERVED_S):
            return self._asked(resource, job, usage.observed.most if usage.observed.count else 0.0)
        weight = self._calibration[resource].observed_weight
        return conditioned(usage, self._capacity[resource], CELLS, weight)

    def admission(self, job: QueuedJob) -> Admission:
        """The decision whether the job is admitted beside all running work.

        While no other job runs (frozen ones do not), a job is admitted if its memory fits, whatever else it
        requests. It only runs slower, and would otherwise wait forever. During an event, this does not apply to copper.
        """
        risks = {resource: self._risk(resource, job) for resource in self._view.resources}
        answer = admission(risks, self._view.tasks(job))
        if self._gives_way(job) and self._view.copper_share <= 0.0:
            return replace(answer, admitted=False)  # regardless of the accepted risk
        if self._alone(job) and answer.over[MEMORY] <= self._view.epsilon[MEMORY]:
            return replace(answer, admitted=True)
        return answer

    def add(self, job: QueuedJob) -> None:
        """Treat the job, and those that start together with it, as running."""
        outlook = self._view.outlooks.get(job.id, JobOutlook())
        ends_s = run_time_of(outlook, self._view.given(job)).median_s
        for number in (job.id, *self._view.together.get(job.id, ())):
            self._places.setdefault(number, len(self._places))
            self.ends_s[number] = ends_s
            for resource in self._view.resources:
                self._jobs[resource][number] = self._task(resource, job)
        self._sums.clear()

    def saved(self) -> Saved:
        """The distributions of all jobs, for ``restored``."""
        return {resource: dict(laws) for resource, laws in self._jobs.items()}

    def restored(self, saved: Saved) -> None:
        """Return to the state that ``saved`` returned."""
        self._jobs = {resource: dict(laws) for resource, laws in saved.items()}
        self._sums.clear()

    def standing(self, numbers: Sequence[int]) -> None:
        """Treat these jobs as frozen."""
        for resource in self._jobs:
            for number in numbers if resource != MEMORY else ():
                self._jobs[resource][number] = self._nothing[resource]
        self._sums.clear()

    def thaw(self, job: QueuedJob) -> None:
        """Treat a frozen job as running again."""
        for resource in self._jobs:
            if resource != MEMORY:
                self._jobs[resource][job.id] = self._task(resource, job)
        self._sums.clear()

    def without(self, numbers: Sequence[int]) -> None:
        """Treat these jobs as ended."""
        for resource in self._view.resources:
            for number in numbers:
                self._jobs[resource].pop(number, None)
        self._sums.clear()

    def expected_share(self, resource: str, number: int) -> float:
        """Mean use of a running job, as a share of the host's capacity; 0 for an unknown job."""
        law = self._jobs[resource].get(number)
        return 0.0 if law is None else mean_of(law) / law.capacity

    def expected_use(self, resource: str, number: int) -> float:
        """Mean use of a running job, in the resource's unit."""
        return self.expected_share(resource, number) * self._capacity[resource]

    def planned_uses(self, resource: str) -> dict[int, float]:
        """90 % quantile of each running job's use in the resource's unit, by job number; at most the capacity."""
        return {
            number: min(law.capacity, quantile_of(law, PLANNED_SHARE))
            for number, law in self._jobs[resource].items()
        }

    def capacity(self, resource: str) -> float:
        """Capacity for jobs and everything else together."""
        return self._capacity[resource]

    def expected_need(self, resource: str, job: QueuedJob) -> float:
        """Mean use that a waiting job would have, in the resource's unit."""
        return mean_of(self._task(resource, job))

    def margin(self, resource: str) -> float:
        """How far the total may exceed its mean: its quantile at 1 - epsilon, less the mean, in the resource's unit."""
        law = self._running(resource)
        return max(0.0, quantile_of(law, 1.0 - self._view.epsilon[resource]) - mean_of(law))

    def thaws(self, job: QueuedJob) -> bool:
        """True if the host has room for a frozen job's demand except memory, which it still holds.

        While no other job runs, a job continues regardless of its CPU request, as in ``admission``.
        """
        if self._alone(job):
            return True
        names = [name for name in self._view.resources if name != MEMORY]
        return admission({name: self._risk(name, job) for name in names}).admitted

    def expected(self, job: QueuedJob) -> list[ExpectedSum]:
        """Distributions that admitted ``job``, which has just been added; empty while an event withholds capacity."""
        if self._view.copper_share < 1.0:
            return []
        return [
            ExpectedSum(
                job.id,
                resource,
                tuple(number for number, law in self._jobs[resource].items() if law.shares[0] < 1.0),
                self._running(resource),
            )
            for resource in self._view.resources
        ]

    def _alone(self, job: QueuedJob) -> bool:
        """True if no job runs, and no event restricts this one."""
        nothing_runs = all(law is self._nothing[CPU] for law in self._jobs[CPU].values())
        return nothing_runs and not self._gives_way(job)

    def _gives_way(self, job: QueuedJob) -> bool:
        """True for copper during an event."""
        return self._view.copper_share < 1.0 and not job.spec.band.protected

    def _risk(self, resource: str, job: QueuedJob) -> ResourceRisk:
        running = self._running(resource)
        return ResourceRisk(
            added(running, self._kept_back(resource)) if self._gives_way(job) else running,
            self._task(resource, job),
            self._view.epsilon[resource],
            self._calibration[resource],
        )

    def _running(self, resource: str) -> GridDistribution:
        if resource not in self._sums:
            laws: list[GridDistribution | None] = [None] * len(self._places)
            for number, law in self._jobs[resource].items():
                laws[self._places[number]] = None if law is self._nothing[resource] else law
            total = self._total(tuple(laws))
            jobs = (
                self._nothing[resource]
                if total is None
                else total.law(self._calibration[resource].correlation)
            )
            self._sums[resource] = added(self._others[resource], jobs)
        return self._sums[resource]

    def _kept_back(self, resource: str) -> GridDistribution:
        """The part of the host that an event withholds from copper; it counts as used."""
        capacity = self._capacity[resource]
        offer = max(0.0, capacity - min(capacity, quantile_of(self._others[resource], PLANNED_SHARE)))
        return of_outcomes({offer * (1.0 - self._view.copper_share): 1.0}, capacity, CELLS)

    def _total(self, laws: tuple[GridDistribution | None, ...]) -> TotalUsage | None:
        """Sum of the distributions at these positions; None if there are none. Splits at a power of two."""
        if len(laws) < 2:
            return TotalUsage(laws[0], laws[0]) if laws and laws[0] is not None else None
        known = self._totals.get(laws)
        if known is None:
            half = 1 << (len(laws) - 1).bit_length() - 1
            first, second = self._total(laws[:half]), self._total(laws[half:])
            if first is None or second is None:
                return first or second
            known = self._totals[laws] = first.plus(second)
        return known

    def _law(self, resource: str, seen: Histogram) -> GridDistribution:
        capacity = self._capacity[resource]
        return of_histogram(seen, capacity, CELLS) if seen.count else nothing(capacity, CELLS)

    def _task(self, resource: str, job: QueuedJob) -> GridDistribution:
        known = self._tasks.get((resource, job.id))
        if known is None:
            known = self._tasks[resource, job.id] = self._task_law(resource, job)
        return known

    def _task_law(self, resource: str, job: QueuedJob) -> GridDistribution:
        if job.id in self._frozen:
            return self._observed(resource, self._frozen[job.id])
        outlook = self._view.outlooks[job.id] if job.id in self._view.outlooks else JobOutlook()
        earlier = self._view.earlier.get(job.id)
        if earlier is None:
            return self._given(resource, job, WorkloadUsage(outlook.of(resource)))
        return self._given(
            resource, job, WorkloadUsage(outlook.of(resource), earlier.seen[resource], earlier.seconds, True)
        )

    def _asked(self, resource: str, job: QueuedJob, least: float) -> GridDistribution:
        """Distribution of a job without a history: its request, but at least ``least``.

        Shared resources cannot be requested. The job's share of them is assumed to equal its share of the CPUs.
        """
        amounts = {CPU: job.spec.cpus, MEMORY: float(job.spec.memory_bytes)}
        capacity = self._capacity[resource]
        amount = amounts.get(resource, min(1.0, job.spec.cpus / self._capacity[CPU]) * capacity)
        return of_outcomes({max(least, amount): 1.0}, capacity, CELLS)
