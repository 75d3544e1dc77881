"""Elastic jobs in the queue: the core starts as a whole, its other workers take what is left and give it back first."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perphd.agent.queue.batch_queue import BatchQueue
from perphd.agent.queue.slots import QueueSlots
from perphd.batch.gangs import admitted, gangs_of, is_elastic, led, revoked, shares_of, with_urgent
from perphd.batch.job import JobState, QueuedJob
from perphd.domain.errors import ConfigError
from perphd.qos.bands import QosBand
from tests.unit.queue_world import GIB, World, spec

RUNNING, FROZEN, QUEUED = JobState.RUNNING, JobState.FROZEN, JobState.QUEUED


def elastic(least: int, most: int, **changes: Any) -> list[Any]:
    """The workers of one elastic job, as the control API makes them."""
    return [spec(elastic=(least, most), array=(place, most), **changes) for place in range(most)]


def states(queue: BatchQueue, numbers: Sequence[int]) -> list[JobState]:
    found = [queue.find(number) for number in numbers]
    return [job.state for job in found if job is not None]


async def test_a_core_starts_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    world = World(tmp_path)
    queue = world.daemon()
    await queue.submit([spec(cpus=6.0, memory_bytes=GIB)])
    workers = await queue.submit(elastic(3, 3, cpus=1.0))
    await world.look(queue)
    await world.look(queue)
    assert states(queue, [1, 2, 3, 4]) == [RUNNING, QUEUED, QUEUED, QUEUED]
    row = await queue.row(workers[0], True)
    assert row.detail is not None
    assert "3 CPUs would be too many" in row.detail.reason
    world.units.end(1)
    await world.look(queue)
    assert states(queue, [2, 3, 4]) == [RUNNING] * 3
    queue.close()


async def test_elastic_workers_take_what_is_left_after_the_core_runs(tmp_path: Path) -> None:
    world = World(tmp_path)
    queue = world.daemon()
    await queue.submit(elastic(2, 10))
    await world.look(queue)
    assert states(queue, range(1, 11)) == [RUNNING] * 2 + [QUEUED] * 8
    await world.look(queue)
    assert states(queue, range(1, 11)) == [RUNNING] * 8 + [QUEUED] * 2, "eight CPUs"
    world.units.end(5)
    await world.look(queue)
    await world.look(queue)
    assert states(queue, [9, 10]) == [RUNNING, QUEUED]
    queue.close()


async def test_an_urgent_job_takes_the_youngest_gangs_workers_and_they_go_on_after_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.side.enforces = True
    queue = world.daemon()
    await queue.submit(elastic(1, 4))
    await world.look(queue, 1.0)
    await world.look(queue)
    await queue.submit(elastic(1, 4))
    await world.look(queue, 1.0)
    await world.look(queue)
    assert states(queue, range(1, 9)) == [RUNNING] * 8
    (urgent,) = await queue.submit([spec(cpus=2.0, deadline_s=world.now_s + 1800.0)])
    await world.look(queue)
    assert states(queue, [urgent.id]) == [RUNNING]
    assert states(queue, range(1, 9)) == [RUNNING] * 6 + [FROZEN] * 2, "the last of the younger one"
    frozen = queue.find(8)
    assert frozen is not None
    assert frozen.preemptions == 0, "a slot that is taken back is no preemption"
    assert (
        frozen.reason
        == f"job {urgent.id} is urgent and needs its slot (the worker is frozen, and no work is lost)"
    )
    assert f"job 8 is frozen: {frozen.reason}" in world.side.told
    world.units.end(urgent.id)
    await world.look(queue)
    await world.look(queue)
    assert states(queue, range(1, 9)) == [RUNNING] * 8
    queue.close()


async def test_silver_workers_keep_their_slots_and_still_grow(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.side.enforces = True
    queue = world.daemon()
    await queue.submit(elastic(1, 4))
    await world.look(queue, 1.0)
    await world.look(queue)
    await queue.submit(elastic(1, 5, band=QosBand.SILVER))
    await world.look(queue, 1.0)
    await world.look(queue)
    assert states(queue, range(1, 10)) == [RUNNING] * 8 + [QUEUED]
    (urgent,) = await queue.submit([spec(cpus=2.0, deadline_s=world.now_s + 1800.0)])
    await world.look(queue)
    assert states(queue, [urgent.id]) == [RUNNING]
    assert states(queue, range(5, 9)) == [RUNNING] * 4, "the younger one is silver"
    assert states(queue, range(1, 5)) == [RUNNING] * 2 + [FROZEN] * 2
    world.units.end(urgent.id)
    for _ in range(2):
        await world.look(queue)
    assert states(queue, range(1, 10)) == [RUNNING] * 8 + [QUEUED]
    world.units.end(2)
    for _ in range(2):
        await world.look(queue)
    assert states(queue, [9]) == [RUNNING]
    queue.close()


async def test_no_slot_is_taken_where_that_would_not_be_enough_or_nothing_is_enforced(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.side.enforces = True
    queue = world.daemon()
    await queue.submit([spec(cpus=5.0)])
    await queue.submit(elastic(1, 3))
    await world.look(queue, 1.0)
    await world.look(queue)
    assert states(queue, range(1, 5)) == [RUNNING] * 4
    await queue.submit([spec(cpus=4.0, band=QosBand.SILVER, deadline_s=world.now_s + 1800.0)])
    await world.look(queue)
    assert states(queue, [3, 4]) == [RUNNING] * 2, "2 CPUs of elastic workers are less than 4"
    world.side.enforces = False
    await queue.submit([spec(cpus=2.0, deadline_s=world.now_s + 1800.0)])
    await world.look(queue)
    assert states(queue, [3, 4]) == [RUNNING] * 2
    queue.close()


async def test_when_the_core_has_ended_no_worker_starts_and_running_ones_finish(tmp_path: Path) -> None:
    world = World(tmp_path)
    queue = world.daemon()
    await queue.submit(elastic(1, 12))
    await world.look(queue)
    await world.look(queue)
    world.units.end(1)
    await world.look(queue)
    await world.look(queue)
    assert states(queue, range(1, 13)) == [JobState.DONE] + [RUNNING] * 7 + [JobState.CANCELLED] * 4
    job = queue.find(12)
    assert job is not None
    assert job.reason == "the core of its elastic job has ended"
    queue.close()


async def test_workers_read_their_slots_and_the_file_goes_with_the_last(tmp_path: Path) -> None:
    world = World(tmp_path / "state")
    queue = BatchQueue(
        world.config,
        world.folder,
        world.daemon()._units._runner,
        world.boot,
        lambda: world.now_s,
        lambda: (world.cpus, world.memory_bytes),
        tmp_path / "slots",
    )
    queue.attach(world.side)
    workers = await queue.submit(elastic(1, 3))
    file = tmp_path / "slots" / "1.env"
    first = []
    world.units.fate = lambda: first.append(file.read_text())
    await world.look(queue)
    assert first[0].startswith("PERPHD_SLOTS=1\n"), "a worker reads it as soon as it starts"
    world.units.fate = lambda: None
    assert file.read_text() == "PERPHD_SLOTS=1\nPERPHD_SLOTS_LEAST=1\nPERPHD_SLOTS_MOST=3\n"
    assert file.stat().st_mode & 0o777 == 0o644
    await world.look(queue)
    assert file.read_text().startswith("PERPHD_SLOTS=3\n")
    found = queue.slots(workers[2])
    assert found is not None
    assert (found[0], found[1].granted, found[2]) == (1, 3, str(file))
    for number in (1, 2, 3):
        world.units.end(number)
    await world.look(queue)
    assert not file.exists()
    queue.close()


def test_workers_of_other_users_can_read_whatever_the_daemons_umask_is(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        QueueSlots(tmp_path / "slots").write([QueuedJob(1, elastic(1, 2)[0], 0.0)])
    finally:
        os.umask(before)
    assert (tmp_path / "slots").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "slots/1.env").stat().st_mode & 0o777 == 0o644


def test_a_folder_that_cannot_be_made_is_a_problem_and_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    slots = QueueSlots(tmp_path / "file" / "slots")
    slots.write([QueuedJob(1, elastic(1, 2)[0], 0.0)])
    assert "slots of workers cannot be written" in slots.problem


@pytest.mark.parametrize(("least", "most", "named"), [(9, 9, "no room for 9"), (33, 40, "can never run")])
async def test_a_core_that_never_fits_is_refused(tmp_path: Path, least: int, most: int, named: str) -> None:
    world = World(tmp_path, cpus=8.0 if least == 9 else 64.0, memory_bytes=64.0 * GIB)
    queue = world.daemon()
    with pytest.raises(ConfigError, match=named):
        await queue.submit(elastic(least, most))
    queue.close()


async def test_a_restart_keeps_slots_and_starts_no_worker_twice(tmp_path: Path) -> None:
    world = World(tmp_path)
    queue = world.daemon()
    await queue.submit(elastic(2, 6))
    await world.look(queue)
    await world.look(queue)
    queue.close()
    queue = world.daemon()
    await world.look(queue)
    await world.look(queue)
    assert states(queue, range(1, 7)) == [RUNNING] * 6
    assert set(world.units.begun.values()) == {1}
    queue.close()


@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(0, 4), st.integers(0, 4), st.integers(1, 3), st.booleans()),
        max_size=4,
    ),
    st.integers(1, 16),
    st.integers(1, 6),
)
@settings(max_examples=200, deadline=None)
def test_whatever_runs_cores_are_never_taken_and_growth_fits(
    asked: list[tuple[int, int, int, int, bool]], capacity: int, urgent_cpus: int
) -> None:
    """Random gangs, some workers of which run: no core and no silver is revoked, and growth is within the capacity."""
    active, waiting, number = [], [], 1
    for least, running, fresh, cpus, silver in asked:
        most = least + running + fresh
        band = QosBand.SILVER if silver else QosBand.COPPER
        for place, worker in enumerate(elastic(least, most, cpus=float(cpus), band=band)):
            job = QueuedJob(number, worker, float(number))
            number += 1
            if place < least + running:
                active.append(QueuedJob(job.id, worker, job.submitted_s, RUNNING))
            else:
                waiting.append(job)
    held = sum(job.spec.cpus for job in active)
    gangs = gangs_of([*active, *waiting])
    shares = shares_of(float(capacity), active, waiting, lambda job: job.spec.cpus)
    more = admitted(gangs, shares)
    assert all(is_elastic(job) for job in more)
    assert not more or held + sum(job.spec.cpus for job in more) <= capacity + 1e-9
    urgent = QueuedJob(number, spec(cpus=float(urgent_cpus)), float(number))
    taken = revoked(gangs, with_urgent(shares, urgent, float(urgent_cpus)))
    assert all(is_elastic(job) and job.state is RUNNING and not job.spec.band.protected for job in taken)
    if taken and held <= capacity:
        left = held - sum(job.spec.cpus for job in taken)
        assert left + min(urgent_cpus, capacity) <= capacity + 1e-9, "it would not have been enough"


def test_an_urgent_job_takes_no_more_slots_than_it_needs() -> None:
    """Not even for an older gang that could not grow because a younger one already ran."""
    older, younger = elastic(1, 5), elastic(1, 5)
    active = [QueuedJob(1, older[0], 1.0, RUNNING)]
    active += [QueuedJob(6 + place, worker, 2.0, RUNNING) for place, worker in enumerate(younger)]
    waiting = [QueuedJob(2 + place, worker, 1.0) for place, worker in enumerate(older[1:])]
    shares = shares_of(6.0, active, waiting, lambda job: 1.0)
    after = with_urgent(shares, QueuedJob(11, spec(), 3.0), 1.0)
    assert [job.id for job in revoked(gangs_of([*active, *waiting]), after)] == [10]


def test_of_a_waiting_core_the_first_stands_for_all() -> None:
    jobs = [QueuedJob(n + 1, worker, 0.0) for n, worker in enumerate(elastic(3, 5))]
    considered, together, workers = led([*jobs, QueuedJob(9, spec(), 0.0)])
    assert [job.id for job in considered] == [1, 9]
    assert together == {1: (2, 3)}
    assert [job.id for job in workers] == [4, 5]
