"""Cost of a job history with 100,000 feature values: a prediction, learning a job, a record's bytes.

Each is the worst case: every record is full (80 bins, 40 recent values), and all seven facts of every queried job are
known, with their 21 pairs: 28 experts compete. A prediction is one quantity's point estimate and distribution, both
from an open file and from a file opened for the query, as in the batch queue.

With ``realtime`` the queries run at a real-time priority, so that other processes do not affect the times. CPU time is
given as well: if both agree, there was no disturbance.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from perphd.forecast.history.features import JobDescription, feature_values
from perphd.forecast.history.store import JobHistory, Quantity, as_export

BUDGET_MS: Final = 2.0
"""Budget of the 99th percentile of a prediction, in ms."""
VALUES: Final = 100_000
PREDICTIONS: Final = 5000
LEARNED: Final = 300
JOBS_OF_A_RECORD: Final = (10, 100, 1000)
RUN: Final = Quantity.RUN_TIME_S
_TEMPLATES: Final = 4
_TEMPLATE_JOBS: Final = 150
_WRITTEN_AT_ONCE: Final = 5000


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds of one kind of query: wall time, and CPU time of the calling thread."""

    p50: float
    p99: float
    most: float
    cpu_p50: float
    cpu_p99: float


@dataclass(frozen=True, slots=True)
class HistoryCost:
    """``opened``: a prediction that opens the file. ``row_bytes``: size of one record after that many jobs."""

    values: int
    file_bytes: int
    prediction: Times
    opened: Times
    learning: Times
    row_bytes: dict[int, int]


def measure(
    values: int = VALUES, predictions: int = PREDICTIONS, seed: int = 22, *, realtime: bool = False
) -> HistoryCost:
    """Fill a history with this number of feature values, and query it."""
    random = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory(prefix="perphd-bench-", dir="/var/tmp") as folder:
        path = Path(folder) / "jobs.sqlite"
        with JobHistory(path) as history:
            jobs = filled(history, values, random)
        asked = [jobs[int(place)] for place in random.integers(len(jobs), size=predictions)]

        def opened(facts: JobDescription) -> None:
            with JobHistory(path) as other:
                _predict(other, facts)

        with undisturbed(realtime):
            with JobHistory(path) as history:
                prediction = _timed(lambda facts: _predict(history, facts), asked)
                learning = _timed(lambda facts: history.complete(facts, {RUN: 100.0}, 1.0), asked[:LEARNED])
            opening = _timed(opened, asked)
        size = sum(each.stat().st_size for each in Path(folder).iterdir())
    return HistoryCost(values, size, prediction, opening, learning, row_bytes(random))


def filled(history: JobHistory, values: int, random: np.random.Generator) -> list[JobDescription]:
    """Store full records of ``values`` feature values; returns jobs with only these feature values."""
    templates = [_template(random) for _ in range(_TEMPLATES)]
    jobs: list[JobDescription] = []
    known: dict[str, None] = {}
    while len(known) < values:
        facts = _job(random)
        known.update(dict.fromkeys(feature_values(facts)))
        if len(known) <= values:
            jobs.append(facts)
    features = list(known)[:values]
    for first in range(0, values, _WRITTEN_AT_ONCE):
        rows = [
            json.dumps(templates[place % _TEMPLATES] | {"feature": feature})
            for place, feature in enumerate(features[first : first + _WRITTEN_AT_ONCE])
        ]
        history.merge(as_export(rows), "bench")
    return jobs


def row_bytes(random: np.random.Generator) -> dict[int, int]:
    """The record of one feature value after this number of jobs."""
    found, learned = {}, 0
    with tempfile.TemporaryDirectory(prefix="perphd-bench-") as folder:
        path = Path(folder) / "jobs.sqlite"
        for jobs in JOBS_OF_A_RECORD:
            with JobHistory(path) as history:
                for value in random.lognormal(5, 0.5, jobs - learned):
                    history.complete(JobDescription(name="one"), {RUN: float(value)}, 0.0)
            learned = jobs
            with contextlib.closing(sqlite3.connect(path)) as database:
                query = "SELECT length(feature) + length(state) + length(distribution) FROM records"
                found[jobs] = int(database.execute(query).fetchone()[0])
    return found


def lines(found: HistoryCost) -> list[str]:
    """The part of the report about the history."""
    verdict = "within" if found.prediction.p99 <= BUDGET_MS else "over"
    kinds = {
        "prediction, open file": found.prediction,
        "prediction that opens the file": found.opened,
        "a job that ended, learned in all its 28 records": found.learning,
    }
    rows = [
        f"| {name} | {times.p50:.2f} | {times.p99:.2f} | {times.most:.2f} | {times.cpu_p50:.2f} | {times.cpu_p99:.2f} |"
        for name, times in kinds.items()
    ]
    sizes = ", ".join(f"{size / 1024:.1f} KiB after {jobs}" for jobs, size in found.row_bytes.items())
    return [
        "## Job history",
        "",
        f"{found.values} feature values, all records full, {found.file_bytes / 2**20:.0f} MiB. The 99th percentile of "
        f"a prediction is {verdict} {BUDGET_MS:g} ms. Milliseconds:",
        "",
        "| | p50 | p99 | greatest | CPU p50 | CPU p99 |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        *rows,
        "",
        f"One record holds {sizes} jobs.",
        "",
    ]


def _template(random: np.random.Generator) -> dict[str, Any]:
    """A full record in the form of an export."""
    level = random.lognormal(5, 1)
    with JobHistory(":memory:") as history:
        for value in level * random.lognormal(0, 0.5, _TEMPLATE_JOBS):
            history.complete(JobDescription(name="template"), {RUN: float(value)}, 0.0)
        row: dict[str, Any] = json.loads(list(history.exported())[1])
    return row


def _job(random: np.random.Generator) -> JobDescription:
    """A run of one of 3000 programs by one of 400 users."""
    program = int(random.integers(3000))
    return JobDescription(
        user=f"user{int(random.integers(400))}",
        image=f"registry.example.org/team{program % 40}/program{program}",
        name=f"program{program}-{'abcdefgh'[int(random.integers(8))]}",
        argv=(
            "python3",
            f"/srv/program-{program % 700:x}/main.py",
            "--seed",
            "17",
            f"--part={'xyz'[program % 3]}",
        ),
        requested_cores=float(2 ** random.integers(0, 5)),
        requested_bytes=float(2 ** random.integers(28, 36)),
        hour=int(random.integers(24)),
    )


def _predict(history: JobHistory, facts: JobDescription) -> None:
    if history.predict(facts, RUN) is None:
        raise RuntimeError(f"the history has no record of {facts}")


def _timed(work: Callable[[JobDescription], object], asked: Sequence[JobDescription]) -> Times:
    wall, cpu = [], []
    for facts in asked:
        began, began_cpu = time.perf_counter_ns(), time.thread_time_ns()
        work(facts)
        cpu.append(time.thread_time_ns() - began_cpu)
        wall.append(time.perf_counter_ns() - began)
    p50, p99, most = (float(each) / 1e6 for each in np.quantile(wall, (0.5, 0.99, 1.0)))
    cpu_p50, cpu_p99 = (float(each) / 1e6 for each in np.quantile(cpu, (0.5, 0.99)))
    return Times(p50, p99, most, cpu_p50, cpu_p99)


@contextlib.contextmanager
def undisturbed(realtime: bool) -> Iterator[None]:
    """Use a real-time priority within the block if requested. Needs root."""
    if not realtime:
        yield
        return
    before = os.sched_getscheduler(0)
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    try:
        yield
    finally:
        os.sched_setscheduler(0, before, os.sched_param(0))
