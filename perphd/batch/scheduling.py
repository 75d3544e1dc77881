"""One scheduling pass: decides which jobs start or freeze now, and states why each other job waits.

    candidates = jobs with a deadline ahead, by deadline, then overdue jobs, then the others by arrival
    plan       = the planner's start times for the candidates, if one of them has a deadline
    start now  = in the order of ``choice``, each job that is admitted beside everything that runs

A job is admitted by the distribution of its usage (``admission``). Everything on the host that is not a job
of the queue counts as one more usage, with its observed distribution.

A job whose deadline has passed counts as one without. Such a job is overdue after three times the average
wait. While an overdue job does not fit, or the core of an elastic job lacks places, only jobs with deadlines start;
otherwise smaller jobs would delay it indefinitely.

Copper jobs make room for a job with a deadline that is not admitted, if waiting would cost it more
(``preemption``). A frozen job continues when the host has room for it and no job with a deadline waits, before jobs
without a deadline start: otherwise they would take each room that it waits for. An admitted job with a deadline starts
even if it is planned for later, unless another one was refused before it and may need that room.

The core of an elastic job starts as a whole. Its other workers start on the CPUs that are left when all fitting
jobs have started, and are the first to be frozen for an urgent job (``gangs``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from perphd.batch.admission import Admission
from perphd.batch.choice import StartChoice, candidates, is_overdue, is_urgent
from perphd.batch.gangs import admitted, gangs_of, is_elastic, revoked, shares_of, with_urgent
from perphd.batch.host_laws import HostLaws
from perphd.batch.job import JobState, QueuedJob
from perphd.batch.job_worth import (
    demand_of,
    has_deadline,
    left_of,
    planned_use,
    preemption_cost,
    run_time_of,
    utility_of,
)
from perphd.batch.look import BANDWIDTH, CPU, MEMORY, WAYS, ExpectedSum, JobOutlook, QueueStep, QueueView
from perphd.batch.planner import JobPlan, PlanWindow, RunningJob, WaitingJob, greedy
from perphd.batch.preemption import preempted_for

SLOTS: Final = 20
SLOT_S: Final = (15.0, 600.0)
TRIED_PREEMPTIONS: Final = 4
"""Maximum number of jobs per pass for which preemption is tried; all compete for the same room."""
ROOM_AGAIN: Final = "the host has room for it again"
NOT_ENFORCED: Final = "no job is in mode enforce any longer, so none may stay frozen"
Improve: TypeAlias = Callable[[PlanWindow, Sequence[WaitingJob], Sequence[RunningJob], JobPlan], JobPlan]


def scheduled(view: QueueView, improve: Improve | None = None) -> QueueStep:
    """Decide one scheduling pass. ``improve``: turns the greedy plan into a better one."""
    tried = candidates(view)
    host = HostLaws(view)
    plan = planned(view, host, tried, improve)
    room = view.most_running - len(view.active)
    starts: list[int] = []
    reasons: dict[int, str] = {}
    over: dict[int, Mapping[str, float]] = {}
    expected: list[ExpectedSum] = []
    frozen: list[int] = []
    requeued: list[int] = []
    preempted: dict[int, str] = {}
    refused_urgent, tries = False, TRIED_PREEMPTIONS
    held_up: QueuedJob | None = None
    short_of_places: QueuedJob | None = None
    elastic = _Elastic(view)
    choice = StartChoice(view, host, tried, plan)
    standing = [each.job for each in view.active if each.job.state is JobState.FROZEN]
    thawed: list[int] = []

    def thaw() -> None:
        left = [job for job in standing if job.id not in requeued and job.id not in thawed]
        waits = any(has_deadline(view, job) and job.id not in starts for job in tried)
        thawed.extend(_continued(view, host, left, bool(frozen) or waits))

    others_come = False
    while (job := choice.next()) is not None:
        if not others_come and not has_deadline(view, job):
            others_come = True
            thaw()
        if len(starts) + view.tasks(job) > room:
            reasons[job.id] = f"{view.most_running} jobs are running, the limit ([tuning.queue] most_running)"
            if is_overdue(view, job) and view.tasks(job) <= view.most_running:
                short_of_places = short_of_places or job
            continue
        first = held_up or short_of_places
        if first is not None and not has_deadline(view, job):
            reasons[job.id] = f"job {first.id} has waited longest and goes first"
            continue
        answer = host.admission(job)
        if not answer.admitted and is_urgent(view, job):
            answer = elastic.made_room(host, job, answer)
        if not answer.admitted and has_deadline(view, job) and tries > 0:
            tries -= 1
            made = preempted_for(view, host, job, answer, (*frozen, *requeued, *elastic.revoked))
            if made is not None:
                answer = made.admission
                frozen += made.freeze
                requeued += made.requeue
                preempted |= made.reasons
        over[job.id] = answer.over
        planned_s = 0.0 if plan is None or job.id in elastic.served else plan.starts_s.get(str(job.id), 0.0)
        if has_deadline(view, job) and not refused_urgent:
            planned_s = 0.0  # a job with a deadline need not leave its room to others
        if answer.admitted and planned_s > 0.0:
            reasons[job.id] = f"planned to start in {planned_s:.0f} s: other jobs gain more by starting now"
        elif answer.admitted:
            starts += [job.id, *view.together.get(job.id, ())]
            host.add(job)
            choice.started(job)
            expected += host.expected(job)
        else:
            reasons[job.id] = waiting_reason(view, job, answer.over)
            refused_urgent |= has_deadline(view, job)
            if is_overdue(view, job) and held_up is None:
                held_up = job
    for job in view.waiting:
        if job.id not in reasons and job.id not in starts:
            reasons[job.id] = f"{len(tried)} jobs are ahead of it"
    thaw()
    urgent_waits = any(has_deadline(view, job) and job.id not in starts for job in tried)
    if not elastic.revoked and held_up is None and not urgent_waits and not frozen:
        for job in elastic.more([job for job in tried if job.id in starts]):
            if job.state is JobState.FROZEN:
                if job.id not in thawed and host.thaws(job):
                    host.thaw(job)
                    thawed.append(job.id)
            elif len(starts) >= room or short_of_places is not None:
                reasons[job.id] = (
                    f"{view.most_running} jobs are running, the limit ([tuning.queue] most_running)"
                )
            elif (answer := host.admission(job)).admitted:
                starts.append(job.id)
                host.add(job)
            else:
                reasons[job.id] = waiting_reason(view, job, answer.over)
    for job in view.workers:
        if job.id not in starts:
            reasons.setdefault(job.id, "elastic workers start on the CPUs that other jobs leave free")
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
        {
            **dict.fromkeys(thawed, ROOM_AGAIN if view.preempts else NOT_ENFORCED),
            **elastic.reasons,
            **preempted,
            **{number: why for number, why in choice.causes.items() if number in starts},
        },
        choice.order(),
    )


def _continued(view: QueueView, host: HostLaws, standing: Sequence[QueuedJob], waits: bool) -> list[int]:
    """Frozen jobs that continue now, added to ``host``. ``waits``: the room is needed for an urgent job."""
    found = []
    for job in standing:
        if not view.preempts or (not waits and not is_elastic(job) and host.thaws(job)):
            host.thaw(job)
            found.append(job.id)
    return found


def waiting_reason(view: QueueView, job: QueuedJob, over: Mapping[str, float]) -> str:
    """Why a job is not admitted, for its owner."""
    words = []
    if over[CPU] > view.epsilon[CPU]:
        cpus = job.spec.cpus * view.tasks(job)
        what = "1 CPU would be too much" if cpus == 1 else f"{cpus:g} CPUs would be too many"
        words.append(f"{what} with a probability of {over[CPU]:.0%}")
    if over[MEMORY] > view.epsilon[MEMORY]:
        asked = f"{view.tasks(job) * job.spec.memory_bytes / 2**20:.0f} MiB"
        words.append(f"{asked} of memory would be too much with a probability of {over[MEMORY]:.0%}")
    for name, what in ((WAYS, "cache"), (BANDWIDTH, "memory bandwidth")):
        if over.get(name, 0.0) > view.epsilon.get(name, 1.0):
            words.append(f"{what} would be too little with a probability of {over[name]:.0%}")
    accepted = f"accepted: {view.epsilon[CPU]:.0%} for CPUs, {view.epsilon[MEMORY]:.0%} for memory"
    said = f"{' and '.join(words)} ({accepted})"
    if view.copper_share < 1.0 and not job.spec.band.protected:
        left = f"{view.copper_share:.0%} of the host's unused part" if view.copper_share > 0.0 else "nothing"
        return f"an event leaves copper {left}{f': {said}' if words else ''}"
    return f"the host has no room: {said}"


def planned(
    view: QueueView, host: HostLaws, tried: Sequence[QueuedJob], improve: Improve | None = None
) -> JobPlan | None:
    """The plan for the candidates; None if none has a deadline, because they then start in order."""
    if not any(has_deadline(view, job) for job in tried):
        return None
    window, waiting, running = stated(view, host, tried)
    plan = greedy(window, waiting, running)
    return plan if improve is None else improve(window, waiting, running, plan)


def stated(
    view: QueueView, host: HostLaws, tried: Sequence[QueuedJob]
) -> tuple[PlanWindow, list[WaitingJob], list[RunningJob]]:
    """The planner's problem.

    Jobs count by their means; the capacity is reduced by the margin that admission requires.
    """
    ahead_s = max((job.spec.deadline_s or 0.0) - view.now_s for job in tried)
    slot_s = min(max(ahead_s / (SLOTS * 0.75), SLOT_S[0]), SLOT_S[1])
    whole = {CPU: view.cpus, MEMORY: view.memory_bytes, **view.shared}
    capacity = {}
    for name in view.resources:
        used = planned_use(view.others(name))
        capacity[name] = max(0.0, (whole[name] - used) * view.copper_share - host.margin(name))
    waiting = []
    for job in tried:
        run_time = run_time_of(view.outlooks[job.id], view.given(job))
        demand = {name: view.tasks(job) * host.expected_need(name, job) for name in view.resources}
        waiting.append(
            WaitingJob(str(job.id), demand, run_time, utility_of(job, run_time, view.now_s, view.doubted))
        )
    running = []
    for each in view.active:
        demand = {name: host.expected_use(name, each.job.id) for name in view.resources}
        running.append(
            RunningJob(str(each.job.id), demand, left_of(each, view.now_s), preemption_cost(view, each))
        )
    return PlanWindow(capacity, slot_s, SLOTS), waiting, running


class _Elastic:
    """Shares of elastic jobs in one pass.

    ``revoked``: workers that lose their slots to the jobs in ``served``; ``reasons``: why, by worker.
    """

    def __init__(self, view: QueueView) -> None:
        self._view = view
        self._active = [each.job for each in view.active]
        self._gangs = gangs_of([*self._active, *view.workers])
        self._outlooks = {each.job.id: each.outlook for each in view.active} | dict(view.outlooks)
        self._shares = shares_of(self._room(), self._active, view.workers, self._cpus)
        self.revoked: list[int] = []
        self.reasons: dict[int, str] = {}
        self.served: set[int] = set()

    def made_room(self, host: HostLaws, job: QueuedJob, answer: Admission) -> Admission:
        """Take slots for an urgent job if that lets it start; otherwise change nothing."""
        if not self._gangs or not self._view.preempts:
            return answer
        shares = with_urgent(self._shares, job, self._view.tasks(job) * self._cpus(job))
        taken = [each.id for each in revoked(self._gangs, shares) if each.id not in self.revoked]
        if not taken:
            return answer
        saved = host.saved()
        host.standing(taken)
        after = host.admission(job)
        if not after.admitted:
            host.restored(saved)
            return answer
        self._shares = shares
        self.revoked += taken
        why = f"job {job.id} is urgent and needs its slot (the worker is frozen, and no work is lost)"
        self.reasons |= dict.fromkeys(taken, why)
        self.served.add(job.id)  # the plan still includes the workers, and would start the job later
        return after

    def more(self, started: Sequence[QueuedJob]) -> list[QueuedJob]:
        """Elastic workers that may run beside the running jobs and ``started``."""
        if not self._gangs:
            return []
        shares = shares_of(self._room(), [*self._active, *started], self._view.workers, self._cpus)
        return admitted(self._gangs, shares)

    def _room(self) -> float:
        used = planned_use(self._view.others_cpus)
        return max(0.0, self._view.cpus - used) * self._view.copper_share

    def _cpus(self, job: QueuedJob) -> float:
        return demand_of(job, self._outlooks.get(job.id, JobOutlook()))[CPU]
