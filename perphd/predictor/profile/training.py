"""Offline training of a warm start: monotone boosted trees, whose number is chosen by 10-fold
cross-validation.

Uses LightGBM if installed (an extra), else equivalent trees by ``ogbrt.fit``. The number of rounds minimises the folds'
held-out error (early stopping in each; the median over the folds). The metrics are those of the held-out predictions at
that number, with which the final model is trained on all rows.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from perphd.domain.extras import how_to_get
from perphd.predictor.ogbrt.fit import FitSettings, fit
from perphd.predictor.ogbrt.forest import Forest
from perphd.predictor.ogbrt.trees import Floats, Trees
from perphd.predictor.profile.file import Metrics
from perphd.predictor.profile.lightgbm_trees import from_lightgbm

Engine: TypeAlias = Literal["lightgbm", "numpy"]

MOST_ROUNDS = 150
"""Maximum number of trees; more would cost the resident process more than they gain."""
FOLDS = 10
_PATIENCE = 20
_NUMPY_ROUNDS = (40, 80, 120, MOST_ROUNDS)
NO_LIGHTGBM = (
    "lightgbm is not installed: trained with perphd's own trees, which are monotone too and nearly as accurate. "
    f"How to get it: {how_to_get('worker')}"
)

Predict: TypeAlias = Callable[[Floats, int], Floats]
"""Predictions (n,) for rows (n, F) with a number of rounds."""


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """Trained trees, the engine that trained them, and their held-out errors."""

    trees: Trees
    engine: Engine
    rounds: int
    metrics: Metrics


def best_engine() -> Engine:
    """LightGBM if it can be imported. Does not import it."""
    return "lightgbm" if importlib.util.find_spec("lightgbm") is not None else "numpy"


def train(
    x: Floats,
    y: Floats,
    features: Sequence[str],
    monotone: Sequence[int],
    *,
    seed: int = 0,
    engine: Engine | None = None,
    weight: Floats | None = None,
) -> Trained:
    """Train on rows ``x`` (n, F) and log-performance ``y`` (n,); at least 20 rows.

    Raises:
        ValueError: there are fewer rows, or shapes do not match.
    """
    if len(y) < 20 or x.shape != (len(y), len(features)):
        raise ValueError(
            f"rows of shape {x.shape}, {len(y)} targets and {len(features)} features; at least 20 rows, "
            "one target per row and one column per feature are needed"
        )
    engine = engine or best_engine()
    w = np.ones(len(y)) if weight is None else weight
    fold = np.random.default_rng(seed).permutation(len(y)) % FOLDS
    once = _lightgbm if engine == "lightgbm" else _numpy
    predicted: list[tuple[np.ndarray[Any, np.dtype[np.bool_]], Predict]] = []
    best = []
    for k in range(FOLDS):
        test = fold == k
        predict, stop = once(x[~test], y[~test], w[~test], features, monotone, seed, x[test], y[test])
        predicted.append((test, predict))
        best.append(stop)
    rounds = max(int(np.median(best)), 1)
    out = np.empty(len(y))
    for test, predict in predicted:
        out[test] = predict(x[test], rounds)
    trees = _final(engine, x, y, w, features, monotone, seed, rounds)
    return Trained(trees, engine, rounds, metrics_of(y, out, fold))


def metrics_of(y: Floats, found: Floats, fold: Any = None) -> Metrics:
    """Errors of predicted log-performance, in units of performance relative to its geometric mean."""
    mean = float(np.mean(y))
    true, guess = np.exp(y - mean), np.exp(found - mean)
    error = np.abs(guess - true)
    spread = float(np.sum((true - true.mean()) ** 2))
    r2 = 1.0 - float(np.sum(error**2)) / spread if spread > 0 else 0.0
    sd = 0.0
    if fold is not None:
        sd = float(np.std([np.sqrt(np.mean(error[fold == k] ** 2)) for k in np.unique(fold)]))
    return Metrics(
        rows=len(y),
        r2=r2,
        rmse=float(np.sqrt(np.mean(error**2))),
        rmse_sd=sd,
        mae=float(error.mean()),
        median_error=float(np.median(error)),
        mape=float(np.mean(error / true)),
        log_rmse=float(np.sqrt(np.mean((found - y) ** 2))),
    )


# -- engines ------------------------------------------------------------------------------------------------------


def _load_lightgbm() -> Any:
    # Imported by name: no resident process may import lightgbm, and only the worker runs this.
    return importlib.import_module("lightgbm")


FEW_ROWS: Final = 80
"""Number of rows below which a leaf needs only two rows instead of four; four would flatten a curve of 25 points."""


def _parameters(monotone: Sequence[int], seed: int, rows: int) -> dict[str, Any]:
    return {
        "objective": "regression",
        "num_leaves": 16,
        "max_depth": 6,
        "learning_rate": 0.12,
        "min_data_in_leaf": 2 if rows < FEW_ROWS else 4,
        "lambda_l2": 0.5,
        "bagging_fraction": 0.8,
        "bagging_freq": 1,
        "max_bin": 63,
        "monotone_constraints": list(monotone),
        "monotone_constraints_method": "intermediate",
        "num_threads": 1,
        "seed": seed,
        "deterministic": True,
        "force_row_wise": True,
        "verbose": -1,
    }


def _lightgbm(
    x: Floats, y: Floats, w: Floats, features: Sequence[str], monotone: Sequence[int], seed: int, x_test: Floats,
    y_test: Floats,
) -> tuple[Predict, int]:  # fmt: skip
    lightgbm = _load_lightgbm()
    data = lightgbm.Dataset(x, y, weight=w, params={"max_bin": 63, "verbose": -1})
    booster = lightgbm.train(
        _parameters(monotone, seed, len(y)),
        data,
        MOST_ROUNDS,
        valid_sets=[data.create_valid(x_test, y_test)],
        callbacks=[lightgbm.early_stopping(_PATIENCE, verbose=False)],
    )

    def predict(rows: Floats, rounds: int) -> Floats:
        # A fold whose training stopped early predicts with all of its trees.
        return np.asarray(booster.predict(rows, num_iteration=rounds, num_threads=1), dtype=np.float64)

    return predict, int(booster.best_iteration or MOST_ROUNDS)


def _numpy(
    x: Floats, y: Floats, w: Floats, features: Sequence[str], monotone: Sequence[int], seed: int, x_test: Floats,
    y_test: Floats,
) -> tuple[Predict, int]:  # fmt: skip
    whole = _own(x, y, w, features, monotone, seed, MOST_ROUNDS).trees
    made = {n: Forest.compile(_first(whole, n)) for n in _NUMPY_ROUNDS}
    error = {n: float(np.mean((forest.predict(x_test) - y_test) ** 2)) for n, forest in made.items()}

    def predict(rows: Floats, rounds: int) -> Floats:
        return made[min(made, key=lambda n: abs(n - rounds))].predict(rows)

    return predict, min(error, key=lambda n: error[n])


def _first(trees: Trees, count: int) -> Trees:
    """The first ``count`` stages, which equal the result of a shorter training."""
    count = min(count, trees.count)
    nodes, leaves = int(trees.node_start[count]), int(trees.leaf_start[count])
    return replace(
        trees,
        node_start=trees.node_start[: count + 1],
        leaf_start=trees.leaf_start[: count + 1],
        feature=trees.feature[:nodes],
        threshold=trees.threshold[:nodes],
        missing_left=trees.missing_left[:nodes],
        left=trees.left[:nodes],
        right=trees.right[:nodes],
        value=trees.value[:leaves],
    )


def _own(
    x: Floats, y: Floats, w: Floats, features: Sequence[str], monotone: Sequence[int], seed: int, rounds: int
) -> Forest:
    settings = replace(FitSettings(), trees=rounds)
    return Forest.compile(
        fit(x, y, features, monotone, np.random.default_rng(seed), weight=w, settings=settings)
    )


def _final(
    engine: Engine, x: Floats, y: Floats, w: Floats, features: Sequence[str], monotone: Sequence[int], seed: int,
    rounds: int,
) -> Trees:  # fmt: skip
    if engine == "numpy":
        return _own(x, y, w, features, monotone, seed, rounds).trees
    lightgbm = _load_lightgbm()
    data = lightgbm.Dataset(x, y, weight=w, params={"max_bin": 63, "verbose": -1})
    booster = lightgbm.train(_parameters(monotone, seed, len(y)), data, rounds)
    return from_lightgbm(booster, features, monotone)
