"""Candidates for the acting model behind one interface, each with and without a warm start (a profile's rows)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from perphd.domain.allocation import Allocation
from perphd.domain.learning import Ablated, Learner
from perphd.domain.policy import ModelContext
from perphd.predictor import Observation, Registry, features
from perphd.predictor.ogbrt import Forest, Trees
from perphd.predictor.ogbrt.fit import FitSettings, fit
from perphd.predictor.physics import CpuGrants, expect

Floats = NDArray[np.float64]

Z95: Final = 1.645
"""Standard deviations below a value at which a normal one-sided 95 % bound lies."""
SCALAR_NOISE: Final = (2 * 0.03) ** 2
SCALAR_WALK: Final = 2e-4
"""Parameters of the scalar Kalman filter: variance of a sample's noise (twice 3 %), and variance of the level's change
per sample.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Allocations as features (n, D), with the work that the prior expects of them (log, (n,))."""

    x: Floats
    prior: Floats

    @classmethod
    def of(cls, allocations: Sequence[Allocation], context: ModelContext) -> Rows:
        """The rows of these allocations."""
        grants = CpuGrants.of(allocations)
        rows = features.features(allocations, context, grants=grants)
        rows[:, features.PLACE :] = np.where(
            np.isnan(rows[:, features.PLACE :]), 0.0, rows[:, features.PLACE :]
        )
        return cls(rows, np.log(expect(grants, context).work))


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """The content of a warm start: rows of ``features`` (NaN: unknown), the prior's expectation there (log, (n,)), and
    the corrections measured there (n,).
    """

    x: Floats
    prior: Floats
    corrections: Floats


class Follower(Protocol):
    """One contestant."""

    def observe(self, seen: Observation, log_ratio: float) -> None:
        """Learn one sample; ``log_ratio``: the measurement, for contestants without their own pipeline."""

    def ask(self, allocations: Sequence[Allocation], context: ModelContext) -> tuple[Floats, Floats | None]:
        """Log of the expected work ratios, (n,), and of the one-sided 95 % lower bounds; None: it has none."""


class Product:
    """perphd's own model, through the daemon's interface."""

    def __init__(self, profile: Profile | None, learner: Learner | Ablated) -> None:
        self._registry = Registry(learner)
        self._model = self._registry.model("lra")
        if profile is not None:
            self._model.begin(profile.x, profile.prior, profile.corrections)

    def observe(self, seen: Observation, log_ratio: float) -> None:
        """See ``Follower``."""
        self._model.observe(seen)
        self._registry.rebuild_here()

    def ask(self, allocations: Sequence[Allocation], context: ModelContext) -> tuple[Floats, Floats | None]:
        """See ``Follower``."""
        bands = self._model.predict_work(allocations, context)
        value = np.log([band.value for band in bands])
        return value, np.log([band.at(-Z95) for band in bands])


class Scalar:
    """A scalar Kalman filter on top of a static model."""

    def __init__(self, below: Callable[[Rows], Floats]) -> None:
        self._below, self._level, self._var = below, 0.0, 0.25

    def observe(self, seen: Observation, log_ratio: float) -> None:
        """See ``Follower``."""
        if not seen.undisturbed:
            error = log_ratio - float(self._below(Rows.of([seen.allocation], seen.context))[0]) - self._level
            self._var += SCALAR_WALK
            gain = self._var / (self._var + SCALAR_NOISE)
            self._level += gain * error
            self._var *= 1.0 - gain

    def ask(self, allocations: Sequence[Allocation], context: ModelContext) -> tuple[Floats, Floats | None]:
        """See ``Follower``."""
        return self._below(Rows.of(allocations, context)) + self._level, None


class Retrained(Scalar):
    """LightGBM, retrained at intervals on all samples, as a correction of the prior; with the scalar on top."""

    def __init__(self, profile: Profile | None, every: int = 60) -> None:
        super().__init__(self._said)
        self._every = every
        self._x = [] if profile is None else list(np.nan_to_num(profile.x))
        self._y = [] if profile is None else profile.corrections.tolist()
        self._booster: Any = None
        if profile is not None:
            self._train()

    def observe(self, seen: Observation, log_ratio: float) -> None:
        """See ``Follower``."""
        if seen.undisturbed:
            return
        super().observe(seen, log_ratio)
        rows = Rows.of([seen.allocation], seen.context)
        self._x.append(rows.x[0])
        self._y.append(log_ratio - float(rows.prior[0]))
        if len(self._y) % self._every == 0:
            self._train()

    def _said(self, rows: Rows) -> Floats:
        if self._booster is None:
            return rows.prior
        return np.asarray(rows.prior + self._booster.predict(rows.x, num_threads=1), dtype=np.float64)

    def _train(self) -> None:
        import lightgbm

        settings = {
            "objective": "regression", "num_leaves": 16, "learning_rate": 0.1, "min_data_in_leaf": 5, "verbose": -1,
            "num_threads": 1, "max_bin": 63,
        }  # fmt: skip
        data = lightgbm.Dataset(np.array(self._x), np.array(self._y))
        self._booster = lightgbm.train(settings, data, 60)


class LeastSquares:
    """Recursive least squares on the logarithms of the grants, with forgetting: linear, without prior or sign
    constraints.
    """

    TERMS: Final = 12
    FORGETS: Final = 0.995

    def __init__(self, profile: Profile | None) -> None:
        self._beta, self._p = np.zeros(self.TERMS), np.eye(self.TERMS)
        if profile is not None:
            rows = Rows(np.nan_to_num(profile.x), profile.prior)
            for x, y in zip(self._terms(rows), profile.corrections, strict=True):
                self._learn(x, float(y), 1.0)

    def observe(self, seen: Observation, log_ratio: float) -> None:
        """See ``Follower``."""
        if not seen.undisturbed:
            rows = Rows.of([seen.allocation], seen.context)
            self._learn(self._terms(rows)[0], log_ratio - float(rows.prior[0]), self.FORGETS)

    def ask(self, allocations: Sequence[Allocation], context: ModelContext) -> tuple[Floats, Floats | None]:
        """See ``Follower``."""
        rows = Rows.of(allocations, context)
        return np.minimum(rows.prior + self._terms(rows) @ self._beta, 0.05), None

    def _terms(self, rows: Rows) -> Floats:
        x, ones = rows.x, np.ones(len(rows.x))
        share, apart = x[:, 0], x[:, 2]
        own = np.log(np.maximum(1.0 - share, 0.03))
        return np.column_stack(
            [
                ones, apart, apart * own, (1 - apart) * own, (1 - apart) * share, (1 - apart) * x[:, 1],
                np.log1p(20 * x[:, 5]), np.log(np.maximum(x[:, 6], 0.05)), np.log(np.maximum(x[:, 3], 0.02)),
                x[:, 3] ** 2, (1 - apart) * share * x[:, 1], rows.prior,
            ]
        )  # fmt: skip

    def _learn(self, x: Floats, y: float, forgets: float) -> None:
        px = self._p @ x
        gain = px / (forgets + x @ px)
        self._beta = self._beta + gain * (y - x @ self._beta)
        self._p = (self._p - np.outer(gain, px)) / forgets
        if np.trace(self._p) > 1e4:
            self._p *= 1e4 / np.trace(self._p)


class LastValue:
    """Predicts the last measurement everywhere."""

    def __init__(self) -> None:
        self._last = 0.0

    def observe(self, seen: Observation, log_ratio: float) -> None:
        """See ``Follower``."""
        self._last = log_ratio

    def ask(self, allocations: Sequence[Allocation], context: ModelContext) -> tuple[Floats, Floats | None]:
        """See ``Follower``."""
        return np.full(len(allocations), self._last), None


def _frozen(profile: Profile) -> Scalar:
    trees: Trees = fit(
        np.nan_to_num(profile.x), profile.corrections, features.NAMES, features.NO_SIGNS, np.random.default_rng(0),
        settings=FitSettings(),
    )  # fmt: skip
    forest = Forest.compile(trees)
    return Scalar(lambda rows: rows.prior + forest.predict(rows.x))


OURS: Final = "perphd"
BAR: Final = "prior + scalar"
FOLLOWERS: Final[dict[str, Callable[[Profile | None], Follower | None]]] = {
    OURS: lambda profile: Product(profile, "staged"),
    "trees below cells": lambda profile: Product(profile, "ogbrt"),
    "cells alone": lambda profile: None if profile is not None else Product(profile, "residual"),
    BAR: lambda profile: Scalar(lambda rows: rows.prior),
    "frozen trees + scalar": lambda profile: None if profile is None else _frozen(profile),
    "LightGBM anew / 60 + scalar": Retrained,
    "least squares on logs": LeastSquares,
    "last value": lambda profile: LastValue(),
}
"""The contestant of this name; None if it does not support this kind of start."""


def measured(seen: Observation) -> float:
    """The measurement for a contestant without its own pipeline: as perphd computes it, at most 1."""
    work = seen.sample.work_rate_per_s
    assert isinstance(work, float)
    return min(math.log(work / 1000.0), 0.0)
