"""What ORACLE itself misses in a run: its setting as a value, the late variant, lent cores, and others beyond it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from perphd.admission.baselines import NonePolicy
from perphd.domain.allocation import UNTOUCHED, Settings
from perphd.domain.cpuset import CpuSet
from perphd.sim.node.load import Steps
from perphd.sim.node.machine import Machine
from perphd.sim.node.model import Node
from tools.bench.policies import floor, held, measure, oracle, scenarios
from tools.bench.policies.driver import run
from tools.bench.policies.oracle import Optimum, Situation
from tools.bench.policies.scene import Scenario
from tools.bench.policies.world import grant_of

SMALL = Machine(1, 4, 1, llc_ways=4, l3_bytes=8 << 20, memory_bytes_per_s=20e9, mba_levels_pct=(10, 50, 100))
PAIR = (scenarios.service(SMALL, "masstree", 0.3), scenarios.service(SMALL, "memcached", 0.1))


def stepped() -> Scenario:
    """A load that doubles while batch is there."""
    actor = scenarios.service(SMALL, "masstree", 0.3, load=Steps(((15.0, 2.0),)))
    actors = (actor, scenarios.batch("batch-thrash", threads=4, starts_s=10.0))
    return Scenario("stepped", "test", "", SMALL, actors, 20.0, count_from_s=10.0)


def crowded() -> Scenario:
    actors = (*PAIR, scenarios.batch("batch-thrash", threads=4))
    return Scenario("crowded", "test", "", SMALL, actors, 10.0, partition=True)


def optima_of(scenario: Scenario) -> dict[str, Optimum]:
    """As the bench reads them from its file."""
    found = {
        key: oracle.best(here, parts=scenario.partition) for key, here in measure.situations(scenario).items()
    }
    return {key: Optimum(**json.loads(json.dumps(optimum.as_dict()))) for key, optimum in found.items()}


def chosen_by(scenario: Scenario, optima: dict[str, Optimum], *, late: bool) -> list[dict[str, Settings]]:
    """What was put in force at the end of every second."""
    told: list[dict[str, Settings]] = []
    policy = held.HeldPolicy(scenario, optima, late=late)
    run(scenario, policy, held.PERIOD_S, 0, watch=lambda _, target: told.append(dict(target.settings)))
    return told


def noise_free(here: Situation, settings: dict[str, Settings]) -> tuple[float, float]:
    row = [grant_of(here.machine, settings.get(work.name, UNTOUCHED)) for work in here.works]
    told = Node(here.machine, here.works).solve([row], here.loads)
    return float(oracle.scores(here, told)[0]), float(oracle.batch_work(here, told.work_per_s)[0])


@pytest.mark.parametrize("make", [stepped, crowded])
def test_the_setting_of_an_optimum_gives_its_score_and_its_work(make):
    scenario = make()
    optima = optima_of(scenario)
    chosen = chosen_by(scenario, optima, late=False)
    for at_s in (11.0, 19.0) if make is stepped else (5.0,):
        here = measure.situation_at(scenario, at_s)
        score, work = noise_free(here, chosen[int(at_s) - 1])
        assert score == pytest.approx(optima[here.key].score, rel=1e-3)
        assert work == pytest.approx(optima[here.key].work, rel=1e-3)
        assert score >= 1.0 - 1e-3


def test_the_late_one_keeps_the_old_optimum_for_exactly_one_round():
    scenario = stepped()
    optima = optima_of(scenario)
    early, late = (chosen_by(scenario, optima, late=flag) for flag in (False, True))
    before, after = early[13], early[14]  # of the decisions at 14 and 15 s; the load doubles at 15 s
    assert before != after
    assert early[9:14] == [before] * 5
    assert early[14:] == [after] * 6
    assert late[10:15] == [before] * 5
    assert late[15:] == [after] * 5
    assert late[9] == {}, "a second ago batch was not there"


def test_cores_that_are_lent_are_looked_at():
    """Nothing better on that lattice than what is found; it is counted among the settings of batch as one class."""
    scenario = crowded()
    here = measure.situation_at(scenario, 0.0)
    found = oracle.lent_cores(here)
    assert found.feasible
    assert "divided among the LRAs" in found.how
    settings = held.settings_of(here, found)
    score, work = noise_free(here, settings)
    assert score == pytest.approx(found.score, rel=1e-3)
    assert work == pytest.approx(found.work, rel=1e-3)
    masstree, memcached, guest = (CpuSet.parse(row[0]) for row in found.row)
    assert masstree | memcached == SMALL.online
    assert not masstree & memcached
    assert guest & SMALL.online == guest
    assert oracle.best(here).one_class >= found.work - 1e-9


def test_what_is_missed_beyond_the_late_one_is_counted_run_by_run():
    scenario = stepped()
    plain = measure.measure(run(scenario, NonePolicy(), 1.0, 0), {})

    def result(policy: str, seed: int, excess_s: float) -> measure.Result:
        return replace(plain, policy=policy, seed=seed, seconds=10.0, excess_s=excess_s)

    runs = [
        result(held.LATE, 0, 2.0), result("perph", 0, 5.0), result("parties", 0, 1.0), result("perph", 1, 3.0)
    ]  # fmt: skip
    assert floor.beyond(runs) == {
        ("stepped", held.LATE, 0): 0.0,
        ("stepped", "perph", 0): pytest.approx(0.3),
        ("stepped", "parties", 0): 0.0,
    }
