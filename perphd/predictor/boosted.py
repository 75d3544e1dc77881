"""A learned correction in two layers: boosted trees for the whole space, and cells that are precise where sampled.

    correction(x) = s(x) T(x) + L(x),    L is fitted to the part that s T leaves unexplained at the cells

T is the online boosted model (``ogbrt``), L the local Gaussian process (``residual``), and s(x), from 0 to 1, the trust
in T. The trust is zero before T has trees, while the error of T is above the gate, and while T predicts worse than
the cells alone at places new to the cells. The trust falls with the distance of x from places seen since the
application last changed. Without trust the whole correction comes from the cells, which is the fallback after
a drift.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from perphd.predictor import features
from perphd.predictor.ogbrt import Ogbrt, OgbrtSettings, Trees
from perphd.predictor.ogbrt.fit import FitSettings, fit
from perphd.predictor.ogbrt.rebuild import RebuildJob, Rebuilt
from perphd.predictor.ogbrt.update import UpdateSettings
from perphd.predictor.persist import BoostedState, ResidualState
from perphd.predictor.residual import Residual

Floats = NDArray[np.float64]

RESIDENT: Final = OgbrtSettings(
    update=UpdateSettings(gain_walk_var=1e-6, gain_drift_var=0.005, leaf_rate=12.0),
    fit=FitSettings(trees=40, depth=3, rate=0.2, bins=16, l2=5.0, min_weight=5.0),
    bags=3,
    reservoir=256,
    rebuild_every=600,
    trial_margin=0.15,
)
"""Settings of the trees beside cells.

The gain (the part common to all places) hardly moves, because the cells follow the samples. The trees are small,
because each LRA has several learners and a small process serves dozens of LRAs. Together, 40 trees at this rate
correct a quarter of an error.
"""
NEW_PLACE: Final = 1.0
"""Effective samples below which a place is new to the cells; the layers are compared there."""
_EVIDENCE: Final = 0.1
_OLD_S: Final = 86400.0
"""Seconds without use after which the places seen no longer count as evidence that the model is right there."""


class Correction(Protocol):
    """A learned correction of (measured / prior), in log units. Rows have ``features.COLUMNS``."""

    def update(self, key: Hashable, x: Floats, residual: float, at_s: float, prior: float = 0.0) -> float:
        """Learn one sample, features (D,), of the cell ``key``; returns its deviation from the prediction.

        ``prior``: logarithm of the physics prediction for these features. Never raises for finite values.
        """

    def noise_at_least(self, sd: float) -> None:
        """Set a lower bound on the scatter of one sample, log units."""

    def predict(self, x: Floats, at_s: float, prior: Floats | None = None) -> tuple[Floats, Floats, Floats]:
        """Predict the correction for rows (n, D): mean, sd and support, each (n,).

        ``prior``: physics predictions (log).
        """

    def doubt(self) -> None:
        """Give present knowledge little weight against new samples, because the application has changed."""

    def to_state(self, now_s: float) -> ResidualState:
        """The whole state as plain values; times become ages."""

    def restore(self, state: ResidualState, now_s: float, elapsed_s: float = 0.0) -> None:
        """Replace the state. Raises InvalidModel if the values are inconsistent."""

    @property
    def cells(self) -> int:
        """Number of places (cells) that have samples."""

    @property
    def alarms(self) -> int:
        """Number of drift alarms."""

    @property
    def clipped(self) -> int:
        """Number of outliers, whose errors were learned only in part."""


class Boosted:
    """The two-layer ``Correction`` described in the module.

    Args:
        scales, prior_sd, noise_sd: arguments of the local layer, see ``Residual``.
        signs: required monotonicity of the correction in each of ``features.COLUMNS``.
        settings: settings of the trees.
    """

    def __init__(
        self,
        scales: Floats,
        prior_sd: float,
        noise_sd: float,
        signs: Sequence[int],
        settings: OgbrtSettings = RESIDENT,
    ) -> None:
        self._signs, self._settings = tuple(signs), settings
        self._local = Residual(scales, prior_sd, noise_sd)
        self._trees: Ogbrt | None = None
        self._with = self._without = 0.0

    def begin(self, x: Floats, y: Floats) -> None:
        """Start from rows ``x`` (n, D) and corrections ``y`` (n,), for example from a profile; NaN: unknown.

        The places of these rows count as seen until the application changes.
        """
        rows = np.where(np.isnan(x), 0.5 * (features.LOW + features.HIGH), x)
        rng = np.random.default_rng(self._settings.seed)
        self.begin_from(fit(rows, y, features.NAMES, self._signs, rng, settings=self._settings.fit), rows, y)

    def begin_from(self, trees: Trees, x: Floats, y: Floats) -> None:
        """Start from trees already fitted to these rows."""
        self._trees = Ogbrt(trees, features.LOW, features.HIGH, self._settings, x, y)
        self._trees.take_as_seen(x)

    def say(self, x: Floats) -> Floats:
        """Prediction (n,) of the trees alone for rows (n, D), regardless of trust; 0 without trees."""
        return self._trees.predict(x).mean if self._trees is not None else np.zeros(len(x))

    def remembered(self) -> tuple[Floats, Floats]:
        """The samples that the trees remember: rows (n, D) and corrections (n,)."""
        if self._trees is None:
            return np.zeros((0, len(features.COLUMNS))), np.zeros(0)
        return self._trees.remembered()

    # -- a correction -------------------------------------------------------------------------------------------

    def update(self, key: Hashable, x: Floats, residual: float, at_s: float, prior: float = 0.0) -> float:
        """See ``Correction``."""
        trees = self._trees
        if trees is None:
            constant = Trees.constant(features.NAMES, self._signs, 0.0)
            trees = self._trees = Ogbrt(constant, features.LOW, features.HIGH, self._settings)
        visits, trusted = self._local.visits(key), self.trusted
        alone, unforeseen = self._local.foretell(x, at_s) if visits < NEW_PLACE else (0.0, 0.0)
        structured = trees.structured
        learned = trees.observe(x, residual, at_s)
        said = 0.0
        if structured and not learned.skipped:
            said = (1.0 - learned.far) * (residual - learned.error)
            if visits < NEW_PLACE:
                self._compare(residual - said - unforeseen, residual - alone)
        if learned.drift:
            self._local.doubt(key)
        missed = self._local.fold(key, x, residual, at_s, said)
        if learned.swapped:
            self._local.rebase(lambda rows: self._advice(rows)[0])
        if visits > 0:
            return missed
        return residual - (said + unforeseen if trusted else alone)

    def noise_at_least(self, sd: float) -> None:
        """See ``Correction``."""
        self._local.noise_at_least(sd)

    def predict(self, x: Floats, at_s: float, prior: Floats | None = None) -> tuple[Floats, Floats, Floats]:
        """See ``Correction``."""
        if not self.trusted:
            return self._local.above(x, at_s)
        said, far, own_sd = self._advice(x)
        mean, sd, support = self._local.above(x, at_s, said)
        return mean, far * sd + (1.0 - far) * np.minimum(sd, own_sd), support

    def doubt(self) -> None:
        """See ``Correction``."""
        self._local.doubt()
        if self._trees is not None:
            self._trees.doubt()

    def to_state(self, now_s: float) -> ResidualState:
        """See ``Correction``."""
        local = self._local.to_state(now_s)
        boosted = self._trees.to_state(now_s) if self._trees is not None else None
        return ResidualState(local.noise_var, local.cells, boosted, self._with, self._without)

    def restore(self, state: ResidualState, now_s: float, elapsed_s: float = 0.0) -> None:
        """See ``Correction``."""
        trees = None
        if state.boosted is not None:
            trees = Ogbrt.from_state(
                widened(state.boosted),
                self._signs,
                features.LOW,
                features.HIGH,
                self._settings,
                elapsed_s < _OLD_S,
                now_s - max(0.0, elapsed_s),
            )
        self._trees, self._with, self._without = trees, state.with_trees, state.without_trees
        self._local.restore(state, now_s, elapsed_s)

    @property
    def cells(self) -> int:
        """See ``Correction``."""
        return self._local.cells

    @property
    def alarms(self) -> int:
        """See ``Correction``."""
        return self._trees.alarms if self._trees is not None else 0

    @property
    def clipped(self) -> int:
        """See ``Correction``."""
        return self._local.clipped

    # -- the trees ------------------------------------------------------------------------------------------------

    @property
    def trusted(self) -> bool:
        """True if the trees contribute to predictions."""
        trees = self._trees
        return trees is not None and trees.structured and trees.may_act and self._with <= self._without

    @property
    def rebuild_due(self) -> bool:
        """True if a worker should run ``rebuild_job()``."""
        return self._trees is not None and self._trees.rebuild_due

    def ask_for_rebuild(self) -> None:
        """Request a rebuild, regardless of the last one's result."""
        if self._trees is not None:
            self._trees.ask_for_rebuild()

    def rebuild_job(self) -> RebuildJob:
        """The job for the worker, whose result goes to ``offer``. Call only when ``rebuild_due``."""
        assert self._trees is not None
        return self._trees.rebuild_job()

    def offer(self, rebuilt: Rebuilt | None) -> None:
        """Put rebuilt trees on trial; None: the rebuild failed."""
        if self._trees is not None:
            self._trees.offer(rebuilt)

    def _advice(self, x: Floats) -> tuple[Floats, Floats, Floats]:
        """For rows (n, D): the trees' prediction scaled by trust, one minus the trust, and the trees' own sd."""
        assert self._trees is not None
        found, far = self._trees.ask(x)
        return np.asarray((1.0 - far) * found.mean, dtype=np.float64), far, found.sd

    def _compare(self, both: float, alone: float) -> None:
        """Update the errors with and without the trees, at a place new to the cells."""
        most = 5.0 * math.sqrt(self._local.noise_sd**2 + 0.01)
        self._with += _EVIDENCE * (min(abs(both), most) ** 2 - self._with)
        self._without += _EVIDENCE * (min(abs(alone), most) ** 2 - self._without)


def has_trees(state: ResidualState) -> bool:
    """True if a saved correction holds trees, not only a constant."""
    return state.boosted is not None and len(state.boosted.trees.leaf_start) >= 2


def widened(state: BoostedState) -> BoostedState:
    """A saved state, extended by columns added since it was saved.

    The new columns get the low ends of their ranges, where they have no effect.

    Any other state is returned unchanged.
    """
    had, names = len(state.features), features.NAMES
    if had >= len(names) or state.features != names[:had]:
        return state
    low = features.LOW[had:]

    def more(values: Sequence[float], rows: int, fill: Floats) -> tuple[float, ...]:
        if len(values) != rows * had:
            return tuple(values)  # inconsistent: refused later
        table = np.array(values, dtype=np.float64).reshape(rows, had)
        return tuple(np.hstack([table, np.tile(fill, (rows, 1))]).ravel().tolist())

    return replace(
        state,
        features=names,
        typical=more(state.typical, 1, low),
        rows=more(state.rows, len(state.labels), low),
        places=more(state.places, len(state.visits), np.zeros(len(low))),
    )
