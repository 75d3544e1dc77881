"""The local part of a learned correction: a Gaussian process on the logarithm of (measured / prior).

Samples are folded into cells (one per allocation and regime) by a count-aware average that forgets. The cost therefore
does not grow with time, and a policy that stays in one place cannot displace other cells. The posterior over at most
``MAX_CELLS`` cells gives mean and band for any allocation. Far from every cell it returns to the prior, with the
prior's uncertainty.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable

import numpy as np
from numpy.typing import NDArray

from perphd.predictor.features import padded
from perphd.predictor.persist import MAX_AGE_S, MAX_CELLS, CellState, ResidualState

Floats = NDArray[np.float64]

HALF_LIFE_S = 600.0
"""Half-life, in seconds, of the weight of a cell without visits."""
MAX_COUNT = 30.0
"""Upper bound of effective samples in a cell, which is also the memory of its average in samples."""
DRIFT_SAMPLES = 3
"""Consecutive samples beyond 3 sigma on one side that are drift instead of outliers."""
DOUBTED_COUNT = 3.0
"""Upper bound of other cells' effective samples once the application is known to have changed."""
_NUGGET = 1e-4


class Residual:
    """Corrections to a prior, learned online.

    Args:
        scales: length scale per feature, shape (d,); further columns of rows are ignored.
        prior_sd: standard deviation of the correction where nothing is known (log units).
        noise_sd: initial estimate of one sample's scatter (log units).

    Attributes:
        clipped: number of outliers, which were learned only in part.
    """

    def __init__(self, scales: Floats, prior_sd: float, noise_sd: float) -> None:
        self._scales = scales
        self._prior_var = prior_sd * prior_sd
        self._noise_var = noise_sd * noise_sd
        self.clipped = 0
        self._clear()

    def _clear(self) -> None:
        # One row per cell, the first len(self._row) in use. The kernel between them is updated row by row,
        # because one sample changes one cell.
        self._row: dict[Hashable, int] = {}
        self._x: list[Floats] = []
        self._mean, self._left = np.zeros(MAX_CELLS), np.zeros(MAX_CELLS)
        self._count, self._at_s = np.zeros(MAX_CELLS), np.zeros(MAX_CELLS)
        self._surprises = [0] * MAX_CELLS
        self._points: Floats = np.zeros((MAX_CELLS, len(self._scales)))
        self._between: Floats = np.zeros((MAX_CELLS, MAX_CELLS))
        self._solved: tuple[Floats, Floats] | None = None

    @property
    def noise_sd(self) -> float:
        """Estimated scatter of one sample around its cell's mean, in log units."""
        return math.sqrt(self._noise_var)

    def noise_at_least(self, sd: float) -> None:
        """Set a lower bound on the scatter of one sample (log units)."""
        self._noise_var = max(self._noise_var, sd * sd)

    @property
    def alarms(self) -> int:
        """Always 0: a cell that drifts restarts without an alarm."""
        return 0

    @property
    def cells(self) -> int:
        """Number of places known."""
        return len(self._row)

    def doubt(self, but: Hashable = None) -> None:
        """Reduce the weight of all cells (except ``but``), because the application has changed."""
        kept = self._row.get(but)
        count = self._count[kept] if kept is not None else 0.0
        np.minimum(self._count, DOUBTED_COUNT, out=self._count)
        if kept is not None:
            self._count[kept] = count
        self._solved = None

    def visits(self, key: Hashable) -> float:
        """Effective samples of this cell at its last visit; 0 if it does not exist."""
        row = self._row.get(key)
        return float(self._count[row]) if row is not None else 0.0

    def rebase(self, below: Callable[[Floats], Floats]) -> None:
        """Adapt the cells to a new layer below. ``below`` returns that layer's predictions (n,) for rows (n, D)."""
        if self._row:
            n = len(self._row)
            self._left[:n] = self._mean[:n] - below(np.stack(self._x))
            self._solved = None

    def update(self, key: Hashable, x: Floats, residual: float, at_s: float, prior: float = 0.0) -> float:
        """Fold one sample (features (D,), log units) into its cell, see ``fold``; ``prior`` is ignored.

        Returns the sample's deviation from its cell's mean or, for a new cell, from the prediction at its
        place.
        """
        if key in self._row:
            return self.fold(key, x, residual, at_s)
        alone, _ = self.foretell(x, at_s)
        self.fold(key, x, residual, at_s)
        return residual - alone

    def fold(self, key: Hashable, x: Floats, residual: float, at_s: float, below: float = 0.0) -> float:
        """Fold one sample (features (D,), log units) into its cell; an outlier is clipped at 3 sigma.

        Several consecutive outliers on one side are drift, and the cell restarts from them. ``below``:
        prediction of the layer below. Returns the deviation from the cell's mean, 0 if the cell is new.
        """
        self._solved = None
        row = self._row.get(key)
        if row is None:
            self._put(self._make_room(key, at_s), x, residual, residual - below, 1.0, at_s, 0)
            return 0.0
        noise, mean = self.noise_sd, float(self._mean[row])
        missed = error = residual - mean
        count = _faded(float(self._count[row]), at_s - float(self._at_s[row]))
        surprises = self._surprises[row]
        if abs(error) > 3.0 * noise:
            side = 1 if error > 0 else -1
            surprises = surprises + side if surprises * side >= 0 else side
            if abs(surprises) >= DRIFT_SAMPLES:
                count, surprises = 1.0, 0
            else:
                error = 3.0 * noise * side
                self.clipped += 1
        else:
            surprises = 0
        count = min(count + 1.0, MAX_COUNT)
        left = float(self._left[row])
        left += (mean + error - below - left) / count
        self._put(row, x, mean + error / count, left, count, at_s, surprises)
        spread = min(error * error, 9.0 * self._noise_var)
        noise_var = self._noise_var + 0.05 * (spread - self._noise_var)
        self._noise_var = min(max(noise_var, 0.01**2), 0.5**2)
        return missed

    def foretell(self, x: Floats, at_s: float) -> tuple[float, float]:
        """The expected correction for one row (D,), and the part of it that the layer below does not explain."""
        n = len(self._row)
        if not n:
            return 0.0, 0.0
        _, inverse = self._solve(at_s)
        weights = self._kernel(x[None])[0] @ inverse
        return float(weights @ self._mean[:n]), float(weights @ self._left[:n])

    def predict(self, x: Floats, at_s: float, prior: Floats | None = None) -> tuple[Floats, Floats, Floats]:
        """See ``Correction``; ``prior`` is ignored."""
        return self.above(x, at_s)

    def support(self, x: Floats, at_s: float) -> Floats:
        """For rows (n, D): effective samples of the nearest cell, discounted by distance; (n,)."""
        if not self._row:
            return np.zeros(len(x))
        kernel = self._kernel(x)
        np.multiply(kernel, self._weights(at_s) / self._prior_var, out=kernel)
        return np.asarray(kernel.max(axis=1), dtype=np.float64)

    def above(self, x: Floats, at_s: float, below: Floats | None = None) -> tuple[Floats, Floats, Floats]:
        """Mean and sd of the correction, and support, for rows ``x`` (n, D).

        ``below``: predictions of the layer below, (n,), to which the cells add the part that it does not
        explain. ``support``: effective samples of the nearest cell, discounted by distance.
        """
        n = x.shape[0]
        said = np.zeros(n) if below is None else below
        if not self._row:
            return said, np.full(n, math.sqrt(self._prior_var)), np.zeros(n)
        counts, inverse = self._solve(at_s)
        kernel = self._kernel(x)
        weights = kernel @ inverse
        known = (self._mean if below is None else self._left)[: len(counts)]
        mean = said + weights @ known
        np.multiply(weights, kernel, out=weights)
        var = self._prior_var - weights.sum(axis=1)
        np.multiply(kernel, counts / self._prior_var, out=kernel)
        return mean, np.sqrt(np.maximum(var, _NUGGET)), kernel.max(axis=1)

    def to_state(self, now_s: float) -> ResidualState:
        """The whole state as plain values; times become ages."""
        cells = tuple(
            CellState(
                key,
                tuple(None if math.isnan(v) else v for v in self._x[row].tolist()),
                float(self._mean[row]),
                float(self._count[row]),
                min(max(0.0, now_s - float(self._at_s[row])), MAX_AGE_S),
                self._surprises[row],
                float(self._left[row]),
            )
            for key, row in sorted(self._row.items(), key=lambda item: item[1])
        )
        return ResidualState(float(self._noise_var), cells)

    def restore(self, state: ResidualState, now_s: float, elapsed_s: float = 0.0) -> None:
        """Replace the state by one that is ``elapsed_s`` seconds old."""
        self._clear()
        self._noise_var = state.noise_var
        for c in state.cells:
            left = c.mean if c.left is None else c.left
            at_s = now_s - (c.age_s + max(0.0, elapsed_s))
            row = self._make_room(c.key, at_s)
            self._put(row, padded(c.x), c.mean, left, c.count, at_s, c.surprises)

    def _make_room(self, key: Hashable, at_s: float) -> int:
        """The row of a cell; a new cell takes a free row, or that of the cell with least weight."""
        row = self._row.get(key)
        if row is None and len(self._row) < MAX_CELLS:
            row = len(self._row)
            self._x.append(self._points[row])
        elif row is None:
            row = int(np.argmin(self._weights(at_s)))
            del self._row[next(known for known, at in self._row.items() if at == row)]
        self._row[key] = row
        return row

    def _put(
        self, row: int, x: Floats, mean: float, left: float, count: float, at_s: float, surprises: int
    ) -> None:
        n = len(self._row)
        self._x[row] = x
        self._mean[row], self._left[row] = mean, left
        self._count[row], self._at_s[row], self._surprises[row] = count, at_s, surprises
        here = self._points[row] = x[: len(self._scales)] / self._scales
        away = self._points[:n] - here
        alike = self._prior_var * np.exp(-0.5 * (away * away).sum(axis=1))
        self._between[row, :n] = self._between[:n, row] = alike

    def _weights(self, at_s: float) -> Floats:
        """Present effective samples of every cell, (cells,)."""
        n = len(self._row)
        age_s = np.maximum(at_s - self._at_s[:n], 0.0)
        return np.asarray(self._count[:n] * np.exp2(age_s * (-1.0 / HALF_LIFE_S)), dtype=np.float64)

    def _kernel(self, x: Floats) -> Floats:
        """Kernel between rows (n, D) and the cells: (n, cells)."""
        points = self._points[: len(self._row)]
        scaled = x[:, : len(self._scales)] / self._scales
        squares = (scaled * scaled).sum(axis=1)[:, None] + (points * points).sum(axis=1)
        squares -= 2.0 * (scaled @ points.T)
        np.multiply(np.maximum(squares, 0.0, out=squares), -0.5, out=squares)
        np.multiply(np.exp(squares, out=squares), self._prior_var, out=squares)
        return np.asarray(squares, dtype=np.float64)

    def _solve(self, at_s: float) -> tuple[Floats, Floats]:
        if self._solved is None:
            n = len(self._row)
            counts = np.maximum(self._weights(at_s), 0.05)
            gram = self._between[:n, :n].copy()
            gram.reshape(-1)[:: n + 1] += self._noise_var / counts + _NUGGET  # the diagonal
            self._solved = counts, np.asarray(np.linalg.inv(gram), dtype=np.float64)
        return self._solved


def _faded(count: float, age_s: float) -> float:
    return float(count * 0.5 ** (max(0.0, age_s) / HALF_LIFE_S))
