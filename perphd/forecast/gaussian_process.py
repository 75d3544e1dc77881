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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from perphd.forecast.histogram import Floats
from perphd.forecast.series import Fitted, SeriesForecast

LENGTHS: Final = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Candidate lengths, in units of the square root of the number of columns."""
NOISES: Final = (1e-4, 1e-3, 1e-2, 0.05, 0.2, 1.0)
"""Candidate noise shares."""
_TOGETHER: Final = 8
"""Number of series forecast in one library call; the kernels of more series exceed the cache and the allocator's
pool.
"""


@dataclass(frozen=True, slots=True)
class GaussianProcess:
    """Uses the latest ``patterns`` patterns of ``lags`` values. The thesis uses 10 and 10; 20 and 50 cover a season."""

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
        """Number of values needed for a fit: enough for half the patterns."""
        return self.lags + self.patterns // 2

    def fit(self, values: Floats) -> Fitted | None:
        """Fit the kernel to standardised targets.

        Returns ``length``, the noise's share of s^2, and s^2, as the module defines them.
        """
        patterns = self._standardised(np.asarray(values[-self.history :])[None, :])
        if not len(patterns.places):
            return 1.0, 1.0, 0.0
        columns, targets = patterns.columns[0], patterns.targets[0]
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
        return self.predict_all([fitted], [values])[0]

    def predict_all(self, fitted: Sequence[Fitted], values: Sequence[Floats]) -> list[SeriesForecast]:
        """``predict`` for many series. This takes a quarter of the time, because the matrices are small."""
        found = [SeriesForecast(float(each[-1]), 0.0) for each in values]
        of_length: dict[int, list[int]] = {}
        for place, each in enumerate(values):
            of_length.setdefault(min(len(each), self.history), []).append(place)
        for length, places in of_length.items():
            for first in range(0, len(places), _TOGETHER):
                some = places[first : first + _TOGETHER]
                patterns = self._standardised(np.stack([values[place][-length:] for place in some]))
                varying = [some[place] for place in patterns.places]
                parameters = np.array([fitted[place] for place in varying]).reshape(-1, 3).T
                means, variances = conditioned(patterns.columns, patterns.targets, *parameters)
                means = patterns.middles + patterns.scales * means
                spreads = patterns.scales * np.sqrt(np.maximum(0.0, variances))
                for place, mean, spread in zip(varying, means.tolist(), spreads.tolist(), strict=True):
                    found[place] = SeriesForecast(mean, spread)
        return found

    def _standardised(self, recent: Floats) -> _Patterns:
        """The patterns of these series (rows) of one length, without constant series."""
        middles = np.add.reduce(recent[:, self.lags :], axis=1) / (recent.shape[1] - self.lags)
        centred = recent[:, self.lags :] - middles[:, None]
        n = centred.shape[1]
        scales = np.sqrt(np.add.reduce(centred * centred, axis=1) / n)
        greatest = np.maximum.reduce(np.abs(recent), axis=1)
        places = np.flatnonzero(scales > 1e-9 * np.maximum(1e-300, greatest))
        recent, middles, scales = np.ascontiguousarray(recent[places]), middles[places], scales[places]
        columns = np.empty((len(places), n + 1, self.lags + 1))
        columns[:, :, 0] = np.arange(n + 1)
        row, size = recent.strides
        columns[:, :, 1:] = np.lib.stride_tricks.as_strided(
            recent, (len(places), n + 1, self.lags), (row, size, size)
        )
        columns -= np.add.reduce(columns[:, :-1], axis=1, keepdims=True) / n
        spread = np.sqrt(np.einsum("kij,kij->kj", columns[:, :-1], columns[:, :-1]) / n)
        columns /= np.where(spread > 0, spread, 1.0)[:, None, :]
        return _Patterns(places, columns, centred[places] / scales[:, None], middles, scales)


@dataclass(frozen=True, slots=True, eq=False)
class _Patterns:
    """Standardised patterns of several series; the first axis enumerates the series.

    ``places``: their rows in the input. ``columns``: all patterns; the last one is to be forecast. A value of
    series k is ``middles[k] + scales[k] * target``.
    """

    places: NDArray[np.intp]
    columns: Floats
    targets: Floats
    middles: Floats
    scales: Floats


def conditioned(
    columns: Floats, targets: Floats, length: Floats | float, noise: Floats | float, signal: Floats | float
) -> tuple[Floats, Floats]:
    """Mean and variance of the next observation, given targets of mean 0 (Eqs. 4.1 and 4.2, plus noise).

    ``columns``: the pattern before each target and, as the last one, the pattern before the next observation.
    Leading axes of ``columns`` and ``targets`` enumerate series; the other arguments have one value for each series.
    """
    n = targets.shape[-1]
    kernel = np.exp(_distances(columns[..., :-1, :], columns) / -np.asarray(length)[..., None, None])
    to_new, known = kernel[..., n], kernel[..., :n]
    diagonal = np.arange(n)
    known[..., diagonal, diagonal] += np.asarray(noise)[..., None]
    solved = np.linalg.solve(known, np.stack((targets, to_new), axis=-1))
    found = (to_new[..., None, :] @ solved)[..., 0, :]
    return found[..., 0], signal * (1.0 + noise - found[..., 1])


def _distances(first: Floats, second: Floats) -> Floats:
    squares = first @ np.swapaxes(-2.0 * second, -1, -2)
    squares += np.einsum("...ij,...ij->...i", first, first)[..., None]
    squares += np.einsum("...ij,...ij->...i", second, second)[..., None, :]
    return np.asarray(np.sqrt(np.maximum(squares, 0.0, out=squares), out=squares), dtype=np.float64)
