"""The executor on v1, v2 and hybrid trees: transactions, other writers, vanished groups, slow kernels, cancellation."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from posixpath import basename, dirname

import pytest

from perphd.domain.allocation import IDLE, KEEP, NO_LIMIT, UNTOUCHED, IoLimit, Settings
from perphd.domain.cpuset import CpuSet
from perphd.domain.errors import Busy, Denied, Full, Invalid
from perphd.domain.plan import Stage, Write
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.host.kubelet import CpuManager, Kubelet
from perphd.isolation import Applied, Executor, Journal, restore
from perphd.isolation.restore import restore_journal
from tests.unit.isolation_kernel import DISKS, FakeKernel

LRA = WorkloadSpec("db", Kind.LRA, "/db")
BATCH = WorkloadSpec("pi", Kind.BATCH, "/pi")
ON_V1 = {"cpus", "mems", "cpu_weight", "cpu_max_cores", "io_weight", "io_max", "frozen"}
CONFINED = {"pi": Settings(cpus=CpuSet.of([3]), cpu_weight=IDLE, cpu_max_cores=0.5)}


@dataclass
class Bench:
    kernel: FakeKernel
    journal: Journal
    audit: list[tuple[Write, str]] = field(default_factory=list)
    executor: Executor = field(init=False)

    def __post_init__(self) -> None:
        self.executor = self.again()

    def again(self) -> Executor:
        return Executor(
            self.kernel,
            self.kernel.hierarchies,
            self.journal,
            in_thread=False,
            on_write=lambda write, outcome: self.audit.append((write, outcome)),
        )

    async def go(self, targets: dict[str, Settings]) -> Applied:
        return await self.executor.apply(self.executor.plan(targets, (LRA, BATCH)))


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """What reaches the disk when is the journal's test; here it would only take time."""
    monkeypatch.setattr("perphd.isolation.journal.os.fsync", lambda fd: None)
    monkeypatch.setattr("perphd.isolation.journal.os.fdatasync", lambda fd: None)


@pytest.fixture(params=["v1", "v2", "hybrid"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    yield from make(request.param, tmp_path)


@pytest.fixture
def v1(tmp_path: Path) -> Iterator[Bench]:
    yield from make("v1", tmp_path)


@pytest.fixture
def v2(tmp_path: Path) -> Iterator[Bench]:
    yield from make("v2", tmp_path)


def make(layout: str, tmp_path: Path) -> Iterator[Bench]:
    kernel = FakeKernel(layout)
    for group in ("/db", "/pi", "/pi/kid"):
        kernel.mkdir(group)
    with Journal(tmp_path / "state", boot_id="boot") as journal:
        yield Bench(kernel, journal)


async def test_targets_come_into_force_and_no_target_gives_back(bench: Bench) -> None:
    before = bench.kernel.texts()
    applied = await bench.go(CONFINED)
    assert applied.ok
    assert bench.executor.in_force("pi") == CONFINED["pi"]
    assert bench.executor.in_force("db") == UNTOUCHED
    assert bench.journal.originals
    assert not bench.executor.plan(CONFINED, (LRA, BATCH))
    assert (await bench.go({})).ok
    after = bench.kernel.texts()
    for path, text in before.items():
        expected = "0-3\n" if path.endswith("pi/cpuset.cpus") and text == "\n" else text
        assert after[path] == expected, path
    assert bench.executor.in_force("pi") == UNTOUCHED
    assert not bench.executor.plan({}, (LRA, BATCH))


def _recorded(bench: Bench) -> set[str]:
    """Files on record, without the lists that v2 cannot empty while processes are inside."""
    return {path for path in bench.journal.originals if not path.endswith("cpuset.cpus")}


async def test_a_change_is_written_before_it_is_settled_and_the_caller_settles_it(bench: Bench) -> None:
    await bench.go(CONFINED)
    recorded, told = _recorded(bench), len(bench.audit)
    applied = await bench.executor.apply(bench.executor.plan({}, (LRA, BATCH)), settle=False)
    assert applied.ok
    assert _recorded(bench) == recorded != set()
    assert len(bench.audit) == told
    await bench.executor.settle()
    assert not _recorded(bench)
    assert [write for write, _ in bench.audit[told:]] == list(applied.written)
    assert bench.executor.in_force("pi") == UNTOUCHED
    await bench.executor.settle()
    assert len(bench.audit) == told + len(applied.written)


@pytest.mark.parametrize("then", ["plan", "restore", "apply"])
async def test_whatever_comes_next_settles_a_change_that_nobody_settled(bench: Bench, then: str) -> None:
    before = bench.kernel.texts()
    await bench.go(CONFINED)
    back = bench.executor.plan({}, (LRA, BATCH))
    await bench.executor.apply(back, settle=False)
    if then == "plan":
        assert not bench.executor.plan({}, (LRA, BATCH))
        assert not _recorded(bench)
    elif then == "apply":
        await bench.go(CONFINED)
        assert bench.executor.in_force("pi") == CONFINED["pi"]
        await bench.go({})
    else:
        report = await bench.executor.restore()
        assert not report.failed
        assert not report.foreign
    assert not _recorded(bench)
    assert not bench.executor.conflicts()
    after = bench.kernel.texts()
    assert {p: t for p, t in after.items() if "cpuset" not in p} == {
        p: t for p, t in before.items() if "cpuset" not in p
    }


async def test_an_unpopulated_v2_group_gets_its_empty_cpus_back(v2: Bench) -> None:
    for directory in v2.kernel.directories.values():
        directory.populated = False
    before = v2.kernel.texts()
    await v2.go(CONFINED)
    await v2.go({})
    assert v2.kernel.texts() == before
    assert not v2.journal.originals


async def test_originals_are_recorded_before_the_first_write(bench: Bench) -> None:
    seen: list[bool] = []

    def check(_number: int, path: str, _text: str) -> None:
        seen.append(path in bench.journal.originals and path in Path(bench.journal.path).read_text())

    bench.kernel.before_write = check
    assert (await bench.go(CONFINED)).ok
    assert seen
    assert all(seen)


async def test_memory_knobs_on_v2_and_reasons_on_v1(bench: Bench) -> None:
    wanted = Settings(memory_low_bytes=10_000, memory_high_bytes=NO_LIMIT)
    bench.kernel.attempts = 0
    applied = await bench.go({"db": wanted})
    assert applied.ok
    if bench.kernel.layout == "v2":
        assert bench.kernel.read("/sys/fs/cgroup/db/memory.low") == b"8192\n"
        assert bench.executor.not_enforceable("db") == ()
        assert not bench.executor.plan({"db": wanted}, (LRA, BATCH))
    else:
        assert bench.kernel.attempts == 0
        assert [left.knob for left in bench.executor.not_enforceable("db")] == [
            "memory_low_bytes",
            "memory_high_bytes",
        ]


async def test_a_failed_write_undoes_everything_and_says_what(bench: Bench) -> None:
    before = bench.kernel.texts()
    bench.kernel.before_write = lambda n, path, text: (
        errno.EBUSY if path.endswith("pi/cpuset.cpus") and n < 9 else None
    )
    applied = await bench.go(CONFINED)
    assert not applied.ok
    assert isinstance(applied.failed, Busy)
    assert "cpuset.cpus" in str(applied.failed)
    assert bench.kernel.texts() == before
    assert list(reversed(applied.written)) == list(applied.undone)
    outcomes = [outcome.split(":")[0] for _, outcome in bench.audit]
    assert outcomes == ["written"] * len(applied.written) + ["failed"] + ["undone"] * len(applied.undone)
    assert not bench.journal.originals, "everything holds its original again"
    assert bench.executor.in_force("pi") == UNTOUCHED


async def test_what_is_wanted_and_not_in_force_is_named(v2: Bench) -> None:
    wanted = {"pi": Settings(cpus=CpuSet.of([3]), memory_high_bytes=1 << 20, llc_masks=((0, 15),))}
    v2.executor.plan(wanted, (LRA, BATCH))
    assert v2.executor.blocked("pi") == ("cpus", "memory_high_bytes", "llc_masks")
    assert v2.executor.blocked("db") == ()
    v2.kernel.before_write = lambda n, path, text: errno.EINVAL if "memory.high" in path else None
    assert not (await v2.go(wanted)).ok
    assert v2.executor.blocked("pi") == ("cpus", "memory_high_bytes", "llc_masks"), "all was undone"
    assert (await v2.go(wanted)).ok
    assert v2.executor.blocked("pi") == ("memory_high_bytes", "llc_masks")
    v2.kernel.before_write = lambda n, path, text: errno.EBUSY
    assert not (await v2.go({})).ok
    assert v2.executor.blocked("pi") == ("cpus",), "wanted back, and not given back"
    v2.kernel.before_write = None
    assert (await v2.go({})).ok
    assert v2.executor.blocked("pi") == ()


async def test_a_refused_value_is_not_tried_again_until_another_is_wanted(v2: Bench) -> None:
    refuse = {"on": True}
    v2.kernel.before_write = lambda n, path, text: (
        errno.EINVAL if "memory.high" in path and refuse["on"] else None
    )
    applied = await v2.go({"pi": Settings(cpu_weight=10, memory_high_bytes=1 << 20)})
    assert isinstance(applied.failed, Invalid)
    applied = await v2.go({"pi": Settings(cpu_weight=10, memory_high_bytes=1 << 20)})
    assert applied.ok, "the rest goes on without it"
    assert [write.knob for write in applied.written] == ["cpu_weight"]
    assert "EINVAL" in v2.executor.not_enforceable("pi")[0].reason
    refuse["on"] = False
    assert (await v2.go({"pi": Settings(cpu_weight=10, memory_high_bytes=2 << 20)})).written
    refuse["on"] = True
    await v2.go({"pi": Settings(cpu_weight=10, memory_high_bytes=3 << 20)})
    refuse["on"] = False
    assert not v2.executor.plan({"pi": Settings(cpu_weight=10, memory_high_bytes=3 << 20)}, (BATCH,))
    v2.executor.forget_conflicts()
    assert v2.executor.plan({"pi": Settings(cpu_weight=10, memory_high_bytes=3 << 20)}, (BATCH,))


@pytest.mark.parametrize("refused", ["itself", "the next"])
@pytest.mark.parametrize("knob", ["memory", "disks"])
async def test_after_any_number_of_failed_attempts_what_is_in_force_is_still_known_as_perphds(
    v2: Bench, tmp_path: Path, knob: str, refused: str
) -> None:
    def wanted(n: int) -> dict[str, Settings]:
        if knob == "memory":
            return {"pi": Settings(memory_high_bytes=n << 20, cpu_weight=10 + n)}
        limits = tuple(IoLimit(disk, n << 20, n << 20) for disk in DISKS)
        return {"pi": Settings(io_max=limits, cpu_weight=10 + n)}

    file = {"memory": "memory.high", "disks": "io.max"}[knob]
    path = f"/sys/fs/cgroup/pi/{file}"
    original = v2.kernel.texts()
    assert (await v2.go(wanted(1))).ok
    in_force = v2.kernel.read(path)
    faulty = file if refused == "itself" else "cpu.weight"
    taken = {text for _, text in v2.kernel.writes}
    last_disk = DISKS[-1] if faulty == "io.max" else ""  # the first is then written, and undone
    v2.kernel.before_write = lambda n, path, text: (
        errno.EINVAL
        if path.endswith(faulty) and text.strip() not in taken and text.startswith(last_disk)
        else None
    )
    for n in range(2, 40):
        assert not (await v2.go(wanted(n))).ok
    assert v2.kernel.read(path) == in_force
    v2.kernel.before_write = lambda n, path, text: None
    v2.journal.close()
    with Journal(tmp_path / "state", boot_id="boot") as journal:
        report = restore_journal(v2.kernel, journal, list(journal.originals.values()))
    assert not report.foreign
    assert v2.kernel.texts() == original


async def test_a_busy_kernel_is_tried_three_times(v2: Bench) -> None:
    v2.kernel.before_write = lambda n, path, text: errno.EBUSY
    wanted = {"pi": Settings(cpu_weight=10)}
    for _ in range(3):
        assert isinstance((await v2.go(wanted)).failed, Busy)
    assert not v2.executor.plan(wanted, (BATCH,))


async def test_a_file_that_takes_a_write_and_keeps_its_value_is_a_failure(v2: Bench) -> None:
    v2.kernel.deaf.add("/sys/fs/cgroup/pi/memory.high")
    applied = await v2.go({"pi": Settings(memory_high_bytes=1 << 20)})
    assert applied.failed is not None
    assert "it reads 'max' after the write" in str(applied.failed)


async def test_undoing_idle_gives_the_weight_back_that_it_reset(bench: Bench) -> None:
    lead = (
        "/sys/fs/cgroup/pi/cpu.weight" if bench.kernel.layout == "v2" else "/sys/fs/cgroup/cpu/pi/cpu.shares"
    )
    bench.kernel.set(lead, "333")
    before = bench.kernel.texts()
    bench.kernel.before_write = lambda n, path, text: errno.EIO if n == 1 else None
    assert not (await bench.go(CONFINED)).ok
    assert bench.kernel.texts() == before


async def test_somebody_elses_change_is_set_again_once_and_then_yielded(bench: Bench) -> None:
    wanted = {"pi": Settings(cpu_weight=10)}
    assert (await bench.go(wanted)).ok
    path = next(write.path for write, _ in bench.audit if not write.path.endswith("cpu.idle"))
    bench.kernel.set(path, "77")
    applied = await bench.go(wanted)
    assert [write.path for write in applied.written] == [path]
    assert not bench.executor.conflicts()[0].yielded
    assert "set again" in str(bench.executor.conflicts()[0])
    bench.kernel.set(path, "78")
    assert not bench.executor.plan(wanted, (LRA, BATCH))
    conflict = bench.executor.conflicts()[0]
    assert conflict.yielded
    assert (conflict.count, conflict.found) == (2, "78")
    assert "left alone until" in bench.executor.not_enforceable("pi")[0].reason
    assert not bench.executor.plan({}, (LRA, BATCH)), "not perphd's value: not perphd's to give back"
    bench.executor.forget_conflicts("other")
    assert not bench.executor.plan(wanted, (LRA, BATCH))
    bench.executor.forget_conflicts("pi")
    assert bench.executor.plan(wanted, (LRA, BATCH))
    report = await bench.executor.restore()
    assert [file.found for file in report.foreign] == ["78"]
    assert bench.kernel.read(path) == b"78\n"
    assert not (await bench.executor.restore(force=True)).foreign
    assert bench.kernel.read(path) != b"78\n"


async def test_planning_alone_counts_a_conflict_once(v2: Bench) -> None:
    wanted = {"pi": Settings(cpu_weight=10)}
    await v2.go(wanted)
    v2.kernel.set("/sys/fs/cgroup/pi/cpu.weight", "77")
    for _ in range(5):
        assert v2.executor.plan(wanted, (BATCH,))
    assert [c.count for c in v2.executor.conflicts()] == [1]
    assert not v2.executor.plan({}, (BATCH,))


async def test_a_cgroup_replaced_under_its_name_gets_new_originals(bench: Bench) -> None:
    await bench.go(CONFINED)
    bench.kernel.rmdir("/pi")
    bench.kernel.mkdir("/pi")
    quota = (
        "/sys/fs/cgroup/pi/cpu.max"
        if bench.kernel.layout == "v2"
        else "/sys/fs/cgroup/cpu/pi/cpu.cfs_quota_us"
    )
    text = "200000 100000" if bench.kernel.layout == "v2" else "200000"
    bench.kernel.set(quota, text)
    assert not bench.executor.plan({}, (LRA, BATCH)), "the new group owes nothing"
    assert bench.executor.in_force("pi") == UNTOUCHED
    assert (await bench.go(CONFINED)).ok
    assert not bench.executor.conflicts()
    await bench.executor.restore()
    assert bench.kernel.read(quota).decode() == f"{text}\n"


async def test_a_group_replaced_between_plan_and_apply_is_not_written(bench: Bench) -> None:
    changes = bench.executor.plan(CONFINED, (LRA, BATCH))
    bench.kernel.rmdir("/pi")
    bench.kernel.mkdir("/pi")
    applied = await bench.executor.apply(changes)
    assert (applied.ok, applied.written, applied.skipped) == (True, (), ("pi",))
    assert bench.kernel.writes == []


async def test_a_value_that_changed_between_plan_and_apply_is_not_overwritten(v2: Bench) -> None:
    changes = v2.executor.plan({"pi": Settings(cpu_weight=10)}, (BATCH,))
    v2.kernel.set("/sys/fs/cgroup/pi/cpu.weight", "77")
    applied = await v2.executor.apply(changes)
    assert "instead of '100'" in str(applied.failed)
    assert v2.kernel.writes == []


async def test_a_vanished_group_is_skipped_quietly_and_the_others_go_on(bench: Bench) -> None:
    changes = bench.executor.plan({**CONFINED, "db": Settings(cpu_weight=50)}, (LRA, BATCH))
    bench.kernel.rmdir("/pi")
    applied = await bench.executor.apply(changes)
    assert applied.ok
    assert applied.skipped == ("pi",)
    assert {write.workload for write in applied.written} == {"db"}
    assert not bench.executor.plan(CONFINED, (BATCH,))
    assert bench.executor.not_enforceable("pi") == ()
    assert all("does not exist" in left.reason for left in bench.executor.enforceable(BATCH)[1])


async def test_units_of_systemd_are_refused_with_the_reason(v1: Bench) -> None:
    reason = "/pi belongs to pi.service, which systemd manages"
    executor = Executor(
        v1.kernel,
        v1.kernel.hierarchies,
        v1.journal,
        in_thread=False,
        refuse=lambda cgroup: reason if cgroup == "/pi" else None,
    )
    assert not executor.plan(CONFINED, (LRA, BATCH))
    assert {left.reason for left in executor.not_enforceable("pi")} == {reason}
    knobs, missing = executor.enforceable(BATCH)
    assert knobs == frozenset()
    assert {left.reason for left in missing} == {reason}
    assert executor.enforceable(LRA)[0] == ON_V1


async def test_a_controller_that_is_switched_off_later_is_a_reason_and_switched_on_again_it_is_used(
    v2: Bench,
) -> None:
    assert (await v2.go({"pi": Settings(cpu_weight=10)})).ok
    files = v2.kernel.directories["/sys/fs/cgroup/pi"].files
    taken = {name: files.pop(name) for name in ("cpu.weight", "cpu.idle", "cgroup.controllers")}
    files["cgroup.controllers"] = "cpuset memory io"
    assert not v2.executor.plan({"pi": Settings(cpu_weight=20)}, (BATCH,))
    assert "does not enable the cpu controller" in v2.executor.not_enforceable("pi")[0].reason
    assert v2.executor.blocked("pi") == ("cpu_weight",)
    files |= taken
    assert v2.executor.plan({"pi": Settings(cpu_weight=20)}, (BATCH,))


async def test_resctrl_settings_are_named_as_not_enforceable(v2: Bench) -> None:
    assert (await v2.go({"db": Settings(llc_masks=((0, 15),), mba_pct=((0, 50),))})).ok
    assert [left.knob for left in v2.executor.not_enforceable("db")] == ["llc_masks", "mba_pct"]


async def test_v1_children_are_narrowed_with_their_parent_and_all_given_back(v1: Bench) -> None:
    v1.kernel.mkdir("/pi/kid/deep", cpus="1-2")
    before = v1.kernel.texts()
    assert (await v1.go({"pi": Settings(cpus=CpuSet.of([3]))})).ok
    at = "/sys/fs/cgroup/cpuset/pi"
    assert [v1.kernel.read(f"{at}{kid}/cpuset.cpus") for kid in ("", "/kid", "/kid/deep")] == [b"3\n"] * 3
    assert (await v1.go({"pi": Settings(cpus=CpuSet.of([0, 1]))})).ok
    assert v1.kernel.read(f"{at}/kid/deep/cpuset.cpus") == b"1\n"
    v1.kernel.mkdir("/pi/late")
    assert (await v1.go({"pi": Settings(cpus=CpuSet.of([2]))})).ok
    report = await v1.executor.restore()
    assert not report.failed
    v1.kernel.rmdir("/pi/late")
    assert v1.kernel.texts() == before


async def test_v1_workload_within_a_workload_cannot_have_cpus_of_its_own(v1: Bench) -> None:
    inner = WorkloadSpec("kid", Kind.BATCH, "/pi/kid")
    target = {"kid": Settings(cpus=CpuSet.of([0]), cpu_weight=50)}
    changes = v1.executor.plan(target, (BATCH, inner))
    assert {write.knob for write in changes.writes} == {"cpu_weight"}
    assert "within the workload /pi" in changes.skipped[0].reason


async def test_nothing_is_written_when_the_journal_cannot_be(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_fd: int, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr("perphd.isolation.journal.os.write", full)
    applied = await bench.go(CONFINED)
    assert isinstance(applied.failed, Full)
    assert "no kernel file is changed" in str(applied.failed)
    assert bench.kernel.attempts == 0


async def test_what_cannot_be_recorded_is_tried_again_ever_more_rarely(
    v2: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = {"s": 100.0}
    v2.executor = Executor(
        v2.kernel, v2.kernel.hierarchies, v2.journal, in_thread=False, clock=lambda: now["s"]
    )

    def full(_fd: int, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr("perphd.isolation.journal.os.write", full)
        for wait_s in (2, 4, 8, 16, 32, 60, 60):
            assert isinstance((await v2.go(CONFINED)).failed, Full)
            now["s"] += wait_s - 0.5
            waiting = v2.executor.plan(CONFINED, (LRA, BATCH))
            assert not waiting
            assert f"tried again after {wait_s} s" in waiting.reason
            assert "ENOSPC" in v2.executor.not_enforceable("pi")[0].reason
            assert v2.executor.blocked("pi") == ("cpus", "cpu_weight", "cpu_max_cores")
            now["s"] += 0.5
        assert not (await v2.go(CONFINED)).ok
        other = {"pi": Settings(cpu_weight=10)}
        assert v2.executor.plan(other, (LRA, BATCH)), "other targets do not wait"
        v2.executor.forget_conflicts()
        assert v2.executor.plan(CONFINED, (LRA, BATCH))
        assert not (await v2.go(CONFINED)).ok
    now["s"] += 2
    assert (await v2.go(CONFINED)).ok
    assert v2.executor.blocked("pi") == ()


async def test_a_refused_value_stays_refused_while_targets_alternate(v2: Bench) -> None:
    v2.kernel.before_write = lambda n, path, text: errno.EINVAL if text == "1048576\n" else None
    small, large = ({"pi": Settings(memory_high_bytes=size)} for size in (1 << 20, 2 << 20))
    assert not (await v2.go(small)).ok
    for _ in range(3):
        assert (await v2.go(large)).ok
        assert not v2.executor.plan(small, (BATCH,)), "known to be refused"
        assert v2.executor.blocked("pi") == ("memory_high_bytes",)
    assert v2.kernel.attempts == 2


async def test_a_restarted_executor_continues_with_the_same_originals(bench: Bench) -> None:
    before = bench.kernel.texts()
    await bench.go(CONFINED)
    bench.executor = bench.again()
    assert bench.executor.journal_entries > 0
    assert not bench.executor.plan(CONFINED, (LRA, BATCH))
    assert bench.executor.in_force("pi") == CONFINED["pi"]
    other = {"pi": Settings(cpus=CpuSet.of([1, 2]), cpu_weight=7)}
    assert (await bench.go(other)).ok
    assert not bench.executor.conflicts()
    await bench.executor.restore()
    restored = {path: text for path, text in bench.kernel.texts().items() if before[path] != "\n"}
    assert restored == {path: text for path, text in before.items() if text != "\n"}


async def test_what_a_dead_one_recorded_and_never_wrote_is_forgotten_at_the_start(v2: Bench) -> None:
    for directory in v2.kernel.directories.values():
        directory.populated = False
    await v2.go(CONFINED)
    recorded = list(v2.journal.originals.values())
    await v2.go({})
    assert not v2.journal.originals
    v2.journal.record(recorded, [(entry.path, "1") for entry in recorded])
    assert v2.again().journal_entries == 0
    v2.journal.record(recorded, [(entry.path, "1") for entry in recorded])
    written = next(entry for entry in recorded if entry.path.endswith("pi/cpuset.cpus"))
    v2.kernel.write(written.path, b"1\n")
    assert v2.again().journal_entries > 0
    assert {entry.knob for entry in v2.journal.originals.values()} == {"cpus"}
    assert written.path in v2.journal.originals


async def test_restoring_one_workload_leaves_the_others(bench: Bench) -> None:
    await bench.go({**CONFINED, "db": Settings(cpu_weight=50)})
    await bench.executor.restore(["pi"])
    assert bench.executor.in_force("pi") == UNTOUCHED
    assert bench.executor.in_force("db") == Settings(cpu_weight=50)


async def test_the_operators_own_pins_and_weights_bound_what_is_set(bench: Bench) -> None:
    v2 = bench.kernel.layout == "v2"
    cpuset, cpu = ("/sys/fs/cgroup",) * 2 if v2 else ("/sys/fs/cgroup/cpuset", "/sys/fs/cgroup/cpu")
    if not v2:
        bench.kernel.set(f"{cpuset}/pi/kid/cpuset.cpus", "0-1")
    bench.kernel.set(f"{cpuset}/db/cpuset.cpus", "2-3")
    bench.kernel.set(f"{cpuset}/pi/cpuset.cpus", "0-1")
    bench.kernel.set(f"{cpu}/pi/cpu.idle", "1")
    before = bench.kernel.texts()
    wanted = {
        "db": Settings(cpus=CpuSet.of([0, 1, 2]), cpu_weight=100),
        "pi": Settings(cpus=CpuSet.of([3]), cpu_weight=25),
    }
    for _ in range(2):
        assert (await bench.go(wanted)).ok
        assert bench.kernel.writes == [(f"{cpuset}/db/cpuset.cpus", "2")]
    assert bench.executor.in_force("db") == Settings(cpus=CpuSet.of([2]))
    assert (bench.executor.blocked("db"), bench.executor.blocked("pi")) == ((), ("cpus",))
    assert "the operator pinned it to 0-1" in bench.executor.not_enforceable("pi")[0].reason
    assert (await bench.go({})).ok
    assert bench.kernel.texts() == before


async def test_workloads_that_are_not_named_are_never_read_or_written(bench: Bench) -> None:
    assert not bench.executor.plan(CONFINED, (LRA,))
    assert bench.kernel.attempts == 0


async def test_the_deadline_stops_and_undoes(v1: Bench) -> None:
    now = {"s": 0.0}
    v1.executor = Executor(
        v1.kernel, v1.kernel.hierarchies, v1.journal, in_thread=False, clock=lambda: now["s"], deadline_s=1.0
    )
    before = v1.kernel.texts()

    def slow(number: int, _path: str, _text: str) -> None:
        now["s"] += 2.0 if number == 1 else 0.0

    v1.kernel.before_write = slow
    applied = await v1.go(CONFINED)
    assert "took longer than 1 s" in str(applied.failed)
    assert len(applied.undone) == 2
    assert applied.duration_s == 2.0
    assert v1.kernel.texts() == before


async def test_a_cancelled_apply_finishes_first(v1: Bench) -> None:
    executor = Executor(v1.kernel, v1.kernel.hierarchies, v1.journal)
    go_on, entered = threading.Event(), threading.Event()

    def wait(number: int, _path: str, _text: str) -> None:
        if number == 1:
            entered.set()
            go_on.wait(10)

    v1.kernel.before_write = wait
    changes = executor.plan(CONFINED, (LRA, BATCH))
    task = asyncio.create_task(executor.apply(changes))
    await asyncio.to_thread(entered.wait, 10)
    task.cancel()
    await asyncio.sleep(0)
    assert not executor.plan({}, (LRA, BATCH)), "while a change is being written nothing is planned"
    task.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(v1.kernel.writes) == len(changes.writes)
    assert not executor.plan(CONFINED, (LRA, BATCH))
    executor.close()


async def test_a_write_that_the_kernel_never_answers_blocks_nothing_else(v1: Bench) -> None:
    executor = Executor(v1.kernel, v1.kernel.hierarchies, v1.journal, deadline_s=0.02)
    go_on = threading.Event()

    def stuck(number: int, _path: str, _text: str) -> None:
        if number == 0:
            go_on.wait(10)

    v1.kernel.before_write = stuck
    changes = executor.plan(CONFINED, (LRA, BATCH))
    first = await executor.apply(changes)
    assert "has not answered an earlier write" in str(first.failed)
    assert not (await executor.apply(changes)).ok
    assert executor.blocked("pi") == ("cpus", "cpu_weight", "cpu_max_cores")
    assert executor.blocked("db") == ()
    executor.plan({"db": Settings(cpu_weight=50)}, (LRA, BATCH))
    assert executor.blocked("db") == ("cpu_weight",)
    report = await executor.restore()
    assert "nothing restored" in str(report)
    assert not report.complete
    go_on.set()
    executor.close()


async def test_concurrent_applies_follow_one_another(v2: Bench) -> None:
    executor = Executor(v2.kernel, v2.kernel.hierarchies, v2.journal)
    changes = executor.plan({"pi": Settings(cpu_weight=10)}, (BATCH,))
    first, second = await asyncio.gather(executor.apply(changes), executor.apply(changes))
    assert first.ok
    assert second.failed is not None, "its premise is gone"
    assert v2.kernel.writes == [("/sys/fs/cgroup/pi/cpu.weight", "10")]
    executor.close()


async def test_an_empty_change_set_is_fine(v2: Bench) -> None:
    assert await v2.go({}) == Applied(True)


async def test_a_denied_read_is_a_reason(v2: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    real = v2.kernel.read

    def read(path: str) -> bytes:
        if path.endswith("memory.high"):
            raise Denied(path, "open", errno.EACCES)
        return real(path)

    monkeypatch.setattr(v2.kernel, "read", read)
    changes = v2.executor.plan({"pi": Settings(cpu_weight=10, memory_high_bytes=1 << 30)}, (BATCH,))
    assert [write.knob for write in changes.writes] == ["cpu_weight"]
    assert "EACCES" in changes.skipped[0].reason


@pytest.mark.parametrize("number", range(12))
@pytest.mark.parametrize("fault", [errno.EIO, errno.EBUSY, errno.EINVAL, errno.ENODEV, errno.ENOSPC])
async def test_any_write_may_fail_in_any_way(bench: Bench, number: int, fault: int) -> None:
    """After the fault the originals are there, or a journal that leads back to them."""
    bench.kernel.mkdir("/pi/kid/deep", cpus="0")
    for directory in bench.kernel.directories.values():
        directory.populated = False
    weight = (
        "/sys/fs/cgroup/pi/cpu.weight" if bench.kernel.layout == "v2" else "/sys/fs/cgroup/cpu/pi/cpu.shares"
    )
    bench.kernel.set(weight, "444")
    before = bench.kernel.texts()
    bench.kernel.before_write = lambda n, path, text: fault if n == number else None
    for target in (CONFINED, {"pi": Settings(cpus=CpuSet.of([0, 1]), cpu_weight=33)}, {}):
        applied = await bench.go(target)
        if applied.failed is not None and number < bench.kernel.attempts - 1 and fault != errno.ENODEV:
            assert len(applied.undone) == len(applied.written)
    bench.kernel.before_write = None
    report = await bench.executor.restore()
    assert not report.failed
    assert not report.foreign
    assert bench.kernel.texts() == before
    assert not bench.journal.originals


def test_keep_and_stage_are_what_the_records_say() -> None:
    assert UNTOUCHED.cpus is KEEP
    assert [stage.name for stage in sorted(Stage)] == ["DEMOTE", "SHRINK", "GROW", "PROMOTE"]


class _Kubelet(Kubelet):
    """As if kubelet had given CPU 3 to a container."""

    def __init__(self) -> None:
        pass

    def cpu_manager(self, now_s: float) -> CpuManager:
        return CpuManager(True, CpuSet.of([3]))


async def test_kubelets_cpusets_are_left_alone_and_its_cpus_given_to_nobody(bench: Bench) -> None:
    pod = WorkloadSpec("pod", Kind.BATCH, "/kubepods/pod1")
    for group in ("/kubepods", "/kubepods/pod1"):
        bench.kernel.mkdir(group)
    executor = Executor(
        bench.kernel, bench.kernel.hierarchies, bench.journal, in_thread=False, kubelet=_Kubelet()
    )
    specs = (LRA, BATCH, pod)
    wanted = Settings(cpus=CpuSet.of([2, 3]), cpu_weight=10)
    changes = executor.plan({"pi": wanted, "pod": wanted, "db": Settings(cpus=CpuSet.of([3]))}, specs)
    assert {(write.workload, write.value) for write in changes.writes if write.knob == "cpus"} >= {
        ("pi", "2")
    }
    assert {write.workload for write in changes.writes if write.knob == "cpu_weight"} == {"pi", "pod"}
    assert "static CPU manager" in executor.not_enforceable("pod")[0].reason
    assert "CPUs 3 exclusively to containers" in executor.not_enforceable("db")[0].reason
    assert "without 3" in executor.limited("pi")[0].reason


async def test_what_somebody_else_writes_during_a_transaction_is_not_taken_for_perphds(bench: Bench) -> None:
    targets = {"pi": Settings(cpu_weight=50, cpu_max_cores=0.5)}
    changes = bench.executor.plan(targets, (LRA, BATCH))
    first, second = changes.writes
    foreign = {"cpu.max": "70000 100000", "cpu.cfs_quota_us": "70000"}.get(basename(first.path), "77")

    def interfere(number: int, path: str, text: str) -> int | None:
        if path == second.path:  # the first is written and read back by now
            bench.kernel.directories[dirname(first.path)].files[basename(first.path)] = foreign
        return None

    bench.kernel.before_write = interfere
    assert (await bench.executor.apply(changes)).ok
    bench.kernel.before_write = None
    bench.executor.plan(targets, (LRA, BATCH))
    (conflict,) = bench.executor.conflicts()
    assert (conflict.path, conflict.found) == (first.path, foreign)


class _Partitioned(FakeKernel):
    """v2 with partitions among the groups at the top: an overlapping sibling ends one, as captured from 6.1."""

    FILE = "cpuset.cpus.partition"

    def partition(self, group: str, cpus: str) -> None:
        self.mkdir(group, cpus)
        self.directories[f"/sys/fs/cgroup{group}"].files[self.FILE] = "root"

    def _effective(self, directory: str, file: str) -> CpuSet:
        found = super()._effective(directory, file)
        if directory == "/sys/fs/cgroup" and file == "cpuset.cpus":
            for each in self.directories.values():
                if each.files.get(self.FILE) == "root":
                    found = found - CpuSet.parse(each.files["cpuset.cpus"])
        return found

    def _cpus(self, directory: str, files: dict[str, str], file: str, text: str) -> int:
        number = super()._cpus(directory, files, file, text)
        others = [each.files for each in self.directories.values() if each.files is not files]
        for other in others if file == "cpuset.cpus" else ():
            if other.get(self.FILE) == "root" and CpuSet.parse(other[file]) & CpuSet.parse(text):
                other[self.FILE] = "root invalid (Cpu list in cpuset.cpus not exclusive)"
        return number


async def test_a_partition_of_somebody_else_keeps_its_cpus(tmp_path: Path) -> None:
    kernel = _Partitioned("v2", cpus="0-7")
    for group in ("/db", "/pi"):
        kernel.mkdir(group)
    kernel.partition("/dpdk", "6-7")
    state = kernel.directories["/sys/fs/cgroup/dpdk"].files
    with Journal(tmp_path, boot_id="boot") as journal:
        bench = Bench(kernel, journal)
        apart = {"db": Settings(cpus=CpuSet.parse("0-3")), "pi": Settings(cpus=CpuSet.parse("4-7"))}
        assert (await bench.go(apart)).ok
        assert state["cpuset.cpus.partition"] == "root"
        assert kernel.read("/sys/fs/cgroup/pi/cpuset.cpus") == b"4-5\n"
        (limited,) = bench.executor.limited("pi")
        assert "the CPUs 6-7 belong to a partition" in limited.reason
        await bench.go({"pi": Settings(cpus=CpuSet.parse("7"))})
        (left,) = bench.executor.not_enforceable("pi")
        assert "the CPUs 7 belong to a partition" in left.reason
        assert (await bench.executor.restore()).complete
        assert state["cpuset.cpus.partition"] == "root"


async def test_the_fallback_of_each_list_is_recorded_as_its_own(tmp_path: Path) -> None:
    kernel = FakeKernel("v2", cpus="0-7", nodes="0-1")
    kernel.mkdir("/pi")
    with Journal(tmp_path, boot_id="boot") as journal:
        bench = Bench(kernel, journal)
        assert (await bench.go({"pi": Settings(cpus=CpuSet.of([3]), mems=CpuSet.of([1]))})).ok
        assert journal.intents("/sys/fs/cgroup/pi/cpuset.cpus") == ("3", "0-7")
        assert journal.intents("/sys/fs/cgroup/pi/cpuset.mems") == ("1", "0-1")


@pytest.mark.parametrize("layout", ["v1", "v2"])
async def test_a_disk_that_is_removed_is_nobodys_interference(layout: str, tmp_path: Path) -> None:
    """As the volumes of containers, which come and go."""
    kernel = FakeKernel(layout)
    kernel.mkdir("/pi")
    file = "/sys/fs/cgroup/pi/io.max"
    if layout == "v1":
        file = "/sys/fs/cgroup/blkio/pi/blkio.throttle.read_bps_device"
    first, second = DISKS
    both = {"pi": Settings(io_max=tuple(IoLimit(disk, read_bytes=1 << 20) for disk in sorted(DISKS)))}
    one = {"pi": Settings(io_max=(IoLimit(first, read_bytes=1 << 20),))}
    with Journal(tmp_path, boot_id="boot") as journal:
        bench = Bench(kernel, journal)
        for _ in range(3):
            assert (await bench.go(both)).ok
            kernel.detach(second)
            assert not bench.executor.plan(one, (LRA, BATCH))
            assert not bench.executor.conflicts()
            assert bench.executor.in_force("pi") == one["pi"]
            kernel.disks.add(second)
        kernel.detach(second)
        assert (await bench.go({})).ok
        assert kernel.read(file) == b"\n"
        assert not journal.originals


@pytest.mark.parametrize("daemon", [True, False])
async def test_limits_of_other_disks_are_restored_after_a_disk_with_an_own_limit_was_removed(
    daemon: bool, tmp_path: Path
) -> None:
    kernel = FakeKernel("v2")
    kernel.mkdir("/pi")
    file, (first, second) = "/sys/fs/cgroup/pi/io.max", DISKS
    kernel.set(file, f"{second} rbps=4194304")
    with Journal(tmp_path, boot_id="boot") as journal:
        bench = Bench(kernel, journal)
        target = {"pi": Settings(io_max=(IoLimit(first, read_bytes=1 << 20),))}
        assert (await bench.go(target)).ok
        kernel.detach(second)
        assert not bench.executor.plan(target, (LRA, BATCH))
        assert not bench.executor.conflicts()
        if daemon:
            assert (await bench.go({})).ok
            assert not journal.originals
    report = restore(kernel, tmp_path, boot_id="boot")
    assert report.complete, str(report)
    assert not report.foreign, str(report)
    assert kernel.read(file) == b"\n"


async def test_a_target_for_a_disk_that_is_gone_takes_nothing_back(tmp_path: Path) -> None:
    kernel = FakeKernel("v2")
    for group in ("/db", "/pi"):
        kernel.mkdir(group)
    first, second = DISKS
    kernel.detach(second)
    with Journal(tmp_path, boot_id="boot") as journal:
        bench = Bench(kernel, journal)
        targets = {
            "db": Settings(io_latency_us=((first, 900), (second, 900))),
            "pi": Settings(cpu_max_cores=0.5, io_max=(IoLimit(second, read_bytes=1 << 20),)),
        }
        applied = await bench.go(targets)
        assert applied.ok, applied.failed
        assert kernel.read("/sys/fs/cgroup/db/io.latency") == f"{first} target=900\n".encode()
        assert kernel.read("/sys/fs/cgroup/pi/cpu.max") == b"50000 100000\n"
        for name in targets:
            assert f"without {second}: there is no such disk" in bench.executor.limited(name)[0].reason
        assert not bench.executor.plan(targets, (LRA, BATCH))
