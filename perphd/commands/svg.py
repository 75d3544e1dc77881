"""Small charts as inline SVG, without scripts or external files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

WIDTH: Final = 760
LEFT: Final = 70
RIGHT: Final = 14
_TICKS: Final = 4


@dataclass(frozen=True, slots=True)
class Points:
    """A series. ``style``: a class of the page's style sheet. A value of None breaks the line."""

    label: str
    style: str
    values: Sequence[tuple[float, float | None]]
    joined: bool = True


@dataclass(frozen=True, slots=True)
class Interval:
    """A row of a chart of intervals. ``good``: True, False, or None if neutral."""

    label: str
    value: float
    low: float
    high: float
    good: bool | None
    text: str


def lines(
    series: Sequence[Points], x_label: str, y_label: str, height: int = 220, bands: Sequence[Points] = ()
) -> str:
    """Lines or points over a common axis. ``bands``: pairs of series (low, high) with the area between filled."""
    every = [*series, *bands]
    xs = [x for one in every for x, _ in one.values]
    ys = [y for one in every for _, y in one.values if y is not None]
    if not xs or not ys:
        return '<p class="none">no data</p>'
    x_axis, y_axis = _Axis(min(xs), max(xs), LEFT, WIDTH - RIGHT), _Axis.nice(ys, height - 36.0, 12.0)
    parts = [_frame(y_axis, height), *_x_ticks(x_axis, height)]
    for low, high in zip(bands[::2], bands[1::2], strict=True):
        there = [f"{x_axis(x):.1f},{y_axis(y):.1f}" for x, y in low.values if y is not None]
        back = [f"{x_axis(x):.1f},{y_axis(y):.1f}" for x, y in reversed(high.values) if y is not None]
        if there and back:
            parts.append(f'<polygon class="{low.style}" points="{" ".join([*there, *back])}"/>')
    for one in series:
        parts += _path(one, x_axis, y_axis) if one.joined else _dots(one, x_axis, y_axis)
    parts.append(f'<text class="label" x="{LEFT}" y="{height - 2}">{escape(x_label)}</text>')
    legend = " ".join(
        f'<span class="key {one.style}">{escape(one.label)}</span>' for one in every if one.label
    )
    title = f'<div class="legend">{escape(y_label)} {legend}</div>'
    return f'{title}<svg viewBox="0 0 {WIDTH} {height}" role="img">{"".join(parts)}</svg>'


def intervals(rows: Sequence[Interval], unit: str) -> str:
    """One interval per row, around a line at 0."""
    if not rows:
        return '<p class="none">no data</p>'
    label_s, text_s, row = 190.0, 200.0, 30
    values = [0.0, *(v for each in rows for v in (each.low, each.high))]
    height = row * len(rows) + 34
    low, high = min(values), max(values)
    margin = 0.05 * (high - low or 1.0)
    axis = _Axis(low - margin, high + margin, label_s, WIDTH - text_s)
    parts = [
        f'<line class="zero" x1="{axis(0):.1f}" x2="{axis(0):.1f}" y1="4" y2="{height - 24}"/>',
        *(
            f'<text class="tick" text-anchor="middle" x="{axis(t):.1f}" y="{height - 8}">{t:g} {escape(unit)}</text>'
            for t in _ticks(low - margin, high + margin)
        ),
    ]
    for i, each in enumerate(rows):
        y = row * i + 20
        style = {True: "good", False: "bad", None: "neutral"}[each.good]
        parts += [
            f'<text class="row" x="4" y="{y + 4}">{escape(each.label)}</text>',
            f'<line class="whisker {style}" x1="{axis(each.low):.1f}" x2="{axis(each.high):.1f}" y1="{y}" y2="{y}"/>',
            f'<circle class="{style}" cx="{axis(each.value):.1f}" cy="{y}" r="5"/>',
            f'<text class="row" x="{WIDTH - text_s + 12}" y="{y + 4}">{escape(each.text)}</text>',
        ]
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img">{"".join(parts)}</svg>'


def bars(rows: Sequence[tuple[str, float, str]], height: int = 24) -> str:
    """Horizontal bars: the label, the share of the longest bar, and the text after the bar."""
    most = max((value for _, value, _ in rows), default=0.0)
    if most <= 0:
        return '<p class="none">nothing</p>'
    parts = []
    for i, (label, value, text) in enumerate(rows):
        y, length = i * height, 380.0 * value / most
        parts += [
            f'<text class="row" x="4" y="{y + 16}">{escape(label)}</text>',
            f'<rect class="bar" x="250" y="{y + 4}" width="{length:.1f}" height="{height - 8}"/>',
            f'<text class="row" x="{250 + length + 8:.1f}" y="{y + 16}">{escape(text)}</text>',
        ]
    return f'<svg viewBox="0 0 {WIDTH} {height * len(rows) + 4}" role="img">{"".join(parts)}</svg>'


class _Axis:
    """Maps values to positions."""

    def __init__(self, low: float, high: float, at_low: float, at_high: float) -> None:
        self.low, self.high = (low, high) if high > low else (low - 0.5, high + 0.5)
        self._at_low, self._at_high = at_low, at_high

    @classmethod
    def nice(cls, values: Sequence[float], at_low: float, at_high: float) -> _Axis:
        """An axis that begins at 0 if all values are positive and differ considerably."""
        low, high = min(values), max(values)
        if 0 < low < 0.7 * high:
            low = 0.0
        return cls(low, high + 0.05 * (high - low), at_low, at_high)

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return self._at_low + share * (self._at_high - self._at_low)


def _frame(axis: _Axis, height: int) -> str:
    return "".join(
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{axis(t):.1f}" y2="{axis(t):.1f}"/>'
        f'<text class="tick" text-anchor="end" x="{LEFT - 6}" y="{axis(t) + 4:.1f}">{t:g}</text>'
        for t in _ticks(axis.low, axis.high)
    )


def _x_ticks(axis: _Axis, height: int) -> list[str]:
    return [
        f'<text class="tick" text-anchor="middle" x="{axis(t):.1f}" y="{height - 18}">{t:g}</text>'
        for t in _ticks(axis.low, axis.high)
    ]


def _ticks(low: float, high: float) -> list[float]:
    raw = (high - low) / _TICKS
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * m for m in (1.0, 2.0, 5.0, 10.0) if size * m >= raw)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _path(one: Points, x_axis: _Axis, y_axis: _Axis) -> list[str]:
    words, pen_down = [], False
    for x, y in one.values:
        if y is None:
            pen_down = False
            continue
        words.append(f"{'L' if pen_down else 'M'}{x_axis(x):.1f} {y_axis(y):.1f}")
        pen_down = True
    return [f'<path class="{one.style}" d="{" ".join(words)}"/>']


def _dots(one: Points, x_axis: _Axis, y_axis: _Axis) -> list[str]:
    return [
        f'<circle class="{one.style}" cx="{x_axis(x):.1f}" cy="{y_axis(y):.1f}" r="3.5"/>'
        for x, y in one.values
        if y is not None
    ]
