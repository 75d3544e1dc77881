"""Whole tables of the store as CSV or Parquet, streamed: a month of samples does not pass through memory at once."""

from __future__ import annotations

import csv
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from perphd.domain.extras import how_to_get
from perphd.monitor.query import Cell, QueryError, open_read_only
from perphd.monitor.schema import TABLES

FORMATS: Final = ("csv", "parquet")
_BATCH_ROWS: Final = 5000


def export(db_path: str | Path, table: str, out_path: str | Path, fmt: str) -> int:
    """Write one table to a file, as of one moment; the file appears under its name only when it is whole.

    Missing readings are empty fields (CSV) or nulls (Parquet).

    Args:
        db_path: the store's file.
        table: one of ``schema.TABLES``.
        out_path: replaced if it exists.
        fmt: ``csv`` or ``parquet``.

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
        rows = _write_csv(part, types, batches) if fmt == "csv" else _write_parquet(part, types, batches)
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


def _write_parquet(path: str, types: dict[str, str], batches: Iterator[Sequence[tuple[Cell, ...]]]) -> int:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as exc:
        raise QueryError(
            f"Parquet needs the package pyarrow, CSV does not; how to get it: {how_to_get('export')}"
        ) from exc
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
