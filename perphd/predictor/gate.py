"""May a model act? Not while what it says about where the application is now is clearly wrong.

One sample's scatter is not the model's error: the mean of some samples' signed errors is. While that is beyond the
limit the model advises: its bands are as wide as the prior's wherever it has not been measured since.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from perphd.domain.learning import GATE_MAPE

Floats = NDArray[np.float64]

WELL_MEASURED: Final = 5.0
"""Effective samples at a place from which it is known whatever the model is worth elsewhere."""
_GAIN: Final = 0.25
_REOPENS: Final = 0.75


class Gate:
    """Watches the errors of one channel of one model.

    Args:
        most: greatest mean relative error (0.2: 20 %); 0 never closes.

    Attributes:
        mean: mean signed error of late, log units.
    """

    def __init__(self, most: float = GATE_MAPE) -> None:
        self._most = most
        self.mean = 0.0
        self._closed = False

    @property
    def is_open(self) -> bool:
        """The model may act."""
        return not self._closed

    @property
    def error(self) -> float:
        """Mean relative error of late."""
        return math.expm1(abs(self.mean))

    def anew(self) -> Gate:
        """One with the same limit that has seen nothing."""
        return Gate(self._most)

    def restore(self, mean: float, closed: bool) -> None:
        """Go on from this."""
        self.mean, self._closed = mean, closed and self._most > 0

    def update(self, error: float) -> None:
        """Take one error (log units), from before the sample was learned."""
        if not math.isfinite(error):
            return
        self.mean += _GAIN * (min(max(error, -1.0), 1.0) - self.mean)
        limit = self._most * (_REOPENS if self._closed else 1.0)
        self._closed = self._most > 0 and self.error > limit

    def widen(self, sd: Floats, support: Floats, prior_sd: float) -> Floats:
        """Standard deviations (n,) as they may be believed, given the effective samples (n,) at each place."""
        if not self._closed:
            return sd
        unknown = 1.0 - np.minimum(support / WELL_MEASURED, 1.0)
        return np.asarray(np.maximum(sd, prior_sd * unknown), dtype=np.float64)
