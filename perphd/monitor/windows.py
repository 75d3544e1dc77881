"""Reduces the store's samples to 60-second windows: the maximum of every reading.

SQLite does the reduction, so that a week of samples takes 10080 numbers per reading. The window of the newest
sample is incomplete and counts only as present use.

Rates over intervals much shorter than usual are noisy, and a maximum would keep the worst of them. Such rates count
only in windows without others, for example during fast sampling.
"""

from __future__ import annotations

import math
import sqlite3
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from perphd.domain.reading import Reading, Unavailable
from perphd.domain.sample import SHORT_SHARE
from perphd.monitor.query import QueryError, open_read_only

WINDOW_S: Final = 60.0
SERIES: Final = (
    "cpu_usage_cores",
    "memory_working_set_bytes",
    "llc_occupancy_bytes",
    "mbw_bytes_per_s",
    "load_per_s",
)
"""Names of the readings that are reduced to windows."""
_RATES: Final = frozenset({"cpu_usage_cores", "mbw_bytes_per_s", "load_per_s"})
ENDED_AFTER_S: Final = 3600.0
"""A workload counts as ended if its last sample is this many seconds older than the store's newest one."""
"""Seconds without a sample, before the newest one, after which a workload counts as ended."""
SET_BACK_S: Final = 600.0
"""Seconds by which the newest row must lie before other rows for the clock to count as set back meanwhile."""
_INTERVALS: Final = 501

_WORKLOADS: Final = """
WITH RECURSIVE names(name) AS (
    SELECT min(workload) FROM samples
    UNION ALL SELECT (SELECT min(workload) FROM samples WHERE workload > name) FROM names WHERE name IS NOT NULL
)
SELECT name, (SELECT max(wall_s) FROM samples WHERE workload = name AND wall_s <= :until_s) FROM names
    WHERE name IS NOT NULL
"""
"""One index search per workload; DISTINCT would read every sample."""


@dataclass(frozen=True, slots=True)
class SeriesWindows:
    """One reading: its values in complete windows, oldest first, and in the incomplete one.

    ``numbers``: window start in seconds since the epoch divided by ``WINDOW_S``. ``now``: value in the
    incomplete window, Unavailable without a sample. ``missing``: the reason if there are no values at all;
    otherwise empty.
    """

    numbers: tuple[int, ...] = ()
    values: tuple[float, ...] = ()
    now: Reading = Unavailable("no sample in the present window")
    missing: str = ""


@dataclass(frozen=True, slots=True)
class WorkloadWindows:
    """The windows of one workload. ``newest_s``: wall clock of its newest sample."""

    workload: str
    newest_s: float
    series: Mapping[str, SeriesWindows]


@dataclass(frozen=True, slots=True)
class StoreWindows:
    """Windows read from a store.

    ``newest_s``: wall clock of the newest sample. ``names``: all workloads with samples. ``ended``: names of the
    workloads that have ended.
    """

    newest_s: float
    names: tuple[str, ...]
    workloads: tuple[WorkloadWindows, ...]
    ended: tuple[str, ...]


def read_windows(
    path: str | Path, last_s: float, workload: str | None = None, series: Sequence[str] = SERIES,
    after: int = -1,
) -> StoreWindows:  # fmt: skip
    """The windows of the last ``last_s`` seconds, of one workload or of all that have not ended.

    ``after`` is the number of the last window that the caller knows: only later ones and the present one are read.
    After the clock was set back, samples that lie in the future by the present clock are ignored.

    Raises:
        QueryError: there is no store, it holds no samples, or SQLite cannot read it.
    """
    connection = open_read_only(path)
    try:
        columns = {str(row[1]) for row in connection.execute("PRAGMA table_info(samples)")}
        if not {"workload", "wall_s", "interval_s"} <= columns:
            raise QueryError(
                f"{path}: is not a store of perphd: the table samples is missing or lacks columns"
            )
        newest = _newest(connection, math.inf)
        if not newest:
            raise QueryError(f"{path}: holds no samples yet; the daemon adds some every few seconds")
        end_s = max(newest.values())
        (last_row_s,) = connection.execute(
            "SELECT wall_s FROM samples ORDER BY rowid DESC LIMIT 1"
        ).fetchone()
        if end_s - last_row_s > SET_BACK_S:
            end_s = float(last_row_s)
            newest = _newest(connection, end_s)
        ended = tuple(name for name, at_s in newest.items() if at_s < end_s - ENDED_AFTER_S)
        wanted = [name for name in newest if name not in ended] if workload is None else [workload]
        least_s = SHORT_SHARE * _usual_interval_s(connection)
        since_s = max(end_s - last_s, WINDOW_S * min(after + 1, math.floor(end_s / WINDOW_S)))
        return StoreWindows(
            end_s,
            tuple(newest),
            tuple(
                WorkloadWindows(
                    name, newest[name], _reduced(connection, name, end_s, since_s, least_s, columns, series)
                )
                for name in wanted
                if name in newest
            ),
            ended,
        )
    except sqlite3.Error as exc:
        raise QueryError(f"{path}: {exc}") from exc
    finally:
        connection.close()


def _newest(connection: sqlite3.Connection, until_s: float) -> dict[str, float]:
    """Wall clock of each workload's newest sample up to this time; workloads without one are left out."""
    rows = connection.execute(_WORKLOADS, {"until_s": until_s})
    return {str(name): float(wall_s) for name, wall_s in rows if wall_s is not None}


def _usual_interval_s(connection: sqlite3.Connection) -> float:
    rows = connection.execute(f"SELECT interval_s FROM samples ORDER BY rowid DESC LIMIT {_INTERVALS}")
    found = [float(row[0]) for row in rows if row[0] > 0]
    return statistics.median(found) if found else 0.0


def _reduced(
    connection: sqlite3.Connection, name: str, end_s: float, since_s: float, least_s: float, columns: set[str],
    series: Sequence[str],
) -> dict[str, SeriesWindows]:  # fmt: skip
    present = [column for column in series if column in columns]
    greatest = "".join(f", {_greatest(column)}" for column in present)
    rows = connection.execute(
        f"SELECT CAST(wall_s / {WINDOW_S} AS INTEGER) AS number{greatest} FROM samples"
        " WHERE workload = :name AND wall_s BETWEEN :since_s AND :end_s GROUP BY number ORDER BY number",
        {"name": name, "since_s": since_s, "end_s": end_s, "least_s": least_s},
    ).fetchall()
    last = math.floor(end_s / WINDOW_S)
    found = {column: SeriesWindows(missing="the store has no such column") for column in series}
    for i, column in enumerate(present, start=1):
        known = [(int(row[0]), float(row[i])) for row in rows if _is_number(row[i])]
        complete = [(number, value) for number, value in known if number < last]
        now = next((value for number, value in known if number == last), None)
        found[column] = SeriesWindows(
            tuple(number for number, _ in complete),
            tuple(value for _, value in complete),
            Unavailable("no sample in the present window") if now is None else now,
            "" if known else "not measured",
        )
    return found


def _greatest(column: str) -> str:
    """SQL for a window's maximum of this column."""
    if column not in _RATES:
        return f"max({column})"
    return f"coalesce(max(CASE WHEN interval_s >= :least_s THEN {column} END), max({column}))"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
