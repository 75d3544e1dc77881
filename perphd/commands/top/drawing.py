"""Strips and graphs of ``perphctl top`` as styled text. Pure, and without a terminal library."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from perphd.commands.view import CoreCell, Owner, Share, View, WaysStrip, cpus_of_owner

Piece: TypeAlias = tuple[str, str]
"""Text, and its rich style."""
Line: TypeAlias = list[Piece]

BARS: Final = "▁▂▃▄▅▆▇█"
LINE_BARS: Final = len(BARS) // 2
"""Number of bar glyphs below the target line."""
SCALE: Final = 4 / 3
"""Multiple of the target at which a bar is full. At the target divided by this number, the bar is empty."""
GOOD: Final = "green"
BAD: Final = "red"
_LRA_STYLES: Final = (
    "black on green",
    "black on cyan",
    "white on blue",
    "black on bright_green",
    "black on bright_cyan",
)
_STYLES: Final = {
    Share.BATCH: "black on yellow",
    Share.SHARED: "white on magenta",
    Share.FREE: "dim",
    Share.ISOLATED: "dim",
    Share.OFFLINE: "dim",
}


def owner_styles(owners: Sequence[Owner]) -> tuple[str, ...]:
    """A style for every owner: distinct ones for LRAs, batch and shared."""
    lras = iter(range(len(owners)))
    return tuple(
        _LRA_STYLES[next(lras) % len(_LRA_STYLES)] if owner.share is Share.LRA else _STYLES[owner.share]
        for owner in owners
    )


def core_strip(view: View, width: int, most_lines: int) -> list[Line]:
    """Users of each core: a letter per hardware thread, grouped by core; then a legend.

    If not all cores fit, only the legend with the CPUs of each user is shown.
    """
    styles = owner_styles(view.owners)
    legend = core_legend(view, styles)
    for gap in (" ", ""):
        lines = _wrapped(_cells(view, styles, gap), width)
        if len(lines) == 1 and _length(lines[0]) + 3 + _length(legend) <= width:
            return [[*lines[0], ("   ", ""), *legend]]
        if len(lines) < most_lines:
            return [*lines, _cut(legend, width)]
    return [_cut(legend, width)]


def core_legend(view: View, styles: Sequence[str]) -> Line:
    """Every owner with its letter and its CPUs."""
    legend: Line = []
    for place, (owner, style) in enumerate(zip(view.owners, styles, strict=True)):
        if cpus := cpus_of_owner(view, place):
            legend += [("  ", "")] if legend else []
            legend += [(owner.letter, style), (f" {owner.name} {cpus}", "")]
    return legend


def ways_strip(view: View, width: int) -> Line:
    """The ways of every last-level cache, the lowest first."""
    styles = owner_styles(view.owners)
    line: Line = []
    for strip in view.ways:
        line += [("  ", "")] if line else []
        line += [(f"L3 {strip.domain} ", "dim"), *_ways(strip, view.owners, styles)]
    if any(any(strip.shareable) for strip in view.ways):
        line.append(("  underlined: used by devices, too", "dim"))
    return _cut(line, width)


def spark(scores: Sequence[float | None]) -> Line:
    """A bar per score: the upper half of the bars means on target, the lower half below target, blank unknown."""
    return _joined(
        (" ", "") if score is None else (BARS[_level(score)], GOOD if score >= 1.0 else BAD)
        for score in scores
    )


def graph(scores: Sequence[float | None], height: int) -> list[Line]:
    """Scores as bars on a line at the target: upwards if above, downwards if below.

    ``height``: rows, an even number.
    """
    half = height // 2
    steps = half * len(BARS)
    sizes = [0 if score is None else round(_place(score) * steps) for score in scores]
    rows = []
    for row in range(height):
        line: Line = []
        for size, score in zip(sizes, scores, strict=True):
            above = row < half
            away = half - 1 - row if above else row - half
            filled = (size if above else -size) - away * len(BARS)
            if filled <= 0:
                line.append((_base(above, away, score), "dim"))
            elif filled >= len(BARS):
                line.append(("█", GOOD if above else BAD))
            elif above:
                line.append((BARS[filled - 1], GOOD))
            else:
                line.append((_hanging(filled), BAD))
        rows.append(_joined(line))
    return rows


def resampled(values: Sequence[float | None], width: int) -> tuple[float | None, ...]:
    """Reduce to one value per column: the lowest of the values that share it."""
    if not values or width < 1:
        return ()
    count = len(values)
    found: list[float | None] = []
    for column in range(width):
        start = column * count // width
        part = [
            value
            for value in values[start : max(start + 1, (column + 1) * count // width)]
            if value is not None
        ]
        found.append(min(part) if part else None)
    return tuple(found)


def _hanging(filled: int) -> str:
    """The glyph of a bar that hangs from the top of its cell; there are only three."""
    return "▔" if filled <= len(BARS) // 4 else "▀" if filled <= len(BARS) * 3 // 4 else "█"


def _base(above: bool, away: int, score: float | None) -> str:
    """The glyph of a cell without a bar: the target line in the row just above the target, else blank."""
    if above and away == 0:
        return "▁" if score is not None else "_"
    return " "


def _place(score: float) -> float:
    """-1 to 1: distance from the target on a logarithmic scale."""
    if score <= 0:
        return -1.0
    return max(-1.0, min(1.0, math.log(score) / math.log(SCALE)))


def _level(score: float) -> int:
    top = len(BARS) - 1
    return max(0, min(top, math.floor((_place(score) + 1.0) * LINE_BARS)))


def _cells(view: View, styles: Sequence[str], gap: str) -> list[Line]:
    cells: list[Line] = []
    before: CoreCell | None = None
    for core in view.cores:
        letters = [(view.owners[place].letter, styles[place]) for place in core.owners]
        if before is not None and before.socket != core.socket:
            cells.append([(" | " if gap else "|", "dim"), *letters])
        else:
            cells.append([*([(gap, "")] if before is not None and gap else []), *letters])
        before = core
    return cells


def _wrapped(cells: Iterable[Line], width: int) -> list[Line]:
    lines: list[Line] = [[]]
    for cell in cells:
        if lines[-1] and _length(lines[-1]) + _length(cell) > width:
            lines.append([piece for piece in cell if piece[0].strip()])
        else:
            lines[-1] = lines[-1] + cell
    return lines


def _ways(strip: WaysStrip, owners: Sequence[Owner], styles: Sequence[str]) -> Line:
    return _joined(
        (owners[place].letter, f"{styles[place]} underline" if shareable else styles[place])
        for place, shareable in zip(strip.owners, strip.shareable, strict=True)
    )


def _joined(pieces: Iterable[Piece]) -> Line:
    """The same text, with neighbours of equal style merged."""
    line: Line = []
    for text, style in pieces:
        if line and line[-1][1] == style:
            line[-1] = (line[-1][0] + text, style)
        else:
            line.append((text, style))
    return line


def _length(line: Line) -> int:
    return sum(len(text) for text, _ in line)


def _cut(line: Line, width: int) -> Line:
    """The text, truncated to this width with an ellipsis if it is longer."""
    if _length(line) <= width:
        return line
    cut: Line = []
    left = width - 1
    for text, style in line:
        cut.append((text[:left], style))
        left -= len(text)
        if left <= 0:
            break
    return [*cut, ("…", "dim")]
