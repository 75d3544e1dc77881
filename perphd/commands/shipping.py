"""Commits the store's tables and the models as datasets, for ``perphctl export`` and ``perphd ship``."""

from __future__ import annotations

import datetime
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from perphd.dataset.attempt import attempt, read_manifest
from perphd.dataset.manifest import DatasetError, Manifest, NotCommitted
from perphd.dataset.stores import ObjectStore, inside, open_store
from perphd.domain.errors import PerphError
from perphd.domain.units import format_bytes
from perphd.monitor.export import export_parts
from perphd.monitor.query import open_read_only
from perphd.monitor.schema import TABLES

MODELS: Final = "models"
LATE_S: Final = 120.0
"""Seconds after its end from which a window counts as complete. The store's writer and a slow tick need far less."""
MOST_WINDOWS: Final = 2000
"""Maximum number of windows that one run ships; finding each costs one request.

If more are missing, only the newest are shipped. The next run stops its search at the newest committed window, so older
windows are never shipped.
"""


def contents(name: str) -> tuple[str, ...]:
    """The tables, and ``models``, that this name of ``perphctl export`` stands for.

    Raises:
        DatasetError: there is no such table.
    """
    if name == "all":
        return (*TABLES, MODELS)
    if name not in (*TABLES, MODELS):
        allowed = ", ".join((*TABLES, MODELS, "all"))
        raise DatasetError(f"{name!r} is not a table of the store (allowed: {allowed})")
    return (name,)


def commit(
    place: ObjectStore, store: str, what: Sequence[str], form: str, window: tuple[float, float] | None = None
) -> Manifest:
    """Write one dataset, which becomes readable only when it is complete.

    Args:
        place: the destination, which must not contain a committed dataset.
        store: the file of the time-series store; models are in ``models`` beside it.
        what: tables, and ``models``.
        form: format of the tables: csv, jsonl or parquet.
        window: rows from the first until before the second of these seconds since the epoch; None: all.

    Raises:
        DatasetError: it has been committed before, or the place refuses.
        QueryError: the store cannot be read.
    """
    if is_committed(place):
        raise DatasetError(f"{place}: holds a committed dataset; choose another name")
    facts = {"format": form}
    if window is not None:
        facts |= {"from_unix_s": f"{window[0]:.0f}", "until_unix_s": f"{window[1]:.0f}"}
    with attempt(place) as made:
        export_parts(store, [table for table in what if table != MODELS], made, form, window)
        if MODELS in what:
            folder = Path(store).parent / MODELS
            for path in sorted(
                each for each in folder.glob("**/*") if each.is_file() and not each.is_symlink()
            ):
                made.add_file(path, f"{MODELS}/{path.relative_to(folder)}")
        return made.commit(facts)


def is_committed(place: ObjectStore) -> bool:
    """True if a manifest exists. Raises DatasetError if that is unknown, or the manifest is damaged."""
    try:
        read_manifest(place)
    except NotCommitted:
        return False
    return True


def ship(to: str, store: str, host: str, every_s: float, form: str, now_s: float) -> Iterator[str]:
    """Commit the complete windows that are missing at the destination, oldest first. Yields a sentence for each.

    See ``MOST_WINDOWS`` for their maximum number. The models go with the newest window.

    Args:
        to: folder or URL below which each host has its own.
        store: the file of the time-series store.
        host: name of this host in ``to``.
        every_s: length of a window in seconds; windows begin at multiples of it since the epoch.
        form: format of the tables.
        now_s: seconds since the epoch.

    Raises:
        PerphError: see ``commit``; datasets committed before stay.
    """
    if not host or "/" in host or host in (".", ".."):
        raise PerphError(f"{host!r} cannot name a host in a path (allowed: a name without a slash)")

    def place(start_s: float) -> ObjectStore:
        begin = datetime.datetime.fromtimestamp(start_s, datetime.UTC)
        return open_store(inside(to, host, f"{begin:%Y%m%dT%H%M%SZ}"))

    missing = unshipped(now_s, oldest_s(store), every_s, lambda start_s: is_committed(place(start_s)))
    if not missing:
        yield "nothing to ship: all complete windows are committed"
    for start_s in missing:
        at = place(start_s)
        what = (*TABLES, MODELS) if start_s == missing[-1] else TABLES
        made = commit(at, store, what, form, (start_s, start_s + every_s))
        rows = sum(part.rows or 0 for part in made.parts)
        yield f"{at}: {rows} rows in {len(made.parts)} parts, {format_bytes(made.bytes)}, committed"


def unshipped(
    now_s: float, oldest_row_s: float | None, every_s: float, committed: Callable[[float], bool]
) -> list[float]:
    """Start times of the windows to ship, oldest first.

    Windows are shipped in order, so all windows before a committed one are committed. Calls ``committed`` from the
    newest window backwards, until it returns True, nothing older is stored, or ``MOST_WINDOWS`` are found.
    """
    if oldest_row_s is None:
        return []
    found: list[float] = []
    start_s = (now_s - LATE_S) // every_s * every_s - every_s
    while start_s + every_s > oldest_row_s and len(found) < MOST_WINDOWS and not committed(start_s):
        found.append(start_s)
        start_s -= every_s
    return found[::-1]


def oldest_s(store: str) -> float | None:
    """The time of the oldest row, in seconds since the epoch; None if there is none.

    Raises:
        QueryError: the store cannot be opened.
        DatasetError: it cannot be read.
    """
    connection = open_read_only(store)
    try:
        first = [
            row[0]
            for table in TABLES
            if (row := connection.execute(f"SELECT wall_s FROM {table} ORDER BY rowid LIMIT 1").fetchone())
        ]
    except sqlite3.Error as exc:
        raise DatasetError(f"{store}: {exc}") from exc
    finally:
        connection.close()
    return min(first, default=None)
