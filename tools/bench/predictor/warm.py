"""The warm start, and the paper's Table II on one test set: prediction of the whole grid from a tenth of its cells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perphd.predictor.ogbrt import Forest, Ogbrt
from perphd.predictor.ogbrt.fit import FitSettings, fit
from tools.bench.predictor.streams import FEATURES, HIGH, LOW, MONOTONE, STEP, Surface, everywhere

Floats = NDArray[np.float64]

NOISE = 0.03
GRID_LOAD = 0.8
"""The grid is measured at one load, as the paper's is."""
WARM_FIT = FitSettings(trees=150, bins=32)


def grid() -> Floats:
    """All cells of the actuators' lattice at one load: 16 x 10 x 11 x 10 of them."""
    axes = [
        np.arange(low, high + step / 2, step) for low, high, step in zip(LOW, HIGH, STEP, strict=True) if step
    ]
    cells = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes))
    return np.column_stack([cells, np.full(len(cells), GRID_LOAD)])


@dataclass(frozen=True, slots=True)
class Warm:
    """One warm start: R2 of MIPS on the cells held out (as measured, and against the noise-free truth), log-RMSE."""

    r2: float
    r2_truth: float
    log_rmse: float


def warm_start(x: Floats, truth: Floats, seed: int, part: float = 0.1) -> Warm:
    """Measure ``part`` of the cells with noise, fit, judge on all others."""
    rng = np.random.default_rng(seed)
    y = truth + NOISE * rng.standard_normal(len(truth))
    order = rng.permutation(len(x))
    known, rest = order[: int(part * len(x))], order[int(part * len(x)) :]
    forest = Forest.compile(fit(x[known], y[known], FEATURES, MONOTONE, rng, settings=WARM_FIT))
    found = forest.predict(x[rest])
    return Warm(
        r2(np.exp(y[rest]), np.exp(found)),
        r2(np.exp(truth[rest]), np.exp(found)),
        float(np.sqrt(np.mean((found - truth[rest]) ** 2))),
    )


def profiled(x: Floats, truth: Floats, seed: int, part: float = 0.1) -> Warm:
    """The same with the trainer of ``perphd profile``: LightGBM, with the number of rounds by 10-fold CV, converted for
    resident use.
    """
    from perphd.predictor.profile.training import train

    rng = np.random.default_rng(seed)
    y = truth + NOISE * rng.standard_normal(len(truth))
    order = rng.permutation(len(x))
    known, rest = order[: int(part * len(x))], order[int(part * len(x)) :]
    trained = train(x[known], y[known], FEATURES, MONOTONE, seed=seed, engine="lightgbm")
    found = Forest.compile(trained.trees).predict(x[rest])
    return Warm(
        r2(np.exp(y[rest]), np.exp(found)),
        r2(np.exp(truth[rest]), np.exp(found)),
        float(np.sqrt(np.mean((found - truth[rest]) ** 2))),
    )


def r2(y: Floats, found: Floats) -> float:
    """Coefficient of determination."""
    return 1.0 - float(np.sum((y - found) ** 2) / np.sum((y - y.mean()) ** 2))


@dataclass(frozen=True, slots=True)
class Score:
    """One model by 10-fold cross-validation, in MIPS, as means over the folds, because medians would hide differences
    between folds.
    """

    name: str
    rmse: float
    rmse_sd: float
    mae: float
    median_error: float
    r2: float


def table_2(surface: Surface, seed: int, rows: int) -> list[Score]:
    """The paper's models on the same rows and the same folds."""
    from sklearn.ensemble import AdaBoostRegressor, GradientBoostingRegressor
    from sklearn.linear_model import ElasticNet, LinearRegression
    from sklearn.model_selection import KFold
    from sklearn.neighbors import KNeighborsRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    rng = np.random.default_rng(seed)
    x = everywhere(rng, rows)
    y = surface.log_performance(x) + NOISE * rng.standard_normal(rows)

    def sklearn(model: Callable[[], Any], scaled: bool = True) -> Callable[[Floats, Floats, Floats], Floats]:
        def predict(x: Floats, y: Floats, asked: Floats) -> Floats:
            made = make_pipeline(StandardScaler(), model()) if scaled else model()
            return np.asarray(made.fit(x, np.exp(y)).predict(asked), dtype=np.float64)

        return predict

    def online(x: Floats, y: Floats, asked: Floats) -> Floats:
        tenth = len(x) // 10
        trees = fit(x[:tenth], y[:tenth], FEATURES, MONOTONE, np.random.default_rng(seed))
        model = Ogbrt(trees, LOW, HIGH, None, x[:tenth], y[:tenth])
        for row, target in zip(x[tenth:], y[tenth:], strict=True):
            model.observe(row, float(target))
            if model.rebuild_due:
                model.offer(model.rebuild_job().run())
        return np.exp(model.predict(asked).mean)

    def gbrt(x: Floats, y: Floats, asked: Floats) -> Floats:
        trees = fit(x, y, FEATURES, MONOTONE, np.random.default_rng(seed), settings=WARM_FIT)
        return np.exp(Forest.compile(trees).predict(asked))

    models: dict[str, Callable[[Floats, Floats, Floats], Floats]] = {
        "Linear regression": sklearn(LinearRegression),
        "KNN, features as they are": sklearn(KNeighborsRegressor, scaled=False),
        "KNN, features scaled": sklearn(KNeighborsRegressor),
        "AdaBoost": sklearn(lambda: AdaBoostRegressor(random_state=seed)),
        "ElasticNet": sklearn(ElasticNet),
        "GBRT (scikit-learn)": sklearn(lambda: GradientBoostingRegressor(random_state=seed)),
        "GBRT (perphd: log, monotone)": gbrt,
        "OGBRT (a tenth off line, the rest one by one)": online,
    }
    folds = list(KFold(10, shuffle=True, random_state=seed).split(x))
    scores = []
    for name, model in models.items():
        errors, rmse, r2s = [], [], []
        for train, test in folds:
            found, true = model(x[train], y[train], x[test]), np.exp(y[test])
            errors.append(np.abs(found - true))
            rmse.append(float(np.sqrt(np.mean((found - true) ** 2))))
            r2s.append(r2(true, found))
        flat = np.concatenate(errors)
        scores.append(
            Score(name, float(np.mean(rmse)), float(np.std(rmse)), float(flat.mean()), float(np.median(flat)),
                  float(np.mean(r2s)))
        )  # fmt: skip
    return scores
