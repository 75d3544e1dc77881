"""ARIMA(p, d, q) with automatic order, by conditional least squares.

    w = (1 - L)^d y,    w_t = c + sum_i phi_i w_{t-i} + e_t + sum_j theta_j e_{t-j}

c is estimated for d = 0 only. Errors before the first one are 0; every order is fitted to the same values y_t, t
>= K, given the K values before them, so that Akaike's criterion

    AIC = n log(sum of e^2 / n) + 2 (number of parameters + 1)

compares orders with different d and p. Least squares start from the method of Hannan and Rissanen (1982): errors of a
long autoregression stand for e. Gauss-Newton steps follow with exact derivatives, which are w and e filtered by
1 / theta(L); a step that does not lower the sum is halved. Models that are not invertible or explode are dropped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from perphd.forecast.histogram import Floats
from perphd.forecast.series import Fitted, SeriesForecast

GREATEST_P: Final = 3
GREATEST_D: Final = 1
GREATEST_Q: Final = 2
_CONDITIONED: Final = GREATEST_P + GREATEST_D
_LONG_LAGS: Final = 8
_STEPS, _HALVINGS = 25, 6
_CONVERGED: Final = 1e-4
_UNIT_MARGIN: Final = 1e-3
_EXPLODES: Final = 1.001


@dataclass(frozen=True, slots=True)
class ArimaModel:
    """Order and coefficients; ``variance``: variance of the one-step error, corrected for degrees of freedom."""

    d: int
    constant: float
    phi: tuple[float, ...]
    theta: tuple[float, ...]
    variance: float
    aic: float

    @property
    def order(self) -> tuple[int, int, int]:
        """p, d and q."""
        return len(self.phi), self.d, len(self.theta)


@dataclass(frozen=True, slots=True)
class Arima:
    """ARIMA of the order with the least AIC; the order is selected again after ``refit_every`` windows."""

    history: int = 100
    name: str = "arima"
    least: int = 40
    refit_every: int = 120

    def fit(self, values: Floats) -> Fitted | None:
        """Select the best model; returns it as numbers: p, d, q, constant, variance, phi, theta."""
        found = best_model(values[-self.history :])
        if found is None:
            return None
        p, d, q = found.order
        return float(p), float(d), float(q), found.constant, found.variance, *found.phi, *found.theta

    def predict(self, fitted: Fitted, values: Floats) -> SeriesForecast:
        """The mean of the next value and the spread of one step."""
        p, d, constant = int(fitted[0]), int(fitted[1]), fitted[3]
        phi, theta = fitted[5 : 5 + p], fitted[5 + p :]
        recent = values[-self.history :]
        w = recent[1:] - recent[:-1] if d else recent
        n, start = len(w), min(p, len(w))
        mean = constant + sum(each * float(w[-lag]) for lag, each in enumerate(phi[:n], 1))
        if theta:
            errors = w[start:] - constant
            for lag, each in enumerate(phi[:start], 1):
                errors -= each * w[start - lag : n - lag]
            found = _recursion(errors.tolist(), theta)
            mean += sum(each * found[-lag] for lag, each in enumerate(theta[: len(found)], 1))
        return SeriesForecast(mean + (float(recent[-1]) if d else 0.0), math.sqrt(fitted[4]))


def best_model(values: Floats) -> ArimaModel | None:
    """The model with the least AIC among all orders; None for a constant or too short series."""
    found = []
    for d in range(GREATEST_D + 1):
        differences = _differences(values, d)
        if differences is not None:
            orders = ((p, q) for p in range(GREATEST_P + 1) for q in range(GREATEST_Q + 1))
            found += [_fitted(differences, p, q) for p, q in orders]
    models = sorted((model for model in found if model is not None), key=lambda model: model.aic)
    # Check for explosion last: it takes longer than a comparison, and few of the best models explode.
    return next((model for model in models if not _explodes(model.phi)), None)


def fit_order(values: Floats, p: int, d: int, q: int) -> ArimaModel | None:
    """The model of one order; None if the series is too short or constant, or the model explodes."""
    differences = _differences(values, d, max(p, GREATEST_P))
    model = None if differences is None else _fitted(differences, p, q)
    return None if model is None or _explodes(model.phi) else model


@dataclass(slots=True, eq=False)
class _Differences:
    """A series differenced ``d`` times, in units of ``scale`` around ``shift``, with the data that all its
    orders need.

    ``start``: the first fitted place. ``columns``: the constant, if d = 0, and the values before each place.
    """

    d: int
    shift: float
    scale: float
    w: Floats
    start: int
    columns: Floats
    errors: Floats | None = None
    """Errors of a long autoregression; computed when an order first needs them."""

    @property
    def constants(self) -> int:
        return int(self.d == 0)

    @property
    def wanted(self) -> Floats:
        return self.w[self.start :]

    def long_errors(self) -> Floats:
        if self.errors is None:
            long = _lagged(self.w, min(_LONG_LAGS, len(self.w) // 4), 0)
            self.errors = self.w - long @ _solve(long[self.start :], self.wanted)
        return self.errors


def _differences(values: Floats, d: int, lags: int = GREATEST_P) -> _Differences | None:
    """The differenced series; None if it is constant or shorter than the start."""
    start = max(_CONDITIONED, lags + d) - d
    scale = float(np.std(values))
    if len(values) <= start + d or scale <= 1e-9 * max(1e-300, float(np.max(np.abs(values)))):
        return None
    shift = float(np.mean(values)) if d == 0 else 0.0
    w = np.diff(values, d) / scale if d else (values - shift) / scale
    ones = np.ones((len(w) - start, 1 if d == 0 else 0))
    return _Differences(d, shift, scale, w, start, np.hstack((ones, _lagged(w, lags, start))))


def _fitted(of: _Differences, p: int, q: int) -> ArimaModel | None:
    """The model of one order; None if the series is too short or the model is not invertible."""
    if len(of.w) < of.start + 2 * (p + q + 2):
        return None
    columns = of.columns[:, : of.constants + p]
    coefficients, found = _least_squares(columns, of.wanted, _first_coefficients(of, columns, q))
    constant, phi, theta = _split(coefficients, p, of.d == 0)
    if not _invertible(theta):
        return None
    n, squares = len(found), float(found @ found)
    if squares <= 0:
        return None
    return ArimaModel(
        of.d,
        of.scale * constant + of.shift * (1 - float(np.sum(phi))),
        tuple(map(float, phi)),
        tuple(map(float, theta)),
        of.scale * of.scale * squares / max(1, n - len(coefficients)),
        n * math.log(of.scale * of.scale * squares / n) + 2 * (len(coefficients) + 1),
    )


def _split(coefficients: Floats, p: int, with_constant: bool) -> tuple[float, Floats, Floats]:
    first = 1 if with_constant else 0
    return (
        float(coefficients[0]) if with_constant else 0.0,
        coefficients[first : first + p],
        coefficients[first + p :],
    )


def _lagged(w: Floats, lags: int, start: int) -> Floats:
    """Columns w_{t-1} ... w_{t-lags} for t >= start; 0 before the series begins."""
    padded = np.concatenate((np.zeros(lags), w))
    return np.stack([padded[lags + start - i : lags + len(w) - i] for i in range(1, lags + 1)], axis=1)


def _solve(columns: Floats, wanted: Floats) -> Floats:
    return np.asarray(np.linalg.lstsq(columns, wanted, rcond=None)[0], dtype=np.float64)


def _step(slopes: Floats, wanted: Floats) -> Floats:
    """A Gauss-Newton step by the normal equations. A poor step is halved, so more accuracy would not help."""
    try:
        return np.asarray(np.linalg.solve(slopes.T @ slopes, slopes.T @ wanted), dtype=np.float64)
    except np.linalg.LinAlgError:
        return _solve(slopes, wanted)


def _first_coefficients(of: _Differences, columns: Floats, q: int) -> Floats:
    if not q:
        return _solve(columns, of.wanted)
    found = _solve(np.hstack((columns, _lagged(of.long_errors(), q, of.start))), of.wanted)
    if not _invertible(found[-q:]):
        found[-q:] *= 0.5 / max(0.5, float(np.sum(np.abs(found[-q:]))))
    return found


def _filtered(signal: Floats, theta: Floats) -> Floats:
    """``signal`` filtered by 1 / theta(L), with zero initial errors."""
    return np.array(_recursion(signal.tolist(), theta.tolist())) if len(theta) else signal


def _recursion(signal: Sequence[float], theta: Sequence[float]) -> list[float]:
    first = theta[0]
    second = theta[1] if len(theta) > 1 else 0.0
    before, last = 0.0, 0.0
    found = []
    for value in signal:
        before, last = last, value - first * last - second * before
        found.append(last)
    return found


def _filtered_columns(columns: Floats, theta: Floats) -> Floats:
    """Every column filtered by 1 / theta(L): the filter's impulse response, as a matrix, times the columns."""
    n = len(columns)
    response = np.array([0.0] * (n - 1) + _recursion([1.0] + [0.0] * (n - 1), theta.tolist()))
    size = response.itemsize
    matrix = np.lib.stride_tricks.as_strided(response[n - 1 :], (n, n), (size, -size), writeable=False)
    return np.asarray(matrix @ columns, dtype=np.float64)


def _least_squares(columns: Floats, wanted: Floats, coefficients: Floats) -> tuple[Floats, Floats]:
    """The coefficients with the least sum of squares near these, and their errors.

    ``columns``: the factors of the first coefficients; the remaining coefficients are theta.
    """
    known = columns.shape[1]
    q = len(coefficients) - known
    if not q:
        return coefficients, wanted - columns @ coefficients
    found = _filtered(wanted - columns @ coefficients[:known], coefficients[known:])
    squares = float(found @ found)
    for _ in range(_STEPS):
        slopes = _filtered_columns(np.hstack((columns, _lagged(found, q, 0))), coefficients[known:])
        step = _step(slopes, found)
        for _ in range(_HALVINGS):
            tried = coefficients + step
            if _invertible(tried[known:]):
                errors = _filtered(wanted - columns @ tried[:known], tried[known:])
                if float(errors @ errors) < squares:
                    break
            step = step / 2
        else:
            break
        gained = squares - float(errors @ errors)
        coefficients, found, squares = tried, errors, squares - gained
        if gained <= _CONVERGED * squares:
            break
    return coefficients, found


def _invertible(theta: Floats) -> bool:
    if not len(theta):
        return True
    first, second = float(theta[0]), float(theta[1]) if len(theta) > 1 else 0.0
    return abs(second) < 1 - _UNIT_MARGIN and abs(first) < 1 + second - _UNIT_MARGIN


def _explodes(phi: tuple[float, ...]) -> bool:
    return bool(phi) and float(np.max(np.abs(np.roots((1.0, *(-each for each in phi)))))) > _EXPLODES
