"""The whole agent while things fail under it: it goes on, says what happened in one line, and gives everything back."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import rdt
from perphd.agent.agent import Agent
from perphd.agent.assembly import assemble
from perphd.agent.composition import build_parts
from perphd.agent.records import Records
from perphd.agent.simulated import simulated_sli
from perphd.config.file import Config, DaemonConfig, StoreConfig
from perphd.domain.allocation import UNTOUCHED, Settings
from perphd.domain.cpuset import CpuSet
from perphd.domain.policy import Policy, Snapshot, TargetState
from perphd.domain.sample import Quality
from perphd.domain.workload import Kind, Mode, SliSpec, WorkloadSpec
from perphd.isolation import Executor, FileReport, JournalInUse, RestoreReport
from perphd.sim.host import Arrival, SimHost
from perphd.sim.machine import CGROUP_ROOT, Machine
from perphd.sim.workload import Batch, Lra
from tests.unit.faults_fs import FaultyFs, Gate, Operation

KNOBS = ("cpu.weight", "cpu.idle", "cpuset.cpus", "memory.low", "memory.high")
ARRIVES_S = 15.0
PATIENCE_S = 90
SPECS = (
    WorkloadSpec("db", Kind.LRA, "/t/db", sli=SliSpec("simulated", (("workload", "db"),))),
    WorkloadSpec("pi", Kind.BATCH, "/t/pi"),
)


class Bench:
    """A simulated host whose kernel files are behind a gate, and an agent on it."""

    def __init__(
        self, state: Path, policy: Policy | None = None, crashing: int = 0, resctrl: bool = False
    ) -> None:
        names = [f"crash{number}" for number in range(crashing)]
        self.specs = (*SPECS, *(WorkloadSpec(name, Kind.BATCH, f"/t/{name}") for name in names))
        work: tuple[Lra | Batch, ...] = (
            Lra("db", "/t/db", clients=10, service_ms=2.0, serial_ms=0.05, wait_ms=1.5),
            Batch("pi", "/t/pi", threads=8),
            *(Batch(name, f"/t/{name}", threads=1) for name in names),
        )
        arrival = (Arrival(ARRIVES_S, "pi"), *(Arrival(2.0, name) for name in names))
        self.host = SimHost(work, machine=Machine(1, 8), events=arrival, seed=3, pmu=True, resctrl=resctrl)
        for one in work:
            self.host.fs.write(f"{CGROUP_ROOT}{one.cgroup}/cpuset.cpus", b"0-7")
        self.gate = Gate()
        self.now_s = 0.0
        self.state = state
        self.wall_s = 1.8e9
        self.before = self.files()
        self.policy = policy
        self.agent = self.start()

    def start(self) -> Agent:
        config = Config(
            daemon=DaemonConfig(mode=Mode.ENFORCE, state_dir=str(self.state)),
            store=StoreConfig(enabled=False),
            workloads=self.specs,
        )
        self.parts = build_parts(
            config,
            fs=FaultyFs(self.host.fs, self.gate),
            opener=self.host.perf_opener,
            sli_opener=simulated_sli(self.host),
            wall_clock=lambda: self.wall_s,
            policy=self.policy,
        )
        return assemble(config, self.parts)

    async def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now_s += 1.0
            self.wall_s += 1.0
            self.host.advance(self.now_s)
            await self.agent.tick(self.now_s)
            self.gate.seen.clear()

    async def until(self, what: bool) -> None:
        """Run until something is (not) in force."""
        for _ in range(PATIENCE_S):
            if bool(self.agent.status().journal_entries) is what:
                return
            await self.run(1)
        raise AssertionError(f"not within {PATIENCE_S} s; problems: {self.agent.status().problems}")

    def effective(self, cgroup: str) -> CpuSet:
        """The CPUs that a group's processes may run on now."""
        return CpuSet.parse(self.host.fs.read(f"{CGROUP_ROOT}{cgroup}/cpuset.cpus.effective").decode())

    def files(self) -> dict[str, bytes]:
        return {
            path: self.host.fs.read(path)
            for spec in SPECS
            for path in (f"{CGROUP_ROOT}{spec.cgroup}/{knob}" for knob in KNOBS)
            if self.host.fs.exists(path)
        }


class Partition:
    """The last two cores are the LRA's alone, whatever cores there are."""

    name = "partition"

    def decide(self, snapshot: Snapshot) -> TargetState:
        topology = snapshot.host.topology
        own = topology.cpus_of(topology.usable_cores[-2:])
        left = topology.usable - own or topology.usable
        settings = {"db": Settings(cpus=own), "pi": Settings(cpus=left)}
        return TargetState(settings, (), memory=None)


class Changing:
    """Wants what it is told to."""

    name = "changing"

    def __init__(self, **settings: Settings) -> None:
        self.settings = settings

    def decide(self, _snapshot: Snapshot) -> TargetState:
        return TargetState(dict(self.settings), (), memory=None)


@asynccontextmanager
async def bench(
    state: Path, policy: Policy | None = None, crashing: int = 0, resctrl: bool = False
) -> AsyncIterator[Bench]:
    here = Bench(state, policy, crashing, resctrl)
    try:
        yield here
    finally:
        here.gate.heal()
        report = await here.agent.stop(restore=True)
        assert report is not None
        assert report.complete, report
        assert here.files() == here.before


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("number", [errno.EIO, errno.EBUSY])
async def test_a_write_that_fails_is_one_line_and_the_loop_goes_on(
    number: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with bench(tmp_path) as here:

        def refuse(_: int, operation: Operation) -> int | None:
            return number if operation.kind == "write" and "/t/pi/" in operation.path else None

        here.gate.refuse = refuse
        await here.run(30)
        said = [line for line in lines(caplog) if "a change failed" in line]
        files = [line.split(": ")[1] for line in said]
        assert files
        assert len(set(files)) == len(files), "one line for each file, whatever was to be written"
        assert all("/t/pi/" in line and errno.errorcode[number] in line for line in said)
        assert here.files() == here.before, "what cannot be done is undone, and the LRA has what it had"
        assert here.agent.status().tick == 30
        here.gate.heal()
        here.agent.set_mode(Mode.ENFORCE)  # as an operator who has mended it
        await here.until(True)


async def test_a_kernel_that_refused_for_a_while_needs_nobody_to_come(tmp_path: Path) -> None:
    """What could not be set comes into force, and what could not be given back is told until it is."""
    policy = Changing(db=Settings(cpus=CpuSet.parse("0-1")), pi=Settings(cpus=CpuSet.parse("2-7")))
    async with bench(tmp_path, policy) as here:

        def refuse(_: int, operation: Operation) -> int | None:
            return (
                errno.EBUSY if operation.kind == "write" and "/t/db/cpuset.cpus" in operation.path else None
            )

        def left() -> list[str]:
            db = next(workload for workload in here.agent.status().workloads if workload.spec.name == "db")
            return [limited.reason for limited in db.limited if limited.knob == "cpus"]

        await here.run(int(ARRIVES_S) + 5)
        assert here.effective("/t/db") == CpuSet.parse("0-1")
        here.gate.refuse = refuse
        policy.settings = {}
        await here.run(100)
        assert here.effective("/t/db") == CpuSet.parse("0-1")
        (reason,) = left()
        assert "not restored, " in reason
        assert "EBUSY" in reason
        here.gate.heal()
        await here.run(70)
        assert here.files() == here.before
        assert not left()
        here.gate.refuse = refuse
        policy.settings = {"db": Settings(cpus=CpuSet.parse("0-1"))}
        await here.run(100)
        assert "EBUSY" in left()[0]
        here.gate.heal()
        await here.run(70)
        assert here.effective("/t/db") == CpuSet.parse("0-1")


async def test_what_stays_in_force_of_a_change_that_failed_is_not_said_to_be_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really_fill = rdt.Groups.fill

    def fill(groups: rdt.Groups, group: rdt.GroupRef, *threads: Any, **more: Any) -> object:
        if group.monitor:  # who only counts is not refused
            return really_fill(groups, group, *threads, **more)
        raise rdt.Full("/sys/fs/resctrl/perphd.pi/tasks", doing="writing", value="1", reason="no room")

    monkeypatch.setattr(rdt.Groups, "fill", fill)
    policy = Changing()
    results: list[str] = []
    monkeypatch.setattr(Records, "change", lambda _self, _at_s, _changes, result: results.append(result))
    async with bench(tmp_path, policy, resctrl=True) as here:
        await here.run(int(ARRIVES_S) + 5)
        policy.settings = {"pi": Settings(cpus=CpuSet.parse("2-7"), llc_masks=((0, 0x3),))}
        await here.run(1)
        assert here.effective("/t/pi") == CpuSet.parse("2-7")
        assert results == ["failed in part: cpus of pi written and in force, the rest not written or undone"]
        (problem,) = here.agent.status().problems
        assert "succeeded only in part (cpus of pi in force, the rest not)" in problem
        assert "no room" in problem
        assert "was undone" not in problem
        await here.run(1)
        assert results[1] == "failed and undone", "the group alone"


async def test_a_change_in_pieces_goes_on_at_the_next_tick(tmp_path: Path) -> None:
    policy = Changing(
        db=Settings(cpus=CpuSet.parse("0-1"), cpu_weight=50), pi=Settings(cpus=CpuSet.parse("2-7"))
    )
    async with bench(tmp_path, policy) as here:
        executor = here.parts.executor
        executor._size.too_slow(2)
        await here.run(1)
        assert executor.in_force("pi") == policy.settings["pi"]
        assert executor.blocked("db") == ("cpus", "cpu_weight")
        await here.run(1)
        assert executor.blocked("db") == ()
        assert executor.in_force("db") == policy.settings["db"]


async def test_what_groups_that_have_gone_left_is_told_once_and_until_it_is_taken_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = [
        RestoreReport(failed=(FileReport("/gone", "pi", "egress_max", "", note=f"try {n}"),)) for n in (1, 2)
    ]
    answers = [reports[0], None, *reports[1:] * 20]

    async def release(_: Executor) -> RestoreReport | None:
        return answers.pop(0)

    async with bench(tmp_path) as here:
        monkeypatch.setattr(Executor, "release_gone", release)
        await here.run(12)
        assert len(answers) < 20
        said = "some traffic classes of removed groups remain"
        assert len([line for line in lines(caplog) if said in line]) == 1
        assert [problem for problem in here.agent.status().problems if said in problem]
        answers[:] = [RestoreReport()] * 20
        await here.run(6)
        assert not [problem for problem in here.agent.status().problems if said in problem]


@pytest.mark.parametrize("kind", ["read", "identity"])
async def test_files_that_cannot_be_read_make_no_action(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with bench(tmp_path) as here:
        await here.run(8)
        here.gate.refuse = lambda _, operation: (
            errno.EIO if operation.kind == kind and "/t/pi/" in f"{operation.path}/" else None
        )
        await here.run(14)
        assert here.agent.status().tick == 22
        assert not [record for record in caplog.records if record.exc_info], "nothing unforeseen"
        assert here.files() == here.before


async def test_a_clock_that_jumps_and_a_host_that_slept_make_no_action_and_lose_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with bench(tmp_path) as here:
        await here.until(True)
        await here.run(20)
        before = here.files()
        here.wall_s -= 365 * 86400.0  # the time of day goes back a year: nothing goes by it
        await here.run(2)
        here.wall_s += 10 * 365 * 86400.0
        await here.run(2)
        assert here.files() == before
        here.now_s += 7200.0  # stopped for two hours, as a suspended host or virtual machine
        here.host.now_s = here.now_s
        await here.run(1)
        assert here.agent.samples["db"].has(Quality.LATE)
        assert here.files() == before, "an interval that nobody saw is no evidence"
        await here.run(5)
        assert not [record for record in caplog.records if record.exc_info]


async def test_processors_that_go_and_come_lose_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is written that names a CPU which is off, but originals; the LRA never has less than without perphd."""
    async with bench(tmp_path) as here:
        originals = {text.strip() for text in here.before.values()}

        def check(_number: int, operation: Operation) -> None:
            if operation.path.endswith("cpuset.cpus") and operation.text.encode() not in originals:
                assert CpuSet.parse(operation.text) <= here.host.cgroups.online, operation

        here.gate.after = check
        await here.until(True)
        for online in ("0-3", "0,4-7", "0", "0-7", "4-7", "0-7"):
            here.host.cgroups.set_online(CpuSet.parse(online))
            for _ in range(6):
                await here.run(1)
                lra, batch = here.effective("/t/db"), here.effective("/t/pi")
                assert lra == here.host.cgroups.online or (lra and not lra & batch)
            assert here.agent.topology.online == CpuSet.parse(online)
            assert not [record for record in caplog.records if record.exc_info]
        await here.until(True)
        await here.run(5)
        assert not [line for line in lines(caplog) if "a change failed" in line]


async def test_an_lra_whose_own_cpus_are_switched_off_gets_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with bench(tmp_path, Partition()) as here:
        await here.run(20)
        assert here.effective("/t/db") == CpuSet.parse("6-7")
        for online, own in (("0-5", "4-5"), ("0-2,7", "2,7"), ("0-7", "6-7"), ("0", "0"), ("0-7", "6-7")):
            here.host.cgroups.set_online(CpuSet.parse(online))
            assert here.effective("/t/db") <= CpuSet.parse(online), "the kernel falls back by itself"
            await here.run(1)
            lra, batch = here.effective("/t/db"), here.effective("/t/pi")
            assert lra == CpuSet.parse(own)
            assert not lra & batch or len(here.host.cgroups.online) == 1
        assert not here.agent.status().problems
        assert not lines(caplog)


async def test_a_cgroup_that_vanishes_and_comes_back_is_taken_up_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with bench(tmp_path) as here:
        await here.until(True)
        here.host._stop("pi")
        here.host.cgroups.remove("/t/pi")
        await here.run(8)
        assert sum("/t/pi does not exist" in line for line in lines(caplog)) == 1
        here.host._start("pi")
        here.host.fs.write(f"{CGROUP_ROOT}/t/pi/cpuset.cpus", b"0-7")
        fresh = {path: text for path, text in here.files().items() if "/t/pi/" in path}
        assert fresh == {path: text for path, text in here.before.items() if "/t/pi/" in path}
        await here.run(40)
        await here.until(True)


async def test_what_a_workload_left_behind_is_given_back_later_and_is_then_no_problem(tmp_path: Path) -> None:
    async with bench(tmp_path) as here:
        await here.until(True)
        here.gate.refuse = lambda _, operation: (
            errno.EIO if operation.kind == "write" and "/t/pi/" in operation.path else None
        )
        await here.agent.remove_workload("pi")
        await here.run(35)
        assert [
            text
            for text in here.agent.status().problems
            if text.startswith("pi: not everything was restored")
        ]
        here.gate.heal()
        await here.run(31)
        assert not [text for text in here.agent.status().problems if "given back" in text]
        after = here.files()
        assert {p: t for p, t in after.items() if "/t/pi/" in p} == {
            p: t for p, t in here.before.items() if "/t/pi/" in p
        }


async def test_batch_that_crashes_and_starts_for_ever_keeps_nobody_from_being_judged(tmp_path: Path) -> None:
    """Each time that a group comes back it is set anew: the LRA settles after that at times, and not always."""
    async with bench(tmp_path, crashing=3) as here:
        settling = 0
        for second in range(1, 51):
            await here.run(1)
            for number in range(3):
                name, phase = f"crash{number}", (second - 6 - number) % 3
                if second >= 8 + number and phase == 2:
                    here.host._stop(name)
                    here.host.cgroups.remove(f"/t/{name}")
                elif second >= 9 + number and phase == 0:
                    here.host._start(name)
            settling += second > 20 and here.agent.samples["db"].has(Quality.SETTLING)
        assert 0 < settling <= 14, "of 30 samples"
        assert here.agent.in_force("pi") != UNTOUCHED, "what protects it is in force"


async def test_a_second_daemon_ends_with_a_sentence(tmp_path: Path) -> None:
    async with bench(tmp_path) as here:
        with pytest.raises(JournalInUse, match="only one perphd may write"):
            here.start()
        await here.run(2)


async def test_a_cancelled_round_leaves_nothing_half_done(tmp_path: Path) -> None:
    async with bench(tmp_path) as here:
        await here.run(20)
        for _ in range(12):
            here.now_s += 1.0
            here.host.advance(here.now_s)
            task = asyncio.ensure_future(here.agent.tick(here.now_s))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await here.run(5)
