"""Outlooks, sizes and headroom follow from a history as documented."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perphd.domain.reading import Unavailable, available
from perphd.forecast.following import LEAST_WINDOWS, LONG_GAP, NextWindow, latest_stretch
from perphd.forecast.headroom import HORIZON, LEAST_HISTORY, TenantHistory, host_outlook
from perphd.forecast.histogram import Floats
from perphd.forecast.replay import Outlook, outlook
from perphd.sizing.formats import PrintedAmounts, printed
from perphd.sizing.recommendation import Recommendation, Reservation, recommend
from perphd.sizing.shaper import Resource

NONE_SET = Reservation(Unavailable("none set"))
NOISE = np.random.default_rng(5)


def of(values: Floats, resource: Resource, reservation: Reservation = NONE_SET) -> Recommendation:
    return recommend(resource, values, Unavailable("no sample"), outlook(values), reservation)


def number(value: object) -> float:
    assert isinstance(value, float), value
    return value


# --- outlook ---------------------------------------------------------------------------------------------------


def test_a_constant_series_is_forecast_as_itself_by_whatever_acts():
    found = outlook(np.full(200, 3.0))
    assert isinstance(found.next_window, NextWindow)
    assert found.next_window.mean == pytest.approx(3.0)
    assert found.next_window.p99 == pytest.approx(3.0, rel=0.01)
    assert all(score.covered_ratio == 1.0 for score in found.scores)
    assert {score.scored for score in found.scores if score.name in ("last", "ladder")} == {190}


def test_quantiles_are_in_order_and_the_bound_covers_noise():
    values = 5 + np.random.default_rng(1).normal(0, 1, 900)
    found = outlook(values)
    ahead = found.next_window
    assert isinstance(ahead, NextWindow)
    assert ahead.mean == ahead.p50 < ahead.p90 < ahead.p99
    assert 6.5 < ahead.p99 < 9.5
    acting = next(score for score in found.scores if score.name == ahead.model)
    assert acting.scored == 300
    assert acting.covered_ratio >= 0.97
    assert acting.loss <= 1.02 * min(score.loss for score in found.scores if score.name != "ladder")


def test_a_season_is_seen_where_it_fits_the_history():
    values = np.tile([1.0, 1.0, 1.0, 1.0, 1.0, 5.0], 100)
    ahead = outlook(values[:-1]).next_window
    assert isinstance(ahead, NextWindow)
    assert ahead.mean == pytest.approx(5.0, rel=0.1)


def test_too_short_a_history_is_counted():
    assert outlook(np.ones(12)).next_window == Unavailable("12 of 60 windows: 48 more minutes of samples")
    assert outlook(np.ones(59)).next_window == Unavailable("59 of 60 windows: 1 more minute of samples")
    assert isinstance(outlook(np.ones(LEAST_WINDOWS)).next_window, NextWindow)


def test_a_long_gap_begins_a_new_stretch_and_a_short_one_does_not():
    numbers = [0, 1, 2, 2 + LONG_GAP, 3 + 2 * LONG_GAP, 4 + 2 * LONG_GAP]
    assert latest_stretch(numbers, [1, 2, 3, 4, 5, 6]).tolist() == [5, 6]
    assert latest_stretch(numbers[:4], [1, 2, 3, 4]).tolist() == [1, 2, 3, 4]
    assert latest_stretch([], []).tolist() == []


# --- sizes -----------------------------------------------------------------------------------------------------


def test_memory_covers_a_spike_and_cpu_does_not():
    values = np.ones(1440)
    values[300] = 10.0
    assert number(of(values, Resource.MEMORY).recommended) == pytest.approx(10 / 0.95)
    assert number(of(values, Resource.CPU).recommended) == pytest.approx(1 / 0.95, rel=0.01)
    assert of(values, Resource.MEMORY).reason == "the greatest use, and 5% in reserve"


def test_a_jump_recommends_at_most_twice_of_what_was_ever_used():
    noise = np.random.default_rng(4).normal(0, 0.003, 400)
    jumped = np.concatenate([0.05 + np.abs(noise), [5.7]])
    found = of(jumped, Resource.CPU)
    ahead = outlook(jumped).next_window
    assert isinstance(ahead, NextWindow)
    assert ahead.p99 > 50, "the bound knows no more than that everything is new"
    assert number(found.recommended) <= 2 * 5.7 / 0.95 + 1e-9
    assert number(found.next_window) <= 2 * 5.7 / 0.95 + 1e-9


def test_no_forecast_exceeds_what_the_host_has():
    noise = np.random.default_rng(4).normal(0, 0.003, 400)
    jumped = np.concatenate([0.05 + np.abs(noise), [5.7]])
    ahead = outlook(jumped, 8.0).next_window
    assert isinstance(ahead, NextWindow)
    assert (ahead.p99, ahead.capped) == (8.0, True)
    assert ahead.mean <= ahead.p90 <= ahead.p99
    wide = outlook(jumped, 1e6).next_window
    assert wide == outlook(jumped).next_window
    assert isinstance(wide, NextWindow)
    assert not wide.capped
    mistaken = outlook(np.full(100, 9.0), 8.0).next_window
    assert isinstance(mistaken, NextWindow)
    assert mistaken.p99 == 9.0, "a reading is believed before the host's size"


def test_the_shaper_sizes_the_next_window_and_the_rest_is_reclaimable():
    values = np.ones(1440)
    found = of(values, Resource.MEMORY, Reservation(4.0, "memory.max"))
    # mean + K1 R + K2 spread = 1 + 0.05 * 4 + a spread near 0
    assert number(found.next_window) == pytest.approx(1.2, rel=0.01)
    assert number(found.reclaimable) == pytest.approx(2.8, rel=0.01)
    assert found.confidence == "medium: less than a week of samples"
    assert of(values, Resource.MEMORY).reclaimable == Unavailable("nothing is reserved")


def test_never_below_the_least_nor_present_use():
    values = np.ones(100)
    least = of(values, Resource.MEMORY, Reservation(Unavailable("none set"), "", 8.0))
    assert (least.next_window, least.recommended) == (8.0, 8.0)
    assert least.reason == "the minimum that the configuration sets"
    burst = recommend(Resource.MEMORY, values, 6.0, outlook(values), NONE_SET)
    assert number(burst.next_window) >= 6.0
    assert number(burst.recommended) >= 6.0


def test_a_reservation_that_use_reaches_lowers_confidence():
    found = of(np.full(3000, 0.97), Resource.CPU, Reservation(1.0, "cpu.max"))
    assert found.confidence == "low: use reached the reservation, so demand may be higher"
    assert of(np.ones(100), Resource.CPU).confidence == "low: less than a day of samples"
    assert of(np.ones(10_000), Resource.CPU).confidence == "high: a week of samples"


def test_without_a_forecast_nothing_is_recommended():
    values = np.ones(12)
    found = of(values, Resource.CPU, Reservation(2.0, "cpu.max"))
    why = Unavailable("12 of 60 windows: 48 more minutes of samples")
    assert (found.next_window, found.recommended, found.reclaimable) == (why, why, why)
    none = recommend(
        Resource.CPU, np.empty(0), Unavailable("x"), Outlook(0, Unavailable("not measured")), NONE_SET
    )
    assert none.recommended == Unavailable("not measured")


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.floats(0, 1e12), min_size=60, max_size=90),
    st.one_of(st.none(), st.floats(1, 1e12)),
    st.sampled_from(Resource),
)
def test_sizes_are_bounded_by_use_and_reservation(
    values: list[float], reserved: float | None, resource: Resource
):
    reservation = NONE_SET if reserved is None else Reservation(reserved, "cpu.max")
    found = of(np.array(values), resource, reservation)
    if not available(found.recommended):
        assert isinstance(found.outlook.next_window, Unavailable)
        return
    present = values[-1]
    assert number(found.next_window) >= present
    if reserved is not None:
        assert number(found.next_window) <= max(reserved, present)
    if resource is Resource.MEMORY:
        assert found.recommended >= max(values)


# --- headroom --------------------------------------------------------------------------------------------------


def tenant(name: str, usage: Floats, request: float | None) -> TenantHistory:
    return TenantHistory(name, Unavailable("none set") if request is None else request, usage)


def test_steady_tenants_get_the_tightest_predictor():
    random = np.random.default_rng(2)
    tenants = [tenant(f"w{i}", 1 + 0.02 * random.random(1500), 4.0) for i in range(4)]
    found = host_outlook(tenants, pairs=True)
    assert [each.name for each in found.predictors] == [
        "borg", "resource-central", "n-sigma", "max", "ero", "ero-matched",
    ]  # fmt: skip
    scores = {each.name: each.horizon for each in found.predictors}
    assert scores["borg"] is not None
    assert scores["borg"].mean_error == pytest.approx(0.9 * 16 / 4.06 - 1, abs=0.05)
    tightest = min(
        (score.mean_error, name) for name, score in scores.items() if score and score.under_bound <= 0.01
    )
    assert found.picked == tightest[1]
    assert 4.0 < number(found.peak) < 4.3


def test_the_pairs_are_for_cpu():
    tenants = [tenant("a", np.ones(300), 2.0)]
    assert {each.name for each in host_outlook(tenants, pairs=False).predictors} == {
        "borg", "resource-central", "n-sigma", "max",
    }  # fmt: skip


def test_without_reservations_only_use_predicts():
    tenants = [tenant("a", np.ones(1500), 2.0), tenant("b", np.ones(1500), None)]
    found = host_outlook(tenants, pairs=True)
    usable = {each.name for each in found.predictors if available(each.peak)}
    assert usable == {"resource-central", "n-sigma"}
    borg = found.predictors[0]
    assert borg.peak == Unavailable("needs a reservation for every workload; without one: b")
    assert found.picked in usable


def test_reservations_stand_where_the_past_refutes_every_predictor():
    usage = np.ones(1500)
    usage[400::150] = 20.0  # outlives every percentile and deviation, and the reservation
    found = host_outlook([tenant("a", usage, 2.0)], pairs=True)
    assert found.picked is None
    assert found.peak == 2.0
    assert found.reason.endswith("using the sum of the reservations")
    alone = host_outlook([tenant("a", usage, None)], pairs=True)
    assert isinstance(alone.peak, Unavailable)


def test_too_short_a_host_history():
    least = LEAST_HISTORY + HORIZON + 1
    short = host_outlook([tenant("a", np.ones(least - 1), 1.0)], pairs=True)
    assert short.peak == Unavailable(f"{least - 1} of {least} windows")
    assert isinstance(host_outlook([], pairs=True).peak, Unavailable)
    assert available(host_outlook([tenant("a", np.ones(least), 1.0)], pairs=True).peak)


def test_a_workload_that_left_no_longer_counts():
    gone = np.ones(1500)
    gone[700:] = np.nan
    found = host_outlook([tenant("stays", np.ones(1500), 1.0), tenant("gone", gone, 1.0)], pairs=True)
    peaks = {each.name: each.peak for each in found.predictors}
    assert peaks["borg"] == pytest.approx(0.9)
    assert peaks["resource-central"] == pytest.approx(1.0)


# --- formats ---------------------------------------------------------------------------------------------------

DB = PrintedAmounts("db", "/system.slice/mariadb.service", 1.453, 1.5 * (1 << 30), ("cpu: confidence high",))
ETL = PrintedAmounts("e\ntl", "/batch", Unavailable("12 of 60 windows"), 100.0)


def test_systemd():
    assert printed("systemd", [DB, ETL]) == (
        "# db: /etc/systemd/system/mariadb.service.d/50-size.conf\n"
        "# cpu: confidence high\n"
        "[Service]\nCPUQuota=146%\nMemoryLow=1536M\nMemoryHigh=1613M\n\n"
        "# e?tl: /etc/systemd/system/UNIT.service.d/50-size.conf\n"
        "[Service]\n# CPUQuota: 12 of 60 windows\nMemoryLow=1M\nMemoryHigh=1M"
    )
    assert "[Slice]" in printed("systemd", [PrintedAmounts("x", "/a.slice/a-b.slice", 1.0, 1.0)])


def test_kubernetes():
    text = printed("kubernetes", [DB, ETL])
    first, second = text.split("\n---\n")
    assert first.endswith("          requests:\n            cpu: 1453m\n            memory: 1536Mi")
    assert "            # cpu: 12 of 60 windows" in second


def test_yarn():
    assert printed("yarn", [DB]).splitlines()[-2:] == ["memory-mb=1536", "vcores=2"]
