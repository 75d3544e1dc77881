"""CPU suppression as in Koordinator's koordlet: batch gets only the CPUs that the host can spare.

In every interval, batch's CPUs = capacity x threshold - use by the LRAs - use by the system, and at least two CPUs.
Batch grows by at most a tenth of the host's CPUs at a time, and shrinks at once. The policy ignores targets. As the
simplest policy in production, it shows the value of considering them. The policy grants whole cores (Koordinator also
keeps siblings together if it can). Cache and bandwidth stay unchanged, as by its default.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from perphd.admission.context import batches, lras
from perphd.domain.allocation import Settings
from perphd.domain.policy import Snapshot, TargetState
from perphd.domain.reading import available, value_or

THRESHOLD_PCT: Final = 65.0
LEAST_CPUS: Final = 2
GROWTH_SHARE: Final = 0.10


@dataclass(frozen=True, slots=True)
class KoordinatorMemory:
    """Number of batch's CPUs; None before the first decision."""

    cpus: int | None = None


class KoordinatorPolicy:
    """The policy of the module. ``threshold_pct``: share of the host's CPUs that all work together may use."""

    def __init__(self, threshold_pct: float = THRESHOLD_PCT) -> None:
        self._threshold_pct = threshold_pct

    @property
    def name(self) -> str:
        """``koordinator``."""
        return "koordinator"

    def decide(self, snapshot: Snapshot) -> TargetState:
        """Number of batch's CPUs, from the present use by all other work."""
        memory = snapshot.memory if isinstance(snapshot.memory, KoordinatorMemory) else KoordinatorMemory()
        topology = snapshot.host.topology
        capacity = len(topology.usable)
        if not capacity:
            return TargetState({}, memory=memory)
        served = sum(value_or(v.sample.cpu_usage_cores, 0.0) for v in lras(snapshot) if v.sample is not None)
        busy = snapshot.host.busy_cores
        batch = sum(
            value_or(v.sample.cpu_usage_cores, 0.0) for v in batches(snapshot) if v.sample is not None
        )
        system = max(0.0, busy - served - batch) if available(busy) else 0.0
        wanted = math.floor(capacity * self._threshold_pct / 100.0 - served - system)
        cpus = min(max(wanted, LEAST_CPUS), capacity)
        if memory.cpus is not None:
            cpus = min(cpus, memory.cpus + max(1, math.floor(GROWTH_SHARE * capacity)))
        settings = Settings(cpus=topology.cpus_of(topology.usable_cores[-_cores(snapshot, cpus) :]))
        return TargetState({v.spec.name: settings for v in batches(snapshot)}, memory=KoordinatorMemory(cpus))


def _cores(snapshot: Snapshot, cpus: int) -> int:
    """The largest number of whole cores within this number of CPUs, at least one."""
    topology = snapshot.host.topology
    return max(1, cpus * len(topology.usable_cores) // max(1, len(topology.usable)))
