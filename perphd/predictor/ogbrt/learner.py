"""The online learner: predicts for many rows at once, and learns one sample at a time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from perphd.predictor.ogbrt.drift import Drift
from perphd.predictor.ogbrt.explored import Explored
from perphd.predictor.ogbrt.member import EnsembleMember, spread
from perphd.predictor.ogbrt.rebuild import RebuildJob, RebuildTrial, Rebuilt
from perphd.predictor.ogbrt.reservoir import KeptSamples, Reservoir
from perphd.predictor.ogbrt.settings import Learned, OgbrtSettings, TreePrediction
from perphd.predictor.ogbrt.trees import Floats, InvalidModel, Trees
from perphd.predictor.ogbrt.uncertainty import Conformal, Noise
from perphd.predictor.persist import MAX_AGE_S, BoostedState, TreesState

OUTLIER_SDS = 4.0
"""Standard deviations beyond which an error is an outlier."""
SURPRISES = 3
"""Number of consecutive outliers on one side that count as a change of the application instead."""
_JUMP_S = 3600.0
_MOST_TARGET = 100.0
"""Bound of targets (log units); no performance has larger values."""
_MEMORY = 30.0
_DRAWS = 509


class Ogbrt:
    """An online gradient-boosted model of log-performance.

    Deterministic; no clock, no files; samples never make it raise.

    Args:
        trees: the warm start (or a class prior, or ``Trees.constant``).
        low: (F,) lower ends of the features' ranges.
        high: (F,) upper ends.
        settings: settings of the learner.
        x: (n, F) samples to which the trees were fitted, if any; they determine the replicas and fill the reservoir.
        y: (n,) their log-performance.
    """

    def __init__(
        self,
        trees: Trees,
        low: Floats,
        high: Floats,
        settings: OgbrtSettings | None = None,
        x: Floats | None = None,
        y: Floats | None = None,
    ) -> None:
        self.settings = settings = settings or OgbrtSettings()
        self.features = trees.features
        self.skipped: Counter[str] = Counter()
        self.missing: Counter[str] = Counter()
        self.rebuilds = 0
        # Drawn once and used cyclically: a sample's weight follows from its number, also after a restart.
        rng = np.random.default_rng(settings.seed)
        self._weights: Floats = np.ones((_DRAWS, settings.bags + 1))
        self._weights[:, 1:] = rng.poisson(1.0, (_DRAWS, settings.bags))
        self._reservoir = Reservoir(low, high, settings.reservoir)
        self._explored = Explored(low, high)
        self._typical: Floats = 0.5 * (np.asarray(low, dtype=np.float64) + np.asarray(high, dtype=np.float64))
        span = np.abs(np.asarray(high, dtype=np.float64) - np.asarray(low, dtype=np.float64))
        self._least, self._most = np.asarray(low) - span, np.asarray(high) + span
        columns = len(trees.features)
        rows = np.zeros((0, columns)) if x is None else np.asarray(x, dtype=np.float64)
        targets = np.zeros(0) if y is None else np.asarray(y, dtype=np.float64)
        self._champion = EnsembleMember.founded(
            trees, rows, targets, settings.update, settings.bags, settings.prior_sd, settings.seed
        )
        self._challenger: tuple[EnsembleMember, RebuildTrial] | None = None
        self._drift = Drift(settings.drift)
        self._conformal = Conformal(settings.miss_rate)
        self._noise = Noise(settings.noise_sd)
        self._seen = 0
        self._warm = len(rows) > 0 or trees.count > 0
        self._changed_at: float = -math.inf  # until an alarm, warm-start samples count as new
        self._built_at = 0
        self._asked_for: int | None = None
        self._surprises = 0
        self._mape = settings.gate_mape
        self._at_s: float | None = None
        errors = targets - self._champion.ensemble.mean(self._champion.leaves(rows)) if len(rows) else targets
        for i, row in enumerate(rows):
            self._reservoir.add(row, float(errors[i]), i - len(rows))

    # -- answering ----------------------------------------------------------------------------------------------

    def predict(self, x: Floats) -> TreePrediction:
        """Predictions for rows (n, F); an unknown feature (NaN) gets its usual value."""
        return self.ask(x)[0]

    def ask(self, x: Floats) -> tuple[TreePrediction, Floats]:
        """The predictions of ``predict``, and each row's distance (n,) from the places seen.

        The distance is 0 at a place seen since the last change, and 1 far from all such places.
        """
        rows = np.array(x, dtype=np.float64)
        unknown = ~np.isfinite(rows)
        if unknown.any():
            rows = np.where(unknown, self._typical, rows)
        rows = self._within(rows)
        champion = self._champion
        leaves = champion.leaves(rows)
        mean, between = champion.ask(leaves)
        far, support = self._explored.near(rows)
        scale = self._conformal.scale
        doubt = between + far * champion.doubt_var
        half = scale * np.sqrt(doubt + self._noise.sd**2)
        sd = np.sqrt(doubt) * (scale / 1.645)
        return TreePrediction(mean, sd, mean - half, mean + half, support), far

    @property
    def mape(self) -> float:
        """Recent mean relative error of one-step predictions (running mean over about 30 samples)."""
        return self._mape

    @property
    def may_act(self) -> bool:
        """True if the model is accurate enough to act; else it only advises."""
        return self._seen >= self.settings.gate_samples and self._mape <= self.settings.gate_mape

    @property
    def structured(self) -> bool:
        """True if it has trees, not only an adapting constant."""
        return self._champion.ensemble.forest.trees.count > 0

    @property
    def seen(self) -> int:
        """Number of live samples learned."""
        return self._seen

    @property
    def alarms(self) -> int:
        """Number of drift alarms."""
        return self._drift.alarms

    @property
    def coverage(self) -> float:
        """Share of all samples so far that were inside their bands."""
        return self._conformal.coverage

    @property
    def noise_sd(self) -> float:
        """Standard deviation of one sample's noise, in log units."""
        return self._noise.sd

    @property
    def nbytes(self) -> int:
        """Size of all resident arrays, in bytes."""
        members = [self._champion] + ([self._challenger[0]] if self._challenger else [])
        return self._reservoir.nbytes + sum(member.nbytes for member in members)

    def remembered(self) -> tuple[Floats, Floats]:
        """The reservoir's rows (n, F) and up-to-date labels (n,).

        A learner made from these and ``trees`` continues from the present state.
        """
        kept = self._reservoir.kept()
        return kept.x, self._labels(kept)

    def to_state(self, now_s: float = 0.0) -> BoostedState:
        """The state without a challenger on trial, as plain values; ``now_s``: reference time of ages."""
        ensemble, kept = self._champion.ensemble, self._reservoir.kept()
        places, visits = self._explored.seen()
        found = ensemble.forest.trees
        return BoostedState(
            features=self.features,
            trees=TreesState(
                found.base,
                *(
                    tuple(array.tolist())
                    for array in (
                        found.node_start, found.leaf_start, found.feature, found.threshold, found.missing_left,
                        found.left, found.right, found.value,
                    )
                ),
            ),
            values=tuple(ensemble.values.ravel().tolist()),
            bases=tuple(ensemble.base.tolist()),
            gains=tuple(ensemble.gain.tolist()),
            counts=tuple(ensemble.counts.tolist()),
            gain_var=float(ensemble.gain_var),
            typical=tuple(self._typical.tolist()),
            rows=tuple(kept.x.ravel().tolist()),
            labels=tuple(kept.y.tolist()),
            numbers=tuple(np.maximum(kept.number, 0.0).tolist()),
            places=tuple(places.ravel().tolist()),
            visits=tuple(visits.tolist()),
            age_s=None if self._at_s is None else min(max(now_s - self._at_s, 0.0), MAX_AGE_S),
            seen=self._seen,
            built_at=self._built_at,
            changed_at=int(self._changed_at) if math.isfinite(self._changed_at) else None,
            rebuilds=self.rebuilds,
            drift_up=self._drift.up,
            drift_down=self._drift.down,
            drift_since=self._drift.since,
            alarms=self._drift.alarms,
            noise_sd=float(self._noise.sd),
            mape=float(self._mape),
            doubt_var=float(self._champion.doubt_var),
            scale=float(self._conformal.scale),
            asked=self._conformal.seen,
            missed=self._conformal.missed,
            surprises=self._surprises,
        )  # fmt: skip

    @classmethod
    def from_state(
        cls,
        state: BoostedState,
        monotone: Sequence[int],
        low: Floats,
        high: Floats,
        settings: OgbrtSettings | None = None,
        fresh: bool = True,
        now_s: float = 0.0,
    ) -> Ogbrt:
        """Restore a learner from a saved state.

        ``fresh``: whether the places seen are still valid. ``now_s``: reference time of ages, on the clock of
        future samples.

        Raises:
            InvalidModel: the values are inconsistent; the message names them.
        """
        t, columns = state.trees, len(state.features)
        ints = np.int32
        trees = Trees(
            state.features, tuple(monotone), t.base, np.array(t.node_start, ints), np.array(t.leaf_start, ints),
            np.array(t.feature, ints), np.array(t.threshold, dtype=np.float64),
            np.array(t.missing_left, np.bool_), np.array(t.left, ints), np.array(t.right, ints),
            np.array(t.value, dtype=np.float64),
        )  # fmt: skip
        made = cls(trees, low, high, settings)
        ensemble = made._champion.ensemble
        rows, places = len(state.labels), len(state.visits)
        for name, given, wanted in (
            ("values", len(state.values), ensemble.values.size),
            ("bases", len(state.bases), ensemble.base.size),
            ("gains", len(state.gains), ensemble.gain.size),
            ("counts", len(state.counts), ensemble.counts.size),
            ("typical", len(state.typical), columns),
            ("rows", len(state.rows), rows * columns),
            ("numbers", len(state.numbers), rows),
            ("places", len(state.places), places * columns),
        ):
            if given != wanted:
                raise InvalidModel(f"{name}: {given} entries, expected {wanted}")
        ensemble.values[:] = np.array(state.values).reshape(ensemble.values.shape)
        ensemble.base[:], ensemble.gain[:] = state.bases, state.gains
        ensemble.counts[:], ensemble.gain_var = state.counts, state.gain_var
        made._typical = np.array(state.typical, dtype=np.float64)
        for x, y, number in zip(
            np.array(state.rows, dtype=np.float64).reshape(rows, columns),
            state.labels,
            state.numbers,
            strict=True,
        ):
            made._reservoir.add(x, y, number)
        if fresh:
            made._explored.restore(np.array(state.places).reshape(places, columns), np.array(state.visits))
        made._seen, made._built_at, made.rebuilds = state.seen, state.built_at, state.rebuilds
        made._changed_at = -math.inf if state.changed_at is None else state.changed_at
        made._drift.restore(state.drift_up, state.drift_down, state.drift_since, state.alarms)
        made._noise.sd, made._mape = state.noise_sd, state.mape
        made._champion.doubt_var = state.doubt_var
        made._conformal.scale = state.scale
        made._conformal.seen, made._conformal.missed = state.asked, state.missed
        made._surprises = state.surprises
        made._at_s = None if state.age_s is None else now_s - state.age_s
        return made

    def trees(self) -> Trees:
        """The present model in the portable form."""
        ensemble = self._champion.ensemble
        base = float(ensemble.base[0] + ensemble.gain[0])
        return ensemble.forest.export(ensemble.values[0].reshape(ensemble.forest.shape), base)

    def take_as_seen(self, x: Floats) -> None:
        """Mark these places, rows (n, F), as seen, so that the warm start is trusted there."""
        for row in x[:: max(1, len(x) // self._explored.capacity)]:
            self._explored.visit(row)

    def doubt(self) -> None:
        """React to a change of the application as to a drift alarm: adapt faster, and treat no place as seen."""
        self._changed_at = self._seen
        self._champion.ensemble.alarm()
        self._challenger = None
        self._explored.clear()

    # -- learning -----------------------------------------------------------------------------------------------

    def observe(self, x: Floats, y: float, at_s: float | None = None) -> Learned:
        """Learn one sample: features (F,), log-performance, and its time (monotonic; jumps are tolerated).

        Unusable samples are counted in ``skipped`` by reason.
        """
        if not math.isfinite(y):
            return self._skip("target is not a number")
        if abs(y) > _MOST_TARGET:
            return self._skip("target is out of range")
        row = np.array(x, dtype=np.float64)
        if row.shape != self._typical.shape:
            return self._skip(f"{row.size} features instead of {self._typical.size}")
        known = np.isfinite(row)
        if not known.all():
            if not known.any():
                return self._skip("no feature is known")
            self.missing.update(name for name, there in zip(self.features, known, strict=True) if not there)
            row = np.where(known, row, self._typical)
        row = self._within(row)
        self._typical += np.where(known, (row - self._typical) / _MEMORY, 0.0)
        self._pause(at_s)
        return self._learn(row, float(y))

    def _learn(self, row: Floats, y: float) -> Learned:
        champion = self._champion
        leaves = champion.leaves(row[None])
        found = champion.ensemble.predict(leaves)
        far = float(self._explored.distance(row[None])[0])
        error = y - float(found[0, 0])
        noise_var = self._noise.sd**2
        missed = self._conformal.update(
            error / math.sqrt(float(spread(found)[0]) + far * champion.doubt_var + noise_var)
        )
        drift = self._drift.update(error / self._noise.sd)
        clip = self._clip(error)
        self._noise.update(error)
        self._mape += (min(abs(math.expm1(min(error, 5.0))), 5.0) - self._mape) / _MEMORY
        if drift:
            self._changed_at = self._seen
            champion.ensemble.alarm()
            self._explored.clear()
        weight = self._weights[self._seen % _DRAWS]
        champion.doubt(far, error, noise_var)
        champion.learn(leaves[0], found[:, 0], y, clip, weight, noise_var)
        swapped = self._try_challenger(row, y, error, clip, weight, noise_var, drift)
        self._reservoir.add(row, min(max(error, -clip), clip) if clip < abs(error) else error, self._seen)
        self._explored.visit(row)
        self._seen += 1
        return Learned(error, "", drift, missed, swapped, far)

    def _clip(self, error: float) -> float:
        """The part of an error that is learned: outliers are clipped, unless they persist."""
        limit = OUTLIER_SDS * self._noise.sd
        if abs(error) <= limit:
            self._surprises = 0
            return limit
        side = 1 if error > 0 else -1
        self._surprises = self._surprises + side if self._surprises * side >= 0 else side
        return limit if abs(self._surprises) < SURPRISES else math.inf

    def _within(self, x: Floats) -> Floats:
        """Clip features to their ranges, extended by the range's width on both sides."""
        return np.asarray(np.minimum(np.maximum(x, self._least), self._most), dtype=np.float64)

    def _pause(self, at_s: float | None) -> None:
        """Raise the gain's uncertainty with the time since the last sample; ignores clock jumps."""
        if at_s is None or not math.isfinite(at_s):
            return
        if self._at_s is not None:
            gap = at_s - self._at_s
            if 0 <= gap <= _JUMP_S:
                self._champion.ensemble.gain_var += self.settings.update.gain_walk_var * min(gap / 10.0, 60.0)
            else:
                self.skipped["clock jumped"] += 1
        self._at_s = at_s

    def _skip(self, why: str) -> Learned:
        self.skipped[why] += 1
        return Learned(math.nan, why)

    # -- rebuilding ---------------------------------------------------------------------------------------------

    @property
    def rebuild_due(self) -> bool:
        """True if a worker should run ``rebuild_job()``."""
        every, after = self.settings.rebuild_every, self.settings.rebuild_after_drift
        if self._challenger is not None or self._asked_for is not None or not every:
            return False
        if not self._warm:
            every = min(every, max(self.settings.first_rebuild, self._built_at))
        answers = self._changed_at > self._built_at and self._seen - self._changed_at >= after
        return answers or self._seen - self._built_at >= every

    def ask_for_rebuild(self) -> None:
        """Request a rebuild; drops a challenger on trial."""
        self._challenger, self._asked_for = None, None
        self._built_at = self._seen - self.settings.rebuild_every

    def rebuild_job(self) -> RebuildJob:
        """The job for the worker, whose result goes to ``offer`` (None if it failed)."""
        kept = self._reservoir.kept()
        champion, settings = self._champion, self.settings
        y = self._labels(kept)
        age = self._seen - kept.number
        new = kept.number >= self._changed_at
        weight = np.where(new, 0.5 ** (age / settings.recent_half_life), 0.0)
        weight = np.maximum(weight, settings.old_weight)
        weight /= max(float(weight.mean()), 1e-9) if len(weight) else 1.0
        self._asked_for = self._seen
        trees = champion.ensemble.forest.trees
        return RebuildJob(
            trees.features,
            trees.monotone,
            kept.x,
            y,
            weight,
            settings.fit,
            settings.bags,
            settings.seed + self._seen,
        )

    def _labels(self, kept: KeptSamples) -> Floats:
        # The reservoir keeps the model's errors at the time; add the present predictions.
        if not len(kept.x):
            return kept.y
        return self._champion.ensemble.mean(self._champion.leaves(kept.x)) + kept.y

    def offer(self, rebuilt: Rebuilt | None) -> None:
        """Put a rebuilt model on trial beside the present one; None: the rebuild failed."""
        self._built_at = self._asked_for if self._asked_for is not None else self._seen
        self._asked_for = None
        if rebuilt is not None:
            samples = self.settings.trial_samples
            if not self._warm:
                samples = min(samples, max(self._seen // 4, 10))
            trial = RebuildTrial(samples, self.settings.trial_margin)
            self._challenger = EnsembleMember(rebuilt, self.settings.update, self._champion.doubt_var), trial

    def _try_challenger(
        self, row: Floats, y: float, error: float, clip: float, weight: Floats, noise_var: float, drift: bool
    ) -> bool:
        if self._challenger is None:
            return False
        challenger, trial = self._challenger
        leaves = challenger.leaves(row[None])
        found = challenger.ensemble.predict(leaves)[:, 0]
        rival = y - float(found[0])
        if drift:
            challenger.ensemble.alarm()
        challenger.learn(leaves[0], found, y, clip, weight, noise_var)
        won = trial.update(error, rival, 8.0 * self._noise.sd)
        if won is None:
            return False
        self._challenger = None
        if won:
            challenger.doubt_var = self._champion.doubt_var
            self._champion = challenger
            self.rebuilds += 1
        return won
