"""Monitor groups on a simulated host's resctrl: budget of ids, turns, limbo, strangers, domains and locks."""

from __future__ import annotations

import asyncio
import errno
import itertools
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import rdt
from perphd.domain.allocation import Settings
from perphd.domain.cpuset import CpuSet
from perphd.domain.reading import Unavailable, available
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.host.cgroup import discover
from perphd.host.resctrl_counters import CountedGroups
from perphd.isolation import Executor, Journal, restore
from perphd.isolation import monitor_groups as module
from perphd.isolation.cache_plan import Placement
from perphd.isolation.counting import MOVED, Counting
from perphd.isolation.monitor_groups import Asked, MonitorGroups
from perphd.monitor.cache_use import CacheReading, CacheUse
from perphd.sim.host import SimHost
from perphd.sim.kernel.proc import foreign_lock
from perphd.sim.kernel.resctrl import MACHINES, MOUNT_POINT, ResctrlTree
from perphd.sim.kernel.resctrl.faults import Fault, Operation
from perphd.sim.machine import Machine
from perphd.sim.rdt import CgroupThreads
from perphd.sim.workload import Batch, Lra, Workload

ROOT = MOUNT_POINT
DEFAULT = rdt.DEFAULT_GROUP


@dataclass
class Bench:
    """A simulated host with two LRAs and some batch jobs, and monitor groups on it."""

    host: SimHost
    journal: Journal
    names: tuple[str, ...]
    now_s: float = 0.0
    placement: dict[str, Placement] = field(default_factory=dict)
    usage: dict[str, float] = field(default_factory=dict)
    groups: MonitorGroups = field(init=False)
    use: CacheUse = field(default_factory=CacheUse)

    def __post_init__(self) -> None:
        self.groups = MonitorGroups(self.host.fs, discover(self.host.fs), self.journal)

    def spec(self, name: str) -> WorkloadSpec:
        return WorkloadSpec(name, Kind.LRA if name.startswith("db") else Kind.BATCH, f"/t/{name}")

    def asked(self, names: tuple[str, ...] | None = None, fresh: bool = False) -> list[Asked]:
        chosen = self.names if names is None else names
        return [Asked(self.spec(name), self.usage.get(name, 0.0), fresh) for name in chosen]

    def look(
        self, after_s: float = 1.0, names: tuple[str, ...] | None = None, fresh: bool = False
    ) -> CountedGroups:
        self.now_s += after_s
        self.host.advance(self.now_s)
        return self.groups.look(self.asked(names, fresh), self.placement, self.now_s)

    def read(self, counted: CountedGroups, after_s: float = 1.0) -> Mapping[str, CacheReading]:
        self.now_s += after_s
        self.host.advance(self.now_s)
        return self.use.read(self.now_s, counted)

    @property
    def resctrl(self) -> rdt.Resctrl:
        return rdt.Resctrl.open(self.host.fs.raw, ROOT)

    def monitors(self) -> list[str]:
        return [group.monitor for group in self.resctrl.list_groups() if group.monitor]

    def threads(self, name: str) -> frozenset[int]:
        return frozenset(map(int, self.host.fs.read(f"/sys/fs/cgroup/t/{name}/cgroup.threads").split()))

    @property
    def tree(self) -> ResctrlTree:
        assert self.host.resctrl is not None
        return self.host.resctrl


def host_with(batch: int, machine: Machine, resctrl: bool = True) -> tuple[SimHost, tuple[str, ...]]:
    works: list[Workload] = [Lra(name, f"/t/{name}", rate_per_s=100) for name in ("db1", "db2")]
    works += [Batch(f"b{n}", f"/t/b{n}", threads=3) for n in range(batch)]
    return SimHost(works, machine=machine, resctrl=resctrl), tuple(work.name for work in works)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    host, names = host_with(2, Machine(2, 4))
    with Journal(tmp_path / "state", boot_id="boot") as journal:
        yield Bench(host, journal, names)


@pytest.fixture
def crowded(tmp_path: Path) -> Iterator[Bench]:
    """Ten workloads and sixteen RMIDs, of which seven are kept for control groups: six can be had."""
    host, names = host_with(8, Machine(1, 4))
    with Journal(tmp_path / "state", boot_id="boot") as journal:
        made = Bench(host, journal, names)
        made.usage = {f"b{n}": 8.0 - n for n in range(8)}
        yield made


def reason(reading: object) -> str:
    assert isinstance(reading, Unavailable)
    return reading.reason


def test_every_workload_has_a_group_with_all_its_threads_and_it_is_on_record_before(bench: Bench) -> None:
    counted = bench.look()
    assert set(counted.counters) == set(bench.names)
    for name in bench.names:
        group = rdt.GroupRef("", f"perphd.{name}")
        assert counted.counters[name].group == group
        assert bench.resctrl.tasks(group) == bench.threads(name)
        entry = bench.journal.originals[f"{ROOT}/mon_groups/perphd.{name}"]
        assert (entry.workload, entry.knob) == (name, "resctrl_monitoring")
    assert bench.resctrl.schemata() == bench.resctrl.info.default(), "nobody's share has changed"
    bench.read(counted)
    readings = bench.read(counted)
    for name in bench.names:
        assert available(readings[name].occupancy_bytes)
        assert available(readings[name].bandwidth_bytes_per_s)
        assert [use.domain for use in readings[name].domains] == [0, 1]


def test_threads_that_come_later_are_followed_and_the_interval_has_no_rate(bench: Bench) -> None:
    counted = bench.look()
    bench.read(counted)
    process = next(p for p in bench.host.cgroups.root.all_processes() if p.comm == "b0")
    process.tids = (*process.tids, *range(90_000, 90_040))
    assert bench.look(after_s=3.0).counters["b0"] == counted.counters["b0"], "batch is not listed that often"
    later = bench.look(after_s=8.0)
    assert (
        bench.resctrl.tasks(rdt.GroupRef("", "perphd.b0"))
        == bench.threads("b0")
        >= set(range(90_000, 90_040))
    )
    assert later.counters["b0"] != counted.counters["b0"]
    assert later.counters["b1"] == counted.counters["b1"]
    readings = bench.read(later)
    assert reason(readings["b0"].bandwidth_bytes_per_s) == "domain 0: nothing to compare with yet"
    assert available(readings["b0"].occupancy_bytes)
    assert available(readings["b1"].bandwidth_bytes_per_s)


def test_who_is_not_asked_for_any_more_loses_its_group_and_foreign_groups_stay(bench: Bench) -> None:
    bench.look()
    bench.host.fs.raw.mkdir(f"{ROOT}/mon_groups/theirs")
    bench.host.fs.raw.mkdir(f"{ROOT}/mon_groups/perphd.not-on-record")
    left = bench.look(names=("db1",))
    assert set(left.counters) == {"db1"}
    assert sorted(bench.monitors()) == ["perphd.db1", "perphd.not-on-record", "theirs"]
    assert list(bench.journal.originals) == [f"{ROOT}/mon_groups/perphd.db1"]
    nobody = bench.look(names=())
    assert sorted(bench.monitors()) == ["perphd.not-on-record", "theirs"]
    assert nobody.counters == {}
    assert not bench.journal.originals
    assert bench.look(names=()).otherwise is module.NOT_ASKED


def test_threads_in_a_foreign_group_are_left_there_and_the_workload_is_not_counted(bench: Bench) -> None:
    theirs = f"{ROOT}/mon_groups/theirs"
    bench.host.fs.raw.mkdir(theirs)
    for tid in bench.threads("b0"):
        bench.host.fs.write(f"{theirs}/tasks", str(tid).encode())
    counted = bench.look()
    assert "b0" not in counted.counters
    assert counted.missing["b0"] is module.FOREIGN
    assert bench.resctrl.tasks(rdt.GroupRef("", "theirs")) == bench.threads("b0")
    assert {"db1", "db2", "b1"} == set(counted.counters)


def test_a_control_group_of_its_own_counts_it_and_a_shared_one_gets_a_monitor_group(bench: Bench) -> None:
    groups = bench.resctrl.groups("perphd")
    for key in ("own", "both"):
        groups.make(key)
    own, both = groups.control("own"), groups.control("both")
    bench.look()
    groups.fill(own, bench.threads("db1"))
    groups.fill(both, bench.threads("b0") | bench.threads("b1"))
    bench.placement = {"db1": Placement(own, False), "b0": Placement(both, True), "b1": Placement(both, True)}
    counted = bench.look()
    assert counted.counters["db1"].group == own
    assert counted.counters["b0"].group == rdt.GroupRef("perphd.both", "perphd.b0")
    assert counted.counters["db2"].group == rdt.GroupRef("", "perphd.db2")
    assert bench.resctrl.tasks(rdt.GroupRef("perphd.both", "perphd.b0")) == bench.threads("b0")
    assert bench.resctrl.tasks(both) == bench.threads("b0") | bench.threads("b1")
    assert sorted(bench.monitors()) == ["perphd.b0", "perphd.b1", "perphd.db2"]


def test_threads_are_never_moved_from_one_control_group_to_another(bench: Bench) -> None:
    """The placement may be a moment old: what a control group has taken stays in it."""
    groups = bench.resctrl.groups("perphd")
    groups.make("batch")
    groups.fill(groups.control("batch"), bench.threads("b0"))
    counted = bench.look()
    assert bench.resctrl.tasks(groups.control("batch")) == bench.threads("b0")
    assert counted.missing["b0"] is module.ELSEWHERE


def test_a_workload_in_another_control_group_is_not_counted_until_the_next_look(bench: Bench) -> None:
    async def scene() -> None:
        counting = Counting(bench.groups, lambda: bench.placement, in_thread=False, background=False)
        bench.now_s += 1.0
        await counting.follow(bench.asked(), bench.now_s)
        bench.read(counting.counted)
        readings = bench.read(counting.counted)
        assert available(readings["b0"].bandwidth_bytes_per_s)
        groups = bench.resctrl.groups("perphd")
        groups.make("b0")
        bench.placement = {"b0": Placement(groups.control("b0"), False)}
        groups.fill(groups.control("b0"), bench.threads("b0"))
        assert "b0" not in bench.read(counting.counted)
        assert counting.counted.why_not("b0") is MOVED
        await counting.follow(bench.asked(), bench.now_s)
        first = bench.read(counting.counted)["b0"]
        assert counting.counted.counters["b0"].group == groups.control("b0")
        assert not available(first.bandwidth_bytes_per_s)
        assert available(bench.read(counting.counted)["b0"].bandwidth_bytes_per_s)

    asyncio.run(scene())


async def counted(counting: Counting) -> None:
    """Until a look in the background has found something to count."""
    for _ in range(6000):
        if counting.counted.counters:
            return
        await asyncio.sleep(0.01)


def test_a_look_in_the_background_keeps_nobody_waiting(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    go, begun = threading.Event(), threading.Event()
    look = bench.groups.look

    def slow(*args: object) -> CountedGroups:
        begun.set()
        assert go.wait(60)
        return look(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(bench.groups, "look", slow)

    async def scene() -> None:
        counting = Counting(bench.groups, lambda: bench.placement, in_thread=True, background=True)
        await counting.follow(bench.asked(), 1.0)
        await asyncio.to_thread(begun.wait, 60)
        await counting.follow(bench.asked(fresh=True), 3.0)  # the first one is under way still: nothing waits
        assert counting.counted.counters == {}
        go.set()
        await counted(counting)
        assert set(counting.counted.counters) == set(bench.names)
        counting.close()

    asyncio.run(scene())


def test_who_gives_back_waits_for_one_workload_of_a_look_and_the_rest_is_looked_at_later(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, begun, looked_at = threading.Event(), threading.Event(), []
    count = bench.groups._count

    def slow(*args: object) -> object:
        looked_at.append(args[1])
        begun.set()
        assert go.wait(60)
        return count(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(bench.groups, "_count", slow)

    async def scene() -> None:
        counting = Counting(bench.groups, lambda: bench.placement, in_thread=True, background=True)
        await counting.follow(bench.asked(), 1.0)
        await asyncio.to_thread(begun.wait, 60)
        waiting = asyncio.create_task(counting.idle())
        await asyncio.sleep(0)
        go.set()
        await waiting
        assert len(looked_at) == 1
        assert counting.counted.counters == {}, "half a look says nothing of the other half"
        await counting.follow(bench.asked(), 2.0)
        await counted(counting)
        assert set(counting.counted.counters) == set(bench.names)
        counting.close()

    asyncio.run(scene())


def test_where_ids_are_short_lras_come_first_and_the_rest_takes_turns(crowded: Bench) -> None:
    counted = crowded.look()
    assert len(counted.counters) == 6
    assert {"db1", "db2", "b0", "b1", "b2"} <= set(counted.counters), "LRAs, then the largest users"
    assert counted.in_turns == {f"b{n}" for n in range(3, 8)}
    assert counted.missing["b7"] is module.WAITS_FOR_TURN
    assert "measured in rotation" in counted.notes[0]
    had = set(counted.counters)
    for _ in range(150):
        counted = crowded.look()
        assert {"db1", "db2", "b0", "b1", "b2"} <= set(counted.counters), "these keep theirs"
        assert len(crowded.monitors()) <= 6
        had |= set(counted.counters)
    assert had == set(crowded.names), "everybody had a turn"


def test_control_groups_can_still_be_made_beside_monitor_groups(crowded: Bench) -> None:
    crowded.look()
    groups = crowded.resctrl.groups("perphd")
    for n in range(7):
        groups.make(f"c{n}")
    assert len(crowded.resctrl.list_groups()) == 1 + 7 + 6


def test_an_id_in_limbo_is_asked_for_again_with_growing_pauses(bench: Bench) -> None:
    fault = Fault(Operation.MKDIR, "mon_groups/perphd.b1", errno.EBUSY, times=4)
    bench.tree.faults.add(fault)
    tried = []
    counted = CountedGroups()
    for _ in range(40):
        before = fault.times
        counted = bench.look()
        if fault.times != before:
            tried.append(bench.now_s)
            assert counted.missing["b1"] is module.IN_LIMBO
            assert "limbo" in counted.notes[0]
        assert {"db1", "db2", "b0"} <= set(counted.counters)
    assert counted.counters["b1"].group == rdt.GroupRef("", "perphd.b1")
    pauses = [later - earlier for earlier, later in itertools.pairwise(tried)]
    assert len(pauses) == 3
    assert pauses == sorted(pauses)
    assert pauses[-1] >= 4.0
    assert counted.notes == ()


def test_a_full_machine_is_left_alone_for_a_minute(bench: Bench) -> None:
    fault = Fault(Operation.MKDIR, "mon_groups/perphd.b*", errno.ENOSPC, times=1)
    bench.tree.faults.add(fault)
    counted = bench.look()
    assert {"db1", "db2"} <= set(counted.counters)
    assert len(counted.counters) < len(bench.names)
    for _ in range(12):
        assert len(bench.look(after_s=5.0).counters) <= len(bench.names)
    assert set(bench.look(after_s=5.0).counters) == set(bench.names)


def test_a_foreign_lock_costs_one_look_and_the_groups_go_on_counting(bench: Bench) -> None:
    counted = bench.look()
    with foreign_lock(bench.host.fs.root, bench.tree.directory):
        held = bench.look(after_s=12.0)
    assert held.counters == counted.counters
    assert held.notes
    assert bench.groups.next_s > bench.now_s
    assert bench.look(after_s=12.0).notes == ()


def test_a_socket_that_goes_and_comes_back_is_left_out_and_counted_again(bench: Bench) -> None:
    counted = bench.look()
    bench.read(counted)
    everything = bench.host.machine.online
    bench.host.set_online(everything - CpuSet.parse("4-7"))
    counted = bench.look(after_s=6.0)
    bench.read(counted)
    one = bench.read(counted)["db1"]
    assert [use.domain for use in one.domains] == [0]
    assert available(one.bandwidth_bytes_per_s)
    bench.host.set_online(everything)
    counted = bench.look(after_s=6.0)
    bench.read(counted)
    two = bench.read(counted)["db1"]
    assert [use.domain for use in two.domains] == [0, 1]
    assert available(two.bandwidth_bytes_per_s)


def test_a_remount_and_a_host_without_resctrl(bench: Bench) -> None:
    bench.look()
    bench.use.close()
    bench.tree.umount()
    gone = bench.look()
    assert gone.resctrl is None
    assert ROOT in gone.otherwise.reason
    bench.tree.mount("")
    counted = bench.look(after_s=module.LOOK_AGAIN_S)
    assert set(counted.counters) == set(bench.names)
    assert len(bench.monitors()) == len(bench.names)


async def test_resctrl_mounted_late_is_counted_in_the_round_that_sees_it(bench: Bench) -> None:
    bench.tree.umount()
    executor = Executor(bench.host.fs, discover(bench.host.fs), bench.journal, in_thread=False)
    assert not executor.follow_mount(1.0)
    await executor.follow_counted(bench.asked(), 1.0)
    assert ROOT in executor.counted.otherwise.reason
    bench.tree.mount("")
    executor.caches.missing("llc_masks", 2.0)  # whoever sees it first does not keep it to himself
    assert executor.follow_mount(2.0)
    assert not executor.follow_mount(2.0)
    await executor.follow_counted(bench.asked(), 2.0)
    assert set(executor.counted.counters) == set(bench.names)
    executor.close()


KINDS = ("four-closids", "monitoring-only", "cdp", "mba-mbps", "amd", "snc", "captured", "captured-6.12")


@pytest.mark.parametrize("machine", KINDS)
def test_machines_of_all_kinds(tmp_path: Path, machine: str) -> None:
    """Monitoring without allocation is used as well; events that a machine lacks are Unavailable."""
    shape = MACHINES[machine]
    host, names = host_with(1, Machine(1, max(2, len(shape.cpus))), resctrl=False)
    tree = ResctrlTree(shape, host.fs.root.make(MOUNT_POINT), CgroupThreads(host.cgroups))
    tree.mount(shape.options)
    with Journal(tmp_path / "state", boot_id="boot") as journal:
        bench = Bench(host, journal, names)
        counted = bench.look()
        assert set(counted.counters) == set(names)
        bench.read(counted)
        reading = bench.read(counted)["db1"]
        assert shape.monitoring is not None
        assert available(reading.occupancy_bytes) is ("llc_occupancy" in shape.monitoring.events)
        assert available(reading.bandwidth_bytes_per_s) is ("mbm_total_bytes" in shape.monitoring.events)


def test_a_machine_without_monitoring_says_so(tmp_path: Path) -> None:
    shape = MACHINES["mb-only"]
    host, names = host_with(1, Machine(2, 4), resctrl=False)
    ResctrlTree(shape, host.fs.root.make(MOUNT_POINT), CgroupThreads(host.cgroups)).mount(shape.options)
    with Journal(tmp_path / "state", boot_id="boot") as journal:
        counted = Bench(host, journal, names).look()
    assert counted.counters == {}
    assert "CMT" in counted.otherwise.reason


async def test_restore_removes_monitor_groups_inside_control_groups_and_outside(tmp_path: Path) -> None:
    host, names = host_with(2, Machine(1, 4))
    with Journal(tmp_path, boot_id="boot") as journal:
        executor = Executor(host.fs, discover(host.fs), journal, in_thread=False)
        bench = Bench(host, journal, names)
        specs = [bench.spec(name) for name in names]
        narrow = Settings(llc_masks=((0, 0x3),))
        theirs = [f"other{number}" for number in range(bench.resctrl.info.usable_closids - 2)]
        for name in theirs:  # one CLOSID is left: both share a control group
            host.fs.raw.mkdir(f"{ROOT}/{name}")
        assert (await executor.apply(executor.plan({"b0": narrow, "b1": narrow}, specs, 1.0))).ok
        await executor.follow_counted(bench.asked(), 1.0)
        inside = f"{ROOT}/perphd.b0/mon_groups/perphd.b1"
        assert {inside, f"{ROOT}/mon_groups/perphd.db1", f"{ROOT}/perphd.b0"} <= set(journal.originals)
        executor.close()
    report = restore(host.fs, tmp_path, boot_id="boot")
    assert not report.failed
    assert [str(group) for group in bench.resctrl.list_groups()] == ["the default group", *theirs]


async def test_a_workload_that_leaves_loses_its_group_and_the_others_keep_theirs(bench: Bench) -> None:
    executor = Executor(bench.host.fs, discover(bench.host.fs), bench.journal, in_thread=False)
    await executor.follow_counted(bench.asked(), 1.0)
    report = await executor.restore(("b0",))
    assert [file.path for file in report.restored] == [f"{ROOT}/mon_groups/perphd.b0"]
    assert sorted(bench.monitors()) == ["perphd.b1", "perphd.db1", "perphd.db2"]
    everything = await executor.restore()
    assert not everything.failed
    assert bench.monitors() == []
    executor.close()
