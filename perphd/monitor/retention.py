"""Keeping the store within its age and its size: the oldest rows go, a few thousand at a time.

For its size the oldest stretch of time goes from all tables together: rows of which there are few (writes, events)
reach back as far as the many, and the newest of them are never the price of too many samples. Nor are they where the
clock was set back, and times say nothing of age: no table loses more than its share of rows.
"""

from __future__ import annotations

import math
import sqlite3
from typing import Final

from perphd.monitor.schema import TABLES

CHUNK_ROWS: Final = 2000
"""Rows deleted in one transaction: readers and the writer never wait long."""
VACUUM_PAGES: Final = 2000
"""Free pages given back to the file system in one call."""
MAX_CHUNKS: Final = 25
"""Chunks in one call: a store that is far too big shrinks over several."""


def trim(connection: sqlite3.Connection, oldest_s: float, max_bytes: int) -> int:
    """Delete rows from before ``oldest_s`` (wall clock), then the oldest of all until the data fit ``max_bytes``.

    Returns:
        Rows deleted. Raises sqlite3.Error.
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
        # The file itself is too long: give free pages back. Otherwise they are kept for the rows to come.
        # It takes a step per page, and execute() makes only one of a statement without columns.
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
    """The first rows of the longest table, at most ``CHUNK_ROWS``, and what the others have from that time.

    Of these no larger a part than of the longest.
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
    """The first and the last row id of a table; 1 and 0: it has no rows. Rows go at the beginning only."""
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
