"""One record per feature value and quantity: a distribution, four estimators, and the error of each.

Experts are pairs of a feature value and an estimator:

    mean      of all values since the last drift
    median    of the ``RECENT`` latest values
    rolling   rolling = .6 * value + .4 * rolling
    last      mean of the ``LAST`` latest values

The expert with the least normalised mean absolute error over its last ``SCORED`` jobs acts. Older errors are discarded,
however large: an expert that was once good gives way to one that is good now. (With fading sums, the error of
an hour-long job would dominate dozens of jobs of a second.) One pseudo-observation with an error of 100 %
keeps an expert with one lucky hit from winning:

    NMAE = (sum of |estimate - actual| + a) / (sum of actuals + a),      a = mean of the actuals

A history splits where its two halves of recent values differ (Kolmogorov-Smirnov test): the distribution then restarts
from the newer half.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

import numpy as np

from perphd.forecast.histogram import Histogram, Scale, insert, merge, of_values

ROLLING_GAIN: Final = 0.6
RECENT: Final = 20
LAST: Final = 5
SCORED: Final = 12
DRIFT_CRITICAL: Final = 1.95
"""Factor of the two-sample Kolmogorov-Smirnov test at a level of .001."""


class Estimator(Enum):
    """Method of computing a point estimate from the history of a feature value."""

    MEAN = "mean"
    MEDIAN = "median"
    ROLLING = "rolling"
    LAST = "last"


@dataclass(frozen=True, slots=True)
class FeatureRecord:
    """The history of one quantity, for jobs with one feature value.

    ``recent``: up to 2 * ``RECENT`` latest values, oldest first. ``scores``: the actual value and each
    estimator's absolute error of the last ``SCORED`` jobs, oldest first. ``scored``: total number of scored
    jobs. ``drifts``: splits so far.
    """

    distribution: Histogram = field(default_factory=lambda: Histogram(Scale.LOGARITHMIC))
    rolling: float = math.nan
    recent: tuple[float, ...] = ()
    scores: tuple[tuple[float, ...], ...] = ()
    scored: int = 0
    drifts: int = 0

    @property
    def samples(self) -> int:
        """Number of values since the last drift."""
        return self.distribution.count


def estimate(record: FeatureRecord, estimator: Estimator) -> float:
    """The point estimate; NaN without values."""
    if not record.recent:
        return math.nan
    if estimator is Estimator.MEAN:
        return record.distribution.mean
    if estimator is Estimator.MEDIAN:
        return statistics.median(record.recent[-RECENT:])
    if estimator is Estimator.ROLLING:
        return record.rolling
    return statistics.fmean(record.recent[-LAST:])


def completed(record: FeatureRecord, actual: float) -> FeatureRecord:
    """The record after one more job. The estimators are scored before they learn."""
    if not (math.isfinite(actual) and actual >= 0):
        raise ValueError(f"a job's quantity must be a non-negative number, not {actual!r}")
    scored = record
    if record.recent:
        errors = tuple(abs(estimate(record, estimator) - actual) for estimator in Estimator)
        scores = (*record.scores[1 - SCORED :], (actual, *errors))
        scored = replace(record, scores=scores, scored=record.scored + 1)
    learned = replace(
        scored,
        distribution=insert(record.distribution, actual),
        rolling=actual if not record.recent else ROLLING_GAIN * actual + (1 - ROLLING_GAIN) * record.rolling,
        recent=(*record.recent[1 - 2 * RECENT :], actual),
    )
    return _split(learned) if drifted(learned.recent) else learned


def nmae(record: FeatureRecord, estimator: Estimator) -> float:
    """The normalised mean absolute error of an expert; infinite if it was never scored."""
    if not record.scores:
        return math.inf
    place = 1 + list(Estimator).index(estimator)
    actual = math.fsum(score[0] for score in record.scores)
    wrong = math.fsum(score[place] for score in record.scores)
    pseudo = actual / len(record.scores)
    if actual <= 0:
        return 0.0 if wrong <= 0 else math.inf
    return (wrong + pseudo) / (actual + pseudo)


def best_estimator(record: FeatureRecord) -> tuple[Estimator, float]:
    """The estimator with the least NMAE, and that error; the median if none was scored."""
    if not record.scored:
        return Estimator.MEDIAN, math.inf
    return min(((each, nmae(record, each)) for each in Estimator), key=lambda pair: pair[1])


def drifted(recent: tuple[float, ...]) -> bool:
    """Whether the two halves of a full window of recent values have different distributions."""
    if len(recent) < 2 * RECENT:
        return False
    older, newer = np.sort(recent[:RECENT]), np.sort(recent[RECENT:])
    points = np.concatenate((older, newer))
    gaps = np.searchsorted(older, points, side="right") - np.searchsorted(newer, points, side="right")
    return float(np.max(np.abs(gaps))) / RECENT > DRIFT_CRITICAL * math.sqrt(2 / RECENT)


def joined(older: FeatureRecord, newer: FeatureRecord) -> FeatureRecord:
    """Two nodes' records of the same feature value, merged; the latest values are those of ``newer``."""
    return FeatureRecord(
        merge(older.distribution, newer.distribution),
        newer.rolling if newer.recent else older.rolling,
        (*older.recent, *newer.recent)[-2 * RECENT :],
        newer.scores if newer.scored else older.scores,
        newer.scored if newer.scored else older.scored,
        max(older.drifts, newer.drifts),
    )


def _split(record: FeatureRecord) -> FeatureRecord:
    newer = record.recent[RECENT:]
    return replace(
        record, distribution=of_values(newer, Scale.LOGARITHMIC), recent=newer, drifts=record.drifts + 1
    )
