"""Time and memory of the simulated fleet as it grows, and the time of one decision on it."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass
from typing import Final

import numpy as np

from perphd.cluster.scheduling.placement import PlacementSettings
from perphd.sim.cluster.fleet_settings import FleetSettings
from perphd.sim.cluster.fleet_workload import FleetShape, drawn
from perphd.sim.cluster.simulator import FleetSimulator

FLEETS: Final = ((126, 0.5, 4.0), (1258, 0.5, 4.0), (12583, 0.5, 4.0), (6000, 0.17, 0.36))
"""Nodes, hours, and the median request of an application, in cores."""
DECISIONS: Final = 500


@dataclass(frozen=True, slots=True)
class ScaleFigures:
    """One run. ``made_cpu_s``: CPU time until it starts; ``cpu_s``: CPU time of the simulation; ``peak_mib``: peak
    memory of the process.

    ``decision_ms``, ``decision_p99_ms``: CPU time of one decision (median and 99th percentile) on the final fleet, over
    ``DECISIONS`` pods of the workload.
    """

    nodes: int
    pods: int
    made_cpu_s: float
    cpu_s: float
    peak_mib: float
    decisions: int
    ended: int
    decision_ms: float
    decision_p99_ms: float


def scaled(
    nodes: int, hours: float, jobs_per_h: float, policy: str = "optum", cores: float = 4.0
) -> ScaleFigures:
    """One fleet whose services already run; batch arrives and is placed from a sample of 5 %."""
    began = time.process_time()
    shape = FleetShape(nodes, hours, jobs_per_h=jobs_per_h, cores_median=cores)
    workload = drawn(shape, 0)
    simulator = FleetSimulator(workload, nodes, FleetSettings(PlacementSettings(policy), placed=True))
    made = time.process_time()
    run = simulator.run(hours * 3600.0)
    done = time.process_time()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0
    ended = int((run.ended_s == run.ended_s).sum())
    took = decision_times(simulator, len(workload.pods), hours * 3600.0)
    median, p99 = (float(np.quantile(took, level)) for level in (0.5, 0.99))
    return ScaleFigures(
        nodes, len(workload.pods), made - began, done - made, peak, run.decisions, ended, median, p99
    )


def decision_times(simulator: FleetSimulator, pods: int, now_s: float) -> list[float]:
    """CPU time of each of ``DECISIONS`` decisions, in ms."""
    found = []
    for pod in np.linspace(0, pods - 1, DECISIONS).astype(int).tolist():
        began = time.process_time_ns()
        simulator.decide(pod, now_s)
        found.append((time.process_time_ns() - began) / 1e6)
    return found
