"""Admission by distribution: the probability that a host with one more job runs short (DistSched, 5.2).

    P(over) = sum over (job, running) of [n * job + running > capacity] P(job) P(running)          (5.1)

    P(running = x) = sum over k of P(first = k) P(rest = x - k)                                    (5.2)

The n tasks of one job share one draw of their usage. A job is admitted if P(over) is at most epsilon for
every resource. Epsilon is the accepted risk. ``conditioned`` updates the distribution of a running job with its
observed usage: it truncates the prior to values of at least the observed peak, mixes it with the observed
usage, and drops a prior that the job has exceeded.

Usages are not independent, because load follows the hour of the day for all jobs. Convolution alone
understates P(over), so ``TotalUsage.law`` mixes it with the case in which all usages are at the same
quantile. ``calibration`` learns the weight of observed usage, the correlation, and a correction of the
predicted probabilities. ``Reliability`` compares predictions with outcomes, by decile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Final

import numpy as np

from perphd.batch.calibration import UsageCalibration
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
"""Accepted P(over) of memory and cache ways, where exceeding the capacity causes evictions."""
EPSILON_SOFT: Final = 0.1
"""Accepted P(over) of CPU and bandwidth, where exceeding the capacity only slows jobs down."""
LEAST_OBSERVED_S: Final = 60.0
"""Seconds of observation below which a workload counts by its prior alone.

A job that ran before counts by its prior truncated to values of at least its observed peak. For other jobs, the
truncation would overstate usage, because most of them keep to their initial usage.
"""
DECILES: Final = 10


@dataclass(frozen=True, slots=True, eq=False)
class WorkloadUsage:
    """One workload's usage of one resource: the history before its start, and the observations since.

    ``again``: the observations include earlier attempts of the same job.
    """

    prior: Histogram
    observed: Histogram = field(default_factory=Histogram)
    observed_s: float = 0.0
    again: bool = False


def conditioned(
    usage: WorkloadUsage, capacity: float, cells: int = CELLS, observed_weight: float = 0.5
) -> GridDistribution:
    """Distribution of a workload's future usage, given its usage so far.

    ``UsageCalibration`` learns ``observed_weight``.
    """
    prior, seen = usage.prior, usage.observed
    briefly = usage.observed_s < LEAST_OBSERVED_S
    if not prior.count and (briefly or not seen.count):
        return _whole(capacity, cells)
    if not seen.count or (briefly and not usage.again):
        return usage_law(prior, capacity, cells)
    if not prior.count or seen.most >= prior.most:  # the job has exceeded its history
        return of_outcomes({seen.most: 1.0}, capacity, cells) if briefly else usage_law(seen, capacity, cells)
    cut = _at_least(prior, seen.most, capacity, cells)
    if briefly:
        return cut
    observed = usage_law(seen, capacity, cells)
    shares = observed_weight * observed.shares + (1.0 - observed_weight) * cut.shares
    over = observed_weight * observed.over + (1.0 - observed_weight) * cut.over
    return GridDistribution(capacity, shares, over)


def _at_least(prior: Histogram, least: float, capacity: float, cells: int) -> GridDistribution:
    """``prior``, conditioned on values of at least ``least``."""
    below = share_to(prior, least)
    return of_law(
        lambda values: np.clip((shares_to(prior, values) - below) / (1.0 - below), 0.0, 1.0), capacity, cells
    )


def usage_law(histogram: Histogram, capacity: float, cells: int = CELLS) -> GridDistribution:
    """Distribution of one usage, on the grid shared by all usages that are summed."""
    return of_law(lambda values: shares_to(histogram, values), capacity, cells)


def _whole(capacity: float, cells: int) -> GridDistribution:
    """A workload without any history: it may need the whole capacity."""
    return of_outcomes({capacity: 1.0}, capacity, cells)


@dataclass(frozen=True, slots=True, eq=False)
class TotalUsage:
    """Distribution of a sum of usages, for independent usages and for usages that are all at the same quantile."""

    independent: GridDistribution
    together: GridDistribution

    def plus(self, other: TotalUsage) -> TotalUsage:
        """The sum of both; the order of summation does not matter."""
        return TotalUsage(
            added(self.independent, other.independent), _comonotone(self.together, other.together)
        )

    def law(self, correlation: float) -> GridDistribution:
        """Mixture: equal quantiles with weight ``correlation``, independence with the rest."""
        if correlation <= 0:
            return self.independent
        return GridDistribution(
            self.independent.capacity,
            (1.0 - correlation) * self.independent.shares + correlation * self.together.shares,
            (1.0 - correlation) * self.independent.over + correlation * self.together.over,
        )


def total_of(usages: Sequence[GridDistribution]) -> TotalUsage:
    """Sum of at least one usage."""
    totals = [TotalUsage(usage, usage) for usage in usages]
    return reduce(TotalUsage.plus, totals)


def _comonotone(first: GridDistribution, second: GridDistribution) -> GridDistribution:
    """Sum of two usages at the same quantile. It is constant between the steps of either one."""
    cells, steps = first.cells, (np.cumsum(first.shares), np.cumsum(second.shares))
    levels = np.concatenate(((0.0,), *steps, (1.0,)))
    levels.sort()
    levels = np.minimum(levels, 1.0)
    middles, widths = (levels[:-1] + levels[1:]) / 2, np.diff(levels)
    # Cells past the end of the grid stand for sums above the capacity.
    places = steps[0].searchsorted(middles) + steps[1].searchsorted(middles)
    shares = np.bincount(np.minimum(places, cells + 1), widths, cells + 2).astype(np.float64)
    return GridDistribution(first.capacity, shares[: cells + 1], float(shares[cells + 1]))


@dataclass(frozen=True, slots=True, eq=False)
class ResourceRisk:
    """One resource of the host: distributions of the running total and of one task of the candidate.

    ``epsilon``: the accepted P(over). ``calibration``: corrects predictions of this resource.
    """

    running: GridDistribution
    task: GridDistribution
    epsilon: float
    calibration: UsageCalibration = UsageCalibration()


@dataclass(frozen=True, slots=True)
class Admission:
    """The decision about a job, and P(over) by resource.

    ``reason`` names the resources that exceed their epsilon.
    """

    admitted: bool
    over: Mapping[str, float]
    reason: str = ""


def admission(risks: Mapping[str, ResourceRisk], tasks: int = 1) -> Admission:
    """Admit a job of ``tasks`` tasks if P(over) of every resource is at most its epsilon."""
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
    """Distribution of the total usage after the candidate has started."""
    return added(risk.running, multiplied(risk.task, tasks))


def expected_utility(
    work_cpu_s: float,
    cpu: Mapping[float, float],
    running: Mapping[float, float],
    capacity: float,
    requests: tuple[float, float],
    utility: Callable[[float], float],
) -> float:
    """Expected utility of a job with this work, beside the running jobs (DistSched, 5.3).

    ``work_cpu_s``: its work in CPU seconds. ``utility``: maps a run time in seconds to the utility. ``cpu``,
    ``running``: map outcomes (CPUs needed) to probabilities. ``requests``: CPUs requested by the job, and by the
    running jobs together.
    """
    total = 0.0
    for needed, p in cpu.items():
        for others, q in running.items():
            rate = actual_cpu(capacity, requests[0], requests[1], needed, others)
            total += p * q * (utility(work_cpu_s / rate) if rate > 0 else 0.0)
    return total


def no_eviction(probabilities: Sequence[float]) -> float:
    """The probability that no host evicts, given P(eviction) of each host."""
    return float(np.prod([1.0 - p for p in probabilities]))


@dataclass(frozen=True, slots=True)
class Reliability:
    """Predictions of P(over) by decile: their number, their sum, and how often the predicted event occurred.

    ``squared``: sum of the squared errors of all predictions.
    """

    counts: tuple[int, ...] = (0,) * DECILES
    predicted: tuple[float, ...] = (0.0,) * DECILES
    happened: tuple[int, ...] = (0,) * DECILES
    squared: float = 0.0

    @property
    def brier(self) -> float:
        """The mean squared error of the predictions; 0 before the first."""
        return self.squared / sum(self.counts) if sum(self.counts) else 0.0

    def rates(self) -> tuple[tuple[float, float, int], ...]:
        """Mean prediction, observed rate and count of each decile that is not empty."""
        return tuple(
            (predicted / count, happened / count, count)
            for count, predicted, happened in zip(self.counts, self.predicted, self.happened, strict=True)
            if count
        )


def with_prediction(reliability: Reliability, predicted: float, happened: bool) -> Reliability:
    """A copy with one more prediction. ``happened``: whether the predicted event occurred."""
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
