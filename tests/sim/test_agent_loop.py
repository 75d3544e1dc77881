"""The whole agent on the simulated host: modes, restart, removal, reload, refusals, announcements."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from perphd.agent.agent import Agent
from perphd.agent.assembly import assemble
from perphd.agent.composition import build_parts
from perphd.agent.simulated import build_simulated, simulated_sli
from perphd.config.file import Config, DaemonConfig, StoreConfig
from perphd.domain.allocation import Settings
from perphd.domain.control import Actor
from perphd.domain.decision import Action, Health
from perphd.domain.errors import ConfigError
from perphd.domain.event import Event, EventKind
from perphd.domain.plan import ChangeSet
from perphd.domain.reading import available
from perphd.domain.workload import Kind, Mode, SliSpec, WorkloadSpec
from perphd.host.state_files import StateFiles
from perphd.isolation import Applied
from perphd.isolation.journal_lock import JournalInUse
from perphd.monitor.query import run_query
from perphd.monitor.sli import SliReading
from perphd.sim.host import Arrival, Departure, SimHost
from perphd.sim.machine import CGROUP_ROOT, Machine
from perphd.sim.workload import Batch, Lra
from perphd.sizing.shaping_state import ShapingStep

DB = Lra("db", "/t/db", clients=10, service_ms=2.0, serial_ms=0.05, wait_ms=1.5)
PI = Batch("pi", "/t/pi", threads=8)
KNOBS = ("cpu.weight", "cpu.idle", "cpuset.cpus", "memory.low", "memory.high")
ARRIVES_S = 20.0


class Bench:
    """A simulated host with an agent on it."""

    def __init__(
        self, state: Path, mode: Mode = Mode.ENFORCE, leaves_s: float = 1e9, **config: object
    ) -> None:
        self.host = SimHost(
            (DB, PI),
            machine=Machine(1, 8),
            events=(Arrival(ARRIVES_S, "pi"), Departure(leaves_s, "pi")),
            seed=3,
            pmu=True,
        )
        for work in (DB, PI):
            self.host.fs.write(f"{CGROUP_ROOT}{work.cgroup}/cpuset.cpus", b"0-7")
        specs = (
            WorkloadSpec("db", Kind.LRA, "/t/db", sli=SliSpec("simulated", (("workload", "db"),))),
            WorkloadSpec("pi", Kind.BATCH, "/t/pi"),
        )
        self.config = replace(
            Config(
                daemon=DaemonConfig(mode=mode, state_dir=str(state)),
                store=StoreConfig(enabled=False),
                workloads=specs,
            ),
            **config,  # type: ignore[arg-type]
        )
        self.agent = self.start()
        self.now_s = 0.0
        self.before = self.files()

    def start(self) -> Agent:
        self.parts = build_parts(
            self.config,
            fs=self.host.fs,
            opener=self.host.perf_opener,
            sli_opener=simulated_sli(self.host),
        )
        return assemble(self.config, self.parts)

    async def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now_s += 1.0
            self.host.advance(self.now_s)
            await self.agent.tick(self.now_s)

    def files(self) -> dict[str, bytes]:
        return {
            f"{work.cgroup}/{knob}": self.host.fs.read(f"{CGROUP_ROOT}{work.cgroup}/{knob}")
            for work in (DB, PI)
            for knob in KNOBS
        }


@asynccontextmanager
async def bench(state: Path, **more: object) -> AsyncIterator[Bench]:
    found = Bench(state, **more)  # type: ignore[arg-type]
    try:
        yield found
    finally:
        await found.agent.stop(restore=False)


async def test_rescues_and_gives_everything_back_when_batch_leaves(tmp_path: Path) -> None:
    async with bench(tmp_path, leaves_s=60.0) as b:
        await b.run(20)
        assert b.files() == b.before
        await b.run(15)
        assert b.files() != b.before
        assert b.agent.status().journal_entries > 0
        decision = b.agent.decisions("db")[0]
        assert decision.verdict.health in (Health.HEALTHY, Health.OVERPROVISIONED, Health.SUSPECT)
        await b.run(60)
        assert b.files() == b.before
        assert b.agent.status().journal_entries == 0


async def test_observing_writes_nothing_and_says_what_it_would_do(tmp_path: Path) -> None:
    async with bench(tmp_path, mode=Mode.OBSERVE) as b:
        await b.run(35)
        assert b.files() == b.before
        grown = [d for d in b.agent.decisions("db") if d.action is Action.GROW]
        assert grown
        assert grown[0].candidates
        would = {item.spec.name: item.would for item in b.agent.status().workloads}
        assert would["pi"] is None
        assert would["db"] is not None
        assert would["db"].action is not Action.HOLD


async def test_going_back_to_observe_gives_back_at_once(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        await b.run(35)
        assert b.files() != b.before
        b.agent.set_mode(Mode.OBSERVE)
        await b.run(1)
        assert b.files() == b.before
        b.agent.set_mode(Mode.ENFORCE, "pi")
        b.agent.set_mode(Mode.ENFORCE, "db")
        await b.run(5)
        assert b.files() != b.before


async def test_a_pause_restores_at_once_and_outlives_a_restart(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        await b.run(35)
        assert b.files() != b.before
        _, report = await b.agent.pause(None, None, "incident")
        assert report.complete
        assert b.files() == b.before
        await b.run(10)
        assert b.files() == b.before
        await b.agent.stop(restore=False)
        b.agent = b.start()
        await b.run(30)
        assert b.files() == b.before
        status = b.agent.status()
        assert [pause.reason for pause in status.pauses] == ["incident"]
        assert {item.mode for item in status.workloads} == {Mode.OBSERVE}
        assert await b.agent.resume(None)
        await b.run(20)
        assert b.files() != b.before


async def test_a_disk_that_hangs_while_a_pause_is_stored_holds_no_round_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench(tmp_path) as b:
        await b.run(35)
        before, stored = b.agent.status().tick, Future[None]()
        monkeypatch.setattr(StateFiles, "replace", lambda *_: stored)
        paused = asyncio.create_task(b.agent.pause(None, None, "disk"))
        await asyncio.sleep(0)
        await asyncio.wait_for(b.run(2), 60.0)
        assert b.agent.status().tick > before
        stored.set_result(None)
        await paused
        assert b.files() == b.before
        stored = Future[None]()
        before = b.agent.status().tick
        resumed = asyncio.create_task(b.agent.resume(None))
        await asyncio.sleep(0)
        await asyncio.wait_for(b.run(2), 60.0)
        assert b.agent.status().tick > before
        assert b.files() == b.before, "in force until its end is stored"
        stored.set_result(None)
        assert [each.reason for each in await resumed] == ["disk"]


async def test_a_paused_batch_job_is_left_alone(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        await b.run(35)
        assert b.files() != b.before
        await b.agent.pause("pi", 3600.0, "")
        await b.run(20)
        assert b.files() == b.before
        with pytest.raises(ConfigError, match="no workload is named 'nope'"):
            await b.agent.pause("nope", None, "")


async def test_a_mode_set_by_hand_outlives_reload(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        await b.run(35)
        b.agent.set_mode(Mode.OBSERVE)
        await b.agent.reload(b.config)
        await b.run(5)
        assert b.agent.status().mode is Mode.OBSERVE
        assert b.files() == b.before
        observing = replace(b.config, daemon=replace(b.config.daemon, mode=Mode.OBSERVE))
        await b.agent.reload(observing)
        await b.agent.reload(b.config)
        assert b.agent.status().mode is Mode.ENFORCE, "a configured mode that changes is taken over"


async def test_a_mode_set_by_hand_goes_with_a_workload_that_a_reload_removes(tmp_path: Path) -> None:
    """As with ``remove_workload``: what has its name later is another workload."""
    async with bench(tmp_path) as b:

        def modes() -> dict[str, Mode]:
            return {item.spec.name: item.mode for item in b.agent.status().workloads}

        await b.run(1)
        b.agent.set_mode(Mode.OBSERVE, "pi")
        await b.agent.reload(b.config)
        await b.run(1)
        assert modes()["pi"] is Mode.OBSERVE, "a reload that keeps the workload keeps its mode"
        await b.agent.reload(replace(b.config, workloads=b.config.workloads[:1]))
        await b.run(1)
        assert set(modes()) == {"db"}
        await b.agent.reload(b.config)
        await b.run(1)
        assert modes()["pi"] is Mode.ENFORCE


async def test_mode_of_single_workloads(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        b.agent.set_mode(Mode.OBSERVE, "pi")
        await b.run(35)
        assert b.files() == b.before
        with pytest.raises(ConfigError, match="no workload is named 'nope'"):
            b.agent.set_mode(Mode.ENFORCE, "nope")


async def test_restore_is_a_way_back_that_stays(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        await b.run(35)
        report = await b.agent.restore()
        assert report.complete
        assert b.files() == b.before
        await b.run(10)
        assert b.files() == b.before
        assert b.agent.status().mode is Mode.OBSERVE


async def test_stop_restores_if_asked(tmp_path: Path) -> None:
    b = Bench(tmp_path)
    await b.run(35)
    assert b.files() != b.before
    report = await b.agent.stop(restore=True)
    assert report is not None
    assert b.files() == b.before


async def test_what_a_stopped_agent_kept_is_taken_up_by_the_next(tmp_path: Path) -> None:
    b = Bench(tmp_path)
    await b.run(35)
    kept = b.files()
    await b.agent.stop(restore=False)
    assert b.files() == kept
    b.agent = b.start()
    await b.run(1)
    assert b.files() == b.before, "a new agent knows no protection yet and gives back what the journal holds"
    await b.agent.stop(restore=True)
    assert b.files() == b.before


async def test_a_second_agent_on_the_same_journal_is_refused(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        with pytest.raises(JournalInUse):
            b.start()


async def test_removed_workloads_are_given_back_and_forgotten(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        await b.run(35)
        await b.agent.remove_workload("pi")
        assert b.host.fs.read(f"{CGROUP_ROOT}/t/pi/cpuset.cpus") == b.before["/t/pi/cpuset.cpus"]
        await b.run(3)
        assert [w.spec.name for w in b.agent.status().workloads] == ["db"]
        with pytest.raises(ConfigError):
            await b.agent.remove_workload("pi")
        await b.agent.add_workload(WorkloadSpec("pi", Kind.BATCH, "/t/pi"))
        await b.run(12)
        assert len(b.agent.status().workloads) == 2


async def test_a_workload_that_does_not_exist_is_waited_for_visibly(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        await b.agent.add_workload(WorkloadSpec("later", Kind.LRA, "/t/later"))
        await b.run(3)
        status = b.agent.status()
        later = next(w for w in status.workloads if w.spec.name == "later")
        assert not later.present
        assert any("later" in p and "does not exist" in p for p in status.problems)
        b.host.cgroups.make("/t/later")
        await b.run(12)
        assert not any("later" in p for p in b.agent.status().problems)


async def test_reload_takes_over_workloads_and_mode(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        await b.run(35)
        observed = replace(b.config, daemon=replace(b.config.daemon, mode=Mode.OBSERVE))
        await b.agent.reload(replace(observed, workloads=b.config.workloads[:1]))
        assert b.files() == b.before or b.host.fs.read(f"{CGROUP_ROOT}/t/db/cpuset.cpus")
        await b.run(2)
        assert b.files() == b.before
        assert [w.spec.name for w in b.agent.status().workloads] == ["db"]


async def test_foreign_writers_are_told_and_yielded_to(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        await b.run(35)
        path = f"{CGROUP_ROOT}/t/pi/cpuset.cpus"
        ours = b.host.fs.read(path)
        for _ in range(4):
            # So little else that the policy has no reason to change its mind.
            b.host.fs.write(path, b"6-7\n" if ours.strip() != b"6-7" else b"7\n")
            await b.run(6)
        assert any("changed by another program" in p for p in b.agent.status().problems)


async def test_everything_is_announced_and_told_once(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        seen: list[Event] = []

        async def listen() -> None:
            async for event in b.agent.subscribe():
                seen.append(event)

        task = asyncio.create_task(listen())
        await asyncio.sleep(0)
        for _ in range(40):
            await b.run(1)
            await asyncio.sleep(0)
        kinds = [e.kind for e in seen]
        assert kinds.count(EventKind.TICK) == 40
        assert EventKind.CHANGE in kinds
        assert EventKind.OUTCOME in kinds
        changes = [e.text for e in seen if e.kind is EventKind.CHANGE]
        assert all("->" in text for text in changes)
        problems = [e.text for e in seen if e.kind is EventKind.PROBLEM]
        assert len(problems) == len(set(problems))
        task.cancel()


async def test_pushed_readings_only_where_they_are_expected(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        await b.run(1)
        with pytest.raises(ConfigError, match="push"):
            b.agent.push_sli("db", SliReading())


async def test_what_a_source_says_of_its_readings_is_shown_for_as_long_as_it_says_it(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        await b.run(1)
        (_, source) = b.parts.sli._sources["db"]
        source.notes = ("first and last are far apart", "more goes out")  # type: ignore[attr-defined]
        await b.run(1)
        assert b.agent.status().problems == ("db: first and last are far apart; more goes out",)
        await b.agent.remove_workload("db")
        await b.run(1)
        assert b.agent.status().problems == ()


async def test_decisions_and_writes_are_in_the_store(tmp_path: Path) -> None:
    b = Bench(tmp_path, store=StoreConfig(enabled=True))
    await b.run(40)
    await b.agent.stop(restore=True)
    path = Path(b.config.store_path)
    samples = run_query(path, "select count(*) from samples where workload = 'db'", 10, 5.0)
    assert samples.rows == ((40,),)
    written = run_query(path, "select distinct result from writes order by 1", 10, 5.0)
    assert [row[0] for row in written.rows] == ["restored", "written"]
    acted = run_query(path, "select count(*) from decisions where action = 'grow'", 10, 5.0)
    assert acted.rows != ((0,),)


async def test_who_changed_modes_pauses_and_workloads_is_in_store_log_and_events(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody could tell afterwards who had switched the daemon over, or that a reload had."""
    b, ann = Bench(tmp_path, store=StoreConfig(enabled=True)), Actor("ann", 1000, 77, "perphctl")
    seen: list[Event] = []

    async def listen() -> None:
        async for event in b.agent.subscribe():
            seen.append(event)

    task = asyncio.create_task(listen())
    await asyncio.sleep(0)
    await b.run(2)
    with caplog.at_level(logging.INFO, logger="perphd"):
        b.agent.set_mode(Mode.OBSERVE, None, ann)
        await b.agent.pause("pi", 60.0, "deployment", ann)
        await b.agent.resume("pi", ann)
        await b.agent.remove_workload("pi", ann)
        await b.agent.add_workload(b.config.workloads[1], ann)
        await b.agent.reload(b.config, ann)
        await b.agent.restore(ann)
    await b.run(1)
    await asyncio.sleep(0)
    task.cancel()
    await b.agent.stop(restore=True)
    kinds = [str(event.kind) for event in seen if event.by == str(ann)]
    assert {"mode", "pause", "restore"} <= set(kinds)
    assert len(kinds) >= 7
    rows = run_query(Path(b.config.store_path), "select data from events order by wall_s", 100, 5.0).rows
    assert sum("ann" in str(row[0]) for row in rows) == len(kinds)
    logged = [record for record in caplog.records if str(ann) in record.getMessage()]
    assert len(logged) == len(kinds)


async def test_it_says_when_it_looks_more_often_and_what_for(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        await b.run(15)
        quiet = b.agent.status()
        assert (quiet.pace_s, quiet.attentive) == (quiet.period_s, "")
        seen = []
        for _ in range(15):
            await b.run(1)
            seen.append(b.agent.status())
        assert any(status.pace_s < status.period_s for status in seen), "it had to act meanwhile"
        assert all(bool(status.attentive) == (status.pace_s < status.period_s) for status in seen)
        assert any(status.attentive == "db: effect of grow" for status in seen)


async def test_its_own_cost_is_measured(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        await b.run(12)
        cost = b.agent.status().cost
        assert available(cost.rss_bytes)
        assert cost.rss_bytes > 1 << 20
        assert available(cost.tick_ms_p50)
        assert available(cost.cpu_pct)


async def test_embedded_simulated_host_needs_no_configuration(tmp_path: Path) -> None:
    config = Config(daemon=DaemonConfig(state_dir=str(tmp_path)), store=StoreConfig(enabled=False))
    agent, advance = build_simulated(config)
    for now_s in range(1, 6):
        advance(float(now_s))
        await agent.tick(float(now_s))
    status = agent.status()
    assert {w.spec.name for w in status.workloads} == {"mysql", "pi"}
    assert all(w.present for w in status.workloads)
    await agent.stop(restore=True)


class EndsPi:
    """A shaper that ends pi at its first look."""

    is_off = False

    def __init__(self) -> None:
        self.asked: list[str] = []

    def look(self, *_: object) -> ShapingStep:
        return ShapingStep({}, () if self.asked else (("pi", "no room"),))

    def over(self, name: str, wanted: Settings, knobs: frozenset[str]) -> Settings:
        return replace(wanted, cpu_weight=50) if name == "pi" and "cpu_weight" in knobs else wanted

    def end(self, may_end: Callable[[str], str]) -> list[tuple[str, str]]:
        self.asked.append(may_end("pi"))
        return []


@pytest.mark.parametrize("stopped", [False, True])
async def test_a_mode_that_is_set_while_limits_are_written_keeps_a_workload_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped: bool
) -> None:
    shaper = EndsPi()
    monkeypatch.setattr("perphd.agent.composition.Shaping", lambda *_: shaper)
    async with bench(tmp_path) as found:
        apply = found.parts.executor.apply

        async def slow_apply(changes: ChangeSet, **options: bool) -> Applied:
            if stopped:
                found.agent.set_mode(Mode.OBSERVE, "pi")
            return await apply(changes, **options)

        monkeypatch.setattr(found.parts.executor, "apply", slow_apply)
        await found.run(1)
        assert shaper.asked[0] == ("it is only observed now" if stopped else "")
