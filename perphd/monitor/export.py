"""Exports whole store tables as CSV, JSON lines or Parquet, streamed in batches to bound memory."""

from __future__ import annotations

import csv
import io
import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol, TypeAlias, cast

from perphd.dataset.attempt import PART_BYTES, Attempt, PartFile
from perphd.dataset.manifest import DatasetError
from perphd.dataset.stores import pyarrow
from perphd.monitor.query import Cell, QueryError, open_read_only
from perphd.monitor.schema import TABLES

FORMATS: Final = ("csv", "jsonl", "parquet")
_BATCH_ROWS: Final = 5000
Rows: TypeAlias = Sequence[tuple[Cell, ...]]


def export(db_path: str | Path, table: str, out_path: str | Path, fmt: str) -> int:
    """Write one table to a file, as of one moment; the file appears only when it is complete.

    Missing readings are empty fields (CSV) or nulls (JSON lines, Parquet).

    Args:
        db_path: the store's file.
        table: one of ``schema.TABLES``.
        out_path: the file to write; an existing file is replaced.
        fmt: ``csv``, ``jsonl`` (one JSON object per line) or ``parquet``.

    Returns:
        Number of rows written.

    Raises:
        QueryError: unknown table or format, no store, pyarrow is not installed, or the file cannot be
            written.
    """
    _check((table,), fmt)
    part = f"{out_path}.part"
    connection = open_read_only(db_path)
    rows = 0
    try:
        types, batches = _select(connection, table, None)
        with open(part, "wb") as file:
            writer = table_writer(fmt, file, types)
            for batch in batches:
                writer.write(batch)
                rows += len(batch)
            writer.close()
        os.replace(part, out_path)
    except sqlite3.Error as exc:
        raise QueryError(f"{db_path}: {exc}") from exc
    except OSError as exc:
        raise QueryError(f"{out_path}: cannot be written: {exc.strerror or exc}") from exc
    finally:
        connection.close()
        Path(part).unlink(missing_ok=True)
    return rows


def export_parts(
    db_path: str | Path,
    tables: Sequence[str],
    attempt: Attempt,
    fmt: str,
    window: tuple[float, float] | None = None,
    part_bytes: int = PART_BYTES,
) -> int:
    """Write tables as parts of a dataset, all as of one moment. A table without rows has no part.

    Args:
        db_path: the store's file.
        tables: names of ``schema.TABLES``.
        attempt: receives the parts; their source is the table's name.
        fmt: one of ``FORMATS``; each part is a complete file.
        window: start (inclusive) and end (exclusive) of the rows, in seconds since the epoch; None: all rows.
        part_bytes: size from which a table continues in another part.

    Returns:
        Number of rows written.

    Raises:
        QueryError: as for ``export``.
        DatasetError: the dataset's store refuses.
    """
    _check(tables, fmt)
    connection = open_read_only(db_path)
    count = 0
    try:
        connection.execute("BEGIN")
        for table in tables:
            types, batches = _select(connection, table, window)
            batch = next(batches, None)
            while batch is not None:
                following = _PartOfTable(fmt, types, batch, batches, part_bytes)
                count += attempt.add(table, f".{fmt}", following.write).rows or 0
                batch = following.left
    except sqlite3.Error as exc:
        raise QueryError(f"{db_path}: {exc}") from exc
    finally:
        connection.close()
    return count


class _PartOfTable:
    """One part of a table: as many batches as fit. ``left``: first batch of the next part, None at the end."""

    def __init__(
        self, fmt: str, types: dict[str, str], first: Rows, batches: Iterator[Rows], part_bytes: int
    ) -> None:
        self._fmt, self._types, self._batches, self._most = fmt, types, batches, part_bytes
        self.left: Rows | None = first

    def write(self, file: PartFile) -> int:
        rows = 0
        out = cast("BinaryIO", file)
        writer = table_writer(self._fmt, out, self._types)
        while self.left is not None and (rows == 0 or file.bytes_written < self._most):
            writer.write(self.left)
            rows += len(self.left)
            self.left = next(self._batches, None)
        writer.close()
        return rows


def _check(tables: Sequence[str], fmt: str) -> None:
    for table in tables:
        if table not in TABLES:
            raise QueryError(f"{table!r} is not a table of the store (allowed: {', '.join(TABLES)})")
    if fmt not in FORMATS:
        raise QueryError(f"{fmt!r} is not an export format (allowed: {', '.join(FORMATS)})")


def _select(
    connection: sqlite3.Connection, table: str, window: tuple[float, float] | None
) -> tuple[dict[str, str], Iterator[Rows]]:
    """Columns with their types, and the rows in batches.

    The rows are a snapshot, which later writes do not affect.
    """
    types = {str(row[1]): str(row[2]) for row in connection.execute(f"PRAGMA table_info({table})")}
    where = "" if window is None else " WHERE wall_s >= ? AND wall_s < ?"
    cursor = connection.execute(f"SELECT * FROM {table}{where} ORDER BY rowid", window or ())
    return types, iter(lambda: cursor.fetchmany(_BATCH_ROWS) or None, None)


class TableWriter(Protocol):
    """A table that is being written to a file."""

    def write(self, batch: Rows) -> None:
        """Append these rows."""

    def close(self) -> None:
        """Write buffered data; the underlying file stays open."""


def table_writer(fmt: str, file: BinaryIO, types: dict[str, str]) -> TableWriter:
    """A writer of one of ``FORMATS``. ``types``: SQL type of each column."""
    return _WRITERS[fmt](file, types)


class _Csv:
    def __init__(self, file: BinaryIO, types: dict[str, str]) -> None:
        self._text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=False)
        self._writer = csv.writer(self._text)
        self._writer.writerow(types)

    def write(self, batch: Rows) -> None:
        self._writer.writerows(batch)

    def close(self) -> None:
        self._text.flush()
        self._text.detach()


class _JsonLines:
    def __init__(self, file: BinaryIO, types: dict[str, str]) -> None:
        self._file, self._types = file, types

    def write(self, batch: Rows) -> None:
        lines = (
            json.dumps(dict(zip(self._types, row, strict=True)), separators=(",", ":")) + "\n"
            for row in batch
        )
        self._file.write("".join(lines).encode())

    def close(self) -> None:
        """Nothing is buffered."""


class _Parquet:
    def __init__(self, file: BinaryIO, types: dict[str, str]) -> None:
        try:
            instead = "; csv and jsonl work without it"
            self._pa, parquet = pyarrow("", "Parquet", instead), pyarrow("parquet", "Parquet", instead)
        except DatasetError as exc:
            raise QueryError(str(exc)) from exc
        kinds = {"REAL": self._pa.float64(), "INTEGER": self._pa.int64(), "TEXT": self._pa.string()}
        self._schema = self._pa.schema([(name, kinds[kind]) for name, kind in types.items()])
        self._writer: Any = parquet.ParquetWriter(file, self._schema, compression="zstd")

    def write(self, batch: Rows) -> None:
        columns = [
            self._pa.array(column, kind)
            for column, kind in zip(zip(*batch, strict=True), self._schema.types, strict=True)
        ]
        self._writer.write_table(self._pa.Table.from_arrays(columns, schema=self._schema))

    def close(self) -> None:
        self._writer.close()


_WRITERS: Final[dict[str, type[_Csv | _JsonLines | _Parquet]]] = {
    "csv": _Csv,
    "jsonl": _JsonLines,
    "parquet": _Parquet,
}
