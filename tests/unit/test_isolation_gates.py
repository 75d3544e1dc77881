"""How often a knob may change: a burst is free, swinging is not, giving back never waits."""

from __future__ import annotations

import errno
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from perphd.domain.allocation import KEEP, Settings
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.isolation import Executor, Journal
from perphd.isolation.gates import BURST, RateLimiter
from perphd.isolation.knob_states import KnobStates
from tests.unit.isolation_kernel import FakeKernel

SPECS = [WorkloadSpec("pi", Kind.BATCH, "/pi"), WorkloadSpec("db", Kind.LRA, "/db")]


@given(gaps=st.lists(st.floats(0, 5), max_size=200), per_s=st.floats(0.1, 10))
def test_in_any_time_no_more_than_a_burst_and_the_rate(gaps: list[float], per_s: float) -> None:
    limiter, now_s, changes = RateLimiter(KnobStates(), per_s), 0.0, 0
    for gap in gaps:
        now_s += gap
        if not limiter.wait(("pi", "cpus"), now_s):
            limiter.changed(("pi", "cpus"), now_s)
            changes += 1
    assert changes <= BURST + per_s * now_s + 1


async def test_a_knob_that_swings_is_held_with_the_reason_and_others_are_not(tmp_path: Path) -> None:
    kernel = FakeKernel("v2")
    for group in ("/pi", "/db"):
        kernel.mkdir(group)
    with Journal(tmp_path, boot_id="boot") as journal:
        executor = Executor(kernel, kernel.hierarchies, journal, in_thread=False, changes_per_s=1.0)

        async def go(now_s: float, **targets: Settings) -> int:
            applied = await executor.apply(executor.plan(targets, SPECS, now_s))
            assert applied.ok
            return len(applied.written)

        for number in range(BURST):
            assert await go(number * 0.1, pi=Settings(cpu_weight=10 + number)) == 1
        assert await go(2.05, pi=Settings(cpu_weight=99)) == 1, "two seconds have passed"
        assert await go(2.1, pi=Settings(cpu_weight=98), db=Settings(cpu_weight=50)) == 2
        assert await go(2.15, pi=Settings(cpu_weight=97), db=Settings(cpu_weight=40, frozen=True)) == 1
        assert executor.blocked("pi") == executor.blocked("db") == ("cpu_weight",)
        assert "changed 20 times" in executor.not_enforceable("pi")[0].reason
        assert await go(2.2, pi=Settings(cpu_weight=KEEP)) == 3, "all is given back"
        assert not journal.originals


async def test_of_workloads_that_left_nothing_is_remembered(tmp_path: Path) -> None:
    """A host where jobs of ever new names come and go must not fill up."""
    kernel = FakeKernel("v2")
    with Journal(tmp_path, boot_id="boot") as journal:
        executor = Executor(kernel, kernel.hierarchies, journal, in_thread=False, changes_per_s=1.0)
        sizes: set[int] = set()
        for number in range(4):
            name = f"job-{number}"
            kernel.mkdir(f"/{name}")
            specs = [WorkloadSpec(name, Kind.BATCH, f"/{name}")]
            kernel.before_write = lambda n, path, text: errno.EINVAL if path.endswith("cpu.max") else None
            for target in (Settings(cpu_weight=7, memory_high_bytes=1 << 26), Settings(cpu_max_cores=0.5)):
                await executor.apply(executor.plan({name: target}, specs, float(number)))
            kernel.set(f"/sys/fs/cgroup/{name}/cpu.weight", "33")
            executor.plan({name: Settings(cpu_weight=7)}, specs, float(number))
            assert (await executor.restore((name,), force=True)).restored
            kernel.rmdir(f"/{name}")
            sizes.add(_held(executor))
        assert len(sizes) == 1, sizes


def _held(executor: Executor) -> int:
    """How many things the executor and its parts remember, whatever they are."""
    count, seen = 0, set[int]()
    todo: list[object] = [executor]
    while todo:
        part = todo.pop()
        if id(part) in seen or isinstance(part, FakeKernel):
            continue
        seen.add(id(part))
        if isinstance(part, dict | set | list | tuple | frozenset):
            count += len(part)
            todo += [*part.values()] if isinstance(part, dict) else [*part]
        elif type(part).__module__.startswith("perphd.isolation"):
            names = getattr(type(part), "__slots__", None) or vars(part)
            todo += [getattr(part, name) for name in names if hasattr(part, name)]
    return count
