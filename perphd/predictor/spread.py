"""Evenly spread points: the additive recurrence of the generalised golden ratio (Roberts, R_d)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def golden_steps(dimensions: int) -> NDArray[np.float64]:
    """The recurrence's step in each dimension: multiples of it, modulo 1, fill the unit cube evenly."""
    g = 2.0
    for _ in range(60):
        g = (1.0 + g) ** (1.0 / (dimensions + 1))
    return np.asarray((1.0 / g) ** np.arange(1, dimensions + 1), dtype=np.float64)
