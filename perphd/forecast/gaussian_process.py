"""Gaussian process on the history-dependent exponential kernel (Pace 2018, section 2.2.2).

A pattern is a time and the values before it,  x_t = [t, y_{t-h}, ..., y_{t-1}],  with target y_t. On standardised
columns

    k(x, x') = s^2 exp(-|x - x'| / length)
    mean     = k(x, X) (k(X, X) + noise)^-1 y
    variance = k(x, x) - k(x, X) (k(X, X) + noise)^-1 k(X, x)  (+ noise for the next observation)

over the latest N patterns. ``length`` and the noise's share of s^2 maximise the marginal likelihood over a grid;
s^2 is then  y' (K / s^2)^-1 y / N.  The grid needs one eigendecomposition per length.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from perphd.forecast.histogram import Floats
from perphd.forecast.series import Fitted, SeriesForecast

LENGTHS: Final = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Candidate lengths, in units of the square root of the number of columns."""
NOISES: Final = (1e-4, 1e-3, 1e-2, 0.05, 0.2, 1.0)
"""Candidate noise shares."""


@dataclass(frozen=True, slots=True)
class GaussianProcess:
    """``lags`` values per pattern, the latest ``patterns``. The thesis uses 10 and 10; 20 and 50 cover a season."""

    lags: int = 20
    patterns: int = 50
    name: str = "gp"
    refit_every: int = 60

    @property
    def history(self) -> int:
        """Number of values in all patterns."""
        return self.lags + self.patterns

    @property
    def least(self) -> int:
        """Half the patterns."""
        return self.lags + self.patterns // 2

    def fit(self, values: Floats) -> Fitted | None:
        """Length, share of noise and s^2 (on standardised targets)."""
        columns, targets, _ = self._standardised(values)
        if targets is None:
            return 1.0, 1.0, 0.0
        distances = _distances(columns[:-1], columns[:-1])
        best, found = -math.inf, (1.0, 1.0, 1.0)
        for length in LENGTHS:
            eigenvalues, vectors = np.linalg.eigh(np.exp(-distances / (length * math.sqrt(columns.shape[1]))))
            projected = (vectors.T @ targets) ** 2
            for noise in NOISES:
                spectrum = np.maximum(eigenvalues, 0.0) + noise
                signal = float(np.mean(projected / spectrum))
                likelihood = -0.5 * (len(targets) * math.log(signal) + float(np.sum(np.log(spectrum))))
                if likelihood > best:
                    best, found = likelihood, (length * math.sqrt(columns.shape[1]), noise, signal)
        return found

    def predict(self, fitted: Fitted, values: Floats) -> SeriesForecast:
        """Mean and spread of the next observation; the spread of a constant series is 0."""
        columns, targets, (middle, scale) = self._standardised(values)
        if targets is None:
            return SeriesForecast(float(values[-1]), 0.0)
        mean, variance = conditioned(columns, targets, *fitted)
        return SeriesForecast(middle + scale * mean, scale * math.sqrt(max(0.0, variance)))

    def _standardised(self, values: Floats) -> tuple[Floats, Floats | None, tuple[float, float]]:
        """Columns of all patterns, the one to forecast last; targets; middle and scale. No targets if constant."""
        recent = np.ascontiguousarray(values[-self.history :])
        targets = recent[self.lags :]
        n = len(targets)
        # numpy's mean and std take three times as long for so few values.
        middle = float(np.add.reduce(targets)) / n
        centred = targets - middle
        scale = math.sqrt(float(np.add.reduce(centred * centred)) / n)
        if scale <= 1e-9 * max(1e-300, float(np.max(np.abs(recent)))):
            return np.empty((0, 0)), None, (middle, 0.0)
        columns = np.empty((n + 1, self.lags + 1))
        columns[:, 0] = np.arange(n + 1)
        size = recent.itemsize
        columns[:, 1:] = np.lib.stride_tricks.as_strided(recent, (n + 1, self.lags), (size, size))
        columns -= np.add.reduce(columns[:-1]) / n
        spread = np.sqrt(np.einsum("ij,ij->j", columns[:-1], columns[:-1]) / n)
        columns /= np.where(spread > 0, spread, 1.0)
        return columns, centred / scale, (middle, scale)


def conditioned(
    columns: Floats, targets: Floats, length: float, noise: float, signal: float
) -> tuple[float, float]:
    """Mean and variance of the next observation, given targets of mean 0 (Eqs. 4.1 and 4.2, plus noise).

    ``columns``: the pattern before each target, and last the one before the next observation.
    """
    n = len(targets)
    kernel = np.exp(_distances(columns[:-1], columns) / -length)
    to_new = kernel[:, n]
    known = kernel[:, :n]
    known.flat[:: n + 1] += noise
    both = np.empty((n, 2))
    both[:, 0] = targets
    both[:, 1] = to_new
    solved = np.linalg.solve(known, both)
    mean, explained = (to_new @ solved).tolist()
    return mean, signal * (1.0 + noise - explained)


def _distances(first: Floats, second: Floats) -> Floats:
    squares = first @ (-2.0 * second.T)
    squares += np.einsum("ij,ij->i", first, first)[:, None]
    squares += np.einsum("ij,ij->i", second, second)
    return np.asarray(np.sqrt(np.maximum(squares, 0.0, out=squares), out=squares), dtype=np.float64)
