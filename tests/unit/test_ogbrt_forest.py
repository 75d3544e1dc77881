"""Portable trees, the resident forest and the trainer: same predictions, exact order, refused nonsense."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perphd.predictor.ogbrt import Forest, InvalidModel, Trees
from perphd.predictor.ogbrt.fit import FitSettings, fit

NAMES = ("cpus", "ways", "load")
MONOTONE = (1, 1, 0)


def surface(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.log1p(3 * x[:, 0]) + np.sqrt(x[:, 1]) + 0.3 * np.sin(6 * x[:, 2]))


def samples(seed: int, count: int, missing: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.random((count, 3))
    y = surface(x) + 0.05 * rng.standard_normal(count)
    x[rng.random(x.shape) < missing] = np.nan
    return x, y


def trained(seed: int = 0, missing: float = 0.0, **settings_: float) -> Trees:
    x, y = samples(seed, 300, missing)
    chosen = FitSettings(trees=20, **settings_)  # type: ignore[arg-type]
    return fit(x, y, NAMES, MONOTONE, np.random.default_rng(seed), settings=chosen)


@given(st.integers(0, 50), st.integers(1, 6), st.floats(0, 0.3))
@settings(max_examples=12, deadline=None)
def test_forest_says_what_the_trees_say(seed: int, depth: int, missing: float) -> None:
    trees = trained(seed, missing, depth=depth)
    x, _ = samples(seed + 1, 40, 0.2)
    x[0] = [-5.0, 9.0, np.nan]
    assert np.allclose(Forest.compile(trees).predict(x), trees.walk(x), rtol=0, atol=1e-12)


def test_a_value_on_the_threshold_goes_left() -> None:
    forest = Forest.compile(stump(threshold=0.5, left=-1.0, right=2.0))
    assert forest.predict(np.array([[0.5], [np.nextafter(0.5, 1)], [np.nan]])).tolist() == [-1.0, 2.0, 2.0]


def stump(threshold: float = 0.5, left: float = 0.0, right: float = 1.0) -> Trees:
    def ints(*values: int) -> np.ndarray:
        return np.array(values, np.int32)

    return Trees(
        ("a",), (1,), 0.0, ints(0, 1), ints(0, 2), ints(0), np.array([threshold]), np.array([False]), ints(~0),
        ints(~1), np.array([left, right]),
    )  # fmt: skip


def test_many_rows_are_routed_in_parts() -> None:
    trees = trained()
    x, _ = samples(3, 700)
    forest = Forest.compile(trees)
    assert np.array_equal(forest.predict(x)[600:], forest.predict(x[600:]))


def test_leaf_values_survive_the_way_to_the_resident_form_and_back() -> None:
    trees = trained()
    forest = Forest.compile(trees)
    again = forest.export(forest.values(), trees.base)
    assert np.array_equal(again.value, trees.value)
    assert again.base == trees.base


def test_no_tree_is_a_constant() -> None:
    forest = Forest.compile(Trees.constant(NAMES, MONOTONE, 4.5))
    assert forest.predict(np.zeros((3, 3))).tolist() == [4.5] * 3


@pytest.mark.parametrize("width", [3, 5, 6])
def test_every_word_size(width: int) -> None:
    x, y = samples(0, 2000)
    trees = fit(
        x, y, NAMES, MONOTONE, np.random.default_rng(0), settings=FitSettings(trees=5, depth=width, l2=0.1)
    )
    forest = Forest.compile(trees)
    assert forest.table.dtype == {3: np.uint16, 5: np.uint32, 6: np.uint64}[width]
    assert np.allclose(forest.predict(x[:50]), trees.walk(x[:50]))


def test_order_of_leaves_is_exact() -> None:
    """A leaf is above another if and only if some point of its box dominates some point of the other's."""
    forest = Forest.compile(trained(2))
    rng = np.random.default_rng(0)
    low = rng.random((400, 3))
    high = low + rng.random((400, 3)) * (np.array(MONOTONE) != 0)
    width = forest.shape[1]
    a, b = forest.leaves(low) % width, forest.leaves(high) % width
    words = np.take_along_axis(forest.above, a.T, axis=1).T
    ordered = (words >> b.astype(words.dtype)) & 1
    assert np.all((ordered == 1) | (a == b))


@given(st.integers(0, 30))
@settings(max_examples=8, deadline=None)
def test_trained_models_are_monotone(seed: int) -> None:
    forest = Forest.compile(trained(seed))
    x = np.random.default_rng(seed).random((100, 3))
    for column in (0, 1):
        up = x.copy()
        up[:, column] += np.random.default_rng(seed + 1).random(100)
        assert np.all(forest.predict(up) >= forest.predict(x))


def test_training_finds_the_surface_and_is_repeatable() -> None:
    x, y = samples(0, 800)
    trees = fit(x, y, NAMES, MONOTONE, np.random.default_rng(5))
    again = fit(x, y, NAMES, MONOTONE, np.random.default_rng(5))
    assert np.array_equal(trees.value, again.value)
    asked, _ = samples(9, 400)
    error = Forest.compile(trees).predict(asked) - surface(asked)
    assert np.sqrt(np.mean(error**2)) < 0.06


def test_a_heavy_row_pulls_more() -> None:
    x = np.array([[0.0, 0, 0]] * 10 + [[1.0, 0, 0]] * 10)
    y = np.array([0.0, 1.0] * 10)
    weight = np.where(y == 1, 9.0, 1.0)
    light = fit(x, y, NAMES, MONOTONE, np.random.default_rng(0))
    heavy = fit(x, y, NAMES, MONOTONE, np.random.default_rng(0), weight)
    assert Forest.compile(heavy).predict(x[:1])[0] > Forest.compile(light).predict(x[:1])[0] + 0.2


def test_huber_loss_shrugs_off_wild_samples() -> None:
    x, y = samples(0, 400)
    y[::20] += 8.0
    asked, _ = samples(1, 300)

    def error(huber: float) -> float:
        trees = fit(x, y, NAMES, MONOTONE, np.random.default_rng(0), settings=FitSettings(huber_sds=huber))
        found = Forest.compile(trees).predict(asked) - surface(asked)
        return float(np.median(np.abs(found)))

    assert error(1.5) < 0.6 * error(0.0)


def test_training_refuses_what_is_no_number_and_survives_what_is_no_information() -> None:
    with pytest.raises(ValueError, match="finite"):
        fit(np.zeros((2, 3)), np.array([1.0, np.nan]), NAMES, MONOTONE, np.random.default_rng(0))
    with pytest.raises(ValueError, match="rows"):
        fit(np.zeros((2, 2)), np.zeros(2), NAMES, MONOTONE, np.random.default_rng(0))
    constant = fit(np.ones((9, 3)), np.full(9, 2.5), NAMES, MONOTONE, np.random.default_rng(0))
    assert Forest.compile(constant).predict(np.zeros((1, 3)))[0] == pytest.approx(2.5)
    assert fit(np.zeros((0, 3)), np.zeros(0), NAMES, MONOTONE, np.random.default_rng(0)).count == 0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"threshold": np.array([np.nan])}, "threshold"),
        ({"value": np.array([0.0, np.inf])}, "value"),
        ({"feature": np.array([7], np.int32)}, "feature"),
        ({"left": np.array([0], np.int32)}, "left"),
        ({"right": np.array([~0], np.int32)}, "two parents"),
        ({"right": np.array([~5], np.int32)}, "right"),
        ({"leaf_start": np.array([0, 1], np.int32)}, "leaf_start"),
        ({"node_start": np.array([0, 3], np.int32)}, "node_start"),
        ({"missing_left": np.zeros(2, np.bool_)}, "missing_left"),
        ({"monotone": (2,)}, "monotone"),
        ({"base": float("nan")}, "base"),
        ({"features": ()}, "features"),
    ],
)
def test_arrays_that_are_no_trees_are_refused(change: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidModel, match=says):
        replace(stump(), **change).validate()  # type: ignore[arg-type]
