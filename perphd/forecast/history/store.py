"""The history in an SQLite file: one row per feature value and quantity, constant in size.

A prediction reads one short row per feature value of the job, and only the best row's histogram. Times come
from the caller. An export is a file of JSON lines that begins with its own identity: importing it again changes
nothing.
"""

from __future__ import annotations

import json
import math
import sqlite3
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from perphd.domain.errors import PerphError
from perphd.forecast.histogram import Histogram, as_record, from_record
from perphd.forecast.history.experts import (
    SCORED,
    Estimator,
    FeatureRecord,
    best_estimator,
    completed,
    estimate,
    joined,
)
from perphd.forecast.history.features import JobDescription, feature_values

FORMAT: Final = "perphd job history 2"
LEAST_SCORES: Final = 3
"""Number of scored jobs that an expert needs to compete. If none has as many, the one with most samples is used."""
NEAR: Final = 1.15
"""Factor within which experts' errors count as equal; among these, the one with the newest job acts. Thus an
expert that was good long ago gives way to newer ones.
"""
_STATE: Final = struct.Struct("<dqqq")
_SCORE: Final = 1 + len(Estimator)
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS records (
    feature TEXT NOT NULL, quantity TEXT NOT NULL, updated_s REAL NOT NULL, samples INTEGER NOT NULL,
    estimator TEXT NOT NULL, error REAL, state BLOB NOT NULL, distribution TEXT NOT NULL,
    PRIMARY KEY (feature, quantity)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS imported (identity TEXT PRIMARY KEY) WITHOUT ROWID;
"""


class Quantity(Enum):
    """A predicted property of a job."""

    RUN_TIME_S = "run_time_s"
    CPU_TIME_S = "cpu_time_s"
    INSTRUCTIONS = "instructions"
    MEMORY_BYTES = "memory_bytes"
    ENOUGH_CORES = "enough_cores"
    ENOUGH_WAYS = "enough_ways"
    ENOUGH_BYTES_PER_S = "enough_bytes_per_s"
    ENOUGH_DISK_BYTES_PER_S = "enough_disk_bytes_per_s"
    WORK_ERROR_SHARE = "work_error_share"


class HistoryRefused(PerphError):
    """A history file cannot be read or imported."""


@dataclass(frozen=True, slots=True)
class JobPrediction:
    """The acting expert (feature value and estimator), its point estimate and the feature value's distribution."""

    quantity: Quantity
    feature: str
    estimator: Estimator
    estimate: float
    error: float
    distribution: Histogram


class JobHistory:
    """Records of completed jobs; a context manager. ``path`` may be ``:memory:``."""

    def __init__(self, path: str | Path) -> None:
        self._path = str(path)
        try:
            self._database = sqlite3.connect(self._path)
            self._database.executescript(_SCHEMA)
            self._database.execute("PRAGMA journal_mode = WAL")
        except sqlite3.Error as exc:
            raise HistoryRefused(f"{self._path}: the job history cannot be stored here: {exc}") from exc

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def complete(self, facts: JobDescription, outcome: Mapping[Quantity, float], now_s: float) -> None:
        """Learn from a job that ended, in one transaction."""
        with self._database:
            for feature in feature_values(facts):
                for quantity, actual in outcome.items():
                    record = self._record(feature, quantity) or FeatureRecord()
                    self._put(feature, quantity, completed(record, actual), now_s)

    def predict(self, facts: JobDescription, quantity: Quantity) -> JobPrediction | None:
        """The prediction of the expert with the least error; None if no feature value has a history."""
        features = feature_values(facts)
        if not features:
            return None
        found = self._database.execute(
            "SELECT feature, samples, updated_s, estimator, error FROM records WHERE quantity = ? AND feature IN "
            f"({', '.join('?' * len(features))})",
            (quantity.value, *features),
        ).fetchall()
        if not found:
            return None
        acting = _acting([_Expert(*row) for row in found], features)
        feature, estimator = acting.feature, Estimator(acting.estimator)
        record = self._record(feature, quantity)
        if record is None:
            return None
        error = best_estimator(record)[1]
        return JobPrediction(
            quantity, feature, estimator, estimate(record, estimator), error, record.distribution
        )

    def prune(self, most: int) -> int:
        """Delete the rows whose latest job is oldest until ``most`` are left. Returns the number deleted."""
        over = len(self) - most
        if over <= 0:
            return 0
        with self._database:
            return self._database.execute(
                "DELETE FROM records WHERE (feature, quantity) IN "
                "(SELECT feature, quantity FROM records ORDER BY updated_s LIMIT ?)",
                (over,),
            ).rowcount

    def clear(self, prefix: str = "") -> int:
        """Delete all feature values that begin with ``prefix``, and pairs with them.

        Returns the number of rows deleted.
        """
        with self._database:
            if not prefix:
                self._database.execute("DELETE FROM imported")
            return self._database.execute(
                "DELETE FROM records WHERE substr(feature, 1, ?) = ? OR instr(feature, ?)",
                (len(prefix), prefix, f" & {prefix}"),
            ).rowcount

    def __len__(self) -> int:
        return int(self._database.execute("SELECT count(*) FROM records").fetchone()[0])

    def exported(self) -> Iterator[str]:
        """The history as lines of text, the identity first."""
        rows = self._database.execute(
            "SELECT feature, quantity, updated_s, state, distribution FROM records ORDER BY feature, quantity"
        )
        lines = [
            json.dumps(
                {"feature": feature, "quantity": quantity, "updated_s": updated_s, "state": state.hex(),
                 "distribution": json.loads(distribution)}
            )
            for feature, quantity, updated_s, state, distribution in rows
        ]  # fmt: skip
        yield from as_export(lines)

    def merge(self, lines: Iterable[str], source: str) -> int:
        """Import another node's export, all or nothing. Returns the number of rows; 0 if it was already imported."""
        found = list(lines)
        number, rows = 1, []
        try:
            head = json.loads(found[0])
            for line in found[1:]:
                number += 1
                rows.append(_read(line))
        except (IndexError, ValueError, KeyError, TypeError, struct.error) as exc:
            problem = f"line {number} does not belong to a job history" if found else "it is empty"
            raise HistoryRefused(
                f"{source}: {problem}; give a file that perphctl history export wrote"
            ) from exc
        if (
            not isinstance(head, dict)
            or head.get("format") != FORMAT
            or head.get("identity") != _identity(found[1:])
        ):
            raise HistoryRefused(
                f"{source}: not a complete file of the format {FORMAT!r}; export the history again"
            )
        with self._database:
            try:
                self._database.execute("INSERT INTO imported VALUES (?)", (head["identity"],))
            except sqlite3.IntegrityError:
                return 0
            for feature, quantity, updated_s, record in rows:
                own = self._database.execute(
                    "SELECT updated_s FROM records WHERE feature = ? AND quantity = ?",
                    (feature, quantity.value),
                ).fetchone()
                known = self._record(feature, quantity)
                if own is None or known is None:
                    self._put(feature, quantity, record, updated_s)
                else:
                    older, newer = (known, record) if own[0] <= updated_s else (record, known)
                    self._put(feature, quantity, joined(older, newer), max(own[0], updated_s))
        return len(rows)

    def _record(self, feature: str, quantity: Quantity) -> FeatureRecord | None:
        row = self._database.execute(
            "SELECT state, distribution FROM records WHERE feature = ? AND quantity = ?",
            (feature, quantity.value),
        ).fetchone()
        return None if row is None else _unpacked(row[0], from_record(json.loads(row[1])))

    def _put(self, feature: str, quantity: Quantity, record: FeatureRecord, now_s: float) -> None:
        estimator, error = best_estimator(record)
        self._database.execute(
            "INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                feature,
                quantity.value,
                now_s,
                record.samples,
                estimator.value,
                error if record.scored >= LEAST_SCORES else None,
                _packed(record),
                json.dumps(as_record(record.distribution)),
            ),
        )


@dataclass(frozen=True, slots=True)
class _Expert:
    """A feature value with its best estimator and that estimator's error; error None: it does not compete yet."""

    feature: str
    samples: int
    updated_s: float
    estimator: str
    error: float | None


def _acting(known: Sequence[_Expert], features: Sequence[str]) -> _Expert:
    """The acting expert: among those that are nearly the best, the one with the newest job."""
    competing = [(each.error, each) for each in known if each.error is not None]
    if not competing:
        return max(known, key=lambda each: (each.samples, -features.index(each.feature)))
    most = NEAR * min(error for error, _ in competing)
    near = [
        (-each.updated_s, error, features.index(each.feature), each)
        for error, each in competing
        if error <= most
    ]
    return min(near, key=lambda found: found[:3])[3]


def as_export(rows: Sequence[str]) -> Iterator[str]:
    """An export of these rows: its identity, then the rows."""
    yield json.dumps({"format": FORMAT, "identity": _identity(rows), "rows": len(rows)})
    yield from rows


def _packed(record: FeatureRecord) -> bytes:
    head = _STATE.pack(record.rolling, record.scored, record.drifts, len(record.scores))
    numbers = (*(number for score in record.scores for number in score), *record.recent)
    return head + struct.pack(f"<{len(numbers)}d", *numbers)


def _unpacked(state: bytes, distribution: Histogram) -> FeatureRecord:
    rolling, scored, drifts, count = _STATE.unpack_from(state)
    rest = state[_STATE.size :]
    numbers = struct.unpack(f"<{len(rest) // 8}d", rest)
    if not all(map(math.isfinite, numbers)):
        raise ValueError("the record contains numbers that are not finite")
    if not 0 <= count <= min(SCORED, len(numbers) // _SCORE):
        raise ValueError(
            f"the record announces {count} scores; its {len(numbers)} numbers hold at most "
            f"{min(SCORED, len(numbers) // _SCORE)}"
        )
    scores = tuple(numbers[i * _SCORE : (i + 1) * _SCORE] for i in range(count))
    return FeatureRecord(distribution, rolling, numbers[count * _SCORE :], scores, int(scored), int(drifts))


def _read(line: str) -> tuple[str, Quantity, float, FeatureRecord]:
    row = json.loads(line)
    record = _unpacked(bytes.fromhex(row["state"]), from_record(row["distribution"]))
    return str(row["feature"]), Quantity(row["quantity"]), float(row["updated_s"]), record


def _identity(lines: Iterable[str]) -> str:
    digest = sha256()
    for line in lines:
        digest.update(line.encode())
    return digest.hexdigest()
