"""Converts a profile into samples of a correction of the physics prior, from which a model starts.

The prior models how processors are shared, and assumes that work falls with the CPU time obtained. A profile knows how
*this* application's work falls with CPU time and cache. The boosted correction starts from their difference over an
even sample of enforceable allocations:

    correction(a) = log f(CPU time predicted by physics under a, cache that a leaves it) - log(predicted work)

A profile describes the application alone. It does not include memory bandwidth taken by neighbours, which is
left to live samples. Batch is assumed to take part of the ways that both may use, in proportion to its load and up
to one half.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from perphd.domain.allocation import IDLE, Allocation, CpuGrant, Weight
from perphd.domain.policy import ModelContext
from perphd.predictor import features
from perphd.predictor.ogbrt.forest import Forest
from perphd.predictor.ogbrt.trees import Floats
from perphd.predictor.physics import CpuGrants, expect
from perphd.predictor.profile.file import Profile
from perphd.predictor.profile.lattice import Axis, Lattice

SAMPLES: Final = 240
_WEIGHTS: Final[tuple[Weight, ...]] = (IDLE, 10, 30, 100)
_LOADS: Final = (0.2, 0.4, 0.6, 0.8, 1.0)
_BATCH: Final = (0.25, 0.5, 1.0)
_CACHE_LOST: Final = 0.5
"""Share of the ways open to both that batch takes if it fills the host."""
_MOST: Final = 1.0
"""Bound of a warm start's corrections, log units; beyond it only live samples count."""


def ratio(profile: Profile, cpu: Floats, llc: Floats) -> Floats:
    """Log of work relative to the reference, by share of wanted CPU time and share of the cache; each (n,).

    Memory, bandwidth and load are those of the reference. The result is never above 0.
    """
    forest = Forest.compile(profile.trees)
    rows = np.tile(np.array(profile.high), (len(cpu), 1))
    for name, values in (("cpu_share", cpu), ("llc_share", llc)):
        if name in profile.features:
            column = profile.features.index(name)
            rows[:, column] = np.clip(values, profile.low[column], profile.high[column])
    if "load_share" in profile.features:
        rows[:, profile.features.index("load_share")] = 1.0
    full = np.array(profile.high)[None].copy()
    if "load_share" in profile.features:
        full[0, profile.features.index("load_share")] = 1.0
    found = forest.predict(rows) - float(forest.predict(full)[0])
    return np.asarray(np.minimum(found, 0.0), dtype=np.float64)


def corrections(
    profile: Profile, total_cores: int, llc_ways: int, mba_levels_pct: Sequence[int] = ()
) -> tuple[Floats, Floats, Floats]:
    """Samples of the correction for a host of this shape.

    Returns rows of ``features.COLUMNS``, physics predictions of the work ratio (log), and corrections.
    """
    grants = [
        CpuGrant(total_cores, cores, weight, exclusive)
        for exclusive in (False, True)
        for cores in range(1, total_cores + 1)
        for weight in (_WEIGHTS if not exclusive else _WEIGHTS[-1:])
        if not (exclusive and cores >= total_cores)
    ]
    ways = tuple(float(w) for w in range(llc_ways)) or (0.0,)
    # Reuses the even sampling of exploration. The order from generous to tight has no meaning here.
    lattice = Lattice(
        (
            Axis("grant", "", tuple(float(i) for i in range(len(grants)))),
            Axis("load", "", _LOADS),
            Axis("batch", "", _BATCH),
            Axis("ways", "", ways),
        )
    )
    rows, expected, found = [], [], []
    for point in lattice.sample(min(SAMPLES, lattice.size)):
        which, load, batch, protected = lattice.values(point)
        grant = grants[round(which)]
        context = ModelContext(
            total_cores=float(total_cores),
            lra_demand_cores=load * total_cores,
            batch_demand_cores=batch * total_cores,
        )
        allocation = Allocation(grant, llc_ways=round(protected))
        physics = float(expect(CpuGrants.of([allocation]), context).work[0])
        shared = 1.0 - protected / llc_ways if llc_ways else 0.0
        cache = 1.0 - _CACHE_LOST * batch * shared
        said = float(ratio(profile, np.array([physics]), np.array([cache]))[0])
        rows.append(features.features([allocation], context)[0])
        expected.append(np.log(max(physics, 1e-3)))
        found.append(min(max(said - expected[-1], -_MOST), _MOST))
    return np.array(rows), np.array(expected), np.array(found)
