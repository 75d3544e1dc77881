"""The queue in the daemon: its life over restarts, reboots and kills, on units in memory."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
import sqlite3
from collections import Counter
from pathlib import Path

import pytest

from perphd.agent.queue.batch_queue import BatchQueue
from perphd.batch.job import CancelledBy, JobState, QueuedJob, RequeuedFor
from perphd.batch.runner import JobRefused, StartFailed
from perphd.batch.store import QueueError, SqliteQueue
from perphd.batch.view import JobForecast
from perphd.config.tables import QueueConfig
from perphd.domain.errors import ConfigError, KernelError
from perphd.domain.host_account import CpuAccount, HostAccount
from perphd.domain.reading import available
from perphd.qos.bands import QosBand
from tests.unit.queue_world import GIB, Killed, World, spec


def state(queue: BatchQueue, number: int) -> JobState:
    job = queue.find(number)
    assert job is not None
    return job.state


async def forecast(queue: BatchQueue, job: QueuedJob) -> JobForecast:
    row = await queue.row(job, True)
    assert row.detail is not None
    assert isinstance(row.detail.forecast, JobForecast), row.detail.forecast
    return row.detail.forecast


async def test_a_job_waits_for_room_runs_as_a_workload_and_ends(tmp_path: Path) -> None:
    world = World(tmp_path)
    queue = world.daemon()
    first, second = await queue.submit([spec(cpus=6.0), spec(cpus=6.0)])
    await world.look(queue)
    assert (state(queue, first.id), state(queue, second.id)) == (JobState.RUNNING, JobState.QUEUED)
    (workload,) = world.side.workloads.values()
    assert (workload.name, workload.kind, workload.band) == ("job-1", "batch", "copper")
    (_, row) = await queue.rows(lambda job: True, False, 10)
    assert row.detail is not None
    assert "6 CPUs would be too many with a probability of 100%" in row.detail.reason
    world.units.end(first.id)
    await world.look(queue)
    assert (state(queue, first.id), state(queue, second.id)) == (JobState.DONE, JobState.RUNNING)
    assert list(world.side.workloads) == ["job-2"]
    queue.close()


async def test_memory_is_not_promised_twice(tmp_path: Path) -> None:
    world = World(tmp_path)
    queue = world.daemon()
    await queue.submit([spec(cpus=0.1, memory_bytes=7 * GIB) for _ in range(3)])
    await world.look(queue)
    assert Counter(state(queue, n) for n in (1, 2, 3)) == {JobState.RUNNING: 2, JobState.QUEUED: 1}
    queue.close()


async def test_a_restart_finds_running_jobs_again_and_learns_how_they_ended(tmp_path: Path) -> None:
    world = World(tmp_path)
    queue = world.daemon()
    await queue.submit([spec(), spec(), spec(cpus=8.0)])
    await world.look(queue)
    queue.close()
    world.units.end(2, 3)
    queue = world.daemon()
    await world.look(queue)
    assert [state(queue, n) for n in (1, 2, 3)] == [JobState.RUNNING, JobState.FAILED, JobState.QUEUED]
    assert list(world.side.workloads) == ["job-1"]
    assert set(world.units.starts.values()) == {1}
    queue.close()


async def test_after_a_reboot_running_jobs_are_started_again_if_they_have_retries(tmp_path: Path) -> None:
    world = World(tmp_path)
    queue = world.daemon()
    await queue.submit([spec(), spec(retries=1)])
    await world.look(queue)
    queue.close()
    world.units.reboot()
    world.boot = "boot-2"
    queue = world.daemon()
    await world.look(queue)
    await world.look(queue)
    assert [state(queue, n) for n in (1, 2)] == [JobState.FAILED, JobState.RUNNING]
    job = queue.find(1)
    assert job is not None
    assert "the host was restarted" in job.reason
    assert world.units.begun == {1: 1, 2: 2}
    queue.close()


async def test_a_cancelled_job_never_runs_on_even_if_the_daemon_dies_at_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    queue = world.daemon()
    (job,) = await queue.submit([spec(retries=5)])
    await world.look(queue)
    running = queue.find(job.id)
    assert running is not None
    await queue.cancel(running, "somebody")
    queue.close()  # before any look
    assert world.units.units
    queue = world.daemon()
    await world.look(queue)
    await world.look(queue)
    assert state(queue, job.id) is JobState.CANCELLED
    assert not world.units.units
    with pytest.raises(ConfigError, match="no further change is possible"):
        await queue.cancel(running, "somebody")
    queue.close()


async def test_a_job_that_starts_while_it_is_cancelled_does_not_run_on(tmp_path: Path) -> None:
    world = World(tmp_path)
    queue = world.daemon()
    (found,) = await queue.submit([spec()])
    await world.look(queue)  # the start was stored after the request had found a waiting job
    after = await queue.cancel(found, "ada")
    assert (found.attempt, after.attempt, after.state) == (0, 1, JobState.CANCELLED)
    await world.look(queue)
    assert world.units.units == {}
    assert world.side.workloads == {}
    queue.close()


@pytest.mark.parametrize("wanted", [JobState.CANCELLED, JobState.REQUEUED])
async def test_units_that_must_not_run_are_found_even_if_systemd_does_not_answer_at_the_start(
    tmp_path: Path, wanted: JobState
) -> None:
    world = World(tmp_path)
    queue = world.daemon()
    (job,) = await queue.submit([spec(retries=1)])
    await world.look(queue)
    queue.close()
    # The daemon dies after it has stored the end and before it has ended the unit.
    file = SqliteQueue(tmp_path / "queue" / "jobs.sqlite")
    at_s = world.now_s
    file.apply(
        job.id, CancelledBy(at_s, "ada") if wanted is JobState.CANCELLED else RequeuedFor(at_s, "room")
    )
    file.close()
    answer, silent = world.units.found, [True]

    def units() -> tuple[str, ...]:
        if silent:
            silent.clear()
            raise KernelError("ListUnitsByPatterns", "call", errno.ETIMEDOUT)
        return answer()

    world.units.found = units  # type: ignore[method-assign]
    queue = world.daemon()
    with contextlib.suppress(KernelError):
        await world.look(queue)
    await world.look(queue)
    await world.look(queue)
    assert "perphd-job-1-1.service" not in world.units.units
    assert state(queue, job.id) is (wanted if wanted is JobState.CANCELLED else JobState.RUNNING)
    queue.close()


async def test_units_and_logs_of_a_file_that_was_moved_away_do_not_pass_for_new_jobs(tmp_path: Path) -> None:
    world = World(tmp_path)
    queue = world.daemon()
    await queue.submit([spec(), spec()])
    await world.look(queue)
    queue.close()
    for number in (1, 2):
        (tmp_path / "queue" / "logs" / f"{number}-1.log").write_text("for its owner alone")
    for file in (tmp_path / "queue").glob("jobs.sqlite*"):
        file.unlink()
    queue = world.daemon()
    (job,) = await queue.submit([spec(uid=1001)])
    await world.look(queue)
    assert job.id == 3
    assert world.units.begun == {1: 1, 2: 1, 3: 1}
    assert await queue.log_part(job, 1, 0) == (b"", 0)
    queue.close()


async def test_a_job_that_others_follow_is_kept_until_they_have_ended(tmp_path: Path) -> None:
    world = World(tmp_path, QueueConfig(enabled=True, keep_h=1.0))
    queue = world.daemon()
    first, long = await queue.submit([spec(), spec()])
    (last,) = await queue.submit([spec(after=(first.id, long.id))])
    await world.look(queue)
    world.units.end(first.id)
    await world.look(queue)
    await world.look(queue, 7300.0)
    await world.look(queue)
    assert state(queue, last.id) in (JobState.QUEUED, JobState.WAITING)
    queue.close()
    queue = world.daemon()
    world.units.end(long.id)
    for _ in range(3):
        await world.look(queue)
    assert state(queue, last.id) is JobState.RUNNING
    await world.look(queue, 7300.0)
    assert queue.find(first.id) is not None  # the running job may be requeued
    world.units.end(last.id)
    await world.look(queue)
    await world.look(queue, 7300.0)
    assert queue.find(first.id) is None
    queue.close()


async def test_dependents_follow_and_are_cancelled_when_what_they_follow_failed(tmp_path: Path) -> None:
    world = World(tmp_path)
    queue = world.daemon()
    await queue.submit([spec(), spec()])
    await queue.submit([spec(after=(1,)), spec(after=(1, 2))])
    await queue.submit([spec(after=(4,))])
    await world.look(queue)
    assert world.units.begun == {1: 1, 2: 1}
    world.units.end(1)
    world.units.end(2, 1)
    for _ in range(3):
        await world.look(queue)
    assert [state(queue, n) for n in (3, 4, 5)] == [JobState.RUNNING, JobState.CANCELLED, JobState.CANCELLED]
    queue.close()


async def test_a_host_that_starts_nothing_is_a_problem_and_loses_no_job(tmp_path: Path) -> None:
    world = World(tmp_path)
    queue = world.daemon()
    await queue.submit([spec(), spec()])
    world.units.fails = StartFailed("no control group can be made")
    await world.look(queue)
    queue.step(world.now_s, {}, None)
    assert state(queue, 1) is JobState.REQUEUED
    assert world.units.begun == {}
    assert "no control group" in queue.summary().problem
    world.units.fails = None
    await world.look(queue, 30.0)
    assert [state(queue, n) for n in (1, 2)] == [JobState.RUNNING, JobState.RUNNING]
    await asyncio.sleep(0)
    queue.close()


async def test_after_a_failed_start_a_clock_that_is_set_back_does_not_stop_the_queue(tmp_path: Path) -> None:
    """As when the clock of the board, set to local time, is corrected soon after the start of the host."""
    world = World(tmp_path)
    queue = world.daemon()
    await queue.submit([spec()])
    world.units.fails = StartFailed("no control group can be made")
    await world.look(queue)
    assert state(queue, 1) is JobState.REQUEUED
    world.units.fails = None
    await world.look(queue, 5.0)
    assert state(queue, 1) is JobState.REQUEUED
    await world.look(queue, -3600.0)
    await world.look(queue, 60.0)
    assert state(queue, 1) is JobState.RUNNING
    queue.close()


async def test_a_job_that_can_never_start_does_not_keep_others_waiting(tmp_path: Path) -> None:
    world = World(tmp_path)
    queue = world.daemon()
    await queue.submit([spec()])
    world.units.fails = JobRefused("systemd refuses the job")
    await world.look(queue)
    assert state(queue, 1) is JobState.FAILED
    world.units.fails = None
    await queue.submit([spec()])
    await world.look(queue)
    assert state(queue, 2) is JobState.RUNNING
    queue.close()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cpus": 9.0}, "more CPUs than the host has"),
        ({"memory_bytes": 17 * GIB}, "never starts"),
        (
            {"memory_bytes": 13 * GIB},
            r"a copper job of 13.0 GiB never starts.*at most 12.8 GiB, 80% of the host's",
        ),
        (
            {"memory_bytes": 15 * GIB + GIB // 2, "band": QosBand.SILVER},
            "a silver job of 15.5 GiB never starts.*95% of the host's",
        ),
        ({"after": (7,)}, "no job 7"),
    ],
)
async def test_what_the_host_can_never_run_is_refused(
    tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    queue = World(tmp_path).daemon()
    with pytest.raises(ConfigError, match=words):
        await queue.submit([spec(**changes)])
    queue.close()


async def test_nothing_is_decided_before_the_hosts_use_is_measured_once(tmp_path: Path) -> None:
    """Others use 7 of 8 CPUs. A daemon that starts does not take the host for empty."""
    world = World(tmp_path)
    queue = world.daemon()
    await queue.submit([spec(cpus=1.0), spec(cpus=4.0)])
    cpu = CpuAccount(8.0, 7.0, 0.0, 0.0, 0.0, 0.0, 1.0)
    account = HostAccount(0.0, 1.0, cpu, memory_total_bytes=16.0 * GIB, memory_available_bytes=12.0 * GIB)
    for second in range(3):
        world.now_s += 1.0
        queue.step(100.0 + second, {}, account if second else None)
        await queue.settled()
        if second == 0:
            assert [state(queue, n) for n in (1, 2)] == [JobState.QUEUED] * 2, second
    assert [state(queue, n) for n in (1, 2)] == [JobState.RUNNING, JobState.QUEUED]
    queue.close()


async def test_a_host_that_cannot_be_measured_runs_jobs_nevertheless(tmp_path: Path) -> None:
    world = World(tmp_path)
    queue = world.daemon()
    await queue.submit([spec()])
    for now_s in (100.0, 115.0, 130.0):
        assert state(queue, 1) is JobState.QUEUED
        world.now_s += 15.0
        queue.step(now_s, {}, None)
        await queue.settled()
    assert state(queue, 1) is JobState.RUNNING
    queue.close()


async def test_a_full_queue_and_a_full_disk_refuse_and_change_nothing(tmp_path: Path) -> None:
    world = World(tmp_path, QueueConfig(enabled=True, most_waiting=3))
    queue = world.daemon()
    await queue.submit([spec(), spec()])
    with pytest.raises(ConfigError, match="2 jobs are already waiting"):
        await queue.submit([spec(), spec()])
    file = queue._jobs._file
    assert file is not None
    pages = await queue._in("file", lambda: file._database.execute("PRAGMA page_count").fetchone()[0])
    await queue._in("file", lambda: file._database.execute(f"PRAGMA max_page_count = {pages}").fetchone())
    with pytest.raises(QueueError, match=r"nothing was changed. Check the disk's free space"):
        await queue.submit([spec("x" * 100_000)])
    assert len(await queue.rows(lambda job: True, True, 10)) == 2
    queue.close()


async def test_a_frozen_job_is_frozen_by_the_one_writer_for_a_job_with_a_deadline(tmp_path: Path) -> None:
    from perphd.domain.allocation import UNTOUCHED

    world = World(tmp_path)
    world.side.enforces = True
    queue = world.daemon()
    await queue.submit([spec(cpus=8.0, memory_bytes=GIB)])
    await world.look(queue)
    await world.look(queue, 3600.0)  # so it may well run as long again
    await queue.submit([spec(cpus=8.0, memory_bytes=GIB, deadline_s=world.now_s + 1800.0)])
    await world.look(queue)
    assert [state(queue, n) for n in (1, 2)] == [JobState.FROZEN, JobState.RUNNING]
    frozen = queue.find(1)
    assert frozen is not None
    assert "job 2 needs its CPUs to meet a deadline (cost " in frozen.reason
    assert f"job 1 is frozen: {frozen.reason}" in world.side.told
    assert queue.over("job-1", UNTOUCHED).frozen is True
    assert queue.over("job-2", UNTOUCHED) == UNTOUCHED
    world.units.end(2)
    await world.look(queue)
    await world.look(queue)
    assert state(queue, 1) is JobState.RUNNING
    assert "job 1 is running: the host has room for it again" in world.side.told
    assert world.units.begun == {1: 1, 2: 1}
    queue.close()


async def test_in_observe_no_job_is_frozen(tmp_path: Path) -> None:
    world = World(tmp_path)
    queue = world.daemon()
    await queue.submit([spec(cpus=8.0)])
    await world.look(queue)
    await world.look(queue, 3600.0)
    await queue.submit([spec(cpus=8.0, deadline_s=world.now_s + 1800.0)])
    await world.look(queue)
    assert [state(queue, n) for n in (1, 2)] == [JobState.RUNNING, JobState.QUEUED]
    queue.close()


async def test_the_history_predicts_when_the_next_one_ends(tmp_path: Path) -> None:
    world = World(tmp_path, cpus=1.0)
    queue = world.daemon()
    for n in range(1, 9):
        await queue.submit([spec("backup")])
        await world.look(queue)
        world.units.end(n)
        await world.look(queue, 600.0)
        assert state(queue, n) is JobState.DONE
    (job,) = await queue.submit([spec("backup", deadline_s=world.now_s + 1200.0)])
    found = await forecast(queue, job)
    assert found.meets_deadline == pytest.approx(1.0)
    assert found.end.p50 - world.now_s == pytest.approx(600.0, rel=0.1)
    (late,) = await queue.submit([spec("backup", deadline_s=world.now_s + 300.0)])
    chance = (await forecast(queue, late)).meets_deadline
    assert available(chance)
    assert chance < 0.5
    queue.close()


async def test_ten_thousand_jobs_cost_the_loop_nothing_in_a_round(tmp_path: Path) -> None:
    """A round asks for nothing that grows with the queue: it starts at most one task."""
    world = World(tmp_path)
    queue = world.daemon()
    await queue.submit([spec() for _ in range(10_000)])
    calls = Counter[str]()
    live = queue._jobs.live

    class Counted(dict[int, QueuedJob]):
        def __getattribute__(self, name: str) -> object:
            if name in ("values", "items", "keys"):
                calls[name] += 1
            return super().__getattribute__(name)

    queue._jobs.live = Counted(live)
    queue._asked = False
    queue._looked_s = world.now_s
    for n in range(100):
        queue.step(world.now_s + 0.001 * n, {}, None)
    assert not calls
    rows = await queue.rows(lambda job: True, False, 500)
    assert len(rows) == 500
    assert queue.summary().counts == {JobState.QUEUED: 10_000}
    queue.close()


@pytest.mark.parametrize("seed", range(6))
async def test_random_histories_with_kills_lose_no_job_and_start_none_twice(
    tmp_path: Path, seed: int
) -> None:
    """The daemon dies before or after any effect; the host may be restarted while it is dead."""
    chosen = random.Random(seed)
    world = World(tmp_path)
    queue = world.daemon()
    submitted: dict[int, int] = {}
    cancelled: set[int] = set()
    reboots = 0

    def fate() -> None:
        if chosen.random() < 0.15:
            raise Killed

    for _ in range(60):
        world.units.fate = fate
        try:
            match chosen.randrange(6):
                case 0 | 1:
                    retries = chosen.randrange(3)
                    for job in await queue.submit(
                        [spec(retries=retries) for _ in range(chosen.randrange(1, 4))]
                    ):
                        submitted[job.id] = retries
                case 2:
                    if world.units.units:
                        unit = chosen.choice(sorted(world.units.units))
                        world.units.end(int(unit.split("-")[2]), chosen.choice((0, 0, 1)))
                case 3:
                    live = [n for n in submitted if not state(queue, n).ended]
                    victim = queue.find(chosen.choice(live)) if live else None
                    if victim is not None:
                        await queue.cancel(victim, "test")
                        cancelled.add(victim.id)
                case _:
                    await world.look(queue)
        except Killed:
            world.units.fate = lambda: None
            queue.close()
            if chosen.random() < 0.2:
                world.units.reboot()
                world.boot = f"boot-{chosen.random()}"
                reboots += 1
            queue = world.daemon()
            await queue.ready()
    world.units.fate = lambda: None
    for _ in range(200):
        await world.look(queue)
        for unit in sorted(world.units.units):
            world.units.end(int(unit.split("-")[2]))
        if all(state(queue, n).ended for n in submitted):
            break
    await world.look(queue)
    assert set(world.units.starts.values()) <= {1}, "a unit was started twice"
    assert not world.units.units
    for number, retries in submitted.items():
        last = queue.find(number)
        assert last is not None, "a job was lost"
        assert last.state.ended
        assert world.units.begun[number] <= retries + 1, (last, world.units.begun[number])
        if number in cancelled:
            assert last.state is JobState.CANCELLED
        elif not reboots:
            assert last.state is JobState.DONE or last.failures == retries + 1
    queue.close()


def test_the_file_is_whole(tmp_path: Path) -> None:
    """What the daemon leaves is an ordinary SQLite file that SQLite itself finds sound."""

    async def lived() -> None:
        world = World(tmp_path)
        queue = world.daemon()
        await queue.submit([spec(), spec()])
        await world.look(queue)
        queue.close()

    asyncio.run(lived())
    with sqlite3.connect(tmp_path / "queue" / "jobs.sqlite") as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.parametrize("groups_first", [True, False])
async def test_a_job_is_a_workload_before_its_first_process_where_groups_can_be_made_first(
    tmp_path: Path, groups_first: bool
) -> None:
    world = World(tmp_path)
    world.units.prepares = groups_first
    queue = world.daemon()
    known_at_start: list[list[str]] = []
    world.units.fate = lambda: known_at_start.append(list(world.side.workloads))
    await queue.submit([spec()])
    await world.look(queue)
    assert known_at_start[0] == (["job-1"] if groups_first else [])
    assert list(world.side.workloads) == ["job-1"]
    queue.close()


async def test_a_job_that_does_not_start_is_no_workload_any_more(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.units.prepares = True
    world.units.fails = StartFailed("no process can be started")
    queue = world.daemon()
    await queue.submit([spec()])
    await world.look(queue)
    assert (state(queue, 1), world.side.workloads) == (JobState.REQUEUED, {})
    world.units.fails = JobRefused("never")
    world.now_s += 100.0
    await world.look(queue)
    assert (state(queue, 1), world.side.workloads) == (JobState.FAILED, {})
    queue.close()
