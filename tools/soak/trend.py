"""Slopes with confidence: a line through block means, so that readings that resemble their neighbours count once.

Remaining correlation between neighbouring blocks (memory moves in steps) widens the interval: with the residuals'
first-order autocorrelation r, n blocks are worth n (1 - r) / (1 + r) independent ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import stats  # type: ignore[import-untyped]

BLOCKS = 20
"""Number of blocks into which readings are averaged before the fit."""
CONFIDENCE = 0.95
Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Trend:
    """A quantity over time. ``per_h``: its slope; ``low_per_h``, ``high_per_h``: the 95 % confidence interval."""

    name: str
    mean: float
    first: float
    last: float
    most: float
    per_h: float
    low_per_h: float
    high_per_h: float

    def grows(self, share_per_day: float = 0.05) -> bool:
        """True if it rises significantly, and by more than this share of its mean per day (less is no leak)."""
        return self.low_per_h > 0.0 and 24.0 * self.per_h > share_per_day * abs(self.mean)


def trend(name: str, at_s: Sequence[float], values: Sequence[float]) -> Trend:
    """The trend of these readings.

    Raises:
        ValueError: fewer than three readings.
    """
    if len(values) < 3:
        raise ValueError(f"{name}: {len(values)} readings have no trend")
    blocks = min(BLOCKS, len(values))
    hours = np.array([part.mean() for part in np.array_split(np.asarray(at_s) / 3600.0, blocks)])
    means = np.array([part.mean() for part in np.array_split(np.asarray(values, dtype=float), blocks)])
    fit = stats.linregress(hours, means)
    alike = _alike(means - (fit.intercept + fit.slope * hours))
    free = max(1.0, blocks * (1.0 - alike) / (1.0 + alike) - 2.0)
    spread = math.sqrt((1.0 + alike) / (1.0 - alike))
    wide = spread * float(fit.stderr) * float(stats.t.ppf(0.5 + CONFIDENCE / 2, free))
    wide = 0.0 if math.isnan(wide) else wide
    slope = float(fit.slope)
    return Trend(
        name,
        float(np.mean(values)),
        float(means[0]),
        float(means[-1]),
        float(max(values)),
        slope,
        slope - wide,
        slope + wide,
    )


def _alike(residuals: Floats) -> float:
    """First-order autocorrelation, limited to 0 .. 0.9."""
    before, after, square = residuals[:-1], residuals[1:], float(residuals @ residuals)
    return min(max(float(before @ after) / square, 0.0), 0.9) if square > 0.0 else 0.0
