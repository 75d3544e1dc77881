"""Snapshots for the published controllers: a host of so many cores, LRAs with a latency, batch with a use."""

from __future__ import annotations

from typing import Any

from perphd.domain.allocation import Settings
from perphd.domain.cpuset import CpuSet
from perphd.domain.policy import HostView, Snapshot, TargetState, WorkloadView
from perphd.domain.reading import NOT_MEASURED
from perphd.domain.sample import Sample
from perphd.domain.workload import Kind, Objective, WorkloadSpec
from perphd.sim.node.machine import Machine

TARGET_MS = 10.0


def host(cores: int = 8, ways: int = 11, threads: int = 1, busy: float | None = None) -> HostView:
    machine = Machine(1, cores, threads, llc_ways=max(ways, 1))
    levels = tuple(range(10, 101, 10)) if ways else ()
    return HostView(machine.topology(), NOT_MEASURED if busy is None else busy, ways, 1, levels)


def lra(
    name: str = "lc", latency_ms: float = 5.0, *, load: float = 100.0, usage: float = 1.0, bw: float = 1e9,
    priority: int = 100,
) -> WorkloadView:  # fmt: skip
    spec = WorkloadSpec(name, Kind.LRA, f"/{name}", priority, objective=Objective(max_latency_ms=TARGET_MS))
    sample = Sample(
        name, 0.0, 1.0, cpu_usage_cores=usage, work_rate_per_s=load, load_per_s=load, latency_p95_ms=latency_ms,
        mbw_bytes_per_s=bw, mips=1000.0,
    )  # fmt: skip
    return WorkloadView(spec, sample, enforced=True)


def batch(
    name: str = "be", usage: float = 2.0, bw: float = 1e9, mips: float = 1000.0, present: bool = True
) -> WorkloadView:
    spec = WorkloadSpec(name, Kind.BATCH, f"/{name}")
    sample = Sample(name, 0.0, 1.0, cpu_usage_cores=usage, mbw_bytes_per_s=bw, mips=mips)
    return WorkloadView(spec, sample if present else None, enforced=True)


class Play:
    """Lets time pass for a policy, its memory carried along."""

    def __init__(self, policy: Any, view: HostView | None = None, period_s: float = 1.0) -> None:
        self.policy, self.host, self.period_s = policy, view or host(), period_s
        self.now_s = 0.0
        self.tick = 0
        self.memory: Any = None
        self.target = TargetState({})

    def step(self, *views: WorkloadView, machine: HostView | None = None) -> dict[str, Settings]:
        self.now_s += self.period_s
        here = self.host if machine is None else machine
        snapshot = Snapshot(self.tick, self.now_s, self.period_s, here, tuple(views), self.memory)
        self.target = self.policy.decide(snapshot)
        assert self.policy.decide(snapshot) == self.target, "not pure"
        self.memory = self.target.memory
        self.tick += 1
        return dict(self.target.settings)

    def until(self, to_s: float, *views: WorkloadView) -> dict[str, Settings]:
        settings: dict[str, Settings] = {}
        while self.now_s < to_s - 1e-9:
            settings = self.step(*views)
        return settings


def cpus_of(settings: Settings) -> set[int]:
    assert isinstance(settings.cpus, CpuSet)
    return set(settings.cpus)


def cores_of(settings: Settings) -> int:
    return len(cpus_of(settings))


def mask_of(settings: Settings) -> int:
    assert isinstance(settings.llc_masks, tuple)
    return settings.llc_masks[0][1]


def ways_of(settings: Settings) -> int:
    return mask_of(settings).bit_count()
