"""Memory ceilings: steps, what must not be undercut, what takes a step back; then by the executor on a fake kernel."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.domain.allocation import KEEP, NO_LIMIT, Limit, Settings
from perphd.domain.plan import Stage, Write
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.isolation import Executor, Journal, restore
from perphd.isolation.ceilings import HOLD, LEAST_STEP_BYTES, STEP_EVERY_S, Ceilings, MemoryUse
from perphd.isolation.reclaim import Reclaimer
from tests.unit.isolation_kernel import FakeKernel

MB = 1 << 20
KEY = ("pi", "memory_high_bytes")
USE = MemoryUse(1000 * MB, 400 * MB, 0, 0, 0, 0.0, False)


def test_far_above_use_a_ceiling_is_set_at_once() -> None:
    assert Ceilings().high(KEY, NO_LIMIT, 2000 * MB, USE, 0.0).value == 2000 * MB


def test_below_use_it_goes_down_step_by_step_to_the_working_set() -> None:
    ceilings, now_s, use = Ceilings(), 0.0, USE
    now: Limit = NO_LIMIT
    seen: list[int] = []
    for _ in range(30):
        aim = ceilings.high(KEY, now, 300 * MB, use, now_s)
        assert isinstance(aim.value, int)
        if aim.value != now:
            seen.append(aim.value)
        now = aim.value
        use = replace(use, current_bytes=min(use.current_bytes, now))
        now_s += STEP_EVERY_S
    assert seen[0] == 900 * MB
    assert all(0.85 * a < b < a for a, b in pairwise(seen))
    assert 400 * MB <= seen[-1] < 400 * MB + LEAST_STEP_BYTES, "not into what it works with"
    assert "its working set is 400.0 MiB" in ceilings.high(KEY, now, 300 * MB, use, now_s).reason


def test_a_step_waits_for_the_one_before_and_raising_does_not() -> None:
    ceilings = Ceilings()
    assert ceilings.high(KEY, NO_LIMIT, 300 * MB, USE, 0.0).value == 900 * MB
    waiting = ceilings.high(KEY, 900 * MB, 300 * MB, USE, 1.0)
    assert waiting.value == 900 * MB
    assert "being lowered to 300.0 MiB" in waiting.reason
    assert ceilings.high(KEY, 900 * MB, 5000 * MB, USE, 1.1).value == 5000 * MB


@pytest.mark.parametrize(
    ("hurt", "says"),
    [
        (replace(USE, kill_events=1), "killed"),
        (replace(USE, high_events=50, stalled_pct=30.0), "throttled 50 times"),
        (replace(USE, refault_bytes=90 * MB), "refaulted"),
    ],
)
def test_trouble_takes_the_step_back_and_holds_longer_each_time(hurt: MemoryUse, says: str) -> None:
    ceilings = Ceilings()
    assert ceilings.high(KEY, 950 * MB, 300 * MB, USE, 0.0).value == 900 * MB
    back = ceilings.high(KEY, 900 * MB, 300 * MB, hurt, 2.0)
    assert back.value == 1100 * MB, "a step above use"
    assert says in back.reason
    held = ceilings.high(KEY, 1100 * MB, 300 * MB, replace(hurt, stalled_pct=0.0), 2.0 + HOLD.first_s - 0.1)
    assert held.value == 1100 * MB
    again = ceilings.high(KEY, 1100 * MB, 300 * MB, replace(hurt, stalled_pct=0.0), 3.0 + HOLD.first_s)
    assert again.value == 900 * MB
    worse = replace(hurt, kill_events=9)
    assert f"{2 * HOLD.first_s:g} s" in ceilings.high(KEY, 900 * MB, 300 * MB, worse, 70.0).reason


def test_throttling_without_stalls_and_stalls_without_throttling_are_no_trouble() -> None:
    ceilings = Ceilings()
    ceilings.high(KEY, NO_LIMIT, 300 * MB, USE, 0.0)
    for quiet in (replace(USE, high_events=5), replace(USE, stalled_pct=50.0)):
        assert "raised" not in ceilings.high(KEY, 900 * MB, 300 * MB, quiet, 1.0).reason


def test_with_memory_reclaim_the_ceiling_follows_use_and_never_undercuts_it() -> None:
    ceilings, use = Ceilings(), replace(USE, can_reclaim=True)
    first = ceilings.high(KEY, NO_LIMIT, 300 * MB, use, 0.0)
    assert (first.value, first.reclaim_bytes) == (1000 * MB, 100 * MB)
    second = ceilings.high(KEY, 1000 * MB, 300 * MB, replace(use, current_bytes=900 * MB), 6.0)
    assert (second.value, second.reclaim_bytes) == (900 * MB, 90 * MB)


def test_memory_max_stays_above_use_and_above_memory_high() -> None:
    assert Ceilings.max(NO_LIMIT, 2000 * MB, USE).value is KEEP
    assert Ceilings.max(1200 * MB, 2000 * MB, USE).value == 2000 * MB
    assert Ceilings.max(1200 * MB, 500 * MB, USE).value == 1300 * MB
    assert Ceilings.max(100 * MB, 500 * MB, USE).value == 1100 * MB


uses = st.builds(
    lambda current, share, reclaim: MemoryUse(current, int(current * share), 0, 0, 0, 0.0, reclaim),
    st.integers(0, 1 << 40),
    st.floats(0, 1),
    st.booleans(),
)


@given(use=uses, now=st.just(NO_LIMIT) | st.integers(0, 1 << 41), target=st.integers(0, 1 << 41))
def test_no_step_undercuts_the_working_set_or_more_than_a_tenth_of_use(
    use: MemoryUse, now: Limit, target: int
) -> None:
    aim = Ceilings().high(KEY, now, target, use, 0.0)
    value = float("inf") if aim.value is NO_LIMIT else float(aim.value)  # type: ignore[arg-type]
    before = float("inf") if now is NO_LIMIT else float(now)
    assert value <= max(before, target)
    if value < before:
        assert value >= min(target, use.working_set_bytes)
        assert value >= target or value >= use.working_set_bytes
        assert (
            value >= use.current_bytes - max(LEAST_STEP_BYTES, 0.1 * use.current_bytes) - 4096
            or value >= before
        )


@pytest.fixture
def kernel() -> FakeKernel:
    kernel = FakeKernel("v2")
    kernel.mkdir("/pi")
    kernel.use("/sys/fs/cgroup/pi", 1000 * MB, 600 * MB)
    return kernel


@pytest.fixture
def executor(kernel: FakeKernel, tmp_path: Path) -> Iterator[Executor]:
    with Journal(tmp_path, boot_id="boot") as journal:
        yield Executor(kernel, kernel.hierarchies, journal, in_thread=False)


SPECS = [WorkloadSpec("pi", Kind.BATCH, "/pi")]


async def test_the_executor_reclaims_first_and_lowers_then(
    kernel: FakeKernel, executor: Executor, tmp_path: Path
) -> None:
    pi = "/sys/fs/cgroup/pi"
    kernel.directories[pi].files["memory.reclaim"] = ""
    target = {"pi": Settings(memory_high_bytes=300 * MB)}
    for tick in range(40):
        used = int(kernel.read(f"{pi}/memory.current"))
        applied = await executor.apply(executor.plan(target, SPECS, tick * 3.0))
        assert applied.ok, applied
        for path, value in kernel.writes:
            assert not path.endswith("memory.high") or int(value) >= used, "never below use"
        assert executor.blocked("pi") == ()
        kernel.writes.clear()
    assert 400 * MB <= int(kernel.read(f"{pi}/memory.high")) < 420 * MB
    assert "its working set is" in executor.limited("pi")[0].reason
    assert (await executor.apply(executor.plan({}, SPECS))).ok
    assert executor.limited("pi") == ()
    assert kernel.read(f"{pi}/memory.high") == b"max\n"
    assert not restore(kernel, tmp_path / "other", boot_id="boot")


async def test_a_slow_reclaim_holds_nobody_up(kernel: FakeKernel, tmp_path: Path) -> None:
    kernel.directories["/sys/fs/cgroup/pi"].files["memory.reclaim"] = ""
    go_on = threading.Event()

    def slow(_number: int, path: str, _text: str) -> None:
        if path.endswith("memory.reclaim"):
            go_on.wait(10)

    kernel.before_write = slow
    said: list[str] = []
    with Journal(tmp_path, boot_id="boot") as journal:
        executor = Executor(
            kernel, kernel.hierarchies, journal, on_write=lambda write, outcome: said.append(outcome)
        )
        target = {"pi": Settings(memory_high_bytes=300 * MB)}
        assert (await executor.apply(executor.plan(target, SPECS, 0.0))).ok
        urgent = {"pi": Settings(cpu_weight=10, memory_high_bytes=300 * MB)}
        assert (await executor.apply(executor.plan(urgent, SPECS, 10.0))).ok, (
            "while memory is being reclaimed"
        )
        assert kernel.read("/sys/fs/cgroup/pi/cpu.weight") == b"10\n"
        go_on.set()
        while "reclaimed" not in said:
            await asyncio.sleep(0.001)
            executor.plan(urgent, SPECS, 11.0)
        await executor.restore()
        executor.close()


async def test_without_a_reading_of_use_nothing_is_lowered(kernel: FakeKernel, executor: Executor) -> None:
    del kernel.directories["/sys/fs/cgroup/pi"].files["memory.current"]
    assert not executor.plan({"pi": Settings(memory_high_bytes=300 * MB)}, SPECS)
    assert "its memory use cannot be read" in executor.limited("pi")[0].reason


async def test_memory_max_is_given_back_when_nothing_is_left_to_slow_the_group_down(
    kernel: FakeKernel, executor: Executor
) -> None:
    both = {"pi": Settings(memory_high_bytes=1200 * MB, memory_max_bytes=1200 * MB)}
    assert (await executor.apply(executor.plan(both, SPECS, 0.0))).ok
    assert (await executor.apply(executor.plan(both, SPECS, 6.0))).ok
    assert kernel.read("/sys/fs/cgroup/pi/memory.max") == f"{1300 * MB}\n".encode()
    assert "to avoid an out-of-memory kill" in executor.limited("pi")[0].reason
    alone = {"pi": Settings(memory_max_bytes=1200 * MB)}
    assert (await executor.apply(executor.plan(alone, SPECS, 12.0))).ok
    assert (await executor.apply(executor.plan(alone, SPECS, 18.0))).ok
    assert kernel.read("/sys/fs/cgroup/pi/memory.max") == b"max\n"


async def test_a_protection_within_a_group_without_one_is_told(
    kernel: FakeKernel, executor: Executor
) -> None:
    kernel.mkdir("/pi/db")
    inner = [WorkloadSpec("db", Kind.LRA, "/pi/db")]
    target = {"db": Settings(memory_low_bytes=64 * MB)}
    assert (await executor.apply(executor.plan(target, inner))).ok
    assert "/sys/fs/cgroup/pi/memory.low, which is 0" in executor.limited("db")[0].reason
    kernel.set("/sys/fs/cgroup/pi/memory.low", "max")
    assert not executor.plan(target, inner)
    assert executor.limited("db") == ()


def test_a_reclaim_without_a_thread_fails_alone_and_is_not_left_queued(
    kernel: FakeKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    path = "/sys/fs/cgroup/pi/memory.reclaim"
    kernel.directories["/sys/fs/cgroup/pi"].files["memory.reclaim"] = ""
    reclaimer = Reclaimer(kernel, in_thread=True)
    request = Write("pi", "memory_high_bytes", path, "4096", "", Stage.SHRINK)
    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", refuse)
        reclaimer.submit([request], {})
    assert reclaimer.outcomes() == [(request, "failed: can't start new thread")]
    assert not reclaimer.is_busy
    reclaimer.submit([request], {})
    assert reclaimer._thread is not None
    reclaimer._thread.shutdown()
    assert reclaimer.outcomes() == [(request, "reclaimed")]
