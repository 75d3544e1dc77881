"""Rows of a published table as records: cells by position or header, bounds of numbers, order of time, bad rows."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final

from perphd.domain.reading import NOT_MEASURED, Reading
from perphd.domain.trace import TraceRecord
from tools.traces.sources import Line, TraceError, TraceFile, trace_files

MOST: Final = 1e18
"""Largest accepted quantity: 1e18 bytes are an exabyte, 1e18 microseconds 30 000 years."""
MOST_TIME_S: Final = 1e10
MOST_NAME: Final = 1024
MOST_BAD: Final = 100
DISORDER_S: Final = 7200.0
"""Seconds by which rows of an ordered table may be older than earlier rows, because an hour's file may be unsorted."""
_SHOWN: Final = 20


class BadRow(ValueError):
    """A row that cannot be used; rows with the same fault have the same text."""


class Row:
    """Cells by column. ``line``: its number in the file."""

    __slots__ = ("_cells", "line")

    def __init__(self, cells: Mapping[str, str], line: int) -> None:
        self._cells, self.line = cells, line

    def text(self, column: str) -> str:
        """The cell; empty if it is missing."""
        return self._cells.get(column, "")

    def name(self, column: str) -> str:
        """A cell that must not be empty."""
        if not (found := self.text(column)):
            raise BadRow(f"{column} is empty")
        return found

    def number(
        self, column: str, scale: float = 1.0, absent: Sequence[float] = (), most: float = MOST
    ) -> Reading:
        """The cell times ``scale``; unavailable if it is empty or one of ``absent``. It is not negative."""
        if not (cell := self.text(column)):
            return NOT_MEASURED
        value = self._float(column, cell)
        if value in absent:
            return NOT_MEASURED
        if not 0 <= value <= most:
            raise BadRow(f"{column} is out of bounds (allowed: 0 to {most:g})")
        return value * scale

    def time_s(self, column: str, scale: float = 1.0) -> float:
        """A required time, in seconds."""
        value = self._float(column, self.name(column)) * scale
        if abs(value) > MOST_TIME_S:
            raise BadRow(f"{column} is no time of a trace")
        return value

    def _float(self, column: str, cell: str) -> float:
        try:
            value = float(cell)
        except ValueError:
            raise BadRow(f"{column} is not a number") from None
        if not math.isfinite(value):
            raise BadRow(f"{column} is not a finite number")
        return value


@dataclass(frozen=True, slots=True)
class Table:
    """A published table.

    ``files``: a regular expression that the path of its files contains; ``least``: columns that every row has;
    ``time``: the column of time if rows are ordered by it, ``scale`` converts it to seconds, ``within``: the column
    within whose equal values rows are ordered.
    """

    name: str
    files: str
    columns: tuple[str, ...]
    parse: Callable[[Row], Iterable[TraceRecord]]
    least: int = 0
    time: str = ""
    scale: float = 1.0
    within: str = ""


@dataclass(frozen=True, slots=True)
class Format:
    """A published format: a fresh object for every import, since tables may keep state from earlier rows."""

    name: str
    tables: tuple[Table, ...]
    cpu_unit: str
    memory_unit: str


@dataclass(slots=True)
class Tally:
    """Counts of rows. ``bad``: numbers by fault; ``first``: the first place of each fault."""

    most_bad: int = MOST_BAD
    rows: dict[str, int] = field(default_factory=dict)
    bad: dict[str, int] = field(default_factory=dict)
    first: dict[str, str] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)
    facts: Mapping[str, str] = field(default_factory=dict)

    def refuse(self, fault: str, where: str) -> None:
        """Count a bad row.

        Raises:
            TraceError: there are too many.
        """
        self.bad[fault] = self.bad.get(fault, 0) + 1
        self.first.setdefault(fault, where)
        if sum(self.bad.values()) > self.most_bad:
            raise TraceError(f"more than {self.most_bad} bad rows: {self.faults()}; nothing was imported")

    def faults(self) -> str:
        """All faults in one sentence."""
        each = (f"{count} x {fault} (first: {self.first[fault]})" for fault, count in self.bad.items())
        return "; ".join(sorted(each)[:_SHOWN])


def read_trace(
    form: Format, paths: Sequence[Path], tally: Tally, disorder_s: float = DISORDER_S
) -> Iterator[TraceRecord]:
    """The records of all files, one after the other.

    Raises:
        TraceError: there is no table of this format, a file is damaged, too many rows are bad, or most of them.
    """
    for file in trace_files(paths):
        table = _table_of(form, file.name)
        if table is None:
            tally.unread = [*tally.unread, file.name][:_SHOWN]
            continue
        tally.facts = {**tally.facts, **file.facts}
        before = sum(tally.bad.values())
        good = 0
        for records in _records(table, file, tally, disorder_s):
            good += 1
            yield from records
        tally.rows[table.name] = tally.rows.get(table.name, 0) + good
        if (bad := sum(tally.bad.values()) - before) > good:
            raise TraceError(
                f"{file.name}: {bad} of {good + bad} rows are bad, is it {form.name}? {tally.faults()}; "
                "nothing was imported"
            )
    if not tally.rows:
        names = ", ".join(each.name for each in form.tables)
        raise TraceError(
            f"no file of the tables of {form.name} ({names}) was found; found instead: {tally.unread[:5]}"
        )


def _table_of(form: Format, name: str) -> Table | None:
    plain = PurePosixPath(name.removesuffix(".gz").removesuffix(".xz"))
    if plain.suffix not in ("", ".csv", ".json", ".jsonl", ".txt"):
        return None
    return next((each for each in form.tables if re.search(each.files, name)), None)


def _records(table: Table, file: TraceFile, tally: Tally, disorder_s: float) -> Iterator[list[TraceRecord]]:
    columns: Sequence[str] | None = None
    newest: tuple[str, float, int] | None = None
    for line in file.lines:
        try:
            cells, columns, is_header = _cells(table, line, columns)
            if is_header:
                continue
            row = Row(cells, line.number)
            if table.time:
                newest = _in_order(table, row, newest, disorder_s)
            records = list(table.parse(row))
        except BadRow as exc:
            if not line.whole:
                raise TraceError(
                    f"{file.name}: is truncated: line {line.number} ends in the middle of a row ({exc})"
                ) from exc
            tally.refuse(str(exc), f"{file.name} line {line.number}")
            continue
        yield records


def _cells(
    table: Table, line: Line, columns: Sequence[str] | None
) -> tuple[dict[str, str], Sequence[str], bool]:
    if line.text is None:
        raise BadRow("the line is too long")
    if b"\0" in line.text:
        raise BadRow("the line has NUL bytes")
    try:
        text = line.text.decode()
    except UnicodeDecodeError:
        raise BadRow("the line is not UTF-8") from None
    if text.startswith("{"):
        return _flat(text), columns or table.columns, False
    try:
        cells = next(csv.reader([text], strict=True), []) if '"' in text else text.split(",")
    except csv.Error:
        raise BadRow("the line is no CSV") from None
    if columns is None:
        heading = [cell.strip().replace(".", "_") for cell in cells]
        if {*table.columns[:2]} <= {*heading}:
            return {}, heading, True
        columns = table.columns
    if not (table.least or len(table.columns)) <= len(cells) <= len(columns) and len(cells) != len(columns):
        raise BadRow(f"the row has not {len(columns)} columns")
    if any(len(cell) > MOST_NAME for cell in cells):
        raise BadRow("a cell is too long")
    return dict(zip(columns, map(str.strip, cells), strict=False)), columns, False


def _flat(text: str) -> dict[str, str]:
    """A JSON object as cells; nested values are named OUTER_INNER."""

    def constant(name: str) -> Any:
        raise BadRow(f"{name} is not a finite number")

    try:
        found = json.loads(text, parse_constant=constant)
    except BadRow:
        raise
    except (ValueError, RecursionError):
        raise BadRow("the line is no JSON") from None
    cells: dict[str, str] = {}
    for key, value in found.items():
        inner = value.items() if isinstance(value, dict) else [("", value)]
        for name, cell in inner:
            if isinstance(cell, str | int | float):
                cells[f"{key}_{name}" if name else key] = str(cell)
    if any(len(cell) > MOST_NAME for cell in cells.values()):
        raise BadRow("a cell is too long")
    return cells


def _in_order(
    table: Table, row: Row, newest: tuple[str, float, int] | None, disorder_s: float
) -> tuple[str, float, int]:
    at_s = row.time_s(table.time, table.scale)
    key = row.text(table.within) if table.within else ""
    if newest is None or newest[0] != key or at_s >= newest[1]:
        return key, at_s, row.line
    if at_s < newest[1] - disorder_s:
        raise BadRow(f"{table.name} goes back in time by more than {disorder_s:g} s")
    return newest
