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
from collections.abc import Iterable
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
    """Order and coefficients; ``variance``: of the one-step error, corrected for degrees of freedom."""

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
        """The best model, as numbers: p, d, q, constant, variance, phi, theta."""
        found = best_model(values[-self.history :])
        if found is None:
            return None
        p, d, q = found.order
        return float(p), float(d), float(q), found.constant, found.variance, *found.phi, *found.theta

    def predict(self, fitted: Fitted, values: Floats) -> SeriesForecast:
        """The mean of the next value and the spread of one step."""
        p, d = int(fitted[0]), int(fitted[1])
        phi, theta = np.array(fitted[5 : 5 + p]), np.array(fitted[5 + p :])
        recent = values[-self.history :]
        w = np.diff(recent, d) if d else recent
        found = _errors(w, fitted[3], phi, theta, min(p, len(w)))
        step = fitted[3] + float(phi @ w[::-1][:p]) + float(theta @ found[::-1][: len(theta)])
        return SeriesForecast(step + (float(recent[-1]) if d else 0.0), math.sqrt(fitted[4]))


def best_model(values: Floats) -> ArimaModel | None:
    """The model with the least AIC among all orders; None for a constant or too short series."""
    orders = (
        (p, d, q) for d in range(GREATEST_D + 1) for p in range(GREATEST_P + 1) for q in range(GREATEST_Q + 1)
    )
    return _least(fit_order(values, *order) for order in orders)


def _least(models: Iterable[ArimaModel | None]) -> ArimaModel | None:
    return min((model for model in models if model is not None), key=lambda model: model.aic, default=None)


def fit_order(values: Floats, p: int, d: int, q: int) -> ArimaModel | None:
    """The model of one order; None if the series is too short or constant, or the model explodes."""
    start = max(_CONDITIONED, p + d) - d
    scale = float(np.std(values))
    if len(values) < start + d + 2 * (p + q + 2) or scale <= 1e-9 * max(
        1e-300, float(np.max(np.abs(values)))
    ):
        return None
    shift = float(np.mean(values)) if d == 0 else 0.0
    w = np.diff(values, d) / scale if d else (values - shift) / scale
    coefficients = _start(w, p, q, d == 0, start)
    coefficients, found = _least_squares(w, coefficients, p, d == 0, start)
    constant, phi, theta = _split(coefficients, p, d == 0)
    if not _invertible(theta) or _explodes(phi):
        return None
    n, squares = len(found), float(found @ found)
    if squares <= 0:
        return None
    return ArimaModel(
        d,
        scale * constant + shift * (1 - float(np.sum(phi))),
        tuple(map(float, phi)),
        tuple(map(float, theta)),
        scale * scale * squares / max(1, n - len(coefficients)),
        n * math.log(scale * scale * squares / n) + 2 * (len(coefficients) + 1),
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


def _regressors(w: Floats, p: int, with_constant: bool, start: int) -> Floats:
    ones = np.ones((len(w) - start, 1 if with_constant else 0))
    return np.hstack((ones, _lagged(w, p, start))) if p else ones


def _solve(columns: Floats, wanted: Floats) -> Floats:
    return np.asarray(np.linalg.lstsq(columns, wanted, rcond=None)[0], dtype=np.float64)


def _step(slopes: Floats, wanted: Floats) -> Floats:
    """A Gauss-Newton step by the normal equations. A poor step is halved, so accuracy buys nothing."""
    try:
        return np.asarray(np.linalg.solve(slopes.T @ slopes, slopes.T @ wanted), dtype=np.float64)
    except np.linalg.LinAlgError:
        return _solve(slopes, wanted)


def _start(w: Floats, p: int, q: int, with_constant: bool, start: int) -> Floats:
    columns = _regressors(w, p, with_constant, start)
    if not q:
        return _solve(columns, w[start:])
    lags = min(_LONG_LAGS, len(w) // 4)
    long = _lagged(w, lags, 0)
    errors = w - long @ _solve(long[start:], w[start:])
    found = _solve(np.hstack((columns, _lagged(errors, q, start))), w[start:])
    if not _invertible(found[-q:]):
        found[-q:] *= 0.5 / max(0.5, float(np.sum(np.abs(found[-q:]))))
    return found


def _errors(w: Floats, constant: float, phi: Floats, theta: Floats, start: int) -> Floats:
    known = w[start:] - constant
    if len(phi):
        known = known - _lagged(w, len(phi), start) @ phi
    return _filtered(known, theta)


def _filtered(signal: Floats, theta: Floats) -> Floats:
    """``signal`` filtered by 1 / theta(L), with zero initial errors."""
    return np.array(_recursion(signal.tolist(), theta)) if len(theta) else signal


def _recursion(signal: list[float], theta: Floats) -> list[float]:
    first = float(theta[0])
    second = float(theta[1]) if len(theta) > 1 else 0.0
    before, last = 0.0, 0.0
    found = []
    for value in signal:
        before, last = last, value - first * last - second * before
        found.append(last)
    return found


def _filtered_columns(columns: Floats, theta: Floats) -> Floats:
    """Every column filtered by 1 / theta(L): the filter's impulse response, as a matrix, times the columns."""
    n = len(columns)
    response = np.array([0.0] * (n - 1) + _recursion([1.0] + [0.0] * (n - 1), theta))
    size = response.itemsize
    matrix = np.lib.stride_tricks.as_strided(response[n - 1 :], (n, n), (size, -size), writeable=False)
    return np.asarray(matrix @ columns, dtype=np.float64)


def _least_squares(
    w: Floats, coefficients: Floats, p: int, with_constant: bool, start: int
) -> tuple[Floats, Floats]:
    found = _errors(w, *_split(coefficients, p, with_constant), start)
    q = len(coefficients) - p - with_constant
    if not q:
        return coefficients, found
    columns = _regressors(w, p, with_constant, start)
    squares = float(found @ found)
    for _ in range(_STEPS):
        slopes = _filtered_columns(np.hstack((columns, _lagged(found, q, 0))), coefficients[-q:])
        step = _step(slopes, found)
        for _ in range(_HALVINGS):
            tried = coefficients + step
            if _invertible(tried[-q:]):
                errors = _errors(w, *_split(tried, p, with_constant), start)
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


def _explodes(phi: Floats) -> bool:
    return bool(len(phi)) and float(np.max(np.abs(np.roots(np.concatenate(([1.0], -phi)))))) > _EXPLODES
