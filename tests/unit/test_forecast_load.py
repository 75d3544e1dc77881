"""Forecasts of load: a season is found where there is one, nothing is made up where there is none."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perphd.control.tagged import decode_tagged, encode_tagged
from perphd.forecast import load as forecast
from perphd.forecast.load import BIN_S, LoadForecast, expect, observe, season_bins


def fed(load: list[float], seconds: float = BIN_S) -> LoadForecast:
    state = LoadForecast()
    for index, value in enumerate(load):
        state = observe(state, value, index * seconds)
    return state


def wave(n: int, period: int, noise: float = 0.03, seed: int = 1) -> list[float]:
    rng = random.Random(seed)
    return [
        1000.0 * (1.5 + math.sin(2 * math.pi * i / period)) * math.exp(rng.gauss(0.0, noise))
        for i in range(n)
    ]


@pytest.mark.parametrize("period", [18, 60, 200])
def test_a_season_is_found_and_followed(period: int) -> None:
    n = 4 * period + period // 4
    state = fed(wave(n, period))
    assert abs(state.season_bins - period) <= max(2, period // 20)
    truth = wave(n + 5, period, noise=0.0)
    found = expect(state, 5 * BIN_S)
    assert found is not None
    assert found.load_per_s == pytest.approx(max(truth[n - 1 : n + 5]), rel=0.25)
    assert found.season_s == state.season_bins * BIN_S


def test_noise_and_a_steady_load_have_no_season() -> None:
    rng = random.Random(3)
    hits = sum(season_bins(tuple(rng.gauss(0.0, 0.2) for _ in range(400))) > 0 for _ in range(20))
    assert hits == 0
    assert season_bins((7.0,) * 400) == 0
    assert season_bins(tuple(0.01 * i for i in range(300))) == 0  # a trend is no season


def test_a_rising_load_is_expected_to_rise_further_and_a_steady_one_to_stay() -> None:
    rising = fed([100.0 * 1.03**i for i in range(40)])
    found = expect(rising, 30.0)
    assert found is not None
    assert found.load_per_s > math.exp(rising.bins[-1])
    steady = expect(fed([100.0] * 40), 60.0)
    assert steady is not None
    assert steady.load_per_s == pytest.approx(100.0, rel=0.01)
    assert steady.error_factor < 1.2


def test_a_gap_begins_anew_and_little_says_nothing() -> None:
    state = fed([100.0] * 40)
    assert expect(observe(state, 500.0, 40 * BIN_S + 1000.0), 30.0) is None
    assert expect(fed([100.0] * 4), 30.0) is None


@settings(max_examples=30)
@given(st.lists(st.floats(-1e3, 1e9), max_size=80), st.floats(0.5, 12.0))
def test_whatever_comes_a_forecast_is_a_number(load: list[float], seconds: float) -> None:
    found = expect(fed(load, seconds), 60.0)
    if found is not None:
        assert math.isfinite(found.load_per_s)
        assert found.load_per_s > 0
        assert found.error_factor >= 1.0
    assert len(fed(load, seconds).bins) <= forecast.KEPT_BINS


def test_a_recording_of_an_earlier_version_finds_its_classes() -> None:
    state = fed([100.0] * 40)
    recorded = encode_tagged(state)
    recorded["type"] = "perphd.admission.forecast:Forecast"
    assert decode_tagged(recorded) == state
