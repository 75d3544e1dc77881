"""The online learner: follows, doubts, remembers, and survives whatever a stream may bring."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perphd.predictor.ogbrt import Ogbrt, OgbrtSettings, Trees
from perphd.predictor.ogbrt.drift import Drift
from perphd.predictor.ogbrt.explored import Explored
from perphd.predictor.ogbrt.fit import FitSettings, fit
from perphd.predictor.ogbrt.reservoir import MAX_PER_CELL, Reservoir
from perphd.predictor.ogbrt.uncertainty import Conformal, Noise
from tools.bench.predictor.learners import PaperLiteral, StageWise, Static

NAMES = ("cpus", "ways", "load")
MONOTONE = (1, 1, 0)
LOW, HIGH = np.zeros(3), np.ones(3)
FIT = FitSettings(trees=40)


def surface(x: np.ndarray, knee: float = 0.2) -> np.ndarray:
    return np.asarray(np.log1p(3 * x[:, 0]) - np.exp(-x[:, 1] / knee) + 0.3 * x[:, 2])


def warm(seed: int = 0, **changes: object) -> Ogbrt:
    rng = np.random.default_rng(seed)
    x = rng.random((300, 3))
    y = surface(x) + 0.03 * rng.standard_normal(300)
    trees = fit(x, y, NAMES, MONOTONE, rng, settings=FIT)
    return Ogbrt(trees, LOW, HIGH, OgbrtSettings(fit=FIT, **changes), x, y)  # type: ignore[arg-type]


def live(
    model: Ogbrt, count: int, seed: int = 1, knee: float = 0.2, shift: float = 0.0, hold: int = 10
) -> list[float]:
    rng = np.random.default_rng(seed)
    errors = []
    row = rng.random(3)
    for i in range(count):
        if i % hold == 0:
            row = rng.random(3)
        y = surface(row[None], knee)[0] + shift + 0.03 * rng.standard_normal()
        errors.append(model.observe(row, y, at_s=float(i)).error)
    return errors


def rms(values: list[float]) -> float:
    return math.sqrt(float(np.mean(np.square(values))))


def asked(count: int = 60) -> np.ndarray:
    return np.random.default_rng(77).random((count, 3))


# -- following ----------------------------------------------------------------------------------------------------


def test_a_new_level_is_followed_within_a_few_samples() -> None:
    model = warm()
    live(model, 50)
    errors = live(model, 40, seed=2, shift=-0.5)
    assert abs(errors[0]) > 0.3
    assert rms(errors[20:]) < 0.12
    assert model.alarms >= 1


def test_what_is_not_visited_follows_a_change_of_level_too() -> None:
    model = warm()
    x = asked()
    for _ in range(60):
        model.observe(np.array([0.5, 0.5, 0.5]), float(surface(np.full((1, 3), 0.5))[0]) - 0.4)
    assert np.median(np.abs(model.predict(x).mean - (surface(x) - 0.4))) < 0.12


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.floats(-3, 3)), min_size=1, max_size=40))
@settings(max_examples=12, deadline=None)
def test_no_stream_breaks_monotonicity(steps: list[tuple[int, int, float]]) -> None:
    model = _SHARED_WARM()
    for cpus, ways, y in steps:
        model.observe(np.array([cpus / 5, ways / 5, 0.5]), y)
    x = asked(40)
    for column in (0, 1):
        up = x.copy()
        up[:, column] += 0.3
        assert np.all(model.predict(up).mean >= model.predict(x).mean)


_TREES = warm().trees()


def _SHARED_WARM() -> Ogbrt:
    return Ogbrt(_TREES, LOW, HIGH, OgbrtSettings(fit=FIT, noise_sd=1.0))


def test_one_outlier_moves_little_but_a_change_is_believed() -> None:
    model = warm()
    at = np.array([0.4, 0.4, 0.4])
    level = float(surface(at[None])[0])
    for _ in range(40):
        model.observe(at, level)
    before = float(model.predict(at[None]).mean[0])
    model.observe(at, level + 5.0)
    assert abs(float(model.predict(at[None]).mean[0]) - before) < 0.1
    for _ in range(30):
        model.observe(at, level + 0.5)
    assert float(model.predict(at[None]).mean[0]) == pytest.approx(level + 0.5, abs=0.1)


def test_same_samples_same_model() -> None:
    a, b = warm(), warm()
    live(a, 80)
    live(b, 80)
    assert np.array_equal(a.predict(asked()).lower, b.predict(asked()).lower)


# -- doubt ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2])
def test_the_band_holds_nine_of_ten_through_a_drift(seed: int) -> None:
    model = warm(seed)
    live(model, 500, seed)
    live(model, 500, seed + 10, knee=0.5, shift=-0.2)
    assert 0.87 <= model.coverage <= 0.93


def test_doubt_grows_with_distance_and_after_a_change() -> None:
    model = warm()
    here, there = np.array([[0.3, 0.3, 0.3]]), np.array([[0.9, 0.9, 0.9]])
    for _ in range(30):
        model.observe(here[0], float(surface(here)[0]))
    near, far = model.predict(here), model.predict(there)
    assert near.support[0] == pytest.approx(30.0, abs=1e-3)
    assert far.support[0] == 0.0
    assert far.sd[0] > 1.5 * near.sd[0]
    for _ in range(20):
        model.observe(here[0], float(surface(here)[0]) - 0.6)
    assert model.predict(there).sd[0] > 1.5 * far.sd[0]


def test_a_bad_model_may_only_advise() -> None:
    model = warm()
    gate = [model.may_act]
    live(model, 60, hold=1)
    gate.append(model.may_act)
    rng = np.random.default_rng(0)
    for _ in range(40):
        model.observe(rng.random(3), float(3 * rng.standard_normal()))
    gate.append(model.may_act)
    assert gate == [False, True, False]
    assert model.mape > 0.2


def test_conformal_scale_finds_the_wanted_miss_rate() -> None:
    band, rng = Conformal(0.1), np.random.default_rng(0)
    for i in range(4000):
        band.update(float(rng.standard_normal() * (1.0 if i < 2000 else 4.0)))
    assert band.coverage == pytest.approx(0.9, abs=0.01)


def test_noise_is_not_fooled_by_a_burst() -> None:
    noise, rng = Noise(0.05), np.random.default_rng(0)
    for _ in range(500):
        noise.update(float(0.03 * rng.standard_normal()))
    calm = noise.sd
    assert calm == pytest.approx(0.03, rel=0.3)
    noise.update(1e6)
    assert noise.sd < 1.1 * calm


def test_drift_alarm_comes_soon_and_seldom_without_cause() -> None:
    rng = np.random.default_rng(3)
    calm = Drift()
    assert sum(calm.update(float(z)) for z in rng.standard_normal(3000)) <= 1
    assert any(calm.update(float(2.5 + z)) for z in rng.standard_normal(15))


def test_explored_places_are_bounded_and_forget_the_oldest() -> None:
    places = Explored(LOW, HIGH, capacity=3)
    rows = np.array([[0.0, 0, 0], [0.5, 0, 0], [1.0, 0, 0], [0.5, 1.0, 0]])
    assert places.distance(rows).tolist() == [1.0] * 4
    for row in rows:
        places.visit(row)
    far = places.distance(rows)
    assert far[0] == 1.0
    assert far[1:].max() == pytest.approx(0.0, abs=1e-6)


# -- memory and rebuilding ---------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), max_size=200), st.integers(1, 40))
@settings(max_examples=25, deadline=None)
def test_reservoir_is_bounded_and_keeps_its_books(points: list[tuple[float, float]], capacity: int) -> None:
    reservoir = Reservoir(np.zeros(2), np.ones(2), capacity)
    for i, (a, b) in enumerate(points):
        reservoir.add(np.array([a, b]), float(i), i)
    kept = reservoir.kept()
    assert len(kept.y) == len(reservoir) == len(set(kept.y.tolist())) <= capacity
    assert np.all(np.diff(kept.number) > 0)


def test_a_sticky_policy_does_not_flush_the_reservoir() -> None:
    reservoir = Reservoir(LOW, HIGH, capacity=200)
    rng = np.random.default_rng(0)
    for i in range(180):
        reservoir.add(rng.random(3), 0.0, i)
    cells = reservoir.cells
    for i in range(5000):
        reservoir.add(np.array([0.5, 0.5, 0.5]), 1.0, 180 + i)
    kept = reservoir.kept()
    assert reservoir.cells >= cells
    assert np.sum(kept.y == 1.0) <= MAX_PER_CELL
    assert np.all(kept.number[kept.y == 1.0] > 5000)


def test_a_cold_model_builds_itself_from_what_it_sees() -> None:
    model = Ogbrt(Trees.constant(NAMES, MONOTONE, 0.0), LOW, HIGH, OgbrtSettings(fit=FIT))
    for part in range(60):
        live(model, 10, seed=part, hold=1)
        if model.rebuild_due:
            model.offer(model.rebuild_job().run())
    x = asked()
    assert model.rebuilds >= 1
    assert np.sqrt(np.mean((model.predict(x).mean - surface(x)) ** 2)) < 0.12


def test_a_challenger_that_knows_nothing_does_not_win() -> None:
    model = warm(rebuild_every=30, trial_samples=20)
    live(model, 40)
    due = [model.rebuild_due]
    job = model.rebuild_job()
    due.append(model.rebuild_due)
    assert due == [True, False]
    model.offer(replace(job, y=np.zeros(len(job.y))).run())
    live(model, 40, seed=3)
    assert model.rebuilds == 0


def test_a_rebuild_can_run_in_another_process() -> None:
    model = warm(rebuild_every=30)
    live(model, 40)
    job = model.rebuild_job()
    there = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(job)).run()))
    here = job.run()
    assert np.array_equal(there.values, here.values)
    assert np.array_equal(there.forest.table, here.forest.table)
    model.offer(there)
    live(model, 20)


def test_a_failed_rebuild_changes_nothing_and_is_asked_for_again() -> None:
    model = warm(rebuild_every=30)
    live(model, 40)
    before = model.predict(asked()).mean
    model.rebuild_job()
    model.offer(None)
    assert np.array_equal(model.predict(asked()).mean, before)
    live(model, 40)
    assert model.rebuild_due


def test_a_learner_made_from_what_was_saved_goes_on() -> None:
    model = warm()
    live(model, 120, shift=0.3)
    rows, labels = model.remembered()
    again = Ogbrt(model.trees(), LOW, HIGH, model.settings, rows, labels)
    assert np.allclose(again.predict(asked()).mean, model.predict(asked()).mean, atol=1e-9)
    assert rms(live(again, 60, seed=9, shift=0.3)) < 0.15


def test_a_model_is_small() -> None:
    model = warm()
    live(model, 200)
    assert model.nbytes < 1 << 20


# -- whatever may come ----------------------------------------------------------------------------------------------


def test_what_cannot_be_learned_is_counted_and_changes_nothing() -> None:
    model = warm()
    live(model, 20)
    before = model.predict(asked()).mean
    good = np.array([0.5, 0.5, 0.5])
    for row, y, why in (
        (good, math.nan, "target is not a number"),
        (good, math.inf, "target is not a number"),
        (good, 1e300, "target is out of range"),
        (np.full(3, np.nan), 1.0, "no feature is known"),
        (np.zeros(2), 1.0, "2 features instead of 3"),
    ):
        assert model.observe(row, y).skipped == why
        assert model.skipped[why] >= 1
    assert np.array_equal(model.predict(asked()).mean, before)


def test_a_feature_that_vanishes_is_replaced_and_named() -> None:
    model = warm()
    live(model, 60)
    rng = np.random.default_rng(4)
    errors = []
    for _ in range(100):
        row = rng.random(3)
        y = float(surface(row[None])[0])
        row[2] = np.nan
        errors.append(model.observe(row, y).error)
    assert model.missing == {"load": 100}
    assert rms(errors) < 0.25
    assert np.isfinite(model.predict(np.array([[0.5, 0.5, np.nan]])).mean).all()


def test_a_constant_stream_leaves_a_finite_band_around_it() -> None:
    model = warm()
    row = np.array([0.5, 0.5, 0.5])
    for _ in range(500):
        model.observe(row, 1.0)
    found = model.predict(row[None])
    assert found.mean[0] == pytest.approx(1.0, abs=0.01)
    assert 0 < found.upper[0] - found.lower[0] < 0.2
    assert np.isfinite(model.predict(asked()).sd).all()


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=12))
@settings(max_examples=15, deadline=None)
def test_clocks_may_jump(times: list[float]) -> None:
    model = _SHARED_WARM()
    for at_s in times:
        model.observe(np.array([0.5, 0.5, 0.5]), 1.0, at_s)
    assert np.isfinite(model.predict(asked(5)).sd).all()


@given(
    st.lists(
        st.tuples(st.lists(st.floats(width=32), min_size=3, max_size=3), st.floats()), min_size=1, max_size=25
    )
)
@settings(max_examples=15, deadline=None)
def test_nothing_raises(stream: list[tuple[list[float], float]]) -> None:
    model = _SHARED_WARM()
    for row, y in stream:
        model.observe(np.array(row), y)
    found = model.predict(np.array([row for row, _ in stream]))
    assert np.isfinite(found.mean).all()
    assert (found.lower <= found.upper).all()


# -- compared learners ----------------------------------------------------------------------------------------------


def test_the_papers_equations_diverge_and_their_sound_reading_follows() -> None:
    rng = np.random.default_rng(0)
    x = rng.random((300, 3))
    y = surface(x)
    few = FitSettings(trees=15, rate=0.25)
    trees = fit(x, y, NAMES, MONOTONE, rng, settings=few)
    still, sound = Static(trees), StageWise(trees, few.rate, 0.2)
    literal = PaperLiteral(trees, float(y.mean()), float(y.std()))
    rows = asked()
    for learner in (still, sound, literal):
        assert np.allclose(learner.predict(rows), still.predict(rows))
    for row in rng.random((256, 3)):
        for learner in (still, sound, literal):
            learner.learn(row, float(surface(row[None])[0]) + 0.5)
    truth = surface(rows) + 0.5
    error = {
        name: float(np.sqrt(np.mean((learner.predict(rows) - truth) ** 2)))
        for name, learner in (("still", still), ("sound", sound), ("literal", literal))
    }
    assert error["sound"] < 0.5 * error["still"]
    assert error["literal"] > 2.0 * error["still"]


def test_a_batch_in_one_place_leaves_other_leaves_alone() -> None:
    rng = np.random.default_rng(0)
    x = rng.random((300, 3))
    trees = fit(x, surface(x), NAMES, (0, 0, 0), rng, settings=FIT)
    learner = StageWise(trees, FIT.rate, 1.0, batch=4)
    before = learner.predict(np.array([[0.95, 0.95, 0.95]]))[0]
    for _ in range(40):
        learner.learn(np.array([0.05, 0.05, 0.05]), -2.0)
    assert learner.predict(np.array([[0.05, 0.05, 0.05]]))[0] == pytest.approx(-2.0, abs=0.1)
    assert abs(learner.predict(np.array([[0.95, 0.95, 0.95]]))[0] - before) < 0.8
