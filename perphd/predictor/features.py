"""Features of an allocation and its circumstances for the learned corrections; the only place that defines columns.

The first ``PLACE`` columns locate a sample (allocation and load). The others are covariates: contention that perphd
cannot control, included so that it is not attributed to allocations. Unmeasured values are NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from perphd.domain.allocation import Allocation
from perphd.domain.policy import ModelContext
from perphd.domain.reading import NOT_MEASURED, Reading, available
from perphd.domain.sample import Sample
from perphd.predictor.persist import CellKey
from perphd.predictor.physics import CpuGrants

Floats = NDArray[np.float64]

FAINT_WEIGHT: Final = 0.02
"""Ratio of batch's weight to the LRA's below which differences hardly affect performance."""


@dataclass(frozen=True, slots=True)
class Column:
    """One feature: its usual range, and the required monotonicity of the LRA's *work* in it (+1, -1; 0: none)."""

    name: str
    low: float
    high: float
    work_sign: int = 0


COLUMNS: Final = (
    Column("batch_core_share", 0.0, 1.0),
    Column("batch_weight_log10", math.log10(FAINT_WEIGHT), math.log10(4.0)),
    Column("exclusive", 0.0, 1.0),
    Column("lra_load", 0.0, 1.0),
    Column("batch_load", 0.0, 1.0),
    Column("llc_ways", 0.0, 1.0, +1),
    Column("mbw", 0.0, 1.0, -1),
    Column("other_load", 0.0, 1.0),
    Column("io_stall", 0.0, 1.0, -1),
    Column("frequency_ghz", 1.0, 4.0, +1),
    Column("neighbours_gb_per_s", 0.0, 20.0, -1),
    Column("neighbours_load", 0.0, 1.0, -1),
)
"""Signs are set only for columns that the physics prior ignores, such as cache and bandwidth. Only for these
columns does the sign of the correction's effect equal the sign of the whole model's effect.
"""
PLACE: Final = 7
NAMES: Final = tuple(column.name for column in COLUMNS)
LOW: Final[Floats] = np.array([column.low for column in COLUMNS])
HIGH: Final[Floats] = np.array([column.high for column in COLUMNS])
WORK_SIGNS: Final = tuple(column.work_sign for column in COLUMNS)
DELAY_SIGNS: Final = tuple(-column.work_sign for column in COLUMNS)
NO_SIGNS: Final = (0,) * len(COLUMNS)


@dataclass(frozen=True, slots=True)
class Covariates:
    """Measured contention that perphd cannot control.

    ``io_stall``: share of time in which the LRA waited for disks. ``frequency_ghz``: clock rate of its CPUs.
    ``neighbours_gb_per_s``: memory bandwidth of the other LRAs. ``neighbours_load``: their CPU use as a share of the
    host's cores; with SMT they run on siblings of this LRA's threads.
    """

    io_stall: Reading = NOT_MEASURED
    frequency_ghz: Reading = NOT_MEASURED
    neighbours_gb_per_s: Reading = NOT_MEASURED
    neighbours_load: Reading = NOT_MEASURED

    @classmethod
    def of(
        cls,
        sample: Sample,
        neighbours_bytes_per_s: Reading = NOT_MEASURED,
        neighbours_load: Reading = NOT_MEASURED,
    ) -> Covariates:
        """The covariates of an LRA's sample.

        The frequency is cycles per second of CPU time: MIPS times CPI over the CPUs used.
        """
        io, mips, cpi, used = sample.io_some_pct, sample.mips, sample.cpi, sample.cpu_usage_cores
        frequency: Reading = NOT_MEASURED
        if available(mips) and available(cpi) and available(used) and used > 0:
            frequency = mips * cpi / used / 1000.0
        return cls(
            io / 100.0 if available(io) else io,
            frequency,
            neighbours_bytes_per_s / 1e9 if available(neighbours_bytes_per_s) else neighbours_bytes_per_s,
            neighbours_load,
        )


def features(
    allocations: Sequence[Allocation],
    context: ModelContext,
    around: Covariates = Covariates(),
    grants: CpuGrants | None = None,
) -> Floats:
    """Feature rows (n, len(COLUMNS)) of these allocations under one context. ``grants``: the allocations' CPU
    grants, if known.
    """
    total = max(context.total_cores, 1e-9)
    cpu = CpuGrants.of(allocations) if grants is None else grants
    rows = np.empty((len(allocations), len(COLUMNS)))
    rows[:, 0] = cpu.batch / cpu.total
    rows[:, 1] = np.log10(cpu.weight + FAINT_WEIGHT)
    rows[:, 2] = cpu.exclusive
    rows[:, 3] = min(context.lra_demand_cores / total, 1.5)
    rows[:, 4] = min(context.batch_demand_cores / total, 1.0)
    rows[:, 5] = [a.llc_ways for a in allocations]
    rows[:, 5] /= 20.0
    rows[:, 6] = [a.mbw_pct for a in allocations]
    rows[:, 6] /= 100.0
    rows[:, PLACE:] = (
        context.other_cores / total,
        _number(around.io_stall),
        _number(around.frequency_ghz),
        _number(around.neighbours_gb_per_s),
        _number(around.neighbours_load),
    )
    return rows


def cell_key(allocation: Allocation, context: ModelContext) -> CellKey:
    """The cell to which a sample of this allocation and context belongs."""
    total = max(context.total_cores, 1e-9)
    grant = allocation.cpu
    return CellKey(
        grant.total_cores,
        grant.batch_cores,
        grant.batch_weight,
        grant.exclusive,
        allocation.llc_ways,
        allocation.mbw_pct,
        lra_level=round(4 * context.lra_demand_cores / total),
        batch_level=round(2 * min(context.batch_demand_cores / total, 1.0)),
    )


def padded(x: Sequence[float | None]) -> Floats:
    """A saved row as an array. None becomes NaN, as do columns that were added after the row was saved.

    In the first ``PLACE`` columns, which must be known, None becomes 0.
    """
    known = [(0.0 if i < PLACE else math.nan) if value is None else value for i, value in enumerate(x)]
    if PLACE <= len(known) < len(COLUMNS):
        known += [math.nan] * (len(COLUMNS) - len(known))
    return np.array(known, dtype=np.float64)


def _number(value: Reading) -> float:
    return value if available(value) and math.isfinite(value) else math.nan
