"""Places where the application was seen since it last changed, and the distance of a point from them.

A model that is right at sampled places may be wrong one step further. The distance to the nearest place shows how far a
prediction is from confirmation by live samples.
"""

from __future__ import annotations

import numpy as np

from perphd.predictor.ogbrt.trees import Floats

_FAR = 0.3
"""Distance, as a fraction of the features' ranges, above which a place counts as never seen."""
_GRID = 20
"""Number of positions into which each feature's range is divided."""


class Explored:
    """The most recently visited places, at most ``capacity``.

    Args:
        low: (F,) lower ends of the ranges.
        high: (F,) upper ends.
        capacity: maximum number of places.
    """

    def __init__(self, low: Floats, high: Floats, capacity: int = 48) -> None:
        self._low = np.asarray(low, dtype=np.float64)
        span = np.asarray(high, dtype=np.float64) - self._low
        self._scale = 1.0 / np.where(span > 0, span, 1.0)
        self.capacity = self._capacity = capacity
        self._places: dict[tuple[int, ...], int] = {}
        self._at: Floats = np.zeros((capacity, len(self._low)))
        self._visits: Floats = np.zeros(capacity)

    def clear(self) -> None:
        """Forget all places."""
        self._places.clear()

    def seen(self) -> tuple[Floats, Floats]:
        """Places (n, F) as fractions of the ranges, latest visit last, and their visits (n,)."""
        rows = list(self._places.values())
        return self._at[rows].copy(), self._visits[rows].copy()

    def restore(self, at: Floats, visits: Floats) -> None:
        """Replace the places by values from ``seen``; keep only the last ones if there are too many."""
        self._places.clear()
        at, visits = at[-self._capacity :], visits[-self._capacity :]
        for row, (scaled, count) in enumerate(zip(at, visits, strict=True)):
            place = tuple(np.rint(scaled * _GRID).astype(int).tolist())
            self._places[place] = row
            self._at[row], self._visits[row] = scaled, count

    def visit(self, x: Floats) -> None:
        """Record the place of one sample, features (F,), all known."""
        scaled = (x - self._low) * self._scale
        place = tuple(np.rint(scaled * _GRID).astype(int).tolist())
        row = self._places.pop(place, None)
        if row is None:
            row = len(self._places)
            if row == self._capacity:
                row = self._places.pop(next(iter(self._places)))
            self._at[row], self._visits[row] = scaled, 0.0
        self._places[place] = row
        self._visits[row] += 1.0

    def distance(self, x: Floats) -> Floats:
        """Distance (n,) of rows (n, F) from the visited places: 0 at a visited place, 1 far from all of them."""
        return self.near(x)[0]

    def near(self, x: Floats) -> tuple[Floats, Floats]:
        """Distance and support of rows (n, F), each of shape (n,).

        The support is the largest number of visits of a place, discounted by its distance.
        """
        count = len(self._places)
        if not count:
            return np.ones(len(x)), np.zeros(len(x))
        # |a - b|^2 = |a|^2 + |b|^2 - 2ab, as one product of matrices.
        a, b = (x - self._low) * self._scale, self._at[:count]
        square = (a * a).sum(axis=1)[:, None] + (b * b).sum(axis=1)[None, :] - 2.0 * (a @ b.T)
        far = np.minimum(np.sqrt(np.maximum(square, 0.0)) / _FAR, 1.0)
        support = ((1.0 - far) * self._visits[:count]).max(axis=1)
        return np.asarray(far.min(axis=1), dtype=np.float64), np.asarray(support, dtype=np.float64)
