"""The bench's comparison of placement policies: how long batch would take without neighbours."""

from __future__ import annotations

import math

import numpy as np
import pytest

from perphd.cluster.scheduling.placement import PlacementSettings
from perphd.cluster.scheduling.profile import PodKind
from perphd.sim.cluster.fleet_settings import FleetSettings
from perphd.sim.cluster.fleet_workload import FleetPod, FleetWorkload, Loads, drawn
from perphd.sim.cluster.simulator import FleetSimulator
from tools.bench.fleet.placing import SHAPE, unhindered_s


def _batch(count: int, work_cpu_s: float) -> FleetWorkload:
    """Batch pods of one type that start one after the other, in different phases."""
    types = drawn(SHAPE, 1).types
    number = next(n for n, each in enumerate(types) if each.name == "b0")
    pods = [
        FleetPod(f"p{n}", "b0", PodKind.BATCH, number, 4.0, 1e9, 0.3, 0.9, 130.0 * n, work_cpu_s)
        for n in range(count)
    ]
    return FleetWorkload(types, pods, 3)


def test_demand_alone_is_summed_up_over_the_phases():
    workload = _batch(6, 1500.0)
    started_s = np.array([0.0, 130.0, 599.0, 600.0, 1000.0, np.nan])
    chosen = ~np.isnan(started_s)
    found = unhindered_s(workload, started_s, chosen)
    assert math.isnan(found[5])
    loads = Loads(workload)
    for pod in range(5):
        left, now_s = 1500.0, started_s[pod]
        while left > 0.0:
            left -= float(loads.at(now_s, np.array([pod]))[0])
            now_s += 1.0
        assert found[pod] == pytest.approx(now_s - started_s[pod], abs=1.0)


def test_a_pod_alone_on_its_node_takes_as_long_as_its_demand_says():
    workload = _batch(3, 900.0)
    run = FleetSimulator(workload, 3, FleetSettings(PlacementSettings("balanced"))).run(7200.0)
    took_s = run.ended_s - run.started_s
    assert len(set(took_s.tolist())) == 3
    assert took_s == pytest.approx(unhindered_s(workload, run.started_s, ~np.isnan(run.ended_s)), rel=0.02)
