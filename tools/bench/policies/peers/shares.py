"""CPU-SBS, the Perph paper's name for static CPU shares without a controller."""

from __future__ import annotations

from dataclasses import dataclass

from perphd.admission.context import batches
from perphd.domain.allocation import Settings, Weight
from perphd.domain.policy import Snapshot, TargetState


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
