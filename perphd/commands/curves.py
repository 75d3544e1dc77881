"""Partial dependence: a model's prediction as one variable changes; as text and as PNG. Pure except for PNG.

The partial dependence of a profile on a knob is the profile's mean prediction over its samples, with that knob set to
each value in turn (Friedman 2001, section 8.2). A live model's curves are its predictions along the CPU lattice, other
conditions unchanged.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from perphd.control.table import Part, Styled, text
from perphd.domain.allocation import IDLE
from perphd.domain.belief import ModelView
from perphd.domain.errors import PerphError
from perphd.domain.extras import how_to_get
from perphd.domain.policy import Band
from perphd.predictor.ogbrt.forest import Forest
from perphd.predictor.profile.file import Profile

WIDTH: Final = 56
HEIGHT: Final = 8
_MARKS: Final = "●○▲△■□"
NO_MATPLOTLIB: Final = f"matplotlib is not installed: {how_to_get('lab')}"
_POINTS: Final = 24


@dataclass(frozen=True, slots=True)
class Line:
    """One curve; ``low`` and ``high``: its bounds, or empty."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Chart:
    """Curves with a common axis."""

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]


def of_profile(profile: Profile) -> tuple[Chart, ...]:
    """One chart per knob: work relative to the reference, averaged over the profile's samples."""
    forest = Forest.compile(profile.trees)
    charts = []
    for column, name in enumerate(profile.features):
        values = np.linspace(profile.low[column], profile.high[column], _POINTS)
        means = []
        for value in values:
            rows = profile.x.copy()
            rows[:, column] = value
            means.append(float(np.exp(forest.predict(rows)).mean()))
        unit = profile.scale[column]
        line = Line("", tuple(values.tolist()), tuple(means))
        charts.append(
            Chart(f"work by {name}", f"{name} (1 = {_scale(name, unit)})", "work / reference", (line,))
        )
    return tuple(charts)


def of_view(view: ModelView) -> tuple[Chart, ...]:
    """Work and delay of a live model by the number of cores for batch, for each way of sharing them."""
    kinds: dict[str, list[Any]] = {}
    for item in view.lattice:
        cpu = item.allocation.cpu
        if cpu.exclusive:
            kinds.setdefault("apart", []).append(item)
        elif cpu.batch_weight is IDLE:
            kinds.setdefault("shared, batch idle", []).append(item)
        elif cpu.batch_weight == 100:
            kinds.setdefault("shared, equal weights", []).append(item)
    z = view.confidence_z
    charts = []
    for title in ("work", "delay"):
        lines = []
        for label, items in kinds.items():
            items.sort(key=lambda i: i.allocation.cpu.batch_cores)
            bands: list[Band] = [getattr(item, title) for item in items]
            lines.append(
                Line(
                    label,
                    tuple(float(item.allocation.cpu.batch_cores) for item in items),
                    tuple(band.value for band in bands),
                    tuple(band.at(-z) for band in bands),
                    tuple(band.at(z) for band in bands),
                )
            )
        if lines:
            charts.append(
                Chart(
                    f"{title} by batch's cores",
                    "cores that batch may use",
                    f"{title} / reference",
                    tuple(lines),
                )
            )
    return tuple(charts)


def parts(charts: Iterable[Chart]) -> list[Part]:
    """The charts as text."""
    return [text(Styled(chart.title, "bold"), *_rows(chart)) for chart in charts]


def save_png(charts: Sequence[Chart], path: str, title: str) -> None:
    """Draw the charts into a PNG file.

    Raises:
        PerphError: matplotlib is missing, or the file cannot be written.
    """
    try:
        # Imported by name, so that no resident part of perphd imports it.
        figures: Any = importlib.import_module("matplotlib.figure")
        importlib.import_module("matplotlib.backends.backend_agg")
    except ImportError as exc:
        raise PerphError(NO_MATPLOTLIB) from exc
    columns = min(len(charts), 2)
    lines = -(-len(charts) // columns)
    figure = figures.Figure(figsize=(5.5 * columns, 3.6 * lines), layout="constrained")
    for number, chart in enumerate(charts, 1):
        axes = figure.add_subplot(lines, columns, number)
        for line in chart.lines:
            (drawn,) = axes.plot(line.x, line.y, marker=".", label=line.label or None)
            if line.low:
                axes.fill_between(line.x, line.low, line.high, alpha=0.15, color=drawn.get_color())
        axes.set(title=chart.title, xlabel=chart.x_label, ylabel=chart.y_label)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        if any(line.label for line in chart.lines):
            axes.legend()
    figure.suptitle(title)
    try:
        figure.savefig(path, format="png", dpi=110)
    except OSError as exc:
        raise PerphError(f"{path}: cannot be written: {exc.strerror}") from exc


def _rows(chart: Chart) -> list[str]:
    """A plot of HEIGHT rows: y from 0 to its maximum, x from its minimum to its maximum."""
    xs = [x for line in chart.lines for x in line.x]
    top = max((y for line in chart.lines for y in line.y), default=1.0) or 1.0
    low, high = min(xs, default=0.0), max(xs, default=1.0)
    span = (high - low) or 1.0
    grid = [[" "] * WIDTH for _ in range(HEIGHT)]
    for number, line in enumerate(chart.lines):
        mark = _MARKS[number % len(_MARKS)]
        for x, y in zip(line.x, line.y, strict=True):
            column = round((x - low) / span * (WIDTH - 1))
            row = HEIGHT - 1 - round(min(max(y / top, 0.0), 1.0) * (HEIGHT - 1))
            grid[row][column] = mark
    found = []
    for row, cells in enumerate(grid):
        scale = f"{top * (HEIGHT - 1 - row) / (HEIGHT - 1):6.2f}" if row % 2 == 1 or row == 0 else " " * 6
        found.append(f"{scale} │{''.join(cells)}".rstrip())
    found.append(" " * 7 + "└" + "─" * WIDTH)
    left, right = f"{low:.3g}", f"{high:.3g}"
    found.append(" " * 8 + left + f" {chart.x_label} ".center(WIDTH - len(left) - len(right)) + right)
    legend = [f"{_MARKS[i % len(_MARKS)]} {line.label}" for i, line in enumerate(chart.lines) if line.label]
    return [*found, " " * 8 + "   ".join(legend)] if legend else found


def _scale(name: str, value: float) -> str:
    if name == "cpu_share":
        return f"{value:.1f} cores, its undisturbed use"
    if name == "memory_share":
        return f"{value / (1 << 30):.1f} GiB"
    if name == "llc_share":
        return f"{value:.0f} ways"
    if name == "mbw_share":
        return f"{value:.0f} %"
    return f"{value:.4g}"
