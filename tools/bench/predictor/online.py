"""Errors of one learner along one stream: one step ahead, near the current allocation, and everywhere."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perphd.predictor.ogbrt import Forest
from perphd.predictor.ogbrt.fit import fit
from tools.bench.predictor.contestants import FIT, Online, WarmStart
from tools.bench.predictor.learners import Learner
from tools.bench.predictor.streams import FEATURES, HIGH, MONOTONE, STEP, Stream, everywhere

Floats = NDArray[np.float64]

WARM_UP = 200
"""Live samples before errors before the drift count."""
_ASK_EVERY, _ASK = 20, 120


@dataclass(frozen=True, slots=True)
class Along:
    """Log-RMSE (0.1 is 10 %) along one stream; NaN where it does not apply.

    Attributes:
        prequential: one-step errors: before the drift, in the 50 samples after it, in the next 150, and later.
        whole: one-step error over all samples after the warm-up.
        near: counterfactual errors within 0.2 of every range, against the truth: before the drift, 50 to 200 samples
            after it, around 200 (150 to 250), from 400 on.
        grid: error over the whole space: right before the drift, 200 samples after it, at the end.
        violations: share of steps up on a monotone feature at which the prediction falls.
        coverage: share of samples in their 90 % band: all, before the drift, in the 200 samples after it, and later.
        near_lower: share of near truths above the one-sided 95 % lower bound.
    """

    prequential: tuple[float, float, float, float]
    whole: float
    near: tuple[float, float, float, float]
    grid: tuple[float, float, float]
    violations: float
    coverage: tuple[float, float, float, float]
    near_lower: float


@dataclass(frozen=True, slots=True, eq=False)
class Questions:
    """The queries along a stream besides the next sample, with the truth: near points by sample, and the grid with the
    truth at the first and the last sample.
    """

    near: dict[int, tuple[Floats, Floats]]
    grid: Floats
    grid_truth: tuple[Floats, Floats]


def questions(stream: Stream, seed: int) -> Questions:
    """The same questions for every learner."""
    rng = np.random.default_rng(seed)
    near = {}
    for i in range(_ASK_EVERY - 1, len(stream.y), _ASK_EVERY):
        x = stream.near(i, rng, _ASK)
        near[i] = x, stream.truth[i].log_performance(x)
    points = everywhere(rng, 1000)
    ends = stream.truth[0].log_performance(points), stream.truth[-1].log_performance(points)
    return Questions(near, points, ends)


def run(learner: Learner, stream: Stream, asked: Questions, drift_at: int, seed: int) -> Along:
    """Predict, measure and learn, sample by sample."""
    count = len(stream.y)
    error, inside = np.zeros(count), np.full(count, np.nan)
    near, above = [], []
    grid = [float("nan")] * 3
    for i in range(count):
        row = stream.x[i : i + 1]
        if isinstance(learner, Online):
            answer = learner.ask(row)
            error[i] = stream.y[i] - answer.mean[0]
            inside[i] = answer.lower[0] <= stream.y[i] <= answer.upper[0]
        else:
            error[i] = stream.y[i] - learner.predict(row)[0]
        learner.learn(stream.x[i], float(stream.y[i]))
        for k, moment in enumerate((drift_at - 1, drift_at + 199, count - 1)):
            if i == moment:
                grid[k] = _rms(learner.predict(asked.grid) - asked.grid_truth[min(k, 1)])
        if i in asked.near:
            x, truth = asked.near[i]
            found = learner.predict(x)
            near.append(_rms(found - truth))
            if isinstance(learner, Online):
                answer = learner.ask(x)
                above.append(float(np.mean(truth >= answer.mean - 1.645 * answer.sd)))
    at, nears = np.array(list(asked.near)) - drift_at, np.array(near)
    d = drift_at

    def between(low: float, high: float) -> float:
        chosen = nears[(at >= low) & (at < high)]
        return float(chosen.mean()) if len(chosen) else float("nan")

    def covered(low: int, high: int) -> float:
        return float(np.mean(inside[low:high])) if high > low else float("nan")

    return Along(
        (
            _rms(error[WARM_UP:d]),
            _rms(error[d : d + 50]),
            _rms(error[d + 50 : d + 200]),
            _rms(error[d + 200 :]),
        ),
        _rms(error[WARM_UP:]),
        (between(WARM_UP - d, 0), between(50, 200), between(150, 250), between(400, count)),
        (grid[0], grid[1], grid[2]),
        violations(learner, np.random.default_rng(seed)),
        (covered(0, count), covered(0, d), covered(d, d + 200), covered(d + 200, count)),
        float(np.mean(above)) if above else float("nan"),
    )


def hindsight(start: WarmStart, stream: Stream, drift_at: int, seed: int, folds: int = 5) -> float:
    """The best attainable error: log-RMSE of offline training on the warm start and the whole stream at once, with the
    change of the application known to the model, by cross-validation over the samples after the warm-up.
    """
    after = (np.arange(len(stream.y)) >= drift_at).astype(np.float64)
    x = np.column_stack([stream.x, after])
    known = np.column_stack([start.x, np.zeros(len(start.x))])
    fold = np.random.default_rng(seed).integers(0, folds, len(x))
    error = np.zeros(len(x))
    for k in range(folds):
        train = fold != k
        trees = fit(
            np.concatenate([known, x[train]]),
            np.concatenate([start.y, stream.y[train]]),
            (*FEATURES, "after"),
            (*MONOTONE, 0),
            np.random.default_rng(k),
            settings=FIT,
        )
        error[~train] = stream.y[~train] - Forest.compile(trees).predict(x[~train])
    return _rms(error[WARM_UP:])


def violations(learner: Learner, rng: np.random.Generator, count: int = 500) -> float:
    """Share of single steps up on a monotone feature at which the prediction falls."""
    x = everywhere(rng, count)
    before = learner.predict(x)
    fell = asked = 0
    for column, sign in enumerate(MONOTONE):
        if not sign:
            continue
        up = x.copy()
        up[:, column] = np.minimum(up[:, column] + STEP[column], HIGH[column])
        moved = up[:, column] > x[:, column]
        fell += int(np.sum(sign * (learner.predict(up) - before)[moved] < 0))
        asked += int(moved.sum())
    return fell / asked


def _rms(values: Floats) -> float:
    return float(np.sqrt(np.mean(np.square(values)))) if len(values) else float("nan")
