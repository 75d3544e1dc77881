"""Defines the store's tables, and opens a database file that has them.

``user_version`` of the file is SCHEMA_VERSION. A new reading in ``Sample`` only adds a column. This needs no new
version, nor does a new table. Any other change needs one.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Final

from perphd.domain.errors import PerphError
from perphd.domain.sample import READINGS

SCHEMA_VERSION: Final = 1

TABLES: Final = ("samples", "decisions", "outcomes", "writes", "events", "host")
"""Tables of time series: each has ``wall_s`` (seconds since the epoch) and is in order of time."""

_HOST: Final = """
CREATE TABLE IF NOT EXISTS host (
    wall_s REAL NOT NULL, at_s REAL NOT NULL, interval_s REAL NOT NULL,
    capacity REAL NOT NULL, lras REAL NOT NULL, batch REAL NOT NULL, undeclared REAL NOT NULL,  -- CPUs
    kernel REAL NOT NULL, steal REAL NOT NULL, idle REAL NOT NULL,
    cpu_some_pct REAL, memory_some_pct REAL, memory_full_pct REAL, io_some_pct REAL,
    memory_total_bytes REAL, memory_available_bytes REAL, disk_bytes_per_s REAL, network_bytes_per_s REAL,
    groups TEXT NOT NULL    -- JSON: {undeclared group: CPUs}
);
"""
_DDL: Final = f"""
CREATE TABLE samples (
    wall_s REAL NOT NULL, at_s REAL NOT NULL, interval_s REAL NOT NULL, workload TEXT NOT NULL,
    quality TEXT NOT NULL,  -- flags, separated by commas
    reasons TEXT,           -- JSON: why readings are missing; only in rows where that changed
    domains TEXT,           -- JSON: [[cache domain, llc_occupancy_bytes, mbw_bytes_per_s], ...], as far as measured
    {", ".join(f"{name} REAL" for name in READINGS)}
);
CREATE INDEX samples_by_workload ON samples (workload, wall_s);
CREATE TABLE decisions (
    wall_s REAL NOT NULL, at_s REAL NOT NULL, workload TEXT NOT NULL, action TEXT NOT NULL, health TEXT NOT NULL,
    cause TEXT NOT NULL, target_work REAL, target_delay REAL, reason TEXT NOT NULL, policy TEXT NOT NULL,
    record TEXT NOT NULL,   -- JSON: the whole decision
    mode TEXT               -- of the LRA when it was decided: observe or enforce
);
CREATE INDEX decisions_by_workload ON decisions (workload, wall_s);
CREATE TABLE outcomes (
    wall_s REAL NOT NULL, at_s REAL NOT NULL, workload TEXT NOT NULL, decided_at_s REAL NOT NULL,
    score_before REAL, score_after REAL, kept INTEGER NOT NULL, text TEXT NOT NULL, record TEXT NOT NULL
);
CREATE TABLE writes (
    wall_s REAL NOT NULL, workload TEXT NOT NULL, knob TEXT NOT NULL, path TEXT NOT NULL, stage TEXT NOT NULL,
    before TEXT NOT NULL, value TEXT NOT NULL, result TEXT NOT NULL
);
CREATE TABLE events (wall_s REAL NOT NULL, kind TEXT NOT NULL, data TEXT NOT NULL);
{_HOST}
PRAGMA user_version = {SCHEMA_VERSION};
"""


class StoreRefused(PerphError):
    """The file is a sound database, but this version must not write to it."""


def open_database(path: Path) -> sqlite3.Connection:
    """Open a database file for writing; create it if it is missing. Use the connection only in the calling thread.

    Raises:
        StoreRefused: the file has another schema, or belongs to another program.
        sqlite3.Error: it cannot be opened, or is damaged.
        OSError: its directory cannot be made.
    """
    path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    # The file is created first with a restrictive mode, because the activity of applications is private.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640))
    connection = sqlite3.connect(path, timeout=2.0, isolation_level=None)
    try:
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        tables = {
            str(row[0]) for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        }
        if version == 0 and not tables:
            _create(connection)
        elif version != SCHEMA_VERSION:
            raise StoreRefused(_refusal(path, version))
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA journal_size_limit = {8 << 20}")
        _add_new_columns(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _create(connection: sqlite3.Connection) -> None:
    connection.execute(
        "PRAGMA auto_vacuum = INCREMENTAL"
    )  # takes effect only before the first table is created
    connection.executescript(f"BEGIN IMMEDIATE; {_DDL} COMMIT;")


def _add_new_columns(connection: sqlite3.Connection) -> None:
    added = {"domains": "TEXT"} | dict.fromkeys(READINGS, "REAL")
    present = {str(row[1]) for row in connection.execute("PRAGMA table_info(samples)")}
    for name, kind in added.items():
        if name not in present:
            connection.execute(f"ALTER TABLE samples ADD COLUMN {name} {kind}")
    connection.execute(_HOST)
    if "mode" not in {str(row[1]) for row in connection.execute("PRAGMA table_info(decisions)")}:
        connection.execute("ALTER TABLE decisions ADD COLUMN mode TEXT")


def _refusal(path: Path, version: int) -> str:
    if version > SCHEMA_VERSION:
        why = f"has schema {version}, written by a newer perphd; this one supports schema {SCHEMA_VERSION}"
    elif version == 0:
        why = "is the database of another program"
    else:
        why = f"has the old schema {version}, which this perphd cannot convert (it writes schema {SCHEMA_VERSION})"
    return f"{path} {why}: nothing is stored; move the file away, or name another one in the configuration"
