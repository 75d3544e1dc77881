"""perph's Res-Perf model with parts removed, to measure the value of each part for decisions.

Whole: prior, reference, cells and boosted trees. *Without trees*: the learner ``residual``, prior and cells alone.
*Prior only*: the model learns the reference, but never corrections of the prior.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
from numpy.typing import NDArray

from perphd.predictor import Registry
from perphd.predictor.model import LraModel
from perphd.predictor.residual import Residual

Floats = NDArray[np.float64]
_SCALES = np.ones(7)
"""Number of features of a cell; no cells are created."""


class Untaught(Residual):
    """A correction that learns nothing: it always answers the prior with its full uncertainty."""

    def update(self, key: Hashable, x: Floats, residual: float, at_s: float, below: float = 0.0) -> float:
        """Return the sample's distance from the prior, without learning."""
        return residual


class PriorModel(LraModel):
    """A model that learns its reference and never a correction."""

    def __init__(self) -> None:
        super().__init__("residual")
        self._work, self._delay, self._batch = (Untaught(_SCALES, sd, sd) for sd in (0.2, 0.35, 0.3))


class PriorRegistry(Registry):
    """Models with only the prior."""

    def model(self, workload: str) -> LraModel:
        """The LRA's model, created at first use."""
        if workload not in dict(self.all()):
            self.put(workload, PriorModel())
        return super().model(workload)


def without_trees() -> Registry:
    """Prior and cells."""
    return Registry("residual")


def prior_only() -> Registry:
    """The prior."""
    return PriorRegistry()
