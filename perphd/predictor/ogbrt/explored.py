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
        self.capacity = self._capacity = capacity
        self._places: dict[tuple[int, ...], int] = {}
        self._at: Floats = np.zeros((capacity, len(self._low)))
        self._visits: Floats = np.zeros(capacity)

    def clear(self) -> None:
        """Forget all places."""
        self._places.clear()

    def seen(self) -> tuple[Floats, Floats]:
        """Places (n, F) in parts of the ranges, the one visited last at the end, and the visits of each (n,)."""
        rows = list(self._places.values())
        return self._at[rows].copy(), self._visits[rows].copy()

    def restore(self, at: Floats, visits: Floats) -> None:
        """Know these places instead, as ``seen`` gave them; the last ones, if they are too many."""
        self._places.clear()
        at, visits = at[-self._capacity :], visits[-self._capacity :]
        for row, (scaled, count) in enumerate(zip(at, visits, strict=True)):
            place = tuple(np.rint(scaled * _GRID).astype(int).tolist())
            self._places[place] = row
            self._at[row], self._visits[row] = scaled, count

    def visit(self, x: Floats) -> None:
        """Take the place of one sample, features (F,), all known."""
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
        """For rows (n, F): 0 at a place that was visited, 1 far from all of them; shape (n,)."""
        return self.near(x)[0]

    def near(self, x: Floats) -> tuple[Floats, Floats]:
        """For rows (n, F): the distance (see there), and the visits of the place that speaks most for a row, less the
        farther it is away; each (n,).
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
