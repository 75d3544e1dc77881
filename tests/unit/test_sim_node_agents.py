"""The fleet's model of perphd on a node: cores of its own for each service, and only where a target would be missed."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import pytest

from perphd.domain.cpuset import CpuSet
from perphd.domain.workload import Objective
from perphd.sim.cluster.contention import Control, NodeModel
from perphd.sim.cluster.division import Floats, Places
from perphd.sim.cluster.fleet_workload import FLEET_NODE, drawn
from perphd.sim.cluster.node_agents import NodeAgents
from perphd.sim.node.grant import Grant
from perphd.sim.node.model import Node
from perphd.sim.node.population import population
from perphd.sim.node.workload import NodeWorkload
from tools.bench.fleet import agents, buyers
from tools.bench.fleet.buyers import BuyerFigures, interval, smallest, squeezed

SEED = 1
"""A co-location in which services miss their targets without control."""


Columns: TypeAlias = tuple[Places, Places, Floats, Floats]


def _state(seed: int = SEED, jobs: int | None = None) -> tuple[list[NodeWorkload], int, NodeModel, Columns]:
    here = agents.colocation(seed)
    works = [*here.services, *here.batch[:jobs]]
    model = NodeModel(FLEET_NODE, population(works), 1)
    kind = np.arange(len(works))
    columns = np.zeros_like(kind), kind, np.ones(len(kind)), np.full(len(kind), 100.0)
    return works, len(here.services), model, columns


def test_cpus_of_its_own_as_the_detailed_node_has_them():
    works, services, model, columns = _state()
    cores = [4 + 2 * n for n in range(services)]
    grants, begin = [], 0
    for count in cores:
        grants.append(Grant(cpus=FLEET_NODE.first_cores(count, begin)))
        begin += count
    rest: CpuSet = FLEET_NODE.first_cores(FLEET_NODE.cores - begin, begin)
    grants += [Grant(cpus=rest)] * (len(works) - services)
    detailed = Node(FLEET_NODE, works).solve(grants).all()
    own = np.array([2.0 * n for n in cores] + [0.0] * (len(works) - services))
    one = np.ones(1)
    control = Control(one * (FLEET_NODE.cpus - own.sum()), 0 * one, one, one, own)
    told = model.evaluate(*columns, model.started(columns[1], columns[2]), control, rounds=60)
    assert told.rate.tolist() == pytest.approx([each.work_per_s for each in detailed], rel=0.03)
    assert told.service_s.tolist() == pytest.approx([each.service_s for each in detailed], rel=0.05)


def test_agents_keep_targets_that_are_missed_without_them():
    _, services, model, columns = _state()
    free = NodeAgents(Objective(), active=False).judged(
        model, *columns, model.started(columns[1], columns[2]), rounds=40
    )
    kept = NodeAgents(Objective()).judged(model, *columns, model.started(columns[1], columns[2]), rounds=40)
    assert free.late.any()
    assert not free.held.any()
    assert not kept.late.any()
    assert kept.held.tolist() == [n < services for n in range(len(kept.held))]
    assert 0.5 * free.told.rate[services:].sum() < kept.told.rate[services:].sum()


def test_agents_set_nothing_where_no_target_is_missed():
    _, services, model, columns = _state(jobs=0)
    agent = NodeAgents(Objective())
    balance = model.started(columns[1], columns[2])
    undisturbed = agent.undisturbed(model, *columns)
    held = agent.held(model, *columns, balance, undisturbed)
    assert held.needed.tolist() == [0.0]
    assert held.control.confined_cores.tolist() == [0.0]
    assert held.control.own_cpus is not None
    assert not held.control.own_cpus.any()
    assert services == len(undisturbed.p95_s)


def test_the_models_share_their_co_locations():
    """Both compare the same counted time, and batch comes within it."""
    for seed in range(5):
        here = agents.colocation(seed)
        found = here.segments()
        assert sum(end - begin for begin, end, _ in found) == pytest.approx(agents.LENGTH_S - agents.FROM_S)
        assert [there for _, _, there in found] == list(range(len(here.batch) + 1))


def _figures(late: float, work: float, held: float = 0.0) -> BuyerFigures:
    return BuyerFigures(late, held, work, 0.5, 0)


def test_the_smallest_fleet_needs_all_greater_ones_on_target():
    base = {"stock": _figures(0.0, 100.0)}
    runs = {
        24: base | {"agents": _figures(0.0, 99.0)},
        12: {"stock": _figures(0.005, 98.0), "agents": _figures(0.0, 98.0)},
        10: {"stock": _figures(0.03, 98.0), "agents": _figures(0.005, 96.0)},
        8: {"stock": _figures(0.0, 98.0), "agents": _figures(0.0, 94.0)},
    }
    assert smallest(runs, "stock") == 12
    assert smallest(runs, "stock", 0.05) == 8
    assert smallest(runs, "agents") == 10
    assert smallest({24: {"stock": _figures(0.5, 100.0)}}, "stock") is None


def test_interval_is_student_s():
    assert interval([1.0, 2.0, 3.0]) == "2 (-0.484 to 4.48)"
    assert interval([5.0]) == "5"


def test_smaller_requests_leave_use_as_it_is():
    workload = drawn(buyers.SHAPE, 0)
    less = squeezed(workload, 0.5)
    for before, after in zip(workload.pods, less.pods, strict=True):
        assert after.cores == pytest.approx(before.cores / 2)
        assert after.cores * after.used_ratio == pytest.approx(before.cores * before.used_ratio)
        assert after.memory_bytes * after.memory_ratio == pytest.approx(
            before.memory_bytes * before.memory_ratio
        )
