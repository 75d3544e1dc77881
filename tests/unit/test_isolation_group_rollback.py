"""Rollbacks of resctrl groups: what a change that failed halfway leaves behind, and what is then believed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import rdt
from perphd.domain.allocation import Settings
from perphd.isolation import Journal
from perphd.sim.host import SimHost
from perphd.sim.machine import Machine
from perphd.sim.workload import Batch, Lra, Workload
from tests.unit.test_isolation_resctrl import BATCH, NARROW, ROOT, SPECS, Bench

WIDER = Settings(llc_masks=((0, 0xF),), mba_pct=((0, 60),))
PI, SORT = rdt.GroupRef("perphd.pi"), rdt.GroupRef("perphd.sort")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    works: list[Workload] = [
        Lra("db", "/lra/db", rate_per_s=100),
        Batch("pi", "/batch/pi", threads=4),
        Batch("sort", "/batch/sort"),
    ]
    host = SimHost(works, machine=Machine(1, 4), resctrl=True)
    with Journal(tmp_path, boot_id="boot") as journal:
        yield Bench(host, journal)


def fail(kind: type[rdt.ResctrlError]) -> rdt.ResctrlError:
    return kind(f"{ROOT}/x", doing="writing", reason="as the test wants")


def script(monkeypatch: pytest.MonkeyPatch, *answers: Callable[[rdt.GroupRef], Exception | None]) -> None:
    """Let the next calls of ``ensure`` raise what these return; later calls are real."""
    real, left = rdt.Groups.ensure, list(answers)

    def ensure(self: rdt.Groups, group: rdt.GroupRef, wanted: rdt.Schemata) -> Any:
        error = left.pop(0)(group) if left else None
        if error is not None:
            raise error
        return real(self, group, wanted)

    monkeypatch.setattr(rdt.Groups, "ensure", ensure)


async def test_a_setting_written_before_the_other_met_the_lock_is_rolled_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await bench.go({"pi": NARROW})).ok
    invalid, locked = fail(rdt.Invalid), fail(rdt.Locked)
    script(monkeypatch, lambda _: invalid, lambda _: None, lambda _: locked)
    done = await bench.go({"pi": WIDER})
    assert not done.ok
    assert done.problems == ()
    assert bench.l3("pi") == 0x3, "the cache was written, then the bandwidth met the lock"
    assert (await bench.go({"pi": WIDER})).ok
    assert bench.executor.in_force("pi") == WIDER
    assert bench.executor.conflicts() == (), "its own write is no other program's"


async def test_threads_moved_before_a_failure_return_to_their_group(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.take_closids(but=1)
    assert (await bench.go(BATCH)).ok
    both = bench.threads("pi") | bench.threads("sort")
    bench.host.fs.raw.rmdir(f"{ROOT}/other0")
    real = rdt.Groups.fill

    def fill(self: rdt.Groups, group: rdt.GroupRef, *args: Any, **options: Any) -> Any:
        done = real(self, group, *args, **options)
        if group == SORT:
            raise fail(rdt.Busy)
        return done

    monkeypatch.setattr(rdt.Groups, "fill", fill)
    assert not (await bench.go(BATCH)).ok
    assert bench.resctrl.tasks(PI) == both
    assert bench.own_groups() == ["perphd.pi"]
    monkeypatch.undo()
    bench.now_s += 600.0
    assert (await bench.go(BATCH)).ok
    assert bench.own_groups() == ["perphd.pi", "perphd.sort"]
    assert bench.executor.conflicts() == (), "perphd moved them itself"


async def test_a_workload_keeps_its_group_if_only_new_threads_are_moved_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.take_closids(but=1)
    assert (await bench.go(BATCH)).ok
    stray = {name: min(bench.threads(name)) for name in ("pi", "sort")}
    for tid in stray.values():
        bench.host.fs.raw.write(f"{ROOT}/tasks", f"{tid}\n".encode())
    real, calls = rdt.Groups.fill, []

    def fill(self: rdt.Groups, group: rdt.GroupRef, *args: Any, **options: Any) -> Any:
        calls.append(group)
        if len(calls) == 2:
            raise fail(rdt.Busy)
        return real(self, group, *args, **options)

    monkeypatch.setattr(rdt.Groups, "fill", fill)
    assert not (await bench.go(BATCH)).ok
    first = "pi" if len(bench.threads("pi")) > 1 else "sort"
    assert bench.resctrl.tasks(PI) == (bench.threads("pi") | bench.threads("sort")) - set(stray.values())
    assert first in bench.executor.caches.placement(), "its other threads are still there"
    assert bench.executor.in_force(first) == NARROW


async def test_a_refusal_is_not_blamed_on_the_next_group(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await bench.go(BATCH)).ok
    invalid = fail(rdt.Invalid)
    broken: list[Exception] = []
    real = rdt.Resctrl.schemata

    def schemata(self: rdt.Resctrl, *args: Any) -> Any:
        if broken:
            raise broken.pop()
        return real(self, *args)

    real_ensure = rdt.Groups.ensure

    def breaking(self: rdt.Groups, group: rdt.GroupRef, wanted: rdt.Schemata) -> Any:
        monkeypatch.setattr(rdt.Groups, "ensure", real_ensure)
        done = real_ensure(self, group, wanted)
        broken.append(fail(rdt.Busy))
        return done

    monkeypatch.setattr(rdt.Resctrl, "schemata", schemata)
    calls: list[rdt.GroupRef] = []

    def ensure(self: rdt.Groups, group: rdt.GroupRef, wanted: rdt.Schemata) -> Any:
        calls.append(group)
        if len(calls) == 3:
            return breaking(self, group, wanted)
        raise invalid

    monkeypatch.setattr(rdt.Groups, "ensure", ensure)
    assert not (await bench.go({"pi": WIDER, "sort": WIDER})).ok
    assert bench.executor.in_force("sort") == WIDER
    assert (await bench.go({"sort": WIDER})).ok
    assert bench.executor.blocked("sort") == ()


async def test_a_lock_met_after_another_failure_is_not_tried_again_at_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await bench.go(BATCH)).ok
    script(monkeypatch, lambda _: fail(rdt.Busy), lambda _: None, lambda _: fail(rdt.Locked))
    targets = {"pi": WIDER, "sort": WIDER}
    assert not (await bench.go(targets)).ok
    changes = bench.executor.plan(targets, SPECS, bench.now_s + 0.5)
    assert [each for each in changes.writes if each.workload == "sort"] == []
    assert bench.executor.waiting("sort")
    assert (await bench.executor.apply(bench.executor.plan(targets, SPECS, bench.now_s + 30.0))).ok
    assert bench.executor.in_force("sort") == WIDER
