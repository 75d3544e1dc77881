"""Where the application was seen since it last changed, and how far a point is from there.

A model that was right at the places it was shown may be wrong one step further. The distance to the nearest place
says how far a prediction is from what live samples have confirmed.
"""

from __future__ import annotations

import numpy as np

from perphd.predictor.ogbrt.trees import Floats

_FAR = 0.3
"""Distance, in parts of the features' ranges, from which on a place counts as never seen."""
_GRID = 20
"""Places are told apart at this resolution per range."""


class Explored:
    """At most ``capacity`` places, those visited last.

    Args:
        low: (F,) lower ends of the ranges.
        high: (F,) upper ends.
        capacity: places kept.
    """

    def __init__(self, low: Floats, high: Floats, capacity: int = 48) -> None:
        self._low = np.asarray(low, dtype=np.float64)
        span = np.asarray(high, dtype=np.float64) - self._low
        self._scale = 1.0 / np.where(span > 0, span, 1.0)
        self._capacity = capacity
        self._places: dict[tuple[int, ...], int] = {}
        self._at: Floats = np.zeros((capacity, len(self._low)))

    def clear(self) -> None:
        """Forget all places."""
        self._places.clear()

    def visit(self, x: Floats) -> None:
        """Take the place of one sample, features (F,), all known."""
        scaled = (x - self._low) * self._scale
        place = tuple(np.rint(scaled * _GRID).astype(int).tolist())
        row = self._places.pop(place, None)
        if row is None:
            row = len(self._places)
            if row == self._capacity:
                row = self._places.pop(next(iter(self._places)))
            self._at[row] = scaled
        self._places[place] = row

    def distance(self, x: Floats) -> Floats:
        """For rows (n, F): 0 at a place that was visited, 1 far from all of them; shape (n,)."""
        if not self._places:
            return np.ones(len(x))
        # |a - b|^2 = |a|^2 + |b|^2 - 2ab, as one product of matrices.
        a, b = (x - self._low) * self._scale, self._at[: len(self._places)]
        square = (a * a).sum(axis=1)[:, None] + (b * b).sum(axis=1)[None, :] - 2.0 * (a @ b.T)
        nearest = np.sqrt(np.maximum(square.min(axis=1), 0.0))
        return np.asarray(np.minimum(nearest / _FAR, 1.0), dtype=np.float64)
