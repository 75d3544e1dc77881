"""Streams over published cache curves: IPC of real programs against ways, from the user's folder.

The file is pbbcache's ``metrics.csv`` (programs x ways). A stream runs one program and then, as a drift, another; the
other resources act as on the analytic surface. The file's content is not stored here.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tools.bench.predictor.streams import Database

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """log-MIPS with a measured effect of ways: IPC at 1, 2, .. ways relative to all ways."""

    log_relative_ipc: Floats
    rest: Database = field(default_factory=Database)

    def log_performance(self, x: Floats) -> Floats:
        """Log-MIPS of rows (n, 5): the analytic surface with all ways, times the measured loss."""
        ways = np.clip(np.rint(x[:, 2]).astype(int), 1, len(self.log_relative_ipc))
        full = x.copy()
        full[:, 2] = len(self.log_relative_ipc)
        return np.asarray(self.rest.log_performance(full) + self.log_relative_ipc[ways - 1], dtype=np.float64)


def read(folder: Path) -> dict[str, Curve]:
    """All programs of ``folder/metrics.csv`` or ``folder/pbbcache/metrics.csv``, by name.

    Raises:
        FileNotFoundError: there is no such file.
    """
    path = next(
        (p for p in (folder / "metrics.csv", folder / "pbbcache" / "metrics.csv") if p.is_file()), None
    )
    if path is None:
        raise FileNotFoundError(f"{folder}: no metrics.csv of pbbcache in it")
    found: dict[str, dict[int, float]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            found.setdefault(row["BENCH"], {})[int(row["NR_WAYS"])] = float(row["ipc"])
    curves = {}
    for name, ipc in found.items():
        values = np.log([ipc[ways] for ways in sorted(ipc)])
        curves[name] = Curve(values - values[-1])
    return curves


def most_sensitive(curves: dict[str, Curve], count: int) -> list[str]:
    """The programs that lose most with few ways, in descending order of loss."""
    return sorted(curves, key=lambda name: float(curves[name].log_relative_ipc[0]))[:count]
