"""Student's t distribution, and confidence intervals of means of slowly drifting terms. Standard library only."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_TINY: Final = 1e-300
_STEPS: Final = 300


@dataclass(frozen=True, slots=True)
class MeanEstimate:
    """A mean with its standard error and that error's degrees of freedom."""

    mean: float
    error: float
    freedom: float

    def interval(self, confidence: float) -> tuple[float, float]:
        """The interval that covers the true mean with this probability."""
        reach = t_quantile(0.5 + confidence / 2.0, self.freedom) * self.error
        return self.mean - reach, self.mean + reach

    @property
    def p(self) -> float:
        """Probability of a mean at least this far from 0 if the true mean is 0."""
        if self.error <= 0:
            return 1.0 if self.mean == 0 else 0.0
        return 2.0 * (1.0 - t_probability(abs(self.mean) / self.error, self.freedom))


def of_pairs(differences: Sequence[float]) -> MeanEstimate | None:
    """The mean of pair differences; None for fewer than three.

    Formula: error^2 = sum (d[j+1] - d[j])^2 / (2 (n - 1)) / n.

    The variance comes from successive differences (von Neumann), not from the spread around the mean. The coin of
    each pair makes the errors of different pairs uncorrelated, so both are right when the effect is constant;
    when the effect follows the load through the day, the spread around the mean counts that as noise, and the
    interval is too wide. Successive differences cost a third of the degrees of freedom: 2 (n - 1)^2 / (3 n -
    4).
    """
    n = len(differences)
    if n < 3:
        return None
    mean = sum(differences) / n
    steps = sum((b - a) ** 2 for a, b in itertools.pairwise(differences))
    return MeanEstimate(mean, math.sqrt(steps / (2.0 * (n - 1)) / n), 2.0 * (n - 1) ** 2 / (3.0 * n - 4.0))


def no_effect_p(differences: Sequence[float]) -> float:
    """P-value of the mean if there is no effect: the larger one of those by successive differences and by the
    spread.

    Without an effect both errors are valid, and the larger is on the safe side.
    """
    n = len(differences)
    estimate = of_pairs(differences)
    if estimate is None:
        return 1.0
    variance = sum((d - estimate.mean) ** 2 for d in differences) / (n - 1)
    return max(estimate.p, MeanEstimate(estimate.mean, math.sqrt(variance / n), n - 1.0).p)


def of_two(first: Sequence[float], second: Sequence[float]) -> MeanEstimate | None:
    """The difference of two means (Welch); None if a group has fewer than three values."""
    if min(len(first), len(second)) < 3:
        return None
    parts = []
    for values in (first, second):
        n = len(values)
        mean = sum(values) / n
        parts.append((n, mean, sum((v - mean) ** 2 for v in values) / (n - 1) / n))
    (n1, mean1, v1), (n2, mean2, v2) = parts
    total = v1 + v2
    freedom = total**2 / max(v1**2 / (n1 - 1) + v2**2 / (n2 - 1), _TINY) if total > 0 else n1 + n2 - 2.0
    return MeanEstimate(mean1 - mean2, math.sqrt(total), freedom)


def holm(ps: Sequence[float], level: float) -> tuple[bool, ...]:
    """Holm's procedure: True for each hypothesis that it rejects, with at most this probability of any false
    rejection.
    """
    order = sorted(range(len(ps)), key=lambda i: ps[i])
    rejected = [False] * len(ps)
    for rank, i in enumerate(order):
        if ps[i] > level / (len(ps) - rank):
            break
        rejected[i] = True
    return tuple(rejected)


def t_probability(t: float, freedom: float) -> float:
    """Cumulative probability of Student's t distribution at ``t``."""
    tail = 0.5 * _beta(freedom / (freedom + t * t), freedom / 2.0, 0.5)
    return 1.0 - tail if t > 0 else tail


def t_quantile(probability: float, freedom: float) -> float:
    """Quantile of Student's t distribution, by bisection."""
    if probability < 0.5:
        return -t_quantile(1.0 - probability, freedom)
    low, high = 0.0, 1.0
    while t_probability(high, freedom) < probability:
        high *= 2.0
    for _ in range(100):
        middle = (low + high) / 2.0
        low, high = (middle, high) if t_probability(middle, freedom) < probability else (low, middle)
    return (low + high) / 2.0


def _beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function, by its continued fraction (Lentz)."""
    if x <= 0.0 or x >= 1.0:
        return 0.0 if x <= 0.0 else 1.0
    if x > (a + 1.0) / (a + b + 2.0):
        return 1.0 - _beta(1.0 - x, b, a)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    c, d = 1.0, 1.0 / _away(1.0 - (a + b) * x / (a + 1.0))
    result = d
    for m in range(1, _STEPS):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1.0 / _away(1.0 + numerator * d)
            c = _away(1.0 + numerator / c)
            result *= c * d
        if abs(c * d - 1.0) < 1e-14:
            break
    return front * result / a


def _away(value: float) -> float:
    """The value as a divisor: a tiny number replaces 0."""
    return value if abs(value) > _TINY else _TINY
