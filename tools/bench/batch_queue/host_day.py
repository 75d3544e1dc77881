"""A day of LRAs and jobs on the simulated host: the daemon's own agent, policy, queue and history.

Two LRAs follow the hour. The physics of ``perphd.sim`` determines their performance: cores, caches, memory bandwidth,
queueing. Jobs of the generator are submitted to the daemon's batch queue as they arrive, and run as batch workloads. An
LRA is on target while its 95 % latency and its work rate meet its objective. The same day without jobs shows the host
without batch, and the day in observe shows the effect of jobs without control. ``host_rules`` has the same day under
simpler rules.

A job's CPUs are hardware threads. The generator's run times, and with them the histories and the deadlines, assume busy
siblings, so that a job on a half-empty host is faster. A job arrives at the next round of the loop, and its deadline
moves with it. A round takes ten seconds here, and one or two in reality.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from perphd.agent.composition import build_agent
from perphd.agent.queue.planning import facts_of
from perphd.agent.queue.solver import QueueSolver
from perphd.agent.simulated import simulated_sli
from perphd.batch.job import JobSpec, QueuedJob, UnitEvidence
from perphd.batch.planner import JobPlan
from perphd.batch.runner import UnitState
from perphd.config.file import Config, DaemonConfig, StoreConfig
from perphd.config.tables import QueueConfig
from perphd.domain.job import HISTORY_FILE
from perphd.domain.workload import Kind, Mode, Objective, SliSpec, WorkloadSpec
from perphd.forecast.histogram import quantile
from perphd.forecast.history.store import JobHistory, Quantity
from perphd.isolation.job_groups import COPPER_PARENT, LEAST
from perphd.qos.bands import MEMORY_LIMIT_RATIO
from perphd.sim.host import Departure, SimHost
from perphd.sim.machine import CGROUP_ROOT, Machine
from perphd.sim.node.load import Diurnal, LoadTrace
from perphd.sim.workload import Batch, Lra
from tools.bench.batch_queue.jobs import GIB, Generated, Work, generated

CORES: Final = 16
THREADS: Final = 32
MEMORY: Final = 128.0 * GIB
EPOCH_S: Final = 1.7e9
DAY_S: Final = 86400.0
JOBS: Final = 2000
"""Jobs that arrive in a day."""
SIZE: Final = 0.3
"""Size of the jobs for the generator: they request two to five tenths of the host."""
JOBS_CGROUP: Final = COPPER_PARENT
PERIOD_S: Final = 10.0
STEP_S: Final = 5.0
LOAD: Final = Diurnal(0.4, 1.2, DAY_S)
WARM_S: Final = 600.0
"""Uncounted seconds at the start, in which the agent sees its LRAs alone."""
LEAST_WORK: Final = 0.95
MORE_LATENCY: Final = 1.3
"""An LRA's target: factor on its greatest 95 % latency in a day alone, and share of its load."""
IN_MEMORY: Final = Path("/dev/shm")
"""Folder of the daemon's files, in memory, so that virtual time does not wait for the disk."""
TAUGHT: Final = 12
"""Number of earlier jobs of each class in the history."""


@dataclass(slots=True)
class Hours:
    """The day's load, seen from one of its hours on."""

    from_hour: float = 0.0

    def at(self, now_s: float) -> float:
        """See ``LoadTrace``."""
        return LOAD.at(now_s + 3600.0 * self.from_hour)


@dataclass(slots=True)
class DayOutcome:
    """The results of one day. ``on_target``: share of the time by LRA; ``busy``: share of the host's CPUs.

    ``slo``: jobs whose deadline was within the day; ``missed``: those of them that had not ended by then.
    """

    on_target: dict[str, float] = field(default_factory=dict)
    busy: float = 0.0
    jobs: int = 0
    done: int = 0
    slo: int = 0
    missed: int = 0
    best_effort: int = 0
    latency_s: float = 0.0
    preempted: int = 0

    def count(self, work: Work, ended_s: float | None, hours: float) -> None:
        """One job; ``ended_s`` None: it has not ended."""
        deadline_s = work.spec.deadline_s
        self.done += ended_s is not None
        if deadline_s is None:
            if ended_s is not None:
                self.best_effort += 1
                self.latency_s += ended_s - work.at_s
        elif deadline_s <= hours * 3600.0:
            self.slo += 1
            self.missed += ended_s is None or ended_s > deadline_s


class Judge:
    """Accumulates the LRAs' time on target and the host's use."""

    def __init__(self, host: SimHost, objectives: Mapping[str, Objective]) -> None:
        self._host, self._objectives = host, objectives
        self._met = dict.fromkeys(objectives, 0)
        self._rounds, self._busy = 0, 0.0

    def look(self, now_s: float) -> None:
        """Process a finished round of the loop."""
        if now_s <= WARM_S:
            return
        self._rounds += 1
        for name, objective in self._objectives.items():
            self._met[name] += on_target(self._host, name, objective)
        self._busy += sum(self._host.outcome(name).usage_cores for name in self._host.names_running())

    def so_far(self) -> str:
        """Shares of the time on target until now."""
        return ", ".join(f"{name} {met / max(1, self._rounds):.2%}" for name, met in self._met.items())

    def tell(self, out: DayOutcome) -> None:
        """Store the counts."""
        out.on_target = {name: met / self._rounds for name, met in self._met.items()}
        out.busy = self._busy / self._rounds / THREADS


def on_target(host: SimHost, name: str, objective: Objective) -> bool:
    """True if the LRA serves its load within its target."""
    outcome = host.outcome(name)
    served = outcome.work_per_s >= LEAST_WORK * outcome.offered_per_s
    return served and outcome.p95_ms <= (objective.max_latency_ms or 0.0)


def lras() -> tuple[Lra, ...]:
    """The long-running applications: about a seventh of the busy host at night and two fifths at noon."""
    return (
        Lra("db", "/b/db", rate_per_s=2400.0, service_ms=2.0, serial_ms=0.05, wait_ms=1.5),
        Lra("web", "/b/web", rate_per_s=1800.0, service_ms=1.2, serial_ms=0.02, wait_ms=2.0),
    )


class Cores:
    """A ``JobRunner`` on the simulated host: a job is CPU-bound threads that end when their work is done.

    ``as_the_daemon``: jobs together have the least weight, as with the daemon's own runners.
    """

    def __init__(self, host: SimHost, works: Sequence[Work], as_the_daemon: bool = True) -> None:
        self._host, self._works = host, works
        self._parent = LEAST["cpu", 2] if as_the_daemon else ()
        self._units: dict[str, tuple[str, float]] = {}
        self._done: dict[str, float] = {}
        self.ended_s: dict[str, float] = {}

    def pass_by(self) -> None:
        """Record the ends of jobs within the last round."""
        for unit, (_, wanted) in self._units.items():
            before, done = self._done.get(unit, 0.0), self._host.work_done(unit)
            if done >= wanted and unit not in self.ended_s:
                beyond = (done - wanted) / (done - before) if done > before else 0.0
                self.ended_s[unit] = self._host.now_s - beyond * PERIOD_S
            self._done[unit] = done

    def make_group(self, job: QueuedJob) -> str:
        """See ``JobRunner``: virtual time stands still between a start and the settings that follow it."""
        return ""

    def start(self, job: QueuedJob, log: str) -> str:
        """See ``JobRunner``."""
        if job.unit not in self._units:
            work = self._works[job.id - 1]
            threads = threads_of(work)
            cgroup = f"{JOBS_CGROUP}/{job.unit}"
            batch = Batch(job.unit, cgroup, threads, pollution=1.0, anon_bytes=int(work.memory_bytes))
            self._host.place(batch)
            self._host.fs.write(f"{CGROUP_ROOT}{cgroup}/cpuset.cpus", f"0-{THREADS - 1}".encode())
            for file, value in self._parent:
                self._host.fs.write(f"{CGROUP_ROOT}{JOBS_CGROUP}/{file}", value.encode())
            self._parent = ()
            shared = batch.on(self._host.machine.ghz).code.smt_speed
            self._units[job.unit] = cgroup, work.run_s * threads * shared
        return self._units[job.unit][0]

    def look(self, jobs: Sequence[QueuedJob]) -> Mapping[int, UnitState]:
        """See ``JobRunner``."""
        return {job.id: self._state(job.unit) for job in jobs}

    def _state(self, unit: str) -> UnitState:
        if unit not in self._units:
            return UnitState(UnitEvidence.NEVER_STARTED)
        cgroup, wanted = self._units[unit]
        ended = self._host.work_done(unit) >= wanted
        if not ended and not self._host.running(unit):
            return UnitState(UnitEvidence.ENDED, 137, cgroup, "killed for memory")
        return UnitState(UnitEvidence.ENDED if ended else UnitEvidence.RUNS, 0, cgroup)

    def stop(self, unit: str) -> bool:
        """See ``JobRunner``."""
        if self._units.pop(unit, None) is not None:
            self._host.happen(Departure(self._host.now_s, unit, remove_cgroup=True))
        return True

    def units(self) -> tuple[str, ...]:
        """See ``JobRunner``."""
        return tuple(self._units)


def threads_of(work: Work) -> int:
    """The threads of a job: it uses whole CPUs."""
    return max(1, round(work.cpus))


def targets() -> dict[str, Objective]:
    """The LRAs' objectives, from their greatest latency in a day alone."""
    host = day_host(Diurnal(LOAD.high, LOAD.high))
    host.advance(60.0)
    return {
        each.name: Objective(max_latency_ms=MORE_LATENCY * host.outcome(each.name).p95_ms) for each in lras()
    }


def day_jobs(seed: int, hours: float) -> Generated:
    """The jobs of a day, or of its first hours. They arrive at rounds of the loop, and ask for whole CPUs."""
    found = generated(seed, hours, math.inf, float(THREADS), MEMORY, SIZE, most=round(JOBS * hours / 24.0))
    works = []
    for work in found.works:
        at_s = PERIOD_S * math.ceil(work.at_s / PERIOD_S)
        deadline_s = work.spec.deadline_s
        spec = replace(
            work.spec,
            cpus=min(float(THREADS), max(work.spec.cpus, threads_of(work))),
            memory_bytes=min(work.spec.memory_bytes, int(MEMORY_LIMIT_RATIO * MEMORY)),  # more is refused
            deadline_s=None if deadline_s is None else deadline_s + at_s - work.at_s,
        )
        works.append(replace(work, at_s=at_s, spec=spec))
    return Generated(tuple(works), found.past)


def day(
    seed: int, mode: Mode, with_jobs: bool = True, hours: float = 24.0, from_hour: float = 0.0
) -> DayOutcome:
    """One day, or some hours of it."""
    work = day_jobs(seed, hours)
    logged_below = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # hide the agent's messages about a simulated host
    name = f"seed {seed}, {mode}" if with_jobs else "no jobs"
    try:
        with patch.object(QueueSolver, "improved", _as_it_is):
            jobs = work if with_jobs else Generated((), work.past)
            return asyncio.run(_day(name, jobs, mode, hours, day_host(Hours(from_hour))))
    finally:
        logging.disable(logged_below)


def _as_it_is(solver: QueueSolver, now_s: float, *problem: Any) -> JobPlan:
    """Greedy plans, as without HiGHS, whose answers depend on its two seconds of real time."""
    plan: JobPlan = problem[-1]
    return plan


def day_host(load: LoadTrace) -> SimHost:
    """The host and its LRAs."""
    people = lras()
    machine = replace(Machine(1, CORES, THREADS // CORES), memory_bytes=int(MEMORY))
    loads = {each.name: load for each in people}
    host = SimHost(people, machine=machine, seed=1, pmu=True, step_s=STEP_S, loads=loads)
    for each in people:
        host.fs.write(f"{CGROUP_ROOT}{each.cgroup}/cpuset.cpus", f"0-{THREADS - 1}".encode())
    return host


def _teach(folder: Path, work: Generated) -> None:
    """Fill the history with earlier jobs of every class."""
    specs = {each.kind: each.spec for each in work.works}
    with JobHistory(folder / HISTORY_FILE) as history:
        for kind, spec in specs.items():
            past = work.past[kind]
            for n in range(TAUGHT):
                share = (n + 0.5) / TAUGHT
                took = {
                    Quantity.RUN_TIME_S: quantile(past.run_s, share),
                    Quantity.ENOUGH_CORES: float(max(1, round(quantile(past.cpus, share)))),
                    Quantity.MEMORY_BYTES: quantile(past.memory_bytes, share),
                }
                history.complete(facts_of(QueuedJob(1, spec, 0.0), EPOCH_S), took, EPOCH_S)


async def _day(told: str, work: Generated, mode: Mode, hours: float, host: SimHost) -> DayOutcome:
    out, objectives = DayOutcome(jobs=len(work.works)), targets()
    cores, judge = Cores(host, work.works), Judge(host, objectives)
    specs = tuple(
        WorkloadSpec(
            each.name,
            Kind.LRA,
            each.cgroup,
            objective=objectives[each.name],
            sli=SliSpec("simulated", (("workload", each.name),)),
        )
        for each in lras()
    )
    now_s, next_one = 0.0, 0
    with tempfile.TemporaryDirectory(dir=IN_MEMORY if IN_MEMORY.is_dir() else None) as folder:
        _teach(Path(folder), work)
        config = Config(
            daemon=DaemonConfig(state_dir=folder, socket=f"{folder}/sock", mode=mode, period_s=PERIOD_S),
            store=StoreConfig(enabled=False),
            queue=QueueConfig(enabled=True, most_running=64),
            workloads=specs,
        )
        agent = build_agent(
            config,
            fs=host.fs,
            opener=host.perf_opener,
            sli_opener=simulated_sli(host),
            wall_clock=lambda: EPOCH_S + now_s,
            runner=cores,
        )
        queue = agent.queue
        assert queue is not None
        while now_s < hours * 3600.0:
            now_s += PERIOD_S
            host.advance(now_s)
            cores.pass_by()
            due = next_one
            while due < len(work.works) and work.works[due].at_s <= now_s:
                due += 1
            if due > next_one:
                await queue.submit([_on_clock(each.spec) for each in work.works[next_one:due]])
                next_one = due
            await agent.tick(now_s)
            await queue.settled()
            judge.look(now_s)
            progress(told, now_s, judge)
        rows = [job for n in range(1, len(work.works) + 1) if (job := queue.find(n)) is not None]
        await agent.stop(restore=True)
    judge.tell(out)
    for job in rows:
        out.preempted += job.preemptions
        ended_s = cores.ended_s.get(job.unit, job.since_s - EPOCH_S) if job.state.ended else None
        out.count(work.works[job.id - 1], ended_s, hours)
    return out


def progress(told: str, now_s: float, judge: Judge) -> None:
    """Print the progress of a run every hour, because a day takes minutes or longer."""
    if now_s % 3600.0 == 0.0:
        print(f"{told}: hour {now_s / 3600.0:.0f}, {judge.so_far()}", file=sys.stderr, flush=True)


def _on_clock(spec: JobSpec) -> JobSpec:
    """The job as it is submitted: its deadline in seconds since 1970."""
    return replace(spec, deadline_s=None if spec.deadline_s is None else EPOCH_S + spec.deadline_s)
