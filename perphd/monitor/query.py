"""Answers ad-hoc SQL queries of people on the store: read-only, bounded in time and in the size of the answer."""

from __future__ import annotations

import math
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import quote

from perphd.domain.errors import PerphError
from perphd.domain.units import format_bytes

Cell: TypeAlias = str | float | int | bytes | None

MAX_CELL_BYTES: Final = 1 << 20
MAX_ANSWER_BYTES: Final = 16 << 20
"""Estimated size at which an answer is cut, to protect the daemon's memory."""
_CELL_BYTES: Final = 48
"""Bytes that a cell takes beyond its characters, while the answer is built and encoded as JSON."""
_STEPS_BETWEEN_CHECKS: Final = 1000
"""Number of SQLite steps between two checks of temporary files. A query writes up to some 100 MB meanwhile."""
_CHECKS_OF_TIME: Final = 4
"""Number of these checks per check of the time. They mostly take less than 0.1 ms, longer on long texts."""
_WRITTEN: Final = "/proc/thread-self/io"
MAX_PATTERN: Final = 200
"""Maximum length in bytes of LIKE and GLOB patterns, whose comparison is one step that cannot be interrupted."""

_READING: Final = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
)
_READ_PRAGMAS: Final = frozenset({"table_info", "table_xinfo", "table_list", "index_list", "index_info"})


class QueryError(PerphError):
    """The query cannot be answered; the text states the reason."""


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The answer. ``truncated``: it was cut at ``limit`` rows or at the maximum size."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    truncated: bool


def open_read_only(path: str | Path) -> sqlite3.Connection:
    """Open the store's database for reading, also while the daemon writes to it.

    Raises:
        QueryError: there is no such database, or it cannot be read.
    """
    if not Path(path).is_file():
        raise QueryError(
            f"{path}: there is no store; check that the daemon has run and that its store is enabled"
        )
    connection = sqlite3.connect(
        f"file:{quote(str(path))}?mode=ro",
        uri=True,
        timeout=2.0,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        connection.execute("PRAGMA query_only = ON")
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.Error as exc:
        connection.close()
        raise QueryError(f"{path}: {exc}") from exc
    return connection


def run_query(
    db_path: str | Path,
    sql: str,
    limit: int = 1000,
    timeout_s: float = 10.0,
    stop: Callable[[], str] = lambda: "",
) -> QueryResult:
    """Answer one SELECT (or table_info pragma). It blocks: call it in a thread.

    Args:
        db_path: the store's file.
        sql: one statement.
        limit: maximum number of rows.
        timeout_s: maximum duration of the query.
        stop: called repeatedly; returns a reason to abort the query, or an empty text.

    Raises:
        QueryError: there is no store, the SQL is invalid or does more than read, or the query was aborted.
    """
    if limit < 1 or timeout_s <= 0:
        raise QueryError(f"limit is {limit}, timeout {timeout_s:g} s; both must be above 0")
    with reading(db_path, timeout_s, stop) as connection:
        return fetch(connection, sql, limit)


class _Spilled:
    """Bytes that this thread has written since now. A query writes nothing but SQLite's temporary files.

    0 where the kernel does not count them.
    """

    def __init__(self) -> None:
        try:
            self._file = os.open(_WRITTEN, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._file = -1
        self._before = self._total()

    def size(self) -> int:
        """The number of bytes."""
        return self._total() - self._before

    def close(self) -> None:
        """Close the kernel's file."""
        if self._file >= 0:
            os.close(self._file)

    def _total(self) -> int:
        if self._file < 0:
            return 0
        return int(os.pread(self._file, 128, 0).split()[3])  # rchar: 1234, then wchar: 567


@contextmanager
def reading(
    db_path: str | Path,
    timeout_s: float = 10.0,
    stop: Callable[[], str] = lambda: "",
    most_spilled_bytes: float = math.inf,
) -> Iterator[sqlite3.Connection]:
    """A read-only connection to the store, bounded in time, for the calling thread.

    Arguments and errors are those of ``run_query``. ``most_spilled_bytes``: maximum size of SQLite's temporary files,
    in which it sorts and groups.
    """
    connection = open_read_only(db_path)
    spilled = _Spilled()
    checks = 0
    late = threading.Event()
    timer = threading.Timer(timeout_s, late.set)
    timer.daemon = True
    refused: list[str] = []
    given_up: list[str] = []

    def end() -> bool:
        nonlocal checks
        checks += 1
        if spilled.size() > most_spilled_bytes:
            given_up.append(
                f"the query needed more than {format_bytes(most_spilled_bytes)} of temporary files and was aborted; "
                "narrow it by workload and wall_s"
            )
        elif checks % _CHECKS_OF_TIME:
            return False
        elif late.is_set():
            given_up.append(
                f"the query exceeded its limit of {timeout_s:g} s and was aborted; narrow it by workload and wall_s"
            )
        elif why := stop():
            given_up.append(why)
        return bool(given_up)

    def authorize(
        action: int, first: str | None, second: str | None, database: str | None, inner: str | None
    ) -> int:
        if action in _READING and second != "load_extension":
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_PRAGMA and first in _READ_PRAGMAS:
            return sqlite3.SQLITE_OK
        refused.append(first or "")
        return sqlite3.SQLITE_DENY

    try:
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_CELL_BYTES)
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, MAX_PATTERN)
        connection.set_authorizer(authorize)
        connection.set_progress_handler(end, _STEPS_BETWEEN_CHECKS)
        timer.start()
        yield connection
    except (sqlite3.Error, sqlite3.Warning, ValueError) as exc:
        if given_up:
            raise QueryError(given_up[0]) from exc
        if refused:
            text = "the store can only be read: SELECT and PRAGMA table_info(...) are allowed"
            raise QueryError(text) from exc
        raise QueryError(f"the query cannot be run: {exc}") from exc
    finally:
        timer.cancel()
        connection.close()
        spilled.close()


def fetch(connection: sqlite3.Connection, sql: str, limit: int) -> QueryResult:
    """The answer to one statement, cut at ``limit`` rows."""
    cursor = connection.execute(sql)
    if cursor.description is None:
        raise QueryError("the query has no result: write one SELECT")
    columns = tuple(str(column[0]) for column in cursor.description)
    rows: list[tuple[Cell, ...]] = []
    size = 0
    for row in cursor:
        size += sum(_CELL_BYTES + (len(cell) if isinstance(cell, str | bytes) else 0) for cell in row)
        if len(rows) == limit or size > MAX_ANSWER_BYTES:
            return QueryResult(columns, tuple(rows), truncated=True)
        rows.append(row)
    return QueryResult(columns, tuple(rows), truncated=False)
