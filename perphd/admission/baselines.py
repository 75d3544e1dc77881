"""Policies to compare with: nothing, CPU shares only (the paper's CPU-SBS), and a static split of the cores."""

from __future__ import annotations

from dataclasses import dataclass

from perphd.admission.arbiter import batch_cpus
from perphd.admission.context import batches, lras, total_cores
from perphd.domain.allocation import Settings, Weight
from perphd.domain.policy import Snapshot, TargetState


@dataclass(frozen=True, slots=True)
class NonePolicy:
    """Leaves everything as found: perphd only watches."""

    @property
    def name(self) -> str:
        """``none``."""
        return "none"

    def decide(self, snapshot: Snapshot) -> TargetState:
        """Nothing, for everybody."""
        return TargetState({view.spec.name: Settings() for view in snapshot.workloads})


@dataclass(frozen=True, slots=True)
class CpuSharesPolicy:
    """CPU-SBS: batch has a constant weight, an LRA its default of 100; no cpuset, cache or bandwidth control."""

    batch_weight: Weight = 6

    @property
    def name(self) -> str:
        """``cpu-sbs``."""
        return "cpu-sbs"

    def decide(self, snapshot: Snapshot) -> TargetState:
        """The constant weight for every batch workload."""
        return TargetState({v.spec.name: Settings(cpu_weight=self.batch_weight) for v in batches(snapshot)})


@dataclass(frozen=True, slots=True)
class StaticPolicy:
    """A fixed exclusive split: batch gets the given share of the cores (at least one), the LRAs the others."""

    batch_share: float = 0.5

    @property
    def name(self) -> str:
        """``static``."""
        return "static"

    def decide(self, snapshot: Snapshot) -> TargetState:
        """Disjoint cpusets; with a single core nothing can be split and nothing is set."""
        total = total_cores(snapshot)
        cores = min(max(1, round(total * self.batch_share)), total - 1)
        if cores < 1:
            return TargetState({})
        theirs = batch_cpus(snapshot.host.topology, cores)
        ours = snapshot.host.topology.usable - theirs
        settings = {v.spec.name: Settings(cpus=theirs) for v in batches(snapshot)}
        settings.update({v.spec.name: Settings(cpus=ours) for v in lras(snapshot)})
        return TargetState(settings)
