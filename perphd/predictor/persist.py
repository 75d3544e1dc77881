"""A model's state as plain values, and their text form (see ``sealed``).

Every number has bounds and every list a maximum length; anything outside is refused before a model is built. Times are
ages in seconds, because a monotonic clock is meaningless after a reboot.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Final

from perphd.domain.allocation import CpuGrant, Weight
from perphd.domain.errors import PerphError
from perphd.predictor.sealed import SealedFormat, given, items, number

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
_MAX_INT = 2.0**31 - 1
"""Largest index: trees store theirs as int32."""
_MAX_NODES = 8192
_MAX_LOG = 100.0
"""Bound of logarithms; no performance has larger values."""


class ModelFileError(PerphError):
    """A text cannot be used as a model. The message says why."""


@dataclass(frozen=True, slots=True)
class CellKey:
    """Key of a cell of the learned corrections: an allocation, and the levels of load under which it was sampled."""

    total_cores: int = number(1, 65536)
    batch_cores: int = number(0, 65536)
    batch_weight: Weight = number(1, 10000)
    exclusive: bool = given()
    llc_ways: int = number(0, 4096)
    mbw_pct: int = number(0, 10**7)
    lra_level: int = number(-1000, 1000)
    batch_level: int = number(-1000, 1000)

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
    bucket: int | None = number(-4000, 4000)
    mean: float = number(-_MAX_LOG, _MAX_LOG)
    var: float = number(0.0, _MAX_LOG**2)
    count: float = number(0.0, MAX_COUNT)
    surprises: int = number(0, 1000)
    provisional: bool = False


@dataclass(frozen=True, slots=True)
class CellState:
    """One cell of a correction.

    ``x``: its features (None: unknown). ``mean``: mean of the correction (log). ``count``: effective samples ``age_s``
    seconds ago. ``left``: the part of the mean that trees do not explain (None: there were no trees).
    """

    key: Hashable = field(metadata={"hint": CellKey})
    x: tuple[float | None, ...] = items(FEATURES, MAX_FEATURES, 1e6)
    mean: float = number(-_MAX_LOG, _MAX_LOG)
    count: float = number(0.0, MAX_COUNT)
    age_s: float = number(0.0, MAX_AGE_S)
    surprises: int = number(-1000, 1000)
    left: float | None = number(-2 * _MAX_LOG, 2 * _MAX_LOG, default=None)


@dataclass(frozen=True, slots=True)
class TreesState:
    """Boosted trees in the form of ``ogbrt.Trees``."""

    base: float = number(-_MAX_LOG, _MAX_LOG)
    node_start: tuple[int, ...] = items(1, 2001, _MAX_INT)
    leaf_start: tuple[int, ...] = items(1, 2001, _MAX_INT)
    feature: tuple[int, ...] = items(0, _MAX_NODES, 64)
    threshold: tuple[float, ...] = items(0, _MAX_NODES, 1e12)
    missing_left: tuple[bool, ...] = items(0, _MAX_NODES)
    left: tuple[int, ...] = items(0, _MAX_NODES, _MAX_INT)
    right: tuple[int, ...] = items(0, _MAX_NODES, _MAX_INT)
    value: tuple[float, ...] = items(0, _MAX_NODES, _MAX_LOG)


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

    features: tuple[str, ...] = items(1, MAX_FEATURES)
    trees: TreesState = given()
    values: tuple[float, ...] = items(0, 16 * _MAX_NODES, _MAX_LOG)
    bases: tuple[float, ...] = items(1, 16, _MAX_LOG)
    gains: tuple[float, ...] = items(1, 16, _MAX_LOG)
    counts: tuple[float, ...] = items(0, _MAX_NODES, 1e9)
    gain_var: float = number(0.0, 1e4)
    typical: tuple[float, ...] = items(1, MAX_FEATURES, 1e6)
    rows: tuple[float, ...] = items(0, 2048 * MAX_FEATURES, 1e6)
    labels: tuple[float, ...] = items(0, 2048, 2 * _MAX_LOG)
    numbers: tuple[float, ...] = items(0, 2048, 1e15)
    places: tuple[float, ...] = items(0, 256 * MAX_FEATURES, 1e6)
    visits: tuple[float, ...] = items(0, 256, 1e15)
    age_s: float | None = number(0.0, MAX_AGE_S)
    seen: int = number(0, 10**15)
    built_at: int = number(0, 10**15)
    changed_at: int | None = number(0, 10**15)
    rebuilds: int = number(0, 10**15)
    drift_up: float = number(0.0, 1e6)
    drift_down: float = number(0.0, 1e6)
    drift_since: int = number(0, 10**15)
    alarms: int = number(0, 10**15)
    noise_sd: float = number(1e-4, 100.0)
    mape: float = number(0.0, 100.0)
    doubt_var: float = number(0.0, 10.0)
    scale: float = number(1e-3, 1e3)
    asked: int = number(0, 10**15)
    missed: int = number(0, 10**15)
    surprises: int = number(-1000, 1000)


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

    stages: tuple[str, ...] = items(0, MAX_STAGES)
    mean: tuple[float, ...] = items(0, MAX_STAGES, _MAX_LOG)
    spread: tuple[float, ...] = items(0, MAX_STAGES * (MAX_STAGES + 1) // 2, 1e6)
    noise_var: float = number(1e-6, 10.0)
    doubt: float = number(1e-3, 1e3)
    drift_up: float = number(0.0, 1e6)
    drift_down: float = number(0.0, 1e6)
    alarms: int = number(0, 10**15)
    seen: int = number(0, 10**15)
    age_s: float | None = number(0.0, MAX_AGE_S)
    features: tuple[str, ...] = items(1, MAX_FEATURES)
    rows: tuple[float | None, ...] = items(0, 2048 * MAX_FEATURES, 1e6)
    priors: tuple[float, ...] = items(0, 2048, _MAX_LOG)
    labels: tuple[float, ...] = items(0, 2048, 2 * _MAX_LOG)


@dataclass(frozen=True, slots=True)
class ResidualState:
    """State of one learned correction.

    ``noise_var``: variance of one sample around its cell (log units). ``boosted``: its trees, if any. ``with_trees``,
    ``without_trees``: recent mean squared errors at new places with and without trees. ``staged``: its stages, if any.
    ``told``: the stages started from other hosts' estimates and stay with any learner. ``trial_left``:
    samples until the end of their trial against learning alone (0: no trial is running); ``trial_excess``:
    see ``trial``.
    """

    noise_var: float = number(1e-6, 10.0)
    cells: tuple[CellState, ...] = items(0, MAX_CELLS)
    boosted: BoostedState | None = None
    with_trees: float = number(0.0, 1e4, default=0.0)
    without_trees: float = number(0.0, 1e4, default=0.0)
    staged: StagedState | None = None
    told: bool = False
    trial_left: int = number(0, 10**6, default=0)
    trial_excess: float = number(-1e9, 1e9, default=0.0)


@dataclass(frozen=True, slots=True)
class Skipped:
    """Number of samples not learned for one reason."""

    reason: str
    count: int = number(0, 10**15)


@dataclass(frozen=True, slots=True)
class ModelState:
    """State of an ``LraModel``.

    ``*_error``: recent mean error (log units). ``*_advises``: the gate is closed. ``stood_in_knobs``: in how many of
    the two resources cache and bandwidth batch could be restricted when protected samples substituted for undisturbed
    ones; None: no such samples.
    """

    reference: tuple[RunningState, ...] = items(0, 2048)
    work: ResidualState = given()
    delay: ResidualState = given()
    batch: ResidualState = given()
    elasticity: float | None = number(0.0, 10.0)
    samples: int = number(0, 10**15)
    skipped: tuple[Skipped, ...] = items(0, 256)
    work_error: float = number(-1.0, 1.0, default=0.0)
    delay_error: float = number(-1.0, 1.0, default=0.0)
    work_advises: bool = False
    delay_advises: bool = False
    stood_in_knobs: int | None = number(0, 2, default=None)


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
    cores: int = number(0, 65536)
    perphd_version: str = given()
    saved_at_unix_s: float = number(0.0, 1e11)
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
    low: float = number(-1e18, 1e18)
    high: float = number(-1e18, 1e18)


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A saved model."""

    provenance: Provenance
    ranges: tuple[Range, ...] = items(0, 64)
    state: ModelState = given()


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


_FILE: Final = SealedFormat(FORMAT, "model", VERSION, READ_VERSIONS, MAX_BYTES, ModelFileError)


def to_text(file: ModelFile) -> str:
    """The file's text, ending with a newline.

    Raises:
        ModelFileError: the model holds an invalid number that would make the file unreadable.
    """
    return _FILE.text(file)


def from_text(text: str | bytes) -> ModelFile:
    """Parse a model file.

    Raises:
        ModelFileError: the text is not JSON, has another format or version or a wrong checksum, or a value is missing
            or out of bounds.
    """
    return _FILE.value(ModelFile, text)
