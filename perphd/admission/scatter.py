"""Scatter of single scores between samples, independent of their level.

The scatter of an undisturbed reference also contains effects of load and time, and an absolute objective has no
reference. Differences of consecutive scores contain neither (von Neumann 1941): sd = mean |difference| x sqrt(pi) / 2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from perphd.domain.quick import replace

MEMORY = 30
"""Memory in differences."""
LEAST_DIFFERENCES = 6
"""Number of differences before which scatter is unknown."""
LEAST_SD = 0.01
_CLIP = 4.0
_PER_DIFFERENCE = math.sqrt(math.pi) / 2.0


@dataclass(frozen=True, slots=True)
class Scatter:
    """State: ``n`` differences seen; ``mean_step``: their mean size (log units); ``last``: previous score, NaN after a
    change.
    """

    n: int = 0
    mean_step: float = 0.0
    last: float = math.nan

    @property
    def sd(self) -> float | None:
        """Standard deviation of one score in log units; None while there are too few."""
        return max(_PER_DIFFERENCE * self.mean_step, LEAST_SD) if self.n >= LEAST_DIFFERENCES else None


def step(state: Scatter, log_score: float) -> Scatter:
    """The state after one score; a jump counts at most four times the usual difference."""
    if not math.isfinite(log_score):
        return broken(state)
    if not math.isfinite(state.last):
        return replace(state, last=log_score)
    size = abs(log_score - state.last)
    if state.n >= LEAST_DIFFERENCES:
        size = min(size, _CLIP * max(state.mean_step, LEAST_SD))
    n = min(state.n + 1, MEMORY)
    return Scatter(n, state.mean_step + (size - state.mean_step) / n, log_score)


def broken(state: Scatter) -> Scatter:
    """The state after an own change, so that no difference spans it."""
    return state if math.isnan(state.last) else replace(state, last=math.nan)


def mean(scores: Sequence[float]) -> float:
    """Geometric mean of ratios; of three or more without the least and the greatest, to ignore outliers."""
    logs = sorted(math.log(max(s, 1e-3)) for s in scores)
    kept = logs[1:-1] if len(logs) >= 3 else logs
    return math.exp(sum(kept) / len(kept))
