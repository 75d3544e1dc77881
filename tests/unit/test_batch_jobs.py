"""The life of a job, and the queue's file under kill -9, a full disk and a second process."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perphd.agent.queue.jobs import QueueJobs
from perphd.batch.job import (
    PREEMPTION_BACKOFF,
    STARTABLE,
    CancelledBy,
    Confirmed,
    Considered,
    Exited,
    FrozenFor,
    JobEvent,
    JobSpec,
    JobState,
    Lost,
    NeverStarted,
    QueuedJob,
    RequeuedFor,
    Started,
    Thawed,
    TransitionRefused,
    UnitEvidence,
    after,
    recovery,
)
from perphd.batch.store import QueueError, SqliteQueue
from perphd.qos.bands import QosBand

SPEC = JobSpec("nightly; rm -rf $HOME", ("sh", "-c", "echo 'ü'"), 1000, 1000, "/tmp", 2.0, 1 << 30)
FULL_SPEC = replace(
    SPEC,
    environment=(("A", "1 2"), ("B", "")),
    band=QosBand.SILVER,
    deadline_s=2e9,
    elastic=(1, 4),
    after=(1, 2),
    retries=3,
    groups=(4, 27),
    limited=True,
    array=(2, 5),
    output="out.txt",
)
JOB = QueuedJob(7, SPEC, 100.0, since_s=100.0)


def _lived(job: QueuedJob, *events: JobEvent) -> QueuedJob:
    for event in events:
        result = after(job, event)
        assert isinstance(result, QueuedJob), result
        job = result
    return job


def _why_not(job: QueuedJob, event: JobEvent) -> str:
    result = after(job, event)
    assert isinstance(result, TransitionRefused)
    assert result.job == job
    return result.reason


# --- transitions ---------------------------------------------------------------------------------------------


def test_a_job_waits_runs_and_is_done() -> None:
    job = _lived(JOB, Considered(101, "memory: 4 GiB are free"))
    assert (job.state, job.reason) == (JobState.WAITING, "memory: 4 GiB are free")
    job = _lived(job, Started(110), Confirmed(111))
    assert (job.state, job.unit, job.confirmed) == (JobState.RUNNING, "perphd-job-7-1.service", True)
    job = _lived(job, Exited(141, 0))
    assert (job.state, job.status, job.ran_s) == (JobState.DONE, 0, 30.0)
    assert _why_not(job, Started(150)) == "job 7 is done: no further change is possible"


def test_a_failed_job_is_retried_as_often_as_it_may() -> None:
    job = replace(JOB, spec=replace(SPEC, retries=1))
    job = _lived(job, Started(0), Confirmed(0), Exited(50, 3))
    assert (job.state, job.failures, job.lost_s) == (JobState.REQUEUED, 1, 50.0)
    job = _lived(job, Started(60), Exited(70, 4))
    assert (job.state, job.status, job.attempt) == (JobState.FAILED, 4, 2)


def test_a_preempted_job_is_frozen_then_requeued_as_one_preemption() -> None:
    running = _lived(JOB, Started(0), Confirmed(0))
    frozen = _lived(running, FrozenFor(100, "job 9 needs its memory"))
    assert (frozen.preemptions, frozen.ran_s) == (1, 100.0)
    again = _lived(frozen, RequeuedFor(150, "job 9 still needs it"))
    assert (again.state, again.preemptions, again.lost_s) == (JobState.REQUEUED, 1, 100.0)
    later = _lived(again, Started(160), Confirmed(160))
    assert "protected for another 40 s" in _why_not(later, FrozenFor(360, "x"))
    assert "protected for another 40 s" in _why_not(later, RequeuedFor(360, "x"))
    second = _lived(later, FrozenFor(100 + PREEMPTION_BACKOFF.first_s, "x"))
    assert second.not_preempted_before_s == 100 + 3 * PREEMPTION_BACKOFF.first_s  # doubled
    thawed = _lived(second, Thawed(500))
    assert (thawed.state, thawed.ran_s) == (JobState.RUNNING, 240.0)
    assert _lived(thawed, RequeuedFor(501, "the host reboots", preempted=False)).preemptions == 2


def test_silver_is_never_preempted() -> None:
    running = _lived(replace(JOB, spec=FULL_SPEC), Started(0), Confirmed(0))
    assert "never preempted" in _why_not(running, FrozenFor(1, "x"))
    assert "never preempted" in _why_not(running, RequeuedFor(1, "x"))


@pytest.mark.parametrize(
    ("evidence", "confirmed", "state", "attempt"),
    [
        (UnitEvidence.RUNS, False, JobState.RUNNING, 1),
        (UnitEvidence.RUNS, True, JobState.RUNNING, 1),
        (UnitEvidence.ENDED, False, JobState.DONE, 1),
        (UnitEvidence.ENDED, True, JobState.DONE, 1),
        (UnitEvidence.NEVER_STARTED, False, JobState.REQUEUED, 0),
        (UnitEvidence.NEVER_STARTED, True, JobState.FAILED, 1),  # it ran, and its trace is gone
        (UnitEvidence.UNKNOWN, False, JobState.FAILED, 1),
        (UnitEvidence.UNKNOWN, True, JobState.FAILED, 1),
    ],
)
def test_recovery_never_starts_a_job_of_which_nobody_knows_whether_it_ran(
    evidence: UnitEvidence, confirmed: bool, state: JobState, attempt: int
) -> None:
    job = _lived(JOB, Started(0), *([Confirmed(0)] if confirmed else []))
    event = recovery(job, evidence, 10.0)
    job = job if event is None else _lived(job, event)
    assert (job.state, job.attempt) == (state, attempt)
    assert recovery(JOB, evidence, 10.0) is None


EVENTS = st.one_of(
    st.builds(Considered, st.just(0.0), st.text(max_size=3)),
    st.builds(Started, st.just(0.0)),
    st.builds(Confirmed, st.just(0.0)),
    st.builds(FrozenFor, st.just(0.0), st.just("x")),
    st.builds(Thawed, st.just(0.0)),
    st.builds(RequeuedFor, st.just(0.0), st.just("x"), st.booleans()),
    st.builds(Exited, st.just(0.0), st.integers(0, 2)),
    st.builds(CancelledBy, st.just(0.0), st.just("root")),
    st.builds(NeverStarted, st.just(0.0)),
    st.builds(Lost, st.just(0.0)),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(EVENTS, st.floats(0, 400)), max_size=20), st.sampled_from([SPEC, FULL_SPEC]))
def test_no_history_ends_twice_or_preempts_within_the_back_off(
    history: list[tuple[JobEvent, float]], spec: JobSpec
) -> None:
    job, now_s, preempted_s, runs = replace(JOB, spec=spec), 0.0, [], 0
    for event, wait_s in history:
        now_s += wait_s
        result = after(job, replace(event, at_s=now_s))
        if isinstance(result, TransitionRefused):
            assert result.reason
            continue
        assert not job.state.ended
        runs += isinstance(event, Started) - isinstance(event, NeverStarted)
        assert result.attempt == runs
        assert not (isinstance(event, Started) and job.state not in STARTABLE)
        if result.preemptions > job.preemptions:
            assert not spec.band.protected
            preempted_s.append(now_s)
        assert result.ran_s >= 0
        job = result
    gaps = [b - a for a, b in pairwise(preempted_s)]
    assert all(gap >= PREEMPTION_BACKOFF.first_s * 2**n - 1e-6 for n, gap in enumerate(gaps))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"command": ()}, "command of a job is empty"),
        ({"command": ("",)}, "command of a job is empty"),
        ({"command": ("a\0b",)}, "not contain NUL"),
        ({"name": ""}, "one line"),
        ({"name": "a\nb"}, "one line"),
        ({"cpus": 0.0}, "more than 0 CPUs"),
        ({"cpus": float("nan")}, "more than 0 CPUs"),
        ({"memory_bytes": 0}, "more than 0 CPUs"),
        ({"band": QosBand.GOLD}, "copper or silver"),
        ({"elastic": (3, 2)}, "elastic"),
        ({"retries": -1}, "retries"),
    ],
)
def test_an_impossible_job_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        replace(SPEC, **changes)  # type: ignore[arg-type]


# --- the file ------------------------------------------------------------------------------------------------


def test_jobs_outlive_the_process_with_all_they_have(tmp_path: Path) -> None:
    queue = SqliteQueue(tmp_path / "queue.db")
    first, second = queue.submit([SPEC, FULL_SPEC], 50.0)
    started = queue.apply(first.id, Started(60.0, "fits"))
    queue.close()
    queue = SqliteQueue(tmp_path / "queue.db")
    assert queue.jobs() == [started, second]
    assert queue.jobs([JobState.QUEUED]) == [second]
    assert queue.job(99) is None
    assert queue.transitions(first.id) == [(60.0, "Started", JobState.RUNNING, "fits")]
    with pytest.raises(KeyError):
        queue.apply(99, Started(0.0))
    queue.close()


def test_two_processes_cannot_both_start_a_job(tmp_path: Path) -> None:
    one, two = SqliteQueue(tmp_path / "queue.db"), SqliteQueue(tmp_path / "queue.db")
    (job,) = one.submit([SPEC], 0.0)
    assert isinstance(one.apply(job.id, Started(1.0)), QueuedJob)
    assert isinstance(two.apply(job.id, Started(1.0)), TransitionRefused)
    one.close()
    two.close()


def test_only_ended_jobs_are_forgotten_and_numbers_are_never_used_again(tmp_path: Path) -> None:
    queue = SqliteQueue(tmp_path / "queue.db")
    _, second = queue.submit([SPEC, SPEC], 0.0)
    queue.apply(second.id, CancelledBy(10.0, "root"))
    assert queue.forget(10.0) == 0
    assert queue.forget(10.5) == 1
    assert [job.id for job in queue.jobs()] == [1]
    assert queue.transitions(second.id) == []
    assert queue.submit([SPEC], 0.0)[0].id == 3
    queue.close()


def test_a_full_disk_refuses_a_submission_as_a_whole(tmp_path: Path) -> None:
    queue = SqliteQueue(tmp_path / "queue.db")
    (job,) = queue.submit([SPEC], 0.0)
    pages = queue._database.execute("PRAGMA page_count").fetchone()[0]
    queue._database.execute(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(
        QueueError, match=r"queue\.db: the queue cannot be written: .*full; nothing was changed"
    ):
        queue.submit([SPEC] * 500, 0.0)
    assert queue.jobs() == [job]
    assert isinstance(queue.apply(job.id, Considered(1.0, "x")), QueuedJob)  # there is room for that
    queue.close()


def test_a_file_of_another_format_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 9")
    database.close()
    with pytest.raises(QueueError, match="format 9"):
        SqliteQueue(path)
    (tmp_path / "later").mkdir()
    queue = SqliteQueue(tmp_path / "later" / "queue.db")
    (job,) = queue.submit([SPEC], 0.0)
    with sqlite3.connect(tmp_path / "later" / "queue.db") as database:
        database.execute("UPDATE jobs SET record = json_set(record, '$.spec.invented', 1)")
    database.close()
    for read in (queue.jobs, lambda: queue.job(job.id), lambda: queue.apply(job.id, Started(1.0))):
        with pytest.raises(QueueError, match="job 1 cannot be read"):
            read()
    queue.close()
    path.write_bytes(b"not a database" * 100)
    with pytest.raises(QueueError, match=r"cannot be opened"):
        SqliteQueue(path)


WORKER = """
import os, signal, sys
from pathlib import Path
from perphd.batch.job import *
from perphd.batch.store import SqliteQueue

folder = Path(sys.argv[1])
queue = SqliteQueue(folder / "queue.db")
log = os.open(folder / "ran", os.O_CREAT | os.O_APPEND | os.O_RDWR)
seen = set((folder / "ran").read_text().split("\\n"))
for job in queue.jobs():
    if not job.state.active:
        continue
    if f"end {job.unit}" in seen:
        evidence = UnitEvidence.ENDED
    elif f"begin {job.unit}" in seen:
        evidence = UnitEvidence.RUNS
    else:
        evidence = UnitEvidence.NEVER_STARTED
    event = recovery(job, evidence, 0.0)
    if event is not None:
        queue.apply(job.id, event)
lines_left = int(sys.argv[2])

def killed_in_time(frame, event, argument):
    global lines_left
    if frame.f_code.co_filename not in OURS:
        return None
    lines_left -= event == "line"
    if lines_left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return killed_in_time

OURS = {"<string>", SqliteQueue.apply.__code__.co_filename, recovery.__code__.co_filename}

def run(jobs):
  for job in jobs:
      if job.state in STARTABLE:
          job = queue.apply(job.id, Started(0.0))
          os.write(log, f"begin {job.unit}\\n".encode())
          queue.apply(job.id, Confirmed(0.0))
      if job.state.active:
          os.write(log, f"end {job.unit}\\n".encode())
          queue.apply(job.id, Exited(0.0, 0))
jobs = queue.jobs()
sys.settrace(killed_in_time)
run(jobs)
sys.settrace(None)
print("finished", flush=True)
"""


def test_kill_9_at_twenty_moments_loses_no_job_and_starts_none_twice(tmp_path: Path) -> None:
    """The worker kills itself at a random line of the store, of the transitions, or between them and its own work."""
    queue = SqliteQueue(tmp_path / "queue.db")
    queue.submit([SPEC] * 30, 0.0)
    queue.close()
    chance, moments, jobs, ran = random.Random(8), Counter[str](), list[QueuedJob](), ""
    for kill in range(21):
        lines = chance.randint(1, 330) if kill < 20 else -1  # the last one lives
        worker = subprocess.run(
            [sys.executable, "-c", WORKER, str(tmp_path), str(lines)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert worker.returncode == (-signal.SIGKILL if lines > 0 else 0), worker.stderr
        queue = SqliteQueue(tmp_path / "queue.db")
        jobs = queue.jobs()
        queue.close()
        assert len(jobs) == 30
        ran = (tmp_path / "ran").read_text()
        for job in jobs:
            begun, ended = f"begin {job.unit}\n" in ran, f"end {job.unit}\n" in ran
            if job.state is JobState.RUNNING:
                moments[f"{job.confirmed} {begun} {ended}"] += 1
    # Kills fell on different sides of the unit's start and of its end.
    assert len(moments) >= 2, moments
    assert {job.state for job in jobs} == {JobState.DONE}
    units = [line.removeprefix("begin ") for line in ran.splitlines() if line.startswith("begin ")]
    assert sorted(units, key=lambda unit: int(unit.split("-")[2])) == [job.unit for job in jobs]


async def test_time_for_which_a_worker_was_frozen_is_not_its_wait(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    file = SqliteQueue(path)
    worker, again, _ = file.submit([FULL_SPEC, replace(SPEC, retries=1), SPEC], 50.0)
    for event in (
        Started(60.0), Confirmed(60.0), FrozenFor(70.0, "room", preempted=False), Thawed(370.0), Exited(380.0, 0),
    ):  # fmt: skip
        assert isinstance(file.apply(worker.id, event), QueuedJob)
    for event in (Started(61.0), Exited(62.0, 1), Started(90.0)):
        assert isinstance(file.apply(again.id, event), QueuedJob)
    file.close()

    async def in_thread(call: Callable[[], object]) -> object:
        return call()

    jobs = QueueJobs(path, in_thread)
    await jobs.open()
    assert await jobs.waits() == [(60.0, 50.0)], "a retry waited for other reasons as well"
    opened = jobs.closed()
    assert opened is not None
    opened.close()
