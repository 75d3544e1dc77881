"""Stage-wise exponential averages: Son et al. (ICCV 2015), which the Perph paper builds on, read as regression.

For every batch and every stage k, with the residual r_i = y_i - F_{k-1}(x_i) of the batch's samples:

    lambda_j <- (1 - alpha) lambda_j + alpha * rate * mean of r_i over the samples in leaf j

Leaves that no sample of the batch visits keep their values. The structure of the trees is frozen.
"""

from __future__ import annotations

import numpy as np

from perphd.predictor.ogbrt.forest import Forest
from perphd.predictor.ogbrt.trees import Floats, Trees


class StageWise:
    """Learns from batches of ``batch`` samples.

    Args:
        trees: the warm start.
        rate: the warm start's shrinkage, which its leaf values include.
        alpha: weight of a batch in each leaf's average, 0..1.
        batch: samples per update.
    """

    def __init__(self, trees: Trees, rate: float, alpha: float = 0.2, batch: int = 32) -> None:
        self._forest = Forest.compile(trees)
        self._values = self._forest.values()
        self._rate, self._alpha, self._batch = rate, alpha, batch
        self._x: list[Floats] = []
        self._y: list[float] = []

    def predict(self, x: Floats) -> Floats:
        """See ``Learner``."""
        return self._forest.predict(x, self._values)

    def learn(self, x: Floats, y: float) -> None:
        """See ``Learner``. The leaf values are updated once per ``batch`` samples."""
        self._x.append(x)
        self._y.append(y)
        if len(self._y) < self._batch:
            return
        count, width = self._forest.shape
        leaves = self._forest.leaves(np.array(self._x)) - np.arange(count) * width
        residual = np.array(self._y) - self._forest.trees.base
        for tree in range(count):
            at, values = leaves[:, tree], self._values[tree]
            seen = np.bincount(at, minlength=width)
            mean = np.bincount(at, residual, width) / np.maximum(seen, 1)
            moved = values + self._alpha * (self._rate * mean - values)
            values[:] = np.where(seen > 0, moved, values)
            residual = residual - values[at]
        self._x.clear()
        self._y.clear()
