"""The fleet's node model: water-filling as the product's, and interference as the detailed node's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perphd.batch import sharing
from perphd.sim.cluster.contention import NodeModel, no_control
from perphd.sim.cluster.division import divided
from perphd.sim.node.archetypes import archetype
from perphd.sim.node.machine import SILVER_4110
from perphd.sim.node.population import population
from tools.bench.fleet.calibration import calibrated


def _got(capacity: float, weights: list[float], demands: list[float]) -> list[float]:
    pool = np.zeros(len(weights), dtype=np.intp)
    got = divided(pool, np.array([capacity]), np.array(weights), np.array(demands)).got
    return [float(value) for value in got]


def test_published_water_filling():
    assert _got(8, [4, 2, 2], [6, 1, 5]) == pytest.approx([4.667, 1, 2.333], abs=1e-3)
    assert _got(8, [4, 4], [2, 10]) == pytest.approx([2, 6])


CLAIMS = st.lists(
    st.tuples(st.integers(0, 2), st.floats(0.1, 300), st.floats(0, 40)), min_size=1, max_size=14
)


@given(CLAIMS, st.lists(st.floats(1, 64), min_size=3, max_size=3))
def test_division_of_many_pools_is_the_product_s_own(claims, capacities):
    pool, weight, demand = (np.array(column) for column in zip(*claims, strict=True))
    found = divided(pool, np.array(capacities), weight, demand)
    for number, capacity in enumerate(capacities):
        here = np.nonzero(pool == number)[0]
        expected = sharing.divided(capacity, weight[here].tolist(), demand[here].tolist())
        assert found.got[here].tolist() == pytest.approx(expected, rel=1e-4, abs=1e-4)
        for place in here.tolist():  # the entitlement is what a pod gets that asks for everything
            greedy = demand[here].copy()
            greedy[here == place] = 1e6
            most = sharing.divided(capacity, weight[here].tolist(), greedy.tolist())
            assert found.entitled[place] == pytest.approx(
                most[int(np.nonzero(here == place)[0][0])], rel=1e-4, abs=1e-4
            )


def test_degradation_as_the_detailed_node_has_it():
    found = calibrated(12, seed=5)
    assert found.rank_correlation >= 0.9
    assert found.median_error <= 0.1


def _service_beside_batch(**control: float) -> tuple[float, float, float]:
    """Latency of a service, and work of batch, under one setting of the node."""
    types = population([archetype("memcached").workload, archetype("batch-thrash").workload])
    model = NodeModel(SILVER_4110, types, 1)
    kind, load = np.array([0, 1, 1, 1]), np.array([0.5, 1.0, 1.0, 1.0])
    settings_ = no_control(1)
    for name, value in control.items():
        setattr(settings_, name, np.array([value]))
    told = model.evaluate(
        np.zeros(4, dtype=np.intp), kind, load, np.full(4, 100.0), model.started(kind, load), settings_, 30
    )
    return float(told.p95_s[0]), float(told.rate[1:].sum()), float(told.stall[0])


def test_controls_relieve_the_service_and_cost_batch():
    free = _service_beside_batch()
    confined = _service_beside_batch(confined_cores=12.0)
    divided_cache = _service_beside_batch(confined_cores=12.0, cache_ratio=0.2)
    slowed = _service_beside_batch(confined_cores=12.0, cache_ratio=0.2, bandwidth_ratio=0.3)
    assert confined[0] < free[0]
    assert confined[2] < free[2]
    assert confined[1] < free[1]
    assert divided_cache[0] < confined[0]
    assert slowed[0] <= divided_cache[0]
    assert slowed[1] < divided_cache[1]


@settings(max_examples=15, deadline=None)
@given(st.permutations(range(6)))
def test_order_and_neighbouring_nodes_change_nothing(order):
    types = population([archetype(name).workload for name in ("xapian", "batch-stream", "mysql-short")])
    node, kind = np.array([0, 0, 0, 1, 1, 1]), np.array([0, 1, 1, 2, 0, 1])
    load = np.array([0.3, 1.0, 0.5, 0.8, 0.9, 0.4])

    def rates(places):
        model = NodeModel(SILVER_4110, types, 2)
        chosen = np.array(places)
        start = model.started(kind[chosen], load[chosen])
        return model.evaluate(
            node[chosen], kind[chosen], load[chosen], np.full(len(chosen), 100.0), start
        ).rate

    assert rates(order) == pytest.approx(rates(range(6))[np.array(order)], rel=1e-6)
    assert rates([3, 4, 5]) == pytest.approx(rates(range(6))[3:], rel=1e-6)
