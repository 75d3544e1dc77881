"""Profile files (see ``predictor.sealed``): every number is checked before use.

A file that is damaged, of another version, or without valid trees is refused with a message.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np

from perphd.domain.errors import PerphError
from perphd.predictor.ogbrt.trees import Floats, InvalidModel, Trees
from perphd.predictor.sealed import SealedError, SealedFormat, decode, given, items, number

FORMAT: Final = "perphd-profile"
VERSION: Final = 1
MAX_BYTES: Final = 8 << 20
MAX_ROWS: Final = 20_000
_MOST = 1e18
_INT = 2**31 - 1
_LONG = 1 << 22
_TEXTS = 256
LEAST_R2: Final = 0.9
MOST_MAPE: Final = 0.2
"""Minimum R2 and maximum mean relative error on held-out samples with which a profile serves as a warm start."""


class FileError(PerphError):
    """A text cannot be used as a profile. The message says why."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """Errors on held-out rows (10-fold cross-validation), relative to the geometric mean of performance.

    ``rmse_sd``: standard deviation between folds. ``mape``: mean of |error| / truth. ``log_rmse``: RMSE of
    the logarithms.
    """

    rows: int = number(0, _MOST)
    r2: float = number(-_MOST, _MOST)
    rmse: float = number(-_MOST, _MOST)
    rmse_sd: float = number(-_MOST, _MOST)
    mae: float = number(-_MOST, _MOST)
    median_error: float = number(-_MOST, _MOST)
    mape: float = number(-_MOST, _MOST)
    log_rmse: float = number(-_MOST, _MOST)

    @property
    def refusal(self) -> str:
        """Reason why a model with these errors is not used as a warm start; empty if it is used."""
        if self.r2 < LEAST_R2:
            return f"R2 on held-out samples is {self.r2:.3f}, less than {LEAST_R2}"
        if self.mape > MOST_MAPE:
            return f"held-out predictions are off by {self.mape:.0%} on average, more than {MOST_MAPE:.0%}"
        return ""


@dataclass(frozen=True, slots=True)
class ProfileOrigin:
    """Origin of a profile.

    ``app``: name of the LRA or the class. ``hosts``: hosts on which it was measured. ``work_source``: signal
    of its performance. ``engine``, ``rounds``, ``seed``: parameters of the training. ``grid_cells``: size of
    the lattice, of which ``measured`` cells were sampled. ``not_explored``: knobs that could not be set, with
    reasons. ``note``: remarks.
    """

    app: str
    hosts: tuple[str, ...] = items(0, _TEXTS)
    perphd_version: str = given()
    made_at_unix_s: float = number(-_MOST, _MOST)
    work_source: str = given()
    engine: str = given()
    rounds: int = number(-_MOST, _MOST)
    seed: int = number(-_MOST, _MOST)
    grid_cells: int = number(-_MOST, _MOST)
    measured: int = number(-_MOST, _MOST)
    not_explored: tuple[str, ...] = items(0, _TEXTS, default=())
    note: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """A warm start.

    Attributes:
        origin: the origin of the profile.
        metrics: its held-out errors.
        features: names of the columns of ``x``, each relative to ``scale``.
        scale: value of 1.0 by feature, in the knob's unit.
        low, high: explored range of each feature.
        trees: log of (performance / performance at the most generous cell).
        x, y: the training samples, (n, F) and (n,).
    """

    origin: ProfileOrigin
    metrics: Metrics
    features: tuple[str, ...]
    scale: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    trees: Trees
    x: Floats
    y: Floats

    @property
    def is_signed_off(self) -> bool:
        """True if it is accurate enough to start from."""
        return not self.metrics.refusal


@dataclass(frozen=True, slots=True)
class _TreesBody:
    """``Trees`` with lists instead of arrays."""

    features: tuple[str, ...] = items(0, _TEXTS)
    monotone: tuple[int, ...] = items(0, _TEXTS, 1)
    base: float = number(-_MOST, _MOST)
    node_start: tuple[int, ...] = items(0, _LONG, _INT)
    leaf_start: tuple[int, ...] = items(0, _LONG, _INT)
    feature: tuple[int, ...] = items(0, _LONG, _INT)
    threshold: tuple[float, ...] = items(0, _LONG, _MOST)
    missing_left: tuple[bool, ...] = items(0, _LONG)
    left: tuple[int, ...] = items(0, _LONG, _INT)
    right: tuple[int, ...] = items(0, _LONG, _INT)
    value: tuple[float, ...] = items(0, _LONG, _MOST)


@dataclass(frozen=True, slots=True)
class _Body:
    """``Profile`` with lists instead of arrays."""

    origin: ProfileOrigin
    metrics: Metrics
    features: tuple[str, ...] = items(0, _TEXTS)
    scale: tuple[float, ...] = items(0, _TEXTS, _MOST)
    low: tuple[float, ...] = items(0, _TEXTS, _MOST)
    high: tuple[float, ...] = items(0, _TEXTS, _MOST)
    trees: _TreesBody = given()
    x: tuple[tuple[float, ...], ...] = items(0, MAX_ROWS, _MOST)
    y: tuple[float, ...] = items(0, MAX_ROWS, _MOST)


_FILE: Final = SealedFormat(FORMAT, "profile", VERSION, (VERSION,), MAX_BYTES, FileError)


def to_text(profile: Profile) -> str:
    """The file's text, ending with a newline.

    Raises:
        FileError: the profile holds an invalid value.
    """
    values = {item.name: _plain(getattr(profile, item.name)) for item in fields(_Body)}
    if not all(math.isfinite(value) for value in values["y"]):
        raise FileError("the profile holds a number that is not finite")
    body = _Body(**values | {"trees": _body_of(profile.trees)})
    _profile(body)
    return _FILE.text(body)


def from_text(text: str | bytes) -> Profile:
    """Parse a profile file.

    Raises:
        FileError: the text is not a valid profile.
    """
    return _profile(_FILE.value(_Body, text))


def trees_to_json(trees: Trees) -> dict[str, Any]:
    """Convert trees to lists."""
    body = _body_of(trees)
    return {item.name: getattr(body, item.name) for item in fields(body)}


def trees_from_json(data: object, where: str) -> Trees:
    """Convert lists to trees.

    Raises:
        FileError: something is missing or of the wrong kind, or the arrays do not form trees.
    """
    try:
        return _trees(decode(_TreesBody, data, where), where)
    except SealedError as exc:
        raise FileError(str(exc)) from exc


def _body_of(trees: Trees) -> _TreesBody:
    return _TreesBody(**{item.name: _plain(getattr(trees, item.name)) for item in fields(_TreesBody)})


def _plain(value: Any) -> Any:
    """Tuples instead of arrays."""
    if not isinstance(value, np.ndarray):
        return value
    return tuple(map(tuple, value.tolist())) if value.ndim > 1 else tuple(value.tolist())


def _trees(body: _TreesBody, where: str) -> Trees:
    try:
        return Trees(
            body.features,
            body.monotone,
            body.base,
            np.array(body.node_start, dtype=np.int32),
            np.array(body.leaf_start, dtype=np.int32),
            np.array(body.feature, dtype=np.int32),
            np.array(body.threshold, dtype=np.float64),
            np.array(body.missing_left, dtype=np.bool_),
            np.array(body.left, dtype=np.int32),
            np.array(body.right, dtype=np.int32),
            np.array(body.value, dtype=np.float64),
        ).validate()
    except InvalidModel as exc:
        raise FileError(f"{where}: {exc}") from exc


def _profile(body: _Body) -> Profile:
    features, width = body.features, len(body.features)
    scale, low, high = body.scale, body.low, body.high
    if any(len(row) != width for row in body.x):
        raise FileError(f"every row of x must have one value for each of the {width} features")
    x = np.array(body.x, dtype=np.float64).reshape(len(body.x), width)
    y = np.array(body.y, dtype=np.float64)
    trees = _trees(body.trees, "trees")
    if not len(scale) == len(low) == len(high) == width or len(x) != len(y):
        raise FileError("scale, low and high must match features in length, and y must match x")
    if trees.features != features:
        raise FileError(
            f"trees.features are {trees.features}, but must equal the profile's features {features}"
        )
    if min(scale, default=1.0) <= 0:
        raise FileError(f"scale is {scale}; every entry must be positive")
    return Profile(body.origin, body.metrics, features, scale, low, high, trees, x, y)
