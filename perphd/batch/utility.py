"""Computes the expected utility of a start at a given time from the run-time distribution (3Sigma, 4.2 and 4.3.2).

    E[U(s)] = integral over t of U(s + t) f(t) dt       s: start, f: density of the run time

With a deadline D, U is U0 up to D and 0 after it, so E[U(s)] = U0 P(T <= D - s). Without one, U falls
linearly to 0 over the job's patience. Every U here is piecewise linear, so E[U(s)] follows from the survival
S alone:

    E[U(s)] = U(s) - jumps * S + integral over t of U'(s + t) S(t) dt

Over-estimates. If every known run time exceeds the time left before the deadline, E[U] is 0 and the job would
never be tried. U then falls linearly after the deadline instead of at once. Such a job ranks below jobs of
the same U0 that are certain to meet their deadlines, and uses the resources that they leave. The adaptive
rule applies this only if P(T < D - submitted) is below a threshold: users set deadlines that their jobs can
meet, so a history that contradicts one is doubtful.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from perphd.forecast.histogram import Floats, Histogram, shares_to, survival
from perphd.forecast.running import Overrun

OVERESTIMATE_THRESHOLD: Final = 0.05
_POINTS: Final = 65


@dataclass(frozen=True, slots=True)
class RunTime:
    """A distribution of run times, as its survival function. ``longest_s``: no run takes longer."""

    survivals: Callable[[Floats], Floats]
    longest_s: float

    def survival(self, after_s: float) -> float:
        """The probability of a run time greater than ``after_s``."""
        return float(self.survivals(np.array([after_s]))[0])

    @property
    def median_s(self) -> float:
        """The median run time in seconds."""
        points = np.linspace(0.0, max(0.0, self.longest_s), _POINTS)
        return float(points[min(_POINTS - 1, int((self.survivals(points) > 0.5).sum()))])

    def integrals(self, starts_s: Floats, ends_s: Floats) -> Floats:
        """For each pair of a start and an end: the integral of the survival function between them, in seconds."""
        starts_s = np.maximum(0.0, starts_s)
        ends_s = np.maximum(starts_s, np.minimum(ends_s, self.longest_s))
        points = np.linspace(starts_s, ends_s, _POINTS)
        found = np.trapezoid(self.survivals(points.ravel()).reshape(points.shape), points, axis=0)
        return np.asarray(found, dtype=np.float64)


def uniform(least_s: float, most_s: float) -> RunTime:
    """Uniformly distributed run times."""
    return RunTime(lambda t: np.clip((most_s - t) / (most_s - least_s), 0.0, 1.0), most_s)


def of_history(history: Histogram) -> RunTime:
    """The distribution of a history that is not empty."""
    return RunTime(lambda t: 1.0 - shares_to(history, t), history.most)


def remaining(history: Histogram, elapsed_s: float, overrun: Overrun) -> RunTime:
    """Distribution of the remaining time of a job after ``elapsed_s``.

    For a job that has run longer than every earlier one, it is the time up to the extended end.
    """
    beyond = survival(history, elapsed_s) if history.count else 0.0
    if beyond > 0.0:
        return RunTime(
            lambda t: np.minimum(1.0, (1.0 - shares_to(history, elapsed_s + np.maximum(t, 0.0))) / beyond),
            history.most - elapsed_s,
        )
    left_s = max(0.0, overrun.end_s - elapsed_s) if overrun.moved else 0.0
    return RunTime(lambda t: np.where((t <= 0.0) | (t < left_s), 1.0, 0.0), left_s)


@dataclass(frozen=True, slots=True)
class Utility:
    """The utility of completing at a time from now. One of ``deadline_s`` and ``patience_s`` is set.

    ``decay_s``: seconds after the deadline in which the utility falls to 0; 0: at once.
    """

    greatest: float
    deadline_s: float | None = None
    patience_s: float = 0.0
    decay_s: float = 0.0

    def at(self, completed_s: float) -> float:
        """The utility of completing at this time."""
        if self.deadline_s is None:
            return self.greatest * max(0.0, 1.0 - completed_s / self.patience_s)
        if completed_s <= self.deadline_s:
            return self.greatest
        if not self.decay_s:
            return 0.0
        return self.greatest * max(0.0, 1.0 - (completed_s - self.deadline_s) / self.decay_s)


def expected(utility: Utility, start_s: float, run_time: RunTime) -> float:
    """E[U(s)] of a start at ``start_s``."""
    return float(expected_at(utility, np.array([start_s]), run_time)[0])


def expected_at(utility: Utility, starts_s: Floats, run_time: RunTime) -> Floats:
    """E[U(s)] of every start."""
    if utility.deadline_s is None:
        falls_from, falls_for = 0.0, utility.patience_s
    elif utility.decay_s:
        falls_from, falls_for = utility.deadline_s, utility.decay_s
    else:
        left_s = utility.deadline_s - starts_s
        return np.where(left_s > 0, utility.greatest * (1.0 - run_time.survivals(left_s)), 0.0)
    slope = utility.greatest / falls_for
    late = run_time.integrals(falls_from - starts_s, falls_from + falls_for - starts_s)
    return np.maximum(0.0, [utility.at(float(each)) for each in starts_s] - slope * late)


def overestimated(run_time: RunTime, given_s: float, threshold: float = OVERESTIMATE_THRESHOLD) -> bool:
    """True if the history leaves little chance to meet a deadline set ``given_s`` after the submission."""
    return 1.0 - run_time.survival(given_s) < threshold


def adapted(
    utility: Utility, run_time: RunTime, waited_s: float, threshold: float = OVERESTIMATE_THRESHOLD
) -> Utility:
    """``utility``, falling slowly after its deadline if the history seems to over-estimate the job.

    It falls over the longest run time, so that a start before the deadline always has some utility.
    """
    if utility.deadline_s is None or not overestimated(run_time, utility.deadline_s + waited_s, threshold):
        return utility
    return replace(utility, decay_s=run_time.longest_s)
