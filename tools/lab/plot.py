"""The plot of the timelines: rate or p95 of the database above, batch work below, one column per cell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt  # the backend must be chosen before the import

from tools.lab.analysis import target
from tools.lab.batch import JOBS
from tools.lab.catalogue import job_of, load_of
from tools.lab.records import Point, Run
from tools.lab.schemes import ALONE, SCHEMES
from tools.lab.stats import spread

_COLOURS = {
    "alone": "#555555", "native": "#d62728", "sbs-1024": "#ff7f0e", "sbs-64": "#bcbd22", "static": "#9467bd",
    "idle": "#2ca02c", "confined": "#98df8a", "koordinator": "#8c564b", "parties": "#e377c2",
    "perphd": "#1f77b4", "perphd-30": "#17becf", "perphd-tcp": "#0b3d91", "perphd-blind": "#7fb2e5",
}  # fmt: skip


def draw(runs: Sequence[Run], path: Path) -> None:
    """Draw the median over repetitions of every scheme."""
    cells = list(dict.fromkeys(run.cell for run in runs))
    figure, axes = plt.subplots(
        2, len(cells), figsize=(1.5 + 5.2 * len(cells), 7), squeeze=False, sharex="col"
    )
    for column, cell in enumerate(cells):
        of_cell = [run for run in runs if run.cell == cell]
        open_loop = load_of(cell).open_loop
        above, below = axes[0][column], axes[1][column]
        for scheme in (s.name for s in SCHEMES):
            mine = [run for run in of_cell if run.scheme == scheme]
            if not mine:
                continue
            style = {
                "color": _COLOURS[scheme],
                "label": scheme,
                "linewidth": 2.2 if scheme.startswith("perphd") else 1.2,
            }
            above.plot(*_line(mine, (lambda p: p.p95_ms) if open_loop else (lambda p: p.tps)), **style)
            if scheme != ALONE:
                below.plot(*_line(mine, lambda p: p.batch), **style)
        wanted = spread([bound.bound for run in of_cell if (bound := target(run, of_cell)) is not None])
        if wanted is not None:
            above.axhline(wanted.median, color="black", linestyle=":", linewidth=1, label="target")
        if open_loop:
            above.set_yscale("log")
        above.set_title(cell)
        above.set_ylabel("p95 of the second, ms" if open_loop else f"{load_of(cell).unit}/s")
        below.set_ylabel(f"batch: {JOBS[job_of(cell)].unit}/s")
        below.set_xlabel("seconds after the antagonist's start")
        for axis in (above, below):
            axis.grid(alpha=0.3)
            if not open_loop or axis is below:
                axis.set_ylim(bottom=0)
    axes[0][0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _line(runs: Sequence[Run], value: Callable[[Point], float | None]) -> tuple[list[float], list[float]]:
    """The median over repetitions, point by point, for the common length."""
    ends: list[float] = []
    values: list[float] = []
    for points in zip(*(run.timeline for run in runs), strict=False):
        middle = spread([value(point) for point in points])
        when = spread([point.end_s for point in points])
        if middle is not None and when is not None:
            ends.append(when.median)
            values.append(middle.median)
    return ends, values
