"""Intervals of ratios that are summed over seeds: 95 % of a bootstrap that draws whole seeds.

Jobs of one seed share classes, histories and a queue, so single jobs and candidates are not independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

DRAWS: Final = 4000
LEVEL: Final = 0.95
LEAST_SEEDS: Final = 3


def ratio_interval(happened: Sequence[float], of: Sequence[float]) -> tuple[float, float]:
    """The interval of sum(happened) / sum(of), with one value of each per seed; (0, 1) with fewer than three seeds."""
    above, below = np.array(happened, dtype=np.float64), np.array(of, dtype=np.float64)
    if (below > 0).sum() < LEAST_SEEDS:
        return 0.0, 1.0
    chosen = np.random.default_rng(1).integers(len(below), size=(DRAWS, len(below)))
    sums = below[chosen].sum(axis=1)
    ratios = above[chosen].sum(axis=1)[sums > 0] / sums[sums > 0]
    low, high = np.quantile(ratios, ((1.0 - LEVEL) / 2, (1.0 + LEVEL) / 2))
    return float(low), float(high)
