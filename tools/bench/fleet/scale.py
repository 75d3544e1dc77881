"""Time and memory of the simulated fleet as it grows."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass
from typing import Final

from perphd.cluster.scheduling.placement import PlacementSettings
from perphd.sim.cluster.fleet_workload import FleetShape, drawn
from perphd.sim.cluster.simulator import FleetSettings, FleetSimulator

FLEETS: Final = ((126, 0.5, 4.0), (1258, 0.5, 4.0), (12583, 0.5, 4.0), (6000, 0.17, 0.42))
"""Nodes, hours, and the median request of an application, in cores."""


@dataclass(frozen=True, slots=True)
class ScaleFigures:
    """One run. ``made_cpu_s``: until it starts; ``cpu_s``: of the simulated time; ``peak_mib``: of the process."""

    nodes: int
    pods: int
    made_cpu_s: float
    cpu_s: float
    peak_mib: float
    decisions: int
    ended: int


def scaled(
    nodes: int, hours: float, jobs_per_h: float, policy: str = "optum", cores: float = 4.0
) -> ScaleFigures:
    """One fleet whose services are there already; batch arrives and is placed from a sample of 5 %."""
    began = time.process_time()
    shape = FleetShape(nodes, hours, jobs_per_h=jobs_per_h, cores_median=cores)
    workload = drawn(shape, 0)
    simulator = FleetSimulator(workload, nodes, FleetSettings(PlacementSettings(policy), placed=True))
    made = time.process_time()
    run = simulator.run(hours * 3600.0)
    done = time.process_time()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0
    ended = int((run.ended_s == run.ended_s).sum())
    return ScaleFigures(nodes, len(workload.pods), made - began, done - made, peak, run.decisions, ended)
