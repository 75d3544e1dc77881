"""Occupancy and bandwidth: numbers where there are numbers, and why not everywhere else."""

from __future__ import annotations

import errno
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from perphd.domain.cpuset import CpuSet
from perphd.sim.kernel.faces import RawFs
from perphd.sim.kernel.resctrl import LINUX_6_12, MACHINES, RdtMachine, ResctrlTree, Threads
from perphd.sim.kernel.vfs import Directory
from rdt.access import Access
from rdt.describe import read_info
from rdt.fs import OpenFile
from rdt.monitor import Monitor
from rdt.names import DEFAULT_GROUP, GroupRef
from rdt.reading import GroupReading, Reading, Unavailable, Why, total

ROOT = "/sys/fs/resctrl"
MIB = 1 << 20
A, M = GroupRef("a"), GroupRef("a", "m")


class Machine:
    """A simulated machine, its clock and a monitor on it."""

    def __init__(self, machine: str | RdtMachine = "captured") -> None:
        self.now_s = 100.0
        root = Directory()
        chosen = MACHINES[machine] if isinstance(machine, str) else machine
        self.tree = ResctrlTree(chosen, root.make(ROOT), Threads(), lambda: self.now_s)
        self.tree.mount()
        self.fs = RawFs(root)
        self.access = Access(self.fs, ROOT)

    def watch(self, *groups: GroupRef) -> Monitor:
        return Monitor(self.access, read_info(self.access), groups, clock=lambda: self.now_s)

    def mkdir(self, group: GroupRef) -> None:
        self.fs.mkdir(f"{ROOT}/{group.relative}")

    def rmdir(self, group: GroupRef) -> None:
        self.fs.rmdir(f"{ROOT}/{group.relative}")

    def run(
        self, group: GroupRef, domain: int = 0, *, held: float = 0, moved: float = 0, local: float = 0
    ) -> None:
        self.tree.account(
            group.relative, domain, llc_bytes=held, mbm_total_bytes=moved, mbm_local_bytes=local
        )

    def condition(self, domain: int, event: str, text: str | None) -> None:
        assert self.tree.monitor is not None
        self.tree.monitor.set_condition(domain, event, text)


def why(reading: Reading) -> Why | None:
    return reading.why if isinstance(reading, Unavailable) else None


def number(reading: Reading) -> float:
    assert not isinstance(reading, Unavailable), reading.reason
    return reading


@pytest.fixture
def machine() -> Machine:
    made = Machine()
    made.mkdir(A)
    return made


def second(machine: Machine, monitor: Monitor, group: GroupRef = A) -> GroupReading:
    machine.now_s += 2.0
    return monitor.read()[group]


def test_a_rate_needs_two_readings_and_covers_the_time_between(machine: Machine) -> None:
    machine.run(A, held=4 * MIB, moved=10 * MIB, local=8 * MIB)
    with machine.watch(A) as monitor:
        first = monitor.read()[A]
        assert number(first.domains[0].occupancy_bytes) == pytest.approx(4 * MIB, rel=0.03)
        assert why(first.domains[0].total_bytes_per_s) is Why.FIRST
        assert why(first.interval_s) is Why.FIRST
        machine.run(A, held=5 * MIB, moved=100 * MIB, local=60 * MIB)
        machine.run(A, 1, moved=20 * MIB, local=20 * MIB)
        then = second(machine, monitor)
        assert then.interval_s == 2.0
        assert number(then.domains[0].total_bytes_per_s) == pytest.approx(50 * MIB, rel=0.01)
        assert number(then.domains[0].local_bytes_per_s) == pytest.approx(30 * MIB, rel=0.01)
        assert number(then.domains[0].remote_bytes_per_s) == pytest.approx(20 * MIB, rel=0.02)
        assert number(then.total_bytes_per_s) == pytest.approx(60 * MIB, rel=0.01)
        assert number(then.local_bytes_per_s) == pytest.approx(40 * MIB, rel=0.01)
        assert number(then.occupancy_bytes) == pytest.approx(5 * MIB, rel=0.03)
        idle = second(machine, monitor)
        assert idle.total_bytes_per_s == 0.0


def test_files_are_opened_once_and_given_back(machine: Machine) -> None:
    monitor = machine.watch(A, DEFAULT_GROUP)
    assert monitor.open_files == 0
    monitor.read()
    assert monitor.open_files == 2 * 2 * 3
    monitor.read()
    monitor.unwatch(A)
    monitor.unwatch(A)
    assert monitor.open_files == 6
    assert monitor.groups == (DEFAULT_GROUP,)
    monitor.close()
    assert monitor.open_files == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Unavailable", Why.UNTRACKED),
        ("Unassigned", Why.UNASSIGNED),
        ("Error", Why.HARDWARE_ERROR),
        ("7 apples", Why.UNREADABLE),
        ("", Why.UNREADABLE),
    ],
)
def test_what_is_no_number_says_why_and_what_comes_after_is_a_new_beginning(
    machine: Machine, text: str, expected: Why
) -> None:
    with machine.watch(A) as monitor:
        machine.run(A, moved=50 * MIB)
        monitor.read()
        machine.condition(0, "mbm_total_bytes", text)
        reading = second(machine, monitor).domains[0]
        assert why(reading.total_bytes_per_s) is expected
        assert why(reading.total_bytes) is expected
        assert reading.local_bytes_per_s == 0.0
        assert reading.occupancy_bytes == 0
        machine.condition(0, "mbm_total_bytes", None)
        back = second(machine, monitor)
        assert why(back.domains[0].total_bytes_per_s) is Why.RESTARTED
        assert number(back.domains[0].total_bytes) == pytest.approx(50 * MIB, rel=0.01)
        assert why(back.total_bytes_per_s) is Why.RESTARTED
        assert number(second(machine, monitor).total_bytes_per_s) == 0.0


def test_a_zero_after_the_counter_was_taken_away_is_no_rate(machine: Machine) -> None:
    amd = Machine("amd")
    amd.mkdir(A)
    with amd.watch(A) as monitor:
        amd.run(A, moved=50 * MIB)
        monitor.read()
        amd.fs.write(
            f"{ROOT}/info/L3_MON/mbm_total_bytes_config", b"0=0x30\n"
        )  # resets the domain's counters
        assert why(second(amd, monitor).domains[0].total_bytes_per_s) is Why.UNTRACKED
        then = second(amd, monitor).domains[0]
        assert then.total_bytes == 0
        assert why(then.total_bytes_per_s) is Why.RESTARTED


def test_a_group_made_anew_has_a_new_counter(machine: Machine) -> None:
    with machine.watch(A) as monitor:
        machine.run(A, moved=MIB)
        monitor.read()
        machine.rmdir(A)
        machine.mkdir(A)
        machine.run(A, moved=900 * MIB)  # more than before: nothing but the inode tells
        reading = second(machine, monitor)
        assert number(reading.domains[0].total_bytes) == pytest.approx(900 * MIB, rel=0.01)
        assert why(reading.total_bytes_per_s) is Why.RESTARTED
        assert why(reading.interval_s) is Why.RESTARTED
        machine.run(A, moved=20 * MIB)
        assert number(second(machine, monitor).total_bytes_per_s) == pytest.approx(10 * MIB, rel=0.01)


def test_a_group_that_is_gone_is_no_error_and_may_come_back(machine: Machine) -> None:
    with machine.watch(A) as monitor:
        machine.run(A, moved=MIB)
        monitor.read()
        machine.rmdir(A)
        gone = second(machine, monitor)
        assert {why(each.occupancy_bytes) for each in gone.domains.values()} == {Why.GONE}
        assert why(gone.interval_s) is Why.GONE
        assert why(gone.total_bytes_per_s) is Why.GONE
        assert monitor.open_files == 0
        machine.mkdir(A)
        assert second(machine, monitor).occupancy_bytes == 0
        assert second(machine, monitor).total_bytes_per_s == 0.0


def test_a_removed_monitor_group_takes_its_bytes_out_of_the_sum(machine: Machine) -> None:
    machine.mkdir(M)
    with machine.watch(A, M) as monitor:
        machine.run(A, moved=10 * MIB)
        machine.run(M, moved=40 * MIB)
        monitor.read()
        machine.run(A, moved=100 * MIB)
        machine.rmdir(M)
        readings = second(machine, monitor)
        # 110 MiB after 50: grown all the same, but 60 MiB would be wrong
        assert number(readings.domains[0].total_bytes) == pytest.approx(110 * MIB, rel=0.01)
        assert why(readings.total_bytes_per_s) is Why.RESTARTED
        assert "monitor group" in str(readings.total_bytes_per_s)
        machine.run(A, moved=6 * MIB)
        assert number(second(machine, monitor).total_bytes_per_s) == pytest.approx(3 * MIB, rel=0.03)


def test_a_monitor_group_that_goes_while_its_parent_is_read_is_seen_in_the_next_base(
    machine: Machine,
) -> None:
    machine.mkdir(M)
    with machine.watch(A) as monitor:
        machine.run(M, moved=40 * MIB)
        monitor.read()
        listdir = machine.fs.listdir
        removed: list[str] = []

        def removing(path: str) -> list[str]:
            if path.endswith("a/mon_groups") and not removed:  # after the counters were read
                removed.append(path)
                machine.rmdir(M)
            return listdir(path)

        machine.fs.listdir = removing  # type: ignore[method-assign]
        assert why(second(machine, monitor).total_bytes_per_s) is Why.RESTARTED
        assert removed
        assert second(machine, monitor).total_bytes_per_s == 0.0


def test_a_new_monitor_group_is_part_of_its_parents_growth(machine: Machine) -> None:
    with machine.watch(A) as monitor:
        monitor.read()
        machine.mkdir(M)
        machine.run(M, moved=8 * MIB)
        assert number(second(machine, monitor).total_bytes_per_s) == pytest.approx(4 * MIB, rel=0.02)


def test_a_value_that_goes_back_is_no_rate_but_64_bits_may_wrap(machine: Machine) -> None:
    files = {f"{ROOT}/a/mon_data/mon_L3_00/mbm_total_bytes": ["1000", "400", str(2**64 - 1000), "500", "700"]}
    machine.fs = Scripted(machine.fs.root, files)
    machine.access = Access(machine.fs, ROOT)
    with machine.watch(A) as monitor:
        monitor.read()
        back = second(machine, monitor).domains[0].total_bytes_per_s
        assert why(back) is Why.RESTARTED
        assert "from 1000 to 400" in str(back)
        second(machine, monitor)
        assert second(machine, monitor).domains[0].total_bytes_per_s == 750.0
        assert second(machine, monitor).domains[0].total_bytes_per_s == 100.0


class Scripted(RawFs):
    """Some files answer what they are told, one text a reading; an int is an errno."""

    def __init__(self, root: Directory, files: dict[str, list[str]]) -> None:
        super().__init__(root)
        self._files = files

    def open(self, path: str) -> OpenFile:  # type: ignore[override]
        return _Script(self._files[path]) if path in self._files else super().open(path)


class _Script:
    def __init__(self, texts: list[str]) -> None:
        self._texts = iter(texts)

    def read(self) -> bytes:
        text = next(self._texts)
        if text.startswith("errno "):
            raise OSError(int(text[6:]), "it says")
        return text.encode() + b"\n"

    def close(self) -> None:
        pass


def test_a_failed_read_is_told_and_touches_nothing_else(machine: Machine) -> None:
    files = {f"{ROOT}/a/mon_data/mon_L3_01/llc_occupancy": [f"errno {errno.EIO}", "65536"]}
    machine.fs = Scripted(machine.fs.root, files)
    machine.access = Access(machine.fs, ROOT)
    with machine.watch(A) as monitor:
        reading = monitor.read()[A]
        assert why(reading.domains[1].occupancy_bytes) is Why.UNREADABLE
        assert reading.domains[0].occupancy_bytes == 0
        assert str(reading.occupancy_bytes) == "domain 1: the kernel says it says"
        assert second(machine, monitor).occupancy_bytes == 65536


def test_a_domain_whose_cpus_go_offline_is_offline_and_comes_back(machine: Machine) -> None:
    everything = CpuSet(machine.tree.online)
    with machine.watch(A) as monitor:
        machine.run(A, 0, moved=4 * MIB)
        machine.run(A, 1, moved=4 * MIB)
        monitor.read()
        machine.tree.set_online(CpuSet(0b0011))
        machine.run(A, 0, moved=4 * MIB)
        reading = second(machine, monitor)
        assert why(reading.domains[1].occupancy_bytes) is Why.OFFLINE
        assert number(reading.domains[0].total_bytes_per_s) == pytest.approx(2 * MIB, rel=0.02)
        assert why(reading.total_bytes_per_s) is Why.OFFLINE
        assert second(machine, monitor).domains[0].total_bytes_per_s == 0.0
        machine.tree.set_online(everything)
        assert why(second(machine, monitor).domains[1].total_bytes_per_s) is Why.RESTARTED
        assert second(machine, monitor).total_bytes_per_s == 0.0


def test_sub_numa_nodes_are_added_once() -> None:
    snc = Machine("snc")
    snc.mkdir(A)
    with snc.watch(A) as monitor:
        monitor.read()
        snc.run(A, 0, held=2 * MIB, moved=10 * MIB)  # nodes 0 and 1 lie in domain 0, 2 and 3 in domain 1
        snc.run(A, 1, held=3 * MIB, moved=30 * MIB)
        snc.run(A, 3, held=1 * MIB, moved=2 * MIB)
        reading = second(snc, monitor)
        assert number(reading.domains[0].occupancy_bytes) == pytest.approx(5 * MIB, rel=0.03)
        assert number(reading.domains[0].total_bytes_per_s) == pytest.approx(20 * MIB, rel=0.01)
        assert number(reading.domains[1].total_bytes_per_s) == pytest.approx(1 * MIB, rel=0.05)
        assert number(reading.occupancy_bytes) == pytest.approx(6 * MIB, rel=0.03)
        assert monitor.open_files == 2 * 2 * 3


def test_what_a_machine_does_not_count_is_unsupported() -> None:
    haswell = Machine("four-closids")
    haswell.mkdir(A)
    with haswell.watch(A) as monitor:
        reading = monitor.read()[A]
        assert reading.domains[0].occupancy_bytes == 0
        assert why(reading.total_bytes_per_s) is Why.UNSUPPORTED
        assert "does not count mbm_total_bytes" in str(reading.total_bytes_per_s)
    bare = Machine("no-monitoring")
    bare.mkdir(A)
    with bare.watch(A) as monitor:
        reading = monitor.read()[A]
        assert reading.domains == {}
        assert why(reading.occupancy_bytes) is Why.UNSUPPORTED


def test_a_group_is_read_as_soon_as_it_exists(machine: Machine) -> None:
    late = GroupRef("late")
    with machine.watch(late) as monitor:
        assert why(monitor.read()[late].occupancy_bytes) is Why.GONE
        machine.mkdir(late)
        assert monitor.read()[late].occupancy_bytes == 0


def test_a_monitor_group_moved_away_is_lost_to_its_former_parent() -> None:
    newer = Machine(replace(MACHINES["captured"], kernel=LINUX_6_12))
    newer.mkdir(A)
    newer.mkdir(M)
    with newer.watch(A) as monitor:
        newer.run(M, moved=4 * MIB)
        monitor.read()
        newer.fs.rename(f"{ROOT}/a/mon_groups/m", f"{ROOT}/mon_groups/m")
        assert why(second(newer, monitor).total_bytes_per_s) is Why.RESTARTED


def test_a_sum_has_no_number_unless_every_part_has() -> None:
    assert total({0: 1.5, 8: 2.0}) == 3.5
    missing = total({0: 1.5, 8: Unavailable(Why.OFFLINE, "no CPU")})
    assert missing == Unavailable(Why.OFFLINE, "domain 8: no CPU")
    assert str(missing) == "domain 8: no CPU"
    assert why(total({})) is Why.UNSUPPORTED


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_every_machine_can_be_read(name: str) -> None:
    machine = Machine(name)
    with machine.watch(DEFAULT_GROUP) as monitor:
        monitor.read()
        reading = second(machine, monitor, DEFAULT_GROUP)
        counted = machine.tree.monitor is not None
        assert isinstance(reading.occupancy_bytes, Unavailable) != counted
        assert why(reading.total_bytes_per_s) in (None, Why.UNSUPPORTED)


OPERATIONS = ("run a", "run m", "run a far", "make m", "remove m", "make a", "remove a", "hide", "show", "far off",
              "far on")  # fmt: skip
INTERVALS = st.lists(st.lists(st.sampled_from(OPERATIONS), max_size=5), max_size=8)
"""What happens between one reading and the next."""


@settings(max_examples=150, deadline=None)
@given(INTERVALS, st.sampled_from(["captured", "snc", "amd"]))
@example([["run a far"], ["far off", "far on", "run a far"]], "captured")
def test_a_rate_that_is_told_is_what_was_moved(intervals: list[list[str]], name: str) -> None:
    """Whatever happens in between: bytes of what exists at the end of an interval, over its length, or no number."""
    machine = Machine(name)
    far = machine.tree.machine.monitoring.domains[-1]  # type: ignore[union-attr]
    far_unit = (far.nodes or (far.id,))[0]
    everything = CpuSet(machine.tree.online)
    without_far = CpuSet(everything.mask & ~far.cpus.mask)
    moved = {(A, 0): 0, (M, 0): 0, (A, far.id): 0}

    def act(operation: str) -> None:
        match operation:
            case "run a" | "run m" | "run a far":
                group = M if operation == "run m" else A
                domain = far.id if operation == "run a far" else 0
                if domain == 0 or machine.tree.online == everything.mask:
                    machine.run(group, far_unit if domain else 0, moved=64 * MIB)
                    moved[group, domain] += 64 * MIB
            case "make m":
                machine.mkdir(M)
            case "make a":
                machine.mkdir(A)
            case "remove m":
                machine.rmdir(M)
                moved[M, 0] = 0
            case "remove a":
                machine.rmdir(A)
                moved.update(dict.fromkeys(moved, 0))
            case "hide" | "show":
                machine.condition(0, "mbm_total_bytes", "Unavailable" if operation == "hide" else None)
            case "far off":
                machine.tree.set_online(without_far)
                moved[A, far.id] = 0  # what a domain had counted goes with it
            case _:
                machine.tree.set_online(everything)

    act("make a")
    act("make m")
    with machine.watch(A) as monitor:
        for operations in intervals:
            for operation in operations:
                with suppress(OSError, KeyError):
                    act(operation)
            reading = second(machine, monitor)
            for domain, each in reading.domains.items():
                told = each.total_bytes_per_s
                if isinstance(told, Unavailable) or (
                    machine.tree.online != everything.mask and domain == far.id
                ):
                    continue
                mine = sum(amount for (_, where), amount in moved.items() if where == domain)
                assert told * number(reading.interval_s) == pytest.approx(mine, abs=2 * MIB)
            moved.update(dict.fromkeys(moved, 0))
