"""Placement policies on a simulated fleet: Optum and the policies of its authors' comparison (EuroSys 2023, 5).

Profiles are learned on one day of a workload under Alibaba's alignment; every policy then places another day of the
same applications. A service is degraded if its worst stall (PSI, in the published 25 buckets) exceeds that of the same
pod under the alignment. Batch is slower if it takes longer than under the alignment. Since its own demand changes every
ten minutes, it may take longer only because it starts at another time: it is hindered more if it takes longer
relative to the time that its own demand leaves it on an idle node.

``limited_run``: a policy that leaves batch a share of the CPUs alone, see ``FleetSettings.batch_limit``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from perphd.cluster.scheduling.fleet import Mask
from perphd.cluster.scheduling.placement import PlacementSettings
from perphd.cluster.scheduling.profile import bucketed
from perphd.qos.event_mode import CopperEvent
from perphd.sim.cluster.bands import CopperSettings
from perphd.sim.cluster.division import Floats
from perphd.sim.cluster.fleet_results import FleetRun
from perphd.sim.cluster.fleet_settings import FleetSettings
from perphd.sim.cluster.fleet_workload import PHASE_S, FleetShape, FleetWorkload, Loads, drawn
from perphd.sim.cluster.learning import Learned
from perphd.sim.cluster.simulator import FleetSimulator
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
LIMITED: Final = tuple(
    (policy, limit) for policy in (BASE, "n-sigma") for limit in (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)
)
"""Policies with a limit on batch."""
CYCLE_S: Final = 60.0
WARM_S: Final = 1200.0


@dataclass(frozen=True, slots=True)
class PlacingFigures:
    """One run beside the base run of its seed.

    ``cpu_ratio``: mean CPU use of the nodes in use; ``fleet_ratio``: of all. ``violations``: share of (node, time) at
    which demand exceeds the CPUs. ``undegraded``: share of services; ``slower``, ``hindered``: shares of the batch that
    ended in both runs.
    """

    cpu_ratio: float
    fleet_ratio: float
    nodes_in_use: float
    violations: float
    undegraded: float
    slower: float
    hindered: float
    work_cpu_h: float
    waited_s: float
    missed: float


def placed(policy: str, seed: int, shape: FleetShape = SHAPE) -> PlacingFigures:
    """One policy on one seed's workload, beside ``BASE``."""
    workload, learned, base = _of_seed(seed, shape)
    return _figures(workload, shape, base if policy == BASE else _run(workload, shape, policy, learned), base)


def limited_run(case: tuple[str, float], seed: int, shape: FleetShape = SHAPE) -> PlacingFigures:
    """A policy with a limit on batch, beside ``BASE`` without one."""
    workload, learned, base = _of_seed(seed, shape)
    policy, limit = case
    settings = FleetSettings(PlacementSettings(policy), cycle_s=CYCLE_S, batch_limit=limit)
    run = FleetSimulator(workload, shape.nodes, settings, learned).run(shape.hours * 3600.0)
    return _figures(workload, shape, run, base)


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
    took_s, base_s = run.ended_s - run.started_s, base.ended_s - base.started_s
    idle_s, base_idle_s = (unhindered_s(workload, each.started_s, both) for each in (run, base))
    same = bucketed(run.worst_stall[service]) <= bucketed(base.worst_stall[service])
    end_s = shape.hours * 3600.0
    waited = np.where(np.isnan(run.started_s), end_s, run.started_s) - submitted
    return PlacingFigures(
        float(np.average(used, weights=in_use)),
        float((used * in_use).mean() / shape.nodes),
        float(in_use.mean()),
        sum(tick.violations for tick in ticks) / max(in_use.sum(), 1.0),
        float(same.mean()),
        _more(took_s[both], base_s[both]),
        _more((took_s / idle_s)[both], (base_s / base_idle_s)[both]),
        float(run.work_done.sum() / 3600.0),
        float(waited[~service].mean()),
        sum(tick.late_services for tick in ticks) / max(sum(tick.services for tick in ticks), 1),
    )


def _more(values: Floats, base: Floats) -> float:
    """Share of values that exceed the base's."""
    return float((values > base * 1.001).mean()) if len(values) else 0.0


def unhindered_s(workload: FleetWorkload, started_s: Floats, chosen: Mask) -> Floats:
    """The time that each chosen pod's own demand leaves it on an idle node from its start; NaN for others."""
    loads, found = Loads(workload), np.full(len(started_s), np.nan)
    pods = np.nonzero(chosen)[0]
    left = np.array([workload.pods[pod].work_cpu_s for pod in pods.tolist()])
    now_s = started_s[pods].copy()
    while len(pods):
        phase_s = np.floor(now_s / PHASE_S) * PHASE_S
        rate = np.empty(len(pods))
        for at_s in np.unique(phase_s).tolist():
            rate[phase_s == at_s] = loads.at(at_s, pods[phase_s == at_s])
        ends = left <= rate * (phase_s + PHASE_S - now_s)
        found[pods[ends]] = (now_s + left / rate)[ends] - started_s[pods[ends]]
        left = left - rate * (phase_s + PHASE_S - now_s)
        now_s = phase_s + PHASE_S
        pods, left, now_s = pods[~ends], left[~ends], now_s[~ends]
    return found
