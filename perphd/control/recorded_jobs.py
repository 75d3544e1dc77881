"""Records the daemon's ended jobs in the job history."""

from __future__ import annotations

import logging
import pwd
import re
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from perphd.domain.errors import PerphError
from perphd.domain.job import EndedJob
from perphd.forecast.history.features import JobDescription
from perphd.forecast.history.store import JobHistory, Quantity

log = logging.getLogger("perphd.forecast")

_INSTANCE: Final = re.compile(r"(?<=@)[^.]+(?=\.)|[0-9a-f]{12,}|\d+")
"""The parts in which the names of similar units differ: an instance, a number, an invocation id."""


class RecordedJobs:
    """Records jobs in a file. ``rows``: number of rows that the file keeps; 0: recording is off."""

    def __init__(self, path: Path, rows: int) -> None:
        self._path, self._rows = path, rows

    def record(self, jobs: Sequence[EndedJob], now_s: float) -> str:
        """Record these jobs. Returns the problem, or an empty text. Commands may use the file concurrently."""
        if not jobs or not self._rows:
            return ""
        try:
            with JobHistory(self._path) as history:
                for job in jobs:
                    history.complete(facts_of(job), _took(job.took), now_s)
        except (PerphError, sqlite3.Error, ValueError) as exc:
            return f"{len(jobs)} ended jobs are not recorded: {self._path}: {exc}"
        return ""

    def prune(self) -> None:
        """Delete rows beyond ``rows``."""
        if not self._rows or not self._path.exists():
            return
        try:
            with JobHistory(self._path) as history:
                history.prune(self._rows)
        except (PerphError, sqlite3.Error) as exc:
            log.warning("the job history cannot be pruned: %s: %s", self._path, exc)


def facts_of(job: EndedJob) -> JobDescription:
    """The job's features in the history."""
    return JobDescription(
        _user(job.uid),
        _INSTANCE.sub("#", job.image) if job.image.endswith((".service", ".scope", ".slice")) else job.image,
        job.name,
        job.argv,
        job.requested_cores,
        job.requested_bytes,
        job.hour,
    )


def _took(took: Mapping[str, float]) -> dict[Quantity, float]:
    return {Quantity(name): amount for name, amount in took.items()}


def _user(uid: int | None) -> str:
    if uid is None:
        return ""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
