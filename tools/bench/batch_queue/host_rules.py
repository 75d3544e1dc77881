"""The day of ``host_day`` under two simple rules, for comparison with the daemon's own.

Both start jobs by their requests in the order of arrival, and know no deadlines.

*Static reservation*: LRAs have exclusive cores, and batch has the others all day. ``reserved_cores`` finds the least
number of cores that keeps both LRAs on target at the day's greatest load with batch on all others.

*Suppression*, as in Koordinator: batch may use 65 % of the CPUs less the LRAs' use, with the least weight. Its CPU set
follows that use in every round, and jobs start while their requests fit into it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from perphd.batch.job import QueuedJob
from perphd.sim.host import SimHost
from perphd.sim.machine import CGROUP_ROOT
from perphd.sim.node.load import Diurnal
from perphd.sim.workload import Batch
from tools.bench.batch_queue.host_day import (
    CORES,
    JOBS_CGROUP,
    LOAD,
    MEMORY,
    PERIOD_S,
    THREADS,
    Cores,
    DayOutcome,
    Hours,
    Judge,
    day_host,
    day_jobs,
    lras,
    on_target,
    progress,
    targets,
)
from tools.bench.batch_queue.node import BATCH_SHARE

LEAST_THREADS: Final = 2
"""Least CPUs of batch under Koordinator."""
LEAST_WEIGHT: Final = 1
"""``cpu.weight`` of batch under Koordinator: its ``cpu.shares`` are 2 of 1024."""
SETTLED_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Rule:
    """``threads``: the hardware threads of batch, given the host; ``weight``: its ``cpu.weight``.

    ``exclusive``: LRAs do not use them.
    """

    name: str
    threads: Callable[[SimHost], int]
    weight: int = 100
    exclusive: bool = False


def static_reservation() -> Rule:
    """Batch never has the LRAs' cores."""
    threads = THREADS - THREADS // CORES * reserved_cores()
    return Rule(f"FIFO, {THREADS - threads} threads reserved", lambda host: threads, exclusive=True)


def suppression() -> Rule:
    """Batch gets a share of the host less the LRAs' use."""

    def left(host: SimHost) -> int:
        used = sum(host.outcome(each.name).usage_cores for each in lras())
        return max(LEAST_THREADS, math.floor(BATCH_SHARE * THREADS - used))

    return Rule("suppression (Koordinator)", left, LEAST_WEIGHT)


def reserved_cores() -> int:
    """The fewest cores that keep both LRAs on target beside batch on all others, at the greatest load."""
    objectives = targets()
    for cores in range(1, CORES):
        host = day_host(Diurnal(LOAD.high, LOAD.high))
        host.place(Batch("hog", f"{JOBS_CGROUP}/hog", THREADS))
        divide(host, THREADS - THREADS // CORES * cores, exclusive=True)
        host.advance(SETTLED_S)
        if all(on_target(host, name, each) for name, each in objectives.items()):
            return cores
    return CORES - 1


def divide(host: SimHost, threads: int, exclusive: bool, weight: int = 100) -> None:
    """Give batch the last threads, core by core, and LRAs the others (``exclusive``) or all."""
    order = [core + CORES * n for core in range(CORES) for n in range(THREADS // CORES)]
    for name in host.names_running():
        if name in (each.name for each in lras()):
            chosen = order[: THREADS - threads] if exclusive else order
            cgroup = next(each.cgroup for each in lras() if each.name == name)
        else:
            chosen, cgroup = order[THREADS - threads :], f"{JOBS_CGROUP}/{name}"
            host.fs.write(f"{CGROUP_ROOT}{JOBS_CGROUP}/cpu.weight", str(weight).encode())
        text = ",".join(map(str, sorted(chosen)))
        host.fs.write(f"{CGROUP_ROOT}{cgroup}/cpuset.cpus", text.encode())


def day_by(rule: Rule, seed: int, hours: float = 24.0, from_hour: float = 0.0) -> DayOutcome:
    """One day, or some hours of it."""
    work, objectives, host = day_jobs(seed, hours), targets(), day_host(Hours(from_hour))
    out, judge = DayOutcome(jobs=len(work.works)), Judge(host, objectives)
    cores = Cores(host, work.works, as_the_daemon=False)
    waiting: list[QueuedJob] = []
    running: list[QueuedJob] = []
    ended_s: dict[int, float] = {}
    next_one, now_s = 0, 0.0
    while now_s < hours * 3600.0:
        now_s += PERIOD_S
        host.advance(now_s)
        cores.pass_by()
        for job in [job for job in running if job.unit in cores.ended_s]:
            ended_s[job.id] = cores.ended_s[job.unit]
            cores.stop(job.unit)
            running.remove(job)
        while next_one < len(work.works) and work.works[next_one].at_s <= now_s:
            next_one += 1
            waiting.append(
                QueuedJob(next_one, work.works[next_one - 1].spec, now_s, since_s=now_s, attempt=1)
            )
        threads = rule.threads(host)
        while waiting and _fits(waiting[0], running, threads):
            running.append(waiting.pop(0))
            cores.start(running[-1], "")
        divide(host, threads, rule.exclusive, rule.weight)
        judge.look(now_s)
        progress(f"seed {seed}, {rule.name}", now_s, judge)
    judge.tell(out)
    for number, each in enumerate(work.works, 1):
        out.count(each, ended_s.get(number), hours)
    return out


def _fits(job: QueuedJob, running: Sequence[QueuedJob], threads: int) -> bool:
    """True if the requests fit. A job that requests more CPUs than the host has starts alone and only runs slower."""
    lras_bytes = sum(each.anon_bytes + each.cache_bytes for each in lras())
    used = sum(each.spec.cpus for each in running)
    held = sum(each.spec.memory_bytes for each in running)
    return (used + job.spec.cpus <= threads or not running) and (
        held + job.spec.memory_bytes <= MEMORY - lras_bytes
    )
