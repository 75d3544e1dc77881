"""Reads the rows of a report from the store.

SQLite reduces samples to means of ten seconds: a week is 60480 rows per workload.
"""

from __future__ import annotations

import json
import math
import re
import sqlite3
from pathlib import Path
from statistics import NormalDist
from typing import Any, Final

from perphd.domain.decision import Action, Cause, Health
from perphd.domain.reading import NOT_MEASURED, Reading
from perphd.domain.sample import Sample
from perphd.domain.signals import READINGS, performance
from perphd.domain.workload import Mode
from perphd.monitor.query import QueryError, open_read_only
from perphd.report.rows import WINDOW_S, Decided, JudgedWindow, ReportHistory, ReportWindow

_NOT_USED: Final = "quality LIKE '%between%' OR quality LIKE '%first%' OR quality LIKE '%restarted%'"
_LATENCY: Final = re.compile(r'"delay \(latency_(p\d+)_ms\)"')
_DEFAULT_PERCENTILE: Final = "p95"
_Z_BAND: Final = NormalDist().inv_cdf(0.9)


def read_history(path: str | Path, last_s: float) -> ReportHistory:
    """The last ``last_s`` seconds before the newest sample.

    Raises:
        QueryError: there is no store, it holds no samples, or SQLite cannot read it.
    """
    connection = open_read_only(path)
    try:
        columns = {str(row[1]) for row in connection.execute("PRAGMA table_info(samples)")}
        kept = {str(row[1]) for row in connection.execute("PRAGMA table_info(decisions)")}
        if not {"workload", "wall_s", "interval_s"} <= columns or "record" not in kept:
            raise QueryError(
                f"{path}: is not a store of perphd: the tables samples and decisions are missing or lack columns"
            )
        newest = connection.execute("SELECT max(wall_s), min(wall_s) FROM samples").fetchone()
        if newest[0] is None:
            raise QueryError(f"{path}: holds no samples yet; the daemon adds some every few seconds")
        until_s = float(newest[0])
        since_s = max(until_s - last_s, float(newest[1]))
        mode = "mode" if "mode" in kept else "NULL"
        decisions: dict[str, list[Decided]] = {}
        percentiles: dict[str, str] = {}
        for row in connection.execute(
            "SELECT wall_s, workload, action, health, cause, target_work, target_delay, reason, record, "
            f"{mode} FROM decisions WHERE wall_s >= ? ORDER BY wall_s",
            (since_s,),
        ):
            decided = _decided(row)
            decisions.setdefault(decided.lra, []).append(decided)
            if decided.lra not in percentiles and (found := _LATENCY.search(row[8])):
                percentiles[decided.lra] = found[1]
        rows = connection.execute("SELECT DISTINCT workload FROM samples WHERE wall_s >= ?", (since_s,))
        names = [str(row[0]) for row in rows]
        windows = {
            name: _windows(connection, name, since_s, columns, percentiles.get(name, _DEFAULT_PERCENTILE))
            for name in names
        }
        outcomes = tuple(
            JudgedWindow(float(at_s), str(name), bool(kept_it))
            for at_s, name, kept_it in connection.execute(
                "SELECT wall_s, workload, kept FROM outcomes WHERE wall_s >= ? ORDER BY wall_s", (since_s,)
            )
        )
        return ReportHistory(
            since_s, until_s, windows, {name: tuple(found) for name, found in decisions.items()}, outcomes
        )
    except sqlite3.Error as exc:
        raise QueryError(f"{path}: {exc}") from exc
    finally:
        connection.close()


def _windows(
    connection: sqlite3.Connection, name: str, since_s: float, columns: set[str], percentile: str
) -> tuple[ReportWindow, ...]:
    means = ", ".join(f"avg({c})" if c in columns else "NULL" for c in READINGS)
    found = []
    for number, covered_s, *values in connection.execute(
        f"SELECT CAST(wall_s / {WINDOW_S} AS INTEGER) AS number, sum(interval_s), {means} FROM samples"
        f" WHERE workload = ? AND wall_s >= ? AND NOT ({_NOT_USED}) GROUP BY number ORDER BY number",
        (name, since_s),
    ):
        readings = {c: _reading(v) for c, v in zip(READINGS, values, strict=True)}
        perf = performance(Sample(name, 0.0, WINDOW_S, **readings), percentile)  # type: ignore[arg-type]
        found.append(
            ReportWindow(
                (number + 1) * WINDOW_S, min(float(covered_s), WINDOW_S), perf.delay, perf.delay_source,
                perf.work, perf.work_source, readings["cpu_usage_cores"],
            )
        )  # fmt: skip
    return tuple(found)


def _decided(row: tuple[Any, ...]) -> Decided:
    at_s, lra, action, health, cause, target_work, target_delay, reason, record, mode = row
    moved = action != Action.HOLD
    chance, lost = _candidate(record) if moved else (NOT_MEASURED, NOT_MEASURED)
    return Decided(
        float(at_s), str(lra), Action(action), Health(health), _cause(cause), _reading(target_work),
        _reading(target_delay), Mode.OBSERVE if mode is None else Mode(mode), str(reason), chance, lost,
    )  # fmt: skip


def _cause(text: str) -> Cause:
    try:
        return Cause(text)
    except ValueError:  # written by a newer version
        return Cause.UNKNOWN


def _candidate(record: str) -> tuple[Reading, Reading]:
    """Probability that the chosen allocation meets the target, and its cost to batch.

    Reads only these figures of the record: ``domain.wire`` would convert all candidates of every decision of a report.
    """
    data = json.loads(record)
    chosen = data.get("chosen")
    for candidate in data.get("candidates", ()):
        if candidate["allocation"] != chosen:
            continue
        band = candidate["prediction"]
        score, lower, upper = (float(band[key]) for key in ("score", "lower", "upper"))
        lost = _reading(candidate["batch_cores_lost"])
        if not 0 < lower < upper < math.inf:
            return NOT_MEASURED, lost
        sigma = math.log(upper / lower) / (2.0 * _Z_BAND)
        return NormalDist().cdf(math.log(score) / sigma), lost
    return NOT_MEASURED, NOT_MEASURED


def _reading(value: Any) -> Reading:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else NOT_MEASURED
