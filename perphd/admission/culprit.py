"""Whose fault is it: which batch workload's use moves with the LRA's shortfall.

The largest correlation over a few lags between what a batch workload used and how far the LRA fell short, if it is
significant: more than chance explains among so many candidates and lags (Fisher's transform, one-sided,
Bonferroni-corrected). Among several that are, how much their use swings counts as well. What does not vary explains
nothing and accuses nobody.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from perphd.domain.decision import Cause
from perphd.domain.reading import Reading, available
from perphd.domain.sample import Sample

WINDOW = 60
"""Samples that are remembered."""
LEAST_SAMPLES = 8
MAX_LAG = 3
"""Samples by which the shortfall may follow the use."""
LEVEL = 0.01
"""Chance of accusing somebody although nobody's use has anything to do with it."""
LEAST_CORRELATION = 0.35
"""Below it nobody is accused, however long the record (the bound that CPI2 uses)."""
_CONSTANT = 1e-9


@dataclass(frozen=True, slots=True)
class Moment:
    """One tick: how far the LRA fell short (log of target / seen, negative: above), and batch's samples then."""

    short: float
    batch: tuple[Sample, ...]

    def uses(self, cause: Cause) -> dict[str, float]:
        """What each batch workload used of the contended resource; those that cannot be read are left out."""
        found = ((sample.workload, _use(sample, cause)) for sample in self.batch)
        return {name: used for name, used in found if available(used)}


def _use(sample: Sample, cause: Cause) -> Reading:
    if cause is Cause.MEMORY:
        return sample.memory_current_bytes
    if cause is Cause.IO and available(sample.read_bytes_per_s) and available(sample.write_bytes_per_s):
        return sample.read_bytes_per_s + sample.write_bytes_per_s
    if cause in (Cause.LLC, Cause.MBW) and available(sample.mbw_bytes_per_s):
        return sample.mbw_bytes_per_s
    return sample.cpu_usage_cores


def find(moments: Sequence[Moment], cause: Cause) -> str | None:
    """The batch workload whose use explains the shortfall best, if one does; None if nobody can be named."""
    uses = [moment.uses(cause) for moment in moments]
    names = sorted({name for used in uses for name in used})
    n = len(moments)
    if n < LEAST_SAMPLES or not names:
        return None
    short = [moment.short for moment in moments]
    scores = {
        name: max(
            correlation([used.get(name, 0.0) for used in uses[: n - lag]], short[lag:])
            for lag in range(min(MAX_LAG, n - LEAST_SAMPLES) + 1)
        )
        for name in names
    }
    trials = len(names) * (MAX_LAG + 1)
    bound = math.tanh(NormalDist().inv_cdf(1.0 - LEVEL / trials) / math.sqrt(max(n - 3, 1)))
    accused = [name for name in names if scores[name] >= max(bound, LEAST_CORRELATION)]
    swing = {name: _spread([used.get(name, 0.0) for used in uses]) for name in accused}
    # Who moves along by chance is likelier to be small: what harms must also be enough to harm.
    most = max(swing.values(), default=0.0)
    return max(accused, key=lambda name: scores[name] * math.sqrt(swing[name] / most), default=None)


def _spread(x: Sequence[float]) -> float:
    mean = sum(x) / len(x)
    return math.sqrt(sum((v - mean) ** 2 for v in x) / len(x))


def correlation(x: Sequence[float], y: Sequence[float]) -> float:
    """Pearson's correlation; 0 where one of them does not vary."""
    n = len(x)
    mean_x, mean_y = sum(x) / n, sum(y) / n
    xx = sum((a - mean_x) ** 2 for a in x)
    yy = sum((b - mean_y) ** 2 for b in y)
    scale_x, scale_y = abs(mean_x) + _CONSTANT, abs(mean_y) + _CONSTANT
    if xx <= n * (1e-6 * scale_x) ** 2 or yy <= n * (1e-6 * scale_y) ** 2:
        return 0.0
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / math.sqrt(xx * yy)
