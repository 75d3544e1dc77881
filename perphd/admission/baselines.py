"""Baseline policies for comparison: no action, and a static split of the cores."""

from __future__ import annotations

from dataclasses import dataclass

from perphd.admission.arbiter.arbitration import batch_cpus
from perphd.admission.context import batches, lras, total_cores
from perphd.domain.allocation import Settings
from perphd.domain.policy import Snapshot, TargetState


@dataclass(frozen=True, slots=True)
class NonePolicy:
    """Leaves everything as found: perphd only observes."""

    @property
    def name(self) -> str:
        """``none``."""
        return "none"

    def decide(self, snapshot: Snapshot) -> TargetState:
        """Settings that change nothing, for every workload."""
        return TargetState({view.spec.name: Settings() for view in snapshot.workloads})


@dataclass(frozen=True, slots=True)
class StaticPolicy:
    """A fixed exclusive split: batch gets ``batch_share`` of the cores (at least one), the LRAs the rest."""

    batch_share: float = 0.5

    @property
    def name(self) -> str:
        """``static``."""
        return "static"

    def decide(self, snapshot: Snapshot) -> TargetState:
        """Disjoint CPU sets; nothing is set on a single-core host."""
        total = total_cores(snapshot)
        cores = min(max(1, round(total * self.batch_share)), total - 1)
        if cores < 1:
            return TargetState({})
        theirs = batch_cpus(snapshot.host.topology, cores)
        ours = snapshot.host.topology.usable - theirs
        settings = {v.spec.name: Settings(cpus=theirs) for v in batches(snapshot)}
        settings.update({v.spec.name: Settings(cpus=ours) for v in lras(snapshot)})
        return TargetState(settings)
