"""What the kernel or systemd did not take for a while comes into force, and is given back, when it takes it again."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from perphd.domain.allocation import IDLE, KEEP, UNTOUCHED, Settings
from perphd.domain.cpuset import CpuSet
from perphd.domain.errors import Broken, Busy, Denied, KernelError
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.host.systemd_bus import NoAnswer
from perphd.host.systemd_fs import refusal
from perphd.isolation import Applied, Executor, Journal
from perphd.isolation.knob_states import KnobStates
from perphd.isolation.refusals import TRIES_AT_ONCE, Refusals
from perphd.isolation.watch import RETRY
from tests.unit.isolation_kernel import FakeKernel
from tests.unit.isolation_systemd import FakeSystemd

DB = WorkloadSpec("db", Kind.LRA, "/db")
PI = WorkloadSpec("pi", Kind.BATCH, "/pi")
APART = {"db": Settings(cpus=CpuSet.of([0])), "pi": Settings(cpus=CpuSet.of([1, 2, 3]), cpu_weight=IDLE)}
HUNG = NoAnswer("job.service", "SetUnitProperties", errno.ETIMEDOUT, detail="systemd timed out after 1.5 s")


@dataclass
class Bench:
    kernel: FakeKernel
    journal: Journal
    specs: tuple[WorkloadSpec, ...] = (DB, PI)
    now_s: float = 100.0
    executor: Executor = field(init=False)

    def __post_init__(self) -> None:
        self.executor = Executor(
            self.kernel, self.kernel.hierarchies, self.journal, in_thread=False, clock=lambda: self.now_s
        )

    async def go(self, targets: dict[str, Settings], then_s: float = 1.0) -> Applied:
        applied = await self.executor.apply(self.executor.plan(targets, self.specs))
        self.now_s += then_s
        return applied

    def refuse(self, number: int, file: str = "") -> None:
        self.kernel.before_write = lambda n, path, text: number if path.endswith(file) else None


@pytest.fixture(params=["v1", "v2"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    kernel = FakeKernel(request.param)
    for group in ("/db", "/pi"):
        kernel.mkdir(group)
    with Journal(tmp_path, boot_id="boot") as journal:
        yield Bench(kernel, journal)


@pytest.mark.parametrize("fault", [errno.EBUSY, errno.EIO, errno.ENOSPC, errno.EINVAL, errno.EACCES])
async def test_giving_back_that_fails_is_told_and_tried_until_it_is_done(bench: Bench, fault: int) -> None:
    before = bench.kernel.texts()
    assert (await bench.go(APART)).ok
    bench.refuse(fault, "db/cpuset.cpus")
    failures = 0
    for _ in range(300):
        failures += not (await bench.go({})).ok
        assert "cpus" in bench.executor.blocked("db")
    assert 5 <= failures <= 15, "ever more rarely"
    (left,) = bench.executor.not_enforceable("db")
    assert "not restored, tried again after 60 s: " in left.reason
    assert errno.errorcode[fault] in left.reason
    assert bench.executor.blocked("pi") == ("cpus",), "no CPUs for batch that the LRA cannot leave"
    assert bench.executor.in_force("pi") == Settings(cpus=CpuSet.of([1, 2, 3]))
    bench.kernel.before_write = None
    bench.now_s += RETRY.longest_s
    assert (await bench.go({})).ok
    assert (await bench.go({})).ok
    assert bench.executor.in_force("db") == bench.executor.in_force("pi") == UNTOUCHED
    assert bench.executor.blocked("db") == bench.executor.blocked("pi") == ()
    after = bench.kernel.texts()
    free = (
        "/sys/fs/cgroup/db/cpuset.cpus",
        "/sys/fs/cgroup/pi/cpuset.cpus",
    )  # populated: cannot be emptied again
    assert {path for path, text in before.items() if after[path] != text} <= set(free)


async def test_a_file_that_cannot_be_read_and_is_to_be_given_back_is_told(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await bench.go(APART)).ok
    real = bench.kernel.read

    def read(path: str) -> bytes:
        if path.endswith("db/cpuset.cpus"):
            raise Broken(path, "read", errno.EIO)
        return real(path)

    with monkeypatch.context() as patch:
        patch.setattr(bench.kernel, "read", read)
        await bench.go({})
        assert bench.executor.blocked("db") == ("cpus",)
        assert "not restored: " in bench.executor.not_enforceable("db")[0].reason
    assert (await bench.go({})).ok
    assert bench.executor.in_force("db") == UNTOUCHED


async def test_what_is_wanted_is_tried_again_ever_more_rarely(bench: Bench) -> None:
    bench.refuse(errno.EBUSY)
    wanted = {"pi": Settings(cpu_weight=10)}
    for _ in range(3):
        assert isinstance((await bench.go(wanted, 0.0)).failed, Busy)
    for wait_s in (2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0):
        bench.now_s += wait_s - 0.5
        assert not bench.executor.plan(wanted, bench.specs)
        assert f"tried again after {wait_s:g} s: " in bench.executor.not_enforceable("pi")[0].reason
        assert bench.executor.blocked("pi") == ("cpu_weight",)
        bench.now_s += 0.5
        assert not (await bench.go(wanted, 0.0)).ok
    bench.kernel.before_write = None
    assert not bench.executor.plan(wanted, bench.specs)
    bench.executor.forget_conflicts("pi")
    assert (await bench.go(wanted)).ok
    assert bench.executor.blocked("pi") == ()


async def test_what_fails_for_long_keeps_nothing_else_from_being_written(bench: Bench) -> None:
    bench.refuse(errno.EBUSY, "cpu.idle")
    for number in range(200):
        await bench.go({"pi": Settings(cpu_weight=IDLE), "db": Settings(cpu_max_cores=1 + number % 2)})
    done = 0
    for number in range(200):
        wanted = {"pi": Settings(cpu_weight=IDLE), "db": Settings(cpu_max_cores=1 + number % 2)}
        done += (await bench.go(wanted)).ok
    assert done >= 195


@pytest.mark.parametrize("back", [False, True], ids=["wanted", "given-back"])
async def test_units_come_into_force_and_are_given_back_when_a_bus_that_hung_answers_again(
    tmp_path: Path, back: bool
) -> None:
    systemd, now_s = FakeSystemd(), [100.0]
    units = [f"job{number}.service" for number in range(12)]
    for unit in units:
        systemd.start(unit)
    specs = [WorkloadSpec(unit[:-8], Kind.BATCH, f"/system.slice/{unit}") for unit in units]
    idle = {spec.name: Settings(cpu_weight=IDLE) for spec in specs}
    fs, hierarchies = systemd.fs(), systemd.kernel.hierarchies
    with Journal(tmp_path, boot_id="boot") as journal:
        executor = Executor(
            fs,
            hierarchies,
            journal,
            in_thread=False,
            refuse=lambda cgroup: refusal(fs, hierarchies, cgroup),
            clock=lambda: now_s[0],
        )
        if back:
            assert (await executor.apply(executor.plan(idle, specs))).ok
        wanted = {} if back else idle
        systemd.fault = HUNG
        tries: list[float] = []
        while now_s[0] < 2000.0:
            if not (await executor.apply(executor.plan(wanted, specs))).ok:
                tries.append(now_s[0])
            assert all(executor.blocked(spec.name) == ("cpu_weight",) for spec in specs)
            now_s[0] += 1.0
        assert sum(1 for at_s in tries if at_s > 1000.0) <= 1000.0 / RETRY.longest_s + 1, (
            "not once a minute for each"
        )
        systemd.fault = None
        until_s = now_s[0] + 2 * RETRY.longest_s
        while now_s[0] < until_s:
            assert (await executor.apply(executor.plan(wanted, specs))).ok
            now_s[0] += 1.0
        assert not any(executor.blocked(spec.name) for spec in specs)
        for spec in specs:
            assert executor.in_force(spec.name) == wanted.get(spec.name, UNTOUCHED)


async def test_units_of_a_bus_that_hangs_do_not_keep_the_rest_waiting_one_after_the_other(
    tmp_path: Path,
) -> None:
    systemd, now_s = FakeSystemd(), [100.0]
    units = [f"job{number}.service" for number in range(20)]
    for unit in units:
        systemd.start(unit)
    systemd.kernel.mkdir("/zz")
    specs = [WorkloadSpec(unit[:-8], Kind.BATCH, f"/system.slice/{unit}") for unit in units]
    specs.append(WorkloadSpec("zz", Kind.BATCH, "/zz"))
    idle = {spec.name: Settings(cpu_weight=IDLE) for spec in specs}
    fs, hierarchies = systemd.fs(), systemd.kernel.hierarchies
    with Journal(tmp_path, boot_id="boot") as journal:
        executor = Executor(fs, hierarchies, journal, in_thread=False, clock=lambda: now_s[0])
        systemd.fault = HUNG
        failed = 0
        while executor.in_force("zz") == UNTOUCHED:
            failed += not (await executor.apply(executor.plan(idle, specs))).ok
            now_s[0] += 1.0
            assert failed <= TRIES_AT_ONCE, "as many as one unit alone would have"
        assert executor.blocked("zz") == ()
        assert all(executor.blocked(spec.name) == ("cpu_weight",) for spec in specs[:-1])


@pytest.mark.parametrize("number", [errno.EACCES, errno.EBUSY])
async def test_every_step_towards_a_ceiling_that_is_refused_counts_as_one(
    tmp_path: Path, number: int
) -> None:
    kernel = FakeKernel("v2")
    for cgroup in ("/pi", "/job"):
        kernel.mkdir(cgroup)
    specs = (WorkloadSpec("pi", Kind.BATCH, "/pi"), WorkloadSpec("job", Kind.BATCH, "/job"))
    wanted = {"pi": Settings(memory_high_bytes=300 << 20), "job": Settings(cpu_weight=10)}
    kernel.before_write = lambda _, path, __: number if path.endswith("pi/memory.high") else None
    with Journal(tmp_path, boot_id="boot") as journal:
        bench = Bench(kernel, journal, specs)
        failed = 0
        for tick in range(600):
            # What it uses is another number each time, and so is the step down from there.
            kernel.use("/sys/fs/cgroup/pi", (1000 << 20) + (tick * 7919 % 20_000) * 4096, 700 << 20)
            failed += not (await bench.executor.apply(bench.executor.plan(wanted, specs))).ok
            bench.now_s += 1.0
        assert failed <= 20
        assert bench.executor.in_force("job") == wanted["job"]


async def test_a_plan_that_was_cut_is_done_with_once_nothing_is_left_to_write(tmp_path: Path) -> None:
    kernel = FakeKernel("v1")
    specs = (WorkloadSpec("x", Kind.BATCH, "/x"), WorkloadSpec("y", Kind.BATCH, "/y"))
    for spec in specs:
        kernel.mkdir(spec.cgroup)
    with Journal(tmp_path, boot_id="boot") as journal:
        bench = Bench(kernel, journal, specs)

        def slow_and_refused(_number: int, path: str, _text: str) -> int | None:
            bench.now_s += 2.5  # of the 2 s that a transaction has
            return errno.EINVAL if "/y/" in path else None

        kernel.before_write = slow_and_refused
        wanted = {"x": Settings(cpu_weight=20), "y": Settings(cpu_weight=30)}
        for _ in range(12):
            await bench.go(wanted)
        assert bench.executor.in_force("x") == wanted["x"]
        kernel.before_write = None
        assert not (await bench.go(wanted)).more
        assert not bench.executor._size.unfinished


async def test_a_plan_that_takes_too_long_is_made_in_pieces(tmp_path: Path) -> None:
    kernel = FakeKernel("v2")
    specs = [WorkloadSpec(f"job{number}", Kind.BATCH, f"/job{number}") for number in range(150)]
    for spec in specs:
        kernel.mkdir(spec.cgroup)
    before = kernel.texts()
    with Journal(tmp_path, boot_id="boot") as journal:
        bench = Bench(kernel, journal, tuple(specs))

        def slow(_number: int, _path: str, _text: str) -> None:
            bench.now_s += 0.02

        kernel.before_write = slow
        for targets in ({spec.name: Settings(cpu_weight=IDLE) for spec in specs}, {}):
            pieces: list[Applied] = [await bench.go(targets)]
            while not pieces[-1].ok or pieces[-1].more:
                left = sum(bool(bench.executor.blocked(spec.name)) for spec in specs)
                assert left == 150 - len({write.workload for piece in pieces for write in piece.kept})
                pieces.append(await bench.go(targets))
                assert len(pieces) < 10
            assert sum(not piece.ok for piece in pieces) <= 1, (
                "what was next when time was up is not held against it"
            )
            assert not any(bench.executor.not_enforceable(spec.name) for spec in specs)
            assert all(bench.executor.in_force(s.name) == targets.get(s.name, UNTOUCHED) for s in specs)
    assert kernel.texts() == before


async def test_after_one_slow_moment_plans_are_whole_again(bench: Bench) -> None:
    def slow(number: int, _path: str, _text: str) -> None:
        bench.now_s += 3.0 if number == 0 else 0.0

    bench.kernel.before_write = slow
    first = await bench.go(APART)
    assert "took longer than 2 s before this write was started" in str(first.failed)
    assert not first.kept
    second = await bench.go(APART)
    assert (second.ok, second.more, len(second.written)) == (True, True, 1)
    assert "deferred to the next transaction" in bench.executor.not_enforceable("db")[0].reason
    third = await bench.go(APART)
    assert (third.ok, third.more) == (True, False)
    assert bench.executor.in_force("db") == APART["db"]
    assert not bench.executor.blocked("db")


@pytest.mark.parametrize("number", range(4))
async def test_an_error_that_nobody_expected_leaves_no_half_transaction(
    bench: Bench, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    before = bench.kernel.texts()

    def out_of_the_blue(n: int, _path: str, _text: str) -> None:
        if n == number:
            raise RuntimeError("can't start new thread")

    bench.kernel.before_write = out_of_the_blue
    applied = await bench.go(
        {"pi": Settings(cpu_weight=10, cpu_max_cores=0.5, frozen=True), "db": Settings(cpu_weight=50)}
    )
    assert isinstance(applied.failed, Broken)
    assert "RuntimeError: can't start new thread" in str(applied.failed)
    assert len(applied.undone) == len(applied.written) == number
    assert bench.kernel.texts() == before
    assert not bench.journal.originals
    assert any(record.exc_info for record in caplog.records), "the log has where it comes from"


async def test_an_undo_that_ends_unexpectedly_does_not_keep_the_others_from_being_undone(
    bench: Bench,
) -> None:
    def out_of_the_blue(n: int, _path: str, _text: str) -> int | None:
        if n == 3:
            raise RuntimeError("can't start new thread")
        return errno.EBUSY if n == 2 else None

    bench.kernel.before_write = out_of_the_blue
    applied = await bench.go({"pi": Settings(cpu_weight=10, cpu_max_cores=0.5, frozen=True)})
    assert isinstance(applied.failed, Busy)
    assert len(applied.undone) == 1
    assert len(applied.kept) == 1
    assert "RuntimeError: can't start new thread" in applied.problems[0]


async def test_work_for_which_no_thread_can_be_started_is_not_done_later_unseen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = FakeKernel("v2")
    kernel.mkdir("/pi")

    def start(_self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with Journal(tmp_path, boot_id="boot") as journal:
        executor = Executor(kernel, kernel.hierarchies, journal)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", start)
            applied = await executor.apply(executor.plan({"pi": Settings(cpu_weight=10)}, [PI]))
        assert "can't start new thread" in str(applied.failed)
        assert (await executor.apply(executor.plan({"pi": Settings(cpu_weight=20)}, [PI]))).ok
        assert kernel.writes == [("/sys/fs/cgroup/pi/cpu.weight", "20")]
        executor.close()


def test_waits_double_up_to_the_longest() -> None:
    waits = [RETRY.after(0.0)]
    while len(waits) < 7:
        waits.append(RETRY.after(waits[-1]))
    assert waits == [RETRY.first_s, 4.0, 8.0, 16.0, 32.0, RETRY.longest_s, RETRY.longest_s]


@pytest.mark.parametrize(
    ("error", "target", "now", "later"),
    [
        (Busy("/f", "write", errno.EBUSY), 10, False, False),
        (Denied("/f", "write", errno.EACCES), 10, True, True),
        (Denied("/f", "write", errno.EACCES), KEEP, True, False),
    ],
)
def test_only_what_is_wanted_and_wrong_in_principle_is_refused_for_good(
    error: KernelError, target: int, now: bool, later: bool
) -> None:
    refusals, key = Refusals(KnobStates()), ("pi", "cpu_weight")
    refusals.failed(key, target, error, 100.0)
    assert bool(refusals.why_not(key, target, 100.0)) is now
    assert bool(refusals.why_not(key, target, 1e9)) is later
    assert not refusals.why_not(key, 11, 100.0), "each value by itself"
    refusals.reset("pi")
    assert not refusals.why_not(key, target, 100.0)
