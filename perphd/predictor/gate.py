"""Gate: decides whether a model may act, from its recent mean error at the current allocation.

Scatter of single samples is not model error, but the mean of several signed errors is. While this mean
exceeds the limit, the model only advises: its bands are as wide as the prior's wherever it has no recent
measurement.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from perphd.domain.learning import GATE_MAPE

Floats = NDArray[np.float64]

WELL_MEASURED: Final = 5.0
"""Effective samples that make a place known regardless of the model's quality elsewhere."""
_GAIN: Final = 0.25
_REOPENS: Final = 0.75


class Gate:
    """Tracks the errors of one channel of one model.

    Args:
        most: largest mean relative error (0.2: 20 %); 0 never closes.

    Attributes:
        mean: recent mean signed error, log units.
    """

    def __init__(self, most: float = GATE_MAPE) -> None:
        self._most = most
        self.mean = 0.0
        self._closed = False

    @property
    def is_open(self) -> bool:
        """True if the model may act."""
        return not self._closed

    @property
    def error(self) -> float:
        """Recent mean relative error."""
        return math.expm1(abs(self.mean))

    def reset(self) -> Gate:
        """A new gate with the same limit."""
        return Gate(self._most)

    def restore(self, mean: float, closed: bool) -> None:
        """Restore a saved state: the mean error and whether the gate is closed."""
        self.mean, self._closed = mean, closed and self._most > 0

    def update(self, error: float) -> None:
        """Process the error of one sample (log units), computed before learning it."""
        if not math.isfinite(error):
            return
        self.mean += _GAIN * (min(max(error, -1.0), 1.0) - self.mean)
        limit = self._most * (_REOPENS if self._closed else 1.0)
        self._closed = self._most > 0 and self.error > limit

    def widen(self, sd: Floats, support: Floats, prior_sd: float) -> Floats:
        """The standard deviations (n,) to use, given the effective samples (n,) at each place.

        While the gate is closed, places that are not well measured get the prior's standard deviation.
        """
        if not self._closed:
            return sd
        unknown = 1.0 - np.minimum(support / WELL_MEASURED, 1.0)
        return np.asarray(np.maximum(sd, prior_sd * unknown), dtype=np.float64)
