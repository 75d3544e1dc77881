"""The public face of the online learner: ask for many allocations at once, learn from one sample at a time."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np

from perphd.predictor.ogbrt.drift import Drift
from perphd.predictor.ogbrt.explored import Explored
from perphd.predictor.ogbrt.member import Member
from perphd.predictor.ogbrt.rebuild import RebuildJob, Rebuilt, Trial
from perphd.predictor.ogbrt.reservoir import Kept, Reservoir
from perphd.predictor.ogbrt.settings import Learned, OgbrtSettings, Prediction
from perphd.predictor.ogbrt.trees import Floats, Trees
from perphd.predictor.ogbrt.uncertainty import Conformal, Noise

OUTLIER_SDS = 4.0
"""An error beyond so many standard deviations is an outlier ..."""
SURPRISES = 3
"""... unless so many in a row are off on one side: then the application has changed."""
_JUMP_S = 3600.0
_MOST_TARGET = 100.0
"""Logarithms beyond it are no performance."""
_MEMORY = 30.0


class Ogbrt:
    """An online gradient-boosted model of log-performance. Deterministic; no clock, no files, never raises on samples.

    Args:
        trees: the warm start (or a class prior, or ``Trees.constant``).
        low: (F,) lower ends of the features' ranges.
        high: (F,) upper ends.
        settings: how it works.
        x: (n, F) the samples that the trees were fitted to, if there are any: they found the replicas and fill the
            reservoir.
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
        self._rng = np.random.default_rng(settings.seed)
        self._reservoir = Reservoir(low, high, settings.reservoir)
        self._explored = Explored(low, high)
        self._typical: Floats = 0.5 * (np.asarray(low, dtype=np.float64) + np.asarray(high, dtype=np.float64))
        span = np.abs(np.asarray(high, dtype=np.float64) - np.asarray(low, dtype=np.float64))
        self._least, self._most = np.asarray(low) - span, np.asarray(high) + span
        columns = len(trees.features)
        rows = np.zeros((0, columns)) if x is None else np.asarray(x, dtype=np.float64)
        targets = np.zeros(0) if y is None else np.asarray(y, dtype=np.float64)
        self._champion = Member.founded(
            trees, rows, targets, settings.update, settings.bags, settings.prior_sd, settings.seed
        )
        self._challenger: tuple[Member, Trial] | None = None
        self._drift = Drift(settings.drift)
        self._conformal = Conformal(settings.miss_rate)
        self._noise = Noise(settings.noise_sd)
        self._seen = 0
        self._warm = len(rows) > 0 or trees.count > 0
        self._changed_at: float = -math.inf  # until an alarm, what the warm start saw is as good as new
        self._built_at = 0
        self._asked_for: int | None = None
        self._surprises = 0
        self._mape = settings.gate_mape
        self._at_s: float | None = None
        errors = targets - self._champion.ensemble.mean(self._champion.leaves(rows)) if len(rows) else targets
        for i, row in enumerate(rows):
            self._reservoir.add(row, float(errors[i]), i - len(rows))

    # -- answering ----------------------------------------------------------------------------------------------

    def predict(self, x: Floats) -> Prediction:
        """Answer for rows (n, F); NaN means that a feature is not known, and its usual value is taken."""
        rows = np.array(x, dtype=np.float64)
        unknown = ~np.isfinite(rows)
        if unknown.any():
            rows = np.where(unknown, self._typical, rows)
        rows = self._within(rows)
        champion = self._champion
        leaves = champion.leaves(rows)
        mean, spread = champion.ask(leaves)
        far, support = self._explored.near(rows)
        scale = self._conformal.scale
        doubt = spread + far * champion.doubt_var
        half = scale * np.sqrt(doubt + self._noise.sd**2)
        sd = np.sqrt(doubt) * (scale / 1.645)
        return Prediction(mean, sd, mean - half, mean + half, support)

    @property
    def mape(self) -> float:
        """Mean relative error of one-step predictions of late (a running mean over some 30 samples)."""
        return self._mape

    @property
    def may_act(self) -> bool:
        """Good enough to act on; else it may only advise."""
        return self._seen >= self.settings.gate_samples and self._mape <= self.settings.gate_mape

    @property
    def seen(self) -> int:
        """Live samples learned."""
        return self._seen

    @property
    def alarms(self) -> int:
        """Drift alarms so far."""
        return self._drift.alarms

    @property
    def coverage(self) -> float:
        """Share of the samples that were inside their bands."""
        return self._conformal.coverage

    @property
    def noise_sd(self) -> float:
        """Noise of one sample, log units."""
        return self._noise.sd

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays that stay resident."""
        members = [self._champion] + ([self._challenger[0]] if self._challenger else [])
        return self._reservoir.nbytes + sum(member.nbytes for member in members)

    def remembered(self) -> tuple[Floats, Floats]:
        """What the reservoir holds: rows (n, F) and labels (n,), brought up to date. With ``trees`` all that is to be
        saved: a learner made from both goes on where this one was.
        """
        kept = self._reservoir.kept()
        return kept.x, self._labels(kept)

    def trees(self) -> Trees:
        """The model as it is now, in the portable form."""
        ensemble = self._champion.ensemble
        base = float(ensemble.base[0] + ensemble.gain[0])
        return ensemble.forest.export(ensemble.values[0].reshape(ensemble.forest.shape), base)

    # -- learning -----------------------------------------------------------------------------------------------

    def observe(self, x: Floats, y: float, at_s: float | None = None) -> Learned:
        """Learn one sample: features (F,), log-performance, and its time (monotonic; any jump is survived).

        What cannot be learned from is counted in ``skipped`` with its reason.
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
        mean, spread = champion.ask(leaves)
        far = float(self._explored.distance(row[None])[0])
        error = y - float(mean[0])
        noise_var = self._noise.sd**2
        missed = self._conformal.update(
            error / math.sqrt(float(spread[0]) + far * champion.doubt_var + noise_var)
        )
        drift = self._drift.update(error / self._noise.sd)
        clip = self._clip(error)
        self._noise.update(error)
        self._mape += (min(abs(math.expm1(min(error, 5.0))), 5.0) - self._mape) / _MEMORY
        if drift:
            self._changed_at = self._seen
            champion.ensemble.alarm()
            self._explored.clear()
        weight = np.concatenate([[1.0], self._rng.poisson(1.0, self.settings.bags)])
        champion.doubt(far, error, noise_var)
        champion.learn(leaves[0], y, clip, weight, noise_var)
        swapped = self._try_challenger(row, y, error, clip, weight, noise_var, drift)
        self._reservoir.add(row, min(max(error, -clip), clip) if clip < abs(error) else error, self._seen)
        self._explored.visit(row)
        self._seen += 1
        return Learned(error, "", drift, missed, swapped)

    def _clip(self, error: float) -> float:
        """How much of an error is believed."""
        limit = OUTLIER_SDS * self._noise.sd
        if abs(error) <= limit:
            self._surprises = 0
            return limit
        side = 1 if error > 0 else -1
        self._surprises = self._surprises + side if self._surprises * side >= 0 else side
        return limit if abs(self._surprises) < SURPRISES else math.inf

    def _within(self, x: Floats) -> Floats:
        """Features may leave their ranges, by as much as the ranges are wide."""
        return np.asarray(np.clip(x, self._least, self._most), dtype=np.float64)

    def _pause(self, at_s: float | None) -> None:
        """The longer nothing was seen, the less the gain is known; a clock that jumps tells nothing."""
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
        """A worker should run ``rebuild_job()``."""
        every, after = self.settings.rebuild_every, self.settings.rebuild_after_drift
        if self._challenger is not None or self._asked_for is not None or not every:
            return False
        if not self._warm:
            every = min(every, max(self.settings.first_rebuild, self._built_at))
        answers = self._changed_at > self._built_at and self._seen - self._changed_at >= after
        return answers or self._seen - self._built_at >= every

    def rebuild_job(self) -> RebuildJob:
        """What the worker needs; hand its result to ``offer``, or None if it failed."""
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

    def _labels(self, kept: Kept) -> Floats:
        # The reservoir keeps what the model missed when a sample came; what it says there now is added.
        if not len(kept.x):
            return kept.y
        return self._champion.ensemble.mean(self._champion.leaves(kept.x)) + kept.y

    def offer(self, rebuilt: Rebuilt | None) -> None:
        """Let a rebuilt model try itself beside the present one; None: the rebuild failed, the model stays."""
        self._built_at = self._asked_for if self._asked_for is not None else self._seen
        self._asked_for = None
        if rebuilt is not None:
            samples = self.settings.trial_samples
            if not self._warm:
                samples = min(samples, max(self._seen // 4, 10))
            trial = Trial(samples, self.settings.trial_margin)
            self._challenger = Member(rebuilt, self.settings.update, self._champion.doubt_var), trial

    def _try_challenger(
        self, row: Floats, y: float, error: float, clip: float, weight: Floats, noise_var: float, drift: bool
    ) -> bool:
        if self._challenger is None:
            return False
        challenger, trial = self._challenger
        leaves = challenger.leaves(row[None])
        rival = y - float(challenger.ensemble.mean(leaves)[0])
        if drift:
            challenger.ensemble.alarm()
        challenger.learn(leaves[0], y, clip, weight, noise_var)
        won = trial.update(error, rival, 8.0 * self._noise.sd)
        if won is None:
            return False
        self._challenger = None
        if won:
            challenger.doubt_var = self._champion.doubt_var
            self._champion = challenger
            self.rebuilds += 1
        return won
