"""The CUSUM finds lasting shifts in noise of applications, at about the rate of false alarms that was asked for."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.admission.cusum import (
    HIGHEST,
    LEAST_SAMPLES,
    LOWEST,
    Baseline,
    cleared,
    has_moved,
    own_threshold,
    step,
    threshold,
)
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
    assert sum(false_alarms(1, noise, 3, SETTINGS)) <= 3


def test_a_signal_whose_rises_come_higher_gets_a_higher_threshold_of_its_own() -> None:
    h = threshold(1.0, 1.0, 0.5)
    fresh = own_threshold(Baseline(), h, 1.0, 1.0, 0.5)
    assert fresh == pytest.approx(h)
    tame = Baseline(watched=86400.0, rises=300.0, ended=290.0, height=240.0)
    wild = Baseline(watched=86400.0, rises=300.0, ended=280.0, height=480.0)
    often = Baseline(watched=86400.0, rises=900.0, ended=870.0, height=720.0)
    own = [own_threshold(b, h, 1.0, 1.0, 0.5) for b in (tame, often, wild)]
    assert own == sorted(own)
    assert own[0] < h < own[2]
    assert own_threshold(wild, h, 24.0, 1.0, 0.5) < own[2], "more alarms are accepted"


def test_rises_are_counted_once_and_those_that_are_cut_off_do_not_count_as_ended() -> None:
    h, state = 10.0, Baseline(n=600, variance=1.0, deviation=0.02 / 1.2533)
    for size in (0.0, 0.06, 0.06, 0.06, *[-0.06] * 8):  # 3 sigma each: to 7.5 and back
        state = step(state, size, 0.5, h)
    assert (state.rises, state.ended, state.peak) == (1.0, 1.0, 0.0)
    assert state.height == pytest.approx(7.5 - 3.7, abs=0.3)
    for size in (0.06, 0.06):
        state = step(state, size, 0.5, h)
    state = cleared(state, h)
    assert (state.rises, state.ended, state.peak) == (2.0, 1.0, 0.0)
    assert cleared(state, h) == state


def test_what_wanders_is_not_called_a_shift_over_and_over() -> None:
    """Noise whose scale wanders alarms a threshold for steady noise many times a day; less each day that it is seen."""
    random = Random(5)
    wander, h, days = 0.0, threshold(1.0, 1.0, 0.5), 2
    fixed, own = [0] * days, [0] * days
    one = other = Baseline()
    for at, residual in enumerate(Noise().draw(random, days * 43_200)):
        wander = 0.999 * wander + math.sqrt(1 - 0.999**2) * 0.4 * random.gauss(0.0, 1.0)
        one, other = (step(base, residual * math.exp(wander), 0.5, h) for base in (one, other))
        if one.evidence >= h:
            fixed[at // 43_200] += 1
            one = cleared(one)
        if has_moved(other, h, 1.0, 1.0, 0.5):
            own[at // 43_200] += 1
            other = cleared(other, h)
    assert own[-1] <= 0.6 * fixed[-1]
    assert own_threshold(other, h, 1.0, 1.0, 0.5) > 1.1 * h


@given(
    st.floats(0, 1e6), st.floats(0, 1e4), st.floats(0, 1), st.floats(0, 1e5), st.floats(0.01, 1000),
    st.floats(0.05, 60), st.floats(0.1, 5),
)  # fmt: skip
def test_an_own_threshold_is_never_far_from_that_for_unknown_noise(
    watched: float, rises: float, ended: float, height: float, rate: float, period_s: float, k: float
) -> None:
    h = threshold(rate, period_s, k)
    state = Baseline(watched=watched, rises=rises, ended=ended * rises, height=height)
    assert LOWEST * h <= own_threshold(state, h, rate, period_s, k) <= HIGHEST * h


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
