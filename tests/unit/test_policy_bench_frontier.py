"""ORACLE with a margin: tighter goals, and the least that is missed at a wanted share of batch's work."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.domain.allocation import UNTOUCHED, Settings
from tests.unit.test_policy_bench_floor import PAIR, SMALL, stepped
from tools.bench.policies import enough, frontier, measure, oracle, scenarios
from tools.bench.policies.frontier import Point, least_missed, table
from tools.bench.policies.scene import Goal, Scenario

WHOLE = st.floats(1e-3, 1e6)


@given(WHOLE, WHOLE, WHOLE, WHOLE, st.floats(0.0, 1.0))
def test_a_tighter_goal_is_met_with_the_margin(p95_ms, rate, most_ms, least, margin):
    goal = Goal(most_ms, least)
    tight = goal.tightened(margin)
    assert tight.score(rate, p95_ms) == pytest.approx(goal.score(rate, p95_ms) / (1.0 + margin))


def test_what_is_missing_in_a_goal_stays_missing():
    assert Goal(min_work_per_s=100.0).tightened(0.25) == Goal(min_work_per_s=125.0)


def test_a_margin_misses_less_and_leaves_batch_less():
    scenario = stepped()
    optima = {k: oracle.best(h) for k, h in measure.situations(scenario).items()}
    known = [
        Point(**p)  # type: ignore[arg-type]
        for margin in (0.0, 0.25)
        for p in frontier.points(scenario, margin, optima)
    ]
    for late in (False, True):
        edge, back = (p for p in known if p.late is late)
        assert back.missed_s <= edge.missed_s
        assert back.good <= edge.good + 0.05
    text = table(known, wanted=0.5)
    assert "| 25% |" in text
    assert "not reached" not in text


def test_the_best_of_each_scenario_is_chosen_together():
    known = [
        Point("a", 0.0, False, 10.0, 1.0),
        Point("a", 0.1, False, 1.0, 0.9),
        Point("b", 0.0, False, 2.0, 1.0),
        Point("b", 0.1, False, 1.5, 0.5),
    ]
    assert least_missed(known, 0.95) == (3.0, 0.95)
    assert least_missed(known, 0.99) == (12.0, 1.0)
    assert least_missed(known, 1.01) is None
    assert least_missed([], 0.5) is None
    dear = [Point("a", 0.0, False, 6000.0, 0.95), Point("a", 0.1, False, 0.0, 0.85)]
    assert least_missed(dear, 0.9) == (6000.0, 0.95)


def test_a_job_kept_to_less_for_batchs_sake_is_no_step_of_anybodys_protection():
    actors = (*PAIR, scenarios.batch("batch-stream", threads=4), scenarios.batch("batch-thrash", threads=4))
    here = measure.situation_at(Scenario("two", "test", "", SMALL, actors, 10.0), 1.0)
    row = {work.name: UNTOUCHED for work in here.works}
    row["batch-stream"] = Settings(llc_masks=((0, 1),))
    found = list(enough._ways(here, SMALL.topology(), row, ["batch-stream", "batch-thrash"]))
    assert [(v.less, v.step) for v in found] == [(False, "batch has 3")]
    assert found[0].row["batch-stream"] == row["batch-stream"]
    protected = row | {"batch-thrash": Settings(llc_masks=((0, 0b1100),))}
    steps = {
        v.less: v.row
        for v in enough._ways(here, SMALL.topology(), protected, ["batch-stream", "batch-thrash"])
    }
    assert steps[True]["batch-thrash"].llc_masks == ((0, 0b1110),)
    assert steps[False]["batch-thrash"].llc_masks == ((0, 0b1000),)
