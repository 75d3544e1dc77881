"""The data of the plots: every reading in buckets of equal length, with gaps where nothing was measured.

SQLite aggregates the samples, so a week needs only a few hundred numbers per reading in memory. A
bucket's value is the mean of its samples; for latency the maximum is kept as well, because a mean hides it.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from perphd.commands.dashboard.sources import Query, Rows, quoted
from perphd.control.render import delay_unit
from perphd.domain.decision import Action
from perphd.domain.reading import NOT_MEASURED, Reading, available
from perphd.domain.sample import Sample
from perphd.domain.signals import READINGS, Performance, performance, work_unit

RANGES_S: Final = (3600.0, 6 * 3600.0, 86_400.0, 7 * 86_400.0)
"""Selectable time ranges of the plots."""
POINTS: Final = 720
"""Maximum number of buckets in a plot."""
LEAST_BUCKET_S: Final = 5.0
MAX_MARKS: Final = 400
"""Maximum number of decisions marked per LRA, newest first; more would cover the plot."""
_HOST: Final = ("lras", "batch", "undeclared", "kernel", "steal", "idle", "capacity")
_NOT_USED: Final = "quality LIKE '%between%' OR quality LIKE '%first%' OR quality LIKE '%restarted%'"
_LATENCY: Final = re.compile(r"latency_p\d+_ms")


@dataclass(frozen=True, slots=True)
class Grid:
    """Buckets from ``since_s`` on, in seconds since the epoch."""

    since_s: float
    bucket_s: float
    count: int

    @classmethod
    def until(cls, until_s: float, last_s: float) -> Grid:
        """The buckets before ``until_s``, which lies in the last one."""
        bucket_s = max(LEAST_BUCKET_S, last_s / POINTS)
        last = math.floor(until_s / bucket_s)
        count = round(last_s / bucket_s)
        return cls((last - count + 1) * bucket_s, bucket_s, count)

    @property
    def until_s(self) -> float:
        """The end of the last bucket."""
        return self.since_s + self.count * self.bucket_s

    def middles(self) -> list[float]:
        """The middle of each bucket."""
        return [self.since_s + (i + 0.5) * self.bucket_s for i in range(self.count)]

    def number(self, column: str = "wall_s") -> str:
        """SQL expression for a row's bucket number."""
        return f"CAST(({column} - {self.since_s!r}) / {self.bucket_s!r} AS INTEGER)"


def history(query: Query, lras: Mapping[str, str], grid: Grid) -> dict[str, Any]:
    """The plots' data of one period.

    Args:
        query: reads the store.
        lras: the latency percentile of each LRA, by name.
        grid: the buckets.
    """
    columns = {str(row[1]) for row in query("PRAGMA table_info(samples)")}
    return {
        "since_s": grid.since_s,
        "until_s": grid.until_s,
        "bucket_s": grid.bucket_s,
        "at_s": grid.middles(),
        "lras": {name: _lra(query, name, percentile, columns, grid) for name, percentile in lras.items()},
        "host": _host(query, grid),
    }


def _lra(query: Query, name: str, percentile: str, columns: set[str], grid: Grid) -> dict[str, Any]:
    peak = f"latency_{percentile}_ms"
    wanted = [f"avg({c})" if c in columns else "NULL" for c in READINGS]
    wanted.append(f"max({peak})" if peak in columns else "NULL")
    rows = query(
        f"SELECT {grid.number()} AS bucket, {', '.join(wanted)} FROM samples"
        f" WHERE workload = {quoted(name)} AND wall_s >= {grid.since_s!r} AND wall_s < {grid.until_s!r}"
        f" AND NOT ({_NOT_USED}) GROUP BY bucket ORDER BY bucket"
    )
    seen: dict[int, tuple[Performance, Reading, Reading]] = {}
    for bucket, *values in rows:
        readings = {c: _reading(v) for c, v in zip(READINGS, values, strict=False)}
        sample = Sample(name, 0.0, grid.bucket_s, **readings)  # type: ignore[arg-type]
        seen[int(bucket)] = (
            performance(sample, percentile),
            readings["cpu_usage_cores"],
            _reading(values[-1]),
        )
    work_source = _usual([perf.work_source for perf, _, _ in seen.values()])
    delay_source = _usual([perf.delay_source for perf, _, _ in seen.values()])
    work, delay, most, cpu = (_gaps(grid) for _ in range(4))
    for bucket, (perf, used, peak_ms) in seen.items():
        if not 0 <= bucket < grid.count:
            continue
        # Another source measures another quantity: show a gap instead of a jump.
        work[bucket] = _number(perf.work) if perf.work_source == work_source else None
        delay[bucket] = _number(perf.delay) if perf.delay_source == delay_source else None
        most[bucket] = _number(peak_ms) if _LATENCY.fullmatch(delay_source) else None
        cpu[bucket] = _number(used)
    targets = _targets(query, name, grid, list(seen))
    return {
        "work": work,
        "work_source": work_source,
        "work_unit": work_unit(work_source),
        "delay": delay,
        "delay_most": most,
        "delay_source": delay_source,
        "delay_unit": delay_unit(delay_source),
        "cpu": cpu,
        "target_work": targets[0],
        "target_delay": targets[1],
        "marks": _marks(query, name, grid),
    }


def _targets(query: Query, name: str, grid: Grid, measured: Sequence[int]) -> tuple[list[Any], list[Any]]:
    """The targets of work and delay in buckets with measurements: means over its decisions, else the last targets."""
    of = f"FROM decisions WHERE workload = {quoted(name)}"
    before = query(
        f"SELECT target_work, target_delay {of} AND wall_s < {grid.since_s!r} ORDER BY wall_s DESC LIMIT 1"
    )
    rows = query(
        f"SELECT {grid.number()} AS bucket, avg(target_work), avg(target_delay) {of}"
        f" AND wall_s >= {grid.since_s!r} AND wall_s < {grid.until_s!r} GROUP BY bucket ORDER BY bucket"
    )
    decided = {int(bucket): (work, delay) for bucket, work, delay in rows}
    held: Sequence[Any] = before[0] if before else (None, None)
    there = set(measured)
    work, delay = _gaps(grid), _gaps(grid)
    for bucket in range(grid.count):
        held = decided.get(bucket, held)
        if bucket in there:
            work[bucket], delay[bucket] = (_number(_reading(each)) for each in held)
    return work, delay


def _marks(query: Query, name: str, grid: Grid) -> list[dict[str, Any]]:
    """Decisions that changed something, or would have, oldest first.

    A decision in force is stored again every minute, but counts once.
    """
    rows = query(
        "SELECT wall_s, action, health, cause, reason, mode FROM ("
        "SELECT *, lag(action) OVER each AS action_before, lag(reason) OVER each AS reason_before FROM decisions"
        f" WHERE workload = {quoted(name)} AND wall_s >= {grid.since_s!r} AND wall_s < {grid.until_s!r}"
        " WINDOW each AS (ORDER BY wall_s))"
        f" WHERE action != {quoted(Action.HOLD)} AND NOT (action IS action_before AND reason IS reason_before)"
        f" ORDER BY wall_s DESC LIMIT {MAX_MARKS}"
    )
    keys = ("at_s", "action", "health", "cause", "reason", "mode")
    return [dict(zip(keys, row, strict=True)) for row in reversed(rows)]


def _host(query: Query, grid: Grid) -> dict[str, Any]:
    wanted = ", ".join(f"avg({name})" for name in _HOST)
    rows: Rows = []
    if query("SELECT name FROM sqlite_master WHERE type = 'table' AND name = 'host'"):
        rows = query(
            f"SELECT {grid.number()} AS bucket, {wanted} FROM host"
            f" WHERE wall_s >= {grid.since_s!r} AND wall_s < {grid.until_s!r} GROUP BY bucket ORDER BY bucket"
        )
    found: dict[str, list[float | None]] = {name: _gaps(grid) for name in _HOST}
    for bucket, *values in rows:
        if 0 <= int(bucket) < grid.count:
            for name, value in zip(_HOST, values, strict=True):
                found[name][int(bucket)] = _number(_reading(value))
    return found


def _gaps(grid: Grid) -> list[float | None]:
    return [None] * grid.count


def _usual(sources: Sequence[str]) -> str:
    """The most frequent source; empty if there is none."""
    return Counter(sources).most_common(1)[0][0] if sources else ""


def _reading(value: Any) -> Reading:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else NOT_MEASURED


def _number(reading: Reading) -> float | None:
    """The reading, rounded to six digits (a plot shows three); None if unavailable."""
    return float(f"{reading:.6g}") if available(reading) else None
