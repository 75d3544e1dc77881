"""What the queue learns about its own predictions of one resource, from the jobs that it starts.

Three things that no history of jobs tells:

    kept         P(a job stays within what it used in its first minute): the weight of the usage that was observed,
                 against the part of the prior above it (``admission.conditioned``)
    correlation  how far jobs that run at the same time are above or below their predictions together
                 (``admission.correlated``)
    levels       where the sums that came true lay in the laws that predicted them

A sum's level is u = F(sum), F being its predicted law. Where predictions are right, levels are uniform. Otherwise a
predicted probability is corrected by what it has meant so far (quantile recalibration; Kuleshov, 2018):

    P'(over) = (number of levels above 1 - P + LEVELS_PRIOR * P) / (number of levels + LEVELS_PRIOR)

n levels tell nothing about a P below 1 / (n + LEVELS_PRIOR). There, P' falls in proportion to P: otherwise a single sum
beyond its law would keep jobs from starting whose P is a rounding error, and no later sum could correct that.

The correlation of jobs i and j is the mean of z_i z_j, z being the normal score of a job's usage in its prior. The mean
is not subtracted: an error that all predictions have in common adds up like a common cause.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Final

from perphd.forecast.grid import GridDistribution
from perphd.forecast.histogram import Histogram, share_to

KEPT_PRIOR: Final = 2.0
"""Jobs that the first weight of the observed usage, a half, is worth."""
KEPT_RATIO: Final = 1.05
"""A job that grows by less than this has kept to its usage."""
CORRELATION_PRIOR: Final = 0.2
PAIRS_PRIOR: Final = 20.0
LEVELS_PRIOR: Final = 20.0
MOST_JOBS: Final = 200.0
MOST_PAIRS: Final = 2000.0
MOST_LEVELS: Final = 400
"""Older jobs, pairs and levels are forgotten, since hosts and programs change."""
FULL: Final = 0.98
"""At this share of its capacity a resource that can be shared is full: more was perhaps needed, but not seen."""
_OUTER: Final = 0.01
_NORMAL: Final = NormalDist()


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was learned of one resource."""

    kept: float = KEPT_PRIOR / 2
    jobs: float = KEPT_PRIOR
    products: float = PAIRS_PRIOR * CORRELATION_PRIOR
    pairs: float = PAIRS_PRIOR
    levels: tuple[float, ...] = ()

    @property
    def observed_weight(self) -> float:
        """The weight of the usage that was observed."""
        return self.kept / self.jobs

    @property
    def correlation(self) -> float:
        """The correlation of usages, from 0 to 1."""
        return min(1.0, max(0.0, self.products / self.pairs))

    def corrected(self, over: float) -> float:
        """P(over) by what such predictions have meant."""
        number = len(self.levels) + LEVELS_PRIOR
        known = max(over, 1.0 / number)
        above = sum(level > 1.0 - known for level in self.levels)
        return over / known * (above + LEVELS_PRIOR * known) / number


def with_job(calibration: Calibration, first: float, most: float) -> Calibration:
    """With a job that used ``first`` in its first minute, and at most ``most``."""
    fade = min(1.0, MOST_JOBS / (calibration.jobs + 1.0))
    kept = float(most <= KEPT_RATIO * first)
    return replace(calibration, kept=fade * (calibration.kept + kept), jobs=fade * (calibration.jobs + 1.0))


def score(prior: Histogram, used: float) -> float:
    """The normal score of a usage in its prior."""
    return _NORMAL.inv_cdf(min(1.0 - _OUTER, max(_OUTER, share_to(prior, used))))


def with_scores(calibration: Calibration, one: float, others: Sequence[float]) -> Calibration:
    """With a job's score beside those of the jobs that run with it."""
    pairs = calibration.pairs + len(others)
    fade = min(1.0, MOST_PAIRS / pairs)
    products = calibration.products + one * sum(others)
    return replace(calibration, products=fade * products, pairs=fade * pairs)


def with_sum(calibration: Calibration, law: GridDistribution, used: float, shared: bool) -> Calibration:
    """With a sum that came true. ``shared``: the resource is divided when it is full, so that no more is seen."""
    if used > law.capacity or (shared and used >= FULL * law.capacity):
        level = 1.0 - law.over / 2
    else:
        place = used / law.cell
        level = float(law.shares[: int(place)].sum() + law.shares[min(int(place), law.cells)] / 2)
    level = min(1.0, max(0.0, level))  # sums of shares are rounded
    return replace(calibration, levels=(*calibration.levels, level)[-MOST_LEVELS:])
