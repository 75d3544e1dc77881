"""Back-test of peak predictors on a node's own past, and the choice among them.

The error of a prediction R' is  (R' - R) / R,  below 0 for an under-estimate. R is either the usage at one instant
or the peak over a horizon; both are reported. The choice is the tightest predictor whose probability of
under-estimating by more than ``TOLERANCE`` stays within a budget. With k such errors among n, the probability
of the next one is at most (k + 1) / (n + 1) if all orders of the n + 1 errors are equally likely. After only a
few predictions, therefore, no predictor is eligible.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from perphd.forecast.histogram import Floats

TOLERANCE: Final = 0.1
"""Share by which a prediction may be too low without counting as an under-estimate."""
BUDGET: Final = 0.01
"""Highest accepted probability of an under-estimate."""


@dataclass(frozen=True, slots=True)
class PeakScore:
    """Errors of one predictor: number of predictions, under-estimates, and the distribution of errors."""

    predictions: int
    under_ratio: float
    under_bound: float
    mean_error: float
    median_error: float
    least_error: float
    greatest_error: float


def errors(predicted: Floats, actual: Floats) -> Floats:
    """Relative errors, at samples with any usage."""
    used = actual > 0
    return np.asarray((predicted[used] - actual[used]) / actual[used], dtype=np.float64)


def horizon_peaks(usage: Floats, horizon: int) -> Floats:
    """For each sample, the peak of the ``horizon`` samples that begin with it; samples with too few successors are
    left out.
    """
    if horizon < 1 or len(usage) < horizon:
        return np.empty(0)
    return np.asarray(np.lib.stride_tricks.sliding_window_view(usage, horizon).max(axis=1), dtype=np.float64)


def score(found: Floats) -> PeakScore:
    """The score of a predictor with these errors, of which there must be at least one."""
    under = int(np.sum(found < -TOLERANCE))
    return PeakScore(
        len(found),
        under / len(found),
        (under + 1) / (len(found) + 1),
        float(np.mean(found)),
        float(np.median(found)),
        float(np.min(found)),
        float(np.max(found)),
    )


def chosen(scores: Mapping[str, PeakScore], budget: float = BUDGET) -> str | None:
    """The predictor with the least mean error among those within ``budget``; None: use the requests."""
    eligible = {name: found for name, found in scores.items() if found.under_bound <= budget}
    return min(eligible, key=lambda name: (eligible[name].mean_error, name), default=None)
