"""Finds the antagonist: the batch workload or undeclared group whose use correlates with the LRA's shortfall.

The score is the largest correlation over a few lags between a workload's use and the LRA's shortfall. It must be
significant for the number of candidates and lags (Fisher's transform, one-sided, Bonferroni-corrected). Among several
significant candidates, the variation of their use counts as well. Constant use is no evidence.

Undeclared work that fills the host is an exception: its largest group is named even if its use is constant. The
evidence shown is then CPI2's correlation, which works for constant use:
    sum over samples of  u x (1 - t / c) if c > t,  u x (c / t - 1) if c < t

Here u is the sample's share of all use in the window, and c / t the LRA's slowness relative to its target. The result
lies between -1 and 1.
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
from perphd.domain.decision import Cause, Evidence
from perphd.domain.host_account import NO_GROUP
from perphd.domain.policy import Snapshot
from perphd.domain.quick import maker
from perphd.domain.reading import NOT_MEASURED, Reading, Unavailable, available, value_or
from perphd.domain.sample import Sample

WINDOW = 60
"""Number of samples remembered."""
LEAST_SAMPLES = 8
MAX_LAG = 3
"""Largest delay, in samples, between a candidate's use and the LRA's shortfall that follows it."""
LEVEL = 0.01
"""Accepted probability of naming an innocent workload."""
LEAST_CORRELATION = 0.35
"""Minimum correlation for naming a workload, regardless of the number of samples (CPI2's bound)."""
_CONSTANT = 1e-9
_NO_SPLIT = Unavailable("reads and writes of undeclared groups are counted together")
_NOBODYS: Final = frozenset(
    {Cause.REMOTE, Cause.STORAGE, Cause.NETWORK, Cause.THROTTLED, Cause.SELF, Cause.HYPERVISOR}
)
"""Causes that no other work on this host can produce."""
UNRELATED: Final = 0.5
"""Weight of the use by processes outside any group. It is less than 1, because these processes are several workloads
together.
"""
RECENT: Final = 5
"""Number of latest samples over which the use of undeclared groups is compared."""
Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Use:
    """Use of a batch workload or an undeclared group in one tick.

    ``workload``: a name, or a group's path with a leading slash.
    """

    workload: str
    cpu_usage_cores: Reading
    memory_current_bytes: Reading
    read_bytes_per_s: Reading
    write_bytes_per_s: Reading
    mbw_bytes_per_s: Reading


_use_of = maker(Use)


def use_of(sample: Sample) -> Use:
    """The part of a sample to remember."""
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
    """Use of every batch workload with a sample, and of every undeclared group in the host account.

    All LRAs share the returned tuple.
    """
    account = snapshot.host.account
    groups = account.undeclared if account is not None else ()
    return (
        *[use_of(sample) for sample in batch_samples(snapshot)],
        *[
            _use_of(g.group, g.cpu_cores, g.memory_bytes, g.io_bytes_per_s, _NO_SPLIT, NOT_MEASURED)
            for g in groups
        ],
    )


@dataclass(frozen=True, slots=True)
class Moment:
    """One tick: the LRA's shortfall (log of target / observed; negative above target), and batch's use."""

    short: float
    batch: tuple[Use, ...]


_KNOWN: dict[tuple[int, Cause], tuple[tuple[Use, ...], dict[str, float]]] = {}
_MOST_KNOWN: Final = 2 * WINDOW


def _uses(batch: tuple[Use, ...], cause: Cause) -> Mapping[str, float]:
    """Use of the contended resource by workload. Workloads whose use cannot be read are left out.

    The last answers are cached, because every LRA in trouble asks about the same samples.
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
    if cause is Cause.IO and use.write_bytes_per_s is _NO_SPLIT:
        return use.read_bytes_per_s
    if cause is Cause.IO and available(use.read_bytes_per_s) and available(use.write_bytes_per_s):
        return use.read_bytes_per_s + use.write_bytes_per_s
    if cause in (Cause.LLC, Cause.MBW) and available(use.mbw_bytes_per_s):
        return use.mbw_bytes_per_s
    return use.cpu_usage_cores


def accuse(moments: Sequence[Moment], cause: Cause) -> tuple[str | None, tuple[Evidence, ...]]:
    """The antagonist behind a shortfall of this cause, with the evidence; None if the evidence names no
    workload or group.
    """
    if cause in _NOBODYS:
        return None, ()
    moved = find(moments, cause)
    if cause is not Cause.NEIGHBOUR:
        is_group = moved is not None and moved.startswith("/")
        return moved, (_against(moments, moved, cause),) if moved is not None and is_group else ()
    recent = moments[-RECENT:]
    mean: dict[str, float] = {}
    for moment in recent:
        for use in moment.batch:
            if use.workload.startswith("/"):
                used = value_or(use.cpu_usage_cores, 0.0) / len(recent)
                if use.workload == NO_GROUP:
                    used *= UNRELATED
                mean[use.workload] = mean.get(use.workload, 0.0) + used
    if not mean:
        return None, ()
    most = max(mean, key=lambda group: mean[group])
    # Prefer a correlated group over the largest one if its use is at least half as large.
    named = moved if moved is not None and mean.get(moved, 0.0) >= 0.5 * mean[most] else most
    return named, (_against(moments, named, cause),)


def _against(moments: Sequence[Moment], group: str, cause: Cause) -> Evidence:
    used = [_uses(moment.batch, cause).get(group, 0.0) for moment in moments]
    slow = [math.exp(moment.short) for moment in moments]
    n = len(used)
    together = float(correlations(np.array([[u] for u in used]), np.array(slow))[0])
    text = (
        f"undeclared; in the last {n} samples its correlation with the shortfall is {cpi2(used, slow):.2f} "
        f"by CPI2's formula, {together:.2f} by Pearson's"
    )
    recent = used[-RECENT:]
    return Evidence(f"use of {group}", sum(recent) / len(recent), Unavailable(""), "CPUs", text)


def cpi2(used: Sequence[float], slowness: Sequence[float]) -> float:
    """CPI2's antagonist correlation; 0 without use. ``slowness``: relative to the target; above 1 is too slow."""
    whole = math.fsum(used)
    if whole <= 0.0:
        return 0.0
    parts = (u * (1.0 - 1.0 / c if c > 1.0 else c - 1.0) for u, c in zip(used, slowness, strict=True))
    return math.fsum(parts) / whole


def find(moments: Sequence[Moment], cause: Cause) -> str | None:
    """The workload or group whose use correlates best with the shortfall; None if no correlation is significant.

    For NEIGHBOUR only undeclared groups are candidates.
    """
    used_then = [_uses(moment.batch, cause) for moment in moments]
    only_groups = cause is Cause.NEIGHBOUR
    names = sorted({name for used in used_then for name in used if not only_groups or name.startswith("/")})
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
    # Chance correlations are likelier for small users, so weight by the variation of use.
    most = max((swing[name] for name in accused), default=0.0)
    return max(accused, key=lambda name: scores[name] * math.sqrt(swing[name] / most), default=None)


def correlations(x: Floats, y: Floats) -> Floats:
    """Pearson's correlation of each column of ``x`` (samples, columns) with ``y`` (samples,); shape (columns,).

    It is 0 where one of the two does not vary.
    """
    n = len(x)
    mean_x, mean_y = x.mean(axis=0), y.mean()
    off_x, off_y = x - mean_x, y - mean_y
    xx, yy = (off_x * off_x).sum(axis=0), (off_y * off_y).sum()
    scale_x, scale_y = np.abs(mean_x) + _CONSTANT, abs(mean_y) + _CONSTANT
    varies = (xx > n * (1e-6 * scale_x) ** 2) & (yy > n * (1e-6 * scale_y) ** 2)
    both: Floats = off_y @ off_x / np.sqrt(np.where(varies, xx * yy, 1.0))
    return np.where(varies, both, 0.0)
