"""resctrl as hosts have it: code and data apart, domains that go, locks that others hold, groups that others change."""

from __future__ import annotations

import asyncio
import errno
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import rdt
import rdt.calibrate
from perphd.domain.allocation import KEEP, Settings
from perphd.domain.cpuset import CpuSet
from perphd.host.cgroup import discover
from perphd.host.resctrl import CALIBRATION_PREFIX
from perphd.isolation import Executor, Journal, restore
from perphd.isolation.cache_plan import Placement
from perphd.sim import rdt as sim_rdt
from perphd.sim.host import SimHost
from perphd.sim.kernel.proc import foreign_lock
from perphd.sim.kernel.resctrl import RdtMachine
from perphd.sim.machine import Machine
from perphd.sim.workload import Batch, Lra, Workload
from tests.unit.test_isolation_resctrl import BATCH, NARROW, ROOT, SPECS, Bench

BOTH = Settings(llc_masks=((0, 0x3), (1, 0x3)), mba_pct=((0, 40), (1, 40)))
WIDER = Settings(llc_masks=((0, 0xF), (1, 0xF)), mba_pct=((0, 60), (1, 60)))
PI = rdt.GroupRef("perphd.pi")


def make_host(options: str = "", machine: Machine | None = None) -> SimHost:
    works: list[Workload] = [
        Lra("db", "/lra/db", rate_per_s=100),
        Batch("pi", "/batch/pi", threads=4),
        Batch("sort", "/batch/sort"),
    ]
    return SimHost(works, machine=machine or Machine(2, 2), resctrl=options)


@pytest.fixture
def bench_of(tmp_path: Path) -> Iterator[Callable[[str], Bench]]:
    journals: list[Journal] = []

    def make(options: str = "") -> Bench:
        journals.append(Journal(tmp_path, boot_id="boot"))
        return Bench(make_host(options), journals[-1])

    yield make
    for journal in journals:
        journal.close()


@pytest.fixture
def bench(bench_of: Callable[[str], Bench]) -> Bench:
    return bench_of("")


@pytest.fixture
def place(bench: Bench) -> object:
    assert bench.host.resctrl is not None
    return bench.host.resctrl


# -- values are values -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", ["", "cdp", "cdp,mba_MBps"])
async def test_own_writes_are_never_taken_for_somebody_elses(
    bench_of: Callable[[str], Bench], options: str
) -> None:
    bench = bench_of(options)
    for n in range(6):
        target = Settings(
            llc_masks=((0, 0x3 << n), (1, 0x3 << n)), mba_pct=((0, 10 + 10 * n), (1, 10 + 10 * n))
        )
        assert (await bench.go({"pi": target})).ok
        assert not bench.executor.plan({"pi": target}, SPECS, bench.now_s + 1)
        in_force = bench.executor.in_force("pi")
        assert in_force.llc_masks == target.llc_masks
        assert in_force.mba_pct == (KEEP if "MBps" in options else target.mba_pct)
        caches = ("L3CODE", "L3DATA") if "cdp" in options else ("L3",)
        assert all(bench.l3("pi", d, cache) == 0x3 << n for d in (0, 1) for cache in caches)
    assert bench.executor.conflicts() == ()


# -- domains ---------------------------------------------------------------------------------------------------------


async def test_a_domain_that_goes_takes_no_protection_from_the_others_and_gets_its_value_back(
    bench: Bench,
) -> None:
    targets = {"pi": BOTH, "sort": WIDER}
    assert (await bench.go(targets)).ok
    identity = bench.resctrl.identity(PI)
    bench.host.set_online(CpuSet.parse("0-1"))
    for _ in range(3):
        assert (await bench.go(targets)).ok
        assert bench.groups() == ["perphd.pi", "perphd.sort"]
        assert bench.executor.in_force("pi") == Settings(llc_masks=((0, 0x3),), mba_pct=((0, 40),))
        assert {left.reason for left in bench.executor.limited("pi")} == {
            "L3:1 is offline: the value is set when it returns",
            "MB:1 is offline: the value is set when it returns",
        }
        assert not bench.executor.blocked("pi")
    assert (await bench.go({"pi": WIDER, "sort": WIDER})).ok, "what is there can still be changed"
    assert bench.l3("pi") == 0xF
    bench.host.set_online(CpuSet.parse("0-3"))
    assert bench.l3("pi", 1) == bench.resctrl.info.caches["L3"].cbm_mask, "the kernel has forgotten it"
    assert (await bench.go(targets)).ok
    assert bench.executor.in_force("pi") == BOTH
    assert bench.l3("pi", 1) == 0x3
    assert not bench.executor.limited("pi")
    assert bench.executor.conflicts() == ()
    assert bench.resctrl.identity(PI) == identity, "the group is the same all the time"


async def test_a_domain_that_appears_after_the_start_is_used(tmp_path: Path) -> None:
    host = make_host()
    host.set_online(CpuSet.parse("0-1"))
    with Journal(tmp_path, boot_id="boot") as journal:
        bench = Bench(host, journal)
        assert (await bench.go({"pi": BOTH})).ok
        assert bench.executor.in_force("pi").llc_masks == ((0, 0x3),)
        host.set_online(CpuSet.parse("0-3"))
        assert (await bench.go({"pi": BOTH})).ok
        assert bench.executor.in_force("pi") == BOTH


async def test_with_all_of_its_domains_away_a_workload_keeps_its_group(bench: Bench) -> None:
    there = Settings(llc_masks=((1, 0x3),))
    await bench.go({"pi": there})
    bench.host.set_online(CpuSet.parse("0-1"))
    assert not bench.executor.plan({"pi": there}, SPECS, 60.0)
    assert bench.groups() == ["perphd.pi"]
    assert bench.executor.not_enforceable("pi")[0].reason == "L3 has no domain 1 now; it has 0"
    bench.host.set_online(CpuSet.parse("0-3"))
    assert (await bench.go({"pi": there})).ok
    assert bench.l3("pi", 1) == 0x3


# -- one blocked setting ---------------------------------------------------------------------------------------------


async def test_a_setting_that_cannot_be_had_leaves_the_other_in_force(bench: Bench) -> None:
    await bench.go({"pi": BOTH})
    too_wide = Settings(llc_masks=((0, 1 << 30), (1, 0x3)), mba_pct=((0, 20), (1, 20)))
    assert (await bench.go({"pi": too_wide})).ok
    assert bench.executor.blocked("pi") == ("llc_masks",)
    assert bench.executor.in_force("pi") == Settings(llc_masks=BOTH.llc_masks, mba_pct=((0, 20), (1, 20)))


async def test_what_the_kernel_refuses_of_one_setting_leaves_the_other_in_force(bench: Bench) -> None:
    raw = bench.host.fs.raw
    raw.mkdir(f"{ROOT}/theirs")
    raw.write(f"{ROOT}/theirs/schemata", b"L3:0=ff0;1=ff0\n")
    raw.write(f"{ROOT}/schemata", b"L3:0=f;1=f\n")
    raw.write(f"{ROOT}/theirs/mode", b"exclusive\n")
    target = Settings(llc_masks=((0, 0x30), (1, 0x30)), mba_pct=((0, 40), (1, 40)))
    applied = await bench.go({"pi": target, "sort": Settings(llc_masks=((0, 0x3), (1, 0x3)))})
    assert "Overlaps with exclusive group" in str(applied.failed)
    assert bench.executor.blocked("pi") == ("llc_masks",)
    assert bench.executor.in_force("pi").mba_pct == target.mba_pct
    assert bench.executor.in_force("sort").llc_masks == ((0, 0x3), (1, 0x3))
    assert (await bench.go({"pi": target, "sort": Settings(llc_masks=((0, 0x3), (1, 0x3)))})).ok, (
        "not tried again"
    )
    assert bench.executor.blocked("pi") == ("llc_masks",)
    assert "Overlaps with exclusive group" in bench.executor.not_enforceable("pi")[0].reason


async def test_what_a_target_does_not_name_stays_as_in_the_default_group(bench: Bench) -> None:
    raw = bench.host.fs.raw
    raw.mkdir(f"{ROOT}/theirs")
    raw.write(f"{ROOT}/theirs/schemata", b"L3:0=ff0;1=ff0\n")
    raw.write(f"{ROOT}/schemata", b"L3:0=f;1=f\nMB:0=90;1=90\n")
    raw.write(f"{ROOT}/theirs/mode", b"exclusive\n")
    targets = {"pi": Settings(mba_pct=((0, 40), (1, 40))), "sort": Settings(llc_masks=((0, 0x3),))}
    applied = await bench.go(targets)
    assert applied.ok, applied.failed
    assert [bench.l3("pi", domain) for domain in (0, 1)] == [0xF, 0xF]
    assert [bench.l3("sort", domain) for domain in (0, 1)] == [0x3, 0xF]
    assert bench.resctrl.schemata(rdt.GroupRef("perphd.sort")).values["MB"] == {0: 90, 1: 90}
    assert not bench.executor.plan(targets, SPECS, bench.now_s + 10.0)
    for name, target in targets.items():
        assert bench.executor.in_force(name) == target
        assert not bench.executor.blocked(name)


async def test_what_is_in_force_is_known_at_once_and_is_what_the_kernel_has(bench: Bench) -> None:
    await bench.go({"pi": BOTH})
    assert bench.executor.in_force("pi") == BOTH
    changes = bench.executor.plan({"pi": WIDER}, SPECS, 20.0)
    assert bench.executor.in_force("pi") == BOTH, "not written yet: the kernel has the old one"
    assert (await bench.executor.apply(changes)).ok
    assert bench.executor.in_force("pi") == WIDER, "the round after a change need not read again"
    bench.host.fs.write(f"{ROOT}/perphd.pi/schemata", b"MB:0=90;1=90\n")
    bench.executor.plan({"pi": WIDER}, SPECS, 30.0)
    assert bench.executor.in_force("pi").mba_pct == ((0, 90), (1, 90))


# -- locks -----------------------------------------------------------------------------------------------------------


async def test_a_lock_that_others_hold_removes_nothing_and_is_reported(bench: Bench) -> None:
    tree = bench.host.resctrl
    assert tree is not None
    await bench.go({"pi": BOTH})
    with foreign_lock(bench.host.fs.root, tree.directory, pid=4711):
        assert (await bench.go({"pi": BOTH})).ok, "there is nothing to write: nobody asks for the lock"
        applied = await bench.go({"pi": WIDER, "sort": BOTH})
        assert "held by pid 4711 (flock, uid 65534, exclusive)" in str(applied.failed)
        for _ in range(3):
            assert not bench.executor.plan({"pi": WIDER, "sort": BOTH}, SPECS, bench.now_s + 1), (
                "not tried meanwhile"
            )
            assert bench.executor.blocked("pi") == ("llc_masks", "mba_pct")
            assert "pid 4711 (flock, uid 65534" in bench.executor.not_enforceable("pi")[0].reason
            assert bench.executor.in_force("pi") == BOTH
        assert (await bench.go({"pi": WIDER})).ok
        assert not bench.executor.plan({}, SPECS, bench.now_s + 1), "giving back waits as well"
        assert "not restored" in bench.executor.not_enforceable("pi")[0].reason
        assert bench.groups() == ["perphd.pi"]
    assert (await bench.go({"pi": WIDER, "sort": BOTH})).ok, (
        "at once when it is free, however long it was held"
    )
    assert bench.executor.in_force("pi") == WIDER
    assert bench.executor.in_force("sort") == BOTH


async def test_who_leaves_while_the_lock_is_held_leaves_its_group_later(bench: Bench) -> None:
    tree = bench.host.resctrl
    assert tree is not None
    bench.take_closids(but=1)
    await bench.go({"pi": BOTH, "sort": BOTH})
    with foreign_lock(bench.host.fs.root, tree.directory):
        await bench.executor.restore(["sort"])
        assert bench.resctrl.tasks(PI) == bench.threads("pi") | bench.threads("sort")
    rest = [spec for spec in SPECS if spec.name != "sort"]
    assert (await bench.executor.apply(bench.executor.plan({"pi": BOTH}, rest, 60.0))).ok
    assert bench.resctrl.tasks(PI) == bench.threads("pi")


async def test_a_round_does_not_wait_for_the_lock(tmp_path: Path) -> None:
    host = make_host()
    tree = host.resctrl
    assert tree is not None
    with Journal(tmp_path, boot_id="boot") as journal:
        executor = Executor(host.fs, discover(host.fs), journal)
        held, free = threading.Event(), threading.Event()

        def hold() -> None:
            with foreign_lock(host.fs.root, tree.directory):
                held.set()
                free.wait(10)

        holder = threading.Thread(target=hold)
        holder.start()
        assert held.wait(10)
        try:
            targets = {"pi": Settings(llc_masks=BOTH.llc_masks, cpu_weight=50)}
            applied = await executor.apply(executor.plan(targets, SPECS, 1.0))
            assert applied.ok
            assert applied.more, "the groups are still to be written"
            assert [write.knob for write in applied.written] == ["cpu_weight"], "files do not wait for groups"
            assert executor.blocked("pi") == ("llc_masks",)
            assert not executor.plan(targets, SPECS, 2.0), "another thread waits for it"
            assert executor.blocked("pi") == ("llc_masks",)
            other = {"pi": Settings(llc_masks=BOTH.llc_masks, cpu_weight=25)}
            assert (await executor.apply(executor.plan(other, SPECS, 3.0))).ok
            assert executor.in_force("pi").cpu_weight == 25, "everything else goes on"
        finally:
            free.set()
            holder.join()
        for n in range(200):
            await asyncio.sleep(0.02)
            executor.plan(other, SPECS, 4.0 + n)
            if not executor.blocked("pi"):
                break
        assert executor.in_force("pi").llc_masks == BOTH.llc_masks
        assert (await executor.restore()).complete
        executor.close()


async def test_restore_names_who_holds_the_lock_waits_once_and_can_ignore_it(
    bench: Bench, tmp_path: Path
) -> None:
    tree = bench.host.resctrl
    assert tree is not None
    await bench.go({"pi": BOTH, "sort": BOTH, "db": WIDER})
    bench.journal.close()
    waits: list[float] = []
    sleep = time.sleep
    with foreign_lock(bench.host.fs.root, tree.directory, pid=4711), pytest.MonkeyPatch.context() as patch:

        def slept(seconds: float) -> None:
            waits.append(seconds)
            sleep(seconds)

        patch.setattr("perphd.sim.kernel.faces.time.sleep", slept)
        report = restore(bench.host.fs, tmp_path, boot_id="boot")
        assert not report.complete
        assert len(report.failed) == 3
        assert sum(waits) < 2 * 2.0, "it waits for the lock once and not for each group"
        assert "pid 4711 (flock, uid 65534" in str(report)
        assert "--ignore-lock" in str(report)
        assert sorted(bench.groups()) == ["perphd.db", "perphd.pi", "perphd.sort"]
        report = restore(bench.host.fs, tmp_path, boot_id="boot", ignore_lock=True)
        assert report.complete, str(report)
        assert bench.groups() == []


# -- others change groups --------------------------------------------------------------------------------------------


async def test_a_foreign_value_blocks_both_settings_of_all_who_share_the_group(bench: Bench) -> None:
    bench.take_closids(but=1)
    targets = {"pi": BOTH, "sort": BOTH}
    await bench.go(targets)
    for mask in ("1", "f"):
        bench.host.fs.write(f"{ROOT}/perphd.pi/schemata", f"L3:0={mask}\n".encode())
        assert (await bench.go(targets)).ok
    yielded = {(c.workload, c.knob) for c in bench.executor.conflicts() if c.yielded}
    assert yielded == {(name, knob) for name in ("pi", "sort") for knob in ("llc_masks", "mba_pct")}
    assert bench.executor.blocked("pi") == bench.executor.blocked("sort") == ("llc_masks", "mba_pct")
    assert bench.executor.in_force("sort").llc_masks == ((0, 0xF), (1, 0x3)), "what the kernel has"
    assert (await bench.go({"pi": WIDER, "sort": KEEP_ALL})).ok
    assert bench.own_groups() == ["perphd.pi"], "left alone, and not removed either"
    bench.executor.forget_conflicts()
    assert (await bench.go(targets)).ok
    assert bench.executor.in_force("sort") == BOTH


KEEP_ALL = Settings()


async def test_a_group_that_others_remove_is_made_again_once(bench: Bench) -> None:
    for count in (1, 2):
        assert (await bench.go({"pi": BOTH})).ok
        assert bench.groups() == ["perphd.pi"]
        bench.host.fs.raw.rmdir(f"{ROOT}/perphd.pi")
        await bench.go({"pi": BOTH})
        counted = bench.executor.conflicts()[0]
        assert (counted.count, counted.yielded) == (count, count == 2)
    assert bench.groups() == []
    assert bench.executor.blocked("pi") == ("llc_masks", "mba_pct")
    conflict = bench.executor.conflicts()[0]
    assert "was removed by another program, which has interfered 2 times; left alone until" in str(conflict)
    assert bench.executor.in_force("pi").is_untouched()
    assert not bench.executor.plan({"pi": BOTH}, SPECS, 200.0)
    assert not bench.journal.originals
    bench.executor.forget_conflicts("pi")
    assert (await bench.go({"pi": BOTH})).ok
    assert bench.executor.in_force("pi") == BOTH


async def test_a_group_that_others_empty_is_filled_again_once(bench: Bench) -> None:
    await bench.go({"pi": BOTH})
    for count in (1, 2):
        for tid in bench.threads("pi"):
            bench.host.fs.raw.write(f"{ROOT}/tasks", f"{tid}\n".encode())
        assert (await bench.go({"pi": BOTH})).ok
        counted = bench.executor.conflicts()[0]
        assert (counted.count, counted.yielded) == (count, count == 2)
        assert (bench.resctrl.tasks(PI) == bench.threads("pi")) == (count == 1)
    conflict = bench.executor.conflicts()[0]
    assert "was emptied of 4 of its threads by another program" in str(conflict)
    assert bench.executor.blocked("pi") == ("llc_masks", "mba_pct")
    assert bench.executor.in_force("pi").is_untouched()
    bench.executor.forget_conflicts("pi")
    assert (await bench.go({"pi": BOTH})).ok
    assert bench.resctrl.tasks(PI) == bench.threads("pi")


async def test_a_remount_is_seen_at_once_and_is_nobodys_interference(bench: Bench) -> None:
    tree = bench.host.resctrl
    assert tree is not None
    await bench.go({"pi": BOTH})
    caches = bench.executor.caches
    assert not caches.look(bench.now_s)
    tree.umount()
    assert caches.look(bench.now_s), "one second is enough"
    assert "the kernel has no resctrl" in caches.missing("llc_masks", bench.now_s)
    tree.mount("cdp")
    assert caches.look(bench.now_s)
    assert not caches.look(bench.now_s)
    assert caches.missing("llc_masks", bench.now_s) == ""
    assert (await bench.go({"pi": BOTH})).ok
    assert bench.l3("pi", 0, "L3CODE") == 0x3
    tree.umount()
    tree.mount("")
    assert (await bench.go({"pi": BOTH})).ok
    assert bench.executor.in_force("pi") == BOTH
    assert bench.executor.conflicts() == ()


async def test_a_removal_that_is_refused_waits_longer_each_time(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.go({"pi": BOTH})
    tried: list[str] = []

    def rmdir(_self: object, path: str) -> None:
        tried.append(path)
        raise OSError(errno.EIO, "")

    monkeypatch.setattr(type(bench.host.fs.raw), "rmdir", rmdir)
    for second in range(60):
        await bench.executor.apply(bench.executor.plan({}, SPECS, 100.0 + second))
    assert 3 <= len(tried) <= 8
    assert "not restored: tried again after" in bench.executor.not_enforceable("pi")[0].reason
    monkeypatch.undo()
    assert (await bench.executor.apply(bench.executor.plan({}, SPECS, 1000.0))).ok
    assert bench.groups() == []


# -- monitor groups --------------------------------------------------------------------------------------------------


async def test_a_group_takes_the_monitor_groups_below_it_with_it(bench: Bench) -> None:
    await bench.go({"pi": BOTH})
    raw = bench.host.fs.raw
    raw.mkdir(f"{ROOT}/perphd.pi/mon_groups/perphd.pi")
    raw.mkdir(f"{ROOT}/perphd.pi/mon_groups/theirs")
    for tid in bench.threads("pi"):
        raw.write(f"{ROOT}/perphd.pi/mon_groups/perphd.pi/tasks", f"{tid}\n".encode())
    assert not bench.executor.plan({"pi": BOTH}, SPECS, 60.0), (
        "threads of a monitor group are in its control group"
    )
    assert bench.executor.conflicts() == ()
    assert bench.executor.caches.placement() == {"pi": Placement(PI, False)}
    assert (await bench.go({})).ok
    assert bench.groups() == []
    assert BATCH["pi"] is NARROW


async def test_with_nothing_changed_a_plan_reads_each_group_once_and_nobody_elses_threads(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.go({"pi": BOTH, "sort": WIDER})
    assert not bench.executor.plan({"pi": BOTH, "sort": WIDER}, SPECS, 60.0)
    read: list[str] = []
    real = type(bench.host.fs.raw).read

    def counted(self: object, path: str) -> bytes:
        read.append(path)
        return real(self, path)  # type: ignore[arg-type]

    monkeypatch.setattr(type(bench.host.fs.raw), "read", counted)
    assert not bench.executor.plan({"pi": BOTH, "sort": WIDER}, SPECS, 70.0)
    groups = [path for path in read if path.startswith(ROOT)]
    assert sorted(groups) == [
        f"{ROOT}/perphd.{name}/{file}" for name in ("pi", "sort") for file in ("schemata", "tasks")
    ]
    assert not [path for path in read if "/lra/db" in path and path.endswith("threads")]


# -- restores --------------------------------------------------------------------------------------------------------


async def test_a_restore_of_everything_counts_as_nobodys_interference(bench: Bench) -> None:
    for _ in range(3):
        assert (await bench.go({"pi": BOTH, "sort": BOTH})).ok
        assert bench.own_groups() == ["perphd.pi", "perphd.sort"]
        assert (await bench.executor.restore()).complete
        assert (await bench.go({})).ok
        assert bench.executor.conflicts() == ()
    bench.host.fs.raw.mkdir(f"{ROOT}/perphd.mine")  # a key that nobody has
    assert (await bench.go({"pi": BOTH})).ok
    bench.host.fs.raw.rmdir(f"{ROOT}/perphd.pi")
    await bench.go({"pi": BOTH})
    assert {conflict.what for conflict in bench.executor.conflicts()} == {"removed"}


@pytest.mark.parametrize("journal", [True, False])
async def test_restore_removes_the_group_of_a_killed_calibration(
    bench: Bench, tmp_path: Path, journal: bool
) -> None:
    assert (await bench.go({"pi": BOTH})).ok
    bench.journal.close()
    state_dir = tmp_path if journal else tmp_path / "none"
    left, tree = f"{ROOT}/rdtcal.probe", bench.host.resctrl
    assert tree is not None
    bench.host.fs.raw.mkdir(left)
    bench.host.fs.raw.mkdir(f"{ROOT}/rdtcalls")
    with foreign_lock(bench.host.fs.root, tree.directory):
        locked = restore(bench.host.fs, state_dir, boot_id="boot")
        assert left in [file.path for file in locked.failed]
        assert "perphd restore --ignore-lock" in str(locked)
    report = restore(bench.host.fs, state_dir, boot_id="boot")
    assert report.complete
    assert left in [file.path for file in report.restored]
    assert "rdtcal.probe" not in bench.groups()
    assert "rdtcalls" in bench.groups(), "another program's"


async def test_restore_leaves_a_calibration_that_runs(bench: Bench, tmp_path: Path) -> None:
    bench.host.fs.raw.mkdir(f"{ROOT}/rdtcal.probe")
    bench.host.fs.raw.write(f"{ROOT}/rdtcal.probe/tasks", f"{min(bench.threads('pi'))}\n".encode())
    assert restore(bench.host.fs, tmp_path / "none", boot_id="boot").complete
    assert bench.groups() == ["rdtcal.probe"]
    assert CALIBRATION_PREFIX == rdt.calibrate.PREFIX


async def test_groups_of_others_count_where_nothing_is_monitored(
    bench_of: Callable[[str], Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = sim_rdt.rdt_machine
    monkeypatch.setattr(sim_rdt, "rdt_machine", lambda machine: replace(whole(machine), monitoring=None))
    bench = bench_of("")
    assert bench.resctrl.info.monitoring is None
    bench.take_closids(but=1)
    applied = await bench.go({"pi": BOTH, "sort": BOTH})
    assert applied.ok, applied
    assert bench.own_groups() == ["perphd.pi"]
    assert "too few CLOSIDs" in bench.executor.limited("sort")[0].reason


async def test_a_shared_mask_has_as_many_ways_as_this_machine_demands(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As on Haswell servers: at least two bits in a mask."""
    whole = sim_rdt.rdt_machine

    def haswell(machine: Machine) -> RdtMachine:
        found = whole(machine)
        return replace(found, caches=tuple(replace(cache, min_cbm_bits=2) for cache in found.caches))

    monkeypatch.setattr(sim_rdt, "rdt_machine", haswell)
    with Journal(tmp_path, boot_id="boot") as journal:
        bench = Bench(make_host(), journal)
        bench.take_closids(but=1)
        targets = {"pi": Settings(llc_masks=((0, 0x3),)), "sort": Settings(llc_masks=((0, 0x6),))}
        applied = await bench.go(targets)
        assert applied.ok, applied.failed
        assert bench.l3("pi") == 0x3
