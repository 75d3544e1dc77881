"""One look at the queue: which jobs start now, which stand still, and why every other one waits.

    candidates = deadlines that are ahead by their time, then overdue jobs, then the others by arrival
    plan       = the planner's start times for the candidates, if a deadline is among them
    start now  = in that order, each job that is admitted beside everything that runs

A job is admitted by the law of its usage (``admission``). Everything on the host that is no job of the queue counts as
one more usage, with the law that was observed of it.

A job whose deadline has passed counts as one without. Such a job is overdue after three times the average wait. While
an overdue job does not fit, only deadlines are started: smaller jobs would keep it waiting without end.

A job with a deadline that does not fit may freeze copper jobs, if the plan gains more than that costs. A frozen job
keeps its memory: it is requeued when memory is what the urgent job lacks. It goes on when nothing urgent waits.

The core of an elastic job starts as a whole. Its other workers start on what all jobs that fit have left, and are the
first to stand still for an urgent job (``gangs``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from perphd.batch.admission import Admission, ResourceRisk, WorkloadUsage, admission, conditioned, correlated
from perphd.batch.calibration import Calibration
from perphd.batch.fairness import PATIENCE
from perphd.batch.gangs import admitted, gangs_of, is_elastic, revoked, shares_of, with_urgent
from perphd.batch.job import JobState, QueuedJob
from perphd.batch.look import CPU, MEMORY, RESOURCES, ActiveJob, ExpectedSum, JobOutlook, QueueStep, QueueView
from perphd.batch.planner import JobPlan, PlanWindow, RunningJob, WaitingJob, greedy
from perphd.batch.utility import (
    OVERESTIMATE_THRESHOLD,
    RunTime,
    Utility,
    adapted,
    of_history,
    remaining,
    uniform,
)
from perphd.forecast.grid import GridDistribution, added, nothing, of_histogram, of_outcomes, quantile_of
from perphd.forecast.histogram import Histogram, quantile
from perphd.forecast.running import Overrun, moved_end

CONSIDERED: Final = 20
"""Jobs that one look considers: a greedy plan for them takes 0.06 s."""
SLOTS: Final = 20
SLOT_S: Final = (15.0, 600.0)
DEADLINE_WORTH: Final = 10.0
"""A met deadline is worth as much as ten best-effort jobs that end at once (3Sigma, 5)."""
PATIENCE_S: Final = 24 * 3600.0
"""Best-effort work is worth nothing a day later."""
PREEMPTION_COST: Final = 1.0
"""A preemption costs one best-effort job, and as much again for each hour of work that may be lost."""
UNKNOWN_RUN_S: Final = (60.0, 3600.0)
"""Run time of a job of which nothing is known: anything up to an hour."""
CELLS: Final = 256
PLANNED_SHARE: Final = 0.9
"""Quantile of a usage that a plan counts with."""
Improve: TypeAlias = Callable[[PlanWindow, Sequence[WaitingJob], Sequence[RunningJob], JobPlan], JobPlan]


def candidates(view: QueueView) -> list[QueuedJob]:
    """The jobs that a look considers, in the order in which they are tried.

    Deadlines go before overdue jobs: on a crowded host most jobs without a deadline are overdue.
    """
    urgent = [job for job in view.waiting if has_deadline(view, job)]
    urgent.sort(key=lambda job: (job.spec.deadline_s or 0.0, job.id))
    others = [job for job in view.waiting if not has_deadline(view, job)]
    others.sort(key=lambda job: (not is_overdue(view, job), job.submitted_s, job.id))
    return [*urgent, *others][:CONSIDERED]


def has_deadline(view: QueueView, job: QueuedJob) -> bool:
    """True for a job whose deadline is still ahead."""
    return job.spec.deadline_s is not None and job.spec.deadline_s > view.now_s


def is_overdue(view: QueueView, job: QueuedJob) -> bool:
    """True for a job without a deadline ahead that has waited three times as long as the average."""
    waited_s = view.now_s - job.submitted_s
    return not has_deadline(view, job) and waited_s > max(PATIENCE * view.average_wait_s, SLOT_S[0])


def is_urgent(view: QueueView, job: QueuedJob) -> bool:
    """True for a job that elastic workers give way to."""
    return has_deadline(view, job) or is_overdue(view, job)


def scheduled(view: QueueView, improve: Improve | None = None) -> QueueStep:
    """What this look decides. ``improve``: turns the greedy plan into a better one."""
    tried = candidates(view)
    plan = planned(view, tried, improve)
    host = _Host(view)
    room = view.most_running - len(view.active)
    starts: list[int] = []
    reasons: dict[int, str] = {}
    over: dict[int, Mapping[str, float]] = {}
    expected: list[ExpectedSum] = []
    frozen: list[int] = []
    short_of_memory = False
    held_up: QueuedJob | None = None
    elastic = _Elastic(view)
    for job in _in_order(view, tried, plan):
        if len(starts) + view.tasks(job) > room:
            reasons[job.id] = f"{view.most_running} jobs run, the most at a time ([queue] most_running)"
            continue
        if held_up is not None and not has_deadline(view, job):
            reasons[job.id] = f"job {held_up.id} has waited longest and goes first"
            continue
        answer = host.admission(job)
        if not answer.admitted and is_urgent(view, job):
            answer = elastic.made_room(host, job, answer)
        if not answer.admitted and plan is not None and has_deadline(view, job):
            victims = _victims(view, plan)
            if victims and not frozen:
                frozen = victims
                host.without_cpus(victims)
                answer = host.admission(job)
            short_of_memory |= answer.over[MEMORY] > view.epsilon[MEMORY]
        over[job.id] = answer.over
        planned_s = 0.0 if plan is None or job.id in elastic.served else plan.starts_s.get(str(job.id), 0.0)
        if answer.admitted and planned_s > 0.0:
            reasons[job.id] = f"planned to start in {planned_s:.0f} s: others gain more by now"
        elif answer.admitted:
            starts += [job.id, *view.together.get(job.id, ())]
            host.add(job)
            expected += host.expected(job)
        else:
            reasons[job.id] = waiting_reason(view, job, answer.over)
            if is_overdue(view, job) and held_up is None:
                held_up = job
    for job in view.waiting:
        if job.id not in reasons and job.id not in starts:
            reasons[job.id] = f"{len(tried)} jobs are before it"
    standing = [each.job for each in view.active if each.job.state is JobState.FROZEN]
    urgent_waits = any(has_deadline(view, job) and job.id not in starts for job in tried)
    requeued = [job.id for job in standing] if short_of_memory and view.preempts else []
    thawed = [
        job.id
        for job in standing
        if not view.preempts
        or (
            job.id not in requeued
            and not is_elastic(job)
            and not frozen
            and not urgent_waits
            and host.thaws(job)
        )
    ]
    if not elastic.revoked and held_up is None and not urgent_waits and not frozen:
        for job in elastic.more([job for job in tried if job.id in starts]):
            if job.state is JobState.FROZEN:
                thawed += [job.id] if job.id not in thawed and host.thaws(job) else []
            elif len(starts) >= room:
                reasons[job.id] = f"{view.most_running} jobs run, the most at a time ([queue] most_running)"
            elif (answer := host.admission(job)).admitted:
                starts.append(job.id)
                host.add(job)
            else:
                reasons[job.id] = waiting_reason(view, job, answer.over)
    for job in view.workers:
        if job.id not in starts:
            reasons.setdefault(job.id, "an elastic worker starts on what others leave")
    times = {} if plan is None else {int(name): start_s for name, start_s in plan.starts_s.items()}
    revoke = tuple(each for each in elastic.revoked if each not in requeued and each not in frozen)
    return QueueStep(
        tuple(requeued),
        tuple(frozen),
        revoke,
        tuple(thawed),
        tuple(starts),
        reasons,
        times,
        over,
        tuple(expected),
    )


def waiting_reason(view: QueueView, job: QueuedJob, over: Mapping[str, float]) -> str:
    """Why a job is not admitted, in plain words."""
    words = []
    if over[CPU] > view.epsilon[CPU]:
        cpus = job.spec.cpus * view.tasks(job)
        words.append(f"{cpus:g} CPUs would be too many with a probability of {over[CPU]:.0%}")
    if over[MEMORY] > view.epsilon[MEMORY]:
        asked = f"{view.tasks(job) * job.spec.memory_bytes / 2**20:.0f} MiB"
        words.append(f"{asked} of memory would be too much with a probability of {over[MEMORY]:.0%}")
    accepted = f"accepted: {view.epsilon[CPU]:.0%} for CPUs, {view.epsilon[MEMORY]:.0%} for memory"
    return f"the host has no room: {' and '.join(words)} ({accepted})"


def run_time_of(outlook: JobOutlook) -> RunTime:
    """The law of a run time."""
    return of_history(outlook.run_time_s) if outlook.run_time_s.count else uniform(*UNKNOWN_RUN_S)


def left_of(active: ActiveJob, now_s: float) -> RunTime:
    """The law of what is left of a running job. Of an unknown one: about what it has run already."""
    ran_s = active.job.has_run_s(now_s)
    history = active.outlook.run_time_s
    if history.count:
        return remaining(history, ran_s, active.overrun)
    return uniform(0.0, max(UNKNOWN_RUN_S[0], 2.0 * ran_s))


def with_overrun(active: ActiveJob, now_s: float, cycle_s: float) -> Overrun:
    """The moved end of a job that has outlived its history."""
    history = active.outlook.run_time_s
    longest_s = history.most if history.count else 0.0
    return moved_end(active.overrun, longest_s, active.job.has_run_s(now_s), cycle_s)


def utility_of(
    job: QueuedJob, run_time: RunTime, now_s: float, doubted: float = OVERESTIMATE_THRESHOLD
) -> Utility:
    """What it is worth to complete the job, from now on."""
    if job.spec.deadline_s is None:
        waited_s = max(0.0, now_s - job.submitted_s)
        return Utility(1.0, patience_s=max(PATIENCE_S - waited_s, UNKNOWN_RUN_S[1]))
    left_s = job.spec.deadline_s - now_s
    if left_s <= 0.0:  # missed: worth what best effort is
        return Utility(1.0, patience_s=PATIENCE_S)
    waited_s = max(0.0, now_s - job.submitted_s)
    return adapted(Utility(DEADLINE_WORTH, deadline_s=left_s), run_time, waited_s, doubted)


def planned(view: QueueView, tried: Sequence[QueuedJob], improve: Improve | None = None) -> JobPlan | None:
    """The plan for the candidates; None if no deadline is among them: they then start in their order."""
    if not any(has_deadline(view, job) for job in tried):
        return None
    window, waiting, running = stated(view, tried)
    plan = greedy(window, waiting, running)
    return plan if improve is None else improve(window, waiting, running, plan)


def stated(
    view: QueueView, tried: Sequence[QueuedJob]
) -> tuple[PlanWindow, list[WaitingJob], list[RunningJob]]:
    """The planner's problem."""
    ahead_s = max((job.spec.deadline_s or 0.0) - view.now_s for job in tried)
    slot_s = min(max(ahead_s / (SLOTS * 0.75), SLOT_S[0]), SLOT_S[1])
    others = (
        quantile(view.others_cpus, PLANNED_SHARE) if view.others_cpus.count else 0.0,
        quantile(view.others_memory, PLANNED_SHARE) if view.others_memory.count else 0.0,
    )
    capacity = {
        CPU: max(0.0, view.cpus - others[0]) * view.copper_share,
        MEMORY: max(0.0, view.memory_bytes - others[1]) * view.copper_share,
    }
    waiting = []
    for job in tried:
        outlook = view.outlooks[job.id]
        run_time = run_time_of(outlook)
        demand = {name: view.tasks(job) * each for name, each in demand_of(job, outlook).items()}
        waiting.append(
            WaitingJob(str(job.id), demand, run_time, utility_of(job, run_time, view.now_s, view.doubted))
        )
    running = []
    for each in view.active:
        demand = demand_of(each.job, each.outlook)
        if each.job.state is JobState.FROZEN:
            demand = {MEMORY: demand[MEMORY]}
        running.append(RunningJob(str(each.job.id), demand, left_of(each, view.now_s), _cost(view, each)))
    return PlanWindow(capacity, slot_s, SLOTS), waiting, running


def _cost(view: QueueView, active: ActiveJob) -> float | None:
    job = active.job
    if not view.preempts or job.spec.band.protected or job.state is not JobState.RUNNING or not job.confirmed:
        return None
    if job.spec.deadline_s is not None or view.now_s < job.not_preempted_before_s:
        return None
    return PREEMPTION_COST * (1.0 + job.has_run_s(view.now_s) / 3600.0)


def demand_of(job: QueuedJob, outlook: JobOutlook) -> dict[str, float]:
    """What a plan counts with."""
    cpus, memory = outlook.cpus, outlook.memory_bytes
    return {
        CPU: quantile(cpus, PLANNED_SHARE) if cpus.count else job.spec.cpus,
        MEMORY: quantile(memory, PLANNED_SHARE) if memory.count else float(job.spec.memory_bytes),
    }


def _victims(view: QueueView, plan: JobPlan) -> list[int]:
    running = {each.job.id for each in view.active if each.job.state is JobState.RUNNING}
    return [int(name) for name in plan.preempted if int(name) in running]


def _in_order(view: QueueView, tried: Sequence[QueuedJob], plan: JobPlan | None) -> list[QueuedJob]:
    """Deadlines that the plan starts now, then overdue jobs, then the others that it starts now.

    The order of the candidates is kept otherwise.
    """
    if plan is None:
        return list(tried)
    now = set(plan.now)
    return sorted(
        tried,
        key=lambda job: (
            not (has_deadline(view, job) and str(job.id) in now),
            not is_overdue(view, job),
            str(job.id) not in now,
        ),
    )


class _Elastic:
    """The shares of elastic jobs in one look. ``revoked``: workers that lose their slots, to the jobs in ``served``."""

    def __init__(self, view: QueueView) -> None:
        self._view = view
        self._active = [each.job for each in view.active]
        self._gangs = gangs_of([*self._active, *view.workers])
        self._outlooks = {each.job.id: each.outlook for each in view.active} | dict(view.outlooks)
        self._shares = shares_of(self._room(), self._active, view.workers, self._cpus)
        self.revoked: list[int] = []
        self.served: set[int] = set()

    def made_room(self, host: _Host, job: QueuedJob, answer: Admission) -> Admission:
        """Take slots for an urgent job if that lets it start; else all keep theirs."""
        if not self._gangs or not self._view.preempts:
            return answer
        shares = with_urgent(self._shares, job, self._view.tasks(job) * self._cpus(job))
        taken = [each.id for each in revoked(self._gangs, shares) if each.id not in self.revoked]
        if not taken:
            return answer
        saved = host.saved()
        host.without_cpus(taken)
        after = host.admission(job)
        if not after.admitted:
            host.restored(saved)
            return answer
        self._shares = shares
        self.revoked += taken
        self.served.add(job.id)  # a plan that counts with the workers says later
        return after

    def more(self, started: Sequence[QueuedJob]) -> list[QueuedJob]:
        """Elastic workers that may run beside what runs and ``started``."""
        if not self._gangs:
            return []
        shares = shares_of(self._room(), [*self._active, *started], self._view.workers, self._cpus)
        return admitted(self._gangs, shares)

    def _room(self) -> float:
        others = self._view.others_cpus
        used = quantile(others, PLANNED_SHARE) if others.count else 0.0
        return max(0.0, self._view.cpus - used) * self._view.copper_share

    def _cpus(self, job: QueuedJob) -> float:
        return demand_of(job, self._outlooks.get(job.id, JobOutlook()))[CPU]


class _Host:
    """The laws of what uses the host, with every job that this look adds."""

    def __init__(self, view: QueueView) -> None:
        self._view = view
        self._calibration = {name: view.calibration.get(name, Calibration()) for name in RESOURCES}
        self._capacity = {CPU: max(view.cpus, 1e-6), MEMORY: max(view.memory_bytes, 1.0)}
        self._others = {
            CPU: self._law(CPU, view.others_cpus),
            MEMORY: self._law(MEMORY, view.others_memory),
        }
        self._jobs: dict[str, dict[int, GridDistribution]] = {CPU: {}, MEMORY: {}}
        for each in view.active:
            usages = {
                CPU: WorkloadUsage(each.outlook.cpus, each.cpus, each.observed_s),
                MEMORY: WorkloadUsage(each.outlook.memory_bytes, each.memory_bytes, each.observed_s),
            }
            for resource, usage in usages.items():
                known = usage.prior.count or usage.observed_s >= 60.0
                law = (
                    conditioned(
                        usage,
                        self._capacity[resource],
                        CELLS,
                        self._calibration[resource].observed_weight,
                    )
                    if known
                    else self._asked(resource, each.job)
                )
                if resource == CPU and each.job.state is JobState.FROZEN:
                    law = nothing(self._capacity[CPU], CELLS)
                self._jobs[resource][each.job.id] = law
        self._sums: dict[str, GridDistribution] = {}

    def admission(self, job: QueuedJob) -> Admission:
        """Whether the job is admitted beside everything that runs.

        Beside no other job it is admitted whatever CPUs it asks for: it is only slower, and would wait for ever.
        """
        risks = {resource: self._risk(resource, job) for resource in RESOURCES}
        answer = admission(risks, self._view.tasks(job))
        alone = not self._jobs[CPU] and self._view.copper_share >= 1.0
        if alone and answer.over[MEMORY] <= self._view.epsilon[MEMORY]:
            return replace(answer, admitted=True)
        return answer

    def add(self, job: QueuedJob) -> None:
        """The job runs from now on, with those that start together with it."""
        for resource in RESOURCES:
            for number in (job.id, *self._view.together.get(job.id, ())):
                self._jobs[resource][number] = self._task(resource, job)
        self._sums.clear()

    def saved(self) -> dict[str, dict[int, GridDistribution]]:
        """The laws of all jobs, for ``restored``."""
        return {resource: dict(laws) for resource, laws in self._jobs.items()}

    def restored(self, saved: dict[str, dict[int, GridDistribution]]) -> None:
        """As when ``saved`` was called."""
        self._jobs = saved
        self._sums.clear()

    def without_cpus(self, numbers: Sequence[int]) -> None:
        """These stand still from now on."""
        for number in numbers:
            self._jobs[CPU][number] = nothing(self._capacity[CPU], CELLS)
        self._sums.clear()

    def thaws(self, job: QueuedJob) -> bool:
        """True if the processors have room for a frozen job."""
        return admission({CPU: self._risk(CPU, job)}).admitted

    def expected(self, job: QueuedJob) -> list[ExpectedSum]:
        """What admission counts with, now that ``job`` was added; nothing while an event keeps room free."""
        if self._view.copper_share < 1.0:
            return []
        return [
            ExpectedSum(
                job.id,
                resource,
                tuple(number for number, law in self._jobs[resource].items() if law.shares[0] < 1.0),
                self._running(resource),
            )
            for resource in RESOURCES
        ]

    def _risk(self, resource: str, job: QueuedJob) -> ResourceRisk:
        return ResourceRisk(
            self._running(resource),
            self._task(resource, job),
            self._view.epsilon[resource],
            self._calibration[resource],
        )

    def _running(self, resource: str) -> GridDistribution:
        if resource not in self._sums:
            capacity = self._capacity[resource]
            laws = list(self._jobs[resource].values())
            jobs = (
                correlated(laws, capacity, self._calibration[resource].correlation)
                if laws
                else nothing(capacity, CELLS)
            )
            share = self._view.copper_share
            if share < 1.0:  # what an event keeps from copper counts as used
                offer = max(0.0, capacity - min(capacity, quantile_of(self._others[resource], PLANNED_SHARE)))
                jobs = added(jobs, of_outcomes({offer * (1.0 - share): 1.0}, capacity, CELLS))
            self._sums[resource] = added(self._others[resource], jobs)
        return self._sums[resource]

    def _law(self, resource: str, seen: Histogram) -> GridDistribution:
        capacity = self._capacity[resource]
        return of_histogram(seen, capacity, CELLS) if seen.count else nothing(capacity, CELLS)

    def _task(self, resource: str, job: QueuedJob) -> GridDistribution:
        outlook = self._view.outlooks[job.id] if job.id in self._view.outlooks else JobOutlook()
        history = outlook.cpus if resource == CPU else outlook.memory_bytes
        return (
            of_histogram(history, self._capacity[resource], CELLS)
            if history.count
            else self._asked(resource, job)
        )

    def _asked(self, resource: str, job: QueuedJob) -> GridDistribution:
        amount = job.spec.cpus if resource == CPU else float(job.spec.memory_bytes)
        return of_outcomes({amount: 1.0}, self._capacity[resource], CELLS)
