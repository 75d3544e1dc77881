"""Batch jobs beside an LRA that share a cache and cores, for the tests of their confinement."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from perphd.admission.features.streaming import Lras, Streaming, advance
from perphd.admission.settings import PolicySettings
from perphd.domain.allocation import KEEP, Settings
from perphd.domain.cpuset import CpuSet
from perphd.domain.decision import Outcome
from perphd.domain.policy import HostView, Snapshot, WorkloadView
from perphd.domain.reading import NOT_MEASURED
from perphd.domain.sample import Sample
from perphd.domain.topology import L3Domain
from perphd.domain.workload import Kind, WorkloadSpec
from tests.unit.admission_world import topology

WAYS = 11
Truth = Callable[[str, frozenset[str]], float]
"""Millions of instructions per second of a job while these are kept to the least cache."""
ByCores = Callable[[str, Mapping[str, int]], float]
"""Factor on a job's rate, by the number of cores on which the jobs may run."""


def streams(name: str, confined: frozenset[str]) -> float:
    """A streamer that takes others' cache, a job that needs the cache, and one that hardly cares."""
    free = "stream" in confined
    return {
        "stream": 970.0 if free else 1000.0,
        "thrash": 100.0 if "thrash" in confined else 190.0 if free else 110.0,
        "plain": 520.0 if free else 500.0,
    }[name]


MPKI = {"stream": 30.0, "thrash": 40.0, "plain": 2.0}


@dataclass
class Jobs:
    """Some batch jobs beside an LRA; their rates follow ``truth``, their settings what has been decided."""

    names: tuple[str, ...] = ("stream", "thrash")
    truth: Truth = streams
    by_cores: ByCores = lambda _name, _cores: 1.0
    policy: PolicySettings = field(default_factory=PolicySettings)
    noise: float = 0.01
    knobs: frozenset[str] = frozenset({"llc_masks"})
    counted: bool = True
    given: dict[str, Settings] = field(default_factory=dict)
    well: bool = True
    lra: bool = True
    idle: frozenset[str] = frozenset()
    used: float = 4.0
    waits_pct: float = 0.0
    allowed: CpuSet | None = None
    least: float | None = None
    absent: frozenset[str] = frozenset()
    host: HostView = field(
        default_factory=lambda: HostView(
            replace(topology(8), l3_domains=(L3Domain(0, CpuSet.of(range(8)), 11 << 20),)), llc_ways=WAYS
        )
    )

    def __post_init__(self) -> None:
        self.now_s, self.tick, self.random = 0.0, 0, random.Random(1)
        self.state, self.outcomes = Streaming(), list[Outcome]()
        self.in_force: dict[str, Settings] = {}

    @property
    def confined(self) -> set[str]:
        """Jobs that really have the smallest cache mask."""
        masks = {n: s.llc_masks for n, s in self.in_force.items() if n != "db"}
        return {
            n for n, m in masks.items() if m is not KEEP and m[0][1].bit_count() == self.host.min_cbm_bits
        }

    @property
    def cores(self) -> dict[str, int]:
        """On how many cores each job may run in truth."""
        whole = self.host.topology.usable
        cpus = {n: self.in_force.get(n, Settings()).cpus for n in self.names}
        return {n: len(whole if c is KEEP else c) for n, c in cpus.items()}

    def until_tried(self) -> None:
        """Ticks until a trial is under way."""
        while self.state.trial is None:
            self.step(1)

    def view(self, name: str) -> WorkloadView:
        """One job as it is now."""
        rate = self.truth(name, frozenset(self.confined)) * self.by_cores(name, self.cores)
        rate *= 1.0 + self.random.gauss(0.0, self.noise)
        sample = Sample(
            name,
            self.now_s,
            1.0,
            cpu_usage_cores=0.01 if name in self.idle else min(self.used, self.cores[name]),
            cpu_some_pct=self.waits_pct,
            threads=4.0,
            mips=rate if self.counted else NOT_MEASURED,
            llc_mpki=MPKI.get(name, 35.0),
        )
        spec = WorkloadSpec(name, Kind.BATCH, f"/{name}", min_cores=self.least)
        return WorkloadView(spec, sample, enforceable=self.knobs, enforced=True, allowed=self.allowed)

    def step(self, seconds: int) -> None:
        """So many ticks."""
        for _ in range(seconds):
            self.now_s += 1.0
            lra = WorkloadView(WorkloadSpec("db", Kind.LRA, "/db"), None)
            jobs = [self.view(name) for name in self.names]
            views = (lra, *(replace(v, sample=None) if v.spec.name in self.absent else v for v in jobs))
            snapshot = Snapshot(self.tick, self.now_s, 1.0, self.host, views)
            settings = {v.spec.name: self.given.get(v.spec.name, Settings()) for v in views}
            lras = Lras(there=self.lra, well=self.well)
            done = advance(self.state, snapshot, settings, lras, self.policy)
            self.state, self.in_force = done.streaming, dict(done.settings)
            self.outcomes += done.outcomes
            self.tick += 1
