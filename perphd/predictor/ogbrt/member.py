"""A learning model with its bootstrap replicas and its uncertainty at places not seen."""

from __future__ import annotations

import math

import numpy as np

from perphd.predictor.ogbrt.forest import Forest, Indices
from perphd.predictor.ogbrt.rebuild import Rebuilt
from perphd.predictor.ogbrt.trees import Floats, Trees
from perphd.predictor.ogbrt.update import Ensemble, UpdateSettings, replicas

_EVIDENCE = 0.25
"""Weight of one sample at a place not seen before, in the running mean of squared errors at such places."""
_MOST_DOUBT = 0.5**2
_OUT_OF_BAG_FACTOR = 1.5
"""Correction of the out-of-bag error, which is optimistic because all rows chose the splits."""


class EnsembleMember:
    """A champion or a challenger.

    Args:
        rebuilt: structure and values to start from.
        settings: rates of adaptation.
        doubt_var: initial variance of its error far from all seen places.

    Attributes:
        ensemble: the model and its replicas.
        doubt_var: the present estimate of that variance.
    """

    def __init__(self, rebuilt: Rebuilt, settings: UpdateSettings, doubt_var: float) -> None:
        self.ensemble = Ensemble(rebuilt.forest, rebuilt.values, rebuilt.base, settings)
        self.doubt_var = min(doubt_var, _MOST_DOUBT)

    @classmethod
    def founded(
        cls,
        trees: Trees,
        x: Floats,
        y: Floats,
        settings: UpdateSettings,
        bags: int,
        prior_sd: float,
        seed: int,
    ) -> EnsembleMember:
        """Create from a warm start; replicas are fitted to its samples ``x`` (n, F), ``y`` (n,), if there are any.

        Raises:
            InvalidModel: the arrays do not form trees.
        """
        forest = Forest.compile(trees)
        own = forest.values()[None]
        doubt_var = prior_sd**2
        if len(y):
            weight, rng = np.ones(len(y)), np.random.default_rng(seed)
            values, bases, missed = replicas(forest, trees.base, x, y, weight, bags, rng)
            if math.isfinite(missed):
                doubt_var = _OUT_OF_BAG_FACTOR * missed
        else:
            values, bases = np.repeat(own, bags, axis=0), np.full(bags, trees.base)
        base = np.concatenate([[trees.base], bases])
        return cls(Rebuilt(forest, np.concatenate([own, values]), base), settings, doubt_var)

    @property
    def nbytes(self) -> int:
        """Size of its arrays in bytes."""
        return self.ensemble.nbytes

    def leaves(self, x: Floats) -> Indices:
        """See ``Forest.leaves``."""
        return self.ensemble.forest.leaves(x)

    def ask(self, leaves: Indices) -> tuple[Floats, Floats]:
        """Mean predictions and the variances between the replicas, each of shape (n,)."""
        found = self.ensemble.predict(leaves)
        return found[0], spread(found)

    def doubt(self, far: float, error: float, noise_var: float) -> None:
        """Update ``doubt_var`` by the error of a sample at distance ``far`` (0..1) from seen places."""
        evidence = min(max(error * error - noise_var, 0.0), _MOST_DOUBT)
        self.doubt_var = min(
            max(self.doubt_var + _EVIDENCE * (far * evidence - far * far * self.doubt_var), 0.0), _MOST_DOUBT
        )

    def learn(
        self, leaves: Indices, found: Floats, y: float, clip: float, weight: Floats, noise_var: float
    ) -> None:
        """Learn one sample that falls into ``leaves`` (T,), with predictions ``found`` (B + 1,) of model and replicas.

        Errors are clipped at ``clip``.
        """
        error = np.minimum(np.maximum(y - found, -clip), clip)
        self.ensemble.update(leaves, error, weight, noise_var)


def spread(found: Floats) -> Floats:
    """Variance between replicas, from predictions (B + 1, n) with the model in row 0; shape (n,)."""
    if len(found) < 2:
        return np.zeros(found.shape[1])
    replicas = found[1:]
    away = replicas - replicas.sum(axis=0) / len(replicas)
    return np.asarray((away * away).sum(axis=0) / len(replicas), dtype=np.float64)
