"""The simulated host: machine, control groups and workloads in virtual time, behind ``KernelFs``.

Everything that a policy can change goes through ``host.fs``; everything that it can see comes from there,
from ``perf_opener`` and from ``sli``. The same seed and the same writes give the same run, byte for byte.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from perphd.sim import memory, physics
from perphd.sim.counters import Process
from perphd.sim.kernel import Directory, SimFs
from perphd.sim.kernel.cgroup2 import CgroupTree, SimCgroup
from perphd.sim.machine import CGROUP_ROOT, Machine, add_proc, add_processors
from perphd.sim.perf import SimPerf
from perphd.sim.sli import SliCursor, SliTotals
from perphd.sim.workload import Lra, Workload

OWN_CGROUP: Final = "/system.slice/perphd.service"
_SETTLE_S: Final = 0.4  # caches and load balancing follow a change within this time constant
_NOISE: Final = 0.02
_NOISE_S: Final = 2.0
_LATENCY_NOISE: Final = 0.06
_MAX_BACKLOG: Final = 200.0  # requests; an application refuses more
_GHZ: Final = 2.5


@dataclass(frozen=True, slots=True)
class Arrival:
    """At ``at_s`` a workload starts in its cgroup (made if it is not there)."""

    at_s: float
    name: str


@dataclass(frozen=True, slots=True)
class Departure:
    """At ``at_s`` a workload ends; its cgroup stays, empty, unless ``remove_cgroup``."""

    at_s: float
    name: str
    remove_cgroup: bool = False


@dataclass(frozen=True, slots=True)
class LoadChange:
    """From ``at_s`` on an LRA is asked ``factor`` times what its specification says."""

    at_s: float
    name: str
    factor: float


_Stalls = list[tuple[float, float]]
Event = Arrival | Departure | LoadChange


class _Drift:
    """A factor that wanders around 1: real requests are neither evenly many nor alike."""

    def __init__(self) -> None:
        self._off = 0.0

    def step(self, random: Random, dt_s: float) -> float:
        """The factor ``dt_s`` seconds later."""
        keep = math.exp(-dt_s / _NOISE_S)
        self._off = self._off * keep + random.gauss(0.0, _NOISE * math.sqrt(1.0 - keep * keep))
        return max(0.5, 1.0 + self._off)


class _Running:
    """A workload while it runs, with what has accumulated."""

    def __init__(self, work: Workload, group: SimCgroup, process: Process) -> None:
        self.work, self.group, self.process = work, group, process
        self.activity = physics.Activity()
        self.memory = memory.MemoryFate()
        self.cost, self.backlog, self.factor = 1.0, 0.0, 1.0
        self.asked, self.needed = _Drift(), _Drift()  # requests, and CPU per request
        self.run_s = self.wait_s = self.switches = 0.0


class SimHost:
    """A host with these workloads. Those that have an ``Arrival`` start then, the others at 0.

    ``pmu``: hardware counters exist. ``step_s``: resolution of the physics, in virtual seconds.
    """

    def __init__(
        self,
        workloads: Sequence[Workload],
        *,
        machine: Machine | None = None,
        events: Sequence[Event] = (),
        seed: int = 0,
        pmu: bool = False,
        step_s: float = 0.1,
    ) -> None:
        self.machine = machine or Machine()
        self.now_s = 0.0
        self._step_s = step_s
        self._random = Random(seed)
        root = Directory()
        self._proc = root.make("/proc")
        add_processors(root, self.machine)
        self.cgroups = CgroupTree(
            root.make(CGROUP_ROOT), self.machine.online, self.machine.nodes, self.machine.cpus
        )
        self.cgroups.on_memory_max = self._memory_max_lowered
        top = self.cgroups.root
        add_proc(root, self.machine, OWN_CGROUP, top.pressure, lambda: top.memory.current_bytes)
        self.fs = SimFs(root)
        self.perf_opener = SimPerf(self.cgroups, pmu)
        self._works = {work.name: work for work in workloads}
        self._running: dict[str, _Running] = {}
        self._sli = {
            work.name: SliTotals(isinstance(work, Lra) and work.clients is None) for work in workloads
        }
        self._work_done = dict.fromkeys(self._works, 0.0)
        self._next_pid = 1000
        self._events = sorted(events, key=lambda event: event.at_s)
        self._caches = tuple(self.machine.socket_cpus(s) for s in range(self.machine.sockets))
        self.cgroups.make(OWN_CGROUP)
        later = {event.name for event in events if isinstance(event, Arrival)}
        for work in workloads:
            self.cgroups.make(work.cgroup)
            if work.name not in later:
                self._start(work.name)

    # -- time -----------------------------------------------------------------------------------------

    def advance(self, to_s: float) -> None:
        """Let virtual time pass until ``to_s``; the past is ignored."""
        while self.now_s < to_s - 1e-9:
            while self._events and self._events[0].at_s <= self.now_s + 1e-9:
                self._happen(self._events.pop(0))
            # Steps end at multiples of their length: looking on at such moments does not change the run.
            until = (math.floor(self.now_s / self._step_s + 1e-6) + 1) * self._step_s
            until = to_s if to_s < until - 1e-6 else until
            if self._events:
                until = min(until, max(self._events[0].at_s, self.now_s + 1e-3))
            self._step(until - self.now_s)
            self.now_s = until

    # -- what an observer of the experiment may know -----------------------------------------------------

    def has(self, name: str) -> bool:
        """True if the host knows a workload of this name, running or not."""
        return name in self._works

    def running(self, name: str) -> bool:
        """True while the workload runs."""
        return name in self._running

    def activity(self, name: str) -> physics.Activity:
        """What the workload does at this moment (all zero while it does not run)."""
        running = self._running.get(name)
        return running.activity if running else physics.Activity()

    def work_done(self, name: str) -> float:
        """Requests answered, or batch's units of work, since the start."""
        return self._work_done[name]

    def sli(self, name: str) -> SliCursor:
        """A reader of the workload's own indicators; each reader has its own intervals."""
        return SliCursor(self._sli[name], lambda: self.now_s)

    # -- events ---------------------------------------------------------------------------------------

    def _happen(self, event: Event) -> None:
        if isinstance(event, Arrival):
            self._start(event.name)
        elif isinstance(event, Departure):
            self._stop(event.name)
            if event.remove_cgroup:
                self.cgroups.remove(self._works[event.name].cgroup)
        elif event.name in self._running:
            self._running[event.name].factor = event.factor

    def _start(self, name: str) -> None:
        if name in self._running:
            return
        work = self._works[name]
        group = self.cgroups.make(work.cgroup)
        pid = self._next_pid
        self._next_pid += work.threads + 100
        process = Process(pid, tuple(range(pid, pid + work.threads)), name)
        group.processes.append(process)
        running = _Running(work, group, process)
        self._running[name] = running
        self._add_process_files(running)

    def _stop(self, name: str) -> None:
        running = self._running.pop(name, None)
        if running is None:
            return
        memory.release(running.group)
        running.group.processes.remove(running.process)
        self._proc.remove(str(running.process.pid))

    def _add_process_files(self, running: _Running) -> None:
        process = running.process
        count = len(process.tids)

        def schedstat() -> str:
            run, wait = int(running.run_s / count * 1e9), int(running.wait_s / count * 1e9)
            return f"{run} {wait} {int(running.switches / count)}\n"

        own = self._proc.make(str(process.pid))
        own.add("comm", f"{process.comm}\n")
        own.add("cgroup", lambda: f"0::{running.group.path}\n")
        own.add("schedstat", schedstat)
        for tid in process.tids:
            task = own.make(f"task/{tid}")
            task.add("comm", f"{process.comm}\n")
            task.add("schedstat", schedstat)

    def _memory_max_lowered(self, group: SimCgroup) -> None:
        if not memory.enforce_max(group):
            return
        for name, running in list(self._running.items()):
            if group in running.group.ancestry():
                group.memory.events["oom"] += 1
                group.memory.events["oom_kill"] += 1
                self._stop(name)
                return

    # -- one step of physics ----------------------------------------------------------------------------

    def _step(self, dt_s: float) -> None:
        order = list(self._running.values())
        tenants = [self._tenant(running, dt_s) for running in order]
        activities = physics.step(tenants, self._caches, self.machine.threads_per_core)
        fates = memory.settle(
            dt_s,
            self.machine.memory_bytes,
            [(r.group, r.work, a.work_per_s) for r, a in zip(order, activities, strict=True)],
        )
        for running, activity, fate in zip(order, activities, fates, strict=True):
            running.activity, running.memory = activity, fate
            running.cost += (activity.cost - running.cost) * (1.0 - math.exp(-dt_s / _SETTLE_S))
            lacking = activity.offered_per_s - activity.work_per_s
            open_loop = isinstance(running.work, Lra) and running.work.clients is None
            running.backlog = (
                min(_MAX_BACKLOG, max(0.0, running.backlog + lacking * dt_s)) if open_loop else 0.0
            )
            self._account(running, activity, dt_s)
        self._account_pressure(order, dt_s)

    def _tenant(self, running: _Running, dt_s: float) -> physics.Tenant:
        work, group = running.work, running.group
        load = cost = 1.0
        if isinstance(work, Lra):
            load = running.factor * running.asked.step(self._random, dt_s)
            cost = running.needed.step(self._random, dt_s)
        limits = [g.quota_us / g.period_us for g in group.ancestry() if g.quota_us is not None]
        return physics.Tenant(
            work=work,
            cpus=group.effective_cpus,
            way=_way(group, work.name),
            limit_cores=min(limits, default=math.inf),
            cost=running.cost * cost,
            stall_ms=running.memory.stall_ms,
            load=load,
            backlog=running.backlog,
            flat=not group.has("cpu"),
            runnable=running.activity.runnable or 1.0,
        )

    def _account(self, running: _Running, activity: physics.Activity, dt_s: float) -> None:
        work, used_s = running.work, activity.usage_cores * dt_s
        running.run_s += used_s
        running.wait_s += activity.run_delay_cores * dt_s
        switches = dt_s * (activity.work_per_s * 20 if isinstance(work, Lra) else 40 * activity.usage_cores)
        running.switches += switches
        done = activity.work_per_s * dt_s
        self._work_done[work.name] += done
        noise = math.exp(self._random.gauss(0.0, _LATENCY_NOISE)) if isinstance(work, Lra) else 1.0
        self._sli[work.name].add(done, activity, noise, dt_s)
        cycles = used_s * _GHZ * 1e9
        instructions = cycles * work.ipc * activity.speed / activity.cost
        misses = instructions * 0.002 * activity.cost
        system = 0.25 if isinstance(work, Lra) else 0.02
        for group in running.group.ancestry():
            group.cpu.usage_s += used_s
            group.cpu.system_s += used_s * system
            if group.quota_us is not None:
                periods = dt_s * 1e6 / group.period_us
                group.cpu.periods += periods
                if activity.throttled > 0:
                    group.cpu.throttled_periods += periods
                    group.cpu.throttled_s += dt_s * activity.throttled
            perf = group.perf
            perf.cycles += cycles
            perf.instructions += instructions
            perf.llc_misses += misses
            perf.task_clock_s += used_s
            perf.switches += switches

    def _account_pressure(self, order: Sequence[_Running], dt_s: float) -> None:
        stalls: dict[SimCgroup, tuple[_Stalls, _Stalls]] = {
            group: ([], []) for group in self.cgroups.root.walk()
        }
        for running in order:
            delay, usage = running.activity.run_delay_cores, running.activity.usage_cores
            some = 1.0 - math.exp(-delay) if isinstance(running.work, Lra) else min(1.0, delay)
            for group in running.group.ancestry():
                stalls[group][0].append((some, some * max(0.0, 1.0 - usage)))
                stalls[group][1].append((running.memory.some, running.memory.full))
        for group, (cpu, mem) in stalls.items():
            some, full = _together(cpu)
            group.pressure["cpu"].advance(dt_s, some, full if group.parent is not None else 0.0)
            some, full = _together(mem)
            group.pressure["memory"].advance(dt_s, some, full)
            group.pressure["io"].advance(dt_s, some * 0.9, full * 0.9)


def _way(group: SimCgroup, name: str) -> tuple[physics.Entity, ...]:
    """The scheduling entities from the top down to this group; without the cpu controller its threads compete above."""
    entities = [
        physics.Entity(g.path, g.share_weight, g.idle)
        for g in group.ancestry()
        if g.parent is not None and g.has("cpu")
    ]
    entities.reverse()
    if not group.has("cpu"):
        entities.append(physics.Entity(f"threads of {name}", 100.0))
    return tuple(entities)


def _together(stalls: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """``some`` and ``full`` of a group from those of the workloads in it, taken as independent."""
    running_free = math.prod(1.0 - some for some, _ in stalls)
    return 1.0 - running_free, min((full for _, full in stalls), default=0.0)
