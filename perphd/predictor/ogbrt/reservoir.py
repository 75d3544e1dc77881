"""Samples kept for the next rebuild, stratified so that samples of one place do not displace those of others.

Space is divided into cells. A full reservoir drops the oldest sample of the fullest cell. Among equally full cells,
it chooses the one visited least recently. A policy that stays in one cell for days therefore replaces only that
cell's samples.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from perphd.predictor.ogbrt.trees import Floats

MAX_PER_CELL = 16


@dataclass(frozen=True, slots=True, eq=False)
class KeptSamples:
    """Rows ``x`` (n, F), targets ``y`` (n,), and ``number`` (n,): the count of samples seen before each."""

    x: Floats
    y: Floats
    number: Floats


class Reservoir:
    """At most ``capacity`` samples of F features.

    Args:
        low: (F,) lower ends of the features' ranges.
        high: (F,) upper ends.
        capacity: maximum number of rows.
        divisions: cells per feature.
    """

    def __init__(self, low: Floats, high: Floats, capacity: int = 1024, divisions: int = 5) -> None:
        self._low = np.asarray(low, dtype=np.float64)
        span = np.asarray(high, dtype=np.float64) - self._low
        self._scale = divisions / np.where(span > 0, span, 1.0)
        self._divisions, self._capacity = divisions, capacity
        self._x: Floats = np.zeros((capacity, len(self._low)))
        self._y: Floats = np.zeros(capacity)
        self._number: Floats = np.full(capacity, -1.0)
        self._free = list(range(capacity - 1, -1, -1))
        # Rows by cell, oldest first; cells by size, each in the order of their last visit.
        self._cells: dict[tuple[int, ...], deque[int]] = {}
        self._sizes: list[dict[tuple[int, ...], None]] = [{} for _ in range(MAX_PER_CELL + 1)]

    def __len__(self) -> int:
        return self._capacity - len(self._free)

    @property
    def cells(self) -> int:
        """Number of cells with a sample."""
        return len(self._cells)

    @property
    def nbytes(self) -> int:
        """Size in bytes of the samples and, as an estimate, of their index."""
        return self._x.nbytes + self._y.nbytes + self._number.nbytes + 8 * len(self) + 250 * self.cells

    def add(self, x: Floats, y: float, number: float) -> None:
        """Add one sample (finite or NaN features, finite y)."""
        where = np.where(np.isnan(x), -1.0, np.clip((x - self._low) * self._scale, 0, self._divisions - 1))
        cell = tuple(where.astype(int).tolist())
        rows = self._cells.get(cell)
        if rows is None:
            rows = self._cells[cell] = deque()
        else:
            del self._sizes[len(rows)][cell]
        if len(rows) == MAX_PER_CELL:
            self._free.append(rows.popleft())
        elif not self._free:
            self._give_up(cell, rows)
        row = self._free.pop()
        self._x[row], self._y[row], self._number[row] = x, y, number
        rows.append(row)
        self._sizes[len(rows)][cell] = None

    def kept(self) -> KeptSamples:
        """A copy of all samples, oldest first."""
        rows = np.array([row for cell in self._cells.values() for row in cell], dtype=np.intp)
        rows = rows[np.argsort(self._number[rows], kind="stable")]
        return KeptSamples(self._x[rows], self._y[rows], self._number[rows])

    def _give_up(self, mine: tuple[int, ...], rows: deque[int]) -> None:
        for size in range(MAX_PER_CELL, 0, -1):
            if size <= len(rows):  # the growing cell is itself one of the fullest
                self._free.append(rows.popleft())
                return
            if self._sizes[size]:
                cell = next(iter(self._sizes[size]))
                del self._sizes[size][cell]
                self._free.append(self._cells[cell].popleft())
                if size > 1:
                    self._sizes[size - 1][cell] = None
                else:
                    del self._cells[cell]
                return
