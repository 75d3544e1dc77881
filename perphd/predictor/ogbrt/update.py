"""Learning from one sample at a time, in O(trees x depth): the ensemble's values move while its structure
stays.

With F(x) = g + base + sum over trees t of v[t, leaf_t(x)] and a sample (x, y) in log units:

    gain filter     e = y - F(x);  K = P / (P + R);  g += K e;  P = (1 - K) P + q          (scalar Kalman filter)
    leaf update     e = y - F(x);  n_j = gamma n_j + 1;  v_j += rate / T * e / n_j * N     for every visited leaf j
    cone            where a leaf rose (fell), leaves that must not be below (above) it are lifted (lowered) to it

The gain follows changes of the whole surface (a new version, another clock rate), the leaves follow local changes.
n_j is the count of samples in a leaf with exponential forgetting (gamma), so one sample among many has little
effect, and a rarely visited leaf learns fast; T/N scales the step to that of 100 trees. The last step keeps every
tree exactly inside the cone of monotone functions. ``Forest.above`` is transitive, so after all leaves above are
lifted to the new value, no pair is in the wrong order.

Equations 10 and 11 of the Perph paper, (1 - a) lambda + a * sum(w y), lack the division by sum(w), swap left
and right, and fit y instead of the residual. The update used here applies the same idea (an exponential
average per leaf) to residuals, normalised by counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perphd.predictor.ogbrt.forest import Forest, Indices
from perphd.predictor.ogbrt.trees import Floats

_TREES = 100.0
_REPLICA_RATE = 0.12


@dataclass(frozen=True, slots=True)
class UpdateSettings:
    """Rates at which an ensemble adapts to samples.

    Attributes:
        gain_walk_var: q, variance added to the gain per sample (log units squared).
        gain_noise: sqrt(R) in multiples of one sample's noise.
        gain_drift_var: minimum variance of the gain right after an alarm.
        leaf_rate: part of an error that 100 trees together correct at count 1. With many samples the count is
            1 / (1 - gamma), so the trees correct 0.3 of it. Twice the rate, or a gain that changes faster, hardly
            adapts sooner, because counts are low after an alarm anyway. It also attributes one sample's noise to
            the sample's neighbourhood.
        forget: gamma.
        start_count: initial n of a leaf, the trust in the warm start.
        drift_count: largest n of every leaf after an alarm.
    """

    gain_walk_var: float = 5e-5
    gain_noise: float = 2.0
    gain_drift_var: float = 0.02
    leaf_rate: float = 6.0
    forget: float = 0.95
    start_count: float = 20.0
    drift_count: float = 2.0


class Ensemble:
    """One forest with B + 1 sets of leaf values: the model (row 0) and its B bootstrap replicas.

    Args:
        forest: the structure.
        values: (B + 1, T, L) leaf values; row 0 must lie in the monotone cone.
        base: (B + 1,) constants.
        settings: rates of adaptation.
    """

    def __init__(self, forest: Forest, values: Floats, base: Floats, settings: UpdateSettings) -> None:
        count, width = forest.shape
        self.forest, self.settings = forest, settings
        self.values: Floats = np.array(values, dtype=np.float64).reshape(len(base), count * width)
        self.base: Floats = np.array(base, dtype=np.float64)
        self.gain: Floats = np.zeros(len(self.base))
        self.gain_var = settings.gain_walk_var
        self.counts: Floats = np.full(count * width, settings.start_count)
        self._bits = np.arange(width, dtype=forest.above.dtype)
        self._rate = settings.leaf_rate / max(_TREES, float(count))

    @property
    def nbytes(self) -> int:
        """Size of structure and values in bytes."""
        return self.forest.nbytes + self.values.nbytes + self.counts.nbytes

    def predict(self, leaves: Indices) -> Floats:
        """Predictions of model and replicas for rows given by their leaves (n, T); shape (B + 1, n)."""
        if len(leaves) == 1:  # the usual case in learning
            return np.asarray(
                self.values.take(leaves[0], axis=1).sum(axis=1) + self.base + self.gain, dtype=np.float64
            )[:, None]
        out = np.empty((len(self.base), len(leaves)))
        for row, values in zip(out, self.values, strict=True):
            np.sum(values.take(leaves), axis=1, out=row)
        out += (self.base + self.gain)[:, None]
        return out

    def mean(self, leaves: Indices) -> Floats:
        """Predictions of the model alone; shape (n,)."""
        total = self.values[0].take(leaves).sum(axis=1)
        return np.asarray(total + (self.base[0] + self.gain[0]), dtype=np.float64)

    def update(self, leaves: Indices, error: Floats, weight: Floats, noise_var: float) -> None:
        """Learn one sample.

        Args:
            leaves: (T,) the leaves it falls into.
            error: (B + 1,) y - F(x) of model and replicas, clipped by the caller.
            weight: (B + 1,) its multiplicity for each; 1 for the model.
            noise_var: variance of one sample's noise.
        """
        settings = self.settings
        measured = settings.gain_noise**2 * noise_var
        kalman = self.gain_var / (self.gain_var + measured)
        step = np.minimum(weight * kalman, 1.0) * error
        self.gain += step
        self.gain_var = (1.0 - kalman) * self.gain_var + settings.gain_walk_var
        left = error - step
        counts = settings.forget * self.counts[leaves] + 1.0
        self.counts[leaves] = counts
        share = self._rate / counts
        # All leaves together never correct more than the whole error.
        share *= min(1.0, 1.0 / (float(share.sum()) * max(float(weight.max()), 1.0) + 1e-12))
        self.values[:, leaves] += np.multiply.outer(weight * left, share)
        self._into_cone(leaves, float(left[0]) > 0)

    def alarm(self) -> None:
        """Adapt faster and trust present knowledge less, because the application has changed."""
        self.gain_var = max(self.gain_var, self.settings.gain_drift_var)
        np.minimum(self.counts, self.settings.drift_count, out=self.counts)

    def _into_cone(self, leaves: Indices, rose: bool) -> None:
        forest = self.forest
        if not len(leaves):
            return
        words = (forest.above if rose else forest.below).reshape(-1).take(leaves)
        affected: NDArray[np.bool_] = (words[:, None] >> self._bits & 1).astype(np.bool_)
        values = self.values[0].reshape(forest.shape)
        moved = self.values[0].take(leaves)[:, None]
        (np.maximum if rose else np.minimum)(values, moved, out=values, where=affected)


def replicas(
    forest: Forest, base: float, x: Floats, y: Floats, weight: Floats, count: int, rng: np.random.Generator
) -> tuple[Floats, Floats, float]:
    """Bootstrap replicas of a fitted forest: the same splits, with leaf values from resampled data.

    Every row counts Poisson(1) times (Oza and Russell, "Online bagging and boosting", 2001), and the leaf values are
    fitted stage by stage to the replica's own residuals.

    Returns:
        Leaf values (count, T, L), constants (count,), and the mean squared error of the replicas on rows not drawn (NaN
            if there are none).
    """
    trees, width = forest.shape
    leaves = forest.leaves(np.asarray(x, dtype=np.float64)) - np.arange(trees) * width
    values = np.zeros((count, trees, width))
    bases = np.full(count, base)
    missed, rows = 0.0, 0
    for i in range(count):
        drawn = weight * rng.poisson(1.0, len(y))
        out = drawn == 0
        total = float(drawn.sum())
        if total > 0:
            bases[i] = float(drawn @ y) / total
        current = np.full(len(y), bases[i])
        for tree in range(trees):
            at = leaves[:, tree]
            pull = np.bincount(at, drawn * (y - current), width)
            values[i, tree] = _REPLICA_RATE * pull / (np.bincount(at, drawn, width) + 1.0)
            current += values[i, tree, at]
        missed += float(((y - current)[out] ** 2).sum())
        rows += int(out.sum())
    return values, bases, missed / rows if rows else math.nan
