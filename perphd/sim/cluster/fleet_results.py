"""Results of a run of the fleet simulator."""

from __future__ import annotations

from dataclasses import dataclass

from perphd.sim.cluster.division import Floats, Places
from perphd.sim.cluster.fleet_events import FleetEvent
from perphd.sim.cluster.learning import Learned


@dataclass(frozen=True, slots=True)
class FleetTick:
    """The fleet at one time. Ratios are over the nodes in use. ``violations``: nodes where demand exceeds the CPUs.

    ``held_services``: services on nodes where some service would miss its target without the agent.
    """

    at_s: float
    nodes_in_use: int
    cpu_ratio: float
    memory_ratio: float
    requested_ratio: float
    violations: int
    waiting: int
    running: int
    late_services: int
    services: int
    held_services: int = 0


@dataclass(slots=True, eq=False)
class FleetRun:
    """Results by pod, in the workload's order; NaN where a pod has none."""

    started_s: Floats
    ended_s: Floats
    worst_stall: Floats
    work_done: Floats
    slow_share: Floats
    evictions: Places
    ticks: list[FleetTick]
    events: list[FleetEvent]
    decisions: int
    conflicts: int
    learned: Learned | None = None
