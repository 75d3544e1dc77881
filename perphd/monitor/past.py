"""Reads the stored past: history over time, and the state at one moment, both at bounded cost.

A week has 600000 samples per workload. A history examines only a few samples per slot, and a moment only the last
sample of each workload. The index finds them, so the cost does not depend on the length of the past.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any, Final

from perphd.domain.decision import Action, Decision, Health
from perphd.domain.event import EventKind
from perphd.domain.history import History, HostHistory, StoredEvent, WorkloadHistory
from perphd.domain.host_account import CpuAccount, GroupUse, HostAccount
from perphd.domain.reading import NOT_MEASURED, Reading, available
from perphd.domain.sample import READINGS, Quality, Sample
from perphd.domain.signals import performance, score
from perphd.domain.status import Change
from perphd.domain.wire import WireError, from_json
from perphd.domain.workload import Kind
from perphd.monitor.retention import row_ids

LOOKS: Final = 4000
"""Number of samples that a history examines in total. Every slot of every workload gets at least one."""
MOST_LOOKS: Final = 20_000
"""Maximum of the number of slots times the number of workloads. With many workloads, there are fewer slots."""
LOOKS_PER_SLOT: Final = 8
MOST_CHANGES: Final = 200
SHOWN_CHANGES: Final = 5
SHOWN_EVENTS: Final = 50
FRESH_S: Final = 90.0
"""Age in seconds from which a last sample does not show that a workload runs; it is many sampling periods."""
_SEARCHED: Final = 2000
"""Number of an LRA's decisions that are searched for its last changes."""
_COLUMNS: Final = (
    "cpu_usage_cores", "run_delay_cores", "cpu_some_pct", "mips", "work_rate_per_s", "load_per_s",
    "latency_p50_ms", "latency_p95_ms", "latency_p99_ms",
)  # fmt: skip
_UNFIT: Final = frozenset({Quality.FIRST, Quality.RESTARTED, Quality.GONE, Quality.SLI_MISSING})
_WORST: Final = (Health.DEGRADED, Health.SUSPECT, Health.UNKNOWN, Health.OVERPROVISIONED, Health.HEALTHY)


@dataclass(frozen=True, slots=True)
class PastSubject:
    """A workload whose past is requested. ``percentile``: the latency percentile by which it is judged."""

    name: str
    kind: Kind
    percentile: str = "p95"


@dataclass(frozen=True, slots=True)
class PastChange:
    """The last text that perphd wrote to a file for a workload."""

    workload: str
    knob: str
    path: str
    text: str


@dataclass(frozen=True, slots=True)
class PastMoment:
    """The last stored rows up to one moment.

    Times are on the daemon's monotonic clock (see ``offset_s``). ``written``: the last text of every file, in
    order of writing.
    """

    at_unix_s: float
    host: HostAccount | None
    samples: Mapping[str, Sample]
    decisions: Mapping[str, Decision]
    changes: tuple[Change, ...]
    events: tuple[StoredEvent, ...]
    written: tuple[PastChange, ...]
    stored_since_unix_s: float | None
    stored_until_unix_s: float | None


def read_history(
    connection: sqlite3.Connection,
    subjects: Sequence[PastSubject],
    since_unix_s: float,
    until_unix_s: float,
    slots: int,
    offset_s: float,
) -> History:
    """The past of these workloads.

    ``offset_s``: seconds since the epoch minus the daemon's monotonic clock.

    Raises:
        sqlite3.Error: the store cannot be read.
    """
    slots = max(1, min(slots, MOST_LOOKS // max(1, len(subjects))))
    looks = max(1, min(LOOKS_PER_SLOT, LOOKS // (slots * max(1, len(subjects)))))
    step_s = (until_unix_s - since_unix_s) / slots
    first, last = _extent(connection)
    changes = [
        change
        for subject in subjects
        if subject.kind is Kind.LRA
        for change in _changes(connection, subject.name, since_unix_s, until_unix_s, MOST_CHANGES, offset_s)
    ]
    return History(
        since_unix_s, step_s, slots, first, last,
        _host_history(connection, since_unix_s, step_s, slots),
        tuple(_workload(connection, subject, since_unix_s, step_s, slots, looks) for subject in subjects),
        tuple(sorted(changes, key=lambda change: -change.at_s)[:MOST_CHANGES]),
    )  # fmt: skip


def read_moment(
    connection: sqlite3.Connection, subjects: Sequence[PastSubject], at_unix_s: float, offset_s: float
) -> PastMoment:
    """The last stored rows up to a moment. Raises sqlite3.Error if the store cannot be read."""
    lras = [subject.name for subject in subjects if subject.kind is Kind.LRA]
    samples = (_sample_at(connection, subject.name, at_unix_s, offset_s) for subject in subjects)
    decisions = (_decision_at(connection, name, at_unix_s, offset_s) for name in lras)
    changes = [
        change
        for name in lras
        for change in _changes(connection, name, 0.0, at_unix_s, SHOWN_CHANGES, offset_s)
    ]
    return PastMoment(
        at_unix_s,
        _host_at(connection, at_unix_s, offset_s),
        {sample.workload: sample for sample in samples if sample is not None},
        {decision.workload: decision for decision in decisions if decision is not None},
        tuple(sorted(changes, key=lambda change: -change.at_s)[:SHOWN_CHANGES]),
        _events_until(connection, at_unix_s, offset_s),
        _written_until(connection, at_unix_s),
        *_extent(connection),
    )


# --- values over time ------------------------------------------------------------------------------------------


def _workload(
    connection: sqlite3.Connection,
    subject: PastSubject,
    since_s: float,
    step_s: float,
    slots: int,
    looks: int,
) -> WorkloadHistory:
    found: list[list[_Look]] = [[] for _ in range(slots)]
    for number, quality, health, target_work, target_delay, *values in connection.execute(
        f"""
        WITH RECURSIVE look(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM look WHERE n + 1 < :looks)
        SELECT look.n, s.quality, d.health, d.target_work, d.target_delay, {", ".join(f"s.{c}" for c in _COLUMNS)}
        FROM look CROSS JOIN samples AS s ON s.rowid = (
            SELECT rowid FROM samples WHERE workload = :name AND wall_s >= :since + look.n * :step
            AND wall_s < :since + (look.n + 1) * :step AND quality NOT LIKE '%between%' ORDER BY wall_s LIMIT 1)
        LEFT JOIN decisions AS d ON d.rowid = (
            SELECT rowid FROM decisions WHERE workload = :name AND wall_s <= s.wall_s
            ORDER BY wall_s DESC LIMIT 1)
        """,
        {"looks": slots * looks, "name": subject.name, "since": since_s, "step": step_s / looks},
    ):
        if _UNFIT & {*str(quality).split(",")}:
            continue
        readings = {name: _reading(value) for name, value in zip(_COLUMNS, values, strict=True)}
        sample = Sample(subject.name, 0.0, 1.0, **readings)  # type: ignore[arg-type]
        found[number // looks].append(
            _Look(sample, str(health or ""), _reading(target_work), _reading(target_delay))
        )
    return _reduced(subject, found)


@dataclass(frozen=True, slots=True)
class _Look:
    sample: Sample
    health: str
    target_work: Reading
    target_delay: Reading


def _reduced(subject: PastSubject, found: Sequence[Sequence[_Look]]) -> WorkloadHistory:
    is_lra = subject.kind is Kind.LRA
    performances = [[performance(look.sample, subject.percentile) for look in slot] for slot in found]
    scores = [
        [
            reached
            for perf, look in zip(perfs, slot, strict=True)
            if available(reached := score(perf, look.target_work, look.target_delay))
        ]
        if is_lra
        else []
        for perfs, slot in zip(performances, found, strict=True)
    ]
    seen = [perf for slot in performances for perf in slot] if is_lra else []
    wanted = [
        [
            used + waits
            for look in slot
            if available(used := look.sample.cpu_usage_cores)
            and available(waits := look.sample.run_delay_cores)
        ]
        for slot in found
    ]
    return WorkloadHistory(
        subject.name,
        subject.kind,
        seen[-1].work_source if seen else "",
        seen[-1].delay_source if seen else "",
        tuple(median(slot) if slot else None for slot in scores),
        tuple(min(slot) if slot else None for slot in scores),
        tuple(_mean(perf.work for perf in slot) if is_lra else None for slot in performances),
        tuple(_mean(look.target_work for look in slot) for slot in found),
        tuple(_mean(perf.delay for perf in slot) if is_lra else None for slot in performances),
        tuple(_mean(look.target_delay for look in slot) for slot in found),
        tuple(_mean(look.sample.cpu_usage_cores for look in slot) for slot in found),
        tuple(_mean(slot) for slot in wanted),
        tuple(_worst(look.health for look in slot) for slot in found),
    )


def _worst(healths: Iterable[str]) -> str:
    known = {*healths}
    return next((health.value for health in _WORST if health.value in known), "")


def _host_history(connection: sqlite3.Connection, since_s: float, step_s: float, slots: int) -> HostHistory:
    names = ("capacity", "lras", "batch", "undeclared", "idle", "cpu_some_pct")
    columns: dict[str, list[float | None]] = {name: [None] * slots for name in names}
    first, last = _row_at(connection, "host", since_s), _row_at(connection, "host", since_s + step_s * slots)
    for number, *means in connection.execute(
        f"SELECT CAST((wall_s - ?) / ? AS INTEGER) AS slot, {', '.join(f'avg({name})' for name in names)}"
        " FROM host WHERE rowid > ? AND rowid <= ? GROUP BY slot",
        (since_s, step_s, first, last),
    ):
        if 0 <= number < slots:
            for name, mean in zip(names, means, strict=True):
                columns[name][number] = mean
    return HostHistory(**{name: tuple(values) for name, values in columns.items()})


def _changes(
    connection: sqlite3.Connection,
    name: str,
    since_s: float,
    until_s: float,
    most: int,
    offset_s: float,
) -> list[Change]:
    """The newest changes of an LRA, newest first. A decision that was stored repeatedly counts once."""
    rows = connection.execute(
        "SELECT rowid, wall_s, action, reason FROM (SELECT rowid, wall_s, action, reason FROM decisions"
        " WHERE workload = ? AND wall_s >= ? AND wall_s <= ? ORDER BY wall_s DESC LIMIT ?)",
        (name, since_s, until_s, _SEARCHED),
    ).fetchall()
    found: list[Change] = []
    for place, (row, wall_s, action, reason) in enumerate(rows):
        before = rows[place + 1] if place + 1 < len(rows) else None
        if action == Action.HOLD or (before is not None and before[2:] == (action, reason)):
            continue
        (record,) = connection.execute("SELECT record FROM decisions WHERE rowid = ?", (row,)).fetchone()
        try:
            made = from_json(record, Decision)
        except WireError:  # written by another version
            continue
        at_s = float(wall_s) - offset_s
        change = (made.action, made.current, made.chosen, made.mode, made.reason, made.to_best)
        found.append(Change(at_s, name, *change))
        if len(found) == most:
            break
    return found


# --- one moment ------------------------------------------------------------------------------------------------


def _sample_at(connection: sqlite3.Connection, name: str, at_unix_s: float, offset_s: float) -> Sample | None:
    row = connection.execute(
        f"SELECT wall_s, interval_s, quality, {', '.join(READINGS)} FROM samples"
        " WHERE workload = ? AND wall_s <= ? AND wall_s > ? ORDER BY wall_s DESC LIMIT 1",
        (name, at_unix_s, at_unix_s - FRESH_S),
    ).fetchone()
    if row is None:
        return None
    wall_s, interval_s, quality, *values = row
    readings = {reading: _reading(value) for reading, value in zip(READINGS, values, strict=True)}
    known = {flag.value for flag in Quality}
    flags = tuple(Quality(flag) for flag in str(quality).split(",") if flag in known)
    return Sample(name, float(wall_s) - offset_s, float(interval_s), quality=flags, **readings)  # type: ignore[arg-type]


def _decision_at(
    connection: sqlite3.Connection, name: str, at_unix_s: float, offset_s: float
) -> Decision | None:
    row = connection.execute(
        "SELECT wall_s, record FROM decisions WHERE workload = ? AND wall_s <= ? ORDER BY wall_s DESC LIMIT 1",
        (name, at_unix_s),
    ).fetchone()
    if row is None:
        return None
    try:
        found = from_json(row[1], Decision)
    except WireError:
        return None
    at_s = float(row[0]) - offset_s
    since_s = found.verdict.since_s + (at_s - found.at_s)
    return replace(found, at_s=at_s, verdict=replace(found.verdict, since_s=since_s))


def _host_at(connection: sqlite3.Connection, at_unix_s: float, offset_s: float) -> HostAccount | None:
    cursor = connection.execute(
        "SELECT * FROM host WHERE rowid = ?", (_row_at(connection, "host", at_unix_s),)
    )
    row = cursor.fetchone()
    if row is None:
        return None
    values: dict[str, Any] = dict(zip((column[0] for column in cursor.description), row, strict=True))
    if at_unix_s - values["wall_s"] > FRESH_S:
        return None
    cpu = {part: float(values[part]) for part in CpuAccount.__dataclass_fields__}
    groups = json.loads(values["groups"])
    readings = {
        name: _reading(values[name])
        for name in HostAccount.__dataclass_fields__
        if name not in ("at_s", "interval_s", "cpu", "undeclared")
    }
    return HostAccount(
        float(values["wall_s"]) - offset_s,
        float(values["interval_s"]),
        CpuAccount(**cpu),
        tuple(GroupUse(group, float(cores)) for group, cores in groups.items()),
        **readings,
    )


def _events_until(
    connection: sqlite3.Connection, at_unix_s: float, offset_s: float
) -> tuple[StoredEvent, ...]:
    """The last events, the newest first."""
    rows = connection.execute(
        "SELECT wall_s, kind, data FROM events WHERE rowid <= ? ORDER BY rowid DESC LIMIT ?",
        (_row_at(connection, "events", at_unix_s), SHOWN_EVENTS),
    )
    known = {kind.value for kind in EventKind}
    found = []
    for wall_s, kind, data in rows:
        workload, _, text = str(data).partition(": ")
        if kind in known:
            found.append(StoredEvent(float(wall_s) - offset_s, EventKind(kind), workload, text))
    return tuple(found)


def _written_until(connection: sqlite3.Connection, at_unix_s: float) -> tuple[PastChange, ...]:
    rows = connection.execute(
        "SELECT workload, knob, path, value, max(rowid) AS last FROM writes"
        " WHERE rowid <= ? AND result = 'written' GROUP BY workload, knob, path ORDER BY last",
        (_row_at(connection, "writes", at_unix_s),),
    )
    return tuple(PastChange(*(str(cell) for cell in row[:4])) for row in rows)


# --- finding rows ----------------------------------------------------------------------------------------------


def _row_at(connection: sqlite3.Connection, table: str, at_unix_s: float) -> int:
    """Row id of a table's last row up to this moment; 0 if there is none.

    The table must be in order of time.
    """
    low, high = row_ids(connection, table)
    low -= 1
    while low < high:
        middle = (low + high + 1) // 2
        row = connection.execute(
            f"SELECT rowid, wall_s FROM {table} WHERE rowid <= ? ORDER BY rowid DESC LIMIT 1", (middle,)
        ).fetchone()
        if row is not None and row[1] > at_unix_s:
            high = int(row[0]) - 1
        else:
            low = middle
    return low


def _extent(connection: sqlite3.Connection) -> tuple[float | None, float | None]:
    first = connection.execute("SELECT wall_s FROM samples ORDER BY rowid LIMIT 1").fetchone()
    last = connection.execute("SELECT wall_s FROM samples ORDER BY rowid DESC LIMIT 1").fetchone()
    return (None, None) if first is None or last is None else (float(first[0]), float(last[0]))


def _mean(values: Iterable[Reading]) -> float | None:
    known = [value for value in values if available(value)]
    return fmean(known) if known else None


def _reading(value: Any) -> Reading:
    return float(value) if isinstance(value, int | float) else NOT_MEASURED
