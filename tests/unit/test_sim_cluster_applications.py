"""Applications on a simulated cluster, against the published examples and laws of every rule."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perphd.batch.elastic import rebalanced
from perphd.sim.cluster.applications import Application, Order, Rule, Served, key, run
from perphd.sim.cluster.workloads import (
    BATCH_RATIO,
    CORES,
    CORES_TO_MEMORY,
    MEMORY_GIB,
    QUANTILES,
    TASKS,
    TASKS_TO_MEMORY,
    google_2011,
    requests,
)
from tools.bench.fleet.rules import malleable, rigid

PUBLISHED = {"A": (3, 4), "B": (3, 3), "C": (3, 5), "D": (3, 2)}


def _mean_s(served: Served) -> float:
    return sum(each.turnaround_s for each in served.completions) / len(served.completions)


@pytest.mark.parametrize(
    ("rule", "completions", "mean_s"),
    [
        (rigid, (10, 20, 30, 40), 25.0),
        (malleable, (10, 15, 22.5, 32.5), 20.0),
        (rebalanced, (10, 15, 165 / 7, 199 / 7), 19.25),
    ],
)
def test_the_published_turnaround_of_four_applications(
    rule: Rule, completions: tuple[float, ...], mean_s: float
) -> None:
    applications = [
        Application(name, 0.0, core, elastic, 10.0) for name, (core, elastic) in PUBLISHED.items()
    ]
    served = run(applications, 10, rule)
    ended = {each.application.name: each.ended_s for each in served.completions}
    assert [ended[name] for name in PUBLISHED] == pytest.approx(completions)
    assert _mean_s(served) == pytest.approx(mean_s)


@pytest.mark.parametrize(("order", "mean_s"), [(Order.SJF, 3.5), (Order.SJF_2D, 4.0)])
def test_the_published_sizes_of_two_applications(order: Order, mean_s: float) -> None:
    applications = [
        Application("A1", 0.0, 10, 0, 2.0, components=10),
        Application("A2", 0.0, 6, 0, 3.0, components=6),
    ]
    assert _mean_s(run(applications, 10, rebalanced, order)) == pytest.approx(mean_s)


@pytest.mark.parametrize(
    ("rule", "preemptive"), [(rigid, False), (malleable, False), (rebalanced, False), (rebalanced, True)]
)
def test_the_boundary_of_a_core_that_equals_the_capacity(rule: Rule, preemptive: bool) -> None:
    """C = R: with the printed "less than" it would block the queue forever, in both algorithms."""
    applications = [
        Application("before", 0.0, 4, 0, 5.0),
        Application("whole", 1.0, 10, 0, 5.0, interactive=preemptive),
    ]
    order = Order.SRPT if preemptive else Order.FIFO
    assert [each.ended_s for each in run(applications, 10, rule, order, preemptive).completions] == [
        5.0,
        10.0,
    ]


def test_an_application_that_never_fits_is_refused() -> None:
    with pytest.raises(ValueError, match="its core is 11 units"):
        run([Application("more", 0.0, 11, 0, 1.0)], 10)
    with pytest.raises(ValueError, match="never serves wide"):
        run([Application("wide", 0.0, 5, 6, 1.0)], 10, rigid)


def test_preemption_overcommits_nothing_and_serves_the_urgent_one_at_once() -> None:
    applications = [
        Application("a", 0.0, 4, 6, 100.0),
        Application("b", 1.0, 4, 6, 100.0),
        Application("h", 2.0, 2, 0, 1.0, interactive=True),
    ]
    served = run(applications, 10, order=Order.SRPT, preemptive=True)
    urgent = next(each for each in served.completions if each.application.name == "h")
    assert urgent.queued_s == 0.0
    assert urgent.turnaround_s == pytest.approx(1.0)
    assert served.allocated_ratio <= 1.0


def test_the_published_counterexample_of_algorithm_2_waits_and_overcommits_nothing() -> None:
    """Printed, it grants 13 of 10 units: a core of 5 fits the 12 elastic units that are wanted, not the 2 granted."""
    applications = [
        Application("A", 0.0, 4, 6, 100.0),
        Application("B", 1.0, 4, 6, 50.0),
        Application("H", 2.0, 5, 0, 1.0, interactive=True),
    ]
    served = run(applications, 10, order=Order.SRPT, preemptive=True)
    ended_s = {each.application.name: each.ended_s for each in served.completions}
    b_ends_s = 1.0 + 500.0 / 6.0  # B preempts A: 4 + 2 units, beside 4
    assert ended_s["B"] == pytest.approx(b_ends_s)
    assert ended_s["H"] == pytest.approx(b_ends_s + 1.0)
    assert served.allocated_ratio <= 1.0


def test_the_response_ratio_ages() -> None:
    short, long = Application("short", 90.0, 1, 0, 100.0), Application("long", 0.0, 1, 0, 1000.0)
    assert key(Order.HRRN, long, 100.0) == pytest.approx(-1.1)
    assert key(Order.HRRN, short, 100.0) == pytest.approx(-1.1)
    assert key(Order.HRRN, short, 200.0) < key(Order.HRRN, long, 200.0)


APPLICATIONS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 10), st.integers(0, 8), st.integers(1, 30), st.booleans()),
    min_size=1,
    max_size=25,
)


@settings(max_examples=150, deadline=None)
@given(APPLICATIONS, st.sampled_from(Order), st.sampled_from([rigid, malleable, rebalanced]), st.booleans())
def test_every_rule_serves_all_work_within_the_capacity(
    drawn: list[tuple[int, int, int, int, bool]], order: Order, rule: Rule, preemptive: bool
) -> None:
    applications = [
        Application(str(n), float(at), core, min(elastic, 10 - core), float(run_s), interactive=interactive)
        for n, (at, core, elastic, run_s, interactive) in enumerate(drawn)
    ]
    preemptive = preemptive and rule is rebalanced
    served = run(applications, 10, rule, order, preemptive)
    assert len(served.completions) == len(applications)
    first_s = min(each.submitted_s for each in applications)
    length_s = max(each.ended_s for each in served.completions) - first_s
    assert served.allocated_ratio <= 1.0 + 1e-9
    assert served.allocated_ratio * 10 * length_s == pytest.approx(sum(each.work for each in applications))
    for each in served.completions:
        assert each.queued_s >= 0.0
        assert each.turnaround_s >= each.application.run_s * (1.0 - 1e-9)


def test_requests_have_the_published_quantiles_and_correlations() -> None:
    drawn = requests(np.random.default_rng(1), 40_000)
    for values, published in ((drawn.cores, CORES), (drawn.memory_gib, MEMORY_GIB)):
        found = np.quantile(values, QUANTILES[1:-1])
        assert found == pytest.approx(published[1:-1], rel=0.08)
    assert np.quantile(drawn.tasks, [0.5, 0.75, 0.9, 0.95]) == pytest.approx(TASKS[3:7], rel=0.1)
    assert 0.55 < float(np.mean(drawn.tasks == 1.0)) < 0.63  # 59 % have a single task
    logs = np.log(drawn.cores), np.log(drawn.memory_gib), np.log(drawn.tasks)
    assert np.corrcoef(logs[0], logs[1])[0, 1] == pytest.approx(CORES_TO_MEMORY, abs=0.05)
    assert np.corrcoef(logs[1], logs[2])[0, 1] == pytest.approx(TASKS_TO_MEMORY, abs=0.05)


def test_generated_applications_offer_the_load() -> None:
    applications, capacity = google_2011(3, 2000, 100, 0.9)
    submitted = [each.submitted_s for each in applications]
    assert submitted == sorted(submitted)
    offered = sum(each.work for each in applications) / (capacity * submitted[-1])
    assert offered == pytest.approx(0.9, rel=0.01)
    batch = sum(not each.interactive for each in applications) / len(applications)
    assert batch == pytest.approx(BATCH_RATIO, abs=0.04)
    gaps = np.diff(submitted)
    assert float(np.std(gaps) / np.mean(gaps)) > 2.0  # bursts, and long gaps between them
    assert all(each.core + each.elastic <= capacity // 2 for each in applications)
    assert not any(math.isnan(each.run_s) or each.run_s <= 0.0 for each in applications)
    again, _ = google_2011(3, 2000, 100, 0.9)
    assert again == applications


def test_the_published_order_of_the_rules_when_the_cluster_is_full() -> None:
    found = {}
    for name, rule in (("rigid", rigid), ("malleable", malleable), ("flexible", rebalanced)):
        applications, capacity = google_2011(1, 2000, 100, 1.0, interactive=False)
        found[name] = _mean_s(run(applications, capacity, rule))
    assert found["flexible"] < found["malleable"] < found["rigid"]
    assert found["flexible"] < 0.5 * found["rigid"]
