"""Perph's Algorithm 1 with its equations 2, 4, 6, 10 and 11 as printed: kept for comparison, never used to act.

For a batch of n samples, stage k and node d of its tree, with y standardised by the warm start's mean and scale:

    w_i      = exp(-2 y_i f_{k-1}(x_i))                                                            (2)
    lambda^l = (1 - alpha) lambda^l + alpha * sum of w_i y_i over x_i with sigma(x_i) >= phi       (10)
    lambda^r = (1 - alpha) lambda^r + alpha * sum of w_i y_i over x_i with sigma(x_i) <  phi       (11)
    theta    = sum of w_i (y_i - lambda)^2                                                         (3, 6)

The candidate for phi with the least theta is chosen, where theta_m is initialised once for the whole ensemble
(line 1). The paper leaves some details open. This implementation makes the following choices:
* The candidates are the node's present threshold and up to eight of the batch's values of its feature.
* f_{k-1} is the sum of the stages before k, as after the previous batch.
* The sums of (6) run over the new samples, because the old ones no longer exist.
* Only children that are leaves carry a lambda.

Read literally, the algorithm has four defects. It does not divide by the sum of weights, so a leaf moves towards n
times the mean of its samples. Left and right are swapped against equation 4. Every stage fits y, so M stages sum to
M y. The weight w is one for the classes -1 and +1. ``normalised`` divides by the sum of weights, which repairs only
the first of these.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from perphd.predictor.ogbrt.forest import Forest
from perphd.predictor.ogbrt.trees import Floats, Trees

_CANDIDATES = 8
_BOUND = 1e6
"""Bound of leaf values, which keeps numbers finite while the equations diverge."""


class PaperLiteral:
    """Algorithm 1 on the trees of a warm start.

    Args:
        trees: the warm start.
        mean: mean of the warm start's targets.
        scale: their standard deviation; targets are standardised by both.
        alpha: learning rate, 0..1.
        batch: samples per update, n.
        normalised: divide the sums of equations 10 and 11 by the sum of weights.
    """

    def __init__(
        self,
        trees: Trees,
        mean: float,
        scale: float,
        alpha: float = 0.1,
        batch: int = 32,
        normalised: bool = False,
    ) -> None:
        self._mean, self._scale = mean, max(scale, 1e-9)
        self._trees = trees.with_values((trees.base - mean) / self._scale, trees.value / self._scale)
        self._forest = Forest.compile(self._trees)
        self._alpha, self._batch, self._normalised = alpha, batch, normalised
        self._x: list[Floats] = []
        self._y: list[float] = []

    def predict(self, x: Floats) -> Floats:
        """See ``Learner``."""
        return self._mean + self._scale * self._forest.predict(x)

    def learn(self, x: Floats, y: float) -> None:
        """See ``Learner``; every ``batch`` samples Algorithm 1 runs once."""
        self._x.append(x)
        self._y.append((y - self._mean) / self._scale)
        if len(self._y) < self._batch:
            return
        self._algorithm_1(np.array(self._x), np.array(self._y))
        self._x.clear()
        self._y.clear()

    def _algorithm_1(self, x: Floats, y: Floats) -> None:
        trees = self._trees
        threshold, value = trees.threshold.copy(), trees.value.copy()
        before = np.full(len(y), trees.base)
        least = np.inf  # line 1: once for all nodes of all trees
        for tree in range(trees.count):
            with np.errstate(over="ignore"):
                weight = np.minimum(np.exp(-2.0 * y * before), _BOUND)  # (2), line 3
            start, leaf_start = int(trees.node_start[tree]), int(trees.leaf_start[tree])
            stage = np.zeros(len(y))
            inside = {0: np.ones(len(y), dtype=np.bool_)}  # line 4
            for node in range(int(trees.node_start[tree + 1]) - start):
                here, at = inside[node], start + node
                asked = x[:, trees.feature[at]]
                children = (int(trees.left[at]), int(trees.right[at]))
                leaves = [leaf_start + ~child if child < 0 else None for child in children]
                best = None
                for phi in (threshold[at], *_candidates(asked[here])):
                    left = here & (asked < phi)
                    found = self._leaves(y, weight, here & ~left, left, leaves, value)  # (10), (11): swapped
                    theta = float((weight * (y - np.where(left, found[0], found[1])) ** 2)[here].sum())
                    if theta < least:
                        least, best = theta, (float(phi), found)
                if best is None:
                    left = here & (asked < threshold[at])
                    best = float(threshold[at]), self._leaves(y, weight, here & ~left, left, leaves, value)
                threshold[at] = best[0]
                left = here & (asked < threshold[at])
                for child, leaf, new, rows in zip(
                    children, leaves, best[1], (left, here & ~left), strict=True
                ):
                    if leaf is not None:
                        value[leaf] = new
                        stage[rows] = new
                    else:
                        inside[child] = rows
            before = before + stage
        self._trees = replace(trees, threshold=threshold, value=value)
        self._forest = Forest.compile(self._trees)

    def _leaves(
        self, y: Floats, weight: Floats, left_rows: NDArray[np.bool_], right_rows: NDArray[np.bool_],
        leaves: list[int | None], value: Floats,
    ) -> tuple[float, float]:  # fmt: skip
        found = []
        for rows, leaf in zip((left_rows, right_rows), leaves, strict=True):
            total = float((weight * y)[rows].sum())
            if self._normalised:
                total /= max(float(weight[rows].sum()), 1e-12)
            old = float(value[leaf]) if leaf is not None else 0.0
            found.append(min(max((1 - self._alpha) * old + self._alpha * total, -_BOUND), _BOUND))
        return found[0], found[1]


def _candidates(asked: Floats) -> Floats:
    values = np.unique(asked)
    if len(values) <= _CANDIDATES:
        return values
    return np.asarray(values[np.linspace(0, len(values) - 1, _CANDIDATES).astype(int)], dtype=np.float64)
