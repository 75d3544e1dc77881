"""Running jobs: a distribution conditioned on a job's usage so far.

A job that has run for e seconds has the survival  S(t | e) = S(t) / S(e),  t >= e.

A job that outlives every earlier one has no such distribution. Its end is then estimated by exponential
increments (Tsafrir 2007): each time the job reaches it, the estimate moves 1, 2, 4, 8 ... cycles beyond the
elapsed time.
Its remaining work is assumed to equal the work done (half complete; Harchol-Balter 1997).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from perphd.forecast.histogram import Histogram, mean_given


@dataclass(frozen=True, slots=True)
class Overrun:
    """A job that has outlived all history: the number of extensions of its end, and the present end."""

    moved: int = 0
    end_s: float = math.nan


def moved_end(overrun: Overrun, longest_s: float, elapsed_s: float, cycle_s: float) -> Overrun:
    """The estimated end after one cycle of the planner: extended if the job has reached it."""
    reached = overrun.end_s if overrun.moved else longest_s
    if elapsed_s < reached:
        return overrun
    return Overrun(overrun.moved + 1, elapsed_s + 2**overrun.moved * cycle_s)


def remaining_work(history: Histogram, done: float) -> float:
    """The expected remaining work after ``done``, never negative; ``done`` itself if that exceeds all history."""
    expected = mean_given(history, done) if history.count else math.nan
    return done if math.isnan(expected) else max(0.0, expected - done)
