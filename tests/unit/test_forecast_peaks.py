"""Usage profiles, peak predictors and their back-test, against hand-computed values."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perphd.forecast import backtest
from perphd.forecast.peaks import (
    PREDICTORS,
    HostUsage,
    Tenant,
    borg_default,
    greatest,
    matched,
    n_sigma,
    paired,
    predicted_memory,
    resource_central,
)
from perphd.forecast.usage_profile import (
    KEPT_PERIODS,
    PodSample,
    UsageProfile,
    as_record,
    effective_ratio,
    from_record,
    memory_ratio,
    merged,
    observed,
    with_memory,
)


def _host(*tenants: tuple[str, float], profile: UsageProfile) -> HostUsage:
    return HostUsage([Tenant(name, request, np.empty(0)) for name, request in tenants], np.empty(0), profile)


PROFILE = UsageProfile(
    {("a", "b"): {0: 0.5}, ("b", "c"): {0: 0.2}, ("a", "a"): {0: 0.4}, ("c", "d"): {0: 0.9}}
)


def test_the_ratio_of_two_pods_sampled_together() -> None:
    profile = observed(UsageProfile(), [PodSample("a", 4, 1), PodSample("b", 2, 2)], 0)
    assert effective_ratio(profile, "b", "a") == pytest.approx(3 / 6)
    assert effective_ratio(profile, "a", "a") == 1.0  # no two pods of a were seen together
    lower = observed(profile, [PodSample("a", 4, 0), PodSample("b", 2, 0)], 0)
    assert lower is profile
    higher = observed(profile, [PodSample("a", 4, 9, limit_cores=6), PodSample("b", 2, 2)], 0)
    assert effective_ratio(higher, "a", "b") == pytest.approx(
        8 / 6
    )  # beyond the request, clamped to the limit
    twins = observed(UsageProfile(), [PodSample("a", 2, 1), PodSample("a", 2, 0)], 0)
    assert effective_ratio(twins, "a", "a") == pytest.approx(
        0.25
    )  # the first value replaces 1, it does not compete


def test_a_ratio_is_forgotten_after_the_kept_periods() -> None:
    profile = observed(UsageProfile(), [PodSample("a", 1, 1), PodSample("b", 1, 1)], 3)
    for period in range(4, 4 + KEPT_PERIODS):
        assert effective_ratio(profile, "a", "b") == 1.0
        profile = observed(profile, [PodSample("a", 1, 0.2), PodSample("b", 1, 0.2)], period)
    assert effective_ratio(profile, "a", "b") == pytest.approx(0.2)


def test_equation_8_with_an_even_and_an_odd_number_of_tenants() -> None:
    even = _host(("a", 4), ("b", 2), ("c", 1), ("d", 3), profile=PROFILE)
    assert paired(even) == pytest.approx(0.5 * 6 + 0.9 * 4)
    odd = _host(("a", 4), ("b", 2), ("c", 5), profile=PROFILE)
    assert paired(odd) == pytest.approx(0.5 * 6 + 5)  # the newcomer counts at its full request
    assert paired(_host(("x", 4), ("y", 2), profile=PROFILE)) == 6.0  # an unseen pair is taken at 1
    assert paired(_host(profile=PROFILE)) == 0.0


def test_equation_8_can_rise_when_a_tenant_leaves_and_the_matching_does_not() -> None:
    four = _host(("c", 1), ("a", 4), ("b", 2), ("a", 4), profile=PROFILE)
    three = replace(four, tenants=four.tenants[1:])
    assert paired(four) == pytest.approx(1.0 * 5 + 0.5 * 6)
    assert paired(_host(("a", 4), ("c", 1), ("a", 4), profile=PROFILE)) == 9.0
    assert matched(four) == pytest.approx(0.2 * 3 + 0.4 * 8)
    assert matched(three) == pytest.approx(min(0.4 * 8 + 2, 0.5 * 6 + 4))


APPLICATIONS = st.sampled_from("abcd")
HOURS = st.integers(1, 12)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(APPLICATIONS, st.floats(0.5, 8)), min_size=1, max_size=9), HOURS, st.integers(0, 10**6)
)
def test_a_matching_is_at_most_equation_8_and_at_least_the_true_peak(
    pods: list[tuple[str, float]], hours: int, seed: int
) -> None:
    usage = np.random.default_rng(seed).uniform(0, 1, (hours, len(pods))) * [request for _, request in pods]
    profile = UsageProfile()
    for row in usage:
        profile = observed(profile, [PodSample(*pod, used) for pod, used in zip(pods, row, strict=True)], 0)
    host = HostUsage(
        [Tenant(*pod, usage[:, i]) for i, pod in enumerate(pods)], np.sum(usage, axis=1), profile
    )
    assert matched(host) <= paired(host) + 1e-6
    assert matched(host) >= float(np.max(host.total)) - 1e-6


def test_the_other_predictors_on_values_worked_out_by_hand() -> None:
    usage = [np.array([1.0, 2, 3, 4]), np.array([2.0, 2, 2, 2])]
    host = HostUsage(
        [Tenant("a", 10, usage[0]), Tenant("b", 5, usage[1])], usage[0] + usage[1], UsageProfile()
    )
    assert borg_default(host) == pytest.approx(13.5)
    assert resource_central(host) == pytest.approx(3.97 + 2)
    assert n_sigma(host) == pytest.approx(4.5 + 5 * 1.25**0.5)
    assert greatest(host) == pytest.approx(13.5)
    new = replace(host, tenants=[Tenant("a", 10, np.empty(0))], total=np.empty(0))
    assert {name: predict(new) for name, predict in PREDICTORS.items()} == {
        "borg": 9, "resource-central": 10, "n-sigma": 10, "max": 10, "ero": 10, "ero-matched": 10,
    }  # fmt: skip


def test_memory_is_profiled_only_where_it_is_stable() -> None:
    profile = with_memory(UsageProfile(), "n1", {"steady": [0.5, 0.502], "wild": [0.2, 0.9], "none": []})
    assert memory_ratio(profile, "steady") == 0.502
    assert (
        memory_ratio(profile, "wild") == memory_ratio(profile, "none") == memory_ratio(profile, "new") == 1.0
    )
    elsewhere = with_memory(UsageProfile(), "n2", {"steady": [0.7]})
    assert memory_ratio(merged([profile, elsewhere]), "steady") == 1.0  # steady on each node, not over both
    assert predicted_memory(profile, [("steady", 100.0), ("wild", 10.0)]) == pytest.approx(60.2)


POD_LISTS = st.lists(st.tuples(APPLICATIONS, st.floats(0.1, 8), st.floats(0, 10)), max_size=6)
RATIOS = st.dictionaries(APPLICATIONS, st.lists(st.floats(0.1, 1), max_size=3), max_size=3)


@st.composite
def profiles(draw: st.DrawFn) -> UsageProfile:
    profile = UsageProfile()
    for _ in range(draw(st.integers(0, 3))):
        profile = observed(profile, [PodSample(*pod) for pod in draw(POD_LISTS)], draw(st.integers(0, 12)))
        profile = with_memory(profile, draw(st.sampled_from(["n1", "n2"])), draw(RATIOS))
    return profile


@given(profiles(), profiles(), profiles())
def test_merging_is_commutative_associative_and_idempotent(
    a: UsageProfile, b: UsageProfile, c: UsageProfile
) -> None:
    assert merged([a, b]) == merged([b, a])
    assert merged([merged([a, b]), c]) == merged([a, merged([b, c])])
    assert merged([a, b, b, a]) == merged([merged([a, b]), a]) == merged([a, b])
    assert merged([a]) == a


@given(profiles())
def test_a_profile_that_was_written_is_read_again(profile: UsageProfile) -> None:
    assert from_record(json.loads(json.dumps(as_record(profile)))) == profile


# --- back-test --------------------------------------------------------------------------------------------------


def test_errors_and_peaks_of_a_horizon() -> None:
    found = backtest.errors(np.array([9.0, 8.0, 3.0, 5.0]), np.array([10.0, 10.0, 0.0, 4.0]))
    assert found == pytest.approx([-0.1, -0.2, 0.25])
    scored = backtest.score(found)
    assert (scored.predictions, scored.under_bound) == (3, 0.5)
    assert scored.under_ratio == pytest.approx(1 / 3)
    assert (scored.least_error, scored.greatest_error) == pytest.approx((-0.2, 0.25))
    assert list(backtest.horizon_peaks(np.array([1.0, 5, 2, 3, 0]), 3)) == [5, 5, 3]
    assert len(backtest.horizon_peaks(np.array([1.0]), 2)) == 0


def test_the_tightest_predictor_within_the_budget_is_chosen() -> None:
    random = np.random.default_rng(0)
    tight, careful = random.normal(0.02, 0.2, 500), random.uniform(0.1, 0.6, 500)
    wide = careful + 1
    scores = {name: backtest.score(e) for name, e in (("tight", tight), ("careful", careful), ("wide", wide))}
    assert backtest.chosen(scores) == "careful"
    assert backtest.chosen(scores, budget=0.5) == "tight"
    few = {name: backtest.score(e[:50]) for name, e in (("careful", careful), ("wide", wide))}
    assert backtest.chosen(few) is None  # 50 good predictions do not show a probability below 1 %
    assert backtest.chosen({}) is None
