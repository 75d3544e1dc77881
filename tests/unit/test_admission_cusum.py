"""The CUSUMs find what lies beyond a target, at about the rate of false alarms that was asked for."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.admission.detector import cusum
from perphd.admission.detector.cusum import (
    HIGHEST,
    LOWEST,
    Baseline,
    Limits,
    cleared,
    limits,
    noise,
    slack,
    step,
)
from perphd.admission.detector.significance import ALERT_MOST, ALERT_TIMES, Channel, times, weigh
from perphd.admission.settings import PolicySettings
from tools.bench.detector.run_length import run_length
from tools.bench.detector.significance import Noise, delays, false_alarms

SETTINGS = PolicySettings()
DAY = 86_400.0


def at_rest(
    k: float = 1.0, wanted: float = 1.0 / DAY, state: Baseline | None = None, ticks: int = 2
) -> Limits:
    return limits(state or Baseline(), 0.0, 0.05, k, wanted, 0.5, ticks)


def learned(
    samples: int = 1000, sd: float = 0.05, rho: float = 0.0, seed: int = 1, margin: float = 0.1
) -> Baseline:
    state = Baseline()
    for error in Noise(rho, sd, heavy=False).draw(Random(seed), samples):
        r, scale = noise(state, sd)
        at = limits(state, r, scale, slack(state, margin, r, scale), 1.0 / DAY, 0.5, 2)
        state = step(state, error - margin, at, 1.0)
    return state


@pytest.mark.parametrize(("shift_sd", "most"), [(2.0, 18), (3.0, 10)])
def test_a_shift_is_found_soon(shift_sd: float, most: int) -> None:
    found = delays(shift_sd, 25, Noise(), 7, SETTINGS)
    assert found[len(found) // 2] <= most
    assert all(math.isfinite(delay) for delay in found)


@pytest.mark.parametrize("made", [Noise(), Noise(rho=0.9)])
def test_where_nothing_is_wrong_alarms_are_about_as_rare_as_asked(made: Noise) -> None:
    assert sum(false_alarms(1, made, 3, SETTINGS)) <= 4


@pytest.mark.parametrize("k", [0.2, 0.5, 1.0, 1.5, 2.0])
@pytest.mark.parametrize("samples", [1e4, DAY, 4 * DAY])
def test_thresholds_have_the_run_length_of_the_integral_equation(k: float, samples: float) -> None:
    h = cusum.threshold(samples, k)
    clip = min(cusum.CLIP_SIGMA, h / 2.0)
    assert 0.6 < run_length(k, h, clip) / samples < 1.7


def test_the_threshold_follows_rate_and_slack() -> None:
    daily = cusum.threshold(DAY, 0.5)
    assert 9.0 < daily < 10.0
    assert cusum.threshold(10 * DAY, 0.5) > daily  # a tenth of the rate, or ten times as many chances a day
    assert cusum.threshold(DAY, 0.25) > daily
    assert cusum.threshold(DAY, 3.0) < 0.5, "two samples in a row beyond such a target are news enough"
    assert cusum.threshold(DAY, 3.0, ticks=1) > 1.0, "one is not"


def test_one_sample_is_no_evidence_however_far_off_it_is() -> None:
    for k in (0.5, 1.0, 3.0):
        at = at_rest(k)
        state = step(Baseline(n=1000, variance=0.0025, deviation=0.04), 5.0, at, 1.0)
        assert state.ratio < cusum.bar(at, ALERT_TIMES)
        assert step(state, 5.0, at, 1.0).ratio > state.ratio
    sure = at_rest(3.0, ticks=1)
    assert step(Baseline(n=1000, variance=0.0025, deviation=0.04), 5.0, sure, 1.0).ratio >= 1.0


def test_a_signal_whose_rises_come_higher_gets_a_higher_threshold_of_its_own() -> None:
    tame = Baseline(watched=DAY, rises=200.0, ended=195.0, height=18.0)
    wild = Baseline(watched=DAY, rises=200.0, ended=180.0, height=50.0)
    often = Baseline(watched=DAY, rises=900.0, ended=870.0, height=80.0)
    own = [at_rest(state=state).own for state in (tame, often, wild)]
    assert own == sorted(own)
    assert own[0] < own[2]
    assert at_rest().own == pytest.approx(1.0)


def test_rises_are_counted_once_and_those_that_are_cut_off_do_not_count_as_ended() -> None:
    at = Limits(0.0, 0.02, 0.5, 0.0, 10.0, math.inf, 1.0, 10.0, 0.5)
    state = Baseline(n=600, mean=-0.01, variance=0.0004, deviation=0.02 / 1.2533)
    for z in (3.0, 3.0, 1.0, -1.0, -3.0, -3.0):  # to 7 sigma and back
        state = step(state, 0.02 * z, at, 1.0)
    assert (state.rises, state.ended, state.peak) == (1.0, 1.0, 0.0)
    assert state.height == pytest.approx(0.7 - cusum.RISE_SHARE)
    for z in (3.0, 3.0):
        state = step(state, 0.02 * z, at, 1.0)
    state = cleared(state)
    assert (state.rises, state.ended, state.peak) == (2.0, 1.0, 0.0)
    assert cleared(state) == state


@given(
    st.floats(0, 1e6), st.floats(0, 1e4), st.floats(0, 1), st.floats(0, 1e4), st.floats(1e-7, 0.1),
    st.floats(0.1, 20.0), st.integers(1, 5), st.floats(0.5, 100.0),
)  # fmt: skip
def test_an_own_threshold_is_never_far_from_that_for_normal_noise(
    watched: float,
    rises: float,
    ended: float,
    height: float,
    wanted: float,
    k: float,
    ticks: int,
    spend: float,
) -> None:
    state = Baseline(watched=watched, rises=rises, ended=ended * rises, height=height)
    at = at_rest(k, wanted, state, ticks)
    assert LOWEST <= at.own <= HIGHEST
    assert at.small > 0.0
    assert cusum.bar(at, spend) > 0.0
    assert cusum.bar(at, spend) > at.clip or ticks == 1, "one sample alone is not enough"


def test_a_degradation_is_not_learned_away() -> None:
    state = learned()
    before = state
    for _ in range(3600):
        rho, scale = noise(state, 0.05)
        state = step(state, 0.3, limits(state, rho, scale, slack(state, 0.1, rho, scale), 1e-5, 0.5, 2), 1.0)
    assert state.ratio >= 1.0
    assert abs(state.mean - before.mean) < 0.01
    assert state.deviation == pytest.approx(before.deviation, rel=0.05)
    assert cleared(state).ratio == 0.0
    for _ in range(60):
        rho, scale = noise(state, 0.05)
        state = step(state, -0.1, limits(state, rho, scale, slack(state, 0.1, rho, scale), 1e-5, 0.5, 2), 1.0)
    assert state.ratio < 1.0, "what is over is soon forgotten"


def test_what_an_own_change_does_while_it_settles_is_not_learned() -> None:
    state = learned()
    after = step(state, 0.3, at_rest(), 1.0, learns=False)
    assert (after.n, after.mean, after.variance, after.deviation) == (
        state.n,
        state.mean,
        state.variance,
        state.deviation,
    )


@pytest.mark.parametrize(("sd", "rho"), [(0.02, 0.0), (0.05, 0.6), (0.2, 0.3), (0.3, 0.8)])
def test_the_noise_is_found_from_its_own_samples(sd: float, rho: float) -> None:
    state = learned(6000, sd, rho, margin=sd)
    found_rho, scale = noise(state, 0.05)
    assert found_rho == pytest.approx(rho, abs=0.06)
    assert scale == pytest.approx(sd * math.sqrt(1 - rho * rho), rel=0.08)
    _, shorter = noise(state, 0.05, 0.25)
    assert shorter == pytest.approx(2.0 * scale)


def test_nearer_its_target_an_application_needs_more_evidence() -> None:
    usual, near = learned(margin=0.1), learned(margin=0.03)
    k = [slack(state, 0.1, 0.0, 0.05) for state in (usual, near)]
    assert k[0] > 2.0 * k[1]
    assert slack(Baseline(n=1000, mean=0.5), 0.1, 0.0, 0.05) == pytest.approx(0.25 * 0.1 / 0.05), (
        "it is never blind"
    )


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), max_size=120), st.floats(0.1, 1.0))
def test_nothing_that_is_measured_breaks_it(residuals: list[float], part: float) -> None:
    known = (Baseline(), Baseline())
    for residual in residuals:
        seen = Channel(residual, 0.1, 0.05), Channel(math.nan, 0.4, 0.05)
        weighed = weigh(known, seen, 1.0, 1.0, spend=1.0, large_k=0.5, ticks=2, interval_s=part, part=part)
        known = weighed.work, weighed.delay
    state = known[0]
    assert math.isfinite(state.ratio)
    assert state.ratio >= 0.0
    rho, scale = noise(state, 0.05)
    assert 0.0 <= rho <= 0.95
    assert scale > 0.0
    assert known[1] == Baseline()


@given(st.floats(0.0, 1.0))
def test_what_is_spent_while_batch_comes_is_saved_at_other_times(share: float) -> None:
    spent = share * times(share, alert=True) + (1.0 - share) * times(share, alert=False)
    assert 0.55 <= spent <= 1.0 + ALERT_MOST / 10.0
    assert times(share, alert=True) <= ALERT_TIMES + 1e-6
    assert times(share, alert=True) >= times(share, alert=False)


def test_a_channel_that_uses_none_of_the_rate_leaves_it_to_the_other() -> None:
    noisy, calm = learned(2000, 0.2, margin=0.105), learned(2000, 0.05, margin=0.405)
    kept = []
    for delay in (0.405, math.nan):
        seen = Channel(0.3, 0.105, 0.05), Channel(-delay, 0.405, 0.05)
        known = (noisy, calm)
        thresholds: tuple[float, ...] = ()
        for _ in range(40):
            weighed = weigh(known, seen, 1.0, 1.0, spend=1.0, large_k=0.5, ticks=2, interval_s=1.0, part=1.0)
            known, thresholds = (weighed.work, weighed.delay), weighed.thresholds
        kept.append(thresholds[0])
    assert kept[0] == pytest.approx(kept[1])


def test_a_signal_that_noise_never_brings_beyond_its_target_leaves_its_part_to_the_other():
    wanted = 24.0 / 86400.0
    for rho in (0.0, 0.6):
        slack = [sds * math.sqrt((1.0 - rho) / (1.0 + rho)) for sds in (1.0, 2.7, 4.1)]
        assert [cusum.distance(rho, k) for k in slack] == pytest.approx([1.0, 2.7, 4.1])
        assert [cusum.uses_part(rho, k, wanted) for k in slack] == [True, rho > 0.0, False]
