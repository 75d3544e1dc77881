"""All learners of the comparison behind one interface, each created from the same warm start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perphd.predictor.ogbrt import Ogbrt, OgbrtSettings, TreePrediction, Trees
from perphd.predictor.ogbrt.fit import FitSettings, fit
from tools.bench.predictor.learners import Learner, PaperLiteral, StageWise, Static
from tools.bench.predictor.streams import FEATURES, HIGH, LOW, MONOTONE

Floats = NDArray[np.float64]
FIT = FitSettings()


@dataclass(frozen=True, slots=True, eq=False)
class WarmStart:
    """The starting point of every learner: the profiling samples and the trees fitted to them."""

    x: Floats
    y: Floats
    trees: Trees

    @classmethod
    def of(cls, x: Floats, y: Floats, seed: int) -> WarmStart:
        """Fit."""
        return cls(x, y, fit(x, y, FEATURES, MONOTONE, np.random.default_rng(seed), settings=FIT))


class Online:
    """perphd's learner. Rebuilds run immediately in this process."""

    def __init__(self, warm: WarmStart, settings: OgbrtSettings | None = None) -> None:
        self.model = Ogbrt(warm.trees, LOW, HIGH, settings, warm.x, warm.y)

    def predict(self, x: Floats) -> Floats:
        """See ``Learner``."""
        return self.model.predict(x).mean

    def ask(self, x: Floats) -> TreePrediction:
        """With bands."""
        return self.model.predict(x)

    def learn(self, x: Floats, y: float) -> None:
        """See ``Learner``."""
        self.model.observe(x, y)
        if self.model.rebuild_due:
            self.model.offer(self.model.rebuild_job().run())


class Refit:
    """Retrained every ``every`` samples on the warm start and all live samples (or the last ``window``)."""

    def __init__(self, warm: WarmStart, every: int = 120, window: int | None = None) -> None:
        self._warm, self._every, self._window = warm, every, window
        self._now: Learner = Static(warm.trees)
        self._x: list[Floats] = []
        self._y: list[float] = []

    def predict(self, x: Floats) -> Floats:
        """See ``Learner``."""
        return self._now.predict(x)

    def learn(self, x: Floats, y: float) -> None:
        """See ``Learner``."""
        self._x.append(x)
        self._y.append(y)
        if len(self._y) % self._every:
            return
        rows, targets = np.array(self._x), np.array(self._y)
        if self._window:
            rows, targets = rows[-self._window :], targets[-self._window :]
        else:
            rows, targets = np.concatenate([self._warm.x, rows]), np.concatenate([self._warm.y, targets])
        rng = np.random.default_rng(len(self._y))
        self._now = Static(fit(rows, targets, FEATURES, MONOTONE, rng, settings=FIT))


class LightGbmRefit:
    """LightGBM's own ``refit`` of leaf values on every batch."""

    def __init__(self, warm: WarmStart, decay: float = 0.9, batch: int = 32) -> None:
        import lightgbm

        settings = {
            "objective": "regression", "num_leaves": 16, "learning_rate": 0.1, "min_data_in_leaf": 5, "verbose": -1,
            "monotone_constraints": list(MONOTONE), "num_threads": 1, "max_bin": 63,
        }  # fmt: skip
        self._booster: Any = lightgbm.train(settings, lightgbm.Dataset(warm.x, warm.y), 100)
        self._decay, self._batch = decay, batch
        self._x: list[Floats] = []
        self._y: list[float] = []

    def predict(self, x: Floats) -> Floats:
        """See ``Learner``."""
        return np.asarray(self._booster.predict(x, num_threads=1), dtype=np.float64)

    def learn(self, x: Floats, y: float) -> None:
        """See ``Learner``."""
        self._x.append(x)
        self._y.append(y)
        if len(self._y) == self._batch:
            self._booster = self._booster.refit(np.array(self._x), np.array(self._y), decay_rate=self._decay)
            self._x.clear()
            self._y.clear()


class RiverForest:
    """river's adaptive random forest of ten Hoeffding trees, trained on the warm start first."""

    def __init__(self, warm: WarmStart, seed: int = 1) -> None:
        from river import forest

        self._forest: Any = forest.ARFRegressor(n_models=10, seed=seed)
        for row, target in zip(warm.x, warm.y, strict=True):
            self.learn(row, float(target))

    def predict(self, x: Floats) -> Floats:
        """See ``Learner``."""
        return np.array(
            [self._forest.predict_one(dict(zip(FEATURES, row, strict=True))) for row in x.tolist()]
        )

    def learn(self, x: Floats, y: float) -> None:
        """See ``Learner``."""
        self._forest.learn_one(dict(zip(FEATURES, x.tolist(), strict=True)), y)


OURS = "OGBRT"
FROZEN = "OGBRT, structure frozen"
REFIT = "refit on all data / 120"


def _literal(normalised: bool) -> Callable[[WarmStart], Learner]:
    return lambda warm: PaperLiteral(
        warm.trees, float(warm.y.mean()), float(warm.y.std()), normalised=normalised
    )


CONTESTANTS: dict[str, Callable[[WarmStart], Learner]] = {
    OURS: Online,
    FROZEN: lambda warm: Online(warm, OgbrtSettings(rebuild_every=0)),
    "static": lambda warm: Static(warm.trees),
    "stage-wise EMA .05": lambda warm: StageWise(warm.trees, FIT.rate, 0.05),
    "stage-wise EMA .2": lambda warm: StageWise(warm.trees, FIT.rate, 0.2),
    REFIT: Refit,
    "refit on last 512 / 120": lambda warm: Refit(warm, window=512),
    "LightGBM refit .9 / 32": LightGbmRefit,
    "river ARF": RiverForest,
    "paper, as printed": _literal(False),
    "paper, weights normalised": _literal(True),
}
FEW = (OURS, FROZEN, "static", "stage-wise EMA .05", "stage-wise EMA .2", REFIT)
"""Learners that run on every stream; the slow or poor ones run only on the first."""
FAST = FEW[:-1]
"""Learners that get more seeds."""
