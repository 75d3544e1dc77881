"""Stores jobs persistently: an interface of four functions, and an SQLite implementation.

Every transition is one transaction, on disk before ``apply`` returns (WAL with ``synchronous = FULL``). If a process is
killed at any moment, each job is before or after a transition, never between. Transitions read, decide and write under
one lock, so two processes cannot both start a job.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, Protocol

from perphd.batch.job import JobEvent, JobSpec, JobState, QueuedJob, Started, TransitionRefused, after
from perphd.domain.errors import PerphError
from perphd.qos.bands import QosBand

SCHEMA_VERSION: Final = 1
_DDL: Final = f"""
CREATE TABLE jobs (
    id INTEGER PRIMARY KEY AUTOINCREMENT, state TEXT NOT NULL, uid INTEGER NOT NULL, submitted_s REAL NOT NULL,
    record TEXT NOT NULL  -- JSON: the whole job
);
CREATE INDEX jobs_by_state ON jobs (state);
CREATE TABLE transitions (
    job INTEGER NOT NULL REFERENCES jobs (id) ON DELETE CASCADE, at_s REAL NOT NULL, event TEXT NOT NULL,
    state TEXT NOT NULL, reason TEXT NOT NULL
);
CREATE INDEX transitions_by_job ON transitions (job);
PRAGMA user_version = {SCHEMA_VERSION};
"""


_JOB: Final = tuple(each.name for each in fields(QueuedJob))
_SPEC: Final = tuple(each.name for each in fields(JobSpec))


class QueueError(PerphError):
    """The queue's file cannot be read or written; nothing was changed."""


class JobQueue(Protocol):
    """Storage for jobs that survives the process."""

    def submit(self, specs: Sequence[JobSpec], at_s: float) -> list[QueuedJob]:
        """Store new jobs, all or none, and return them with their numbers."""
        ...

    def job(self, number: int) -> QueuedJob | None:
        """The job with this number; None if there is none."""
        ...

    def jobs(self, states: Collection[JobState] = ()) -> list[QueuedJob]:
        """Jobs in one of these states, oldest first; jobs in any state if none is given."""
        ...

    def apply(self, number: int, event: JobEvent) -> QueuedJob | TransitionRefused:
        """Apply ``event`` to the job and store the result. Raises ``KeyError`` if there is no such job."""
        ...


class SqliteQueue:
    """A ``JobQueue`` in an SQLite file, for use in one thread. Close it when done."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._errors("opened"):
            self._database = sqlite3.connect(path, isolation_level=None, timeout=10.0)
            self._prepare()

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def submit(self, specs: Sequence[JobSpec], at_s: float) -> list[QueuedJob]:
        """Store new jobs, all or none, and return them with their numbers."""
        with self._transaction() as database:
            # AUTOINCREMENT keeps the greatest number ever used, including those of forgotten jobs.
            row = database.execute("SELECT seq FROM sqlite_sequence WHERE name = 'jobs'").fetchone()
            first = 1 if row is None else int(row[0]) + 1
            jobs = [QueuedJob(first + n, spec, at_s, since_s=at_s) for n, spec in enumerate(specs)]
            database.executemany(
                "INSERT INTO jobs (id, state, uid, submitted_s, record) VALUES (?, ?, ?, ?, ?)",
                ((job.id, job.state, job.spec.uid, at_s, _text(job)) for job in jobs),
            )
        return jobs

    def skip_to(self, number: int) -> None:
        """Give new jobs numbers above this one."""
        with self._transaction() as database:
            row = database.execute("SELECT seq FROM sqlite_sequence WHERE name = 'jobs'").fetchone()
            if row is None:
                database.execute("INSERT INTO sqlite_sequence VALUES ('jobs', ?)", (number,))
            elif int(row[0]) < number:
                database.execute("UPDATE sqlite_sequence SET seq = ? WHERE name = 'jobs'", (number,))

    def job(self, number: int) -> QueuedJob | None:
        """The job with this number; None if there is none."""
        with self._errors("read"):
            row = self._database.execute("SELECT record FROM jobs WHERE id = ?", (number,)).fetchone()
        return None if row is None else self._read(number, row[0])

    def jobs(self, states: Collection[JobState] = ()) -> list[QueuedJob]:
        """Jobs in one of these states, oldest first; jobs in any state if none is given."""
        wanted = list(states or JobState)
        marks = ", ".join("?" * len(wanted))
        with self._errors("read"):
            rows = self._database.execute(
                f"SELECT id, record FROM jobs WHERE state IN ({marks}) ORDER BY id", wanted
            ).fetchall()
        return [self._read(*row) for row in rows]

    def apply(self, number: int, event: JobEvent) -> QueuedJob | TransitionRefused:
        """Apply ``event`` to the job and store the result. Raises ``KeyError`` if there is no such job."""
        with self._transaction() as database:
            row = database.execute("SELECT record FROM jobs WHERE id = ?", (number,)).fetchone()
            if row is None:
                raise KeyError(number)
            job = after(self._read(number, row[0]), event)
            if isinstance(job, TransitionRefused):
                return job
            database.execute(
                "UPDATE jobs SET state = ?, record = ? WHERE id = ?", (job.state, _text(job), number)
            )
            database.execute(
                "INSERT INTO transitions VALUES (?, ?, ?, ?, ?)",
                (number, event.at_s, type(event).__name__, job.state, event.reason),
            )
        return job

    def transitions(self, number: int) -> list[tuple[float, str, JobState, str]]:
        """Transitions of a job, oldest first: time, event, resulting state and reason."""
        with self._errors("read"):
            rows = self._database.execute(
                "SELECT at_s, event, state, reason FROM transitions WHERE job = ? ORDER BY rowid", (number,)
            ).fetchall()
        return [
            (float(at_s), str(event), JobState(state), str(reason)) for at_s, event, state, reason in rows
        ]

    def last_starts(self) -> dict[int, float]:
        """Time of the last start of every job that was started."""
        with self._errors("read"):
            rows = self._database.execute(
                "SELECT job, MAX(at_s) FROM transitions WHERE event = ? GROUP BY job", (Started.__name__,)
            ).fetchall()
        return {int(number): float(at_s) for number, at_s in rows}

    def forget(self, ended_before_s: float, kept: Collection[int] = ()) -> int:
        """Delete jobs that ended before this time, except those in ``kept``. Returns their number."""
        ended = [state for state in JobState if state.ended]
        with self._transaction() as database:
            found = database.execute(
                f"DELETE FROM jobs WHERE state IN ({', '.join('?' * len(ended))}) "
                "AND json_extract(record, '$.since_s') < ? AND id NOT IN (SELECT value FROM json_each(?))",
                (*ended, ended_before_s, json.dumps(sorted(kept))),
            )
        return found.rowcount

    def _prepare(self) -> None:
        database = self._database
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.execute("PRAGMA foreign_keys = ON")
        database.execute("BEGIN IMMEDIATE")
        try:
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if version == 0:
                for statement in _DDL.split(";"):
                    database.execute(statement)
            elif version != SCHEMA_VERSION:
                raise QueueError(
                    f"{self._path}: the queue has format {version}, and this version reads {SCHEMA_VERSION}; "
                    "use the version of perphd that wrote it, or move the file away"
                )
        except BaseException:
            database.execute("ROLLBACK")
            raise
        database.execute("COMMIT")

    def _read(self, number: int, text: str) -> QueuedJob:
        try:
            return _job(text)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            raise QueueError(
                f"{self._path}: job {number} cannot be read: {error!r}; use the version of perphd that wrote it, or "
                "move the file away"
            ) from error

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._errors("written"):
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield self._database
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:  # a full disk makes SQLite end the transaction by itself
                    self._database.execute("ROLLBACK")
                raise

    @contextmanager
    def _errors(self, done: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise QueueError(
                f"{self._path}: the queue cannot be {done}: {error}; nothing was changed. "
                "Check the disk's free space and the file's permissions"
            ) from error


def _text(job: QueuedJob) -> str:
    # By hand: all jobs are read at each start, and domain.wire takes four times as long for each (205 us, not 48).
    record = {name: getattr(job, name) for name in _JOB}
    record["spec"] = {name: getattr(job.spec, name) for name in _SPEC}
    return json.dumps(record, separators=(",", ":"))


def _job(text: str) -> QueuedJob:
    record: dict[str, Any] = json.loads(text)
    spec = record.pop("spec")
    spec["command"] = tuple(spec["command"])
    spec["environment"] = tuple((name, value) for name, value in spec["environment"])
    spec["elastic"] = None if spec["elastic"] is None else (spec["elastic"][0], spec["elastic"][1])
    spec["array"] = None if spec["array"] is None else (spec["array"][0], spec["array"][1])
    spec["after"] = tuple(spec["after"])
    spec["groups"] = tuple(spec["groups"])
    spec["band"] = QosBand(spec["band"])
    record["state"] = JobState(record["state"])
    return QueuedJob(spec=JobSpec(**spec), **record)
