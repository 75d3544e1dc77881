"""Conformal calibration: how many spreads above the mean a bound must lie to reach its coverage.

For a forecast of mean m and spread s, an observation y has the normalised residual z = (y - m) / s. The bound
m + k s covers y if z <= k. With n residuals of one distribution, the ceil((n + 1) c)-th smallest of them covers
the next one with probability c (split conformal prediction). Series drift, so the level c itself is adjusted
(adaptive conformal inference, Gibbs and Candes 2021):

    level += gain * (missed - (1 - coverage))

A miss raises the level, and each covered value lowers it a little. Over time the share of misses is 1 -
coverage on any series, even if no distribution describes its residuals.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from perphd.domain.quick import changer
from perphd.forecast.histogram import Floats

KEPT_RESIDUALS: Final = 500
GAIN: Final = 0.01
NORMAL_MULTIPLIER: Final = 3.0
"""Multiplier of the spread before there are residuals: the three-sigma rule of the shaper."""
GREATEST_LEVEL: Final = 1.05
"""Maximum level. A level above 1 means the greatest residual, widened by the excess."""
WIDENING: Final = 20.0
"""Factor between the level's excess over 1 and the share by which the greatest residual is widened."""


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """Residuals of one forecaster on one series, newest last, and the requested level.

    ``first`` is the multiplier before there are residuals, and its minimum while there are too few.
    """

    coverage: float = 0.99
    level: float = 0.99
    residuals: Floats = field(default_factory=lambda: np.empty(0))
    first: float = NORMAL_MULTIPLIER

    @property
    def multiplier(self) -> float:
        """Spreads between mean and bound."""
        return multipliers([self])[0]

    @property
    def rank(self) -> int:
        """Rank of the residual that is the multiplier, counted from the smallest; greater than the number of residuals
        if none is large enough.
        """
        return math.ceil((len(self.residuals) + 1) * min(self.level, 1.0))

    @property
    def beyond(self) -> float:
        """The multiplier if no residual is large enough."""
        n = len(self.residuals)
        if not n:
            return self.first
        greatest = float(np.maximum.reduce(self.residuals))
        widened = greatest * (1.0 + WIDENING * max(0.0, self.level - 1.0))
        # With too few residuals for the quantile, the first multiplier is the minimum.
        return max(widened, self.first if n < 1.0 / (1.0 - self.coverage) else 0.0)


def multipliers(calibrations: Sequence[Calibration]) -> list[float]:
    """The multiplier of each calibration. Calibrations with equally many residuals are sorted together, which takes a
    quarter of the time.
    """
    found = [0.0] * len(calibrations)
    for places in _of_length([each.residuals for each in calibrations]):
        n = len(calibrations[places[0]].residuals)
        ranks = {place: calibrations[place].rank for place in places}
        inside = [place for place in places if ranks[place] <= n]
        for place in places:
            if ranks[place] > n:
                found[place] = calibrations[place].beyond
        if inside:
            rows = np.concatenate([calibrations[place].residuals for place in inside]).reshape(len(inside), n)
            wanted = [ranks[place] - 1 for place in inside]
            rows.partition(sorted(set(wanted)), axis=1)
            for place, value in zip(inside, rows[range(len(inside)), wanted].tolist(), strict=True):
                found[place] = value
    return found


def root_mean_squares(arrays: Sequence[Floats]) -> list[float]:
    """The root mean square of each array; 0 without values."""
    found = [0.0] * len(arrays)
    for places in _of_length(arrays):
        n = len(arrays[places[0]])
        if n:
            rows = np.concatenate([arrays[place] for place in places]).reshape(len(places), n)
            squares = np.einsum("ij,ij->i", rows, rows) / n
            for place, value in zip(places, np.sqrt(squares).tolist(), strict=True):
                found[place] = value
    return found


def _of_length(arrays: Sequence[Floats]) -> Iterable[list[int]]:
    """The places of arrays of one length, for each length."""
    places: dict[int, list[int]] = {}
    for place, each in enumerate(arrays):
        places.setdefault(len(each), []).append(place)
    return places.values()


_with_residual = changer(Calibration, "level", "residuals")


def with_residual(calibration: Calibration, residual: float, missed: bool) -> Calibration:
    """The calibration after one observation, which the bound ``missed`` or covered."""
    level = calibration.level + GAIN * (float(missed) - (1.0 - calibration.coverage))
    return _with_residual(
        calibration,
        min(GREATEST_LEVEL, max(0.5, level)),
        appended(calibration.residuals, residual, KEPT_RESIDUALS),
    )


def pinball(share: float, bound: float, value: float) -> float:
    """Pinball loss of a quantile: misses cost ``share`` and slack costs 1 - ``share`` per unit."""
    return share * (value - bound) if value > bound else (1.0 - share) * (bound - value)


def appended(values: Floats, value: float, most: int) -> Floats:
    """The latest ``most`` values of ``values`` with ``value`` appended, as a new array."""
    kept = min(len(values), most - 1)
    found = np.empty(kept + 1)
    found[:kept] = values[len(values) - kept :]
    found[kept] = value
    return found
