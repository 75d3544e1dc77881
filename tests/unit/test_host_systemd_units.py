"""Units set through systemd: what is asked of it, what is read back, what outlives a unit, how all is given back."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.domain.allocation import IDLE, IoLimit, Settings
from perphd.domain.cpuset import CpuSet
from perphd.domain.errors import Broken, Busy, Denied, Full, Gone, KernelError, Unsupported
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.host.cgroup import Layout, discover, lines
from perphd.host.fs import RealFs, hold
from perphd.host.systemd_bus import OBJECT, BusctlBus, bus_error
from perphd.host.systemd_dbus import DbusFastBus
from perphd.host.systemd_dropins import GIVEN_BACK, DropIns
from perphd.host.systemd_fs import UnitFs, refusal, unit_files, unit_of
from perphd.host.systemd_given_up import Attributes
from perphd.host.systemd_properties import (
    IDLE_WEIGHT,
    UNSET,
    Property,
    bitmap,
    drop_ins,
    line_properties,
    properties,
)
from perphd.isolation import Executor, Journal
from perphd.isolation.restore import restore, restore_journal
from tests.unit.isolation_kernel import FakeKernel
from tests.unit.isolation_systemd import FakeSystemd, no_drop_ins

UNIT = "job.service"
AT = f"/sys/fs/cgroup/system.slice/{UNIT}"
SPECS = [WorkloadSpec("job", Kind.BATCH, f"/system.slice/{UNIT}")]
EVERYTHING = Settings(
    cpus=CpuSet.of([3]),
    mems=CpuSet.of([1]),
    cpu_weight=IDLE,
    cpu_max_cores=0.5,
    memory_high_bytes=1 << 30,
    io_weight=20,
    io_max=(IoLimit("8:0", read_bytes=1 << 20, write_ops=50),),
)


@pytest.fixture
def systemd() -> FakeSystemd:
    found = FakeSystemd()
    found.start(UNIT)
    return found


def executor(systemd: FakeSystemd, journal: Journal) -> Executor:
    fs = systemd.fs()
    hierarchies = systemd.kernel.hierarchies
    return Executor(
        fs,
        hierarchies,
        journal,
        refuse=lambda cgroup: refusal(fs, hierarchies, cgroup),
        in_thread=False,
    )


@pytest.mark.parametrize(
    ("cgroup", "unit"),
    [
        ("/system.slice/db.service", "db.service"),
        ("/system.slice", "system.slice"),
        ("/machine.slice/machine-x.slice/a.scope", "a.scope"),
        ("/system.slice/_cpu.service", "cpu.service"),
        ("/user.slice/user-0.slice/user@0.service/app.slice/x.service", ""),
        ("/machine.slice/box.scope/system.slice/db.service", ""),
        ("/system.slice/db.service/worker", ""),
        ("/mine/x.service", ""),
        ("/system.slice/a b.service", ""),
    ],
)
def test_only_what_lies_in_slices_alone_is_a_unit_of_this_hosts_systemd(cgroup: str, unit: str) -> None:
    assert unit_of(cgroup) == unit


@given(st.sets(st.integers(0, 300)).map(CpuSet.of))
def test_a_bitmap_has_bit_n_of_byte_n_over_8(cpus: CpuSet) -> None:
    data = bitmap(cpus)
    assert {8 * n + bit for n, byte in enumerate(data) for bit in range(8) if byte >> bit & 1} == set(cpus)


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("cpuset.cpus", "0-1,9", [("AllowedCPUs", b"\x03\x02")]),
        ("cpuset.mems", "", [("AllowedMemoryNodes", b"")]),
        ("cpu.weight", "50", [("CPUWeight", 50)]),
        ("cpu.weight", "100", [("CPUWeight", UNSET)]),
        ("cpu.idle", "1", [("CPUWeight", IDLE_WEIGHT)]),
        ("cpu.max", "50000 100000", [("CPUQuotaPerSecUSec", 500_000), ("CPUQuotaPeriodUSec", 100_000)]),
        ("cpu.max", "max 100000", [("CPUQuotaPerSecUSec", UNSET), ("CPUQuotaPeriodUSec", UNSET)]),
        ("memory.high", "max", [("MemoryHigh", UNSET)]),
        ("memory.low", "4096", [("MemoryLow", 4096)]),
        ("io.weight", "default 20", [("IOWeight", 20)]),
        ("io.latency", "8:0 target=500", [("IODeviceLatencyTargetUSec", (("/dev/block/8:0", 500),))]),
    ],
)
def test_texts_of_files_as_properties(file: str, text: str, expected: list[tuple[str, object]]) -> None:
    assert [(item.name, item.value) for item in properties(file, text)] == expected
    assert drop_ins(file)


@pytest.mark.parametrize("weight", [1, 99, 100, 101, 136, 545, 999, 1000])
def test_a_bfq_weight_is_what_systemd_makes_of_the_io_weight(systemd: FakeSystemd, weight: int) -> None:
    (item,) = properties("io.bfq.weight", f"default {weight}")
    systemd.set_properties(UNIT, [Property("IOWeight", "t", 777)])
    systemd.set_properties(UNIT, [item])
    assert systemd.kernel.read(f"{AT}/io.bfq.weight") == f"default {weight}\n".encode()


@pytest.mark.parametrize(("scales", "found"), [(True, 136), (False, 500)])
async def test_an_administrators_io_weight_comes_back_for_bfq(
    systemd: FakeSystemd, tmp_path: Path, scales: bool, found: int
) -> None:
    systemd.scales_bfq = scales
    systemd.set_properties(UNIT, [Property("IOWeight", "t", 500)])
    assert systemd.kernel.read(f"{AT}/io.bfq.weight") == f"default {found}\n".encode()
    with Journal(tmp_path, boot_id="boot") as journal:
        agent = executor(systemd, journal)
        assert (await agent.apply(agent.plan({"job": Settings(io_weight=20)}, SPECS, 0.0))).ok
        assert systemd.kernel.read(f"{AT}/io.bfq.weight") == b"default 20\n"
    report = restore(systemd.fs(), tmp_path, boot_id="boot")
    assert report.complete, str(report)
    assert systemd.kernel.read(f"{AT}/io.bfq.weight") == f"default {found}\n".encode()


@given(st.integers(1000, 10_000_000), st.integers(1000, 1_000_000))
def test_systemd_makes_the_wanted_quota_of_any_period(quota: int, period: int) -> None:
    per_second, _ = properties("cpu.max", f"{quota} {period}")
    assert isinstance(per_second.value, int)
    assert per_second.value * period // 1_000_000 == quota
    assert max(period, 1_000 * 1_000_000 // per_second.value) == period, "systemd keeps the period"


async def test_a_units_own_quota_period_is_kept(systemd: FakeSystemd, tmp_path: Path) -> None:
    given = [Property("CPUQuotaPeriodUSec", "t", 30_000), Property("CPUQuotaPerSecUSec", "t", 800_000)]
    systemd.set_properties(UNIT, given)
    assert systemd.kernel.read(f"{AT}/cpu.max") == b"24000 30000\n"
    with Journal(tmp_path, boot_id="boot") as journal:
        agent = executor(systemd, journal)
        applied = await agent.apply(agent.plan({"job": Settings(cpu_max_cores=1 / 3)}, SPECS, 0.0))
        assert applied.ok, applied.failed
        assert systemd.kernel.read(f"{AT}/cpu.max") == b"10000 30000\n"
        assert (await agent.apply(agent.plan({}, SPECS, 60.0))).ok
    assert systemd.kernel.read(f"{AT}/cpu.max") == b"24000 30000\n"


async def test_settings_come_into_force_through_systemd_and_are_given_back(
    systemd: FakeSystemd, tmp_path: Path
) -> None:
    before = systemd.kernel.texts()
    with Journal(tmp_path, boot_id="boot") as journal:
        agent = executor(systemd, journal)
        assert {"cpus", "cpu_weight", "cpu_max_cores", "io_max"} <= agent.enforceable(SPECS[0])[0]
        applied = await agent.apply(agent.plan({"job": EVERYTHING}, SPECS, 0.0))
        assert applied.ok, applied
        assert systemd.kernel.read(f"{AT}/cpuset.cpus") == b"3\n"
        assert systemd.kernel.read(f"{AT}/cpu.idle") == b"1\n"
        assert systemd.kernel.read(f"{AT}/io.max") == b"8:0 rbps=1048576 wbps=max riops=max wiops=50\n"
        assert agent.in_force("job") == EVERYTHING
        assert not agent.plan({"job": EVERYTHING}, SPECS, 60.0)
        assert systemd.kernel.writes == [], "nothing is written past systemd"
        assert (await agent.apply(agent.plan({}, SPECS, 60.0))).ok
        assert not agent.conflicts()
    after = systemd.kernel.texts()
    for path, text in before.items():
        assert after[path] == text
    assert after[f"{AT}/cpuset.cpus"] == "0-3\n", "a populated group: all CPUs, then nothing of its own"
    assert [item.value for _, (item, *_) in systemd.calls if item.name == "AllowedCPUs"] == [
        b"\x08",
        b"\x0f",
        b"",
    ]


async def test_an_empty_change_of_a_unit_asks_nothing_of_systemd(
    systemd: FakeSystemd, tmp_path: Path
) -> None:
    with Journal(tmp_path, boot_id="boot") as journal:
        agent = executor(systemd, journal)
        assert not agent.plan({"job": Settings(cpu_weight=100, io_max=())}, SPECS, 0.0)
        assert systemd.calls == []


def test_files_that_systemd_writes_are_not_held_open_for_writing(
    systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[str] = []
    monkeypatch.setattr(systemd.kernel, "hold", lambda path, identity: held.append(path), raising=False)
    fs = systemd.fs()
    below, kid = f"{AT}/kid", f"{AT}/kid/cpu.weight"
    systemd.kernel.mkdir(below.removeprefix("/sys/fs/cgroup"))
    hold(fs, f"{AT}/cpu.weight", fs.identity(AT))
    assert not held
    hold(fs, kid, fs.identity(below))
    assert held == [kid]


async def test_a_value_that_the_kernel_refused_is_a_failure_although_systemd_reported_success(
    systemd: FakeSystemd, tmp_path: Path
) -> None:
    systemd.kernel.nodes = "0-1"
    fs = systemd.fs()
    fs.write(f"{AT}/cpuset.mems", b"9\n")
    assert systemd.journal
    with Journal(tmp_path, boot_id="boot") as journal:
        agent = executor(systemd, journal)
        systemd.kernel.directories[AT].files["cpuset.cpus"] = "0-3"

        def refuse(unit: str, file: str, text: str) -> None:
            systemd.journal.append("refused")

        systemd._set = refuse  # type: ignore[method-assign]
        applied = await agent.apply(agent.plan({"job": Settings(cpus=CpuSet.of([1]))}, SPECS, 0.0))
        assert isinstance(applied.failed, Broken)
        assert "it reads '0-3' after the write" in str(applied.failed)


async def test_a_restarted_unit_keeps_what_was_set_and_it_is_still_known_what_it_had(
    systemd: FakeSystemd, tmp_path: Path
) -> None:
    target = {"job": Settings(cpus=CpuSet.of([3]), memory_high_bytes=1 << 30)}
    with Journal(tmp_path, boot_id="boot") as journal:
        agent = executor(systemd, journal)
        assert (await agent.apply(agent.plan(target, SPECS, 0.0))).ok
        systemd.restart(UNIT)
        assert not agent.plan(target, SPECS, 10.0), "systemd has set it again"
        assert not agent.conflicts()
        assert (await agent.apply(agent.plan({}, SPECS, 20.0))).ok
        assert systemd.kernel.read(f"{AT}/memory.high") == b"max\n"
        assert systemd.kernel.read(f"{AT}/cpuset.cpus.effective") == b"0-3\n"


async def test_a_stopped_unit_is_given_back_what_it_will_start_with(
    systemd: FakeSystemd, tmp_path: Path
) -> None:
    target = {"job": Settings(cpus=CpuSet.of([3]), memory_high_bytes=1 << 30, cpu_weight=5)}
    with Journal(tmp_path, boot_id="boot") as journal:
        agent = executor(systemd, journal)
        assert (await agent.apply(agent.plan(target, SPECS, 0.0))).ok
        systemd.stop(UNIT)
        assert not agent.plan({}, SPECS, 10.0)
        assert journal.originals, "not forgotten with the cgroup"
        report = restore_journal(systemd.fs(), journal, list(journal.originals.values()))
        assert {file.knob for file in report.restored} == {"cpus", "memory_high_bytes", "cpu_weight"}
        assert "does not run" in report.restored[0].note
        systemd.start(UNIT)
        assert systemd.kernel.read(f"{AT}/memory.high") == b"max\n"
        assert not systemd.kernel.exists(f"{AT}/cpuset.cpus")
        assert not journal.originals


@pytest.mark.parametrize("forgotten", [True, False], ids=["a scope", "a service"])
async def test_a_unit_that_stops_meanwhile_takes_nothing_back_from_others(
    systemd: FakeSystemd, tmp_path: Path, forgotten: bool
) -> None:
    names = [f"box{number}.scope" for number in range(3)]
    for name in names:
        systemd.start(name)
    specs = [WorkloadSpec(name, Kind.BATCH, f"/system.slice/{name}") for name in names]
    real, stopped = systemd.set_properties, names[2]

    def stop(unit: str, properties: Sequence[Property]) -> None:
        real(unit, properties)
        if unit == names[1] and systemd.kernel.exists(f"/sys/fs/cgroup/system.slice/{stopped}"):
            systemd.stop(stopped)
            if forgotten:
                systemd.known.remove(stopped)

    systemd.set_properties = stop  # type: ignore[method-assign]
    target = dict.fromkeys(names, Settings(memory_high_bytes=1 << 30))
    with Journal(tmp_path, boot_id="boot") as journal:
        agent = executor(systemd, journal)
        applied = await agent.apply(agent.plan(target, specs, 0.0))
        assert applied.ok, applied.failed
        assert applied.skipped == (stopped,)
        for name in names[:2]:
            assert systemd.kernel.read(f"/sys/fs/cgroup/system.slice/{name}/memory.high") == b"1073741824\n"
        report = await agent.restore()
        assert report.complete, str(report)
        assert not journal.originals


async def test_a_unit_that_systemd_forgot_owes_nothing(systemd: FakeSystemd, tmp_path: Path) -> None:
    with Journal(tmp_path, boot_id="boot") as journal:
        agent = executor(systemd, journal)
        assert (await agent.apply(agent.plan({"job": Settings(cpu_weight=5)}, SPECS, 0.0))).ok
        systemd.stop(UNIT)
        systemd.known.clear()
        assert restore_journal(systemd.fs(), journal, list(journal.originals.values())).complete
        assert not journal.originals


@pytest.mark.parametrize("fault", [errno.EACCES, errno.ETIMEDOUT, errno.EIO])
async def test_a_systemd_that_refuses_or_hangs_leaves_everything_as_it_was(
    systemd: FakeSystemd, tmp_path: Path, fault: int
) -> None:
    kinds = {errno.EACCES: Denied, errno.ETIMEDOUT: Busy, errno.EIO: Broken}
    systemd.fault = kinds[fault](UNIT, "SetUnitProperties", fault)
    before = systemd.kernel.texts()
    with Journal(tmp_path, boot_id="boot") as journal:
        agent = executor(systemd, journal)
        applied = await agent.apply(agent.plan({"job": EVERYTHING}, SPECS, 0.0))
        assert isinstance(applied.failed, kinds[fault])
        assert systemd.kernel.texts() == before
        # What systemd did not refuse it may yet do: the originals of that one setting stay on record.
        assert {o.knob for o in journal.originals.values()} == (
            set() if fault == errno.EACCES else {"cpu_weight"}
        )


class _Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("number", range(14))
@pytest.mark.parametrize("after", [False, True])
async def test_a_daemon_that_dies_at_any_request_leaves_a_restorable_unit(
    systemd: FakeSystemd, tmp_path: Path, number: int, after: bool
) -> None:
    before = systemd.kernel.texts()
    real = systemd.set_properties

    def die(unit: str, properties: Sequence[Property]) -> None:
        if len(systemd.calls) == number:
            if after:
                real(unit, properties)
            raise _Killed
        real(unit, properties)

    systemd.set_properties = die  # type: ignore[method-assign]
    with Journal(tmp_path, boot_id="boot") as journal:
        agent = executor(systemd, journal)
        with suppress(_Killed):
            await agent.apply(agent.plan({"job": EVERYTHING}, SPECS, 0.0))
            await agent.apply(agent.plan({"job": Settings(cpus=CpuSet.of([1]), cpu_weight=7)}, SPECS, 60.0))
    systemd.set_properties = real  # type: ignore[method-assign]
    with Journal(tmp_path, boot_id="boot") as journal:
        report = restore_journal(systemd.fs(), journal, list(journal.originals.values()))
        assert report.complete, str(report)
        assert not report.foreign, str(report)
    after_texts = systemd.kernel.texts()
    assert {path: after_texts[path] for path in before} == before
    for file, default in (("cpu.weight", "100\n"), ("cpu.idle", "0\n"), ("io.max", "\n")):
        assert after_texts.get(f"{AT}/{file}", default) == default
    assert after_texts.get(f"{AT}/cpuset.cpus", "\n") in ("\n", "0-3\n")


async def test_an_administrators_set_property_is_set_again_once_and_then_yielded_to(
    systemd: FakeSystemd, tmp_path: Path
) -> None:
    target = {"job": Settings(memory_high_bytes=1 << 30)}
    with Journal(tmp_path, boot_id="boot") as journal:
        agent = executor(systemd, journal)
        for at_s, theirs in ((0.0, 2 << 30), (60.0, 3 << 30)):
            assert (await agent.apply(agent.plan(target, SPECS, at_s))).ok
            systemd.set_properties(UNIT, [Property("MemoryHigh", "t", theirs)])
        assert not agent.plan(target, SPECS, 120.0)
        assert agent.conflicts()[0].yielded
        report = await agent.restore()
        assert [file.found for file in report.foreign] == [str(3 << 30)]
        assert systemd.kernel.read(f"{AT}/memory.high") == f"{3 << 30}\n".encode()


async def _kept(systemd: FakeSystemd, state: Path) -> None:
    """What a daemon that asks systemd leaves when it is restarted."""
    with Journal(state, boot_id="boot") as journal:
        agent = executor(systemd, journal)
        target = {"job": Settings(cpus=CpuSet.of([3]), cpu_weight=5)}
        assert (await agent.apply(agent.plan(target, SPECS, 0.0))).ok
        agent.keep()


@pytest.mark.parametrize("units", [True, False])
async def test_what_systemd_was_asked_for_is_kept_only_for_one_who_asks_it_too(
    systemd: FakeSystemd, tmp_path: Path, units: bool
) -> None:
    await _kept(systemd, tmp_path)
    report = restore(systemd.fs(), tmp_path, boot_id="boot", but={"job"}, units=units)
    assert report.complete
    assert {file.knob for file in report.restored} == (set() if units else {"cpus", "cpu_weight"})
    systemd.restart(UNIT)
    assert systemd.kernel.directories[AT].files.get("cpu.weight", "").strip() == ("5" if units else "")


async def test_what_is_a_control_groups_own_is_kept_for_one_who_does_not_ask_systemd(
    systemd: FakeSystemd, tmp_path: Path
) -> None:
    systemd.kernel.mkdir("/mine")
    specs = [WorkloadSpec("own", Kind.BATCH, "/mine")]
    with Journal(tmp_path, boot_id="boot") as journal:
        agent = executor(systemd, journal)
        assert (await agent.apply(agent.plan({"own": Settings(cpu_weight=5)}, specs, 0.0))).ok
        agent.keep()
    assert not restore(systemd.fs(), tmp_path, boot_id="boot", but={"own"}, units=False)
    assert systemd.kernel.read("/sys/fs/cgroup/mine/cpu.weight") == b"5\n"


@pytest.mark.parametrize("runs", [True, False])
async def test_files_without_systemd_never_close_what_it_was_asked_for(
    systemd: FakeSystemd, tmp_path: Path, runs: bool
) -> None:
    await _kept(systemd, tmp_path)
    if not runs:
        systemd.stop(UNIT)
    with Journal(tmp_path, boot_id="boot") as journal:
        known = dict(journal.originals)
        agent = Executor(systemd.kernel, systemd.kernel.hierarchies, journal, in_thread=False)
        report = await agent.restore()
        assert not report.complete
        assert {file.path for file in report.failed} == set(known)
        assert not report.gone
        assert "run perphd restore" in report.notes[-1]
        assert dict(journal.originals) == known, "nothing is forgotten"
    assert systemd.kernel.writes == []
    assert restore(systemd.fs(), tmp_path, boot_id="boot").complete, "that one asks systemd"
    if runs:
        systemd.stop(UNIT)
    systemd.start(UNIT)
    assert "cpu.weight" not in systemd.kernel.directories[AT].files


def test_an_old_systemd_has_no_word_for_idle(systemd: FakeSystemd) -> None:
    old = UnitFs(systemd.kernel, systemd.kernel.hierarchies, systemd, version=249)
    assert not old.exists(f"{AT}/cpu.idle")
    assert old.exists(f"{AT}/cpu.weight")
    assert systemd.fs().exists(f"{AT}/cpu.idle")


def test_freezing_goes_through_systemd_and_delegated_subtrees_are_written_directly(
    systemd: FakeSystemd,
) -> None:
    fs = systemd.fs()
    fs.write(f"{AT}/cgroup.freeze", b"1\n")
    assert systemd.kernel.read(f"{AT}/cgroup.freeze") == b"1\n"
    assert systemd.kernel.writes == []
    systemd.kernel.mkdir(f"/system.slice/{UNIT}/mine")
    fs.write(f"{AT}/mine/memory.high", b"4096\n")
    assert systemd.kernel.writes == [(f"{AT}/mine/memory.high", "4096")]
    assert fs.identity(f"{AT}/mine") == systemd.kernel.identity(f"{AT}/mine")
    assert fs.identity(AT) != systemd.kernel.identity(AT)


def _full(path: str, text: str) -> None:
    raise OSError(errno.ENOSPC, "full", path)


class _Files:
    """Drop-ins and marks, beside the kernel's files."""

    def __init__(self, kernel: FakeKernel, monkeypatch: pytest.MonkeyPatch) -> None:
        self.texts: dict[str, str] = {}
        read, exists = kernel.read, kernel.exists
        monkeypatch.setattr(kernel, "read", lambda p: self.texts[p].encode() if p in self.texts else read(p))
        monkeypatch.setattr(kernel, "exists", lambda p: p in self.texts or exists(p))

    def mark(self, path: str, text: str) -> None:
        self.texts[path] = text

    def empty(self, path: str) -> None:
        if path not in self.texts:
            raise FileNotFoundError(path)
        self.texts[path] = GIVEN_BACK

    def unmark(self, path: str) -> None:
        del self.texts[path]

    @property
    def set_here(self) -> set[str]:
        """Those that are no comment of perphd's."""
        return {path for path, text in self.texts.items() if text != GIVEN_BACK}

    def fs(self, systemd: FakeSystemd) -> UnitFs:
        kernel = systemd.kernel
        drop_ins = DropIns(kernel, self.empty, self.mark, self.unmark)
        return UnitFs(kernel, kernel.hierarchies, systemd, drop_ins=drop_ins, sleep=lambda s: None)


@pytest.fixture
def files(systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch) -> _Files:
    return _Files(systemd.kernel, monkeypatch)


CONTROL = "/run/systemd/system.control/job.service.d"


@pytest.mark.parametrize(
    ("file", "name", "said"),
    [
        ("memory.high", "MemoryHigh", "MemoryHigh=infinity"),
        ("memory.low", "MemoryLow", "MemoryLow=0"),
        ("cpuset.cpus", "AllowedCPUs", "AllowedCPUs="),
    ],
)
def test_an_administrators_drop_in_stays_even_if_it_says_no_more_than_that_there_is_no_value(
    systemd: FakeSystemd, files: _Files, file: str, name: str, said: str
) -> None:
    files.texts = {f"{CONTROL}/50-{name}.conf": f"# made by\n[Service]\n{said}\n"}
    before = dict(files.texts)
    fs = files.fs(systemd)
    fs.write(f"{AT}/{file}", b"1\n")
    fs.given_back(f"{AT}/{file}")
    assert files.texts == before


def test_of_what_could_not_be_marked_the_drop_ins_without_a_value_are_emptied(
    systemd: FakeSystemd, files: _Files
) -> None:
    fs = files.fs(systemd)
    fs._drop_ins._mark = _full
    for file in ("memory.high", "memory.low"):
        fs.write(f"{AT}/{file}", b"4096\n")
    files.texts = {
        f"{CONTROL}/50-MemoryHigh.conf": "# made by\n[Service]\nMemoryHigh=infinity\n",
        f"{CONTROL}/50-MemoryLow.conf": "[Service]\nMemoryLow=\nMemoryLow=4096\n",
        f"{CONTROL}/50-MemoryMax.conf": "[Service]\nMemoryMax=infinity\n",
    }
    for file in ("memory.high", "memory.low", "memory.max"):
        fs.given_back(f"{AT}/{file}")
    assert files.set_here == {f"{CONTROL}/50-MemoryLow.conf", f"{CONTROL}/50-MemoryMax.conf"}
    files.texts = {f"{CONTROL}/50-MemoryHigh.conf": "[Service]\nMemoryHigh=infinity\n"}
    fs.given_back(f"{AT}/memory.high")
    assert files.set_here, "once: what comes later is an administrator's"


@pytest.mark.parametrize(
    ("file", "name", "perphds", "owners"),
    [
        ("cpu.max", "CPUQuota", "50000 100000", "150000 100000"),
        ("cpu.weight", "CPUWeight", "20", "70"),
        ("memory.max", "MemoryMax", "4096", "8192"),
    ],
)
@pytest.mark.parametrize("runs", [True, False])
def test_a_drop_in_keeps_the_value_that_the_units_owner_set_through_it(
    systemd: FakeSystemd, files: _Files, file: str, name: str, perphds: str, owners: str, runs: bool
) -> None:
    fs = files.fs(systemd)
    fs.write(f"{AT}/{file}", f"{perphds}\n".encode())
    drop_in = f"/run/systemd/transient/{UNIT}.d/50-{name}.conf"
    files.texts[drop_in] = (
        f"[Scope]\n{name}=the owner's\n"  # kubelet resizes a pod; perphd sets its value again
    )
    fs.write(f"{AT}/{file}", f"{perphds}\n".encode())
    if runs:
        fs.write(f"{AT}/{file}", f"{owners}\n".encode())
        fs.given_back(f"{AT}/{file}")
    else:
        systemd.stop(UNIT)
        assert fs.give_back_absent(f"{AT}/{file}", owners)
    assert files.set_here == {drop_in}, "or the next daemon-reload loses it"
    assert not [path for path in files.texts if "/perphd/" in path], "no mark is left"


def test_weight_and_idle_share_a_drop_in_and_what_is_known_of_it(systemd: FakeSystemd, files: _Files) -> None:
    drop_in = f"/run/systemd/transient/{UNIT}.d/50-CPUWeight.conf"
    for owners, kept in (("100", set()), ("70", {drop_in})):
        fs = files.fs(systemd)
        fs.write(f"{AT}/cpu.weight", b"20\n")
        fs.write(f"{AT}/cpu.idle", b"1\n")
        files.texts[drop_in] = "[Service]\nCPUWeight=...\n"
        fs.write(f"{AT}/cpu.idle", b"0\n")
        fs.write(f"{AT}/cpu.weight", f"{owners}\n".encode())
        fs.given_back(f"{AT}/cpu.idle")
        fs.given_back(f"{AT}/cpu.weight")
        assert files.set_here == kept


def test_a_mark_without_a_text_is_of_an_earlier_perphd(systemd: FakeSystemd, files: _Files) -> None:
    files.texts = {
        f"/run/perphd/drop-ins/{UNIT}/MemoryHigh": "",
        f"{CONTROL}/50-MemoryHigh.conf": "[Service]\nMemoryHigh=4096\n",
    }
    files.fs(systemd).given_back(f"{AT}/memory.high")
    assert files.set_here == set()


@pytest.mark.parametrize("folder", ["system.control", "transient"])
@pytest.mark.parametrize("before", [True, False])
def test_a_drop_in_that_restates_an_original_is_emptied_unless_it_was_there_before(
    systemd: FakeSystemd, files: _Files, folder: str, before: bool
) -> None:
    drop_in = f"/run/systemd/{folder}/job.service.d/50-CPUWeight.conf"
    if before:
        files.texts[drop_in] = "[Service]\nCPUWeight=70\n"
    systemd.set_properties(UNIT, properties("cpu.weight", "70"))
    files.fs(systemd).write(f"{AT}/cpu.weight", b"20\n")
    files.texts[drop_in] = "[Service]\nCPUWeight=70\n"
    # Another process, which gives back what the first has left.
    fs = files.fs(systemd)
    fs.write(f"{AT}/cpu.weight", b"70\n")
    fs.given_back(f"{AT}/cpu.weight")
    assert files.set_here == ({drop_in} if before else set())
    # Once more: what was emptied counts as not there before.
    fs.write(f"{AT}/cpu.weight", b"30\n")
    files.texts[drop_in] = "[Service]\nCPUWeight=30\n"
    fs.write(f"{AT}/cpu.weight", b"70\n")
    fs.given_back(f"{AT}/cpu.weight")
    assert files.set_here == ({drop_in} if before else set())


def test_marks_that_cannot_be_made_do_not_keep_systemd_from_being_asked(systemd: FakeSystemd) -> None:
    fs = UnitFs(
        systemd.kernel, systemd.kernel.hierarchies, systemd, drop_ins=DropIns(systemd.kernel, mark=_full)
    )
    fs.write(f"{AT}/memory.high", b"4096\n")
    assert systemd.kernel.read(f"{AT}/memory.high") == b"4096\n"


class Hung:
    """A busctl whose systemd does not answer (or says something else); counts how often that was waited for."""

    def __init__(self, said: str = "Call failed: Connection timed out") -> None:
        self.waits, self._said = 0, said

    def __call__(self, command: Sequence[str], **_: Any) -> subprocess.CompletedProcess[str]:
        self.waits += 1
        return subprocess.CompletedProcess(list(command), 1, "", self._said)


async def test_a_systemd_that_does_not_answer_is_waited_for_once_and_by_its_units_alone(
    systemd: FakeSystemd, tmp_path: Path
) -> None:
    units = [UNIT, *(f"job{n}.service" for n in range(3))]
    for unit in units[1:]:
        systemd.start(unit)
    for group in ("/mine", "/mine/app"):  # a tree of the operator's own: written directly
        systemd.kernel.mkdir(group)
    kernel, hierarchies = systemd.kernel, systemd.kernel.hierarchies
    specs = [WorkloadSpec(unit.split(".")[0], Kind.BATCH, f"/system.slice/{unit}") for unit in units]
    want = {spec.name: Settings(cpus=CpuSet.of([3]), cpu_weight=IDLE) for spec in specs}
    app = WorkloadSpec("app", Kind.LRA, "/mine/app")
    want["app"] = Settings(cpus=CpuSet.of([0, 1]))
    with Journal(tmp_path) as journal:
        fs = systemd.fs()
        executor = Executor(
            fs, hierarchies, journal, in_thread=False, refuse=lambda cgroup: refusal(fs, hierarchies, cgroup)
        )
        assert (await executor.apply(executor.plan(want, [*specs, app]))).ok
    hung, waited = Hung(), list[tuple[str, int]]()
    write = kernel.write

    def seen(path: str, data: bytes) -> None:
        waited.append((path, hung.waits))
        write(path, data)

    kernel.write = seen  # type: ignore[method-assign]
    deaf = UnitFs(
        kernel, hierarchies, BusctlBus(hung), sleep=lambda s: None,
        drop_ins=no_drop_ins(kernel), given_up=systemd.given_up,
    )  # fmt: skip
    with Journal(tmp_path) as journal:
        report = restore_journal(deaf, journal, list(journal.originals.values()))
        left = set(journal.originals)
    assert hung.waits == 1
    assert [file.path for file in report.restored] == ["/sys/fs/cgroup/mine/app/cpuset.cpus"]
    assert {count for _, count in waited} == {0}, "what is written directly waits for nobody"
    assert {file.path for file in report.failed} <= left
    assert len(report.failed) >= 2 * len(units)
    assert all(any(unit in path for path in left) for unit in units)
    assert sum("does not answer" in note for note in report.notes) == len(report.failed) - 1
    kernel.write = write  # type: ignore[method-assign]
    with Journal(tmp_path) as journal:  # it answers again
        assert restore_journal(systemd.fs(), journal, list(journal.originals.values())).complete
        assert not journal.originals
    assert systemd.properties[UNIT]["AllowedCPUs"].value == b""


@pytest.mark.parametrize("said", ["Call failed: Connection timed out", "Call failed: Access denied"])
async def test_a_list_below_a_unit_is_emptied_once_the_unit_has_its_own_back(
    systemd: FakeSystemd, tmp_path: Path, said: str
) -> None:
    # It cannot be emptied while processes are inside, and gets what the unit has: that must not be the confinement.
    kernel, hierarchies = systemd.kernel, systemd.kernel.hierarchies
    inner = f"/system.slice/{UNIT}/inner"
    specs = [*SPECS, WorkloadSpec("inner", Kind.BATCH, inner)]
    systemd.set_properties(UNIT, properties("cpuset.cpus", "0-3"))
    kernel.mkdir(inner, populated=True)
    want = {"job": Settings(cpus=CpuSet.of([2, 3])), "inner": Settings(cpus=CpuSet.of([3]))}
    with Journal(tmp_path) as journal:
        fs = systemd.fs()
        executor = Executor(fs, hierarchies, journal, in_thread=False)
        assert (await executor.apply(executor.plan(want, specs))).ok
        assert kernel.read(f"{AT}/inner/cpuset.cpus") == b"3\n"
        hung = UnitFs(
            kernel, hierarchies, BusctlBus(Hung(said)), sleep=lambda s: None,
            drop_ins=no_drop_ins(kernel), given_up=systemd.given_up,
        )  # fmt: skip
        report = restore_journal(hung, journal, list(journal.originals.values()))
        assert {file.path for file in report.failed} == {f"{AT}/cpuset.cpus", f"{AT}/inner/cpuset.cpus"}
        assert restore_journal(fs, journal, list(journal.originals.values())).complete
        assert not journal.originals
    assert kernel.read(f"{AT}/inner/cpuset.cpus") == b"0-3\n"


async def test_a_controller_that_systemd_switches_off_late_is_nobodys_change(
    systemd: FakeSystemd, tmp_path: Path
) -> None:
    """Given up, the list shows all CPUs until systemd gets round to switching the controller off."""
    target = {"job": Settings(cpus=CpuSet.of([3]))}
    with Journal(tmp_path, boot_id="boot") as journal:
        agent = executor(systemd, journal)
        assert (await agent.apply(agent.plan(target, SPECS, 0.0))).ok
        assert (await agent.apply(agent.plan({}, SPECS, 10.0))).ok
        assert systemd.kernel.read(f"{AT}/cpuset.cpus") == b"0-3\n"
        assert not journal.originals, "it is given back all the same"
        del systemd.kernel.directories[AT].files["cpuset.cpus"]
        assert (await agent.apply(agent.plan(target, SPECS, 20.0))).ok
        assert not agent.conflicts()
        assert [entry.text for entry in journal.originals.values()] == [""]


async def test_another_process_knows_which_lists_were_given_up(systemd: FakeSystemd, tmp_path: Path) -> None:
    target = {"job": Settings(cpus=CpuSet.of([3]))}
    for number in range(2):
        with Journal(tmp_path / str(number), boot_id="boot") as journal:
            agent = executor(systemd, journal)
            assert (await agent.apply(agent.plan(target, SPECS, 0.0))).ok
            assert [entry.text for entry in journal.originals.values()] == [""], "not what is shown meanwhile"
            assert systemd.fs().read(f"{AT}/cpuset.cpus") == b"3\n"
            assert restore_journal(systemd.fs(), journal, list(journal.originals.values())).complete
    assert systemd.calls[-1][1][0].value == b""


def test_notes_are_attributes_of_the_group(tmp_path: Path) -> None:
    notes, group = Attributes(), str(tmp_path)
    try:
        os.setxattr(group, "user.perphd.test", b"1")
    except OSError as exc:
        pytest.skip(f"needs extended attributes in {group}: {exc}")
    assert not notes.holds(group, "cpuset.cpus")
    notes.add(group, "cpuset.cpus")
    assert notes.holds(group, "cpuset.cpus")
    assert not notes.holds(group, "cpuset.mems")
    notes.discard(group, "cpuset.cpus")
    notes.discard(group, "cpuset.cpus")
    assert not notes.holds(group, "cpuset.cpus")
    notes.add(f"{group}/nonesuch", "cpuset.cpus")


def test_a_list_is_not_given_up_before_the_kernel_shows_all_of_it(systemd: FakeSystemd) -> None:
    fs = systemd.fs()
    fs.write(f"{AT}/cpuset.cpus", b"3\n")
    systemd._set = lambda unit, file, text: None  # type: ignore[method-assign]
    with pytest.raises(Busy, match="has not set it to 0-3"):
        fs.write(f"{AT}/cpuset.cpus", b"\n")
    assert [item.value for _, (item, *_) in systemd.calls] == [b"\x08", b"\x0f"]


def test_hosts_without_systemd_or_with_v1_are_written_directly(systemd: FakeSystemd) -> None:
    for kernel in (FakeKernel("v2"), FakeKernel("hybrid")):
        assert unit_files(kernel, kernel.hierarchies, systemd) is kernel
    assert isinstance(unit_files(systemd.kernel, systemd.kernel.hierarchies, systemd), UnitFs)


@pytest.mark.parametrize(
    ("mount", "controllers", "asks"),
    [
        ("/sys/fs/cgroup", "net_cls", True),
        ("/sys/fs/cgroup", "memory", False),
        ("/sys/fs/cgroup/unified", "net_cls", False),
    ],
)
def test_a_controller_of_v1_that_sets_nothing_leaves_units_to_systemd(
    mount: str, controllers: str, asks: bool, tmp_path: Path, systemd: FakeSystemd
) -> None:
    """As where a VPN has mounted net_cls on a host whose systemd is in its unified mode."""
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mounts").write_text(
        f"cgroup2 {mount} cgroup2 rw,nosuid 0 0\nnet_cls /sys/fs/cgroup/net_cls cgroup rw,{controllers} 0 0\n"
    )
    (tmp_path / mount[1:]).mkdir(parents=True)
    (tmp_path / mount[1:] / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    fs = RealFs(tmp_path)
    hierarchies = discover(fs)
    assert (hierarchies.layout is Layout.V2) is asks
    assert isinstance(unit_files(fs, hierarchies, systemd), UnitFs) is asks


def test_a_unit_is_refused_where_systemd_cannot_be_asked(systemd: FakeSystemd) -> None:
    cgroup, hierarchies = SPECS[0].cgroup, systemd.kernel.hierarchies
    assert "job.service is a unit that systemd manages" in str(refusal(systemd.kernel, hierarchies, cgroup))
    assert refusal(systemd.fs(), hierarchies, cgroup) is None
    assert "does not delegate" in str(refusal(systemd.fs(), hierarchies, f"{cgroup}/inner"))
    assert refusal(systemd.fs(), hierarchies, "/mine") is None


# -- the two buses ---------------------------------------------------------------------------------------------------


def test_busctl_is_called_without_a_shell_and_with_lengths_before_arrays() -> None:
    seen: list[list[str]] = []

    def run(command: list[str], **_: Any) -> SimpleNamespace:
        seen.append(command)
        return SimpleNamespace(returncode=0, stderr="")

    bus = BusctlBus(run)
    bus.set_properties(
        "a.service",
        [
            Property("AllowedCPUs", "ay", b"\x03\x01"),
            Property("CPUWeight", "t", 5),
            Property("IOReadBandwidthMax", "a(st)", (("/dev/block/8:0", 7),)),
        ],
    )
    bus.freeze("a.service", False)
    words = " ".join(seen[0][4:])
    assert words == (
        "call org.freedesktop.systemd1 /org/freedesktop/systemd1 org.freedesktop.systemd1.Manager SetUnitProperties "
        "sba(sv) a.service true 3 AllowedCPUs ay 2 3 1 CPUWeight t 5 IOReadBandwidthMax a(st) 1 /dev/block/8:0 7"
    )
    assert seen[1][-3:] == ["ThawUnit", "s", "a.service"]


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("Call failed: Unit nonesuch.service not found.", Gone),
        ("Call failed: Access denied", Denied),
        ("Call failed: Cannot set property Bogus, or unknown property.", Unsupported),
        ("Call failed: something else", Broken),
    ],
)
def test_what_busctl_says_becomes_the_class_that_says_what_to_do(said: str, kind: type[KernelError]) -> None:
    bus = BusctlBus(lambda *_, **__: SimpleNamespace(returncode=1, stderr=said))
    with pytest.raises(kind, match=r"systemctl status a\.service"):
        bus.set_properties("a.service", ())


def test_a_busctl_that_hangs_or_is_missing() -> None:
    def hangs(*_: Any, **__: Any) -> None:
        raise subprocess.TimeoutExpired("busctl", 10)

    def missing(*_: Any, **__: Any) -> None:
        raise FileNotFoundError(errno.ENOENT, "no busctl")

    with pytest.raises(Busy):
        BusctlBus(hangs).freeze("a.service", True)
    with pytest.raises(Unsupported, match="install busctl"):
        BusctlBus(missing).freeze("a.service", True)


def test_a_busctl_that_cannot_be_started_now_may_be_later() -> None:
    def no_room(*_: Any, **__: Any) -> None:
        raise BlockingIOError(errno.EAGAIN, "fork")

    with pytest.raises(Busy, match="busctl could not be started"):
        BusctlBus(no_room).freeze("a.service", True)


class _Connection:
    """As dbus-fast's MessageBus, as far as perphd uses it."""

    def __init__(self, answer: object) -> None:
        self.answer, self.connected = answer, True
        self.asked: list[Any] = []

    async def call(self, message: Any) -> Any:
        self.asked.append(message)
        if self.answer == "hang":
            await asyncio.sleep(60)
        return self.answer

    def disconnect(self) -> None:
        self.connected = False

    async def wait_for_disconnect(self) -> None:
        await asyncio.get_running_loop().create_future()


def dbus(answer: object) -> tuple[DbusFastBus, _Connection]:
    connection = _Connection(answer)

    async def connect() -> _Connection:
        return connection

    return DbusFastBus(connect), connection


def test_dbus_fast_sends_what_systemd_expects_over_one_connection() -> None:
    bus, connection = dbus(SimpleNamespace(error_name=None, body=[]))
    bus.set_properties("a.service", [Property("IOReadIOPSMax", "a(st)", (("/dev/block/8:0", 7),))])
    bus.set_properties("a.service", [Property("AllowedCPUs", "ay", b"\x01")])
    bus.freeze("a.service", True)
    first, second, third = connection.asked
    assert (first.member, first.signature, first.body[:2]) == (
        "SetUnitProperties",
        "sba(sv)",
        ["a.service", True],
    )
    assert first.body[2][0][1].value == [["/dev/block/8:0", 7]]
    assert second.body[2][0][1].value == b"\x01"
    assert third.member == "FreezeUnit"
    bus.close()
    bus.close()


def test_dbus_errors_and_a_bus_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    error = SimpleNamespace(
        error_name="org.freedesktop.systemd1.NoSuchUnit", body=["Unit a.service not loaded."]
    )
    bus, _ = dbus(error)
    with pytest.raises(Gone):
        bus.freeze("a.service", True)
    bus.close()
    monkeypatch.setattr("perphd.host.systemd_dbus.TIMEOUT_S", 0.02)
    bus, _ = dbus("hang")
    with pytest.raises(Busy, match="timed out"):
        bus.freeze("a.service", True)
    bus.close()


def test_a_bus_whose_thread_could_not_be_started_works_when_there_is_room_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bus, connection = dbus(SimpleNamespace(error_name=None, body=[]))

    def start(_self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        for _ in range(2):
            with pytest.raises(Full, match=r"can't start new thread.*TasksMax"):
                bus.freeze("a.service", True)
    assert not connection.asked
    bus.freeze("a.service", True)
    assert [message.member for message in connection.asked] == ["FreezeUnit"]
    bus.close()


async def test_a_bus_that_stops_first_leaves_no_traceback() -> None:
    """dbus-fast keeps EOFError in a future then, and asyncio logs what nobody has fetched when that is collected."""
    reported: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context))
    ended: asyncio.Future[None] = loop.create_future()

    class Stopping(_Connection):
        async def wait_for_disconnect(self) -> None:
            await ended

    connection = Stopping(SimpleNamespace(error_name=None, body=[]))

    async def connect() -> _Connection:
        return connection

    bus = DbusFastBus(connect)
    await bus._ask("Subscribe", "", [], OBJECT)
    await asyncio.sleep(0)
    ended.set_exception(EOFError())
    await asyncio.sleep(0)
    assert not ended._log_traceback  # as the future's destructor asks
    assert reported == []


def test_no_bus_at_all_is_an_error_with_a_name() -> None:
    async def connect() -> object:
        raise FileNotFoundError(errno.ENOENT, "/run/dbus/system_bus_socket")

    bus = DbusFastBus(connect)
    with pytest.raises(Broken, match="system_bus_socket"):
        bus.freeze("a.service", True)
    bus.close()
    assert isinstance(bus_error("a", "b", "AccessDenied"), Denied)


async def test_a_disks_ceiling_leaves_those_of_other_disks_alone(
    systemd: FakeSystemd, tmp_path: Path
) -> None:
    """systemd takes an empty list for "none of any disk", and merges any other into what it has."""
    theirs = "254:0 rbps=5000000 wbps=7000000 riops=max wiops=max"
    systemd.set_properties(
        UNIT,
        [
            Property("IOReadBandwidthMax", "a(st)", (("/dev/block/254:0", 5_000_000),)),
            Property("IOWriteBandwidthMax", "a(st)", (("/dev/block/254:0", 7_000_000),)),
        ],
    )
    assert systemd.kernel.read(f"{AT}/io.max").decode().strip() == theirs
    before = systemd.kernel.texts()
    target = {"job": Settings(io_max=(IoLimit("8:0", read_bytes=1 << 20),))}
    with Journal(tmp_path, boot_id="boot") as journal:
        agent = executor(systemd, journal)
        assert (await agent.apply(agent.plan(target, SPECS, 0.0))).ok
        shown = systemd.kernel.read(f"{AT}/io.max").decode().splitlines()
        assert sorted(shown) == sorted([theirs, "8:0 rbps=1048576 wbps=max riops=max wiops=max"])
        assert [item.name for item in systemd.calls[-1][1]] == ["IOReadBandwidthMax"], (
            "what does not change is not named"
        )
        assert (await agent.apply(agent.plan({}, SPECS, 60.0))).ok
        assert systemd.kernel.texts() == before
        assert not journal.originals


async def test_a_unit_that_has_ended_starts_again_with_the_ceilings_that_it_had(
    systemd: FakeSystemd, tmp_path: Path
) -> None:
    systemd.set_properties(
        UNIT, [Property("IOReadBandwidthMax", "a(st)", (("/dev/block/254:0", 5_000_000),))]
    )
    before = systemd.kernel.read(f"{AT}/io.max")
    target = {"job": Settings(io_max=(IoLimit("8:0", read_bytes=1 << 20, write_ops=9),))}
    with Journal(tmp_path, boot_id="boot") as journal:
        agent = executor(systemd, journal)
        assert (await agent.apply(agent.plan(target, SPECS, 0.0))).ok
        systemd.stop(UNIT)
        assert (await agent.restore()).complete
        systemd.start(UNIT)
    assert systemd.kernel.read(f"{AT}/io.max") == before


@given(
    st.dictionaries(
        st.sampled_from(["8:0", "254:0", "259:1"]), st.tuples(*[st.none() | st.integers(1, 9)] * 4)
    ),
    st.sampled_from(["8:0", "254:0", "259:1"]),
    st.tuples(*[st.none() | st.integers(1, 9)] * 4),
)
def test_every_line_ends_as_the_kernel_would_have_it(
    have: dict[str, tuple[int | None, ...]], disk: str, numbers: tuple[int | None, ...]
) -> None:
    """systemd's merging, applied to what is asked of it, gives what one write to the file would have given."""

    def value(parts: tuple[int | None, ...]) -> str:
        names = ("rbps", "wbps", "riops", "wiops")
        return " ".join(f"{name}={'max' if n is None else n}" for name, n in zip(names, parts, strict=True))

    now = lines.text_of({key: value(parts) for key, parts in have.items() if any(parts)})
    wanted = lines.with_line("io.max", now, f"{disk} {value(numbers)}")
    assert lines.table("io.max", wanted).get(disk, "") == (value(numbers) if any(numbers) else "")
    kept = {
        item.name: dict(item.value) for item in properties("io.max", now) if isinstance(item.value, tuple)
    }
    for item in line_properties("io.max", wanted, now):
        assert isinstance(item.value, tuple)
        assert item.value or not kept[item.name], "never the empty list, while any disk has a value"
        kept[item.name] |= dict(item.value)
    expected = {
        item.name: dict(item.value) for item in properties("io.max", wanted) if isinstance(item.value, tuple)
    }
    assert {
        name: {node: n for node, n in pairs.items() if n != UNSET} for name, pairs in kept.items()
    } == expected
