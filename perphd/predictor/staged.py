"""A learned correction of stages (``stages``) in one Kalman filter, with bounds on their signs.

The learner ``staged`` uses it. With any learner, a start from other hosts' estimates uses it.

* One level is shared by all places, so that after a change all predictions move at once.
* Level and shape are learned together, each in proportion to its uncertainty. The level changes with time;
  the shape hardly does. Without a profile this is recursive least squares on the stages, starting from the
  prior's uncertainty.
* If samples keep missing on one side (CUSUM of standardised errors), the application has changed: the uncertainty of
  level and shape is raised, and the next samples decide.
* Predictions use the most likely set of coefficients that keeps every sign.
* The band is the filter's own, scaled by recent errors at new places, plus the uncertainty that no stage can
  express.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from perphd.predictor import features
from perphd.predictor.boosted import Boosted, has_trees
from perphd.predictor.ogbrt import InvalidModel
from perphd.predictor.persist import MAX_AGE_S, ResidualState, StagedState
from perphd.predictor.residual import Residual
from perphd.predictor.stages import COUNT, LEAST, NAMES, SD, stages

Floats = NDArray[np.float64]

WALK_VAR: Final = 2e-5
"""Variance added to the level per sample (log units): with 3 % noise it follows within about seven samples."""
_SHAPE_WALK: Final = 1.0 / 3000.0
"""Share of the shape's initial variance added per sample; at one sample per second, the memory is about an hour."""
_MOST_PAUSE_S: Final = 600.0
_SLACK, _ALARM, _CLIP_SDS = 0.5, 8.0, 5.0
"""CUSUM of standardised errors: slack, threshold, and clip of one error, in sigma.

Two large errors on one side raise an alarm; a single one never does. Noise alone raises one in about ten
thousand samples.
"""
_CHANGED_SD: Final = 0.3
"""Standard deviation added to the level after a change of the application (log units)."""
_CHANGED_SHAPE: Final = 0.3
"""Share of the shape's initial variance added after a change of the application."""
_OUTLIER_SDS: Final = 4.0
_NOISE_GAIN: Final = 0.03
_LEAST_NOISE, _MOST_NOISE = 0.01, 0.5
_DOUBT_GAIN: Final = 0.05
_LEAST_DOUBT, _CHANGED_DOUBT, _MOST_DOUBT = 0.25, 2.0, 9.0
"""Factor on the band's variance: its lower bound, its least value after a change, and its upper bound."""
UNSEEN_SD: Final = 0.008
"""Uncertainty at an unvisited place that no stage can express (log units)."""
_SEEN_SD: Final = 0.004
"""Uncertainty at a visited place that no stage can express (log units)."""
PROFILE_SD: Final = 0.05
"""Noise of a profile's rows beside batch, log units: twice their scatter, plus effects left out."""
_PROFILE_LEVEL_SD: Final = 0.1
REMEMBERED: Final = 256
"""Number of samples to keep for other hosts' models, newest first."""
_OFTEN, _EVERY = 4.0, 8
"""Number of visits after which only some of a place's samples are remembered, and the interval between these.

This keeps a place that is visited often from displacing other places.
"""
_ROUNDS: Final = 2 * COUNT
_OLD_DOUBT: Final = 0.05


class Staged:
    """The ``Correction`` described in the module.

    Args:
        scales, noise_sd: arguments for the places seen, see ``Residual``.
        prior_sd: uncertainty of the prior as a whole (log units).
        sign: 1 if more of the channel is better for the LRA, -1 if less is.
        count: number of stages in use, from the first: all, 1 (only the level) or 0 (nothing is learned).

    Attributes:
        told: whether it started from other hosts' estimates.
    """

    def __init__(
        self, scales: Floats, prior_sd: float, noise_sd: float, sign: int, count: int = COUNT
    ) -> None:
        self._sign, self._count, self._noise_sd = sign, count, noise_sd
        self._doubted: Floats = SD[:count] * (prior_sd / 0.2)
        self._least: Floats = LEAST[:count]
        self._places = Residual(scales, prior_sd, noise_sd)
        self._scales, self._prior_sd = scales, prior_sd
        self._forget()

    def _forget(self) -> None:
        self._mean: Floats = np.zeros(self._count)
        self._var: Floats = np.diag(self._doubted**2)
        self._noise_var = self._noise_sd**2
        self._doubt = 1.0
        self._up = self._down = 0.0
        self._alarms = self._clipped = self._seen = 0
        self._at_s: float | None = None
        self._signed: Floats | None = None
        self._kept: deque[Floats] = deque(maxlen=REMEMBERED)
        self.told = False

    # -- beginning ------------------------------------------------------------------------------------------------

    def begin(self, x: Floats, prior: Floats, y: Floats) -> None:
        """Start from rows (n, D) with physics predictions ``prior`` (log, (n,)) and corrections (n,).

        Unknown values of a profile are NaN, also in ``prior``. A profile determines the shape; the level is left to
        live samples.
        """
        self.learn_rows(x, prior, y, PROFILE_SD**2)
        if self._count:
            self._var[0, :] = self._var[:, 0] = 0.0
            self._var[0, 0] = _PROFILE_LEVEL_SD**2
            self._signed = None

    def begin_told(self, x: Floats, prior: Floats, y: Floats, noise_var: Floats) -> None:
        """Start from other hosts' estimates: rows as in ``begin``, each with its variance (n,).

        They are not samples of this host, so they are not remembered.
        """
        place = np.nan_to_num(x)
        for row, label, var in zip(self._stages(place, prior), y, noise_var, strict=True):
            self._fold(row, self._sign * float(label), float(var))
        if self._count:
            self._var[0, 0] += _PROFILE_LEVEL_SD**2
        self.told = True

    def learn_rows(self, x: Floats, prior: Floats, y: Floats, noise_var: float) -> None:
        """Learn rows (n, D) with physics predictions ``prior`` (log, (n,)) and corrections (n,) of this variance."""
        for row, expected, label in zip(x, prior, y, strict=True):
            place = np.where(np.isnan(row[: features.PLACE]), 0.0, row[: features.PLACE])
            known = np.append(place, row[features.PLACE :])
            told = float(expected) if math.isfinite(expected) else 0.0
            self._fold(self._stages(known[None], np.array([told]))[0], self._sign * float(label), noise_var)
            self._kept.append(np.append(known, (told, label)))
            self._seen += 1

    def remembered(self) -> tuple[Floats, Floats, Floats]:
        """The remembered samples: rows (n, D), physics predictions (log, (n,)), corrections (n,)."""
        rows = np.array(self._kept).reshape(-1, len(features.NAMES) + 2)
        return rows[:, :-2], rows[:, -2], rows[:, -1]

    def say(self, x: Floats, prior: Floats) -> Floats:
        """The correction (n,) for rows (n, D) with physics predictions ``prior`` (log, (n,))."""
        return np.asarray(self._sign * (self._stages(x, prior) @ self._kept_signs()), dtype=np.float64)

    # -- a correction ---------------------------------------------------------------------------------------------

    def update(self, key: Hashable, x: Floats, residual: float, at_s: float, prior: float = 0.0) -> float:
        """See ``Correction``."""
        if not self._count:
            return residual
        row = self._stages(x[None], np.array([prior]))[0]
        self._walk(at_s)
        y = self._sign * residual
        error = y - float(row @ self._mean)
        believed = float(row @ self._var @ row)
        off = error / math.sqrt(believed + self._noise_var)
        noise_var = self._noise_var
        self._up = max(0.0, self._up + min(off, _CLIP_SDS) - _SLACK)
        self._down = max(0.0, self._down - max(off, -_CLIP_SDS) - _SLACK)
        if max(self._up, self._down) > _ALARM:
            self._alarms += 1
            self._doubt = max(self._doubt, _CHANGED_DOUBT)
            self.doubt()
        elif abs(off) > _OUTLIER_SDS:
            self._clipped += 1
            noise_var = (believed + self._noise_var) * (off / _OUTLIER_SDS) ** 2 * 4.0
        elif not self._places.visits(key):
            fresh = min(max((error * error - self._noise_var) / max(believed, 1e-6), 0.0), 4.0 * _MOST_DOUBT)
            self._doubt += _DOUBT_GAIN * (fresh - self._doubt)
            self._doubt = min(max(self._doubt, _LEAST_DOUBT), _MOST_DOUBT)
        self._fold(row, y, noise_var)
        share = self._noise_var / (believed + self._noise_var)
        spread = min(error * error * share, 9.0 * self._noise_var)
        least, most = _LEAST_NOISE**2, _MOST_NOISE**2
        self._noise_var = min(max(self._noise_var + _NOISE_GAIN * (spread - self._noise_var), least), most)
        if self._places.visits(key) < _OFTEN or self._seen % _EVERY == 0:
            self._kept.append(np.append(x, (prior, residual)))
        self._places.fold(key, x, residual, at_s)
        self._seen += 1
        return self._sign * error

    def predict(self, x: Floats, at_s: float, prior: Floats | None = None) -> tuple[Floats, Floats, Floats]:
        """See ``Correction``."""
        if not self._count:
            return np.zeros(len(x)), np.full(len(x), self._prior_sd), np.zeros(len(x))
        rows = self._stages(x, np.zeros(len(x)) if prior is None else prior)
        support = self._places.support(x, at_s)
        unseen = UNSEEN_SD**2 + (_SEEN_SD**2 - UNSEEN_SD**2) * support / (support + 1.0)
        var = self._doubt * ((rows @ self._var) * rows).sum(axis=1) + unseen
        mean = self._sign * (rows @ self._kept_signs())
        return np.asarray(mean, dtype=np.float64), np.sqrt(np.maximum(var, unseen)), support

    def doubt(self) -> None:
        """See ``Correction``."""
        self._up = self._down = 0.0
        if self._count:
            at = np.arange(self._count)
            self._var[at, at] += _CHANGED_SHAPE * self._doubted**2
            self._var[0, 0] += _CHANGED_SD**2
        self._places.doubt()

    @property
    def cells(self) -> int:
        """See ``Correction``."""
        return self._places.cells

    @property
    def alarms(self) -> int:
        """See ``Correction``."""
        return self._alarms

    @property
    def clipped(self) -> int:
        """See ``Correction``."""
        return self._clipped

    @property
    def noise_sd(self) -> float:
        """Estimated scatter of one sample, log units."""
        return math.sqrt(self._noise_var)

    def noise_at_least(self, sd: float) -> None:
        """See ``Correction``."""
        self._noise_var = max(self._noise_var, sd * sd)
        self._places.noise_at_least(sd)

    # -- the filter -----------------------------------------------------------------------------------------------

    def _stages(self, x: Floats, prior: Floats) -> Floats:
        return stages(x, self._sign * prior)[:, : self._count]

    def _walk(self, at_s: float) -> None:
        """Raise the variances of level and shape for the time since the last sample."""
        pause_s = at_s - self._at_s if self._at_s is not None else 1.0
        self._at_s = at_s
        at = np.arange(self._count)
        self._var[at, at] = np.minimum(
            self._var[at, at] + _SHAPE_WALK * self._doubted**2, 4.0 * self._doubted**2 + 1.0
        )
        self._var[0, 0] += (
            WALK_VAR * min(max(pause_s, 1.0), _MOST_PAUSE_S) - _SHAPE_WALK * self._doubted[0] ** 2
        )

    def _fold(self, row: Floats, y: float, noise_var: float) -> None:
        if not self._count:
            return
        toward = self._var @ row
        var = float(row @ toward) + noise_var
        self._mean = self._mean + toward * ((y - float(row @ self._mean)) / var)
        toward /= math.sqrt(var)
        self._var -= np.outer(
            toward, toward
        )  # an outer product of one vector keeps the matrix exactly symmetric
        self._signed = None

    def _kept_signs(self) -> Floats:
        """The coefficients nearest to the filter's mean, in its own metric, that keep every sign; (count,).

        Repeatedly moves the largest violation to its bound, and the others with it by covariance, until no
        violation is left.
        """
        if self._signed is None:
            mean = self._mean.copy()
            for _ in range(_ROUNDS):
                short = self._least - mean
                worst = int(np.argmax(short)) if len(short) else 0
                if not len(short) or short[worst] <= 1e-9:
                    break
                mean += self._var[:, worst] * (short[worst] / max(self._var[worst, worst], 1e-12))
            self._signed = np.maximum(mean, self._least)
        return self._signed

    # -- keeping --------------------------------------------------------------------------------------------------

    def to_state(self, now_s: float) -> ResidualState:
        """See ``Correction``."""
        places = self._places.to_state(now_s)
        if not self._count:
            return places
        x, prior, y = self.remembered()
        kept = StagedState(
            stages=NAMES[: self._count],
            mean=tuple(self._mean.tolist()),
            spread=tuple(self._var[np.tril_indices(self._count)].tolist()),
            noise_var=self._noise_var,
            doubt=self._doubt,
            drift_up=self._up,
            drift_down=self._down,
            alarms=self._alarms,
            seen=self._seen,
            age_s=None if self._at_s is None else min(max(0.0, now_s - self._at_s), MAX_AGE_S),
            features=features.NAMES,
            rows=tuple(None if math.isnan(v) else v for v in x.ravel().tolist()),
            priors=tuple(prior.tolist()),
            labels=tuple(y.tolist()),
        )
        return ResidualState(places.noise_var, places.cells, None, staged=kept, told=self.told)

    def restore(self, state: ResidualState, now_s: float, elapsed_s: float = 0.0) -> None:
        """See ``Correction``. Learns from another learner's remembered samples and cells."""
        self._forget()
        self._places.restore(state, now_s, elapsed_s)
        self.told = state.told
        kept = state.staged
        if not self._count:
            return
        if kept is None:
            self._learn_cells(state)
            return
        x, prior, y = rows_of(kept)
        if kept.stages != NAMES[: self._count]:
            # The stages differ, so learn the remembered samples again.
            self.learn_rows(x, prior, y, 4.0 * kept.noise_var)
            return
        if len(kept.mean) != self._count or len(kept.spread) != self._count * (self._count + 1) // 2:
            raise InvalidModel(
                f"stages: {len(kept.mean)} means do not fit {len(kept.spread)} entries of their spread"
            )
        self._mean = np.array(kept.mean)
        lower = np.zeros((self._count, self._count))
        lower[np.tril_indices(self._count)] = kept.spread
        self._var = lower + np.tril(lower, -1).T
        if np.any(np.diag(self._var) < 0):
            raise InvalidModel("stages: a variance is negative")
        self._noise_var, self._doubt = kept.noise_var, kept.doubt
        self._up, self._down = kept.drift_up, kept.drift_down
        self._alarms = kept.alarms
        for row, expected, label in zip(x, prior, y, strict=True):
            self._kept.append(np.append(row, (expected, label)))
        self._seen = kept.seen
        self._at_s = None if kept.age_s is None else now_s - kept.age_s - max(0.0, elapsed_s)

    def _learn_cells(self, state: ResidualState) -> None:
        """Learn from a model without stages. It has no physics predictions, so the exponent keeps its prior."""
        if has_trees(state):
            signs = features.WORK_SIGNS if self._sign > 0 else features.DELAY_SIGNS
            trees = Boosted(self._scales, self._prior_sd, self._noise_sd, signs)
            trees.restore(state, 0.0)
            x, y = trees.remembered()
            known = np.isfinite(y)
            self.learn_rows(x[known], np.zeros(int(known.sum())), y[known], PROFILE_SD**2)
        for cell in state.cells:
            x = features.padded(cell.x)
            noise_var = max(state.noise_var, _OLD_DOUBT**2) / max(cell.count, 0.1)
            self.learn_rows(x[None], np.zeros(1), np.array([cell.mean]), noise_var)


def rows_of(kept: StagedState) -> tuple[Floats, Floats, Floats]:
    """The remembered samples of a saved correction: rows (n, D), physics predictions (log, (n,)), corrections (n,).

    Raises:
        InvalidModel: lists differ in length, or the columns are unknown.
    """
    count, had = len(kept.labels), len(kept.features)
    if len(kept.rows) != count * had or len(kept.priors) != count:
        raise InvalidModel(f"stages: {len(kept.rows)} entries do not fit {count} remembered rows")
    if kept.features != features.NAMES[:had] or had < features.PLACE:
        raise InvalidModel(f"stages: the columns {', '.join(kept.features)} are not those of this version")
    rows: Sequence[float | None] = kept.rows
    x = [features.padded(rows[i * had : (i + 1) * had]) for i in range(count)]
    made = np.array(x).reshape(count, len(features.NAMES))
    return made, np.array(kept.priors, dtype=np.float64), np.array(kept.labels, dtype=np.float64)
