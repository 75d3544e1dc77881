"""ORACLE with a margin: tighter goals, and the least that is missed at a wanted share of batch's work."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.test_policy_bench_floor import stepped
from tools.bench.policies import frontier, measure, oracle
from tools.bench.policies.frontier import Point, least_missed, table, tightened
from tools.bench.policies.scene import Goal

WHOLE = st.floats(1e-3, 1e6)


@given(WHOLE, WHOLE, WHOLE, WHOLE, st.floats(0.0, 1.0))
def test_a_tighter_goal_is_met_with_the_margin(p95_ms, rate, most_ms, least, margin):
    goal = Goal(most_ms, least)
    tight = tightened(goal, margin)
    assert tight is not None
    assert tight.score(rate, p95_ms) == pytest.approx(goal.score(rate, p95_ms) / (1.0 + margin))


def test_what_is_missing_in_a_goal_stays_missing():
    assert tightened(None, 0.1) is None
    assert tightened(Goal(min_work_per_s=100.0), 0.1) == Goal(min_work_per_s=pytest.approx(110.0))


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
