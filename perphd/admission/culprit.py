"""Whose fault is it: which batch workload's use moves with the LRA's shortfall.

The largest correlation over a few lags between what a batch workload used and how far the LRA fell short, if it is
significant: more than chance explains among so many candidates and lags (Fisher's transform, one-sided,
Bonferroni-corrected). Among several that are, how much their use swings counts as well. What does not vary explains
nothing and accuses nobody.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from perphd.admission.context import batch_samples, once
from perphd.domain.decision import Cause
from perphd.domain.policy import Snapshot
from perphd.domain.quick import maker
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
Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Use:
    """What a batch workload used in one tick: of its sample, what accuses; the rest is not kept for so long."""

    workload: str
    cpu_usage_cores: Reading
    memory_current_bytes: Reading
    read_bytes_per_s: Reading
    write_bytes_per_s: Reading
    mbw_bytes_per_s: Reading


_use_of = maker(Use)


def use_of(sample: Sample) -> Use:
    """The part of a sample that is kept."""
    return _use_of(
        sample.workload,
        sample.cpu_usage_cores,
        sample.memory_current_bytes,
        sample.read_bytes_per_s,
        sample.write_bytes_per_s,
        sample.mbw_bytes_per_s,
    )


@once
def uses(snapshot: Snapshot) -> tuple[Use, ...]:
    """What every batch workload that has a sample used, by name; the same tuple to every LRA that asks."""
    return tuple([use_of(sample) for sample in batch_samples(snapshot)])


@dataclass(frozen=True, slots=True)
class Moment:
    """One tick: how far the LRA fell short (log of target / seen, negative: above), and what batch used then."""

    short: float
    batch: tuple[Use, ...]


_KNOWN: dict[tuple[int, Cause], tuple[tuple[Use, ...], dict[str, float]]] = {}
_MOST_KNOWN: Final = 2 * WINDOW


def _uses(batch: tuple[Use, ...], cause: Cause) -> Mapping[str, float]:
    """What each batch workload used of the contended resource; those that cannot be read are left out.

    Every LRA that is short asks the same of the same samples, tick after tick: the last answers are kept.
    """
    key = id(batch), cause
    known = _KNOWN.get(key)
    if known is not None and known[0] is batch:
        return known[1]
    readings = ((use.workload, _reading(use, cause)) for use in batch)
    found = {name: used for name, used in readings if available(used)}
    _KNOWN.pop(key, None)
    _KNOWN[key] = batch, found
    if len(_KNOWN) > _MOST_KNOWN:
        del _KNOWN[next(iter(_KNOWN))]
    return found


def _reading(use: Use, cause: Cause) -> Reading:
    if cause is Cause.MEMORY:
        return use.memory_current_bytes
    if cause is Cause.IO and available(use.read_bytes_per_s) and available(use.write_bytes_per_s):
        return use.read_bytes_per_s + use.write_bytes_per_s
    if cause in (Cause.LLC, Cause.MBW) and available(use.mbw_bytes_per_s):
        return use.mbw_bytes_per_s
    return use.cpu_usage_cores


def find(moments: Sequence[Moment], cause: Cause) -> str | None:
    """The batch workload whose use explains the shortfall best, if one does; None if nobody can be named."""
    used_then = [_uses(moment.batch, cause) for moment in moments]
    names = sorted({name for used in used_then for name in used})
    n = len(moments)
    if n < LEAST_SAMPLES or not names:
        return None
    table = np.array([[used.get(name, 0.0) for name in names] for used in used_then])
    short = np.array([moment.short for moment in moments])
    lags = range(min(MAX_LAG, n - LEAST_SAMPLES) + 1)
    by_lag = [correlations(table[: n - lag], short[lag:]) for lag in lags]
    scores = dict(zip(names, np.max(by_lag, axis=0).tolist(), strict=True))
    trials = len(names) * (MAX_LAG + 1)
    bound = math.tanh(NormalDist().inv_cdf(1.0 - LEVEL / trials) / math.sqrt(max(n - 3, 1)))
    accused = [name for name in names if scores[name] >= max(bound, LEAST_CORRELATION)]
    swing = dict(zip(names, table.std(axis=0).tolist(), strict=True))
    # Who moves along by chance is likelier to be small: what harms must also be enough to harm.
    most = max((swing[name] for name in accused), default=0.0)
    return max(accused, key=lambda name: scores[name] * math.sqrt(swing[name] / most), default=None)


def correlations(x: Floats, y: Floats) -> Floats:
    """Pearson's correlation of every column of ``x`` (samples, columns) with ``y`` (samples,); shape (columns,).

    0 where one of the two does not vary.
    """
    n = len(x)
    mean_x, mean_y = x.mean(axis=0), y.mean()
    off_x, off_y = x - mean_x, y - mean_y
    xx, yy = (off_x * off_x).sum(axis=0), (off_y * off_y).sum()
    scale_x, scale_y = np.abs(mean_x) + _CONSTANT, abs(mean_y) + _CONSTANT
    varies = (xx > n * (1e-6 * scale_x) ** 2) & (yy > n * (1e-6 * scale_y) ** 2)
    both: Floats = off_y @ off_x / np.sqrt(np.where(varies, xx * yy, 1.0))
    return np.where(varies, both, 0.0)
