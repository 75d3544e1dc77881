"""The CUSUM finds lasting shifts in noise of applications, at about the rate of false alarms that was asked for."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.admission.cusum import LEAST_SAMPLES, Baseline, cleared, step, threshold
from perphd.admission.settings import PolicySettings
from tools.bench.detector.significance import Noise, delays, false_alarms

SETTINGS = PolicySettings()


@pytest.mark.parametrize(("shift_sd", "most"), [(2.0, 18), (3.0, 10)])
def test_a_shift_is_found_soon(shift_sd: float, most: int) -> None:
    found = delays(shift_sd, 25, Noise(), 7, SETTINGS)
    assert found[len(found) // 2] <= most
    assert all(math.isfinite(delay) for delay in found)


@pytest.mark.parametrize("noise", [Noise(), Noise(rho=0.0, heavy=False), Noise(rho=0.9)])
def test_where_nothing_is_wrong_alarms_are_about_as_rare_as_asked(noise: Noise) -> None:
    assert false_alarms(1, noise, 3, SETTINGS) <= 3


def test_the_threshold_follows_rate_and_period() -> None:
    daily = threshold(1.0, 1.0, 0.5)
    assert 10.0 < daily < 13.0
    assert threshold(0.1, 1.0, 0.5) > daily
    assert threshold(1.0, 0.1, 0.5) > daily  # ten times as many chances a day
    assert threshold(1.0, 1.0, 0.25) > daily
    assert threshold(1e9, 60.0, 0.5) >= 1.0


def test_a_degradation_is_not_learned_away() -> None:
    state = Baseline()
    for i in range(200):
        state = step(state, 0.02 * (-1) ** i, 0.5, 11.6)
    before = state.mean
    for _ in range(500):
        state = step(state, 0.5, 0.5, 11.6)
    assert state.evidence > 11.6
    assert abs(state.mean - before) < 0.05
    assert cleared(state).evidence == 0.0


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), max_size=120))
def test_nothing_that_is_measured_breaks_it(residuals: list[float]) -> None:
    state = Baseline()
    for residual in residuals:
        state = step(state, residual, 0.5, 11.6)
    assert math.isfinite(state.evidence)
    assert state.evidence >= 0.0
    assert 0.0 <= state.rho <= 0.95
    assert math.isfinite(state.scale)
    if sum(math.isfinite(r) for r in residuals) < LEAST_SAMPLES:
        assert state.evidence == 0.0


def test_what_is_over_is_soon_forgotten() -> None:
    state = Baseline()
    for i in range(200):
        state = step(state, 0.02 * (-1) ** i, 0.5, 11.6)
    for _ in range(3600):
        state = step(state, 0.5, 0.5, 11.6)
    assert state.evidence <= 2 * 11.6
    for _ in range(60):
        state = step(state, 0.0, 0.5, 11.6)
    assert state.evidence < 11.6
