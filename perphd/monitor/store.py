"""The local time-series store: samples, decisions and writes in one SQLite file.

Callers hand over rows without waiting. One thread writes them: decisions, writes and events within a second,
samples alone every few seconds, because waking the thread less often saves CPU. A kill -9 loses at most
unwritten rows. A full disk or damaged file costs rows, but never stops the daemon.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import fields
from operator import attrgetter
from pathlib import Path
from typing import Final, TypeAlias

from perphd.domain.decision import Decision, Outcome
from perphd.domain.host_account import HostAccount
from perphd.domain.plan import Write
from perphd.domain.reading import Reading, Unavailable, available
from perphd.domain.sample import READINGS, DomainUse, Sample
from perphd.domain.utf8 import encodable
from perphd.domain.wire import to_json
from perphd.monitor.retention import row_ids, trim
from perphd.monitor.schema import StoreRefused, open_database

FLUSH_EVERY_S: Final = 5.0
"""Longest time in seconds for which samples wait to be written."""
RECORDS_WITHIN_S: Final = 1.0
"""Longest time in seconds for which other rows wait. Waiting samples are written with them."""
FLUSH_AT_ROWS: Final = 500
MAX_PENDING_ROWS: Final = 20_000
"""Maximum number of rows held for a slow disk; beyond it the oldest samples are dropped."""
TRIM_EVERY_BATCHES: Final = 20
TRIM_AT_ROWS: Final = 2000
"""Number of batches, or of rows, between two checks of the size.

Counting batches alone would let a high rate of rows exceed the limit by several MiB.
"""
REASONS_EVERY_BATCHES: Final = 360
"""Number of batches after which reasons for missing readings are stored again, because retention deletes old rows."""
REASONS_PER_STORE: Final = 8
"""Number of times that each reason is stored within the kept rows, so that trimming never removes the only copy."""
RETRY_AFTER_BATCHES: Final = 6
"""Number of batches that are dropped after a failure before the next attempt to write."""
LONGEST_PAUSE_S: Final = 0.25
"""Longest pause of the writer in seconds, while a caller needs the interpreter (``Store.paused``)."""
MAX_MOVED_ASIDE: Final = 3
"""Number of damaged files that are moved aside before the store assumes that the disk is broken."""

_log = logging.getLogger(__name__)
Row: TypeAlias = tuple[object, ...]
_values_of = attrgetter(*READINGS)
_HOST_READINGS: Final = tuple(f.name for f in fields(HostAccount) if f.type == "Reading")
_SAMPLE_COLUMNS = ("wall_s", "at_s", "interval_s", "workload", "quality", "reasons", "domains", *READINGS)
_INSERT_SAMPLE = (
    f"INSERT INTO samples ({', '.join(_SAMPLE_COLUMNS)}) VALUES ({', '.join('?' * len(_SAMPLE_COLUMNS))})"
)


class Store:
    """The store. It takes rows from any thread, and never blocks or raises because of the disk.

    Args:
        path: the database file; its directory is created if necessary.
        retention_s: rows older than this are deleted.
        max_bytes: the oldest rows are deleted when the data exceed this (the write-ahead log adds a few MiB).
    """

    def __init__(self, path: str | Path, retention_s: float, max_bytes: int) -> None:
        self._path = Path(path)
        self._retention_s, self._max_bytes = retention_s, max_bytes
        self._lock = threading.Condition()
        self._samples: deque[tuple[float, Sequence[Sample]]] = deque()
        self._records: deque[tuple[str, Row]] = deque()
        self._pending = 0
        self._due_s = self._wakes_s = math.inf  # when rows must be written, and when the writer wakes next
        self._closing = False
        self._overflowed = 0
        self._unwritten = 0
        self._problem: str | None = None
        self._thread: threading.Thread | None = None
        self._may_write = threading.Event()
        self._may_write.set()
        self._writer = _Writer(self._path, self._retention_s, self._max_bytes, self._may_write)

    def start(self) -> None:
        """Start writing. Problems with the file show in ``problem``."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="perphd-store", daemon=True)
            self._thread.start()

    def add_samples(self, wall_s: float, samples: Sequence[Sample]) -> None:
        """Add the samples of one tick. ``wall_s``: wall clock, seconds since the epoch."""
        with self._lock:
            self._samples.append((wall_s, samples))
            self._grown(len(samples), FLUSH_EVERY_S)

    def add_decision(self, wall_s: float, decision: Decision) -> None:
        """Add one decision. The caller chooses which decisions to store."""
        verdict = decision.verdict
        row = (
            *(wall_s, decision.at_s, decision.workload, decision.action.value, verdict.health.value),
            *(verdict.cause.value, _number(decision.target_work), _number(decision.target_delay)),
            *(decision.reason, decision.policy, to_json(decision), decision.mode),
        )
        self._add_record("decisions", row)

    def add_outcome(self, wall_s: float, outcome: Outcome) -> None:
        """Add the outcome of a decision."""
        row = (
            *(wall_s, outcome.at_s, outcome.workload, outcome.decided_at_s, _number(outcome.score_before)),
            *(_number(outcome.score_after), int(outcome.kept), outcome.text, to_json(outcome)),
        )
        self._add_record("outcomes", row)

    def add_writes(self, wall_s: float, writes: Sequence[Write], result: str) -> None:
        """Add attempted kernel writes with their result: the audit trail."""
        for write in writes:
            row = (
                *(wall_s, write.workload, write.knob, write.path, write.stage.name.lower()),
                *(write.before, write.value, result),
            )
            self._add_record("writes", row)

    def add_host(self, wall_s: float, account: HostAccount) -> None:
        """Add the host's account of an interval."""
        cpu = account.cpu
        groups = {item.group: round(item.cpu_cores, 4) for item in account.undeclared}
        row = (
            *(wall_s, account.at_s, account.interval_s, cpu.capacity, cpu.lras, cpu.batch, cpu.undeclared),
            *(cpu.kernel, cpu.steal, cpu.idle),
            *(_number(getattr(account, name)) for name in _HOST_READINGS),
            json.dumps(groups, ensure_ascii=False),
        )
        self._add_record("host", row)

    def add_event(self, wall_s: float, kind: str, data: str | Mapping[str, object]) -> None:
        """Add an event; a mapping is stored as JSON."""
        text = data if isinstance(data, str) else json.dumps(data, default=str)
        self._add_record("events", (wall_s, kind, text))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let the writer pause between rows within this block, so that the caller need not wait for the interpreter.

        The writer continues after ``LONGEST_PAUSE_S``.
        """
        self._may_write.clear()
        try:
            yield
        finally:
            self._may_write.set()

    @property
    def problem(self) -> str | None:
        """A sentence for an operator while the store has a problem, else None."""
        if self._problem is None and self._overflowed:
            return f"{self._path}: {self._overflowed} rows were dropped, because the disk is too slow"
        return self._problem

    @property
    def dropped_rows(self) -> int:
        """Number of rows that were not stored since the start."""
        return self._overflowed + self._unwritten

    def close(self) -> None:
        """Write pending rows and end; waits at most a few seconds for a slow disk."""
        with self._lock:
            self._closing = True
            self._lock.notify()
        if self._thread is not None:
            self._thread.join(timeout=10.0)
            self._thread = None

    def _add_record(self, table: str, row: Row) -> None:
        with self._lock:
            self._records.append((table, row))
            self._grown(1, RECORDS_WITHIN_S)

    def _grown(self, rows: int, within_s: float) -> None:
        """Bound the pending rows and wake the writer if it is due sooner. The caller holds the lock."""
        self._pending += rows
        self._due_s = min(self._due_s, time.monotonic() + within_s)
        while self._pending > MAX_PENDING_ROWS and (self._samples or self._records):
            # Drop samples first: there are many of them, while each decision or write is stored once.
            if self._samples:
                lost = len(self._samples.popleft()[1])
            else:
                self._records.popleft()
                lost = 1
            self._pending -= lost
            self._overflowed += lost
        if self._pending >= FLUSH_AT_ROWS or self._due_s < self._wakes_s - FLUSH_EVERY_S / 100.0:
            self._lock.notify()

    def _take(self) -> tuple[list[tuple[float, Sequence[Sample]]], list[tuple[str, Row]], int]:
        """Take the oldest pending rows, at most as many as fit between two size checks. The caller holds the lock."""
        samples: list[tuple[float, Sequence[Sample]]] = []
        records: list[tuple[str, Row]] = []
        rows = 0
        while self._records and rows < TRIM_AT_ROWS:
            records.append(self._records.popleft())
            rows += 1
        while self._samples and rows < TRIM_AT_ROWS:
            samples.append(self._samples.popleft())
            rows += len(samples[-1][1])
        self._pending -= rows
        return samples, records, rows

    def _run(self) -> None:
        writer = self._writer
        closing = False
        while not closing:
            with self._lock:
                while not self._closing and self._pending < FLUSH_AT_ROWS:
                    now_s = time.monotonic()
                    if now_s >= self._due_s:
                        break
                    self._wakes_s = min(self._due_s, now_s + FLUSH_EVERY_S)
                    self._lock.wait(self._wakes_s - now_s)
                samples, records, rows = self._take()
                closing = self._closing and not self._pending
                self._due_s = time.monotonic() if self._pending else math.inf
            if rows and not writer.write(samples, records):
                with self._lock:
                    self._unwritten += rows
            self._problem = writer.problem
        writer.close()


class _Writer:
    """Writes batches to the database, in the writing thread, and records why it cannot."""

    def __init__(self, path: Path, retention_s: float, max_bytes: int, may_write: threading.Event) -> None:
        self._path, self._retention_s, self._max_bytes = path, retention_s, max_bytes
        self._may_write, self._patient = may_write, True
        self._connection: sqlite3.Connection | None = None
        self._reasons: dict[str, list[Unavailable | None]] = {}
        self._stated_from = 0  # the row id before the oldest of these reasons
        self._batches = 0
        self._untrimmed = 0
        self._wait_batches = 0
        self._disabled: str | None = None
        self._trouble: str | None = None
        self._moved: list[str] = []
        self._given_up = 0
        self._not_stored: str | None = None

    @property
    def problem(self) -> str | None:
        """The present problem, else a sentence about lost rows, else None."""
        if self._disabled or self._trouble:
            return self._disabled or self._trouble
        return self._not_stored or (self._moved[-1] if self._moved else None)

    def write(
        self, samples: Sequence[tuple[float, Sequence[Sample]]], records: Sequence[tuple[str, Row]]
    ) -> bool:
        """Write one batch as one transaction; False if it was not stored."""
        if self._disabled is not None:
            return False
        if self._wait_batches > 0:
            self._wait_batches -= 1
            return False
        for _ in range(2):  # once more after a damaged file was replaced
            try:
                self._write(samples, records)
            except StoreRefused as exc:
                self._disabled = str(exc)
                return False
            except (sqlite3.Error, OSError) as exc:
                self.close()
                if not (_is_damage(exc) and self._move_aside(exc)):
                    self._postpone(exc)
                    return False
            except Exception as exc:
                # A value that cannot be stored, or a bug: drop only this batch.
                self.close()
                self._give_up(exc, len(records) + sum(len(tick) for _, tick in samples))
                return False
            else:
                self._trouble = None
                return True
        return False

    def _write(
        self, samples: Sequence[tuple[float, Sequence[Sample]]], records: Sequence[tuple[str, Row]]
    ) -> None:
        if self._connection is None:
            self._connection = open_database(self._path)
            self._reasons.clear()
        connection = self._connection
        self._patient = True
        self._pause()
        connection.execute("BEGIN IMMEDIATE")
        if not self._reasons:
            self._stated_from = row_ids(connection, "samples")[1]
        connection.executemany(
            _INSERT_SAMPLE, (self._row(wall_s, sample) for wall_s, tick in samples for sample in tick)
        )
        for table, row in records:
            self._pause()
            connection.execute(f"INSERT INTO {table} VALUES ({','.join('?' * len(row))})", _storable(row))
        connection.execute("COMMIT")
        self._batches += 1
        self._untrimmed += len(records) + sum(len(tick) for _, tick in samples)
        self._forget_reasons({sample.workload for _, tick in samples for sample in tick})
        if self._batches % TRIM_EVERY_BATCHES == 1 or self._untrimmed >= TRIM_AT_ROWS:
            self._untrimmed = 0
            newest_s = max([wall_s for wall_s, _ in samples] + [float(str(row[0])) for _, row in records])
            trim(connection, newest_s - self._retention_s, self._max_bytes)
            first, last = row_ids(connection, "samples")
            distance = max(TRIM_AT_ROWS, (last - first + 1) // REASONS_PER_STORE)
            if last < self._stated_from or last - self._stated_from >= distance:
                self._reasons.clear()

    def _pause(self) -> None:
        """Wait while the loop needs the interpreter; this thread's Python code would hold it for up to 5 ms."""
        if self._patient and not self._may_write.is_set():
            self._patient = self._may_write.wait(LONGEST_PAUSE_S)

    def _row(self, wall_s: float, sample: Sample) -> Row:
        self._pause()
        values: tuple[Reading, ...] = _values_of(sample)
        # The reasons are mostly the same objects as in the previous row, which compare in a microsecond.
        absent = [value if isinstance(value, Unavailable) else None for value in values]
        reasons = None
        if self._reasons.get(sample.workload) != absent:
            self._reasons[sample.workload] = absent
            missing = {
                name: value.reason for name, value in zip(READINGS, absent, strict=True) if value is not None
            }
            reasons = encodable(json.dumps(missing, separators=(",", ":"), ensure_ascii=False))
        quality = ",".join([flag.value for flag in sample.quality])
        numbers = [None if isinstance(value, Unavailable) else value for value in values]
        domains = _domains_text(sample.domains) if sample.domains else None
        return (wall_s, sample.at_s, sample.interval_s, sample.workload, quality, reasons, domains, *numbers)

    def _forget_reasons(self, present: Set[str]) -> None:
        """Drop cached reasons for missing readings.

        Every ``REASONS_EVERY_BATCHES`` batches, all reasons are dropped, and therefore stored again. Otherwise, to
        bound memory, those of workloads that are no longer sampled are dropped once they outnumber the present ones.
        """
        if self._batches % REASONS_EVERY_BATCHES == 0:
            self._reasons.clear()
        elif present and len(self._reasons) > 2 * len(present):
            self._reasons = {name: self._reasons[name] for name in present}

    def _postpone(self, exc: Exception) -> None:
        self._wait_batches = RETRY_AFTER_BATCHES
        self._trouble = (
            f"{self._path}: {exc}: nothing is stored until this is resolved; perphd retries automatically"
        )

    def _give_up(self, exc: Exception, rows: int) -> None:
        """Count rows that can never be stored; the first error is logged with its traceback."""
        if self._not_stored is None:
            _log.error("%s: %d rows cannot be stored", self._path, rows, exc_info=exc)
        self._given_up += rows
        self._not_stored = (
            f"{self._path}: {self._given_up} rows could not be stored and were dropped, the last for "
            f"{type(exc).__name__}: {exc}; later rows are stored; please report the details in the log"
        )

    def _move_aside(self, exc: Exception) -> bool:
        """Rename the damaged file, replacing an earlier one to save disk space; True if that worked."""
        aside = f"{self._path}.damaged"
        if len(self._moved) >= MAX_MOVED_ASIDE:
            self._disabled = f"{self._path}: damaged repeatedly ({exc}): nothing is stored; check the disk"
            return False
        try:
            for suffix in ("", "-wal", "-shm"):
                if os.path.exists(f"{self._path}{suffix}"):
                    os.replace(f"{self._path}{suffix}", f"{aside}{suffix}")
        except OSError:
            return False
        self._moved.append(
            f"{self._path} was damaged ({exc}); it was moved to {aside}, and a new file was created"
        )
        return True

    def close(self) -> None:
        """Close the connection to the database. Never raises."""
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except sqlite3.Error:
                return


def _storable(row: Row) -> Row:
    """The row with texts that SQLite accepts, because paths may contain bytes that are not UTF-8."""
    return tuple(encodable(value) if isinstance(value, str) else value for value in row)


def _domains_text(domains: Sequence[DomainUse]) -> str:
    """``[[0,1048576,2000000000],[1,null,null]]``: domain, bytes of cache, bytes per second; whole numbers."""
    rows = [
        [use.domain, *(None if isinstance(v, Unavailable) else round(v) for v in values)]
        for use in domains
        for values in [(use.llc_occupancy_bytes, use.mbw_bytes_per_s)]
    ]
    return json.dumps(rows, separators=(",", ":"))


def _number(reading: Reading) -> float | None:
    return reading if available(reading) else None


def _is_damage(exc: Exception) -> bool:
    code = getattr(exc, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
