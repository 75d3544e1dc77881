"""A node in virtual time that runs the batch queue's own scheduling on generated jobs.

CPU is divided by water-filling, so a crowded job is slower. Memory beyond the node's evicts copper, whose work is lost.
A job uses the same CPUs and memory from its start to its end. A scheduling pass runs when a job arrives or ends, and
every ``CYCLE_S``. Every policy is ``perphd.batch.scheduling`` with different knowledge, except ``PRIORITY``, ``FIFO``
and ``SUPPRESSED``, which use only requests.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from perphd.batch import scheduling
from perphd.batch.admission import EPSILON_HARD, EPSILON_SOFT, Reliability, with_prediction
from perphd.batch.choice import candidates
from perphd.batch.job import (
    Confirmed,
    Exited,
    FrozenFor,
    JobEvent,
    JobState,
    QueuedJob,
    RequeuedFor,
    Started,
    Thawed,
    TransitionRefused,
    after,
)
from perphd.batch.look import CPU, MEMORY, JobOutlook, QueueStep, QueueView
from perphd.batch.observations import Observations
from perphd.batch.sharing import MemoryUser, divided, evicted
from perphd.batch.utility import OVERESTIMATE_THRESHOLD
from perphd.forecast.histogram import Histogram, insert, quantile, share_to
from tools.bench.batch_queue.jobs import Generated, Past, Work

CYCLE_S: Final = 15.0
BATCH_SHARE: Final = 0.65
"""Koordinator's default: batch gets this share of the node less the LRAs' use."""


class Policy(StrEnum):
    """The knowledge of a policy."""

    DISTRIBUTION = "distributions"
    PERFECT = "perfect estimates"
    POINT = "point estimates"
    REQUEST = "requests"
    MAXIMUM = "maxima"
    PRIORITY = "priority only"
    NO_DISTRIBUTION = "point estimates, over-estimates handled"
    NO_OVERESTIMATE = "no over-estimate handling"
    NO_ADAPTION = "every deadline doubted"
    NO_CALIBRATION = "predictions not calibrated"
    NO_PREEMPTION = "no preemption"
    FIFO = "FIFO with static reservation"
    SUPPRESSED = "suppression (Koordinator)"


_CALIBRATED: Final = (
    Policy.DISTRIBUTION,
    Policy.NO_OVERESTIMATE,
    Policy.NO_ADAPTION,
    Policy.NO_PREEMPTION,
)
_NOT_TRIED: Final = (Policy.POINT, Policy.NO_OVERESTIMATE)
"""As published: a job that cannot meet its deadline according to its estimate is not tried until the deadline has
passed.
"""
_DOUBTED: Final = {
    Policy.POINT: 0.0,
    Policy.PERFECT: 0.0,
    Policy.NO_OVERESTIMATE: 0.0,
    Policy.NO_ADAPTION: 2.0,
}


@dataclass(slots=True)
class Outcome:
    """The results of one run."""

    slo: int = 0
    missed: int = 0
    slo_core_h: float = 0.0
    best_effort: int = 0
    best_effort_core_h: float = 0.0
    latency_s: float = 0.0
    evictions: int = 0
    preemptions: int = 0
    unfinished: int = 0
    used_core_s: float = 0.0
    others_core_s: float = 0.0
    crowded_s: float = 0.0
    over_memory_s: float = 0.0
    seconds: float = 0.0
    cpu_reliability: Reliability = Reliability()
    memory_reliability: Reliability = Reliability()


class Node:
    """One run of one policy. ``others``: CPUs that LRAs use, by cycle; LRAs have priority.

    ``judged_after_s``: time from which predictions are compared with the outcome.
    """

    def __init__(
        self,
        policy: Policy,
        work: Generated,
        cpus: float,
        memory_bytes: float,
        others: tuple[float, ...] = (),
        judged_after_s: float = 0.0,
    ) -> None:
        self.policy, self.cpus, self.memory_bytes = policy, cpus, memory_bytes
        self._others, self._judged_after_s = others, judged_after_s
        self._work, self._past = work.works, work.past
        self._jobs: dict[int, QueuedJob] = {}
        self._observed = Observations()
        self._done_s: dict[int, float] = {}
        self._waits: list[float] = []
        self._judged: set[tuple[int, frozenset[int]]] = set()
        self.outcome = Outcome()

    def run(self, ahead_s: float) -> Outcome:
        """Run all jobs, and continue the node for ``ahead_s`` after the last arrival."""
        now_s, next_one, next_look_s = 0.0, 0, 0.0
        end_s = self._work[-1].at_s + ahead_s
        while now_s < end_s and (next_one < len(self._work) or self._jobs):
            while next_one < len(self._work) and self._work[next_one].at_s <= now_s:
                number = next_one + 1
                self._jobs[number] = QueuedJob(number, self._work[next_one].spec, now_s, since_s=now_s)
                next_one, next_look_s = next_one + 1, now_s
            self._evict(now_s)
            if now_s >= next_look_s:
                self._carry_out(self._step(now_s), now_s)
                next_look_s = now_s + CYCLE_S
            arrival_s = self._work[next_one].at_s if next_one < len(self._work) else end_s
            before = len(self._jobs)
            now_s += self._pass(now_s, max(1e-3, min(next_look_s, arrival_s) - now_s))
            if len(self._jobs) != before:  # the end of a job triggers a pass
                next_look_s = now_s
        for job in self._jobs.values():
            self.outcome.unfinished += 1
            if job.spec.deadline_s is not None:
                self.outcome.slo += 1
                self.outcome.missed += 1
        return self.outcome

    # -- deciding -----------------------------------------------------------------------------------------------

    def _step(self, now_s: float) -> QueueStep:
        waiting = [job for job in self._jobs.values() if not job.state.active]
        if self.policy in (Policy.PRIORITY, Policy.FIFO, Policy.SUPPRESSED):
            return self._by_request(now_s, waiting)
        if self.policy in _NOT_TRIED:
            waiting = [job for job in waiting if not self._impossible(job, now_s)]
        active = [self._observed.active(job, self._outlook(job), now_s, CYCLE_S) for job in self._active()]
        average_s = sum(self._waits) / len(self._waits) if self._waits else 0.0
        base = QueueView(
            now_s,
            self.cpus,
            self.memory_bytes,
            waiting,
            active,
            {},
            self._observed.others[CPU].whole,
            Histogram(),
            average_s,
            {CPU: EPSILON_SOFT, MEMORY: EPSILON_HARD},
            256,
            self.policy is not Policy.NO_PREEMPTION,
            calibration=self._observed.calibration if self.policy in _CALIBRATED else {},
            doubted=_DOUBTED.get(self.policy, OVERESTIMATE_THRESHOLD),
            earlier=self._observed.earlier,
        )
        outlooks = {job.id: self._outlook(job) for job in candidates(base)}
        outlooks |= {each.job.id: each.outlook for each in active}
        step = scheduling.scheduled(_with_outlooks(base, outlooks))
        self._observed.decided(step.expected)
        if self.policy in (Policy.DISTRIBUTION, Policy.NO_CALIBRATION):
            self._judge(step, now_s)
        return step

    def _by_request(self, now_s: float, waiting: list[QueuedJob]) -> QueueStep:
        """Schedule by requests only. Priority: deadlines first, and best effort is requeued for them."""
        active = self._active()
        cpus = self.cpus - sum(job.spec.cpus for job in active)
        if self.policy is Policy.SUPPRESSED:
            cpus -= (1.0 - BATCH_SHARE) * self.cpus + self._others_at(now_s)
        elif self._others:
            cpus -= max(self._others)  # what LRAs reserve
        memory = self.memory_bytes - sum(job.spec.memory_bytes for job in active)
        order = sorted(waiting, key=lambda job: (job.submitted_s, job.id))
        if self.policy is Policy.PRIORITY:
            order.sort(key=lambda job: job.spec.deadline_s is None)
        victims = sorted((job for job in active if job.spec.deadline_s is None), key=lambda job: -job.since_s)
        starts: list[int] = []
        requeued: list[int] = []
        for job in order:
            if self.policy is Policy.PRIORITY and job.spec.deadline_s is not None:
                while victims and not (job.spec.cpus <= cpus and job.spec.memory_bytes <= memory):
                    gone = victims.pop(0)
                    if gone.not_preempted_before_s > now_s:
                        continue
                    requeued.append(gone.id)
                    cpus, memory = cpus + gone.spec.cpus, memory + gone.spec.memory_bytes
            alone = not active and not starts and self.policy is not Policy.SUPPRESSED
            if (job.spec.cpus <= cpus or alone) and job.spec.memory_bytes <= memory:
                starts.append(job.id)
                cpus, memory = cpus - job.spec.cpus, memory - job.spec.memory_bytes
            elif self.policy is not Policy.PRIORITY:
                break
        return QueueStep(requeue=tuple(requeued), start=tuple(starts))

    def _outlook(self, job: QueuedJob) -> JobOutlook:
        work = self._work[job.id - 1]
        past: Past = self._past[work.kind]
        match self.policy:
            case Policy.PERFECT:
                return JobOutlook(_only(work.run_s), _only(work.cpus), _only(work.memory_bytes))
            case Policy.POINT | Policy.NO_DISTRIBUTION:
                return JobOutlook(_middle(past.run_s), _middle(past.cpus), _middle(past.memory_bytes))
            case Policy.REQUEST:
                return JobOutlook(_middle(past.run_s), Histogram(), Histogram())
            case Policy.MAXIMUM:
                return JobOutlook(past.run_s, _only(past.cpus.most), _only(past.memory_bytes.most))
        return JobOutlook(past.run_s, past.cpus, past.memory_bytes)

    def _impossible(self, job: QueuedJob, now_s: float) -> bool:
        """True if its deadline is ahead and the estimate of its run time leaves no chance to meet it."""
        left_s = (job.spec.deadline_s or 0.0) - now_s
        return left_s > 0.0 and share_to(self._outlook(job).run_time_s, left_s) <= 0.0

    def _judge(self, step: QueueStep, now_s: float) -> None:
        """Compare P(over) of every candidate with the outcome of its start."""
        running = frozenset(job.id for job in self._active() if job.state is JobState.RUNNING)
        held = frozenset(job.id for job in self._active())
        if step.freeze or step.revoke or step.requeue or now_s < self._judged_after_s:
            return
        for number, over in step.over.items():
            if (number, held) in self._judged or any(each < number for each in step.start):
                continue
            self._judged.add((number, held))
            cpus = sum(self._work[each - 1].cpus for each in (*running, number))
            memory = sum(self._work[each - 1].memory_bytes for each in (*held, number))
            self.outcome.cpu_reliability = with_prediction(
                self.outcome.cpu_reliability, over[CPU], cpus > self.cpus
            )
            self.outcome.memory_reliability = with_prediction(
                self.outcome.memory_reliability, over[MEMORY], memory > self.memory_bytes
            )

    # -- time passes --------------------------------------------------------------------------------------------

    def _carry_out(self, step: QueueStep, now_s: float) -> None:
        for number in step.requeue:
            self._apply(number, RequeuedFor(now_s, ""))
            self._lost(number, evicted=False)
        for number in step.freeze:
            self._apply(number, FrozenFor(now_s, ""))
        for number in step.thaw:
            self._apply(number, Thawed(now_s))
        for number in step.start:
            job = self._apply(number, Started(now_s))
            if job is not None:
                self._apply(number, Confirmed(now_s))
                self._done_s[number] = 0.0
                self._waits = [*self._waits[-99:], now_s - job.submitted_s]
        self.outcome.preemptions += len(step.requeue) + len(step.freeze)

    def _lost(self, number: int, evicted: bool) -> None:
        """The attempt's work is lost."""
        self._observed.forget(self._jobs[number], False, evicted)
        self._done_s.pop(number, None)

    def _evict(self, now_s: float) -> None:
        users = [
            MemoryUser(
                str(job.id), job.spec.band, int(self._work[job.id - 1].memory_bytes), job.spec.memory_bytes
            )
            for job in self._active()
        ]
        if sum(user.used_bytes for user in users) > self.memory_bytes:
            self.outcome.over_memory_s += CYCLE_S
        for name in evicted(users, int(self.memory_bytes)):
            self._apply(int(name), RequeuedFor(now_s, "", False))
            self._lost(int(name), evicted=True)
            self.outcome.evictions += 1

    def _pass(self, now_s: float, most_s: float) -> float:
        """Let the jobs run until ``most_s`` have passed or one ends. Returns the seconds."""
        used = self._others_at(now_s)
        running = [job for job in self._active() if job.state is JobState.RUNNING]
        works = [self._work[job.id - 1] for job in running]
        room = max(0.0, self.cpus - used)
        if self.policy is Policy.SUPPRESSED:
            room = max(0.0, BATCH_SHARE * self.cpus - used)
        given = divided(room, [each.spec.cpus for each in works], [each.cpus for each in works])
        left_s = [
            (work.run_s - self._done_s[job.id]) * work.cpus / cpus if cpus > 0 else float("inf")
            for job, work, cpus in zip(running, works, given, strict=True)
        ]
        seconds = min([most_s, *left_s])
        self.outcome.seconds += seconds
        self.outcome.others_core_s += used * seconds
        if self._others:
            self._observed.see_others(CPU, used, seconds)
            wanted = used + sum(each.cpus for each in works)
            self.outcome.crowded_s += seconds * (wanted > self.cpus)
        for job, work, cpus, left in zip(running, works, given, left_s, strict=True):
            self._done_s[job.id] += seconds * cpus / work.cpus
            self._observed.see(job, seconds, {CPU: cpus, MEMORY: work.memory_bytes}, self._outlook(job))
            self.outcome.used_core_s += cpus * seconds
            if left <= seconds:
                self._ended(job, work, now_s + seconds)
        return seconds

    def _ended(self, job: QueuedJob, work: Work, at_s: float) -> None:
        out = self.outcome
        after(job, Exited(at_s, 0))
        del self._jobs[job.id]
        self._observed.forget(job, True)
        self._done_s.pop(job.id)
        core_h = work.cpus * work.run_s / 3600.0
        if job.spec.deadline_s is None:
            out.best_effort += 1
            out.best_effort_core_h += core_h
            out.latency_s += at_s - job.submitted_s
            return
        out.slo += 1
        if at_s <= job.spec.deadline_s:
            out.slo_core_h += core_h
        else:
            out.missed += 1

    def _active(self) -> list[QueuedJob]:
        return [job for job in self._jobs.values() if job.state.active]

    def _others_at(self, now_s: float) -> float:
        return self._others[int(now_s / CYCLE_S) % len(self._others)] if self._others else 0.0

    def _apply(self, number: int, event: JobEvent) -> QueuedJob | None:
        found = after(self._jobs[number], event)
        if isinstance(found, TransitionRefused):
            return None
        self._jobs[number] = found
        return found


def _with_outlooks(view: QueueView, outlooks: dict[int, JobOutlook]) -> QueueView:
    return replace(view, outlooks=outlooks)


def _middle(histogram: Histogram) -> Histogram:
    return _only(quantile(histogram, 0.5))


def _only(value: float) -> Histogram:
    return insert(Histogram(), value)
