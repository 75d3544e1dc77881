"""Keeps the store within its age and size limits: deletes the oldest rows, a few thousand at a time.

To meet the size limit, the oldest period is deleted from all tables together. Tables with few rows (writes,
events) therefore reach back as far as large ones, and too many samples never displace new rows of small tables.
The same holds after the clock was set back: no table loses more than its share of rows.
"""

from __future__ import annotations

import math
import sqlite3
from typing import Final

from perphd.monitor.schema import TABLES

CHUNK_ROWS: Final = 2000
"""Rows deleted per transaction, few enough that readers and the writer never wait long."""
VACUUM_PAGES: Final = 2000
"""Free pages returned to the file system per call."""
MAX_CHUNKS: Final = 25
"""Maximum number of chunks per call; a store far beyond its limit shrinks over several calls."""


def trim(connection: sqlite3.Connection, oldest_s: float, max_bytes: int) -> int:
    """Delete rows from before ``oldest_s`` (wall clock), then the oldest rows until the data fit
    ``max_bytes``.

    Returns:
        Number of rows deleted.

    Raises:
        sqlite3.Error: the database cannot be read or written.
    """
    deleted = 0
    for _ in range(MAX_CHUNKS):
        table, first_s = _oldest_table(connection)
        if table is None:
            break
        if first_s < oldest_s:
            deleted += _delete_oldest(connection, table, oldest_s)
        elif _used_bytes(connection) > max_bytes:
            deleted += _delete_stretch(connection)
        else:
            break
    over = _pragma(connection, "page_count") - max_bytes // _pragma(connection, "page_size")
    if over > 0:
        # The file itself is too large: return free pages. Otherwise they are kept for future rows.
        connection.executescript(f"PRAGMA incremental_vacuum({min(over, VACUUM_PAGES)})")
    return deleted


def _oldest_table(connection: sqlite3.Connection) -> tuple[str | None, float]:
    oldest: tuple[str | None, float] = (None, float("inf"))
    for table in TABLES:
        row = connection.execute(f"SELECT wall_s FROM {table} ORDER BY rowid LIMIT 1").fetchone()
        if row is not None and float(row[0]) < oldest[1]:
            oldest = (table, float(row[0]))
    return oldest


def _delete_stretch(connection: sqlite3.Connection) -> int:
    """Delete the first rows of the longest table, and the other tables' rows of the same period.

    At most ``CHUNK_ROWS`` rows of the longest table are deleted. No other table loses a larger share.
    """
    ids = {table: row_ids(connection, table) for table in TABLES}
    rows = {table: last - first + 1 for table, (first, last) in ids.items()}
    longest = max(TABLES, key=lambda table: rows[table])
    count = min(CHUNK_ROWS, max(1, rows[longest] // 4))
    end = connection.execute(f"SELECT wall_s FROM {longest} ORDER BY rowid LIMIT 1 OFFSET {count}").fetchone()
    deleted = _delete_oldest(connection, longest, math.inf, count)
    if end is None:
        return deleted
    for table in TABLES:
        if table != longest and rows[table]:
            share = math.ceil(rows[table] * count / rows[longest])
            deleted += _delete_oldest(connection, table, float(end[0]), share)
    return deleted


def row_ids(connection: sqlite3.Connection, table: str) -> tuple[int, int]:
    """The first and last row id of a table; (1, 0) if it is empty. Rows are deleted only at the beginning."""
    first, last = connection.execute(
        f"SELECT (SELECT rowid FROM {table} ORDER BY rowid LIMIT 1),"
        f" (SELECT rowid FROM {table} ORDER BY rowid DESC LIMIT 1)"
    ).fetchone()
    return (1, 0) if first is None else (int(first), int(last))


def _delete_oldest(
    connection: sqlite3.Connection, table: str, before_s: float, rows: int = CHUNK_ROWS
) -> int:
    last = connection.execute(
        f"SELECT max(rowid) FROM (SELECT rowid FROM {table} ORDER BY rowid LIMIT {rows})"
    ).fetchone()[0]
    return connection.execute(
        f"DELETE FROM {table} WHERE rowid <= ? AND wall_s < ?", (last, before_s)
    ).rowcount


def _used_bytes(connection: sqlite3.Connection) -> int:
    pages = _pragma(connection, "page_count") - _pragma(connection, "freelist_count")
    return pages * _pragma(connection, "page_size")


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])
