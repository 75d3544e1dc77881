"""3Sigma on a simulated cluster: gangs on whole nodes, planned ahead by the batch queue's planner.

A job needs as many nodes as it has tasks, from its start to its end. Every ``cycle_s`` in which something changed, and
at least every ``replan_s``, a policy decides about the waiting and running jobs:

    plan        ``perphd.batch.planner.greedy`` over ``slots`` slots, with utilities, preemption costs and conditioned
                run times by ``perphd.batch.job_worth``; jobs that the plan starts now start now
    priority    jobs with deadlines before the others, by arrival; best effort gives way, youngest first (Borg-like)

Policies differ in their knowledge of run times, and in the deadlines that they doubt. A preempted job loses
its work. A job whose deadline has passed counts as best effort, except for the priority policy, which ignores
the time of a deadline.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from perphd.batch.job import (
    Confirmed,
    JobEvent,
    JobSpec,
    QueuedJob,
    RequeuedFor,
    Started,
    TransitionRefused,
    after,
)
from perphd.batch.job_worth import left_of, preemption_cost, run_time_of, utility_of, with_overrun
from perphd.batch.look import ActiveJob, JobOutlook, QueueView
from perphd.batch.planner import PlanWindow, RunningJob, WaitingJob, greedy
from perphd.batch.utility import OVERESTIMATE_THRESHOLD
from perphd.forecast.histogram import Histogram, insert, share_to
from perphd.forecast.history.store import JobHistory, Quantity
from perphd.forecast.running import Overrun
from perphd.sim.cluster.fleet_events import FleetEvent, FleetEventKind
from perphd.sim.cluster.gang_jobs import GangWork

NODES: Final = "nodes"


class PlannedPolicy(StrEnum):
    """A policy, named by the information that it uses or leaves out."""

    DISTRIBUTION = "3Sigma"
    PERFECT = "point estimates, perfect"
    POINT = "point estimates, real"
    PRIORITY = "priority"
    NO_DISTRIBUTION = "no distributions"
    NO_OVERESTIMATE = "no over-estimate handling"
    NO_ADAPTION = "every deadline doubted"


_DOUBTED: Final = {
    PlannedPolicy.PERFECT: 0.0,
    PlannedPolicy.POINT: 0.0,
    PlannedPolicy.NO_OVERESTIMATE: 0.0,
    PlannedPolicy.NO_ADAPTION: 2.0,
}
_POINTS: Final = (PlannedPolicy.POINT, PlannedPolicy.NO_DISTRIBUTION)


@dataclass(frozen=True, slots=True)
class PlannedSettings:
    """Pace and window of the plans. ``considered``: waiting jobs per plan; jobs with a deadline come first."""

    cycle_s: float = 10.0
    replan_s: float = 60.0
    slot_s: float = 60.0
    slots: int = 20
    considered: int = 40
    learns: bool = True


@dataclass(slots=True)
class PlannedOutcome:
    """Result of one run. Goodput counts best-effort jobs that ended by ``until_s``, and jobs that met their
    deadline.
    """

    deadlines: int = 0
    missed: int = 0
    deadline_node_h: float = 0.0
    best_effort: int = 0
    best_effort_node_h: float = 0.0
    latency_s: float = 0.0
    preemptions: int = 0
    plans: int = 0

    @property
    def missed_ratio(self) -> float:
        """Missed deadlines over all deadlines."""
        return self.missed / max(1, self.deadlines)


class PlannedCluster:
    """One run of one policy. ``history``: records of earlier jobs; jobs that end are added to it."""

    def __init__(
        self,
        works: Sequence[GangWork],
        nodes: int,
        policy: PlannedPolicy,
        history: JobHistory,
        settings: PlannedSettings | None = None,
    ) -> None:
        self._works, self._nodes, self._policy, self._history = works, nodes, policy, history
        self._settings = settings if settings is not None else PlannedSettings()
        self._waiting: dict[int, QueuedJob] = {}
        self._running: dict[int, QueuedJob] = {}
        self._overruns: dict[int, Overrun] = {}
        self._outlooks: dict[int, JobOutlook] = {}
        self.outcome = PlannedOutcome()
        self.events: list[FleetEvent] = []

    def run(self, until_s: float) -> PlannedOutcome:
        """Let all jobs arrive, and run until no deadline is left, at least until ``until_s``."""
        settings = self._settings
        last_s = max([until_s, *(work.deadline_s or 0.0 for work in self._works)])
        now_s, arrived, planned_s = 0.0, 0, -math.inf
        while now_s <= last_s:
            mark = len(self.events)
            changed = self._end(now_s, until_s)
            while arrived < len(self._works) and self._works[arrived].submitted_s <= now_s:
                self._submit(arrived)
                arrived, changed = arrived + 1, True
            self.events[mark:] = sorted(self.events[mark:], key=lambda event: event.at_s)
            if self._waiting and (changed or now_s >= planned_s + settings.replan_s):
                self._decide(now_s)
                planned_s = now_s
            soonest = [self._ends_s(number) for number in self._running]
            if arrived < len(self._works):
                soonest.append(self._works[arrived].submitted_s)
            if self._waiting:
                soonest.append(planned_s + settings.replan_s)
            wanted_s = min(soonest, default=last_s + settings.cycle_s)
            now_s = max(now_s + settings.cycle_s, settings.cycle_s * math.ceil(wanted_s / settings.cycle_s))
        self._close()
        return self.outcome

    def _submit(self, place: int) -> None:
        work = self._works[place]
        spec = JobSpec(
            f"kind {work.kind}", ("work",), 1000, 1000, "/", work.requested_cores, int(work.requested_bytes),
            deadline_s=work.deadline_s,
        )  # fmt: skip
        self._waiting[place] = QueuedJob(place, spec, work.submitted_s, since_s=work.submitted_s)
        self._outlooks[place] = JobOutlook(self._known(work))
        self.events.append(FleetEvent(work.submitted_s, FleetEventKind.SUBMITTED, place))

    def _known(self, work: GangWork) -> Histogram:
        """The run times that the policy expects."""
        if self._policy is PlannedPolicy.PERFECT:
            return insert(Histogram(), work.run_s)
        found = self._history.predict(work.facts, Quantity.RUN_TIME_S)
        if found is None:
            return Histogram()
        return insert(Histogram(), found.estimate) if self._policy in _POINTS else found.distribution

    # -- deciding ----------------------------------------------------------------------------------------

    def _decide(self, now_s: float) -> None:
        self.outcome.plans += 1
        decide = self._by_priority if self._policy is PlannedPolicy.PRIORITY else self._by_plan
        starts, victims = decide(now_s)
        for number in victims:
            self._apply(self._running.pop(number), RequeuedFor(now_s, ""), self._waiting)
            self._overruns.pop(number, None)
            self.outcome.preemptions += 1
            self.events.append(FleetEvent(now_s, FleetEventKind.EVICTED, number))
        for number in starts:
            self._apply(self._waiting.pop(number), Started(now_s), self._running)
            self._apply(self._running.pop(number), Confirmed(now_s), self._running)
            self.events.append(FleetEvent(now_s, FleetEventKind.STARTED, number))

    def _by_plan(self, now_s: float) -> tuple[list[int], list[int]]:
        settings, doubted = self._settings, _DOUBTED.get(self._policy, OVERESTIMATE_THRESHOLD)
        active = []
        for number, job in self._running.items():
            each = ActiveJob(job, self._outlooks[number], overrun=self._overruns.get(number, Overrun()))
            self._overruns[number] = with_overrun(each, now_s, settings.cycle_s)
            active.append(ActiveJob(job, self._outlooks[number], overrun=self._overruns[number]))
        view = QueueView(
            now_s,
            float(self._nodes),
            1.0,
            (),
            active,
            {},
            Histogram(),
            Histogram(),
            0.0,
            {},
            self._nodes,
            True,
        )
        waiting = []
        for number in self._considered(now_s):
            run_time = run_time_of(self._outlooks[number])
            utility = utility_of(self._waiting[number], run_time, now_s, doubted)
            waiting.append(WaitingJob(str(number), self._demand(number), run_time, utility))
        running = [
            RunningJob(
                str(each.job.id), self._demand(each.job.id), left_of(each, now_s), preemption_cost(view, each)
            )
            for each in active
        ]
        window = PlanWindow({NODES: float(self._nodes)}, settings.slot_s, settings.slots)
        plan = greedy(window, waiting, running)
        return [int(name) for name in plan.now], [int(name) for name in plan.preempted]

    def _considered(self, now_s: float) -> list[int]:
        """Waiting jobs: those with a future deadline in order of deadline, then the others in order of
        arrival.

        Without over-estimate handling, a job that its history rules out is not tried before its deadline.
        """
        ahead, others = [], []
        doubted = _DOUBTED.get(self._policy, OVERESTIMATE_THRESHOLD)
        for number, job in self._waiting.items():
            limit_s = job.spec.deadline_s
            if limit_s is None or limit_s <= now_s:
                others.append((job.submitted_s, number))
            elif doubted > 0.0 or self._possible(number, limit_s - now_s):
                ahead.append((limit_s, number))
        return [number for _, number in [*sorted(ahead), *sorted(others)]][: self._settings.considered]

    def _possible(self, number: int, left_s: float) -> bool:
        known = self._outlooks[number].run_time_s
        return not known.count or share_to(known, left_s) > 0.0

    def _by_priority(self, now_s: float) -> tuple[list[int], list[int]]:
        free = self._nodes - sum(self._works[number].tasks for number in self._running)
        order = sorted(
            self._waiting.values(), key=lambda job: (job.spec.deadline_s is None, job.submitted_s, job.id)
        )
        evictable = [
            job
            for job in self._running.values()
            if job.spec.deadline_s is None and job.not_preempted_before_s <= now_s
        ]
        evictable.sort(key=lambda job: (-job.since_s, job.id))
        starts, victims = [], []
        for job in order:
            tasks, taken = self._works[job.id].tasks, 0
            if job.spec.deadline_s is not None:
                room = free
                for victim in evictable:
                    if room >= tasks:
                        break
                    room, taken = room + self._works[victim.id].tasks, taken + 1
                if room >= tasks > free:
                    victims += [victim.id for victim in evictable[:taken]]
                    evictable, free = evictable[taken:], room
            if tasks <= free:
                starts.append(job.id)
                free -= tasks
        return starts, victims

    # -- time passes -------------------------------------------------------------------------------------

    def _end(self, now_s: float, until_s: float) -> bool:
        over = sorted((self._ends_s(n), n) for n in self._running if self._ends_s(n) <= now_s)
        for at_s, number in over:
            del self._running[number]
            self._overruns.pop(number, None)
            self.events.append(FleetEvent(at_s, FleetEventKind.ENDED, number))
            work = self._works[number]
            if self._settings.learns:
                self._history.complete(work.facts, {Quantity.RUN_TIME_S: work.run_s}, at_s)
            self._count(work, at_s, until_s)
        return bool(over)

    def _count(self, work: GangWork, at_s: float, until_s: float) -> None:
        out, node_h = self.outcome, work.tasks * work.run_s / 3600.0
        if work.deadline_s is not None:
            out.deadlines += 1
            out.missed += at_s > work.deadline_s
            out.deadline_node_h += node_h if at_s <= work.deadline_s else 0.0
        elif at_s <= until_s:
            out.best_effort += 1
            out.best_effort_node_h += node_h
            out.latency_s += at_s - work.submitted_s

    def _close(self) -> None:
        for number in (*self._waiting, *self._running):
            if self._works[number].deadline_s is not None:
                self.outcome.deadlines += 1
                self.outcome.missed += 1
        self.outcome.latency_s /= max(1, self.outcome.best_effort)

    def _ends_s(self, number: int) -> float:
        return self._running[number].since_s + self._works[number].run_s

    def _demand(self, number: int) -> dict[str, float]:
        return {NODES: float(self._works[number].tasks)}

    def _apply(self, job: QueuedJob, event: JobEvent, into: dict[int, QueuedJob]) -> None:
        found = after(job, event)
        if isinstance(found, TransitionRefused):
            raise AssertionError(found.reason)
        into[job.id] = found


def learned(works: Sequence[GangWork], most: int | None = None) -> JobHistory:
    """An in-memory history of these jobs, with at most ``most`` of each kind."""
    history, seen = JobHistory(":memory:"), dict[int, int]()
    for number, work in enumerate(works):
        seen[work.kind] = seen.get(work.kind, 0) + 1
        if most is None or seen[work.kind] <= most:
            history.complete(work.facts, {Quantity.RUN_TIME_S: work.run_s}, float(number))
    return history
