"""Egress ceilings as files: what is asked of tc and of programs, in which order, and what is left after any failure."""

from __future__ import annotations

import asyncio
import errno
import json
import struct
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perphd.domain.allocation import UNTOUCHED, Settings
from perphd.domain.errors import Broken, Busy, Denied, Full, Gone, KernelError, Unsupported
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.host.cgroup import lines
from perphd.host.egress_bpf import BpfPrograms, Pin, key_of, program
from perphd.host.egress_fs import MOUNT, EgressFs, with_egress
from perphd.host.tc import MAJOR, HtbClass, Qdisc, TcCommand, class_rates
from perphd.host.tc_netlink import NetlinkTc
from perphd.isolation import Executor, Journal
from perphd.isolation.restore import restore_journal
from perphd.isolation.write_audit import WriteAudit
from tests.unit.isolation_kernel import FakeKernel
from tests.unit.isolation_systemd import FakeSystemd
from tests.unit.network_fakes import FakePrograms, FakeTc

SPECS = [WorkloadSpec(name, Kind.BATCH, f"/{name}") for name in ("a", "b")]


class _Kernel(FakeKernel):
    """With network namespaces by process."""

    namespaces: dict[str, int]

    def identity(self, path: str) -> tuple[int, int]:
        if path.startswith("/proc/"):
            return 4, self.namespaces.get(path.split("/")[2], 1)
        return super().identity(path)


class World:
    """A host with two groups, and an executor on its egress ceilings."""

    def __init__(self, state: Path, devices: tuple[str, ...] = ("eth0",)) -> None:
        self.kernel, self.tc, self.programs = _Kernel("v2"), FakeTc(), FakePrograms()
        self.kernel.namespaces = {}
        for name in ("a", "b"):
            self.make(name)
        self.fs = EgressFs(
            self.kernel, self.kernel.hierarchies, devices, tc=lambda: self.tc, programs=self.programs
        )
        self.journal = Journal(state, boot_id="x")
        self.executor = Executor(
            self.fs, with_egress(self.kernel.hierarchies), self.journal, in_thread=False, clock=lambda: 0.0
        )

    def make(self, name: str) -> None:
        self.kernel.mkdir(f"/{name}")
        directory = f"/sys/fs/cgroup/{name}"
        self.programs.inodes[directory] = self.kernel.directories[directory].inode

    def want(self, **ceilings: int) -> bool:
        targets = {name: Settings(egress_max=(("eth0", rate),)) for name, rate in ceilings.items()}
        return asyncio.run(self.executor.apply(self.executor.plan(targets, SPECS, 0.0))).ok

    def untouched(self) -> bool:
        return (
            self.tc.roots["eth0"] == ("fq_codel", 0) and not self.programs.attached and not self.tc.ceilings
        )


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


# -- ceilings -----------------------------------------------------------------------------------------------------


def test_the_parent_holds_the_largest_ceiling_and_the_last_class_takes_the_qdisc_with_it(
    world: World,
) -> None:
    assert world.want(a=1_000_000, b=2_500_999)
    assert world.tc.ceilings == {"eth0": {1: 2_500_000, 0x10: 1_000_000, 0x20: 2_500_000}}
    assert world.executor.in_force("b").egress_max == (("eth0", 2_500_000),)
    assert world.want(a=1_000_000, b=500_000)
    assert world.tc.ceilings["eth0"][1] == 1_000_000
    assert world.want(b=500_000)
    assert world.tc.ceilings == {"eth0": {1: 500_000, 0x20: 500_000}}
    assert world.want()
    assert world.untouched()
    assert world.executor.journal_entries == 0


def test_an_unchanged_ceiling_asks_for_nothing(world: World) -> None:
    assert world.want(a=1_000_000)
    before = list(world.tc.calls)
    assert world.want(a=1_000_000)
    assert world.tc.calls == before


def test_without_a_named_device_nothing_is_touched_and_what_was_kept_can_be_given_back(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    assert world.want(a=1_000_000)
    world.journal.close()
    unnamed = EgressFs(world.kernel, world.kernel.hierarchies, tc=lambda: world.tc, programs=world.programs)
    with Journal(tmp_path, boot_id="x") as journal:
        executor = Executor(unnamed, with_egress(world.kernel.hierarchies), journal, in_thread=False)
        changes = executor.plan({"b": Settings(egress_max=(("eth0", 10_000),))}, SPECS, 0.0)
        assert "no network device is named" in changes.skipped[0].reason
        assert asyncio.run(executor.apply(changes)).ok
        assert world.untouched()


@pytest.mark.parametrize(
    ("roots", "reason"),
    [
        ({}, "there is no network device eth0"),
        ({"eth0": ("fq", 0x8001)}, "an administrator set (handle 8001:)"),
        ({"eth0": ("pfifo_fast", 0)}, "net.core.default_qdisc has changed since"),
        ({"eth0": ("htb", 0x1)}, "an administrator set"),
    ],
)
def test_a_device_whose_own_qdisc_would_not_come_back_is_refused(
    world: World, roots: dict[str, tuple[str, int]], reason: str
) -> None:
    world.tc.roots = dict(roots)
    assert world.want(a=1_000_000)
    assert reason in world.executor.not_enforceable("a")[0].reason
    assert world.tc.roots == roots
    assert not world.programs.attached


@pytest.mark.parametrize("kind", ["mq", "noqueue", "fq_codel"])
def test_what_the_kernel_makes_by_itself_gives_way(world: World, kind: str) -> None:
    world.tc.roots["eth0"] = (kind, 0)
    assert world.want(a=1_000_000)
    assert world.tc.roots["eth0"] == ("htb", MAJOR)


def test_processes_in_another_network_namespace_are_refused(world: World) -> None:
    world.kernel.namespaces = {"4711": 2}
    assert world.want(a=1_000_000)
    assert "process 4711 has a network namespace of its own" in world.executor.not_enforceable("a")[0].reason


def test_a_unit_that_is_started_again_gets_its_class_again(tmp_path: Path) -> None:
    """What systemd is asked for outlives the cgroup; a program at the cgroup does not."""
    systemd, tc, programs = FakeSystemd(), FakeTc(), FakePrograms()
    place = "/sys/fs/cgroup/system.slice/job.service"
    kernel, hierarchies = systemd.kernel, systemd.kernel.hierarchies
    fs = EgressFs(systemd.fs(), hierarchies, ("eth0",), tc=lambda: tc, programs=programs, kernel=kernel)
    tc.roots["eth0"] = ("mq", 0)
    specs = [WorkloadSpec("job", Kind.BATCH, "/system.slice/job.service")]
    target = {"job": Settings(egress_max=(("eth0", 50_000),), memory_high_bytes=1 << 30)}
    with Journal(tmp_path, boot_id="x") as journal:
        executor = Executor(fs, with_egress(hierarchies), journal, in_thread=False)
        for _ in range(4):
            systemd.restart("job.service")
            programs.attached = dict.fromkeys(programs.attached, 0)
            programs.inodes[place] = kernel.directories[place].inode
            assert asyncio.run(executor.apply(executor.plan(target, specs, 0.0))).ok
            assert tc.ceilings == {"eth0": {1: 50_000, 0x10: 50_000}}
            assert list(programs.attached.values()) == [kernel.directories[place].inode]
            assert executor.in_force("job").egress_max == (("eth0", 50_000),)
        assert not executor.conflicts()
        assert asyncio.run(executor.restore()).complete
    assert not tc.ceilings
    assert not programs.attached


def test_the_class_of_a_group_that_has_gone_goes_while_the_daemon_runs(world: World) -> None:
    assert world.want(a=1_000_000, b=3_000_000)

    def ended(name: str) -> None:
        world.kernel.rmdir(f"/{name}")
        pin = next(pin for pin in world.programs.attached if pin.key == key_of(f"/{name}"))
        world.programs.attached[pin] = 0
        asyncio.run(world.executor.release_gone())

    ended("a")
    assert world.tc.ceilings == {"eth0": {1: 3_000_000, 0x20: 3_000_000}}
    assert [entry.workload for entry in world.journal.originals.values()] == ["b"]
    calls = len(world.tc.calls)
    asyncio.run(world.executor.release_gone())
    assert len(world.tc.calls) == calls, "whose group is there keeps it"

    world.make("a")
    assert world.want(a=1_000_000, b=3_000_000)
    assert world.tc.ceilings["eth0"][0x10] == 1_000_000, "it came back"
    ended("a")
    ended("b")
    assert world.untouched()
    assert not world.journal.originals


def test_a_group_of_which_it_cannot_be_told_whether_it_has_gone_is_not_forgotten(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, str]] = []
    world.executor._audit = WriteAudit(lambda write, outcome: told.append((write.workload, outcome)))
    assert world.want(a=1_000_000)
    told.clear()
    world.kernel.rmdir("/a")
    world.programs.attached = dict.fromkeys(world.programs.attached, 0)
    identity, looks = world.kernel.identity, iter(range(100))

    def seen_once(path: str) -> tuple[int, int]:
        if path == "/sys/fs/cgroup/a" and next(looks) > 0:
            raise Denied(path, "stat", errno.EPERM)
        return identity(path)

    with monkeypatch.context() as patch:
        patch.setattr(world.kernel, "identity", seen_once)
        report = asyncio.run(world.executor.release_gone())
    assert report is not None
    assert "EPERM" in report.failed[0].note
    assert [entry.workload for entry in world.journal.originals.values()] == ["a"]
    assert world.executor.in_force("a").egress_max == (("eth0", 1_000_000),)
    assert told == []
    report = asyncio.run(world.executor.release_gone())
    assert report is not None
    assert not report.failed
    assert world.executor.in_force("a") == UNTOUCHED
    assert world.untouched()
    assert not asyncio.run(world.executor.release_gone()), "nothing is left to do"


@pytest.mark.parametrize("call", ["delete_class", "delete_root"])
def test_a_class_that_is_not_let_go_stays_on_record_until_it_is(world: World, call: str) -> None:
    assert world.want(a=1_000_000)
    world.kernel.rmdir("/a")
    world.programs.attached = dict.fromkeys(world.programs.attached, 0)
    for give_back in (world.executor.release_gone, world.executor.restore):
        world.tc.fail[call] = Denied("eth0", call, errno.EPERM)
        report = asyncio.run(give_back())
        assert report is not None
        assert not report.complete
        assert "could not be removed" in report.failed[0].note
        assert "EPERM" in str(report)
        assert [entry.workload for entry in world.journal.originals.values()] == ["a"]
    assert asyncio.run(world.executor.restore()).complete
    assert world.untouched()
    assert not world.journal.originals


def test_a_group_that_was_made_again_keeps_its_class_only_if_it_is_to_have_one(world: World) -> None:
    def again() -> None:
        world.kernel.rmdir("/a")
        world.programs.attached = dict.fromkeys(world.programs.attached, 0)
        world.make("a")

    assert world.want(a=1_000_000)
    again()
    calls = len(world.tc.calls)
    asyncio.run(world.executor.release_gone())
    assert len(world.tc.calls) == calls, "a restart does not take the qdisc away between two looks"
    assert world.want(a=1_000_000)
    again()
    assert world.want(), "nothing is set on the new one, and of the old one nothing is looked at"
    asyncio.run(world.executor.release_gone())
    assert world.untouched()


def test_v1_alone_says_what_is_missing(tmp_path: Path) -> None:
    kernel = FakeKernel("v1")
    kernel.mkdir("/a")
    fs = EgressFs(kernel, kernel.hierarchies, ("eth0",), tc=FakeTc, programs=FakePrograms())
    with Journal(tmp_path, boot_id="x") as journal:
        executor = Executor(fs, with_egress(kernel.hierarchies), journal, in_thread=False)
        assert "mount cgroup2" in next(
            left.reason for left in executor.enforceable(SPECS[0])[1] if left.knob == "egress_max"
        )


# -- failure ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["add_root", "set_class"])
@pytest.mark.parametrize("error", [Denied("tc", "x", errno.EPERM), Gone("tc", "x", errno.ENOENT)])
def test_what_a_refused_change_had_begun_is_taken_back(world: World, call: str, error: KernelError) -> None:
    world.tc.fail[call] = error
    assert not world.want(a=1_000_000), "Gone here is a qdisc that this kernel has not, and not the group"
    assert asyncio.run(world.executor.restore()).complete
    assert world.untouched()


def test_a_second_device_that_refuses_takes_the_first_back(tmp_path: Path) -> None:
    world = World(tmp_path, ("eth0", "eth1"))
    world.tc.roots["eth1"] = ("fq_codel", 0)
    targets = {"a": Settings(egress_max=(("eth0", 10_000), ("eth1", 20_000)))}
    changes = world.executor.plan(targets, SPECS, 0.0)
    world.tc.roots["eth1"] = ("fq", 0x9)  # between plan and write
    assert not asyncio.run(world.executor.apply(changes)).ok
    assert world.untouched()


@settings(max_examples=40)
@given(kills=st.lists(st.integers(0, 12), max_size=4), gone=st.booleans(), force=st.booleans())
def test_whatever_is_left_by_a_kill_at_any_step_is_given_back(
    tmp_path_factory: pytest.TempPathFactory, kills: list[int], gone: bool, force: bool
) -> None:
    """A process that dies before its n-th call to the kernel, several times over, and one restore after them."""
    state = tmp_path_factory.mktemp("state")
    world = World(state)

    class Dead(BaseException):
        pass

    for kill in kills:
        steps = iter(range(100))

        def die(name: str, device: str, kill: int = kill, steps: Any = steps) -> None:
            if next(steps) == kill:
                raise Dead
            FakeTc._note(world.tc, name, device)

        world.tc._note = die  # type: ignore[method-assign]
        with suppress(Dead):
            world.want(a=1_000_000 + kill * 1000, b=2_000_000)
        del world.tc._note
        world.journal.close()
        world.journal = Journal(state, boot_id="x")
        hierarchies = with_egress(world.kernel.hierarchies)
        world.executor = Executor(world.fs, hierarchies, world.journal, in_thread=False, clock=lambda: 0.0)
    if gone:
        world.kernel.rmdir("/b")
        for pin in world.programs.attached:
            if pin.key == key_of("/b"):
                world.programs.attached[pin] = 0
    report = restore_journal(world.fs, world.journal, list(world.journal.originals.values()), force)
    assert report.complete, report
    assert world.untouched()
    assert not world.journal.originals
    world.journal.close()


def test_a_sweep_without_any_use_since_boot_asks_nothing(world: World) -> None:
    world.tc.qdiscs = lambda: pytest.fail("asked")  # type: ignore[method-assign]
    world.fs.sweep()


def test_nobodys_classes_go_with_the_next_change(world: World) -> None:
    assert world.want(a=1_000_000)
    world.tc.ceilings["eth0"][0x70] = 5_000_000
    assert world.want()
    assert world.untouched()


# -- the tree -----------------------------------------------------------------------------------------------------


def test_the_tree_holds_one_file_a_group_and_says_so_of_others(world: World) -> None:
    file = f"{MOUNT}/a/{lines.EGRESS}"
    assert world.fs.exists(file)
    assert world.fs.exists(f"{MOUNT}/a")
    assert not world.fs.exists(f"{MOUNT}/nobody/{lines.EGRESS}")
    assert world.fs.read(file) == b"\n"
    assert world.fs.identity(f"{MOUNT}/a") == world.kernel.identity("/sys/fs/cgroup/a")
    assert world.fs.read("/sys/fs/cgroup/a/cpu.weight") == b"100\n"
    with pytest.raises(Gone):
        world.fs.read(f"{MOUNT}/a/cgroup.procs")
    with pytest.raises(Gone):
        world.fs.write(f"{MOUNT}/nobody/{lines.EGRESS}", b"eth0 10000\n")
    with pytest.raises(KernelError, match="EINVAL"):
        world.fs.write(file, b"eth0 fast\n")
    with pytest.raises(Unsupported, match="no network device is named"):
        world.fs.write(file, b"wlan0 10000\n")


RATES = st.integers(10_000, 1 << 40)
NAMES = st.from_regex(r"[a-z0-9.:_@-]{1,15}", fullmatch=True).filter(lambda name: name not in (".", ".."))


@settings(max_examples=40)
@given(st.dictionaries(NAMES, RATES), st.dictionaries(NAMES, RATES))
def test_a_ceiling_that_was_found_is_never_raised(found: dict[str, int], wanted: dict[str, int]) -> None:
    before = lines.text_of({name: str(rate - rate % 1000) for name, rate in found.items()})
    text = lines.with_egress(before, wanted.items())
    after, had = dict(lines.egress_of(text)), dict(lines.egress_of(before))
    assert set(after) == set(found) | set(wanted)
    for name, rate in after.items():
        assert rate <= min(wanted.get(name, rate), had.get(name, rate))
        assert rate % 1000 == 0
    assert lines.with_egress(text, wanted.items()) == text


@given(st.integers(1, 0xFFFF), st.integers(10_000, 1 << 40))
def test_no_leaf_is_guaranteed_more_than_it_may_send(minor: int, ceil_bytes: int) -> None:
    rate, priority, burst = class_rates(minor, ceil_bytes)
    assert 0 < rate <= ceil_bytes
    assert burst >= 1 << 16
    assert (rate == ceil_bytes, priority) == ((True, 0) if minor == 1 else (False, 7))


# -- tc(8) --------------------------------------------------------------------------------------------------------


def _printed(rate_bytes: int) -> str:
    """A rate as iproute2 prints it: bits with the largest unit that leaves less than a million, cut to whole numbers.

    Seen with iproute2 6.1: 154,321,000 bytes per second are shown as 1234Mbit.
    """
    rate, unit = rate_bytes * 8, 0
    while unit < 4 and rate >= 1000 and not (rate % 1000 and rate < 1_000_000):
        rate, unit = rate // 1000, unit + 1
    return f"{rate}{('', 'K', 'M', 'G', 'T')[unit]}bit"


def _shown(minor: str, rate_bytes: int) -> str:
    return f"class htb 7e50:{minor} parent 7e50:1 prio 7 rate 8Kbit ceil {_printed(rate_bytes)} burst 64Kb \n"


@given(RATES)
def test_tc_shows_every_ceiling_exactly(rate: int) -> None:
    ceiling = dict(lines.egress_of(lines.with_egress("", [("eth0", rate)])))["eth0"]
    assert rate - rate // 500 <= ceiling <= rate or rate < 500_000
    (found,) = TcCommand(_said(_shown("10", ceiling))).classes("eth0")
    assert found.ceil_bytes == ceiling


class _Printed(FakeTc):
    """Shows rates as tc(8) prints them."""

    def classes(self, device: str) -> tuple[HtbClass, ...]:
        text = "".join(_shown(f"{each.minor:x}", each.ceil_bytes) for each in super().classes(device))
        return TcCommand(_said(text)).classes(device)


def test_restore_knows_a_ceiling_above_one_gigabit_as_perphds_own(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert world.want(a=154_321_000)
    assert world.tc.ceilings
    printed = _Printed(world.tc.roots, world.tc.ceilings)
    fs = EgressFs(
        world.kernel, world.kernel.hierarchies, ("eth0",), tc=lambda: printed, programs=world.programs
    )
    report = restore_journal(fs, world.journal, list(world.journal.originals.values()))
    assert not report.foreign
    assert report.complete
    assert world.untouched()


def _said(text: str = "", code: int = 0, error: str = "") -> Any:
    return lambda *_, **__: SimpleNamespace(returncode=code, stdout=text, stderr=error)


def test_what_tc_shows_is_understood() -> None:
    shown = [
        {"kind": "noqueue", "handle": "0:", "dev": "lo", "root": True},
        {"kind": "mq", "handle": "0:", "dev": "eth0", "root": True},
        {"kind": "fq", "handle": "8001:", "dev": "eth0", "parent": ":1"},
        {"kind": "htb", "handle": "7e50:", "dev": "v0", "root": True, "options": {"default": "0"}},
    ]
    assert TcCommand(_said(json.dumps(shown))).qdiscs() == (
        Qdisc("lo", "noqueue", 0, True),
        Qdisc("eth0", "mq", 0, True),
        Qdisc("eth0", "fq", 0x8001, False),
        Qdisc("v0", "htb", MAJOR, True),
    )
    assert TcCommand(_said("")).qdiscs() == ()
    text = (
        "class htb 7e50:10 parent 7e50:1 prio 7 rate 125Kbit ceil 8Mbit burst 64Kb cburst 64Kb \n"
        "class htb 7e50:1 root prio 0 rate 8Mbit ceil 1234568bit burst 65520b cburst 65520b \n"
        "class fq_codel 8001:1 parent 8001: \n"
    )
    assert TcCommand(_said(text)).classes("v0") == (
        HtbClass(MAJOR, 0x10, 1_000_000),
        HtbClass(MAJOR, 1, 154_321),
    )


@pytest.mark.parametrize(
    "text", ["[", "{}x", '[{"dev": "a"}]', '[{"dev": "a", "kind": "b", "handle": "z:"}]', "[7]"]
)
def test_what_tc_cannot_have_said_is_an_error(text: str) -> None:
    with pytest.raises(Broken):
        TcCommand(_said(text)).qdiscs()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ('Cannot find device "x"', Gone),
        ("Error: Exclusivity flag on, cannot modify.", Busy),
        ("RTNETLINK answers: Operation not permitted", Denied),
        ("Error: Specified qdisc kind is unknown.", Unsupported),
        ("something new", Broken),
    ],
)
def test_what_tc_refuses_is_told_by_what_to_do(error: str, kind: type[KernelError]) -> None:
    with pytest.raises(kind, match=error.partition(" ")[0]):
        TcCommand(_said(code=2, error=error)).add_root("eth0")


def test_no_tc_or_a_hung_one_is_said() -> None:
    def absent(*_: Any, **__: Any) -> None:
        raise FileNotFoundError(errno.ENOENT, "tc")

    def hung(*_: Any, **__: Any) -> None:
        raise subprocess.TimeoutExpired("tc", 5)

    with pytest.raises(Unsupported, match="iproute2"):
        TcCommand(absent).qdiscs()
    with pytest.raises(Busy):
        TcCommand(hung).delete_class("eth0", 0x10)


# -- programs -----------------------------------------------------------------------------------------------------


@given(st.integers(0, 0xFFFF), st.integers(0, 0xFFFF))
def test_the_program_stores_the_class_as_the_priority_and_lets_the_packet_pass(
    major: int, minor: int
) -> None:
    code = program(major, minor)
    steps = [struct.unpack_from("=BBhI", code, at) for at in range(0, len(code), 8)]
    assert steps == [
        (0xB4, 0x02, 0, major << 16 | minor),
        (0x63, 0x21, 32, 0),
        (0xB4, 0x00, 0, 1),
        (0x95, 0x00, 0, 0),
    ]


def test_pins_are_files_named_by_path_and_class(tmp_path: Path) -> None:
    programs = BpfPrograms(str(tmp_path / "perphd"))
    assert programs.pins() == ()
    assert not programs.were_used()
    (tmp_path / "perphd").mkdir()
    (tmp_path / "perphd" / f"{key_of('/a')}-0010").write_text("")
    (tmp_path / "perphd" / "somebody-else's").write_text("")
    assert programs.pins() == (Pin(key_of("/a"), 0x10),)
    programs.detach(Pin(key_of("/a"), 0x10))
    programs.detach(Pin(key_of("/a"), 0x10))
    assert programs.pins() == ()
    assert "no BPF file system is mounted" in programs.refusal()


def test_a_change_for_which_no_thread_can_be_started_is_not_made_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    made: list[str] = []
    netlink = NetlinkTc()
    monkeypatch.setattr(netlink, "_opened", lambda: None)
    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", refuse)
        with pytest.raises(Full, match="can't start new thread"):
            netlink._call("eth0", "set a class", lambda route: made.append("refused"))
    netlink._call("eth0", "set a class", lambda route: made.append("next"))
    assert made == ["next"]
    netlink.close()
