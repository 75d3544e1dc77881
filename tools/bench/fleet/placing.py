"""Placement policies on a simulated fleet: Optum and the policies of its authors' comparison (EuroSys 2023, 5).

Profiles are learned on one day of a workload under Alibaba's alignment; every policy then places another day of the
same applications. A service is degraded if its worst stall (PSI, in the published 25 buckets) exceeds that of the same
pod under the alignment; batch is slower if it takes longer than under the alignment.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from perphd.cluster.scheduling.placement import PlacementSettings
from perphd.cluster.scheduling.profile import bucketed
from perphd.qos.event_mode import CopperEvent
from perphd.sim.cluster.bands import CopperSettings
from perphd.sim.cluster.fleet_results import FleetRun
from perphd.sim.cluster.fleet_workload import FleetShape, FleetWorkload, drawn
from perphd.sim.cluster.learning import Learned
from perphd.sim.cluster.simulator import FleetSettings, FleetSimulator
from tools.bench.fleet.least_pairs import least_pairs
from tools.bench.fleet.medea import GROUP_PODS, medea

SHAPE: Final = FleetShape(nodes=6, hours=0.75, service_requests=0.6, jobs_per_h=1000, memory_per_core=1.2)
MEDEA: Final = "medea"
"""No placement policy: an integer program places services as a group, and batch is placed by requests."""
BANDS: Final = "bands"
BANDS_EVENT: Final = "bands, event"
"""Services are placed by requests, batch by the nodes' offers to copper, with ``SCHEDULERS`` concurrent schedulers."""
SCHEDULERS: Final = 2
EVENT: Final = CopperEvent(1500.0, 600.0, 0.3, 300.0)
POLICIES: Final = (
    "alignment", "optum", "optum-eq11", "resource-central", "n-sigma", "borg", "distribution",
    "balanced", "optum-matched", MEDEA, BANDS, BANDS_EVENT,
)  # fmt: skip
BASE: Final = "alignment"
CYCLE_S: Final = 60.0
WARM_S: Final = 1200.0


@dataclass(frozen=True, slots=True)
class PlacingFigures:
    """One run beside the base run of its seed.

    ``cpu_ratio``: mean CPU use of the nodes in use; ``fleet_ratio``: of all. ``violations``: share of (node, time) at
    which demand exceeds the CPUs. ``undegraded``: share of services; ``slower``: share of the batch that ended in both
    runs.
    """

    cpu_ratio: float
    fleet_ratio: float
    nodes_in_use: float
    violations: float
    undegraded: float
    slower: float
    work_cpu_h: float
    waited_s: float
    missed: float


def placed(policy: str, seed: int, shape: FleetShape = SHAPE) -> PlacingFigures:
    """One policy on one seed's workload, beside ``BASE``."""
    workload, learned, base = _of_seed(seed, shape)
    return _figures(workload, shape, base if policy == BASE else _run(workload, shape, policy, learned), base)


@lru_cache(8)
def _of_seed(seed: int, shape: FleetShape) -> tuple[FleetWorkload, Learned | None, FleetRun]:
    """The workload, the profiles learned on another day of it, and the base run."""
    learned = _run(drawn(shape, seed, day=0), shape, BASE, None, learn=True).learned
    workload = drawn(shape, seed, day=1)
    return workload, learned, _run(workload, shape, BASE, learned)


def _run(
    workload: FleetWorkload, shape: FleetShape, policy: str, learned: Learned | None, *, learn: bool = False
) -> FleetRun:
    settings = FleetSettings(PlacementSettings(policy), cycle_s=CYCLE_S, learn=learn, pairing=least_pairs)
    if policy == MEDEA:
        settings = FleetSettings(
            PlacementSettings("balanced"), cycle_s=CYCLE_S, learn=learn, together=medea, group=GROUP_PODS
        )
    elif policy in (BANDS, BANDS_EVENT):
        copper = CopperSettings(EVENT if policy == BANDS_EVENT else None)
        settings = FleetSettings(
            PlacementSettings("balanced"), cycle_s=CYCLE_S, learn=learn, schedulers=SCHEDULERS, copper=copper
        )
    return FleetSimulator(workload, shape.nodes, settings, learned).run(shape.hours * 3600.0)


def _figures(workload: FleetWorkload, shape: FleetShape, run: FleetRun, base: FleetRun) -> PlacingFigures:
    service = np.array([np.isinf(pod.work_cpu_s) for pod in workload.pods])
    submitted = np.array([pod.submitted_s for pod in workload.pods])
    ticks = [tick for tick in run.ticks if tick.at_s >= WARM_S]
    in_use = np.array([tick.nodes_in_use for tick in ticks], dtype=float)
    used = np.array([tick.cpu_ratio for tick in ticks])
    both = ~np.isnan(run.ended_s) & ~np.isnan(base.ended_s)
    longer = (run.ended_s - run.started_s)[both] > (base.ended_s - base.started_s)[both] * 1.001
    same = bucketed(run.worst_stall[service]) <= bucketed(base.worst_stall[service])
    end_s = shape.hours * 3600.0
    waited = np.where(np.isnan(run.started_s), end_s, run.started_s) - submitted
    return PlacingFigures(
        float(np.average(used, weights=in_use)),
        float((used * in_use).mean() / shape.nodes),
        float(in_use.mean()),
        sum(tick.violations for tick in ticks) / max(in_use.sum(), 1.0),
        float(same.mean()),
        float(longer.mean()) if len(longer) else 0.0,
        float(run.work_done.sum() / 3600.0),
        float(waited[~service].mean()),
        sum(tick.late_services for tick in ticks) / max(sum(tick.services for tick in ticks), 1),
    )
