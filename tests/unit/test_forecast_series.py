"""Series forecasters and their ladder: against brute force, reference libraries and known series."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import Matern, WhiteKernel
from statsmodels.tsa.arima.model import ARIMA
from statsmodels.tsa.holtwinters import SimpleExpSmoothing

from perphd.forecast import ladder
from perphd.forecast.arima import Arima, best_model, fit_order
from perphd.forecast.calibration import Calibration, pinball, with_residual
from perphd.forecast.gaussian_process import GaussianProcess, conditioned
from perphd.forecast.series import SMOOTHING_GRID, Forecaster, LastValue, Seasonal, SeriesForecast, Smoothing

MODELS: list[Forecaster] = list(ladder.MODELS)


def _arma(n: int, phi: list[float], theta: list[float], seed: int) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(size=n + 50)
    y = np.zeros(n + 50)
    for t in range(3, n + 50):
        y[t] = (
            2.0
            + sum(c * y[t - i] for i, c in enumerate(phi, 1))
            + noise[t]
            + sum(c * noise[t - j] for j, c in enumerate(theta, 1))
        )
    return y[50:]


# --- ARIMA ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("phi", "theta", "order"),
    [
        ([0.6], [0.5], (1, 0, 1)),
        ([0.5, 0.3], [], (2, 0, 0)),
        ([], [0.8, 0.3], (0, 0, 2)),
        ([0.4, -0.2, 0.3], [], (3, 0, 0)),
    ],
)
def test_coefficients_are_those_of_statsmodels(
    phi: list[float], theta: list[float], order: tuple[int, int, int]
) -> None:
    y = _arma(1000, phi, theta, 1)
    model = fit_order(y, *order)
    assert model is not None
    reference = ARIMA(y, order=order).fit()
    exact = dict(zip(reference.param_names, reference.params, strict=True))
    assert model.phi == pytest.approx([exact[f"ar.L{i}"] for i in range(1, len(phi) + 1)], abs=0.02)
    assert model.theta == pytest.approx([exact[f"ma.L{i}"] for i in range(1, len(theta) + 1)], abs=0.02)
    assert model.variance == pytest.approx(exact["sigma2"], rel=0.02)
    fitted = (
        *map(float, order[:2]),
        float(order[2]),
        model.constant,
        model.variance,
        *model.phi,
        *model.theta,
    )
    found = Arima(history=1000).predict(fitted, y)
    assert found.mean == pytest.approx(float(reference.forecast(1)[0]), abs=0.05)


def test_integrated_moving_average_is_that_of_statsmodels() -> None:
    noise = np.random.default_rng(5).normal(size=1200)
    y = 50 + np.cumsum(noise - 0.6 * np.concatenate(([0.0], noise[:-1])))
    model = fit_order(y, 0, 1, 1)
    assert model is not None
    reference = ARIMA(y, order=(0, 1, 1)).fit()
    assert model.theta == pytest.approx([reference.params[0]], abs=0.02)


def test_criteria_rank_orders_as_statsmodels_does() -> None:
    y = _arma(800, [0.6], [0.5], 2)
    orders = [(1, 0, 0), (0, 0, 1), (1, 0, 1), (2, 0, 0)]
    own = [fit_order(y, *order) for order in orders]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reference = [ARIMA(y, order=order).fit().aic for order in orders]
    assert all(model is not None for model in own)
    criteria = [model.aic for model in own if model is not None]
    assert list(np.argsort(criteria)) == list(np.argsort(reference))
    gaps = np.array(criteria) - criteria[2]
    assert gaps == pytest.approx(np.array(reference) - reference[2], abs=4)


def test_the_order_is_found_and_a_random_walk_is_differenced() -> None:
    autoregressive = best_model(_arma(1000, [0.5, 0.3], [], 3))
    assert autoregressive is not None
    assert autoregressive.order[0] >= 2
    assert sum(autoregressive.phi) == pytest.approx(0.8, abs=0.1)
    walk = best_model(np.cumsum(np.random.default_rng(4).normal(size=600)))
    assert walk is not None
    assert walk.d == 1
    gain = (1 + sum(walk.theta)) / (1 - sum(walk.phi))
    assert gain == pytest.approx(1.0, abs=0.15)  # a shock stays whole


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=120))
def test_every_model_survives_every_series(values: list[float]) -> None:
    series = np.array(values)
    for model in (*MODELS, GaussianProcess(10, 10)):
        if len(series) < model.least:
            continue
        fitted = model.fit(series)
        if fitted is not None:
            found = model.predict(fitted, series)
            assert math.isfinite(found.mean)
            assert found.spread >= 0


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_a_constant_series_has_no_spread(model: Forecaster) -> None:
    constant = np.full(200, 0.3)
    fitted = model.fit(constant)
    if model.name in ("arima", "seasonal"):
        assert fitted is None  # there is nothing to learn: other models say all that can be said
    else:
        assert fitted is not None
        found = model.predict(fitted, constant)
        assert found.mean == pytest.approx(0.3)
        assert found.spread == pytest.approx(0.0, abs=1e-12)


# --- Gaussian process -------------------------------------------------------------------------------------------


def test_the_posterior_is_that_of_the_textbook_on_five_points() -> None:
    random = np.random.default_rng(1)
    patterns, targets, new = random.normal(size=(5, 3)), random.normal(size=5), random.normal(size=3)
    length, noise, signal = 1.7, 0.05, 2.5

    def kernel(a: np.ndarray, b: np.ndarray) -> float:
        return float(signal * math.exp(-math.dist(a, b) / length))

    gram = np.array([[kernel(a, b) for b in patterns] for a in patterns]) + signal * noise * np.eye(5)
    cross = np.array([kernel(a, new) for a in patterns])
    inverse = np.linalg.inv(gram)
    mean, variance = conditioned(np.vstack((patterns, new)), targets, length, noise, signal)
    assert mean == pytest.approx(float(cross @ inverse @ targets))
    assert variance == pytest.approx(float(signal - cross @ inverse @ cross + signal * noise))


def test_the_posterior_is_that_of_scikit_learn() -> None:
    random = np.random.default_rng(2)
    patterns, targets, new = random.normal(size=(30, 4)), random.normal(size=30), random.normal(size=4)
    kernel = Matern(length_scale=2.0, nu=0.5) + WhiteKernel(0.1)
    reference = GaussianProcessRegressor(kernel, optimizer=None).fit(patterns, targets)
    mean, deviation = reference.predict(new[None, :], return_std=True)
    found, variance = conditioned(np.vstack((patterns, new)), targets, 2.0, 0.1, 1.0)
    assert (found, math.sqrt(variance)) == pytest.approx((float(mean[0]), float(deviation[0])))


@given(st.lists(st.tuples(st.integers(45, 90), st.integers(0, 5)), min_size=1, max_size=40))
@settings(max_examples=20, deadline=None)
def test_many_processes_together_forecast_what_each_forecasts_alone(chosen: list[tuple[int, int]]) -> None:
    model = GaussianProcess()
    series = []
    for length, seed in chosen:
        random = np.random.default_rng(seed)
        series.append(random.normal(10.0, 1.0, length) if seed else np.full(length, 3.0))  # 0: constant
    fitted = [model.fit(values) for values in series]
    together = model.predict_all([each for each in fitted if each is not None], series)
    for each, values, found in zip(fitted, series, together, strict=True):
        assert each is not None
        alone = model.predict(each, values)
        assert (found.mean, found.spread) == pytest.approx((alone.mean, alone.spread), rel=1e-9, abs=1e-12)


def test_a_longer_history_than_the_period_is_what_a_process_needs() -> None:
    period = np.tile(np.linspace(0.2, 0.8, 9), 40) + np.random.default_rng(3).normal(0, 0.01, 360)
    wide: list[float] = []
    narrow: list[float] = []
    for end in range(200, 240):
        for model, into in ((GaussianProcess(), wide), (GaussianProcess(10, 10), narrow)):
            fitted = model.fit(period[:end])
            assert fitted is not None
            into.append(abs(model.predict(fitted, period[:end]).mean - period[end]))
    assert np.mean(wide) < np.mean(narrow) / 2


# --- smoothing and seasons --------------------------------------------------------------------------------------


def test_smoothing_is_that_of_statsmodels() -> None:
    y = np.cumsum(np.random.default_rng(6).normal(size=31)) + 20
    own = Smoothing(30).predict((0.35,), y).mean
    reference = SimpleExpSmoothing(y, initialization_method="known", initial_level=float(y[0]))
    assert own == pytest.approx(float(reference.fit(smoothing_level=0.35, optimized=False).forecast(1)[0]))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 1e12), min_size=5, max_size=50), st.sampled_from([10, 30]))
def test_the_smoothing_factor_is_that_of_the_least_squared_errors(found: list[float], history: int) -> None:
    def squares(factor: float) -> float:
        level, total = values[0], 0.0
        for value in values[1:]:
            total += (value - level) ** 2
            level += factor * (value - level)
        return total

    values = found[-history - 1 :]
    fitted = Smoothing(history).fit(np.array(found))
    assert fitted is not None
    tried = [squares(float(factor)) for factor in SMOOTHING_GRID]
    assert squares(fitted[0]) <= min(tried) * (1 + 1e-6) + 1e-9 * max(values) ** 2


@pytest.mark.parametrize("period", [5, 12, 37, 90])
def test_a_season_is_found_and_followed(period: int) -> None:
    random = np.random.default_rng(period)
    shape = random.uniform(0, 1, period)
    values = np.tile(shape, 720 // period + 2)[:721] + random.normal(0, 0.02, 721)
    model = Seasonal()
    fitted = model.fit(values[:720])
    assert fitted is not None
    assert fitted[0] in {k * period for k in range(1, 1 + 720 // period // 2)}
    found = model.predict(fitted, values[:720])
    assert found.mean == pytest.approx(values[720], abs=0.1)
    assert found.spread == pytest.approx(0.02 * math.sqrt(4 / 3), rel=0.25)


def test_noise_and_walks_have_no_season() -> None:
    random = np.random.default_rng(8)
    assert Seasonal().fit(random.normal(size=720)) is None
    assert Seasonal().fit(np.arange(200.0)) is None
    assert Seasonal().fit(np.full(200, 1.0)) is None


def test_quantiles_are_those_of_the_normal_distribution() -> None:
    found = SeriesForecast(10.0, 2.0)
    assert (found.quantile(0.5), found.quantile(0.99)) == pytest.approx((10.0, 14.652696))


# --- calibration and ladder -------------------------------------------------------------------------------------


def test_pinball_loss() -> None:
    assert pinball(0.99, 1.0, 3.0) == pytest.approx(1.98)
    assert pinball(0.99, 3.0, 1.0) == pytest.approx(0.02)


@pytest.mark.parametrize("tail", ["normal", "student", "bursts"])
def test_a_calibrated_bound_keeps_its_coverage_whatever_the_distribution(tail: str) -> None:
    random = np.random.default_rng(9)
    drawn = {
        "normal": random.normal(size=20_000),
        "student": random.standard_t(3, size=20_000),
        "bursts": random.normal(size=20_000) + 40 * (random.random(20_000) < 0.03),
    }[tail]
    calibration, missed = Calibration(), 0
    for value in drawn:
        miss = bool(value > calibration.multiplier)
        missed += miss
        calibration = with_residual(calibration, float(value), miss)
    assert 0.985 <= 1 - missed / len(drawn) <= 0.995


def _run(values: np.ndarray, models: tuple[Forecaster, ...] = ladder.MODELS) -> list[ladder.SeriesLadder]:
    state, states = ladder.SeriesLadder(), []
    for value in values:
        state = ladder.observed(state, float(value), models)
        names = ladder.due(state, models)
        state = ladder.with_fits(state, ladder.refitted(state.values, names, models)) if names else state
        state = ladder.forecast(state, models)
        states.append(state)
    return states


def test_nothing_acts_during_the_grace_period() -> None:
    states = _run(np.linspace(0.2, 0.4, ladder.GRACE + 3))
    assert [state.bound is None for state in states[: ladder.GRACE]] == [True] * (ladder.GRACE - 1) + [False]
    assert states[0].forecast is None


def test_the_ladder_follows_the_season_once_it_is_known() -> None:
    values = np.tile(np.linspace(0.2, 0.8, 8), 60) + np.random.default_rng(1).normal(0, 0.01, 480)
    last = _run(values)[-1]
    assert last.acting == "seasonal"
    assert last.forecast is not None
    assert last.forecast.mean == pytest.approx(0.2, abs=0.03)


def test_a_calibrated_ladder_covers_an_autoregressive_series() -> None:
    values = _arma(1500, [0.8], [], 7)
    states = _run(values, (LastValue(), Smoothing(), Arima()))
    covered = [
        value <= state.bound
        for state, value in zip(states[100:], values[101:], strict=False)
        if state.bound is not None
    ]
    assert len(covered) > 1300
    assert np.mean(covered) >= 0.985


def test_a_model_whose_fit_is_withdrawn_does_not_act() -> None:
    state = _run(np.random.default_rng(2).normal(1, 0.1, 60), (LastValue(),))[-1]
    assert state.acting == "last"
    withdrawn = ladder.forecast(
        ladder.observed(ladder.with_fits(state, {"last": None}), 1.0, (LastValue(),)), (LastValue(),)
    )
    assert (withdrawn.acting, withdrawn.bound, withdrawn.forecast) == (None, None, None)


def test_where_no_model_reaches_its_coverage_the_reservation_stands() -> None:
    state = _run(np.random.default_rng(3).normal(1, 0.1, 200), (LastValue(),))[-1]
    tracks = {"last": replace(state.tracks["last"], missed=(1 << ladder.GREATEST_MISSES + 1) - 1)}
    found = ladder.forecast(replace(state, tracks=tracks), (LastValue(),))
    assert (found.acting, found.bound) == (None, None)


def test_a_series_takes_no_gap() -> None:
    with pytest.raises(ValueError, match="finite values, not nan"):
        ladder.observed(ladder.SeriesLadder(), math.nan)
