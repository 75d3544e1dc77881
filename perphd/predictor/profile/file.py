"""Profile files: versioned JSON with a checksum, never code; every number is checked before use.

One object: ``format``, ``version``, ``sha256`` and ``body``; the checksum covers the body's canonical JSON (keys
sorted, no spaces). A file that is damaged, of another version, or without valid trees is refused with a message.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

import numpy as np

from perphd.domain.errors import PerphError
from perphd.predictor.ogbrt.trees import Floats, InvalidModel, Trees

FORMAT: Final = "perphd-profile"
VERSION: Final = 1
MAX_BYTES: Final = 8 << 20
MAX_ROWS: Final = 20_000
LEAST_R2: Final = 0.9
MOST_MAPE: Final = 0.2
"""Least R2 and greatest mean relative error on held-out samples with which a profile serves as a warm start."""


class FileError(PerphError):
    """A text cannot be used as a profile. The message says why."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """Errors on held-out rows (10-fold cross-validation), relative to the geometric mean of performance.

    ``rmse_sd``: standard deviation between folds. ``mape``: mean of |error| / truth. ``log_rmse``: RMSE of
    the logarithms.
    """

    rows: int
    r2: float
    rmse: float
    rmse_sd: float
    mae: float
    median_error: float
    mape: float
    log_rmse: float

    @property
    def refusal(self) -> str:
        """Reason why a model with these errors is not used as a warm start; empty if it is used."""
        if self.r2 < LEAST_R2:
            return f"R2 on held-out samples is {self.r2:.3f}, less than {LEAST_R2}"
        if self.mape > MOST_MAPE:
            return f"held-out predictions are off by {self.mape:.0%} on average, more than {MOST_MAPE:.0%}"
        return ""


@dataclass(frozen=True, slots=True)
class Origin:
    """Origin of a profile.

    ``app``: name of the LRA or the class. ``hosts``: hosts on which it was measured. ``work_source``: signal
    of its performance. ``engine``, ``rounds``, ``seed``: parameters of the training. ``grid_cells``: size of
    the lattice, of which ``measured`` cells were sampled. ``not_explored``: knobs that could not be set, with
    reasons. ``note``: remarks.
    """

    app: str
    hosts: tuple[str, ...]
    perphd_version: str
    made_at_unix_s: float
    work_source: str
    engine: str
    rounds: int
    seed: int
    grid_cells: int
    measured: int
    not_explored: tuple[str, ...] = ()
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

    origin: Origin
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


def to_text(profile: Profile) -> str:
    """The file's text, ending with a newline.

    Raises:
        FileError: the profile holds an invalid value.
    """
    body = {
        "origin": asdict(profile.origin),
        "metrics": asdict(profile.metrics),
        "features": list(profile.features),
        "scale": list(profile.scale),
        "low": list(profile.low),
        "high": list(profile.high),
        "trees": trees_to_json(profile.trees),
        "x": profile.x.tolist(),
        "y": profile.y.tolist(),
    }
    try:
        canonical = _canonical(body)
    except ValueError as exc:
        raise FileError(f"the profile holds a number that is not finite: {exc}") from exc
    _profile(json.loads(canonical))
    head = json.dumps({"format": FORMAT, "version": VERSION, "sha256": _digest(canonical)})
    return f'{head[:-1]}, "body": {canonical}}}\n'


def from_text(text: str | bytes) -> Profile:
    """Parse a profile file.

    Raises:
        FileError: the text is not a valid profile.
    """
    if len(text) > MAX_BYTES:
        raise FileError(f"{len(text)} bytes exceed the limit for a profile ({MAX_BYTES})")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise FileError(f"it is not JSON: {str(exc)[:100] or 'nested too deeply'}") from exc
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise FileError(f"it is not a perphd profile: it must be a JSON object with the format {FORMAT!r}")
    version = data.get("version")
    if type(version) is not int or version != VERSION:
        raise FileError(f"its version is {str(version)[:20]}; this perphd reads version {VERSION}")
    body = data.get("body")
    try:
        right = isinstance(body, dict) and data.get("sha256") == _digest(_canonical(body))
    except (ValueError, RecursionError) as exc:
        raise FileError(f"it holds an invalid value: {exc}") from exc
    if not right:
        raise FileError("its checksum is wrong: the text is damaged or was edited")
    assert isinstance(body, dict)
    return _profile(body)


def trees_to_json(trees: Trees) -> dict[str, Any]:
    """Convert trees to lists."""
    found: dict[str, Any] = {}
    for item in fields(Trees):
        value = getattr(trees, item.name)
        found[item.name] = value.tolist() if isinstance(value, np.ndarray) else value
    found["features"], found["monotone"] = list(trees.features), list(trees.monotone)
    return found


def trees_from_json(data: object, where: str) -> Trees:
    """Convert lists to trees.

    Raises:
        FileError: something is missing or of the wrong kind, or the arrays do not form trees.
    """
    table = _table(data, where, [item.name for item in fields(Trees)])
    try:
        return Trees(
            tuple(_texts(table["features"], f"{where}.features")),
            tuple(int(v) for v in _numbers(table["monotone"], f"{where}.monotone")),
            _number(table["base"], f"{where}.base"),
            _ints(table["node_start"], f"{where}.node_start"),
            _ints(table["leaf_start"], f"{where}.leaf_start"),
            _ints(table["feature"], f"{where}.feature"),
            np.array(_numbers(table["threshold"], f"{where}.threshold")),
            _bools(table["missing_left"], f"{where}.missing_left"),
            _ints(table["left"], f"{where}.left"),
            _ints(table["right"], f"{where}.right"),
            np.array(_numbers(table["value"], f"{where}.value")),
        ).validate()
    except InvalidModel as exc:
        raise FileError(f"{where}: {exc}") from exc


def _profile(body: Mapping[str, Any]) -> Profile:
    names = [item.name for item in fields(Profile)]
    table = _table(body, "the body", names)
    features = tuple(_texts(table["features"], "features"))
    width = len(features)
    scale, low, high = (tuple(_numbers(table[k], k)) for k in ("scale", "low", "high"))
    rows = table["x"]
    if not isinstance(rows, list) or len(rows) > MAX_ROWS:
        raise FileError(f"x is not a list of at most {MAX_ROWS} rows")
    x = np.array([_numbers(row, f"x[{i}]") for i, row in enumerate(rows)], dtype=np.float64) if rows else None
    x = np.zeros((0, width)) if x is None else x
    y = np.array(_numbers(table["y"], "y"), dtype=np.float64)
    trees = trees_from_json(table["trees"], "trees")
    if not len(scale) == len(low) == len(high) == width or x.shape != (len(y), width):
        raise FileError(
            f"scale, low and high have {len(scale)}, {len(low)} and {len(high)} entries, x has the shape {x.shape}; "
            f"needed are {width} entries, one per feature, and the shape {(len(y), width)}"
        )
    if trees.features != features:
        raise FileError(
            f"trees.features are {trees.features}, but must equal the profile's features {features}"
        )
    if min(scale, default=1.0) <= 0:
        raise FileError(f"scale is {scale}; every entry must be positive")
    return Profile(
        _origin(table["origin"]), _metrics(table["metrics"]), features, scale, low, high, trees, x, y
    )


def _origin(data: object) -> Origin:
    table = _table(data, "origin", [item.name for item in fields(Origin)])
    texts = {
        k: _text(table[k], f"origin.{k}") for k in ("app", "perphd_version", "work_source", "engine", "note")
    }
    whole = {k: int(_number(table[k], f"origin.{k}")) for k in ("rounds", "seed", "grid_cells", "measured")}
    return Origin(
        hosts=tuple(_texts(table["hosts"], "origin.hosts")),
        not_explored=tuple(_texts(table["not_explored"], "origin.not_explored")),
        made_at_unix_s=_number(table["made_at_unix_s"], "origin.made_at_unix_s"),
        **texts,  # type: ignore[arg-type]
        **whole,  # type: ignore[arg-type]
    )


def _metrics(data: object) -> Metrics:
    names = [item.name for item in fields(Metrics)]
    table = _table(data, "metrics", names)
    values = {name: _number(table[name], f"metrics.{name}") for name in names if name != "rows"}
    return Metrics(rows=int(_number(table["rows"], "metrics.rows")), **values)


def _table(data: object, where: str, names: list[str]) -> Mapping[str, Any]:
    if not isinstance(data, dict):
        raise FileError(f"{where} is not an object")
    if missing := [name for name in names if name not in data]:
        raise FileError(f"{where} lacks {missing[0]}")
    if extra := sorted(set(data) - set(names)):
        raise FileError(f"{where} has the unknown key {extra[0][:60]!r}")
    return data


def _number(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise FileError(f"{where} is {str(value)[:40]!r}, not a finite number")
    if abs(value) > 1e18:
        raise FileError(f"{where} is {value:g}, outside -1e18 to 1e18")
    return float(value)


def _numbers(value: object, where: str) -> list[float]:
    if not isinstance(value, list):
        raise FileError(f"{where} is not a list")
    return [_number(item, where) for item in value]


def _ints(value: object, where: str) -> Any:
    found = _numbers(value, where)
    if any(item != int(item) or abs(item) > 2**31 - 1 for item in found):
        raise FileError(f"{where} is not a list of integers from -(2**31 - 1) to 2**31 - 1")
    return np.array([int(item) for item in found], dtype=np.int32)


def _bools(value: object, where: str) -> Any:
    if not isinstance(value, list) or not all(isinstance(item, bool) for item in value):
        raise FileError(f"{where} is not a list of true and false")
    return np.array(value, dtype=np.bool_)


def _text(value: object, where: str) -> str:
    if not isinstance(value, str) or len(value) > 4096:
        raise FileError(f"{where} is not a text of at most 4096 characters")
    return value


def _texts(value: object, where: str) -> list[str]:
    if not isinstance(value, list | tuple) or len(value) > 256:
        raise FileError(f"{where} is not a list of at most 256 texts")
    return [_text(item, where) for item in value]


def _canonical(body: object) -> str:
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _digest(canonical: str) -> str:
    return hashlib.sha256(canonical.encode()).hexdigest()
