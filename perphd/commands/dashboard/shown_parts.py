"""Parts of an answer (tables and lines for a terminal) as JSON for the page. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from perphd.control.table import Cell, Part, Styled, Table, clean

TONES: Final = {
    "green": "good",
    "bold green": "good",
    "cyan": "ample",
    "yellow": "warn",
    "bold yellow": "warn",
    "bold red": "bad",
    "red": "bad",
    "dim": "dim",
    "bold": "strong",
}
"""The page's CSS class for each style of a terminal."""


def shown(parts: Iterable[Part], caption: str = "") -> list[dict[str, Any]]:
    """The parts in order. ``caption``: title of the tables that have none."""
    return [_table(part, caption) if isinstance(part, Table) else _lines(part.lines) for part in parts]


def cell(content: Cell) -> dict[str, str]:
    """Text with its tone, which is empty for plain text."""
    tone = TONES.get(content.style, "") if isinstance(content, Styled) else ""
    return {"text": clean(str(content)), "tone": tone}


def _lines(lines: Sequence[Cell]) -> dict[str, Any]:
    return {"kind": "lines", "lines": [cell(line) for line in lines]}


def _table(part: Table, caption: str) -> dict[str, Any]:
    return {
        "kind": "table",
        "caption": clean(part.title) or caption,
        "columns": [clean(column.strip()) for column in part.columns],
        "right": sorted(part.right),
        "rows": [[cell(item) for item in row] for row in part.rows],
    }
