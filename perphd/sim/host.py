"""The simulated host: machine, control groups and workloads in virtual time, behind ``KernelFs``.

Everything that a policy can change goes through ``host.fs``; everything that it can see comes from there,
from ``perf_opener`` and from ``sli``. The same seed and the same writes give the same run, byte for byte.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Mapping, Sequence
from functools import partial
from random import Random
from typing import Final

import numpy as np

from perphd.domain.cpuset import CpuSet
from perphd.domain.errors import Gone
from perphd.sim import memory, rdt
from perphd.sim.accounting import Running, count, count_pressure
from perphd.sim.counters import Process
from perphd.sim.events import Arrival, Departure, Event, LoadChange, WorkChange
from perphd.sim.inforce import InForce, Tenant
from perphd.sim.kernel import Directory, SimFs
from perphd.sim.kernel.cgroup2 import CgroupTree, SimCgroup
from perphd.sim.kernel.proc import add_cpu_times, add_locks
from perphd.sim.kernel.resctrl import MOUNT_POINT, ResctrlTree
from perphd.sim.machine import CGROUP_ROOT, Machine, add_proc, add_processors, show_cpus
from perphd.sim.node.grant import Array
from perphd.sim.node.load import LoadTrace
from perphd.sim.node.model import Node
from perphd.sim.node.outcome import NOTHING, Outcome, Outcomes
from perphd.sim.node.state import State
from perphd.sim.node.workload import NodeWorkload
from perphd.sim.perf import SimPerf
from perphd.sim.sli import SliCursor, SliTotals
from perphd.sim.workload import Workload

__all__ = ["Arrival", "WorkChange", "Departure", "Event", "LoadChange", "SimHost"]

OWN_CGROUP: Final = "/system.slice/perphd.service"
_LATENCY_NOISE: Final = 0.06
_BACKLOG: Final = 200.0  # requests that may wait in an application before it refuses more
_BACKLOG_S: Final = 2.0  # seconds of load that may wait there, if that is more requests


class SimHost:
    """A host with these workloads. Workloads with an ``Arrival`` start at its time, the others at 0.

    Args:
        workloads: the workloads (``placed("mysql-oltp", "/lra/mysql")`` for an archetype).
        machine: its shape and speed.
        events: external events.
        seed: seed of all random numbers.
        pmu: whether hardware counters exist.
        step_s: resolution of the physics, in virtual seconds.
        resctrl: cache and bandwidth allocation exist and are mounted at /sys/fs/resctrl (``host.resctrl``); a text:
            with these options (``cdp``).
        loads: load factors of LRAs over time, by name; multiplied with ``LoadChange``.
        jobs: operations after which a batch job ends by itself, by name (``finished_s`` returns the time).
    """

    def __init__(
        self,
        workloads: Sequence[Workload],
        *,
        machine: Machine | None = None,
        events: Sequence[Event] = (),
        seed: int = 0,
        pmu: bool = False,
        step_s: float = 0.25,
        resctrl: bool | str = False,
        loads: Mapping[str, LoadTrace] | None = None,
        jobs: Mapping[str, float] | None = None,
    ) -> None:
        self.machine = machine or Machine()
        self.now_s = 0.0
        self._step_s = step_s
        self._random = Random(seed)
        root = Directory()
        self._proc = root.make("/proc")
        self.cgroups = CgroupTree(
            root.make(CGROUP_ROOT), self.machine.online, self.machine.nodes, self.machine.cpus
        )
        add_processors(root, self.machine, lambda: self.cgroups.online)
        self.cgroups.on_memory_max = self._memory_max_lowered
        self.cgroups.on_kill = lambda group, process: self._killed(process)
        self.resctrl: ResctrlTree | None = None
        if resctrl is not False:
            options = resctrl if isinstance(resctrl, str) else ""
            self.resctrl = rdt.mounted(self.machine, root.make(MOUNT_POINT), self.cgroups, options)
        top = self.cgroups.root
        used = lambda: top.memory.current_bytes  # noqa: E731
        mounts = self.resctrl.mount_line if self.resctrl else str
        add_proc(root, self.machine, OWN_CGROUP, top.pressure, used, mounts)
        add_cpu_times(root, self.cgroups, lambda: self.now_s)
        add_locks(root, [self.resctrl.directory] if self.resctrl else [])
        self.fs = SimFs(root)
        self.perf_opener = SimPerf(self.cgroups, pmu)
        self._works = {work.name: work for work in workloads}
        self._nodes = {work.name: work.on(self.machine.ghz) for work in workloads}
        self._running: dict[str, Running] = {}
        self._factors = dict.fromkeys(self._works, 1.0)
        self._loads = dict(loads or {})
        self._jobs, self._finished_s = dict(jobs or {}), dict[str, float]()
        self._sli = {name: SliTotals(_is_open(node)) for name, node in self._nodes.items()}
        self._work_done = dict.fromkeys(self._works, 0.0)
        self._next_pid = 1000
        self._events = sorted(events, key=lambda event: event.at_s)
        self._in_force = InForce(self.machine, self.resctrl)
        self._written = True
        """True if the trees may have been written to, or changed, since the last step."""
        self._node: Node | None = None
        self._state: State | None = None
        self.cgroups.make(OWN_CGROUP)
        later = {event.name for event in events if isinstance(event, Arrival)}
        for work in workloads:
            self.cgroups.make(work.cgroup)
            if work.name not in later:
                self._start(work.name)

    # -- time -----------------------------------------------------------------------------------------

    def advance(self, to_s: float) -> None:
        """Advance virtual time to ``to_s``; a past time is ignored."""
        self._written = True
        while self.now_s < to_s - 1e-9:
            while self._events and self._events[0].at_s <= self.now_s + 1e-9:
                self._happen(self._events.pop(0))
            # Steps end at multiples of their length, so observing at these times does not change the run.
            until = (math.floor(self.now_s / self._step_s + 1e-6) + 1) * self._step_s
            until = to_s if to_s < until - 1e-6 else until
            if self._events:
                until = min(until, max(self._events[0].at_s, self.now_s + 1e-3))
            self._step(until - self.now_s)
            self.now_s = until

    def set_online(self, cpus: CpuSet) -> None:
        """Set the online CPUs. Control groups, sysfs and resctrl show the change.

        The physics sees the change through the cpusets.
        """
        self._written = True
        self.cgroups.set_online(cpus)
        if self.resctrl is not None:
            self.resctrl.set_online(cpus)
        show_cpus(self.fs.root, self.machine, lambda: self.cgroups.online)

    def happen(self, event: Event) -> None:
        """Apply this event now, whatever its time: for externally driven simulations."""
        self._happen(event)

    def place(self, work: Workload) -> None:
        """Start this workload now, under an unused name.

        Raises:
            ValueError: a workload of this name is running.
        """
        if work.name in self._running:
            raise ValueError(f"{work.name} is already running")
        node = work.on(self.machine.ghz)
        self._works[work.name], self._nodes[work.name] = work, node
        self._factors.setdefault(work.name, 1.0)
        self._sli.setdefault(work.name, SliTotals(_is_open(node)))
        self._work_done.setdefault(work.name, 0.0)
        self._start(work.name)

    # -- questions of an observer ------------------------------------------------------------------------

    def has(self, name: str) -> bool:
        """True if the host has a workload of this name, running or not."""
        return name in self._works

    def running(self, name: str) -> bool:
        """True while the workload runs."""
        return name in self._running

    def names_running(self) -> tuple[str, ...]:
        """Names of the running workloads."""
        return tuple(self._running)

    def outcome(self, name: str) -> Outcome:
        """The workload's present outcome (all zero if it is not running)."""
        running = self._running.get(name)
        return running.outcome if running else NOTHING

    def work_done(self, name: str) -> float:
        """Requests answered, or batch's units of work, since the start."""
        return self._work_done[name]

    def finished_s(self, name: str) -> float | None:
        """The completion time of a job in ``jobs`` (virtual seconds); None if it is not complete."""
        return self._finished_s.get(name)

    def run_delay_ns(self, pid: int) -> int:
        """Run-queue delay of all threads of a process, as in taskstats. Raises Gone."""
        for running in self._running.values():
            if running.process.pid == pid:
                return int(running.wait_s * 1e9)
        raise Gone(f"taskstats of process {pid}", "read", errno.ESRCH)

    def sli(self, name: str) -> SliCursor:
        """A reader of the workload's own indicators; each reader has its own intervals."""
        return SliCursor(self._sli[name], lambda: self.now_s)

    def report_sli_every(self, name: str, seconds: float, backends: int = 1) -> None:
        """From now on, the workload's indicators change only when its backends report, each at this interval."""
        self._sli[name].report_every(seconds, backends)

    # -- events ---------------------------------------------------------------------------------------

    def _happen(self, event: Event) -> None:
        self._written = True
        if isinstance(event, Arrival):
            self._start(event.name)
        elif isinstance(event, Departure):
            self._stop(event.name)
            if event.remove_cgroup:
                self.cgroups.remove(self._works[event.name].cgroup)
        elif isinstance(event, WorkChange):
            if self._nodes[event.name].kind is not event.work.kind:
                raise ValueError(
                    f"{event.name} is of kind {self._nodes[event.name].kind}: "
                    "the new work must be of that kind"
                )
            self._nodes[event.name] = event.work
            if event.name in self._running:
                self._running[event.name].node = event.work
                self._repopulate()
        elif event.name in self._running:
            self._factors[event.name] = event.factor

    def _start(self, name: str) -> None:
        if name in self._running:
            return
        work = self._works[name]
        group = self.cgroups.make(work.cgroup)
        pid = self._next_pid
        self._next_pid += work.threads + 100
        process = Process(pid, tuple(range(pid, pid + work.threads)), name)
        group.processes.append(process)
        running = Running(self._nodes[name], group, process)
        self._running[name] = running
        self._factors[name] = 1.0
        self._add_process_files(running)
        self._repopulate()

    def _stop(self, name: str) -> None:
        running = self._running.pop(name, None)
        if running is None:
            return
        memory.release(running.group)
        self._home(running).processes.remove(running.process)
        self._proc.remove(str(running.process.pid))
        if self.resctrl is not None:
            for tid in running.process.tids:
                self.resctrl.exited(tid)
        self._repopulate()

    def _killed(self, process: Process) -> None:
        for name, running in list(self._running.items()):
            if running.process is process:
                self._stop(name)

    def _home(self, running: Running) -> SimCgroup:
        """The group that the process is in now; the process may have been moved."""
        if running.process in running.group.processes:
            return running.group
        return next(g for g in self.cgroups.root.walk() if running.process in g.processes)

    def _repopulate(self) -> None:
        """Rebuild the node model after workloads arrived, left or changed, and keep its state."""
        self._written = True
        node = Node(self.machine, [running.node for running in self._running.values()])
        if self._node is None or self._state is None:
            self._state = node.start()
        else:
            self._state = node.carry_on(self._state, self._node)
        self._node = node

    def _add_process_files(self, running: Running) -> None:
        process = running.process
        threads = len(process.tids)

        def schedstat() -> str:
            run, wait = int(running.run_s / threads * 1e9), int(running.wait_s / threads * 1e9)
            return f"{run} {wait} {int(running.switches / threads)}\n"

        own = self._proc.make(str(process.pid))
        own.add("comm", f"{process.comm}\n")
        own.add("cgroup", lambda: f"0::{running.group.path}\n")
        own.add("schedstat", schedstat)
        for nth, tid in enumerate(process.tids):
            task = own.make(f"task/{tid}")
            task.add("stat", partial(_stat, running, tid, nth))
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
        if order:
            self._simulate(order, dt_s)
        count_pressure(self.cgroups.root.walk(), order, dt_s)

    def _simulate(self, order: list[Running], dt_s: float) -> None:
        assert self._node is not None
        assert self._state is not None
        for running in order:
            if running.process not in running.group.processes:
                running.group = self._home(running)
        tenants = [Tenant(r.node, r.group, r.process.pid, r.outcome.runnable or 1.0) for r in order]
        in_force = self._in_force.read(tenants) if self._written else self._in_force.again(tenants)
        self._written = False
        self._state.resident = np.array([[r.group.memory.file_bytes for r in order]])
        loads, needs = self._asked(order, dt_s)
        patience = np.array([_patience(running.node) for running in order])
        outcomes = self._node.step(self._state, in_force, dt_s, loads, needs, patience)
        for running, outcome in zip(order, outcomes.all(), strict=True):
            running.outcome = outcome
            name = running.node.name
            done = count(running, self.machine.ghz, dt_s)
            self._work_done[name] += done
            noise = math.exp(self._random.gauss(0.0, _LATENCY_NOISE)) if running.is_lra else 1.0
            self._sli[name].add(done, outcome, noise, dt_s)
        memory.settle(
            dt_s, self.machine.memory_bytes, [(r.group, r.node, r.outcome.refaults_per_s) for r in order]
        )
        if self.resctrl is not None:
            self._account_rdt(self.resctrl, tenants, outcomes, dt_s)
        for name, operations in self._jobs.items():
            if name in self._running and self._work_done[name] >= operations:
                self._finished_s[name] = self.now_s + dt_s
                self._stop(name)

    def _account_rdt(
        self, tree: ResctrlTree, tenants: Sequence[Tenant], outcomes: Outcomes, dt_s: float
    ) -> None:
        tree.now_s = self.now_s + dt_s
        held = outcomes.domain_occupancy[0].tolist()
        moved = (outcomes.domain_bandwidth[0] * dt_s).tolist()
        rdt.account(tree, self._in_force, tenants, held, moved)

    def _asked(self, order: Sequence[Running], dt_s: float) -> tuple[Array, Array]:
        """Factors on the load of each workload, and on the CPU time per operation."""
        loads, needs = np.ones(len(order)), np.ones(len(order))
        for index, running in enumerate(order):
            if running.is_lra:
                name = running.node.name
                trace = self._loads.get(name)
                factor = self._factors[name] * (trace.at(self.now_s) if trace else 1.0)
                loads[index] = factor * running.asked.step(self._random, dt_s)
                needs[index] = running.needed.step(self._random, dt_s)
            if running.group.frozen:
                loads[index] = 0.0
        return loads, needs


def _is_open(node: NodeWorkload) -> bool:
    return node.requests is not None and not node.requests.closed


def _patience(node: NodeWorkload) -> float:
    """Maximum number of requests that wait in an application; it refuses further ones. 0 for batch."""
    if node.requests is None:
        return 0.0
    if node.requests.queue_limit:
        return node.requests.queue_limit
    rate = node.requests.rate_per_s
    return max(_BACKLOG, _BACKLOG_S * (rate or 0.0))


def _stat(running: Running, tid: int, nth: int) -> str:
    """A thread's line in the format of proc(5): threads are spread over their group's CPUs and share CPU time
    evenly.
    """
    cpus, threads = list(running.group.effective_cpus), len(running.process.tids)
    ticks, cpu = int(running.run_s / threads * 100), cpus[nth % len(cpus)] if cpus else 0
    before, between = "S 1 1 1 0 -1 4194304 0 0 0 0", "0 0 20 0 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 17"
    return f"{tid} ({running.process.comm}) {before} {ticks} 0 {between} {cpu} 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
