"""Fit cache behaviour of measured programs: IPC and misses at 1..11 ways -> cpi, miss_cycles, mpki curve.

Input: pbbcache/metrics.csv (55 SPEC CPU2000/2006 programs on a machine with 11 ways of 2.5 MB). Every program gets
its own parameters. Errors on unseen numbers of ways are measured too, by a fit without 4, 6, 8 and 10 ways.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares  # type: ignore[import-untyped]

from perphd.sim.node.workload import Code

WAY_BYTES = 2.5 * (1 << 20)
HELD_OUT = (4, 6, 8, 10)
_MISS_CYCLES_MAX = 300.0

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Measured:
    """One program at 1..11 ways."""

    name: str
    ways: Floats
    ipc: Floats
    mpki: Floats
    refs_pki: float


@dataclass(frozen=True, slots=True)
class Fitted:
    """A program's parameters and the median relative error of IPC over all ways, in percent."""

    name: str
    code: Code
    error_pct: float
    held_out_error_pct: float


def read(path: Path) -> list[Measured]:
    """All programs of pbbcache's table."""
    rows: dict[str, list[dict[str, str]]] = {}
    with path.open() as file:
        for row in csv.DictReader(file):
            rows.setdefault(row["BENCH"], []).append(row)
    found = []
    for name, table in sorted(rows.items()):
        table.sort(key=lambda row: int(row["NR_WAYS"]))

        def column(key: str, table: list[dict[str, str]] = table) -> Floats:
            return np.array([float(row[key]) for row in table])

        refs = float(np.median(column("llcrpki")))
        found.append(Measured(name, column("NR_WAYS"), column("ipc"), column("llcmpki"), refs))
    return found


def fit(program: Measured) -> Fitted:
    """Parameters from all ways, and the error at ways that another fit has not seen."""
    code = _fit(program, np.ones(len(program.ways), dtype=bool))
    held = np.isin(program.ways, HELD_OUT)
    partial = _fit(program, ~held)
    return Fitted(
        program.name,
        code,
        error_pct=float(np.median(errors(program, code))) * 100,
        held_out_error_pct=float(np.median(errors(program, partial)[held])) * 100,
    )


def errors(program: Measured, code: Code) -> Floats:
    """Relative errors of IPC at each number of ways."""
    ipc = np.array([1.0 / code.cycles_per_instruction(ways * WAY_BYTES) for ways in program.ways])
    return np.asarray(np.abs(ipc / program.ipc - 1.0))


def _fit(program: Measured, use: npt.NDArray[np.bool_]) -> Code:
    ways, mpki, cpi = program.ways[use], program.mpki[use], 1.0 / program.ipc[use]
    size = max(float(mpki.max()), 1e-3)

    def curve(x: Floats) -> Floats:
        return np.asarray(x[0] + x[1] * np.exp(-ways / x[2]))

    best = None
    for scale in (0.8, 2.5, 8.0):
        start = [float(mpki.min()), max(float(mpki.max() - mpki.min()), 1e-4) * np.exp(1 / scale), scale]
        found = least_squares(
            lambda x: (curve(x) - mpki) / size, start, bounds=([0, 0, 0.2], [np.inf, np.inf, 40.0])
        )
        if best is None or found.cost < best.cost:
            best = found
    assert best is not None
    fitted = curve(best.x)
    # cpi = base + penalty x misses, weighted to relative errors; more misses never make a program faster.
    design = np.stack([np.ones_like(fitted), fitted / 1000.0], axis=1) / cpi[:, None]
    base, penalty = np.linalg.lstsq(design, np.ones_like(cpi), rcond=None)[0]
    if penalty < 0 or base <= 0.05:
        penalty = max(0.0, min(float(penalty), float((cpi / np.maximum(fitted, 1e-9)).min()) * 500.0))
        base = float(np.median(cpi - penalty * fitted / 1000.0))
    if penalty > _MISS_CYCLES_MAX:  # too few misses to determine their cost
        penalty, base = 0.0, float(np.median(cpi))
    return Code(
        instructions=1e9,
        cpi=round(float(base), 4),
        miss_cycles=round(float(penalty), 2),
        mpki_floor=round(float(best.x[0]), 4),
        mpki_swing=round(float(best.x[1]), 4),
        mpki_scale_bytes=round(float(best.x[2]) * WAY_BYTES),
        refs_pki=round(program.refs_pki, 3),
    )
