"""Tables for people: aligned plain text when piped, colours and wrapped columns on a terminal."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from rich.console import Console, ConsoleRenderable

WIDTH: Final = 80
"""Columns of a plain terminal."""


BAR_CHARACTERS: Final = frozenset("█▒·")
LEAST_BAR: Final = 6
"""Length in characters below which a bar shows nothing useful."""
_GAP: Final = 2


@dataclass(frozen=True, slots=True)
class Styled:
    """Text with a rich style, which plain output ignores."""

    text: str
    style: str = ""

    def __str__(self) -> str:
        return self.text


Cell: TypeAlias = str | Styled


@dataclass(frozen=True, slots=True)
class Table:
    """A titled table. ``right``: indices of right-aligned columns."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    right: frozenset[int] = field(default_factory=frozenset)


@dataclass(frozen=True, slots=True)
class Text:
    """Lines of text, each with a style."""

    lines: tuple[Cell, ...]


Part: TypeAlias = Table | Text


def table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[Cell]], right: Iterable[int] = ()
) -> Table:
    """Make a table from any sequences."""
    return Table(title, tuple(columns), tuple(tuple(row) for row in rows), frozenset(right))


def text(*lines: Cell) -> Text:
    """Lines of text."""
    return Text(lines)


def plain(parts: Iterable[Part]) -> str:
    """All parts as plain text. Columns are as wide as their content, and nothing is truncated."""
    blocks = []
    for part in parts:
        if isinstance(part, Text):
            blocks.append("\n".join(clean(str(line)) for line in part.lines))
        else:
            blocks.append(_plain_table(part))
    return "\n\n".join(block for block in blocks if block) + "\n"


def _plain_table(part: Table) -> str:
    rows = [tuple(clean(str(cell)) for cell in row) for row in (part.columns, *part.rows)]
    widths = [max(_width(row[i]) for row in rows) for i in range(len(part.columns))]
    lines = [part.title] if part.title else []
    for row in rows:
        cells = []
        for i, cell in enumerate(row):
            padding = " " * (widths[i] - _width(cell))
            cells.append(padding + cell if i in part.right else cell + padding)
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def rich_parts(parts: Iterable[Part], width: int | None = None) -> list[ConsoleRenderable]:
    """All parts as rich renderables for a terminal. ``width``: the terminal's columns, to which bars are shortened."""
    from rich.padding import Padding
    from rich.table import Table as RichTable
    from rich.text import Text as RichText

    found: list[ConsoleRenderable] = []
    for part in parts:
        if isinstance(part, Text):
            found.append(RichText("\n").join(_rich(line) for line in part.lines))
            found.append(RichText())
            continue
        fitted = part if width is None else with_bars_within(part, width)
        shown = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold dim")
        for number, column in enumerate(fitted.columns):
            # Names and numbers are not wrapped; sentences are.
            last = number == len(fitted.columns) - 1
            shown.add_column(
                column,
                justify="right" if number in fitted.right else "left",
                overflow="fold",
                no_wrap=not last and number in (0, *fitted.right),
            )
        for row in fitted.rows:
            shown.add_row(*(_rich(cell) for cell in row))
        if part.title:
            found.append(RichText(part.title, style="bold"))
        found.append(Padding(shown, (0, 0, 1, 0)))
    return found


def _rich(cell: Cell) -> RichText:  # type: ignore[name-defined]  # noqa: F821
    from rich.text import Text as RichText

    if isinstance(cell, Styled):
        return RichText(clean(cell.text), style=cell.style)
    return RichText(clean(cell))


def print_parts(parts: Iterable[Part], console: Console) -> None:
    """Print all parts on a terminal."""
    for item in rich_parts(parts, console.width):
        console.print(item)


def with_bars_within(part: Table, width: int) -> Table:
    """The table with shorter bars if it is wider than ``width``; without bars if they would be too short."""
    heads: list[Cell] = list(part.columns)
    rows = [list(row) for row in part.rows]
    right = part.right
    for i in reversed(range(len(heads))):
        widths = [max(_width(str(row[j])) for row in (heads, *rows)) for j in range(len(heads))]
        over = sum(each + _GAP for each in widths) - width
        drawn = {str(row[i]) for row in rows} - {""}
        if over <= 0 or not drawn or not all(set(each) <= BAR_CHARACTERS for each in drawn):
            continue
        left = widths[i] - over
        if left < max(LEAST_BAR, _width(str(heads[i]))):
            if i + 1 < len(heads) and not heads[i + 1]:
                heads[i + 1] = heads[i]  # the column with the figures of these bars
            for row in (heads, *rows):
                del row[i]
            right = frozenset(j - (j > i) for j in right if j != i)
            continue
        for row in rows:
            row[i] = _sampled(row[i], left)
    return Table(part.title, tuple(map(str, heads)), tuple(tuple(row) for row in rows), right)


def _sampled(cell: Cell, width: int) -> Cell:
    """A bar shortened to ``width`` characters, taken at even distances."""
    content = str(cell)
    shorter = (
        "".join(content[(2 * k + 1) * len(content) // (2 * width)] for k in range(width)) if content else ""
    )
    return Styled(shorter, cell.style) if isinstance(cell, Styled) else shorter


def clean(content: str) -> str:
    """The text with control characters made visible: names of cgroups must not control the terminal."""
    if content.isprintable():
        return content
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in content)


def folded(line: Cell) -> list[Cell]:
    """A line wrapped at 80 columns, with continuation lines indented. Longer words are not broken."""
    whole = str(line)
    if len(whole) <= WIDTH:
        return [line]
    start = len(whole) - len(whole.lstrip())
    indent = " " * (start + 2)
    pieces = textwrap.wrap(
        whole, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False,
        drop_whitespace=True,
    )  # fmt: skip
    return [Styled(piece, line.style) if isinstance(line, Styled) else piece for piece in pieces]


def _width(content: str) -> int:
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in content)
