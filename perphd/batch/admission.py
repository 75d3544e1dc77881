"""Admission by distribution: the probability that a host with one more job needs more than it has (DistSched, 5.2).

    P(over) = sum over (job, running) of [n * job + running > capacity] P(job) P(running)          (5.1)
    P(running = x) = sum over k of P(first = k) P(rest = x - k)                                    (5.2)

The n tasks of one job share one draw of their usage. A job is admitted if P(over) is at most epsilon for every
resource; epsilon is the knob. The law of what runs is conditioned on what was observed of it: ``conditioned`` mixes the
prior, cut to values of at least the observed peak, with the usage that was observed, and drops a prior that the job
has outgrown.

Usages are not independent: load follows the hour for all of them. Convolution alone understates P(over), so
``TotalUsage.law`` mixes it with the case in which all usages are at the same quantile. ``calibration`` learns the
weight of what was observed, the correlation, and what predicted probabilities have meant. ``Reliability`` compares
predictions with what happened, by decile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Final

import numpy as np

from perphd.batch.calibration import Calibration
from perphd.batch.sharing import actual_cpu
from perphd.forecast.grid import (
    CELLS,
    GridDistribution,
    added,
    multiplied,
    of_law,
    of_outcomes,
    probability_over,
)
from perphd.forecast.histogram import Histogram, share_to, shares_to

EPSILON_HARD: Final = 0.01
"""Accepted P(over) of memory and cache ways: too much of them is an eviction."""
EPSILON_SOFT: Final = 0.1
"""Accepted P(over) of CPU and bandwidth: too much of them is only slower."""
LEAST_OBSERVED_S: Final = 60.0
"""A workload that was observed for less than this counts by its prior alone."""
DECILES: Final = 10


@dataclass(frozen=True, slots=True, eq=False)
class WorkloadUsage:
    """One workload's usage of one resource: its history before the start, and what was observed since."""

    prior: Histogram
    observed: Histogram = field(default_factory=Histogram)
    observed_s: float = 0.0


def conditioned(
    usage: WorkloadUsage, capacity: float, cells: int = CELLS, observed_weight: float = 0.5
) -> GridDistribution:
    """The law of what the workload will use, given what it has used. ``Calibration`` learns the weight."""
    prior, seen = usage.prior, usage.observed
    if not seen.count or usage.observed_s < LEAST_OBSERVED_S:
        return usage_law(prior, capacity, cells) if prior.count else _whole(capacity, cells)
    observed = usage_law(seen, capacity, cells)
    if not prior.count or seen.least > prior.most or seen.most >= prior.most:
        return observed  # it has outgrown its history
    cut = _at_least(prior, seen.most, capacity, cells)
    shares = observed_weight * observed.shares + (1.0 - observed_weight) * cut.shares
    over = observed_weight * observed.over + (1.0 - observed_weight) * cut.over
    return GridDistribution(capacity, shares, over)


def _at_least(prior: Histogram, least: float, capacity: float, cells: int) -> GridDistribution:
    """``prior`` given that the value is at least ``least``."""
    below = share_to(prior, least)
    return of_law(
        lambda values: np.clip((shares_to(prior, values) - below) / (1.0 - below), 0.0, 1.0), capacity, cells
    )


def usage_law(histogram: Histogram, capacity: float, cells: int = CELLS) -> GridDistribution:
    """The law of one usage of many that are summed."""
    return of_law(lambda values: shares_to(histogram, values), capacity, cells)


def _whole(capacity: float, cells: int) -> GridDistribution:
    """A workload of which nothing is known: it may need everything."""
    return of_outcomes({capacity: 1.0}, capacity, cells)


@dataclass(frozen=True, slots=True, eq=False)
class TotalUsage:
    """The law of a sum of usages: if they are independent, and if all of them are at the same quantile."""

    independent: GridDistribution
    together: GridDistribution

    def plus(self, other: TotalUsage) -> TotalUsage:
        """The sum of both. The order in which usages are summed makes no difference."""
        return TotalUsage(
            added(self.independent, other.independent), _comonotone(self.together, other.together)
        )

    def law(self, correlation: float) -> GridDistribution:
        """``correlation`` times the law of equal quantiles, and the rest that of independence."""
        if correlation <= 0:
            return self.independent
        return GridDistribution(
            self.independent.capacity,
            (1.0 - correlation) * self.independent.shares + correlation * self.together.shares,
            (1.0 - correlation) * self.independent.over + correlation * self.together.over,
        )


def total_of(usages: Sequence[GridDistribution]) -> TotalUsage:
    """The sum of one usage or more."""
    totals = [TotalUsage(usage, usage) for usage in usages]
    return reduce(TotalUsage.plus, totals)


def _comonotone(first: GridDistribution, second: GridDistribution) -> GridDistribution:
    """The sum of two usages at the same quantile. Between the steps of either of them it is constant."""
    cells, steps = first.cells, (np.cumsum(first.shares), np.cumsum(second.shares))
    levels = np.concatenate(((0.0,), *steps, (1.0,)))
    levels.sort()
    levels = np.minimum(levels, 1.0)
    middles, widths = (levels[:-1] + levels[1:]) / 2, np.diff(levels)
    places = steps[0].searchsorted(middles) + steps[1].searchsorted(middles)  # beyond the grid: over it
    shares = np.bincount(np.minimum(places, cells + 1), widths, cells + 2).astype(np.float64)
    return GridDistribution(first.capacity, shares[: cells + 1], float(shares[cells + 1]))


@dataclass(frozen=True, slots=True, eq=False)
class ResourceRisk:
    """One resource of the host: the law of what runs, that of one task of the candidate, and the accepted P(over).

    ``calibration``: what predictions of this resource have meant so far.
    """

    running: GridDistribution
    task: GridDistribution
    epsilon: float
    calibration: Calibration = Calibration()


@dataclass(frozen=True, slots=True)
class Admission:
    """Whether a job is admitted, and P(over) of every resource. ``reason`` names those that stand against it."""

    admitted: bool
    over: Mapping[str, float]
    reason: str = ""


def admission(risks: Mapping[str, ResourceRisk], tasks: int = 1) -> Admission:
    """Admit a job of ``tasks`` tasks if no resource is likelier to be exceeded than its epsilon."""
    over = {
        name: risk.calibration.corrected(probability_over(risk.running, risk.task, tasks))
        for name, risk in risks.items()
    }
    against = [
        f"P({name} over) = {over[name]:.3g} > {risk.epsilon:g}"
        for name, risk in risks.items()
        if over[name] > risk.epsilon
    ]
    return Admission(not against, over, "; ".join(against))


def with_job(risk: ResourceRisk, tasks: int = 1) -> GridDistribution:
    """The law of what runs once the candidate has started."""
    return added(risk.running, multiplied(risk.task, tasks))


def expected_utility(
    work_cpu_s: float,
    cpu: Mapping[float, float],
    running: Mapping[float, float],
    capacity: float,
    requests: tuple[float, float],
    utility: Callable[[float], float],
) -> float:
    """E[U(T)] of a job of ``work_cpu_s`` beside what runs (5.3); ``utility`` takes the run time.

    ``cpu`` and ``running`` are outcomes with their probabilities; ``requests`` are those of the job and of what runs.
    """
    total = 0.0
    for needed, p in cpu.items():
        for others, q in running.items():
            rate = actual_cpu(capacity, requests[0], requests[1], needed, others)
            total += p * q * (utility(work_cpu_s / rate) if rate > 0 else 0.0)
    return total


def no_eviction(probabilities: Sequence[float]) -> float:
    """The probability that no host evicts, from P(eviction) of each."""
    return float(np.prod([1.0 - p for p in probabilities]))


@dataclass(frozen=True, slots=True)
class Reliability:
    """Predictions of P(over) by decile: how many there were, their sum, and how often it came true."""

    counts: tuple[int, ...] = (0,) * DECILES
    predicted: tuple[float, ...] = (0.0,) * DECILES
    happened: tuple[int, ...] = (0,) * DECILES
    squared: float = 0.0

    @property
    def brier(self) -> float:
        """The mean squared error of the predictions; 0 before the first."""
        return self.squared / sum(self.counts) if sum(self.counts) else 0.0

    def rates(self) -> tuple[tuple[float, float, int], ...]:
        """Mean prediction, observed rate and number of each decile that has any."""
        return tuple(
            (predicted / count, happened / count, count)
            for count, predicted, happened in zip(self.counts, self.predicted, self.happened, strict=True)
            if count
        )


def with_prediction(reliability: Reliability, predicted: float, happened: bool) -> Reliability:
    """The diagram with one more prediction that was checked."""
    place = min(DECILES - 1, int(predicted * DECILES))

    def raised(values: Sequence[float], by: float) -> tuple[float, ...]:
        return tuple(value + by if n == place else value for n, value in enumerate(values))

    return replace(
        reliability,
        counts=tuple(map(int, raised(reliability.counts, 1))),
        predicted=raised(reliability.predicted, predicted),
        happened=tuple(map(int, raised(reliability.happened, int(happened)))),
        squared=reliability.squared + (predicted - float(happened)) ** 2,
    )
