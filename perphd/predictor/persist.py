"""A model's state as plain values, and their text form: versioned JSON with a checksum, never code.

A file is one object: ``format``, ``version``, ``sha256`` and ``body``; the checksum covers the body's canonical JSON
(keys sorted, no spaces). Every number has bounds and every list a maximum length; anything outside is refused before a
model is built. Times are ages in seconds, because a monotonic clock is meaningless after a reboot.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import types
import typing
from collections.abc import Hashable, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import Any, Final

from perphd.domain.allocation import IDLE, CpuGrant, Weight
from perphd.domain.errors import PerphError

FORMAT: Final = "perphd-model"
VERSION: Final = 7
"""Version of the format.

2 added the boosted corrections (``BoostedState``); a file of version 1 is read as a model without them.
3 added the application's version; an older file is taken to be of the running version.
4 added provisional references.
5 added the staged correction (``StagedState``); its stages learn from the samples that an older file remembers.
6 added stages that started from other hosts' estimates.
7 added the application; the LRA of an older file is known by its own name.
"""
READ_VERSIONS: Final = (1, 2, 3, 4, 5, 6, 7)
MAX_BYTES: Final = 1024 * 1024
"""Largest size of a model file."""
FEATURES: Final = 7
MAX_FEATURES: Final = 32
MAX_CELLS: Final = 48
MAX_STAGES: Final = 64
MAX_COUNT: Final = 1000.0
MAX_AGE_S: Final = 1e10
_MAX_TEXT = 4096
_MAX_NODES = 8192
_MAX_LOG = 100.0
"""Bound of logarithms; no performance has larger values."""


class ModelFileError(PerphError):
    """A text cannot be used as a model. The message says why."""


def _number(low: float, high: float) -> Any:
    return field(metadata={"low": low, "high": high})


def _added(low: float, high: float) -> Any:
    """A field for a number that older files lack. It is None when such a file is read."""
    return field(default=None, metadata={"low": low, "high": high})


def _given() -> Any:
    return field()


def _items(low: int, high: int, each: float = math.inf) -> Any:
    return field(metadata={"fewest": low, "most": high, "low": -each, "high": each})


@dataclass(frozen=True, slots=True)
class CellKey:
    """Key of a cell of the learned corrections: an allocation, and the levels of load under which it was sampled."""

    total_cores: int = _number(1, 65536)
    batch_cores: int = _number(0, 65536)
    batch_weight: Weight = _number(1, 10000)
    exclusive: bool = _given()
    llc_ways: int = _number(0, 4096)
    mbw_pct: int = _number(0, 10**7)
    lra_level: int = _number(-1000, 1000)
    batch_level: int = _number(-1000, 1000)

    @property
    def grant(self) -> CpuGrant:
        """The CPU part of the allocation."""
        return CpuGrant(self.total_cores, self.batch_cores, self.batch_weight, self.exclusive)


@dataclass(frozen=True, slots=True)
class RunningState:
    """One running mean of a signal's logarithm.

    ``bucket``: bucket of the load; None: over all loads. ``provisional``: learned while undeclared work
    filled the host.
    """

    signal: str
    bucket: int | None = _number(-4000, 4000)
    mean: float = _number(-_MAX_LOG, _MAX_LOG)
    var: float = _number(0.0, _MAX_LOG**2)
    count: float = _number(0.0, MAX_COUNT)
    surprises: int = _number(0, 1000)
    provisional: bool = False


@dataclass(frozen=True, slots=True)
class CellState:
    """One cell of a correction.

    ``x``: its features (None: unknown). ``mean``: mean of the correction (log). ``count``: effective samples ``age_s``
    seconds ago. ``left``: the part of the mean that trees do not explain (None: there were no trees).
    """

    key: Hashable
    x: tuple[float | None, ...] = _items(FEATURES, MAX_FEATURES, 1e6)
    mean: float = _number(-_MAX_LOG, _MAX_LOG)
    count: float = _number(0.0, MAX_COUNT)
    age_s: float = _number(0.0, MAX_AGE_S)
    surprises: int = _number(-1000, 1000)
    left: float | None = _added(-2 * _MAX_LOG, 2 * _MAX_LOG)


@dataclass(frozen=True, slots=True)
class TreesState:
    """Boosted trees in the form of ``ogbrt.Trees``."""

    base: float = _number(-_MAX_LOG, _MAX_LOG)
    node_start: tuple[int, ...] = _items(1, 2001, 2.0**31)
    leaf_start: tuple[int, ...] = _items(1, 2001, 2.0**31)
    feature: tuple[int, ...] = _items(0, _MAX_NODES, 64)
    threshold: tuple[float, ...] = _items(0, _MAX_NODES, 1e12)
    missing_left: tuple[bool, ...] = _items(0, _MAX_NODES)
    left: tuple[int, ...] = _items(0, _MAX_NODES, 2.0**31)
    right: tuple[int, ...] = _items(0, _MAX_NODES, 2.0**31)
    value: tuple[float, ...] = _items(0, _MAX_NODES, _MAX_LOG)


@dataclass(frozen=True, slots=True)
class BoostedState:
    """State of a boosted correction.

    Attributes:
        features: names of the columns, in order.
        trees: structure, and initial leaf values.
        values: present leaf values, model first, then its replicas, each in the resident layout.
        bases, gains: constant and gain of the model and its replicas.
        counts: effective samples of each leaf.
        gain_var: variance of the gain.
        typical: usual value of every column.
        rows: remembered samples, one after the other; ``labels``: the model's error at each (log units); ``numbers``:
            samples learned before each.
        places: places seen since the last change, as fractions of the columns' ranges; ``visits`` of each.
        age_s: seconds since its last sample (None: unknown).
        seen: number of samples learned; ``built_at``, ``changed_at``: that number at the last build and at the last
            drift (None: never); ``rebuilds``: number of rebuilds that replaced the trees.
        drift_up, drift_down, drift_since, alarms: the drift detector.
        noise_sd, mape, doubt_var, scale: scatter of a sample, recent mean relative error, error variance far from all
            places, multiplier of the band; ``asked`` bands, ``missed`` of them; ``surprises``: consecutive outliers.
    """

    features: tuple[str, ...] = _items(1, MAX_FEATURES)
    trees: TreesState = _given()
    values: tuple[float, ...] = _items(0, 16 * _MAX_NODES, _MAX_LOG)
    bases: tuple[float, ...] = _items(1, 16, _MAX_LOG)
    gains: tuple[float, ...] = _items(1, 16, _MAX_LOG)
    counts: tuple[float, ...] = _items(0, _MAX_NODES, 1e9)
    gain_var: float = _number(0.0, 1e4)
    typical: tuple[float, ...] = _items(1, MAX_FEATURES, 1e6)
    rows: tuple[float, ...] = _items(0, 2048 * MAX_FEATURES, 1e6)
    labels: tuple[float, ...] = _items(0, 2048, 2 * _MAX_LOG)
    numbers: tuple[float, ...] = _items(0, 2048, 1e15)
    places: tuple[float, ...] = _items(0, 256 * MAX_FEATURES, 1e6)
    visits: tuple[float, ...] = _items(0, 256, 1e15)
    age_s: float | None = _number(0.0, MAX_AGE_S)
    seen: int = _number(0, 10**15)
    built_at: int = _number(0, 10**15)
    changed_at: int | None = _number(0, 10**15)
    rebuilds: int = _number(0, 10**15)
    drift_up: float = _number(0.0, 1e6)
    drift_down: float = _number(0.0, 1e6)
    drift_since: int = _number(0, 10**15)
    alarms: int = _number(0, 10**15)
    noise_sd: float = _number(1e-4, 100.0)
    mape: float = _number(0.0, 100.0)
    doubt_var: float = _number(0.0, 10.0)
    scale: float = _number(1e-3, 1e3)
    asked: int = _number(0, 10**15)
    missed: int = _number(0, 10**15)
    surprises: int = _number(-1000, 1000)


@dataclass(frozen=True, slots=True)
class StagedState:
    """State of a staged correction.

    Attributes:
        stages: their names, in order.
        mean: coefficients; ``spread``: lower triangle of their covariance, row by row.
        noise_var: variance of one sample (log units); ``doubt``: multiplier of the band's variance.
        drift_up, drift_down, alarms: the drift detector.
        seen: number of samples learned; ``age_s``: seconds since the last sample (None: unknown).
        features: names of the columns of ``rows``, in order.
        rows: remembered samples, one after the other (None: not measured); ``priors``: physics predictions (log);
            ``labels``: measured corrections (log).
    """

    stages: tuple[str, ...] = _items(0, MAX_STAGES)
    mean: tuple[float, ...] = _items(0, MAX_STAGES, _MAX_LOG)
    spread: tuple[float, ...] = _items(0, MAX_STAGES * (MAX_STAGES + 1) // 2, 1e6)
    noise_var: float = _number(1e-6, 10.0)
    doubt: float = _number(1e-3, 1e3)
    drift_up: float = _number(0.0, 1e6)
    drift_down: float = _number(0.0, 1e6)
    alarms: int = _number(0, 10**15)
    seen: int = _number(0, 10**15)
    age_s: float | None = _number(0.0, MAX_AGE_S)
    features: tuple[str, ...] = _items(1, MAX_FEATURES)
    rows: tuple[float | None, ...] = _items(0, 2048 * MAX_FEATURES, 1e6)
    priors: tuple[float, ...] = _items(0, 2048, _MAX_LOG)
    labels: tuple[float, ...] = _items(0, 2048, 2 * _MAX_LOG)


@dataclass(frozen=True, slots=True)
class ResidualState:
    """State of one learned correction.

    ``noise_var``: variance of one sample around its cell (log units). ``boosted``: its trees, if any. ``with_trees``,
    ``without_trees``: recent mean squared errors at new places with and without trees. ``staged``: its stages, if any.
    ``told``: the stages started from other hosts' estimates and stay with any learner. ``trial_left``:
    samples until the end of their trial against learning alone (0: no trial is running); ``trial_excess``:
    see ``trial``.
    """

    noise_var: float = _number(1e-6, 10.0)
    cells: tuple[CellState, ...] = _items(0, MAX_CELLS)
    boosted: BoostedState | None = None
    with_trees: float = field(default=0.0, metadata={"low": 0.0, "high": 1e4})
    without_trees: float = field(default=0.0, metadata={"low": 0.0, "high": 1e4})
    staged: StagedState | None = None
    told: bool = False
    trial_left: int = field(default=0, metadata={"low": 0, "high": 10**6})
    trial_excess: float = field(default=0.0, metadata={"low": -1e9, "high": 1e9})


@dataclass(frozen=True, slots=True)
class Skipped:
    """Number of samples not learned for one reason."""

    reason: str
    count: int = _number(0, 10**15)


@dataclass(frozen=True, slots=True)
class ModelState:
    """State of an ``LraModel``.

    ``*_error``: recent mean error (log units). ``*_advises``: the gate is closed. ``stood_in_knobs``: number of
    resources, cache and bandwidth, in which batch could be restricted when protected samples substituted for
    undisturbed ones; None: no such samples.
    """

    reference: tuple[RunningState, ...] = _items(0, 2048)
    work: ResidualState = _given()
    delay: ResidualState = _given()
    batch: ResidualState = _given()
    elasticity: float | None = _number(0.0, 10.0)
    samples: int = _number(0, 10**15)
    skipped: tuple[Skipped, ...] = _items(0, 256)
    work_error: float = field(default=0.0, metadata={"low": -1.0, "high": 1.0})
    delay_error: float = field(default=0.0, metadata={"low": -1.0, "high": 1.0})
    work_advises: bool = False
    delay_advises: bool = False
    stood_in_knobs: int | None = _added(0, 2)


@dataclass(frozen=True, slots=True)
class Provenance:
    """Origin of a model: its LRA, and where and when it was learned.

    ``cores``: usable physical cores of that host. ``app_version``: version of the application, from
    ``host.app_version``; empty: unknown. ``application``: the name by which other hosts know the LRA; empty if they
    know it by its own name.
    """

    lra: str
    cgroup: str
    sli_source: str
    host: str
    cores: int = _number(0, 65536)
    perphd_version: str = _given()
    saved_at_unix_s: float = _number(0.0, 1e11)
    app_version: str = field(default="")
    application: str = field(default="")

    @property
    def known_as(self) -> str:
        """The name by which other hosts know the LRA."""
        return self.application or self.lra


@dataclass(frozen=True, slots=True)
class Range:
    """Range of a quantity while the model learned."""

    of: str
    low: float = _number(-1e18, 1e18)
    high: float = _number(-1e18, 1e18)


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A saved model."""

    provenance: Provenance
    ranges: tuple[Range, ...] = _items(0, 64)
    state: ModelState = _given()


def ranges_of(state: ModelState) -> tuple[Range, ...]:
    """Ranges in which this model has samples: of the load (by half octaves) and of the features of its cells."""
    found: list[Range] = []
    buckets = [s.bucket for s in state.reference if s.bucket is not None]
    if buckets:
        low, high = (2.0 ** ((b + d) / 2) for b, d in ((min(buckets), -0.5), (max(buckets), 0.5)))
        found.append(Range("load_per_s", low, min(high, 1e18)))
    keys = [c.key for r in (state.work, state.delay, state.batch) for c in r.cells]
    known = [key for key in keys if isinstance(key, CellKey)]
    columns: dict[str, Sequence[float]] = {
        "batch_cores": [k.batch_cores for k in known],
        "batch_weight_ratio": [k.grant.weight_ratio for k in known],
        "llc_ways": [k.llc_ways for k in known],
        "mbw_pct": [k.mbw_pct for k in known],
        "lra_load_share": [k.lra_level / 4 for k in known],
        "batch_load_share": [k.batch_level / 2 for k in known],
    }
    found += [Range(name, float(min(v)), float(max(v))) for name, v in columns.items() if v]
    return tuple(found)


def to_text(file: ModelFile) -> str:
    """The file's text, ending with a newline.

    Raises:
        ModelFileError: the model holds an invalid number that would make the file unreadable.
    """
    body = _encode(file)
    try:
        _decode(ModelFile, body, "")
        canonical = _canonical(body)
    except ValueError as exc:
        raise ModelFileError(f"the model holds a number that is not finite: {exc}") from exc
    head = json.dumps({"format": FORMAT, "version": VERSION, "sha256": _digest(canonical)})
    return f'{head[:-1]}, "body": {canonical}}}\n'


def from_text(text: str | bytes) -> ModelFile:
    """Parse a model file.

    Raises:
        ModelFileError: the text is not JSON, has another format or version or a wrong checksum, or a value is missing
            or out of bounds.
    """
    if len(text) > MAX_BYTES:
        raise ModelFileError(f"{len(text)} bytes exceed the limit for a model ({MAX_BYTES})")
    try:
        data = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as exc:
        reason = "nested too deeply" if isinstance(exc, RecursionError) else str(exc)
        raise ModelFileError(f"it is not JSON: {reason}") from exc
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ModelFileError(f"it is not a perphd model: it must be a JSON object with the format {FORMAT!r}")
    version = data.get("version")
    if type(version) is not int or version not in READ_VERSIONS:
        known = f"{READ_VERSIONS[0]} to {READ_VERSIONS[-1]}"
        raise ModelFileError(f"its version is {_shown(version)}; this perphd reads versions {known}")
    if extra := data.keys() - {"format", "version", "sha256", "body"}:
        raise ModelFileError(f"unknown key {_shown(min(extra))}")
    body = data.get("body")
    try:
        right = isinstance(body, dict) and data.get("sha256") == _digest(_canonical(body))
    except (ValueError, RecursionError) as exc:  # a number such as 1e999 is read as infinite
        raise ModelFileError(f"it holds an invalid value: {exc}") from exc
    if not right:
        raise ModelFileError("its checksum is wrong: the text is damaged or was edited")
    result: ModelFile = _decode(ModelFile, body, "")
    return result


def _canonical(body: object) -> str:
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _digest(canonical: str) -> str:
    return hashlib.sha256(canonical.encode()).hexdigest()


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _encode(value: object) -> Any:
    if value is IDLE:
        return "idle"
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _encode(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    return value


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    if cls is CellState:
        hints["key"] = CellKey
    return hints


def _decode(hint: Any, data: object, where: str, meta: Any = types.MappingProxyType({})) -> Any:
    if is_dataclass(hint) and isinstance(hint, type):
        return _decode_object(hint, data, where)
    if typing.get_origin(hint) is tuple:
        return _decode_list(typing.get_args(hint)[0], data, where, meta)
    choices = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
    if types.NoneType in choices and data is None:
        return None
    if inner := next((c for c in choices if isinstance(c, type) and is_dataclass(c)), None):
        return _decode_object(inner, data, where)
    if hint == Weight and data == "idle":
        return IDLE
    low, high = meta.get("low", -math.inf), meta.get("high", math.inf)
    if bool in choices and isinstance(data, bool):
        return data
    if str in choices and isinstance(data, str) and len(data) <= _MAX_TEXT:
        return data
    if int in choices and type(data) is int and low <= data <= high:
        return data
    if float in choices and type(data) in (int, float) and low <= typing.cast(float, data) <= high:
        return float(typing.cast(float, data))
    bounds = f" from {low:.10g} to {high:.10g}" if math.isfinite(low) else ""
    wanted = {bool: "true or false", str: "text", int: "a whole number", float: "a number"}
    allowed = next(name for kind, name in wanted.items() if kind in choices)
    raise ModelFileError(f"{where} is {_shown(data)}, not {allowed}{bounds}")


def _decode_object(cls: type, data: object, where: str) -> Any:
    if not isinstance(data, dict):
        raise ModelFileError(f"{where or 'the body'} is {_shown(data)}, not an object")
    known = {f.name: f for f in fields(cls)}
    if extra := data.keys() - known.keys():
        raise ModelFileError(f"{where or 'the body'} has the unknown key {_shown(min(extra))}")
    values = {}
    for name, item in known.items():
        path = f"{where}.{name}" if where else name
        if name not in data:
            if item.default is not MISSING:
                continue  # added after the file's version: the default applies
            raise ModelFileError(f"{path} is missing")
        values[name] = _decode(_hints(cls)[name], data[name], path, item.metadata)
    return cls(**values)


def _decode_list(hint: Any, data: object, where: str, meta: Any) -> tuple[Any, ...]:
    if not isinstance(data, list):
        raise ModelFileError(f"{where} is {_shown(data)}, not a list")
    if not meta["fewest"] <= len(data) <= meta["most"]:
        raise ModelFileError(f"{where} has {len(data)} items, not {meta['fewest']} to {meta['most']}")
    return tuple(_decode(hint, item, f"{where}[{i}]", meta) for i, item in enumerate(data))


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # integers with thousands of digits have no text
        return "a number with too many digits"
    return text if len(text) <= 60 else f"{text[:57]}..."
