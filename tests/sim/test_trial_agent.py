"""Trials in the whole agent on the simulated host: blocks, washout, every way to end one, restarts, refusals."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perphd.agent.agent import Agent
from perphd.agent.composition import build_agent
from perphd.agent.simulated import simulated_sli
from perphd.agent.trials import FOLDER, KEPT, request_of
from perphd.config.file import Config, DaemonConfig, StoreConfig
from perphd.domain.allocation import UNTOUCHED, Settings
from perphd.domain.control import Actor
from perphd.domain.cpuset import CpuSet
from perphd.domain.errors import ConfigError
from perphd.domain.policy import Snapshot, TargetState
from perphd.domain.workload import Kind, Mode, SliSpec, WorkloadSpec
from perphd.host import state_files
from perphd.sim.host import Arrival, SimHost
from perphd.sim.machine import CGROUP_ROOT, Machine
from perphd.sim.workload import Batch, Lra
from perphd.trial.analysis import analyse
from perphd.trial.design import Request
from perphd.trial.guard import Guard
from perphd.trial.record import End

DB = Lra("db", "/t/db", clients=10, service_ms=2.0, serial_ms=0.05, wait_ms=1.5)
PI = Batch("pi", "/t/pi", threads=8)
LRA = WorkloadSpec("db", Kind.LRA, "/t/db", sli=SliSpec("simulated", (("workload", "db"),)))
BATCH = WorkloadSpec("pi", Kind.BATCH, "/t/pi")
ROOT = Actor("root", 0, 77, "perphctl")
EPOCH_S = 1.7e9
SHORT = Request(13.0 / 60.0, block_s=60.0, washout_s=20.0, seed=11)


class Harmful:
    """A policy that keeps the LRA on one of eight cores, and batch on all."""

    name = "harmful"

    def decide(self, snapshot: Snapshot) -> TargetState:
        settings = {"db": Settings(cpus=CpuSet.of([0])), "pi": UNTOUCHED}
        return TargetState(settings, (), (), None)


class World:
    """A simulated host, and agents on it one after another."""

    def __init__(self, state: Path, policy: Any = None, **daemon: Any) -> None:
        self.host = SimHost((DB, PI), machine=Machine(1, 8), events=(Arrival(5.0, "pi"),), seed=3, pmu=True)
        for work in (DB, PI):
            self.host.fs.write(f"{CGROUP_ROOT}{work.cgroup}/cpuset.cpus", b"0-7")
        self.config = Config(
            daemon=DaemonConfig(state_dir=str(state), period_s=2.0, **daemon),
            store=StoreConfig(enabled=False),
            workloads=(LRA, BATCH),
        )
        self.policy, self.now_s = policy, 0.0
        self.agent = self.start()

    def start(self) -> Agent:
        return build_agent(
            self.config,
            fs=self.host.fs,
            opener=self.host.perf_opener,
            sli_opener=simulated_sli(self.host),
            wall_clock=lambda: EPOCH_S + self.now_s,
            policy=self.policy,
        )

    async def run(self, seconds: int) -> None:
        for _ in range(0, seconds, 2):
            self.now_s += 2.0
            self.host.advance(self.now_s)
            await self.agent.tick(self.now_s)

    def cpus(self, name: str = "pi") -> str:
        return self.host.fs.read(f"{CGROUP_ROOT}/t/{name}/cpuset.cpus").decode().strip()

    def modes(self) -> set[Mode]:
        return {item.mode for item in self.agent.status().workloads}


@asynccontextmanager
async def world(state: Path, **more: Any) -> AsyncIterator[World]:
    found = World(state, **more)
    try:
        yield found
    finally:
        await found.agent.stop(restore=False)


async def test_a_trial_enforces_in_its_blocks_and_ends_as_it_began(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.run(30)
        record = await w.agent.start_trial(SHORT, ROOT)
        assert w.modes() == {Mode.OBSERVE}, "the run-in observes"
        plan = record.plan
        seen: dict[int, set[Mode]] = {}
        for _ in range(13 * 30):
            await w.run(2)
            trial = w.agent.status().trial
            if trial is not None:
                seen.setdefault(trial.block, set()).update(w.modes())
        assert seen == {number: {plan.mode(number)} for number in range(13)}
        ended = w.agent.trial()
        assert ended is not None
        assert ended.ending is not None
        assert ended.ending.how is End.COMPLETE
        assert [block.void for block in ended.blocks] == [""] * 13
        # 60 s less 20 s of washout; the first reading behind it still tells of the washout.
        assert all(35.0 <= mean.covered_s <= 40.0 for block in ended.blocks for mean in block.means)
        assert w.modes() == {Mode.OBSERVE}
        assert w.cpus() == "0-7"
        effects = {effect.metric.name: effect for effect in analyse(ended).effects}
        assert effects["db.delay"].change is not None
        assert effects["db.delay"].change.high_pct < 0, "the simulated database gains from perphd"
        assert effects["db.delay"].claimed


async def test_a_policy_that_harms_is_stopped_within_two_blocks(tmp_path: Path) -> None:
    async with world(tmp_path, policy=Harmful()) as w:
        await w.run(30)
        await w.agent.start_trial(SHORT, ROOT)
        enforced: set[int] = set()
        while (trial := w.agent.status().trial) is not None:
            if trial.mode is Mode.ENFORCE:
                enforced.add(trial.block)
            await w.run(2)
        record = w.agent.trial()
        assert record is not None
        assert record.ending is not None
        assert record.ending.how is End.HARM
        assert "db" in record.ending.text
        assert 1 <= len(enforced) <= 2
        await w.run(2)
        assert w.cpus("db") == "0-7"
        assert w.modes() == {Mode.OBSERVE}


async def test_after_harm_a_host_that_enforces_is_paused_until_somebody_resumes(tmp_path: Path) -> None:
    async with world(tmp_path, policy=Harmful(), mode=Mode.ENFORCE) as w:
        w.agent.set_mode(Mode.OBSERVE)
        await w.run(30)
        w.agent.set_mode(Mode.ENFORCE)
        await w.agent.start_trial(SHORT, ROOT)
        await w.run(6 * 60)
        pauses = w.agent.status().pauses
        assert [pause.by for pause in pauses] == ["perphd"]
        assert "harm" in pauses[0].reason
        assert w.modes() == {Mode.OBSERVE}
        await w.agent.resume(None, ROOT)
        assert w.modes() == {Mode.ENFORCE}


async def test_harm_that_the_end_of_a_block_shows_pauses_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path, mode=Mode.ENFORCE) as w:
        await w.run(30)
        await w.agent.start_trial(SHORT, ROOT)
        monkeypatch.setattr(Guard, "end_block", lambda *_, **__: "db: delay 90 % higher than in observe")
        while w.agent.status().trial is not None:
            await w.run(2)
        record = w.agent.trial()
        assert record is not None
        assert record.ending is not None
        assert record.ending.how is End.HARM
        assert [pause.by for pause in w.agent.status().pauses] == ["perphd"]
        assert w.modes() == {Mode.OBSERVE}


async def test_a_trial_goes_on_after_a_restart(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.run(30)
        plan = (await w.agent.start_trial(SHORT, ROOT)).plan
        await w.run(90)
        await w.agent.stop(restore=True)
        w.now_s += 120.0
        w.host.advance(w.now_s)
        w.agent = w.start()
        await w.run(2)
        trial = w.agent.status().trial
        assert trial is not None
        assert (trial.trial, trial.block, trial.mode) == (plan.trial, 3, plan.mode(3))
        assert trial.void == "perphd was restarted during it"
        record = w.agent.trial()
        assert record is not None
        assert record.plan == plan, "the plan is as it was fixed at the start"
        voids = [block.void for block in record.blocks]
        assert voids == ["", "perphd was restarted during it", "perphd was not running"]
        await w.run(60)
        trial = w.agent.status().trial
        assert trial is not None
        assert trial.void == ""


async def test_a_trial_is_interrupted_by_a_mode_that_was_configured_while_perphd_was_down(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with world(tmp_path) as w:
        await w.run(30)
        await w.agent.start_trial(SHORT, ROOT)
        await w.run(90)
        await w.agent.stop(restore=True)
        w.config = replace(w.config, daemon=replace(w.config.daemon, mode=Mode.ENFORCE))
        w.agent = w.start()
        await w.run(2)
        assert w.agent.status().trial is None
        record = w.agent.trial()
        assert record is not None
        assert record.ending is not None
        assert record.ending.how is End.CHANGED
        assert "were: daemon observe; are: daemon enforce" in record.ending.text
        assert caplog.text.count(record.ending.text) == 1
        assert w.modes() == {Mode.ENFORCE}
        await w.agent.stop(restore=True)
        w.agent = w.start()
        await w.run(2)
        assert caplog.text.count(record.ending.text) == 1
        assert w.agent.trial() == record


async def test_a_trial_whose_time_passes_while_perphd_is_down_ends(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.run(30)
        await w.agent.start_trial(SHORT, ROOT)
        await w.agent.stop(restore=True)
        w.now_s += 3600.0
        w.agent = w.start()
        record = w.agent.trial()
        assert record is not None
        assert record.ending is not None
        assert record.ending.how is End.COMPLETE
        assert all(block.void for block in record.blocks)
        assert w.agent.status().trial is None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda w: w.agent.set_mode(Mode.ENFORCE, None, ROOT), "mode of all workloads was set to enforce"),
        (lambda w: w.agent.set_mode(Mode.OBSERVE, "db", ROOT), "mode of db was set to observe"),
        (lambda w: w.agent.restore(ROOT), "restore"),
        (lambda w: w.agent.remove_workload("db", ROOT), "db was removed from the list"),
        (
            lambda w: w.agent.reload(replace(w.config, workloads=(replace(LRA, min_cores=2.0), BATCH)), ROOT),
            "configuration of workloads",
        ),
        (
            lambda w: w.agent.reload(
                replace(w.config, daemon=replace(w.config.daemon, mode=Mode.ENFORCE)), ROOT
            ),
            "configuration of the mode",
        ),
    ],
)
async def test_a_change_by_hand_ends_a_trial_and_says_whose(
    tmp_path: Path, change: Callable[[World], Any], why: str
) -> None:
    async with world(tmp_path) as w:
        await w.run(30)
        await w.agent.start_trial(SHORT, ROOT)
        await w.run(70)
        done = change(w)
        if done is not None:
            await done
        record = w.agent.trial()
        assert record is not None
        assert record.ending is not None
        assert record.ending.how is End.CHANGED
        assert why in record.ending.text
        assert record.ending.by == str(ROOT)
        assert w.agent.status().trial is None


async def test_a_pause_and_a_harmless_reload_make_their_block_void_and_the_trial_goes_on(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as w:
        await w.run(30)
        await w.agent.start_trial(SHORT, ROOT)
        await w.run(70)
        await w.agent.pause(None, 30.0, "deployment", ROOT)
        await w.run(60)
        await w.agent.reload(w.config, ROOT)
        await w.run(60)
        record = w.agent.trial()
        assert record is not None
        assert record.ending is None
        voids = [block.void for block in record.blocks]
        assert voids == ["", f"all workloads paused by {ROOT}", "the configuration was reloaded"]
        assert [note.text.partition(":")[0] for note in record.notes] == ["block 1", "block 2"]


async def test_stop_ends_it_and_a_second_stop_is_refused(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.run(30)
        await w.agent.start_trial(SHORT, ROOT)
        await w.run(10)
        assert w.agent.stop_trial(ROOT).ending is not None
        with pytest.raises(ConfigError, match="no trial is running"):
            w.agent.stop_trial(ROOT)


async def test_a_workload_that_observes_by_its_own_mode_is_never_enforced(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.config = replace(
            w.config, workloads=(LRA, BATCH, WorkloadSpec("safe", Kind.LRA, "/t/safe", mode=Mode.OBSERVE))
        )
        await w.agent.stop(restore=False)
        w.agent = w.start()
        await w.run(30)
        plan = (await w.agent.start_trial(SHORT, ROOT)).plan
        assert plan.left_out == ("safe",)
        assert plan.lras == ("db",)
        for _ in range(90):
            await w.run(2)
            assert {i.mode for i in w.agent.status().workloads if i.spec.name == "safe"} == {Mode.OBSERVE}


async def test_refusals_to_start_change_nothing(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        with pytest.raises(ConfigError, match="no LRA is measured yet"):
            await w.agent.start_trial(SHORT, ROOT)
        await w.run(30)
        await w.agent.pause(None, None, "", ROOT)
        with pytest.raises(ConfigError, match="paused by root"):
            await w.agent.start_trial(SHORT, ROOT)
        await w.agent.resume(None)
        w.agent.set_mode(Mode.OBSERVE, "db")
        with pytest.raises(ConfigError, match="every LRA has its own mode observe"):
            await w.agent.start_trial(SHORT, ROOT)
        w.agent.set_mode(Mode.OBSERVE)  # forgets what was set for single ones
        w.agent.set_mode(Mode.OBSERVE, "pi")
        with pytest.raises(ConfigError, match="every batch workload has its own mode observe"):
            await w.agent.start_trial(SHORT, ROOT)
        w.agent.set_mode(Mode.OBSERVE)
        assert w.agent.trial() is None
        await w.agent.start_trial(SHORT, ROOT)
        with pytest.raises(ConfigError, match=r"trial .* is running"):
            await w.agent.start_trial(SHORT, ROOT)
        w.agent.stop_trial()
        await w.agent.remove_workload("pi")
        with pytest.raises(ConfigError, match="no batch workload is known"):
            await w.agent.start_trial(SHORT, ROOT)
        await w.agent.remove_workload("db")
        with pytest.raises(ConfigError, match="no LRA is known"):
            await w.agent.start_trial(SHORT, ROOT)


async def test_a_trial_that_cannot_be_kept_does_not_begin(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.run(30)
        (tmp_path / FOLDER).write_text("in the way")
        with pytest.raises(ConfigError, match="cannot be written"):
            await w.agent.start_trial(SHORT, ROOT)
        assert w.agent.trial() is None
        assert w.agent.status().trial is None


async def test_a_disk_that_takes_long_holds_no_round_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path) as w:
        await w.run(30)
        plan = (await w.agent.start_trial(SHORT, ROOT)).plan
        synced, real = threading.Event(), os.fsync
        monkeypatch.setattr(os, "fsync", lambda descriptor: (synced.wait(60.0), real(descriptor))[1])
        ended = w.agent.stop_trial(ROOT)
        await w.run(3)
        assert ended.ending is not None
        file = tmp_path / FOLDER / f"{plan.trial}.json"
        assert json.loads(file.read_text())["ending"] is None
        synced.set()
    assert json.loads(file.read_text())["ending"]["how"] == "stopped"


async def test_a_damaged_record_is_named_and_not_continued(tmp_path: Path) -> None:
    folder = tmp_path / FOLDER
    folder.mkdir()
    (folder / "20260101T000000Z.json").write_text("{")
    async with world(tmp_path) as w:
        await w.run(2)
        assert any("cannot be read" in problem for problem in w.agent.status().problems)
        assert w.agent.status().trial is None


async def test_records_are_private_and_only_the_newest_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / FOLDER
    folder.mkdir()
    async with world(tmp_path) as w:
        await w.run(30)
        for number in range(KEPT + 5):
            (folder / f"20200101T0000{number:02}Z.json").write_text("{}")
        plan = (await w.agent.start_trial(SHORT, ROOT)).plan
        files = sorted(path.name for path in folder.iterdir())
        assert len(files) == KEPT
        newest = folder / f"{plan.trial}.json"
        assert newest.name == files[-1]
        assert stat.S_IMODE(newest.stat().st_mode) == 0o640
        assert json.loads(newest.read_text())["plan"]["seed"] == 11


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"hours": 0.1, "block_s": 60.0}, "hours"),
        ({"hours": -1.0}, "hours"),
        ({"hours": float("nan")}, "hours"),
        ({"hours": 1e9}, "hours"),
        ({"hours": 24.0, "block_s": 5.0}, "block_s"),
        ({"hours": 24.0, "block_s": 600.0, "washout_s": 400.0}, "washout_s"),
        ({"hours": 24.0, "bound_pct": 0.0}, "bound_pct"),
        ({"hours": 24.0, "seed": -1.0}, "seed"),
        ({"hours": 24.0, "seed": 1.5}, "seed"),
    ],
)
def test_requests_out_of_bounds_name_the_key(values: dict[str, float | None], key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        request_of(values)
    assert refused.value.key == key
    assert refused.value.allowed


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """While this is clear, whatever writes a file of the state directory hangs."""
    real, free = state_files.replace_text, threading.Event()
    free.set()

    def replace_text(*asked: Any, **options: Any) -> None:
        free.wait(30.0)
        real(*asked, **options)

    monkeypatch.setattr(state_files, "replace_text", replace_text)
    yield free
    free.set()


async def test_rounds_go_on_while_a_trial_is_stored(tmp_path: Path, disk: threading.Event) -> None:
    async with world(tmp_path) as w:
        await w.run(30)
        disk.clear()
        starting = asyncio.ensure_future(w.agent.start_trial(SHORT, ROOT))
        await asyncio.sleep(0)
        await asyncio.wait_for(w.run(4), 10.0)
        with pytest.raises(ConfigError, match="just being started"):
            await w.agent.start_trial(SHORT, ROOT)
        disk.set()
        await starting
        assert w.agent.status().trial is not None


async def test_a_trial_that_is_contradicted_while_it_is_stored_ends_at_once(
    tmp_path: Path, disk: threading.Event
) -> None:
    async with world(tmp_path) as w:
        await w.run(30)
        disk.clear()
        starting = asyncio.ensure_future(w.agent.start_trial(SHORT, ROOT))
        await asyncio.sleep(0)
        w.agent.set_mode(Mode.ENFORCE, None, ROOT)
        disk.set()
        with pytest.raises(ConfigError, match="the mode of all workloads was set to enforce"):
            await starting
        assert w.agent.status().trial is None
        assert w.modes() == {Mode.ENFORCE}
        record = w.agent.trial()
        assert record is not None
        assert record.ending is not None
        assert record.ending.how is End.CHANGED


async def test_after_harm_nothing_waits_for_the_disk_to_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disk: threading.Event
) -> None:
    async with world(tmp_path, mode=Mode.ENFORCE) as w:
        await w.run(30)
        await w.agent.start_trial(SHORT, ROOT)
        monkeypatch.setattr(Guard, "end_block", lambda *_, **__: "db: delay 90 % higher than in observe")
        disk.clear()
        for _ in range(120):
            await asyncio.wait_for(w.run(2), 10.0)
        assert w.agent.status().trial is None
        assert [pause.by for pause in w.agent.status().pauses] == ["perphd"]
        assert w.modes() == {Mode.OBSERVE}
        disk.set()
    restarted = World(tmp_path, mode=Mode.ENFORCE)
    assert [pause.by for pause in restarted.agent.status().pauses] == ["perphd"]
    await restarted.agent.stop(restore=False)


async def test_a_pause_after_harm_holds_although_it_cannot_be_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with world(tmp_path, mode=Mode.ENFORCE) as w:
        await w.run(30)
        await w.agent.start_trial(SHORT, ROOT)
        monkeypatch.setattr(Guard, "end_block", lambda *_, **__: "db: delay 90 % higher than in observe")

        def full(target: Path, *_: Any, **__: Any) -> None:
            raise ConfigError(str(target), "", "cannot be written: No space left on device")

        monkeypatch.setattr(state_files, "replace_text", full)
        while w.agent.status().trial is not None:
            await w.run(2)
        await w.run(2)
        assert w.modes() == {Mode.OBSERVE}
    assert "is in force, but will end when perphd stops" in caplog.text
