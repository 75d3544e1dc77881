"""The rows of ``perphctl top``: selection, order, and the columns that fit. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from perphd.commands.render_status import BATCH_HEADS, LRA_HEADS
from perphd.commands.view import BatchView, LraView, View
from perphd.control.table import Cell

ORDERS: Final = ("configured", "attention", "name", "use")
"""Orders: as configured; worst first; by name; highest CPU use first."""
SPANS: Final[Mapping[str, float]] = {
    "15m": 900.0,
    "1h": 3600.0,
    "6h": 21600.0,
    "24h": 86400.0,
    "7d": 604800.0,
}
"""Lengths of the history in seconds."""
LRA_DROPPED: Final = ("USES", "MAX", "TARGET", "DELAY", "RATE")
BATCH_DROPPED: Final = ("MEMORY", "WANTED", "GIVEN")
"""Columns that are dropped in this order if a terminal is too narrow."""
LEAST_HISTORY: Final = 16
MOST_HISTORY: Final = 120
_GAP: Final = 2
"""Spaces between two columns."""
Row = TypeVar("Row", LraView, BatchView)


@dataclass(frozen=True, slots=True)
class VisibleColumns:
    """The visible columns: indices of the row's cells, and the width left for the history."""

    places: tuple[int, ...]
    history: int


def ordered(view: View, order: str, wanted: str) -> tuple[tuple[LraView, ...], tuple[BatchView, ...]]:
    """The rows whose name contains ``wanted``, in this order."""
    uses = LRA_HEADS.index("USES")
    lras = _sorted(view.lras, order, lambda row: _cores(row.cells[uses]))
    batch = _sorted(view.batch, order, lambda row: row.given_cores or 0.0)
    needle = wanted.casefold()
    return (
        tuple(row for row in lras if needle in row.name.casefold()),
        tuple(row for row in batch if needle in row.name.casefold()),
    )


def lra_columns(rows: Sequence[LraView], width: int) -> VisibleColumns:
    """The columns of LRAs that fit; the history has at least ``LEAST_HISTORY`` columns."""
    return _columns(LRA_HEADS, [row.cells for row in rows], LRA_DROPPED, width, LEAST_HISTORY)


def batch_columns(rows: Sequence[BatchView], width: int) -> VisibleColumns:
    """The columns of batch that fit."""
    return _columns(BATCH_HEADS, [row.cells for row in rows], BATCH_DROPPED, width, 0)


def _columns(
    heads: Sequence[str], rows: Sequence[Sequence[Cell]], dropped: Sequence[str], width: int, least: int
) -> VisibleColumns:
    places = list(range(len(heads)))
    widths = [max([len(heads[n]), *(len(str(row[n])) for row in rows)]) + _GAP for n in places]
    left = 0
    for head in (None, *dropped):
        places = [n for n in places if heads[n] != head]
        left = width - sum(widths[n] for n in places) - _GAP
        if left >= least:
            break
    return VisibleColumns(tuple(places), max(0, min(MOST_HISTORY, left)) if least else 0)


def _sorted(rows: Sequence[Row], order: str, use: Callable[[Row], float]) -> list[Row]:
    match order:
        case "attention":
            return sorted(rows, key=lambda row: -row.severity)
        case "name":
            return sorted(rows, key=lambda row: row.name)
        case "use":
            return sorted(rows, key=lambda row: -use(row))
    return list(rows)


def _cores(cell: Cell) -> float:
    try:
        return float(str(cell))
    except ValueError:
        return 0.0
