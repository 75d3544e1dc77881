"""Cache ways and memory bandwidth through resctrl groups of perphd's own, on a simulated host's resctrl."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import rdt
from perphd.domain.allocation import KEEP, Settings
from perphd.domain.errors import KernelError
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.host.cgroup import discover
from perphd.host.resctrl import as_kernel_error, open_groups, why_not
from perphd.isolation import Applied, Executor, Journal, restore
from perphd.isolation.cache_plan import Placement
from perphd.isolation.journal_format import Original
from perphd.sim.host import SimHost
from perphd.sim.machine import Machine
from perphd.sim.workload import Batch, Lra, Workload
from tests.unit.isolation_kernel import FakeKernel

ROOT = "/sys/fs/resctrl"
SPECS = [
    WorkloadSpec("db", Kind.LRA, "/lra/db"),
    WorkloadSpec("pi", Kind.BATCH, "/batch/pi"),
    WorkloadSpec("sort", Kind.BATCH, "/batch/sort"),
]
NARROW = Settings(llc_masks=((0, 0x3),), mba_pct=((0, 40),))
BATCH = {"pi": NARROW, "sort": NARROW}


@dataclass
class Bench:
    host: SimHost
    journal: Journal
    now_s: float = 0.0
    audit: list[tuple[str, str]] = field(default_factory=list)
    executor: Executor = field(init=False)

    def __post_init__(self) -> None:
        self.again()

    def again(self) -> None:
        self.executor = Executor(
            self.host.fs,
            discover(self.host.fs),
            self.journal,
            in_thread=False,
            on_write=lambda write, outcome: self.audit.append((write.path, outcome)),
        )

    @property
    def resctrl(self) -> rdt.Resctrl:
        return rdt.Resctrl.open(self.host.fs.raw, ROOT, lock_timeout_s=None)

    def groups(self) -> list[str]:
        return [group.control for group in self.resctrl.list_groups() if not group.is_default]

    def threads(self, name: str) -> frozenset[int]:
        spec = next(spec for spec in SPECS if spec.name == name)
        text = self.host.fs.read(f"/sys/fs/cgroup{spec.cgroup}/cgroup.threads").decode()
        return frozenset(map(int, text.split()))

    def take_closids(self, but: int) -> None:
        """Another program takes all CLOSIDs but these."""
        for number in range(self.resctrl.info.usable_closids - 1 - but):
            self.host.fs.raw.mkdir(f"{ROOT}/other{number}")

    def own_groups(self) -> list[str]:
        return [name for name in self.groups() if name.startswith("perphd.")]

    def l3(self, name: str, domain: int = 0, cache: str = "L3") -> int | None:
        return self.resctrl.schemata(rdt.GroupRef(f"perphd.{name}")).get(cache, domain)

    async def go(self, targets: dict[str, Settings]) -> Applied:
        self.now_s += 10.0
        return await self.executor.apply(self.executor.plan(targets, SPECS, self.now_s))


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


async def test_every_workload_has_a_group_of_its_own_while_closids_suffice(bench: Bench) -> None:
    applied = await bench.go({**BATCH, "db": Settings(llc_masks=((0, 0xF0),))})
    assert applied.ok, applied
    assert bench.groups() == ["perphd.db", "perphd.pi", "perphd.sort"]
    assert all(
        bench.resctrl.tasks(rdt.GroupRef(f"perphd.{n}")) == bench.threads(n) for n in ("db", "pi", "sort")
    )
    assert not any(bench.executor.limited(name) for name in ("db", "pi", "sort"))


async def test_where_closids_are_short_those_that_are_to_have_the_same_share_a_group(bench: Bench) -> None:
    bench.take_closids(but=1)
    before = bench.host.fs.read(f"{ROOT}/schemata")
    applied = await bench.go(BATCH)
    assert applied.ok, applied
    assert bench.own_groups() == ["perphd.pi"]
    reason = bench.executor.limited("sort")[0].reason
    assert reason == "too few CLOSIDs (8 with the default group's): it shares a resctrl group with pi"
    group = rdt.GroupRef("perphd.pi")
    assert bench.resctrl.schemata(group).get("L3", 0) == 0x3
    assert bench.resctrl.schemata(group).get("MB", 0) == 40
    assert bench.resctrl.tasks(group) == bench.threads("pi") | bench.threads("sort")
    assert not bench.executor.plan(BATCH, SPECS, 60.0), "nothing is left to do"
    assert bench.executor.in_force("pi") == bench.executor.in_force("sort") == NARROW
    assert bench.executor.in_force("db").llc_masks is KEEP
    assert [entry.path for entry in bench.journal.originals.values()] == [f"{ROOT}/perphd.pi"]
    bench.host.fs.raw.rmdir(f"{ROOT}/other0")
    assert (await bench.go(BATCH)).ok
    assert bench.own_groups() == ["perphd.pi", "perphd.sort"], "there are enough again"
    assert not bench.executor.limited("sort")
    assert (await bench.go({})).ok
    assert bench.own_groups() == []
    assert bench.host.fs.read(f"{ROOT}/schemata") == before
    assert not bench.journal.originals
    assert bench.executor.in_force("pi").is_untouched()


async def test_batch_that_must_share_gets_the_strictest_of_its_values_and_applications_go_first(
    bench: Bench,
) -> None:
    bench.take_closids(but=2)
    wider, app = Settings(llc_masks=((0, 0xF),), mba_pct=((0, 20),)), Settings(llc_masks=((0, 0xF0),))
    assert (await bench.go({"pi": NARROW, "sort": wider, "db": app})).ok
    assert bench.own_groups() == ["perphd.db", "perphd.pi"]
    assert bench.executor.in_force("sort") == Settings(llc_masks=((0, 0x3),), mba_pct=((0, 20),))
    assert "shares a resctrl group with pi, which has L3:0=3 MB:0=20 instead of" in str(
        bench.executor.limited("sort")[0].reason
    )
    assert bench.executor.in_force("db") == app
    bench.host.fs.raw.rmdir(f"{ROOT}/other0")
    assert (await bench.go({"pi": NARROW, "sort": wider, "db": app})).ok
    assert bench.executor.in_force("sort") == wider
    assert bench.executor.in_force("pi") == NARROW
    assert (await bench.go({"sort": wider})).ok
    assert bench.own_groups() == ["perphd.sort"]
    assert bench.threads("pi") <= bench.resctrl.tasks(rdt.DEFAULT_GROUP)


async def test_who_leaves_a_shared_group_falls_to_the_default_group(bench: Bench) -> None:
    bench.take_closids(but=1)
    await bench.go(BATCH)
    assert (await bench.go({"sort": NARROW})).ok
    assert bench.own_groups() == ["perphd.pi"]
    assert bench.resctrl.tasks(rdt.GroupRef("perphd.pi")) == bench.threads("sort")
    assert bench.threads("pi") <= bench.resctrl.tasks(rdt.DEFAULT_GROUP)
    assert bench.executor.in_force("pi").is_untouched()


async def test_a_changed_mask_is_one_write_and_moves_nobody(bench: Bench) -> None:
    bench.take_closids(but=1)
    await bench.go(BATCH)
    other = Settings(llc_masks=((0, 0x7),), mba_pct=((0, 40),))
    changes = bench.executor.plan({"pi": other, "sort": other}, SPECS, 20.0)
    assert [write.path for write in changes.writes] == [f"{ROOT}/perphd.pi/schemata"]
    assert (await bench.executor.apply(changes)).ok
    assert bench.executor.plan({"pi": other, "sort": other}, SPECS, 30.0).writes == ()


async def test_restore_without_the_daemon_removes_the_groups(bench: Bench, tmp_path: Path) -> None:
    await bench.go({**BATCH, "db": Settings(llc_masks=((0, 0xF0),), cpu_weight=50)})
    assert bench.groups() == ["perphd.db", "perphd.pi", "perphd.sort"]
    bench.journal.close()
    report = restore(bench.host.fs, tmp_path, boot_id="boot")
    assert report.complete, str(report)
    assert {file.path for file in report.restored} >= {f"{ROOT}/perphd.db", f"{ROOT}/perphd.pi"}
    assert bench.groups() == []
    everybody = bench.threads("db") | bench.threads("pi") | bench.threads("sort")
    assert everybody <= bench.resctrl.tasks(rdt.DEFAULT_GROUP)
    assert not restore(bench.host.fs, tmp_path, boot_id="boot")


async def test_one_workload_is_given_back_and_the_others_keep_their_group(bench: Bench) -> None:
    bench.take_closids(but=1)
    await bench.go(BATCH)
    assert (await bench.executor.restore(["pi"])).complete
    assert bench.resctrl.tasks(rdt.GroupRef("perphd.pi")) == bench.threads("sort")
    assert (await bench.executor.restore(["sort"])).complete
    assert bench.own_groups() == []
    assert not bench.journal.originals


async def test_a_restarted_daemon_continues_with_the_groups_that_it_finds(bench: Bench) -> None:
    await bench.go(BATCH)
    bench.again()
    assert not bench.executor.plan(BATCH, SPECS, 30.0)
    assert bench.executor.in_force("pi") == NARROW
    bench.again()
    assert (await bench.go({})).ok
    assert bench.groups() == []


async def test_groups_of_others_are_neither_changed_nor_emptied(bench: Bench) -> None:
    raw = bench.host.fs.raw
    raw.mkdir(f"{ROOT}/theirs")
    raw.mkdir(f"{ROOT}/perphd-lookalike")
    stolen = min(bench.threads("pi"))
    raw.write(f"{ROOT}/theirs/tasks", f"{stolen}\n".encode())
    assert (await bench.go(BATCH)).ok
    assert bench.resctrl.tasks(rdt.GroupRef("theirs")) == {stolen}
    assert not bench.executor.plan(BATCH, SPECS, 20.0), "they are not asked for again and again"
    assert "1 of its threads are in groups of another program" in bench.executor.limited("pi")[0].reason
    await bench.executor.restore()
    assert bench.groups() == ["perphd-lookalike", "theirs"]
    assert bench.resctrl.tasks(rdt.GroupRef("theirs")) == {stolen}
    await bench.executor.restore(["pi", "sort"])
    assert not bench.executor._caches._jobs.foreign, "of workloads that leave nothing is remembered"
    assert bench.executor.in_force("pi").is_untouched()


async def test_somebody_elses_schemata_is_set_again_once_and_then_yielded(bench: Bench) -> None:
    await bench.go(BATCH)
    for mask in ("1", "f"):
        bench.host.fs.write(f"{ROOT}/perphd.pi/schemata", f"L3:0={mask}\n".encode())
        assert (await bench.go(BATCH)).ok
    assert bench.resctrl.schemata(rdt.GroupRef("perphd.pi")).get("L3", 0) == 0xF
    assert bench.executor.conflicts()[0].yielded
    assert "left alone until" in bench.executor.not_enforceable("pi")[0].reason
    bench.executor.forget_conflicts()
    assert (await bench.go(BATCH)).ok
    assert bench.resctrl.schemata(rdt.GroupRef("perphd.pi")).get("L3", 0) == 0x3


async def test_what_the_machine_would_not_take_is_told_and_not_tried(bench: Bench) -> None:
    assert (
        await bench.go({"pi": Settings(llc_masks=((0, 1 << 30),)), "sort": Settings(mba_pct=((7, 50),))})
    ).ok
    assert "is outside of" in bench.executor.not_enforceable("pi")[0].reason
    assert "no domain 7" in bench.executor.not_enforceable("sort")[0].reason
    assert bench.groups() == []


async def test_without_a_closid_left_the_reason_says_who_has_them(bench: Bench) -> None:
    bench.take_closids(but=0)
    targets = {**BATCH, "db": Settings(cpu_weight=50)}
    applied = await bench.go(targets)
    assert applied.failed is not None
    assert "CLOSIDs are taken" in str(applied.failed)
    assert [write.knob for write in applied.written] == ["cpu_weight"], "the rest stays in force"
    assert not bench.groups().count("perphd.pi")
    assert all(entry.knob != "llc_masks" for entry in bench.journal.originals.values())
    for _ in range(2):
        assert not (await bench.go(targets)).ok
    assert not bench.executor.plan(targets, SPECS, bench.now_s + 1), "not tried every time"
    assert "CLOSIDs are taken" in bench.executor.not_enforceable("sort")[0].reason
    assert all(name.startswith("other") for name in bench.groups())
    bench.host.fs.raw.rmdir(f"{ROOT}/other0")
    assert (await bench.go(targets)).ok, "tried again later"
    assert bench.groups().count("perphd.pi")


async def test_a_group_that_ends_in_an_unexpected_error_is_undone_and_told(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(*_: object) -> None:
        raise RuntimeError("out of the blue")

    monkeypatch.setattr(rdt.Groups, "fill", fill)
    applied = await bench.go({**BATCH, "db": Settings(cpu_weight=50)})
    assert "RuntimeError: out of the blue" in str(applied.failed)
    assert bench.groups() == []
    assert [write.knob for write in applied.kept] == ["cpu_weight"]


async def test_a_group_that_fails_midway_is_undone(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = bench.host.fs.raw
    real = type(raw).write

    def write(self: object, path: str, data: bytes) -> None:
        if path.endswith("perphd.pi/tasks"):
            raise OSError(errno.EIO, "")
        real(raw, path, data)

    monkeypatch.setattr(type(raw), "write", write)
    applied = await bench.go(BATCH)
    assert applied.failed is not None
    assert [write.path for write in applied.undone] == [f"{ROOT}/perphd.pi/schemata"]
    assert bench.groups() == ["perphd.sort"], "one that fails does not take the others back"
    assert bench.executor.blocked("pi") == ("llc_masks", "mba_pct")
    assert bench.executor.blocked("sort") == ()
    assert bench.executor.in_force("sort") == NARROW
    assert [entry.workload for entry in bench.journal.originals.values()] == ["sort"]


async def test_resctrl_unmounted_under_us_is_a_reason_and_its_groups_are_gone(
    bench: Bench, tmp_path: Path
) -> None:
    await bench.go(BATCH)
    assert bench.host.resctrl is not None
    bench.host.resctrl.umount()
    assert not bench.executor.plan(BATCH, SPECS, 50.0)
    assert bench.executor.not_enforceable("pi")
    bench.journal.close()
    report = restore(bench.host.fs, tmp_path, boot_id="boot")
    assert report.complete, str(report)
    assert len(report.gone) == 2


async def test_a_vanished_workload_leaves_no_group_behind(bench: Bench) -> None:
    await bench.go({"pi": NARROW})
    gone = [spec for spec in SPECS if spec.name != "pi"]
    assert (await bench.executor.apply(bench.executor.plan({}, gone, 40.0))).ok
    assert bench.groups() == []


def test_a_host_without_resctrl_says_why(tmp_path: Path) -> None:
    host = SimHost([Batch("pi", "/batch/pi")], machine=Machine(1, 2))
    with Journal(tmp_path, boot_id="boot") as journal:
        executor = Executor(host.fs, discover(host.fs), journal, in_thread=False)
        missing = {left.knob: left.reason for left in executor.enforceable(SPECS[1])[1]}
        assert "the kernel has no resctrl" in missing["llc_masks"]
        executor.plan({"pi": NARROW}, SPECS, 0.0)
        assert [left.knob for left in executor.not_enforceable("pi")] == ["llc_masks", "mba_pct"]
    assert open_groups(FakeKernel()) == "these kernel files have no resctrl"


def test_the_bench_machine_can_do_both(bench: Bench) -> None:
    assert {"llc_masks", "mba_pct"} <= bench.executor.enforceable(SPECS[1])[0]
    groups = open_groups(bench.host.fs)
    assert not isinstance(groups, str)
    assert why_not(groups, "llc_masks") == ""


def test_errors_keep_their_class_and_words() -> None:
    for theirs in (
        rdt.Busy,
        rdt.Full,
        rdt.Gone,
        rdt.Invalid,
        rdt.Unsupported,
        rdt.Denied,
        rdt.Broken,
        rdt.Mismatch,
    ):
        ours = as_kernel_error(theirs("/sys/fs/resctrl/x", doing="writing", value="L3:0=f", reason="because"))
        assert isinstance(ours, KernelError)
        assert type(ours).__name__ in (theirs.__name__, "Broken")
        assert "because" in str(ours)


def test_a_group_in_the_journal_survives_the_disk(tmp_path: Path) -> None:
    with Journal(tmp_path, boot_id="boot") as journal:
        journal.record([Original(f"{ROOT}/perphd.pi", b"", (7, 9), "llc_masks", "pi")])
    with Journal(tmp_path, boot_id="boot") as journal:
        (entry,) = journal.originals.values()
        assert (entry.path, entry.identity, entry.raw) == (f"{ROOT}/perphd.pi", (7, 9), b"")


async def test_the_placement_names_the_group_of_each_workload(bench: Bench) -> None:
    bench.take_closids(but=1)
    caches = bench.executor.caches
    assert caches.placement() == {}
    await bench.go(BATCH)
    group = rdt.GroupRef("perphd.pi")
    assert caches.placement() == {"pi": Placement(group, True), "sort": Placement(group, True)}
    wider = Settings(llc_masks=((0, 0xF),))
    bench.host.fs.raw.rmdir(f"{ROOT}/other0")
    await bench.go({"pi": NARROW, "sort": wider})
    assert caches.placement() == {
        "pi": Placement(group, False),
        "sort": Placement(rdt.GroupRef("perphd.sort"), False),
    }
    bench.again()
    bench.executor.plan({"pi": NARROW, "sort": wider}, SPECS, 60.0)
    assert bench.executor.caches.placement() == caches.placement(), "found out again after a restart"
    await bench.executor.restore(["sort"])
    assert bench.executor.caches.placement() == {"pi": Placement(group, False)}
    assert (await bench.go({})).ok
    assert bench.executor.caches.placement() == {}
    assert isinstance(bench.executor.caches.groups(100.0), rdt.Groups)
