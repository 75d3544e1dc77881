"""DistSched on a simulated cluster: gangs that share machines, placed by distributions of use (chapter 5).

Time passes in steps of ``STEP_S``. On each machine ``perphd.batch.sharing.divided`` divides the CPUs in
proportion to requests, so a task on a full machine takes longer; memory beyond ``EVICTION_RATIO`` of the
machine evicts jobs in the order of ``perphd.batch.sharing.evicted``, best effort first. An evicted or
preempted job loses its work and waits again.

Every 15 s if something changed, else every 60 s, ``perphd.cluster.scheduling.distribution`` names the next
waiting job and its machines (``placeable``, ``most_valuable``), until no job can be placed. Without
over-estimate handling, a job whose estimates say that it cannot meet its deadline is not tried before the
deadline has passed. If a job with a deadline finds no room, best-effort jobs give way. The job that uses most
beyond its request goes first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import numpy as np

from perphd.batch.job_worth import DEADLINE_WORTH, PATIENCE_S
from perphd.batch.sharing import MemoryUser, divided, evicted
from perphd.batch.utility import OVERESTIMATE_THRESHOLD, Utility, adapted, of_history
from perphd.cluster.scheduling.distribution import (
    FLEET_CELLS,
    GangJob,
    GangPlacement,
    RiskSettings,
    gang_placement,
    most_valuable,
    placeable,
)
from perphd.cluster.scheduling.fleet import Fleet
from perphd.cluster.scheduling.profile import NodeProfile, Pod, PodKind
from perphd.forecast.grid import GridDistribution, added, multiplied, nothing, of_outcomes
from perphd.forecast.histogram import of_values, quantiles
from perphd.forecast.history.experts import FeatureRecord, best_estimator, completed, estimate
from perphd.qos.bands import QosBand
from perphd.sim.cluster.fleet_events import FleetEvent, FleetEventKind
from perphd.sim.cluster.gang_jobs import GangWork

STEP_S: Final = 5.0
CYCLE_S: Final = 15.0
EVICTION_RATIO: Final = 0.97
OUTCOMES: Final = 12
OBSERVED_S: Final = 60.0
MOST_PREEMPTED: Final = 6
CONSIDERED: Final = 12
"""Number of waiting jobs valued together; jobs with a future deadline come first."""


class PackedPolicy(StrEnum):
    """A policy, named by the information that it uses or leaves out."""

    DISTRIBUTION = "Dist"
    ACTUAL = "Actual"
    POINT = "Point"
    REQUEST = "Request"
    DISTRIBUTION_MAX = "DistMax"
    ACTUAL_MAX = "ActualMax"
    POINT_MAX = "PointMax"
    NO_DISTRIBUTION = "NoDist"
    NO_PACKING = "NoPack"
    NO_OVERESTIMATE = "NoOver"
    NO_OBSERVED = "NoObs"
    NO_PREEMPTION = "NoPreempt"


_MAX: Final = (PackedPolicy.DISTRIBUTION_MAX, PackedPolicy.ACTUAL_MAX, PackedPolicy.POINT_MAX)
_ACTUAL: Final = (PackedPolicy.ACTUAL, PackedPolicy.ACTUAL_MAX)
_POINTS: Final = (PackedPolicy.POINT, PackedPolicy.POINT_MAX, PackedPolicy.NO_DISTRIBUTION)
_BASELINES: Final = (*_ACTUAL, PackedPolicy.POINT, PackedPolicy.POINT_MAX, PackedPolicy.REQUEST)
"""Policies without over-estimate handling and observed distributions, as published."""


@dataclass(slots=True)
class PackedOutcome:
    """Result of one run. Goodput counts best-effort jobs that ended by ``until_s``, and jobs that met their
    deadline.
    """

    deadlines: int = 0
    missed: int = 0
    deadline_core_h: float = 0.0
    best_effort: int = 0
    best_effort_core_h: float = 0.0
    latency_s: float = 0.0
    evictions: int = 0
    preemptions: int = 0
    throttled: int = 0
    decisions: int = 0


@dataclass(slots=True, eq=False)
class _Known:
    """A policy's expectation of one task: possible use of CPUs and memory, and its CPU time."""

    cores: dict[float, float]
    memory: dict[float, float]
    work_cpu_s: float


@dataclass(slots=True, eq=False)
class _Running:
    work: GangWork
    pod: Pod
    machines: tuple[int, ...]
    started_s: float
    left: list[float]
    least_memory: float = math.inf
    least_cores: float = math.inf


@dataclass(frozen=True, slots=True, eq=False)
class _Sum:
    """Distributions of a machine's use (CPUs, memory) by its jobs up to ``last``: a job's pod, and its tasks there."""

    last: tuple[Pod, int]
    totals: tuple[GridDistribution, GridDistribution]


class PastUse:
    """Records of earlier jobs by kind: CPUs, memory and CPU time of a task."""

    def __init__(self, past: Sequence[GangWork], policy: PackedPolicy) -> None:
        self._most = policy in _MAX
        self._records: dict[int, list[FeatureRecord]] = {}
        for work in past:
            self.add(work)

    def add(self, work: GangWork) -> None:
        """Record that one more job has ended."""
        records = self._records.setdefault(work.kind, [FeatureRecord() for _ in range(3)])
        cores, memory = used(work, most=self._most)
        for place, value in enumerate((cores, memory, work.work_cpu_s)):
            records[place] = completed(records[place], value)

    def point(self, kind: int, place: int) -> float:
        """The kind's estimate by its best estimator. ``place``: 0: CPUs, 1: memory, 2: CPU time."""
        record = self._records[kind][place]
        return estimate(record, best_estimator(record)[0])

    def law(self, kind: int, place: int) -> dict[float, float]:
        """The kind's distribution as equally likely values. ``place``: see ``point``."""
        levels = (np.arange(OUTCOMES) + 0.5) / OUTCOMES
        return _law(quantiles(self._records[kind][place].distribution, levels).tolist())


def used(work: GangWork, *, most: bool) -> tuple[float, float]:
    """CPUs and memory of one task: the mean, or the greatest of its phases."""
    if not most or not work.phases:
        return work.cores, work.memory_bytes
    return (
        work.cores * max(phase.cores_ratio for phase in work.phases),
        work.memory_bytes * max(phase.memory_ratio for phase in work.phases),
    )


class PackedCluster:
    """One run of one policy on equal machines."""

    def __init__(
        self,
        works: Sequence[GangWork],
        past: Sequence[GangWork],
        machines: int,
        policy: PackedPolicy,
        cores: float = 16.0,
        memory_bytes: float = 64.0 * (1 << 30),
    ) -> None:
        self._works, self._policy = works, policy
        self._cores, self._memory = cores, memory_bytes
        self._past = PastUse(past, policy)
        self._risk = RiskSettings(1e-9, 1e-9) if policy is PackedPolicy.NO_PACKING else RiskSettings()
        self._handles = policy not in _BASELINES and policy is not PackedPolicy.NO_OVERESTIMATE
        self._observes = policy not in _BASELINES and policy is not PackedPolicy.NO_OBSERVED
        self._waiting: dict[int, float] = {}
        self._pods: dict[int, Pod] = {}
        self._running: dict[int, _Running] = {}
        self._here: list[dict[int, int]] = [{} for _ in range(machines)]
        self._nothing = nothing(cores, FLEET_CELLS), nothing(memory_bytes, FLEET_CELLS)
        self._sums: list[list[_Sum]] = [[] for _ in range(machines)]
        self._fleet = Fleet(self._profile(machine) for machine in range(machines))
        self.outcome = PackedOutcome()
        self.events: list[FleetEvent] = []

    def run(self, until_s: float) -> PackedOutcome:
        """Let all jobs arrive, and run until no deadline is left, at least until ``until_s``."""
        last_s = max([until_s, *(work.deadline_s or 0.0 for work in self._works)])
        now_s, arrived, decided_s, changed = 0.0, 0, -math.inf, True
        while now_s <= last_s:
            while arrived < len(self._works) and self._works[arrived].submitted_s <= now_s:
                self._submit(arrived, now_s)
                arrived, changed = arrived + 1, True
            changed |= self._relieve(now_s)
            if self._waiting and now_s >= decided_s + (CYCLE_S if changed else 4 * CYCLE_S):
                self._decide(now_s)
                decided_s, changed = now_s, False
            now_s += STEP_S
            changed |= self._pass(now_s, until_s)
        for number in (*self._waiting, *self._running):
            if self._works[number].deadline_s is not None:
                self.outcome.deadlines += 1
                self.outcome.missed += 1
        self.outcome.latency_s /= max(1, self.outcome.best_effort)
        return self.outcome

    def _submit(self, number: int, now_s: float) -> None:
        work = self._works[number]
        known = self._known(work)
        self._pods[number] = Pod(
            str(number), f"kind {work.kind}", PodKind.BATCH, work.requested_cores, work.requested_bytes,
            None, known.cores, known.memory, known.work_cpu_s,
        )  # fmt: skip
        self._waiting[number] = work.submitted_s
        self.events.append(FleetEvent(now_s, FleetEventKind.SUBMITTED, number))

    def _known(self, work: GangWork) -> _Known:
        kind = work.kind
        if self._policy in _ACTUAL:
            cores, memory = used(work, most=self._policy in _MAX)
            return _Known({cores: 1.0}, {memory: 1.0}, work.work_cpu_s)
        cpu_s = self._past.point(kind, 2)
        if self._policy is PackedPolicy.REQUEST:
            return _Known({work.requested_cores: 1.0}, {work.requested_bytes: 1.0}, cpu_s)
        if self._policy in _POINTS:
            return _Known({self._past.point(kind, 0): 1.0}, {self._past.point(kind, 1): 1.0}, cpu_s)
        return _Known(self._past.law(kind, 0), self._past.law(kind, 1), cpu_s)

    # -- deciding ----------------------------------------------------------------------------------------

    def _decide(self, now_s: float) -> None:
        jobs = [self._gang(number, now_s) for number in self._considered(now_s)]
        found = placeable(self._fleet, jobs, self._risk)
        while found:
            job, placement = most_valuable(found)
            self._start(job, placement, now_s)
            jobs.remove(job)
            found = placeable(self._fleet, [each for each, _ in found if each is not job], self._risk)
        urgent = [job for job in jobs if (self._works[int(job.pod.name)].deadline_s or 0.0) > now_s]
        if urgent and self._policy is not PackedPolicy.NO_PREEMPTION:
            self._make_room(urgent[0], now_s)

    def _considered(self, now_s: float) -> list[int]:
        ahead, others = [], []
        for number, submitted_s in self._waiting.items():
            limit_s = self._works[number].deadline_s
            if limit_s is None or limit_s <= now_s:
                others.append((submitted_s, number))
            elif self._handles or now_s + self._shortest_s(number) <= limit_s:
                ahead.append((limit_s, number))
        return [number for _, number in [*sorted(ahead), *sorted(others)]][:CONSIDERED]

    def _shortest_s(self, number: int) -> float:
        pod = self._pods[number]
        return pod.work_cpu_s / max(pod.laws()[0])

    def _gang(self, number: int, now_s: float) -> GangJob:
        work, pod = self._works[number], self._pods[number]
        if work.deadline_s is None or work.deadline_s <= now_s:
            worth = Utility(1.0, patience_s=PATIENCE_S)
        else:
            worth = Utility(DEADLINE_WORTH, deadline_s=work.deadline_s - now_s)
            if self._handles:
                law = of_history(of_values([pod.work_cpu_s / cores for cores in pod.laws()[0]]))
                worth = adapted(worth, law, now_s - work.submitted_s, OVERESTIMATE_THRESHOLD)
        return GangJob(pod, work.tasks, worth.at)

    def _start(self, job: GangJob, placement: GangPlacement, now_s: float) -> None:
        number = int(job.pod.name)
        work, machines = self._works[number], tuple(int(node) for node in placement.nodes)
        self._running[number] = _Running(work, job.pod, machines, now_s, [1.0] * work.tasks)
        for machine in machines:
            self._here[machine][number] = self._here[machine].get(number, 0) + 1
        self._publish(machines)
        del self._waiting[number]
        self.outcome.decisions += 1
        self.events.append(FleetEvent(now_s, FleetEventKind.STARTED, number))

    def _make_room(self, job: GangJob, now_s: float) -> None:
        """Preempt as few best-effort jobs as let ``job`` start; preempt none if that is not enough."""
        victims = sorted(
            (number for number, run in self._running.items() if run.work.deadline_s is None), key=self._excess
        )
        taken: list[int] = []
        for number in victims[:MOST_PREEMPTED]:
            taken.append(number)
            self._publish(self._running[number].machines, without=taken)
            placement = gang_placement(self._fleet, job.pod, job.tasks, job.utility, self._risk)
            if placement is not None and placement.utility > len(taken):
                for each in taken:
                    self._stop(each, now_s)
                    self.outcome.preemptions += 1
                self._start(job, placement, now_s)
                return
        for number in taken:
            self._publish(self._running[number].machines)

    def _excess(self, number: int) -> tuple[bool, bool, float]:
        """Sort key of the published order: jobs beyond their request first, then beyond their prediction,
        then by use.
        """
        work, pod = self._running[number].work, self._pods[number]
        beyond = work.cores > work.requested_cores or work.memory_bytes > work.requested_bytes
        unexpected = work.cores > max(pod.laws()[0]) or work.memory_bytes > max(pod.laws()[1])
        size = work.tasks * max(work.cores / self._cores, work.memory_bytes / self._memory)
        return not beyond, not unexpected, -size

    # -- machines ----------------------------------------------------------------------------------------

    def _publish(self, machines: Sequence[int], without: Sequence[int] = ()) -> None:
        for machine in set(machines):
            self._fleet.put(self._profile(machine, without))

    def _profile(self, machine: int, without: Sequence[int] = ()) -> NodeProfile:
        here = [
            (self._running[number].pod, tasks)
            for number, tasks in self._here[machine].items()
            if number not in without
        ]
        sums, kept = self._sums[machine], 0
        while kept < min(len(sums), len(here)) and sums[kept].last == here[kept]:
            kept += 1
        sums = sums[:kept]
        for pod, tasks in here[kept:]:
            cores, memory = sums[-1].totals if sums else self._nothing
            laws = pod.laws()
            cores = added(cores, multiplied(_grid(laws[0], self._cores), tasks))
            memory = added(memory, multiplied(_grid(laws[1], self._memory), tasks))
            sums.append(_Sum((pod, tasks), (cores, memory)))
        if not without:
            self._sums[machine] = sums
        cores, memory = sums[-1].totals if sums else self._nothing
        pods = [pod for pod, tasks in here for _ in range(tasks)]
        return NodeProfile(
            str(machine), 1, 0.0, math.inf, self._cores, self._memory, tuple(pods),
            running_cores=cores, running_memory=memory,
        )  # fmt: skip

    def _relieve(self, now_s: float) -> bool:
        """Evict from every machine whose memory is used up."""
        gone: list[int] = []
        for here in self._here:
            held = {number: tasks * self._use(number)[1] for number, tasks in here.items()}
            if sum(held.values()) <= EVICTION_RATIO * self._memory:
                continue
            limit = int(EVICTION_RATIO * self._memory)
            for band in (None, QosBand.COPPER):
                users = [
                    MemoryUser(
                        str(number), band or self._band(number), int(held[number]),
                        int(here[number] * self._works[number].requested_bytes),
                    )
                    for number in here
                    if number not in gone
                ]  # fmt: skip
                gone += [int(name) for name in evicted(users, limit)]
        for number in dict.fromkeys(gone):
            memory = self._use(number)[1]
            self._stop(number, now_s)
            self.outcome.evictions += 1
            if self._observes:
                self._remember(number, memory)
        return bool(gone)

    def _band(self, number: int) -> QosBand:
        return QosBand.COPPER if self._works[number].deadline_s is None else QosBand.SILVER

    def _use(self, number: int) -> tuple[float, float]:
        """Present demand of one task, by the phase of its first task."""
        run = self._running[number]
        phases = run.work.phases
        if not phases:
            return run.work.cores, run.work.memory_bytes
        phase = phases[min(len(phases) - 1, int((1.0 - run.left[0]) * len(phases)))]
        return run.work.cores * phase.cores_ratio, run.work.memory_bytes * phase.memory_ratio

    def _stop(self, number: int, now_s: float) -> None:
        run = self._running.pop(number)
        for machine in set(run.machines):
            del self._here[machine][number]
        self._publish(run.machines)
        self._waiting[number] = run.work.submitted_s
        self.events.append(FleetEvent(now_s, FleetEventKind.EVICTED, number))

    # -- time passes -------------------------------------------------------------------------------------

    def _pass(self, now_s: float, until_s: float) -> bool:
        """One step up to ``now_s``. True if a job ended or its prediction changed."""
        uses = {number: self._use(number) for number in self._running}
        given: dict[tuple[int, int], float] = {}
        for machine, here in enumerate(self._here):
            requests = [tasks * self._works[number].requested_cores for number, tasks in here.items()]
            demands = [tasks * uses[number][0] for number, tasks in here.items()]
            if sum(demands) > self._cores:
                self.outcome.throttled += 1
                demands_met = divided(self._cores, requests, demands)
            else:
                demands_met = tuple(demands)
            for (number, tasks), cores in zip(here.items(), demands_met, strict=True):
                given[number, machine] = cores / tasks
        changed = False
        for number, run in list(self._running.items()):
            for task, machine in enumerate(run.machines):
                run.left[task] -= STEP_S * given[number, machine] / run.work.work_cpu_s
            if max(run.left) <= 1e-9:
                self._finish(number, now_s, until_s)
                changed = True
            elif self._observes:
                changed |= self._look(number, uses[number], given[number, run.machines[0]], now_s)
        return changed

    def _look(self, number: int, use: tuple[float, float], cores: float, now_s: float) -> bool:
        """Replace a prediction that the job's use has exceeded ever since its start."""
        run = self._running[number]
        run.least_cores, run.least_memory = min(run.least_cores, cores), min(run.least_memory, use[1])
        if now_s - run.started_s < OBSERVED_S:
            return False
        laws = run.pod.laws()
        beyond = run.least_cores > max(laws[0]), run.least_memory > max(laws[1])
        if not any(beyond):
            return False
        run.pod = replace(
            run.pod,
            cores_law={use[0]: 1.0} if beyond[0] else laws[0],
            memory_law={use[1]: 1.0} if beyond[1] else laws[1],
        )
        self._publish(run.machines)
        return True

    def _remember(self, number: int, memory: float) -> None:
        """Record that the next attempt of an evicted job uses at least as much as this one."""
        pod = self._pods[number]
        left = {value: chance for value, chance in pod.laws()[1].items() if value >= memory}
        total = sum(left.values())
        law = {value: chance / total for value, chance in left.items()} if left else {memory: 1.0}
        self._pods[number] = replace(pod, memory_law=law)

    def _finish(self, number: int, now_s: float, until_s: float) -> None:
        run = self._running.pop(number)
        for machine in set(run.machines):
            del self._here[machine][number]
        self._publish(run.machines)
        self._past.add(run.work)
        self.events.append(FleetEvent(now_s, FleetEventKind.ENDED, number))
        out, work = self.outcome, run.work
        core_h = work.tasks * work.work_cpu_s / 3600.0
        if work.deadline_s is not None:
            out.deadlines += 1
            late = now_s > work.deadline_s + STEP_S
            out.missed += late
            out.deadline_core_h += 0.0 if late else core_h
        elif now_s <= until_s:
            out.best_effort += 1
            out.best_effort_core_h += core_h
            out.latency_s += now_s - work.submitted_s


def _law(values: Sequence[float]) -> dict[float, float]:
    found: dict[float, float] = {}
    for value in values:
        found[value] = found.get(value, 0.0) + 1.0 / len(values)
    return found


def _grid(law: Mapping[float, float], capacity: float) -> GridDistribution:
    return of_outcomes(law, capacity, FLEET_CELLS)
