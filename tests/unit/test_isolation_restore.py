"""Restore: whatever was set in whatever order, by a daemon that ended at any write, everything is as it was."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.agent.service import log_leftovers
from perphd.domain.allocation import IDLE, KEEP, NO_LIMIT, IoLimit, Settings
from perphd.domain.cpuset import CpuSet
from perphd.domain.errors import KernelError
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.isolation import Executor, Journal, JournalInUse, restore
from perphd.isolation.journal import FILE
from perphd.isolation.restore_report import RestoreReport
from tests.unit.isolation_kernel import DISKS, FakeKernel

SPECS = (WorkloadSpec("db", Kind.LRA, "/db"), WorkloadSpec("pi", Kind.BATCH, "/pi"))
GROUPS = ("/db", "/db/inner", "/pi", "/pi/a", "/pi/a/x", "/pi/b")


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perphd.isolation.journal.os.fsync", lambda fd: None)
    monkeypatch.setattr("perphd.isolation.journal.os.fdatasync", lambda fd: None)


cpu_sets = st.sets(st.integers(0, 3), min_size=1).map(CpuSet.of)
sizes = st.integers(0, 1 << 40)
limits = st.integers(1, 1 << 40) | st.none()
io_limits = st.builds(IoLimit, st.sampled_from(DISKS), limits, limits, limits, limits)
settings = st.builds(
    Settings,
    cpus=st.just(KEEP) | cpu_sets,
    cpu_weight=st.just(KEEP) | st.just(IDLE) | st.integers(1, 10000),
    cpu_max_cores=st.just(KEEP) | st.floats(0.01, 4),
    memory_low_bytes=st.just(KEEP) | sizes,
    memory_high_bytes=st.just(KEEP) | st.just(NO_LIMIT) | sizes,
    mems=st.just(KEEP) | st.sets(st.integers(0, 1), min_size=1).map(CpuSet.of),
    memory_min_bytes=st.just(KEEP) | sizes,
    io_weight=st.just(KEEP) | st.integers(1, 10000),
    io_max=st.just(KEEP) | st.lists(io_limits, max_size=2, unique_by=lambda limit: limit.device).map(tuple),
    io_latency_us=st.just(KEEP) | st.just((("8:0", 5000),)),
    frozen=st.just(KEEP) | st.booleans(),
)
targets = st.dictionaries(st.sampled_from(["db", "pi"]), settings)
layouts = st.sampled_from(["v1", "v2", "hybrid"])


class Killed(BaseException):
    """The process ends here: no undo, no handler of errors."""


@st.composite
def kernels(draw: st.DrawFn) -> FakeKernel:
    """A host whose groups hold values of their own; populated or not."""
    kernel = FakeKernel(draw(layouts), idle_weight=draw(st.sampled_from(["0", "1"])))
    populated = draw(st.booleans())
    for group in GROUPS:
        cpus = None
        if draw(st.booleans()):
            above = CpuSet.of(range(4))
            for path in kernel.paths(group.rpartition("/")[0]) if group.count("/") > 1 else []:
                text = kernel.directories[path].files.get("cpuset.cpus")
                above = CpuSet.parse(text) if text else above
            cpus = str(draw(cpu_sets) & above or above)
        kernel.mkdir(group, cpus, populated)
    for group in GROUPS:
        for path in kernel.paths(group):
            files = kernel.directories[path].files
            if "cpu.weight" in files:
                kernel.set(f"{path}/cpu.weight", str(draw(st.integers(1, 10000))))
                kernel.set(f"{path}/memory.low", str(draw(sizes)))
            if "cpu.shares" in files:
                kernel.set(f"{path}/cpu.shares", str(draw(st.integers(2, 262144))))
            for name in ("io.max", "blkio.throttle.read_bps_device"):
                if name in files and draw(st.booleans()):
                    kernel.set(f"{path}/{name}", "254:0 rbps=777" if name == "io.max" else "254:0 777")
            if "cpu.idle" in files and draw(st.integers(0, 3)) == 0:
                kernel.set(f"{path}/cpu.idle", "1")
    return kernel


def same_as_before(kernel: FakeKernel, before: dict[str, str]) -> None:
    """Byte for byte, but for the one exception: populated v2 groups whose own lists were empty have their parents'."""
    after = kernel.texts()
    for path, text in before.items():
        if after[path] != text:
            assert kernel.layout == "v2"
            group, name = path.rsplit("/", 1)
            assert name in ("cpuset.cpus", "cpuset.mems")
            assert text == "\n"
            assert after[path] == kernel.read(f"{group.rpartition('/')[0]}/{name}.effective").decode()


async def drive(kernel: FakeKernel, directory: str, sequence: list[dict[str, Settings]]) -> None:
    with Journal(directory, boot_id="boot") as journal:
        executor = Executor(kernel, kernel.hierarchies, journal, in_thread=False)
        for target in sequence:
            applied = await executor.apply(executor.plan(target, SPECS))
            assert applied.ok, applied
            assert not executor.plan(target, SPECS), "applied once, there is nothing left to do"
            assert not executor.conflicts()


@given(kernel=kernels(), sequence=st.lists(targets, max_size=5))
def test_after_any_sequence_everything_is_as_it_was(
    kernel: FakeKernel, sequence: list[dict[str, Settings]]
) -> None:
    before = kernel.texts()
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(drive(kernel, directory, sequence))
        report = restore(kernel, directory, boot_id="boot")
        assert not report.failed, report
        assert not report.foreign, report
        same_as_before(kernel, before)
        assert not restore(kernel, directory, boot_id="boot"), "nothing is left to restore"


@given(
    kernel=kernels(),
    sequence=st.lists(targets, min_size=1, max_size=5),
    last=st.integers(0, 25),
    after=st.booleans(),
)
def test_a_daemon_that_dies_at_any_write_leaves_a_restorable_host(
    kernel: FakeKernel, sequence: list[dict[str, Settings]], last: int, after: bool
) -> None:
    before = kernel.texts()
    with tempfile.TemporaryDirectory() as directory:

        def die(number: int, path: str, text: str) -> int | None:
            if number == last:
                if after:
                    kernel.set(path, text.rstrip("\n"))
                raise Killed
            return None

        kernel.before_write = die
        with contextlib.suppress(Killed, KernelError):
            asyncio.run(drive(kernel, directory, sequence))
        kernel.before_write = None
        report = restore(kernel, directory, boot_id="boot")
        assert not report.failed, report
        assert not report.foreign, report
        same_as_before(kernel, before)


@given(kernel=kernels(), first=targets, last=st.integers(0, 12))
def test_an_interrupted_restore_is_finished_by_the_next(
    kernel: FakeKernel, first: dict[str, Settings], last: int
) -> None:
    before = kernel.texts()
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(drive(kernel, directory, [first]))

        def die(number: int, _path: str, _text: str) -> int | None:
            if number == start + last:
                raise Killed
            return None

        start = kernel.attempts
        kernel.before_write = die
        with contextlib.suppress(Killed):
            restore(kernel, directory, boot_id="boot")
        kernel.before_write = None
        report = restore(kernel, directory, boot_id="boot")
        assert not report.failed, report
        assert not report.foreign, report
        same_as_before(kernel, before)


@given(
    kernel=kernels(),
    first=targets,
    number=st.integers(0, 12),
    fault=st.sampled_from([errno.EIO, errno.EBUSY]),
)
def test_a_restore_that_fails_somewhere_says_so_and_can_be_repeated(
    kernel: FakeKernel, first: dict[str, Settings], number: int, fault: int
) -> None:
    before = kernel.texts()
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(drive(kernel, directory, [first]))
        start = kernel.attempts
        kernel.before_write = lambda n, path, text: fault if n == start + number else None
        report = restore(kernel, directory, boot_id="boot")
        assert all(file.note for file in report.failed)
        assert report.complete is (not report.failed)
        kernel.before_write = None
        assert restore(kernel, directory, boot_id="boot").complete
        same_as_before(kernel, before)


@pytest.fixture
def changed(tmp_path: Path) -> tuple[FakeKernel, Path]:
    kernel = FakeKernel("v2")
    for group in GROUPS:
        kernel.mkdir(group)
    target = {"pi": Settings(cpus=CpuSet.of([3]), cpu_weight=10, memory_high_bytes=1 << 30)}
    asyncio.run(drive(kernel, str(tmp_path), [target]))
    return kernel, tmp_path


def test_a_value_that_somebody_else_set_is_left_alone_unless_forced(changed: tuple[FakeKernel, Path]) -> None:
    kernel, directory = changed
    kernel.set("/sys/fs/cgroup/pi/cpu.weight", "55")
    report = restore(kernel, directory, boot_id="boot")
    assert [file.path for file in report.foreign] == ["/sys/fs/cgroup/pi/cpu.weight"]
    assert kernel.read("/sys/fs/cgroup/pi/cpu.weight") == b"55\n"
    assert kernel.read("/sys/fs/cgroup/pi/memory.high") == b"max\n"
    assert "set to '55' by another program, left alone (original: '100')" in str(report)
    forced = restore(kernel, directory, force=True, boot_id="boot")
    assert [file.path for file in forced.restored] == ["/sys/fs/cgroup/pi/cpu.weight"]
    assert not restore(kernel, directory, boot_id="boot")
    assert kernel.read("/sys/fs/cgroup/pi/cpu.weight") == b"100\n"


def test_a_value_found_at_a_start_is_set_again_and_the_original_is_restored(
    changed: tuple[FakeKernel, Path], caplog: pytest.LogCaptureFixture
) -> None:
    kernel, directory = changed
    path = "/sys/fs/cgroup/pi/cpu.weight"
    kernel.set(path, "55")
    with caplog.at_level(logging.WARNING):
        log_leftovers(restore(kernel, directory, boot_id="boot"))
    said = "perphd may set it again, and then restores the original '100'"
    assert f"{path}: left as it is at the start only: {said}" in caplog.text
    with Journal(directory, boot_id="boot") as journal:
        executor = Executor(kernel, kernel.hierarchies, journal, in_thread=False)
        asyncio.run(executor.apply(executor.plan({"pi": Settings(cpu_weight=10)}, SPECS)))
    assert kernel.read(path) == b"10\n"
    assert not restore(kernel, directory, boot_id="boot").foreign
    assert kernel.read(path) == b"100\n"


def test_nothing_is_logged_if_nothing_was_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    log_leftovers(RestoreReport())
    assert not caplog.text


def test_the_one_exception_is_reported_as_equal_in_effect(changed: tuple[FakeKernel, Path]) -> None:
    kernel, directory = changed
    report = restore(kernel, directory, boot_id="boot")
    cpus = next(file for file in report.restored if file.knob == "cpus")
    assert (cpus.original, cpus.now) == ("", "0-3")
    assert "equivalent" in cpus.note
    assert "equivalent" in str(report)


def test_gone_and_replaced_groups_owe_nothing(changed: tuple[FakeKernel, Path]) -> None:
    kernel, directory = changed
    kernel.rmdir("/pi")
    kernel.mkdir("/pi")
    kernel.set("/sys/fs/cgroup/pi/cpu.weight", "10")
    report = restore(kernel, directory, boot_id="boot")
    assert {file.knob for file in report.gone} == {"cpus", "cpu_weight", "memory_high_bytes"}
    assert not report.restored
    assert kernel.read("/sys/fs/cgroup/pi/cpu.weight") == b"10\n"
    assert not restore(kernel, directory, boot_id="boot")


def test_a_controller_that_was_switched_off_owes_nothing(changed: tuple[FakeKernel, Path]) -> None:
    kernel, directory = changed
    del kernel.directories["/sys/fs/cgroup/pi"].files["cpuset.cpus"]
    report = restore(kernel, directory, boot_id="boot")
    assert [file.knob for file in report.gone] == ["cpus"]
    assert report.complete


def test_a_live_daemon_is_not_undermined(changed: tuple[FakeKernel, Path]) -> None:
    kernel, directory = changed
    with Journal(directory, boot_id="boot"), pytest.raises(JournalInUse, match="stop it first"):
        restore(kernel, directory, boot_id="boot")


def test_without_a_journal_there_is_nothing_to_do(tmp_path: Path) -> None:
    report = restore(FakeKernel(), tmp_path / "never", boot_id="boot")
    assert not report
    assert "nothing to restore" in str(report)
    assert not (tmp_path / "never").exists()


def test_after_a_reboot_there_is_nothing_to_restore(changed: tuple[FakeKernel, Path]) -> None:
    kernel, directory = changed
    start = kernel.attempts
    report = restore(kernel, directory, boot_id="another")
    assert not report
    assert "earlier boot" in str(report)
    assert kernel.attempts == start


def test_a_journal_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    with pytest.raises(KernelError, match="cannot be restored"):
        restore(FakeKernel(), tmp_path, boot_id="boot")


def test_a_weight_stays_journaled_until_the_idle_that_resets_it_is_given_back(tmp_path: Path) -> None:
    kernel = FakeKernel("v2", idle_weight="1")
    kernel.mkdir("/pi")
    kernel.set("/sys/fs/cgroup/pi/cpu.weight", "1")
    asyncio.run(drive(kernel, str(tmp_path), [{"pi": Settings(cpu_weight=IDLE)}]))
    kernel.before_write = lambda n, path, text: errno.EBUSY
    report = restore(kernel, tmp_path, boot_id="boot")
    assert [file.path for file in report.already] == ["/sys/fs/cgroup/pi/cpu.weight"]
    assert [file.path for file in report.failed] == ["/sys/fs/cgroup/pi/cpu.idle"]
    kernel.before_write = None
    assert restore(kernel, tmp_path, boot_id="boot").complete
    assert kernel.read("/sys/fs/cgroup/pi/cpu.weight") == b"1\n"


def test_a_restore_cut_short_while_it_widens_is_no_stranger_to_the_next(tmp_path: Path) -> None:
    kernel = FakeKernel("v1")
    kernel.mkdir("/pi", cpus="0-1")
    kernel.mkdir("/pi/a", cpus="0")
    asyncio.run(drive(kernel, str(tmp_path), [{"pi": Settings(cpus=CpuSet.of([1]))}]))
    start = kernel.attempts

    def die(number: int, _path: str, _text: str) -> int | None:
        if number == start + 2:
            raise Killed
        return None

    kernel.before_write = die
    with pytest.raises(Killed):
        restore(kernel, tmp_path, boot_id="boot")
    assert kernel.read("/sys/fs/cgroup/cpuset/pi/a/cpuset.cpus") == b"0-1\n"
    kernel.before_write = None
    report = restore(kernel, tmp_path, boot_id="boot")
    assert not report.foreign
    assert kernel.read("/sys/fs/cgroup/cpuset/pi/cpuset.cpus") == b"0-1\n"
    assert kernel.read("/sys/fs/cgroup/cpuset/pi/a/cpuset.cpus") == b"0\n"


def test_nested_v2_groups_are_widened_from_the_top(tmp_path: Path) -> None:
    kernel = FakeKernel("v2")
    for group in ("/db", "/db/inner"):
        kernel.mkdir(group)
    specs = [WorkloadSpec(name, Kind.BATCH, name) for name in ("/db", "/db/inner")]

    async def confine() -> None:
        with Journal(tmp_path, boot_id="boot") as journal:
            executor = Executor(kernel, kernel.hierarchies, journal, in_thread=False)
            target = {spec.name: Settings(cpus=CpuSet.of([2])) for spec in specs}
            assert (await executor.apply(executor.plan(target, specs))).ok

    asyncio.run(confine())
    assert restore(kernel, tmp_path, boot_id="boot").complete
    assert kernel.read("/sys/fs/cgroup/db/inner/cpuset.cpus.effective") == b"0-3\n"


@pytest.mark.parametrize("layout", ["v1", "v2"])
def test_groups_whose_names_are_no_utf8_are_given_back(tmp_path: Path, layout: str) -> None:
    kernel = FakeKernel(layout)
    for group in ("/db", "/pi", "/pi/b\udcffd"):
        kernel.mkdir(group, "0-3", populated=True)
    before = kernel.texts()
    asyncio.run(drive(kernel, str(tmp_path), [{"pi": Settings(cpus=CpuSet.of([1]))}]))
    changed = [path for path, text in kernel.texts().items() if before[path] != text]
    assert layout == "v2" or any("\udcff" in path for path in changed)
    report = restore(kernel, tmp_path, boot_id="boot")
    assert not report.failed, report
    assert not report.foreign, report
    assert kernel.texts() == before
