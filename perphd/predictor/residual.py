"""The local part of a learned correction: a Gaussian process on the logarithm of (measured / prior).

Samples are folded into cells (one per allocation and regime) by a count-aware average that forgets, so cost
does not grow with time and a policy that stays in one place cannot flush what is known elsewhere. The posterior
over at most ``MAX_CELLS`` cells gives mean and band for any allocation, near or far: far from every cell it
returns to the prior with the prior's doubt.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perphd.predictor.features import padded
from perphd.predictor.persist import MAX_AGE_S, MAX_CELLS, CellState, ResidualState

Floats = NDArray[np.float64]

HALF_LIFE_S = 600.0
"""After so long without a visit a cell counts half."""
MAX_COUNT = 30.0
"""Effective samples in a cell at most: beyond it the average forgets with a time constant of so many samples."""
DRIFT_SAMPLES = 3
"""So many samples in a row, more than 3 sigma off on the same side, are drift and no outliers."""
DOUBTED_COUNT = 3.0
"""Effective samples in any other cell at most once the application is known to have changed."""
_NUGGET = 1e-4


@dataclass(slots=True)
class _Cell:
    x: Floats
    mean: float
    count: float
    at_s: float
    surprises: int = 0
    left: float = 0.0  # of the mean, what a layer below had not foreseen when the samples came


class Residual:
    """Corrections to a prior, learned online.

    Args:
        scales: length scale per feature, shape (d,); rows may have more columns, which do not count.
        prior_sd: standard deviation of the correction where nothing is known (log units).
        noise_sd: starting value of one sample's scatter (log units); it is then estimated.
    """

    def __init__(self, scales: Floats, prior_sd: float, noise_sd: float) -> None:
        self._scales = scales
        self._prior_var = prior_sd * prior_sd
        self._noise_var = noise_sd * noise_sd
        self._cells: dict[Hashable, _Cell] = {}
        self._solved: tuple[Floats, Floats, Floats] | None = None

    @property
    def noise_sd(self) -> float:
        """Estimated scatter of one sample around its cell's mean, in log units."""
        return float(np.sqrt(self._noise_var))

    @property
    def alarms(self) -> int:
        """It has no alarm of its own: a cell that is off starts anew."""
        return 0

    @property
    def cells(self) -> int:
        """Places that it knows."""
        return len(self._cells)

    def doubt(self, but: Hashable) -> None:
        """The application has changed: what is known of all cells but one counts little from now on."""
        for key, cell in self._cells.items():
            if key != but:
                cell.count = min(cell.count, DOUBTED_COUNT)
        self._solved = None

    def visits(self, key: Hashable) -> float:
        """Effective samples in this cell when it was last visited; 0 if there is none."""
        cell = self._cells.get(key)
        return cell.count if cell is not None else 0.0

    def rebase(self, below: Callable[[Floats], Floats]) -> None:
        """The layer below is another one now: ``below`` gives for rows (n, D) what it says, (n,)."""
        if self._cells:
            cells = list(self._cells.values())
            for cell, said in zip(cells, below(np.stack([c.x for c in cells])), strict=True):
                cell.left = cell.mean - float(said)
            self._solved = None

    def update(self, key: Hashable, x: Floats, residual: float, at_s: float, below: float = 0.0) -> float:
        """Fold one sample (features (D,), log units) into its cell. One outlier is clipped at 3 sigma, not refused.

        Several in a row on one side are drift: the cell then starts anew from what it sees. ``below``: what a layer
        below this one said of the sample. Returns how far the sample was from what was believed of its cell.
        """
        cell = self._cells.get(key)
        if cell is None:
            missed = residual - float(self.predict(x[None], at_s)[0][0])
            if len(self._cells) >= MAX_CELLS:
                weakest = min(self._cells, key=lambda k: self._weight(self._cells[k], at_s))
                del self._cells[weakest]
            self._cells[key] = _Cell(x, residual, 1.0, at_s, 0, residual - below)
            self._solved = None
            return missed
        noise = self.noise_sd
        missed = error = residual - cell.mean
        cell.count = self._weight(cell, at_s)
        if abs(error) > 3.0 * noise:
            side = 1 if error > 0 else -1
            cell.surprises = cell.surprises + side if cell.surprises * side >= 0 else side
            if abs(cell.surprises) >= DRIFT_SAMPLES:
                cell.count, cell.surprises = 1.0, 0
            else:
                error = 3.0 * noise * side
        else:
            cell.surprises = 0
        cell.count = min(cell.count + 1.0, MAX_COUNT)
        cell.left += (cell.mean + error - below - cell.left) / cell.count
        cell.mean += error / cell.count
        cell.x = x
        cell.at_s = at_s
        spread = min(error * error, 9.0 * self._noise_var)
        self._noise_var += 0.05 * (spread - self._noise_var)
        self._noise_var = float(np.clip(self._noise_var, 0.01**2, 0.5**2))
        self._solved = None
        return missed

    def predict(self, x: Floats, at_s: float, below: Floats | None = None) -> tuple[Floats, Floats, Floats]:
        """Mean and standard deviation of the correction, and support, for rows ``x`` of shape (n, D).

        ``below``: what a layer below this one says of the rows, (n,); the cells then only add what it had not foreseen.
        ``support`` is the effective number of samples of the nearest cell, discounted by its distance.
        """
        n = x.shape[0]
        said = np.zeros(n) if below is None else below
        if not self._cells:
            return said, np.full(n, np.sqrt(self._prior_var)), np.zeros(n)
        points, counts, inverse = self._solve(at_s)
        kernel = self._kernel(x, points)
        known = np.array([c.mean if below is None else c.left for c in self._cells.values()])
        mean = said + kernel @ (inverse @ known)
        var = self._prior_var - np.sum((kernel @ inverse) * kernel, axis=1)
        support = np.max(kernel / self._prior_var * counts[None, :], axis=1)
        return mean, np.sqrt(np.maximum(var, _NUGGET)), support

    def to_state(self, now_s: float) -> ResidualState:
        """Everything, as plain values; times become ages."""
        cells = tuple(
            CellState(
                key,
                tuple(None if np.isnan(v) else float(v) for v in cell.x),
                float(cell.mean),
                float(cell.count),
                min(max(0.0, now_s - cell.at_s), MAX_AGE_S),
                cell.surprises,
                float(cell.left),
            )
            for key, cell in self._cells.items()
        )
        return ResidualState(float(self._noise_var), cells)

    def restore(self, state: ResidualState, now_s: float, elapsed_s: float = 0.0) -> None:
        """Know these values instead; ``elapsed_s`` have passed since they were taken, and count as age."""
        self._noise_var = state.noise_var
        self._cells = {
            c.key: _Cell(
                padded(c.x),
                c.mean,
                c.count,
                now_s - (c.age_s + max(0.0, elapsed_s)),
                c.surprises,
                c.mean if c.left is None else c.left,
            )
            for c in state.cells
        }
        self._solved = None

    def _weight(self, cell: _Cell, at_s: float) -> float:
        return float(cell.count * 0.5 ** (max(0.0, at_s - cell.at_s) / HALF_LIFE_S))

    def _kernel(self, a: Floats, b: Floats) -> Floats:
        columns = len(self._scales)
        x, y = a[:, :columns] / self._scales, b[:, :columns] / self._scales
        squares = np.sum(x * x, axis=1)[:, None] + np.sum(y * y, axis=1)[None, :] - 2.0 * (x @ y.T)
        kernel: Floats = self._prior_var * np.exp(-0.5 * np.maximum(squares, 0.0))
        return kernel

    def _solve(self, at_s: float) -> tuple[Floats, Floats, Floats]:
        if self._solved is None:
            cells = list(self._cells.values())
            points = np.stack([c.x for c in cells])
            counts = np.array([max(self._weight(c, at_s), 0.05) for c in cells])
            gram = self._kernel(points, points)
            gram[np.diag_indices_from(gram)] += self._noise_var / counts + _NUGGET
            inverse: Floats = np.asarray(np.linalg.inv(gram), dtype=np.float64)
            self._solved = points, counts, inverse
        return self._solved
