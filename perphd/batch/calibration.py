"""Calibrates the queue's predictions of one resource by the jobs that it starts.

It learns three things that the histories of individual jobs do not contain:

    kept         P(a job stays within its usage of the first minute): the weight of observed usage, against the part
                 of the prior above it (``admission.conditioned``)
    correlation  degree to which concurrent jobs exceed or miss their predictions together (``TotalUsage.law``)
    levels       quantiles at which observed sums fell in their predicted distributions

The level of a sum is u = F(sum), where F is its predicted distribution. If predictions are right, levels are
uniform. Otherwise a predicted probability is corrected by the observed levels (quantile recalibration;
Kuleshov, 2018):

    P'(over) = (number of levels above 1 - P + LEVELS_PRIOR * P) / (number of levels + LEVELS_PRIOR)

n levels carry no information about a P below 1 / (n + LEVELS_PRIOR). There, P' falls in proportion to P.
Otherwise a single sum beyond its distribution would block jobs with a negligible P, and no later sum could
correct that.

The correlation of jobs i and j is the mean of z_i z_j, where z is the normal score of a job's usage in its
prior. The mean of the scores is not subtracted: an error that all predictions share adds up like a common cause.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Final

from perphd.forecast.grid import GridDistribution
from perphd.forecast.histogram import Histogram, share_to

KEPT_PRIOR: Final = 2.0
"""Weight of the prior value of ``kept``, one half, as a number of jobs."""
KEPT_RATIO: Final = 1.05
"""A job whose peak is at most this multiple of its first minute's usage has kept to that usage."""
CORRELATION_PRIOR: Final = 0.2
PAIRS_PRIOR: Final = 20.0
LEVELS_PRIOR: Final = 20.0
MOST_JOBS: Final = 200.0
MOST_PAIRS: Final = 2000.0
MOST_LEVELS: Final = 400
"""Maximum numbers of jobs, pairs and levels that count. Older jobs and pairs lose weight, and older levels are dropped,
because hosts and programs change.
"""
FULL: Final = 0.98
"""Utilisation from which a divisible resource counts as full: demand may have exceeded what was observed."""
_OUTER: Final = 0.01
_NORMAL: Final = NormalDist()


@dataclass(frozen=True, slots=True)
class UsageCalibration:
    """Calibration of one resource."""

    kept: float = KEPT_PRIOR / 2
    jobs: float = KEPT_PRIOR
    products: float = PAIRS_PRIOR * CORRELATION_PRIOR
    pairs: float = PAIRS_PRIOR
    levels: tuple[float, ...] = ()

    @property
    def observed_weight(self) -> float:
        """The weight of observed usage."""
        return self.kept / self.jobs

    @property
    def correlation(self) -> float:
        """The correlation of usages, from 0 to 1."""
        return min(1.0, max(0.0, self.products / self.pairs))

    def corrected(self, over: float) -> float:
        """P(over) corrected by the observed levels."""
        number = len(self.levels) + LEVELS_PRIOR
        known = max(over, 1.0 / number)
        above = sum(level > 1.0 - known for level in self.levels)
        return over / known * (above + LEVELS_PRIOR * known) / number


def with_job(calibration: UsageCalibration, first: float, most: float) -> UsageCalibration:
    """A copy that includes a job that used ``first`` in its first minute and ``most`` at its peak."""
    fade = min(1.0, MOST_JOBS / (calibration.jobs + 1.0))
    kept = float(most <= KEPT_RATIO * first)
    return replace(calibration, kept=fade * (calibration.kept + kept), jobs=fade * (calibration.jobs + 1.0))


def score(prior: Histogram, used: float) -> float:
    """Normal score of a usage in its prior."""
    return _NORMAL.inv_cdf(min(1.0 - _OUTER, max(_OUTER, share_to(prior, used))))


def with_scores(calibration: UsageCalibration, one: float, others: Sequence[float]) -> UsageCalibration:
    """A copy that includes the products of a job's score with those of concurrent jobs."""
    pairs = calibration.pairs + len(others)
    fade = min(1.0, MOST_PAIRS / pairs)
    products = calibration.products + one * sum(others)
    return replace(calibration, products=fade * products, pairs=fade * pairs)


def with_sum(
    calibration: UsageCalibration, law: GridDistribution, used: float, shared: bool
) -> UsageCalibration:
    """A copy that includes an observed sum.

    ``shared``: the resource is divided when full, which hides excess demand.
    """
    if used > law.capacity or (shared and used >= FULL * law.capacity):
        level = 1.0 - law.over / 2
    else:
        place = used / law.cell
        level = float(law.shares[: int(place)].sum() + law.shares[min(int(place), law.cells)] / 2)
    level = min(1.0, max(0.0, level))  # sums of shares have rounding errors
    return replace(calibration, levels=(*calibration.levels, level)[-MOST_LEVELS:])
