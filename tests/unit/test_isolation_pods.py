"""Values that kubelet sets while perphd holds a knob of a pod: new originals, not conflicts, unless somebody fights."""

from __future__ import annotations

from pathlib import Path

import pytest

from perphd.domain.allocation import IDLE, Settings
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.isolation.executor import Executor
from perphd.isolation.journal import Journal
from perphd.isolation.restore import restore
from perphd.isolation.watch import ADOPT_S
from tests.unit.isolation_kernel import FakeKernel

POD = "/kubepods/burstable/pod6f1c1f0a-94c1-4d21-8a6d-5f3b0a1f7c01"
DEMOTED = Settings(cpu_weight=IDLE)


class World:
    """A pod on cgroup v1, and perphd, which demotes it."""

    def __init__(self, state: Path, cgroup: str = POD) -> None:
        self.kernel = FakeKernel("v1")
        for depth in range(2, cgroup.count("/") + 2):
            self.kernel.mkdir("/".join(cgroup.split("/")[:depth]))
        self.spec = WorkloadSpec("job", Kind.BATCH, cgroup)
        self.shares = f"/sys/fs/cgroup/cpu{cgroup}/cpu.shares"
        self.kernel.set(self.shares, "102")
        self.journal = Journal(state, boot_id="x")
        self.executor = Executor(self.kernel, self.kernel.hierarchies, self.journal, in_thread=False)

    async def round(self, now_s: float, target: Settings = DEMOTED) -> None:
        applied = await self.executor.apply(self.executor.plan({"job": target}, [self.spec], now_s))
        assert applied.ok, applied.failed

    def now(self) -> str:
        return self.kernel.read(self.shares).decode().strip()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_a_resize_becomes_the_original_and_batch_stays_demoted(world: World) -> None:
    await world.round(0.0)
    assert world.now() == "3"
    world.kernel.set(world.shares, "204")
    await world.round(1.0)
    assert world.now() == "3"
    assert world.executor.conflicts() == ()
    assert (await world.executor.restore()).complete
    assert world.now() == "204"


async def test_the_new_size_bounds_what_perphd_sets(world: World) -> None:
    await world.round(0.0, Settings(cpu_weight=9))
    assert world.now() == "92"
    world.kernel.set(world.shares, "51")
    await world.round(1.0, Settings(cpu_weight=9))
    assert world.now() == "51", "never above what kubelet grants"
    await world.round(2.0, Settings())
    assert world.now() == "51"
    assert world.executor.conflicts() == ()


async def test_a_resize_survives_a_killed_daemon(world: World, tmp_path: Path) -> None:
    await world.round(0.0)
    world.kernel.set(world.shares, "204")
    await world.round(1.0)
    world.journal.close()
    report = restore(world.kernel, tmp_path, boot_id="x")
    assert report.complete
    assert world.now() == "204"


async def test_whoever_puts_the_old_value_back_fights_and_gets_it(world: World) -> None:
    await world.round(0.0)
    for now_s in (100.0, 200.0):
        world.kernel.set(world.shares, "102")
        await world.round(now_s)
    assert world.now() == "102"
    (conflict,) = world.executor.conflicts()
    assert conflict.yielded


async def test_new_values_within_a_minute_are_a_fight(world: World) -> None:
    await world.round(0.0)
    for number, now_s in enumerate((100.0, 110.0, 120.0)):
        world.kernel.set(world.shares, str(300 + number))
        await world.round(now_s)
    assert world.now() == "302"
    assert [each.yielded for each in world.executor.conflicts()] == [True]
    await world.executor.restore()
    assert world.now() == "302"


async def test_resizes_a_minute_apart_are_none(world: World) -> None:
    await world.round(0.0)
    for number in range(5):
        world.kernel.set(world.shares, str(300 + number))
        await world.round(100.0 + number * ADOPT_S)
    assert world.executor.conflicts() == ()
    await world.executor.restore()
    assert world.now() == "304"


async def test_elsewhere_a_foreign_value_is_a_conflict(tmp_path: Path) -> None:
    world = World(tmp_path, "/batch")
    await world.round(0.0, Settings(cpu_weight=9))
    world.kernel.set(world.shares, "204")
    await world.round(100.0, Settings(cpu_weight=9))
    assert [each.count for each in world.executor.conflicts()] == [1]
    await world.executor.restore()
    assert world.now() == "102"
