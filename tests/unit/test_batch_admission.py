"""Shares of a contended host, admission by distribution and elastic jobs, against published values."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perphd.batch.admission import (
    EPSILON_HARD,
    EPSILON_SOFT,
    Reliability,
    ResourceRisk,
    WorkloadUsage,
    admission,
    conditioned,
    expected_utility,
    no_eviction,
    total_of,
    usage_law,
    with_job,
    with_prediction,
)
from perphd.batch.elastic import ElasticRequest, ElasticShares, arrived, departed
from perphd.batch.sharing import MemoryUser, actual_cpu, divided, evicted
from perphd.forecast.grid import GridDistribution, of_histogram, of_outcomes, probability_over, sum_of
from perphd.forecast.histogram import Histogram, of_values
from perphd.qos.bands import QosBand

# --- shares --------------------------------------------------------------------------------------------------


def test_water_filling_gives_the_published_shares() -> None:
    assert divided(8, (4, 2, 2), (6, 1, 5)) == pytest.approx((14 / 3, 1, 7 / 3))
    assert divided(8, (4, 4), (2, 10)) == pytest.approx((2, 6))
    assert divided(8, (0, 4), (5, 10)) == pytest.approx((0, 8))


@settings(max_examples=80, deadline=None)
@given(
    st.floats(0.5, 100),
    st.lists(st.tuples(st.floats(0.1, 10), st.floats(0, 50)), min_size=1, max_size=8),
)
def test_nobody_gets_more_than_it_needs_or_less_than_its_entitlement(
    capacity: float, tasks: list[tuple[float, float]]
) -> None:
    requests, demands = [task[0] for task in tasks], [task[1] for task in tasks]
    given_ = divided(capacity, requests, demands)
    assert sum(given_) == pytest.approx(min(capacity, sum(demands)))
    for got, request, demand in zip(given_, requests, demands, strict=True):
        assert got <= demand + 1e-9
        assert got >= min(demand, capacity * request / sum(requests)) - 1e-9


@pytest.mark.parametrize(("needed", "others", "got"), [(2, 8, 2), (8, 8, 4), (8, 2, 6), (5, 2, 5)])
def test_the_published_rule_for_a_new_task(needed: float, others: float, got: float) -> None:
    assert actual_cpu(8, 4, 4, needed, others) == got


def test_eviction_takes_copper_by_what_it_uses_beyond_its_entitlement() -> None:
    users = [
        MemoryUser("lra", QosBand.SILVER, 900, 100),
        MemoryUser("modest", QosBand.COPPER, 300, 300),
        MemoryUser("greedy", QosBand.COPPER, 250, 100),
        MemoryUser("large", QosBand.COPPER, 350, 200),
    ]
    assert evicted(users, 1800) == ()
    assert evicted(users, 1500) == ("large",)
    assert evicted(users, 1300) == ("large", "greedy")
    assert evicted(users, 0) == ("large", "greedy", "modest")


# --- admission -----------------------------------------------------------------------------------------------

TASK = {1.0: 0.5, 2.0: 0.3, 4.0: 0.2}
FIRST = {3.0: 0.5, 5.0: 0.5}
SECOND = {2.0: 0.9, 6.0: 0.1}


def _grid(outcomes: dict[float, float], capacity: float = 10.0) -> GridDistribution:
    return of_outcomes(outcomes, capacity, cells=1000)


def test_the_published_probabilities_of_eviction() -> None:
    running = sum_of([_grid(FIRST), _grid(SECOND)], 10.0, 1000)
    over = [probability_over(running, _grid(TASK), tasks) for tasks in (1, 2, 3)]
    assert over == pytest.approx([0.165, 0.415, 0.55])
    independent = sum_of([running, _grid(TASK), _grid(TASK)], 10.0, 1000).over
    assert independent == pytest.approx(0.3745)  # and not that: tasks of one job share one draw
    assert no_eviction([0.09, 0.02]) == pytest.approx(0.8918)


def test_the_published_expected_utility() -> None:
    value = expected_utility(
        40.0, {2.0: 0.5, 6.0: 0.5}, {2.0: 0.6, 7.0: 0.4}, 8.0, (4.0, 4.0), lambda t: float(t <= 12)
    )
    assert value == pytest.approx(0.5)
    assert no_eviction([0.09]) * value == pytest.approx(0.455)
    times: list[float] = []
    expected_utility(40.0, {2.0: 0.5, 6.0: 0.5}, {2.0: 0.6, 7.0: 0.4}, 8.0, (4.0, 4.0), _noting(times))
    assert times == pytest.approx([20, 20, 20 / 3, 10])


def _noting(times: list[float]) -> Callable[[float], float]:
    def utility(run_time_s: float) -> float:
        times.append(run_time_s)
        return 1.0

    return utility


def test_a_job_is_admitted_if_every_resource_is_safe_enough() -> None:
    running = sum_of([_grid(FIRST), _grid(SECOND)], 10.0, 1000)
    memory, cpu = ResourceRisk(running, _grid(TASK), EPSILON_HARD), ResourceRisk(running, _grid(TASK), 0.2)
    assert admission({"cpu": cpu}).admitted
    refused = admission({"memory": memory, "cpu": cpu})
    assert not refused.admitted
    assert refused.reason == "P(memory over) = 0.165 > 0.01"
    assert refused.over == pytest.approx({"memory": 0.165, "cpu": 0.165})
    assert not admission({"cpu": cpu}, tasks=2).admitted
    assert with_job(cpu).over == pytest.approx(0.165)
    assert 0 < EPSILON_HARD < EPSILON_SOFT


def test_a_law_is_conditioned_on_what_was_observed() -> None:
    prior = of_values(np.linspace(1, 9, 81))
    assert conditioned(WorkloadUsage(prior), 10).shares == pytest.approx(usage_law(prior, 10).shares)
    low = of_values(np.linspace(1, 2, 50))
    mixed = conditioned(WorkloadUsage(prior, low, 600), 10)
    mean = _mean(mixed)
    assert _mean(of_histogram(low, 10)) < mean < _mean(of_histogram(prior, 10)) + 0.5
    assert np.sum(mixed.shares) + mixed.over == pytest.approx(1.0)
    beyond = of_values(np.linspace(9.5, 9.8, 50))
    switched = conditioned(WorkloadUsage(prior, beyond, 600), 10)
    assert float(np.sum(switched.shares[: int(9.4 / switched.cell)])) == 0.0  # the history is outgrown
    young = conditioned(WorkloadUsage(prior, beyond, 5), 10)
    assert young.shares == pytest.approx(usage_law(prior, 10).shares)
    again = conditioned(WorkloadUsage(prior, beyond, 5, again=True), 10)
    assert _mean(again) == pytest.approx(9.8, abs=0.02)  # at least what it used before
    short = conditioned(WorkloadUsage(prior, low, 5, again=True), 10)
    assert float(np.sum(short.shares[: int(1.9 / short.cell)])) == 0.0
    assert _mean(short) > _mean(mixed)
    assert conditioned(WorkloadUsage(Histogram()), 10).shares[-1] == 1.0  # nothing is known: everything


def _mean(usage: GridDistribution) -> float:
    return float(np.dot(usage.shares, np.arange(len(usage.shares))) * usage.cell)


def test_correlated_usages_are_riskier_than_independent_ones() -> None:
    usages = [_grid({1.0: 0.8, 3.0: 0.2}) for _ in range(4)]
    free = sum(
        np.prod([0.8 if x == 1 else 0.2 for x in draw])
        for draw in product((1, 3), repeat=4)
        if sum(draw) > 10
    )
    risks = [total_of(usages).law(rho).over for rho in (0.0, 0.3, 1.0)]
    assert risks == pytest.approx([free, 0.7 * free + 0.3 * 0.2, 0.2])


def test_predicted_risk_comes_true_as_often_as_predicted() -> None:
    random = np.random.default_rng(2)
    diagram = Reliability()
    for _ in range(300):
        sizes = random.lognormal(0.0, 0.5, (5, 400))  # the histories of five workloads
        capacity = float(random.uniform(4, 10))
        usages = [of_histogram(of_values(history[:100]), capacity, 256) for history in sizes]
        happened = bool(sum(random.choice(history[100:]) for history in sizes) > capacity)
        diagram = with_prediction(diagram, sum_of(usages, capacity, 256).over, happened)
    for predicted, observed, count in diagram.rates():
        spread = 3 * np.sqrt(max(predicted * (1 - predicted), 0.01) / count)
        assert abs(predicted - observed) < spread + 0.03
    assert diagram.brier < 0.2


# --- elastic jobs --------------------------------------------------------------------------------------------


def test_a_job_as_large_as_the_host_is_served() -> None:
    shares = arrived(ElasticShares(10), ElasticRequest("whole", 10, 0))
    assert [job.name for job in shares.serving] == ["whole"]  # the printed "<" would never admit it
    with pytest.raises(ValueError, match="its core is 11 units"):
        arrived(shares, ElasticRequest("more", 11, 0))


def test_a_preempting_job_needs_elastic_components_that_are_granted() -> None:
    shares = arrived(arrived(ElasticShares(10), ElasticRequest("a", 4, 6)), ElasticRequest("b", 4, 6, 1))
    assert [(job.name, job.granted) for job in shares.serving] == [("b", 2), ("a", 0)]
    shares = arrived(shares, ElasticRequest("h", 5, 0, 9))
    assert shares.free >= 0  # the printed test, against 12 wanted units, would use 13 of 10
    assert [job.name for job in shares.preempting] == ["h"]
    shares = arrived(shares, ElasticRequest("small", 1, 0))
    after = departed(shares, "a")
    assert [(job.name, job.granted) for job in after.serving] == [("h", 0), ("b", 1)]
    alone = departed(after, "h")
    assert [(job.name, job.granted) for job in alone.serving] == [("b", 6)]  # it fills the host: small waits
    assert [job.name for job in alone.waiting] == ["small"]


def test_an_urgent_job_takes_elastic_components_and_gives_them_back() -> None:
    shares = arrived(ElasticShares(10), ElasticRequest("a", 3, 7))
    shares = arrived(shares, ElasticRequest("urgent", 4, 2, 5))
    assert [(job.name, job.granted) for job in shares.serving] == [("urgent", 2), ("a", 1)]
    assert [(job.name, job.granted) for job in departed(shares, "urgent").serving] == [("a", 7)]


JOBS = st.builds(ElasticRequest, st.just(""), st.integers(1, 10), st.integers(0, 8), st.integers(0, 3))


@settings(max_examples=80, deadline=None)
@given(st.lists(st.one_of(JOBS, st.integers(0, 20)), max_size=25))
def test_no_history_overcommits_or_takes_a_core(history: list[ElasticRequest | int]) -> None:
    shares = ElasticShares(10)
    for number, step in enumerate(history):
        before = shares
        gone = ""
        if isinstance(step, ElasticRequest):
            shares = arrived(shares, ElasticRequest(f"j{number}", step.core, step.elastic, step.priority))
        else:
            everybody = [*shares.serving, *shares.preempting, *shares.waiting]
            gone = everybody[step % len(everybody)].name if everybody else ""
            shares = departed(shares, gone)
        assert shares.free >= 0
        serving = {job.name for job in shares.serving}
        assert {job.name for job in before.serving} - {gone} <= serving  # a core is never taken
        assert all(0 <= job.granted <= job.elastic for job in shares.serving)
        if shares.waiting and not shares.serving:
            assert shares.preempting
        assert not (shares.preempting and not shares.serving)
    for job in [*shares.serving, *shares.preempting, *shares.waiting]:
        shares = departed(shares, job.name)
    assert shares == ElasticShares(10)
