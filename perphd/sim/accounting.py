"""Effects of a physics step on the kernel's counters: CPU time, events, pressure, I/O, run-queue delay."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from random import Random
from typing import Final

from perphd.domain.workload import Kind
from perphd.sim.counters import Process
from perphd.sim.kernel.cgroup2 import SimCgroup
from perphd.sim.node.outcome import NOTHING, Outcome
from perphd.sim.node.workload import NodeWorkload

_NOISE: Final = 0.02
_NOISE_S: Final = 2.0
_SYSTEM_SHARE: Final = {Kind.LRA: 0.25, Kind.BATCH: 0.02}  # share of CPU time that is spent in the kernel
_SWITCHES_PER_REQUEST: Final = 20.0
_SWITCHES_PER_CPU_S: Final = 40.0

Stalls = list[tuple[float, float]]


class Drift:
    """A random factor around 1, because real requests vary in number and size."""

    def __init__(self) -> None:
        self._off = 0.0

    def step(self, random: Random, dt_s: float) -> float:
        """The factor ``dt_s`` seconds later."""
        keep = math.exp(-dt_s / _NOISE_S)
        self._off = self._off * keep + random.gauss(0.0, _NOISE * math.sqrt(1.0 - keep * keep))
        return max(0.5, 1.0 + self._off)


class Running:
    """A running workload, with its accumulated work."""

    def __init__(self, node: NodeWorkload, group: SimCgroup, process: Process) -> None:
        self.node, self.group, self.process = node, group, process
        self.outcome: Outcome = NOTHING
        self.asked, self.needed = Drift(), Drift()  # requests, and CPU per request
        self.run_s = self.wait_s = self.switches = 0.0

    @property
    def is_lra(self) -> bool:
        """True for an LRA."""
        return self.node.kind is Kind.LRA


def count(running: Running, ghz: float, dt_s: float) -> float:
    """Add a step to the counters of a workload and of every group above it; returns operations done."""
    node, now = running.node, running.outcome
    used_s = now.usage_cores * dt_s
    done = now.work_per_s * dt_s
    running.run_s += used_s
    running.wait_s += now.run_delay_cores * dt_s
    switches = done * _SWITCHES_PER_REQUEST if running.is_lra else used_s * _SWITCHES_PER_CPU_S
    running.switches += switches
    instructions = now.mips * 1e6 * dt_s
    system_s = used_s * _SYSTEM_SHARE[node.kind]
    read, written = done * node.io.disk_read_bytes, done * node.io.disk_write_bytes
    moved = read + written
    reads = done * node.io.disk_ops * (read / moved) if moved > 0 else 0.0
    writes = done * node.io.disk_ops - reads if moved > 0 else 0.0
    misses, references = instructions * now.mpki / 1000.0, now.llc_refs_per_s * dt_s
    for group in running.group.ancestry():
        group.cpu.usage_s += used_s
        group.cpu.system_s += system_s
        if group.quota_us is not None:
            periods = dt_s * 1e6 / group.period_us
            group.cpu.periods += periods
            if now.throttled > 0:
                group.cpu.throttled_periods += periods
                group.cpu.throttled_s += dt_s * now.throttled
        perf = group.perf
        perf.cycles += used_s * ghz * 1e9
        perf.instructions += instructions
        perf.llc_misses += misses
        perf.llc_references += references
        perf.task_clock_s += used_s
        perf.switches += switches
        if moved > 0:
            group.io.read_bytes += read
            group.io.written_bytes += written
            group.io.reads += reads
            group.io.writes += writes
    return done


def count_pressure(groups: Iterable[SimCgroup], order: Sequence[Running], dt_s: float) -> None:
    """Advance the PSI of all groups by a step."""
    stalls: dict[SimCgroup, tuple[Stalls, Stalls, Stalls]] = {}
    for running in order:
        now = running.outcome
        own = ((now.cpu_some, now.cpu_full), (now.memory_some, now.memory_full), (now.io_some, now.io_full))
        for group in running.group.ancestry():
            known = stalls.get(group)
            if known is None:
                stalls[group] = tuple([one] for one in own)  # type: ignore[assignment]
            else:
                for together, one in zip(known, own, strict=True):
                    together.append(one)
    nothing: tuple[Stalls, Stalls, Stalls] = ([], [], [])
    for group in groups:
        cpu, memory, io = stalls.get(group, nothing)
        some, full = _together(cpu)
        group.pressure["cpu"].advance(dt_s, some, full if group.parent is not None else 0.0)
        group.pressure["memory"].advance(dt_s, *_together(memory))
        group.pressure["io"].advance(dt_s, *_together(io))


def _together(stalls: Stalls) -> tuple[float, float]:
    """``some`` and ``full`` of a group, from those of its workloads. Assumes that the workloads are independent."""
    if not stalls:
        return 0.0, 0.0
    if len(stalls) == 1:
        some, full = stalls[0]
        return 1.0 - (1.0 - some), full  # identical to the general case below, to the last bit
    running_free = math.prod(1.0 - some for some, _ in stalls)
    return 1.0 - running_free, min(full for _, full in stalls)
