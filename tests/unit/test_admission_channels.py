"""Slowdown told from a program's own phases: the law of contrasts, onsets of neighbours, blame and acquittal."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from perphd.admission.detector import channels, phases
from perphd.admission.detector.channels import CPI, NOBODY, WAITS, Activity, Channels, Neighbours, Slowdown
from perphd.admission.detector.miss_cost import MOST_CYCLES, PRIOR_CYCLES, MissCost
from perphd.admission.detector.phases import HORIZONS, Law, Onset, Series
from perphd.admission.settings import PolicySettings
from perphd.control.tagged import decode_tagged, encode_tagged
from perphd.domain.sample import Quality, Sample

SETTINGS = PolicySettings()
TOLERANCES = (10.0, 50.0)
Floats = NDArray[np.float64]


def sample(
    at_s: float, cpi: float, mpki: float = 2.0, waits: float = 0.05, interval_s: float = 1.0
) -> Sample:
    use = 4.0
    return Sample(
        "db", at_s, interval_s, cpu_usage_cores=use, run_delay_cores=waits * use, mips=use * 2500.0 / cpi, cpi=cpi,
        llc_mpki=mpki,
    )  # fmt: skip


def beside(cores: float) -> Neighbours:
    return replace(NOBODY, cpu_cores=cores)


def level_phases(rng: np.random.Generator, n: int, cov: float) -> Floats:
    """Log CPI in levels of whole minutes."""
    sd, y = math.sqrt(math.log(1.0 + cov * cov)), np.empty(n)
    at = 0
    while at < n:
        length = 30 + int(rng.exponential(150.0))
        y[at : at + length] = rng.normal(0.0, sd)
        at += length
    return y + rng.normal(0.0, 0.02, n)


def correlated(rng: np.random.Generator, n: int, cov: float, rho: float = 0.74) -> Floats:
    """Log CPI as AR(1)."""
    sd, y = math.sqrt(math.log(1.0 + cov * cov)), np.empty(n)
    value = 0.0
    for at, step in enumerate(rng.normal(0.0, sd * math.sqrt(1.0 - rho * rho), n)):
        value = rho * value + step
        y[at] = value
    return y


def play(
    logs: Iterable[float],
    cores: Iterable[float],
    mpki: Iterable[float] | None = None,
    state: Channels | None = None,
) -> tuple[Channels, list[tuple[int, Slowdown]]]:
    """The state at the end, and what neighbours were blamed for, by sample."""
    state, blamed = state or Channels(), []
    misses = iter(mpki) if mpki is not None else None
    for at, (log, use) in enumerate(zip(logs, cores, strict=True)):
        seen = sample(at + 1.0, math.exp(log), next(misses) if misses is not None else 2.0)
        state, slow = channels.step(state, seen, beside(use), SETTINGS, TOLERANCES, crowded=False)
        if slow is not None:
            blamed.append((at, slow))
    return state, blamed


@pytest.mark.parametrize(("ratio", "within"), [(1.15, 30), (1.45, 10), (2.0, 5)])
@pytest.mark.parametrize("sd", [0.02, 0.05])
def test_slower_instructions_beside_new_neighbours_are_found_soon(
    ratio: float, within: int, sd: float
) -> None:
    rng, n = np.random.default_rng(3), 90
    logs = rng.normal(0.0, sd, n + 40)
    logs[n:] += math.log(ratio)
    _, blamed = play(logs, [0.1] * n + [6.0] * 40)
    assert blamed
    assert n <= blamed[0][0] < n + within
    assert blamed[-1][1].ratio == pytest.approx(ratio, rel=0.15)
    assert blamed[-1][1].usual_cpi == pytest.approx(1.0, rel=0.1)


def test_the_same_without_neighbours_accuses_nobody() -> None:
    logs = np.random.default_rng(3).normal(0.0, 0.02, 400)
    logs[200:] += math.log(2.0)
    for cores in (0.0, 6.0):
        assert play(logs, [cores] * 400)[1] == []


@pytest.mark.parametrize("kind", [level_phases, correlated])
@pytest.mark.parametrize("cov", [0.19, 0.4])
def test_phases_beside_harmless_neighbours_are_not_blamed_on_them(kind: object, cov: float) -> None:
    rng, n = np.random.default_rng(11), 6000
    assert callable(kind)
    cores = np.where((np.arange(n) // 300) % 2 == 1, 6.0, 0.1)
    _, blamed = play(kind(rng, n, cov), cores)
    episodes = sum(1 for k, (at, _) in enumerate(blamed) if k == 0 or blamed[k - 1][0] != at - 1)
    assert episodes <= 1, "ten onsets, a quarter of a false alarm a day"


def test_a_second_witness_finds_what_phases_hide() -> None:
    """With a CoV of .19 a growth by 15 % is a phase like others; with twelve times the misses it is not."""
    found = {}
    for more in (1.0, 12.0):
        hits = 0
        for seed in range(8):
            rng, n = np.random.default_rng(seed), 400
            logs = correlated(rng, n + 30, 0.19)
            logs[n:] += math.log(1.15)
            mpki = 2.0 * np.exp(rng.normal(0.0, 0.1, n + 30))
            mpki[n:] *= more
            _, blamed = play(logs, [0.1] * n + [6.0] * 30, mpki)
            hits += bool(blamed) and n <= blamed[0][0]
        found[more] = hits
    assert found[12.0] >= 6
    assert found[1.0] <= 4


def test_neighbours_that_become_quiet_without_relief_are_acquitted() -> None:
    rng, n = np.random.default_rng(5), 120
    logs = rng.normal(0.0, 0.02, n + 60)
    logs[n:] += math.log(1.5)  # a phase that happens to begin when batch comes, and goes on when it is gone
    cores = [0.1] * n + [6.0] * 20 + [0.1] * 40
    state, blamed = play(logs, cores)
    assert blamed[0][0] >= n
    assert blamed[-1][0] <= n + 20 + channels.RELIEF_SAMPLES + 1
    assert state.blame is None
    assert state.series[CPI].laws[0].chance(math.log(1.5), 2) > 1e-3, (
        "it has learned that it does so by itself"
    )


def test_a_phase_that_began_with_the_neighbours_is_dropped_when_it_ends() -> None:
    rng, n = np.random.default_rng(5), 300
    logs = correlated(rng, n + 60, 0.19)
    logs[n - 20 : n + 2] = 0.0
    logs[n + 2 : n + 6] += 0.8
    state, blamed = play(logs, [0.1] * n + [6.0] * 60)
    assert state.blame is None
    assert len(blamed) <= 30


def test_harm_that_goes_with_the_neighbours_is_over_and_not_learned() -> None:
    rng, n = np.random.default_rng(5), 120
    logs = rng.normal(0.0, 0.02, n + 60)
    logs[n : n + 20] += math.log(1.5)
    state, blamed = play(logs, [0.1] * n + [6.0] * 20 + [0.1] * 40)
    assert blamed
    assert state.blame is None
    assert state.series[CPI].laws[0].chance(math.log(1.5), 2) < 1e-6
    assert state.series[CPI].level == pytest.approx(0.0, abs=0.1)


def test_waiting_is_a_channel_of_its_own() -> None:
    state, slow, n = Channels(), None, 100
    for at in range(n + 6):
        harmed = at >= n
        seen = replace(sample(at + 1.0, 1.0 + 0.01 * (at % 3)), io_some_pct=95.0 if harmed else 5.0)
        state, slow = channels.step(
            state,
            seen,
            replace(NOBODY, disk_bytes_per_s=5e8 if harmed else 1e5),
            SETTINGS,
            TOLERANCES,
            crowded=False,
        )
    assert slow is not None
    assert slow.by == channels.NAMES[WAITS]
    assert slow.score < 1.0
    assert slow.ratio > 1.5


def test_samples_that_come_faster_are_averaged_over_the_same_time() -> None:
    rng = np.random.default_rng(2)
    logs = rng.normal(0.0, 0.02, 130)
    logs[100:] += math.log(1.4)
    slow_state, slow = play(logs, [0.1] * 100 + [6.0] * 30)
    state, found = Channels(), None
    for at in range(4 * 130):
        seen = sample(1.0 + at / 4.0, math.exp(logs[at // 4]), interval_s=0.25)
        cores = beside(0.1 if at < 400 else 6.0)
        state, said = channels.step(state, seen, cores, SETTINGS, TOLERANCES, crowded=False)
        found = found if found is not None or said is None else at
    assert found is not None
    assert abs(found / 4.0 - slow[0][0]) <= 2.0
    assert state.series[CPI].n == slow_state.series[CPI].n


def test_unfit_samples_teach_nothing() -> None:
    state, _ = play([0.0] * 50, [0.1] * 50)
    for flag in (Quality.FIRST, Quality.MULTIPLEXED, Quality.RESTARTED):
        seen = replace(sample(51.0, 9.0), quality=(flag,))
        assert channels.step(state, seen, beside(6.0), SETTINGS, TOLERANCES, crowded=False)[0] == state


def test_neighbours_that_come_often_must_do_more_to_be_accused() -> None:
    fresh = channels.accepted_chance(Channels(), SETTINGS)
    busy = channels.accepted_chance(Channels(onsets=1000.0, days=1.0), SETTINGS)
    assert busy < fresh / 20.0
    expected = busy * channels.TESTS * 1000.0
    assert expected <= channels.SHARE * SETTINGS.false_alarms_per_day * 1.5


def test_the_state_can_be_recorded_and_is_bounded() -> None:
    rng = np.random.default_rng(1)
    state, _ = play(rng.normal(0.0, 0.1, 3000), [0.1] * 3000)
    assert repr(decode_tagged(encode_tagged(state))) == repr(state)  # NaN is not equal to itself
    assert all(len(each.recent) <= phases.KEPT for each in state.series)
    again, _ = play(rng.normal(0.0, 0.1, 500), [0.1] * 500, state=state)
    assert len(repr(again)) < 1.1 * len(repr(state))


@given(st.lists(st.floats(0.0, 100.0), min_size=2, max_size=40))
def test_activity_rises_and_falls_by_turns_of_its_own_size(values: list[float]) -> None:
    activity, turns = Activity(), []
    for value in values:
        activity, turn = activity.then(value, 0.4)
        turns.append(turn)
        assert math.isfinite(activity.level)
        assert activity.step >= 0.0
    assert turns[0] == 0
    if max(values) - min(values) < 0.4:
        assert not any(turns)


@given(
    st.floats(0.0, 3.0), st.floats(0.0, 3.0), st.floats(0.001, 1.0), st.floats(0.0, 1.0), st.floats(0.0, 4.0)
)
def test_a_greater_contrast_is_less_likely_a_phase(
    one: float, other: float, deviation: float, share: float, square: float
) -> None:
    law = Law(n=500, deviation=deviation, share=share, square=square)
    small, large = sorted((one, other))
    for horizon in HORIZONS:
        assert law.chance(small, horizon) >= law.chance(large, horizon) >= 0.0


def test_a_level_that_stays_is_expected_to_stay_and_noise_is_not() -> None:
    rng = np.random.default_rng(4)
    series = {"stays": Series(), "noise": Series()}
    for stays, noise in zip(level_phases(rng, 3000, 0.3), rng.normal(0.0, 0.3, 3000), strict=True):
        series["stays"] = series["stays"].step(stays, calm=True, learn=True)
        series["noise"] = series["noise"].step(noise, calm=True, learn=True)
    began = Onset(0.0, 0.5)
    assert series["stays"].expected(began, 2) > 0.4
    assert series["noise"].expected(began, 2) < 0.2
    # What phases are is in the tail of the first, and in the spread of the second.
    assert series["stays"].laws[0].sd(2) < 0.06
    assert 1e-4 < series["stays"].chance(0.4, 2) < 0.05
    assert series["noise"].laws[0].sd(2) == pytest.approx(0.3 / math.sqrt(2.0), rel=0.2)


@pytest.mark.parametrize("cycles", [8.0, 35.0, 150.0])
def test_what_a_miss_costs_is_learned_from_the_programs_own_phases(cycles: float) -> None:
    rng, cost = np.random.default_rng(6), MissCost()
    assert cost.band[0] == PRIOR_CYCLES
    for mpki in 4.0 * np.exp(correlated(rng, 600, 0.4)):
        cost = cost.step((0.8 + cycles * mpki / 1000.0) * math.exp(rng.normal(0.0, 0.02)), mpki)
    mean, sd = cost.band
    assert mean == pytest.approx(cycles, abs=max(3.0 * sd, 4.0))
    assert sd < 20.0


def test_misses_that_do_not_move_leave_the_prior_wide() -> None:
    rng, cost = np.random.default_rng(6), MissCost()
    for _ in range(600):
        cost = cost.step(math.exp(rng.normal(0.0, 0.05)), 2.0 * math.exp(rng.normal(0.0, 0.01)))
    mean, sd = cost.band
    assert 0.0 <= mean <= MOST_CYCLES
    assert sd > 40.0
