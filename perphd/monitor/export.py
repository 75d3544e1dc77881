"""Whole tables of the store as CSV, JSON lines or Parquet, streamed: a month of samples never is in memory at once."""

from __future__ import annotations

import csv
import importlib
import json
import os
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from perphd.domain.extras import EXTRA_FOLDER, how_to_get_beside
from perphd.monitor.query import Cell, QueryError, open_read_only
from perphd.monitor.schema import TABLES

FORMATS: Final = ("csv", "jsonl", "parquet")
_BATCH_ROWS: Final = 5000


def export(db_path: str | Path, table: str, out_path: str | Path, fmt: str) -> int:
    """Write one table to a file, as of one moment; the file appears under its name only when it is whole.

    Missing readings are empty fields (CSV) or nulls (JSON lines, Parquet).

    Args:
        db_path: the store's file.
        table: one of ``schema.TABLES``.
        out_path: replaced if it exists.
        fmt: ``csv``, ``jsonl`` (a JSON object a line) or ``parquet``.

    Returns:
        Rows written.

    Raises:
        QueryError: unknown table or format, no store, pyarrow is not installed, the file cannot be written.
    """
    if table not in TABLES:
        raise QueryError(f"{table!r} is not a table of the store (allowed: {', '.join(TABLES)})")
    if fmt not in FORMATS:
        raise QueryError(f"{fmt!r} is not an export format (allowed: {', '.join(FORMATS)})")
    part = f"{out_path}.part"
    connection = open_read_only(db_path)
    try:
        # One SELECT is one snapshot, whatever the daemon writes meanwhile.
        types = {str(row[1]): str(row[2]) for row in connection.execute(f"PRAGMA table_info({table})")}
        batches = _batches(connection.execute(f"SELECT * FROM {table} ORDER BY rowid"))
        rows = _WRITERS[fmt](part, types, batches)
        os.replace(part, out_path)
    except sqlite3.Error as exc:
        raise QueryError(f"{db_path}: {exc}") from exc
    except OSError as exc:
        raise QueryError(f"{out_path}: cannot be written: {exc.strerror or exc}") from exc
    finally:
        connection.close()
        Path(part).unlink(missing_ok=True)
    return rows


def _batches(cursor: sqlite3.Cursor) -> Iterator[Sequence[tuple[Cell, ...]]]:
    while batch := cursor.fetchmany(_BATCH_ROWS):
        yield batch


def _write_csv(path: str, types: dict[str, str], batches: Iterator[Sequence[tuple[Cell, ...]]]) -> int:
    count = 0
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(types)
        for batch in batches:
            writer.writerows(batch)
            count += len(batch)
    return count


def _write_jsonl(path: str, types: dict[str, str], batches: Iterator[Sequence[tuple[Cell, ...]]]) -> int:
    count = 0
    with open(path, "w", encoding="utf-8") as file:
        for batch in batches:
            for row in batch:
                file.write(json.dumps(dict(zip(types, row, strict=True)), separators=(",", ":")) + "\n")
            count += len(batch)
    return count


def _write_parquet(path: str, types: dict[str, str], batches: Iterator[Sequence[tuple[Cell, ...]]]) -> int:
    pa, pq = _pyarrow()
    kinds = {"REAL": pa.float64(), "INTEGER": pa.int64(), "TEXT": pa.string()}
    schema = pa.schema([(name, kinds[kind]) for name, kind in types.items()])
    count = 0
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for batch in batches:
            columns = [
                pa.array(column, kind)
                for column, kind in zip(zip(*batch, strict=True), schema.types, strict=True)
            ]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))
            count += len(batch)
    return count


def _pyarrow() -> tuple[Any, Any]:
    """The modules, from the installation or from ``EXTRA_FOLDER``."""
    if EXTRA_FOLDER not in sys.path:
        sys.path.append(EXTRA_FOLDER)
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError as exc:
        raise QueryError(
            "Parquet needs the Python package pyarrow, which is not installed; csv and jsonl need nothing. "
            f"To get it: {how_to_get_beside('pyarrow', 'export', __file__)}"
        ) from exc


_WRITERS: Final = {"csv": _write_csv, "jsonl": _write_jsonl, "parquet": _write_parquet}
