"""The whole agent on hosts whose resctrl misbehaves: what is blocked blocks nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from perphd.agent.agent import Agent
from perphd.agent.assembly import assemble
from perphd.agent.composition import build_parts
from perphd.agent.simulated import simulated_sli
from perphd.config.file import parse
from perphd.domain.allocation import Allocation, CpuGrant, Settings
from perphd.domain.cpuset import CpuSet
from perphd.domain.decision import Action, Cause, Decision, Health, Verdict
from perphd.domain.policy import Snapshot, TargetState
from perphd.domain.reading import NOT_MEASURED
from perphd.domain.sample import Quality
from perphd.domain.workload import Kind, Mode, WorkloadSpec
from perphd.isolation import Executor
from perphd.sim.host import SimHost
from perphd.sim.kernel.proc import foreign_lock
from perphd.sim.machine import Machine
from perphd.sim.workload import Batch, Lra, Workload

ROOT = "/sys/fs/resctrl"
SCHEMATA = f"{ROOT}/perphd.pi/schemata"
CONFINED = Allocation(CpuGrant(4, 1, 100), llc_ways=9, mbw_pct=30)
"""Batch on one core of four, two ways of eleven, 30 per cent of the bandwidth."""
SETTINGS = Settings(cpus=CpuSet.parse("3"), llc_masks=((0, 0x600), (1, 0x600)), mba_pct=((0, 30), (1, 30)))


@dataclass
class Fixed:
    """A policy that always wants the same, and notes what it was told is in force and can be set."""

    name: str = "fixed"
    chosen: Allocation = CONFINED
    settings: Settings = SETTINGS
    told: list[Allocation | None] = field(default_factory=list)
    knobs: list[frozenset[str]] = field(default_factory=list)
    waiting: list[frozenset[str]] = field(default_factory=list)

    def decide(self, snapshot: Snapshot) -> TargetState:
        views = {view.spec.name: view for view in snapshot.workloads}
        self.told.append(views["db"].protection)
        self.knobs.append(views["pi"].enforceable)
        self.waiting.append(views["pi"].waiting)
        decision = Decision(
            snapshot.at_s, "db", Verdict(Health.HEALTHY, Cause.UNKNOWN, snapshot.at_s, ()), Action.HOLD, NOT_MEASURED,
            NOT_MEASURED, self.chosen, self.chosen, (), "as always", self.name,
        )  # fmt: skip
        return TargetState({"pi": self.settings}, (decision,))


@dataclass
class Rig:
    host: SimHost
    agent: Agent
    executor: Executor
    policy: Fixed
    second: int = 0

    async def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.second += 1
            self.host.advance(float(self.second))
            await self.agent.tick(float(self.second))

    @property
    def cpus(self) -> str:
        return self.host.fs.read("/sys/fs/cgroup/batch/pi/cpuset.cpus").decode().strip()

    @property
    def in_force(self) -> Settings:
        return next(item.in_force for item in self.agent.status().workloads if item.spec.name == "pi")


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    works: list[Workload] = [Lra("db", "/lra/db", rate_per_s=50), Batch("pi", "/batch/pi", threads=4)]
    host = SimHost(works, machine=Machine(2, 2), resctrl=True)
    plain = parse("", "test")
    daemon = replace(plain.daemon, mode=Mode.ENFORCE, state_dir=str(tmp_path))
    specs = (WorkloadSpec("db", Kind.LRA, "/lra/db"), WorkloadSpec("pi", Kind.BATCH, "/batch/pi"))
    policy = Fixed()
    config = replace(plain, daemon=daemon, workloads=specs)
    parts = build_parts(
        config,
        fs=host.fs,
        opener=host.perf_opener,
        sli_opener=simulated_sli(host),
        store=False,
        policy=policy,
    )
    agent = assemble(config, parts)
    yield Rig(host, agent, parts.executor, policy)
    asyncio.run(agent.stop(restore=True))
    assert [name for name in host.fs.listdir(ROOT) if name.startswith("perphd.")] == []


async def test_what_is_in_force_is_shown_from_the_first_round_on(rig: Rig) -> None:
    await rig.run(2)
    assert rig.policy.told[-1] == CONFINED
    assert rig.in_force == SETTINGS
    rig.policy.settings = replace(SETTINGS, llc_masks=((0, 0x400), (1, 0x400)))
    await rig.run(1)
    assert rig.in_force == rig.policy.settings, "in the round of the change as well"


async def test_a_yielded_group_costs_the_cpus_nothing_and_is_told_as_it_is(rig: Rig) -> None:
    await rig.run(3)
    for _ in range(2):
        rig.host.fs.write(SCHEMATA, b"MB:0=90;1=90\n")
        await rig.run(7)
    assert any(c.yielded for c in rig.executor.conflicts())
    for _ in range(20):
        await rig.run(1)
        assert rig.cpus == "3", "batch stays confined for as long as the conflict lasts"
        assert rig.policy.told[-1] == replace(CONFINED, mbw_pct=90), (
            "the ways are as wanted, the bandwidth is not"
        )
        assert not rig.policy.knobs[-1] & {"llc_masks", "mba_pct"}, "neither is to be tried in that group"
    assert rig.in_force == replace(SETTINGS, mba_pct=((0, 90), (1, 90)))
    assert "left alone until" in " ".join(rig.agent.status().problems)
    rig.agent.set_mode(Mode.ENFORCE)
    await rig.run(8)
    assert rig.in_force == SETTINGS
    assert rig.policy.told[-1] == CONFINED


@pytest.mark.parametrize("what", ["removed", "changed"])
async def test_what_others_do_to_a_group_is_seen_in_the_next_round_and_not_judged(
    rig: Rig, what: str
) -> None:
    await rig.run(12)
    if what == "removed":
        rig.host.fs.raw.rmdir(SCHEMATA.removesuffix("/schemata"))
    else:
        rig.host.fs.write(SCHEMATA, b"MB:0=90;1=90\n")
    await rig.run(1)
    assert rig.agent.samples["db"].has(Quality.SETTLING), "it was not as perphd had set it"
    assert rig.in_force == SETTINGS
    assert rig.policy.told[-1] == CONFINED
    assert [c.count for c in rig.executor.conflicts()] == [1, 1]
    await rig.run(5)
    assert not rig.agent.samples["db"].has(Quality.SETTLING)


async def test_what_waits_for_a_lock_is_told_to_the_policy(rig: Rig) -> None:
    await rig.run(2)
    assert rig.policy.waiting[-1] == frozenset()
    assert rig.host.resctrl is not None
    with foreign_lock(rig.host.fs.root, rig.host.resctrl.directory, pid=99):
        rig.host.fs.raw.rmdir(SCHEMATA.removesuffix("/schemata"))
        for _ in range(200):  # virtual time runs ahead of the thread that waits for the lock
            await asyncio.sleep(0.02)
            await rig.run(1)
            assert rig.policy.waiting[-1] <= {"llc_masks", "mba_pct"}
            if rig.policy.told[-1] == Allocation(CONFINED.cpu) and rig.policy.waiting[-1]:
                break
        assert rig.policy.waiting[-1] == {"llc_masks", "mba_pct"}
    for _ in range(200):
        await asyncio.sleep(0.02)
        await rig.run(1)
        if not rig.policy.waiting[-1]:
            break
    assert rig.policy.told[-1] == CONFINED
    assert rig.policy.waiting[-1] == frozenset()


async def test_a_group_that_cannot_be_made_leaves_the_cpus_in_force(rig: Rig) -> None:
    for number in range(7):
        rig.host.fs.raw.mkdir(f"{ROOT}/other{number}")
    await rig.run(10)
    assert rig.cpus == "3"
    assert rig.policy.told[-1] == Allocation(CONFINED.cpu)
    for number in range(7):
        rig.host.fs.raw.rmdir(f"{ROOT}/other{number}")
    await rig.run(70)
    assert rig.policy.told[-1] == CONFINED


async def test_a_lock_keeps_what_is_in_force_and_new_cpus_are_set_all_the_same(rig: Rig) -> None:
    await rig.run(2)
    assert rig.host.resctrl is not None
    with foreign_lock(rig.host.fs.root, rig.host.resctrl.directory, pid=99):
        rig.policy.settings = replace(SETTINGS, cpus=CpuSet.parse("2-3"), mba_pct=((0, 20), (1, 20)))
        rig.policy.chosen = Allocation(CpuGrant(4, 2, 100), llc_ways=9, mbw_pct=20)
        for _ in range(30):
            await rig.run(1)
            assert rig.in_force.llc_masks == SETTINGS.llc_masks
        assert rig.cpus == "2-3"
        assert rig.policy.told[-1] == replace(rig.policy.chosen, mbw_pct=30)
        told = [left.reason for item in rig.agent.status().workloads for left in item.limited]
        assert any("pid 99 (flock, uid 65534" in reason for reason in told), told
    for _ in range(200):  # virtual time runs ahead of the thread that waits for the lock
        await asyncio.sleep(0.02)
        await rig.run(1)
        if rig.policy.told[-1] == rig.policy.chosen:
            break
    assert rig.policy.told[-1] == rig.policy.chosen
    assert rig.in_force == rig.policy.settings


async def test_resctrl_mounted_late_or_anew_is_used_within_seconds(rig: Rig) -> None:
    tree = rig.host.resctrl
    assert tree is not None
    await rig.run(3)
    tree.umount()
    await rig.run(2)
    assert not rig.policy.knobs[-1] & {"llc_masks", "mba_pct"}
    assert rig.policy.told[-1] == Allocation(CONFINED.cpu)
    await rig.run(20)
    tree.mount("cdp")
    await rig.run(2)
    assert rig.policy.knobs[-1] >= {"llc_masks", "mba_pct"}
    assert rig.in_force == SETTINGS


async def test_a_socket_that_goes_takes_its_own_protection_alone(rig: Rig) -> None:
    await rig.run(3)
    rig.policy.settings = replace(SETTINGS, cpus=CpuSet.parse("1"))
    await rig.run(2)
    rig.host.set_online(CpuSet.parse("0-1"))
    for _ in range(12):
        await rig.run(1)
        assert rig.host.fs.exists(SCHEMATA)
    assert rig.in_force == Settings(cpus=CpuSet.parse("1"), llc_masks=((0, 0x600),), mba_pct=((0, 30),))
    rig.host.set_online(CpuSet.parse("0-3"))
    await rig.run(2)
    assert rig.in_force == rig.policy.settings, "two rounds after it is back"
    assert not rig.executor.conflicts()
