"""Every writer x every fault: whatever fails at whatever operation, originals come back and no LRA is worse off.

Operations are enumerated, not drawn: a first run without faults lists them, then each of them fails in turn. Every
operation fails in some way and every way is tried on many; all pairs of the two with ``PERPHD_FAULTS=all``.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import pytest

from perphd.isolation import Applied, Executor, Journal
from perphd.isolation.gates import TransactionSize
from tests.unit.faults_fs import Killed, Operation
from tests.unit.faults_world import BOOT, WRITERS, EgressWorld, World, quick_folder, world

ERRNOS = (
    errno.EIO,
    errno.EBUSY,
    errno.ENOSPC,
    errno.ESRCH,
    errno.ENODEV,
    errno.EINVAL,
    errno.EACCES,
)


ALL = os.environ.get("PERPHD_FAULTS") == "all"
SHARE = 1 if ALL else len(ERRNOS)
"""Of all pairs of an operation and a fault, one in so many is tried."""


AFTER_STEP = 1 if ALL else 3
"""Killed after a write is, for the kernel, killed before the next one: what differs is what the journal may hold."""
SWAP_STEP = 1 if ALL else 3


def _is_tried(operation: int, number: int) -> bool:
    return (operation + ERRNOS.index(number)) % SHARE == 0


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """In memory, where there is room for it: hundreds of journals, and what a disk does is not what is tried here."""
    with quick_folder(tmp_path) as made:
        yield made


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rdt.groups.time.sleep", lambda seconds: None)
    monkeypatch.setattr("perphd.isolation.journal.os.fsync", lambda fd: None)
    monkeypatch.setattr("perphd.isolation.journal.os.fdatasync", lambda fd: None)


async def _through(here: World, executor: Executor) -> list[Applied]:
    """Both targets, then everything given back, each as often as the loop would try."""
    results = []
    for target in (*here.targets, {}):
        for _ in range(2):
            here.now_s += 10.0
            changes = executor.plan(target, here.specs, here.now_s)
            results.append(await executor.apply(changes))
            if results[-1].ok:
                break
    return results


def _drive(here: World, state: Path) -> list[Applied]:
    """A daemon's life, ended by whatever is raised; its journal stays as it is on disk."""
    journal = Journal(state, boot_id=BOOT)
    try:
        return asyncio.run(_through(here, here.executor(journal)))
    finally:
        journal.close()  # what a killed process loses as well: the lock, the descriptor, and its memory


@cache
def _operations(writer: str) -> tuple[Operation, ...]:
    here = world(writer)
    with TemporaryDirectory(prefix="perphd-test-faults-") as state:
        assert all(applied.ok for applied in _drive(here, Path(state)))
    assert not here.differing()
    return tuple(here.gate.seen)


def _assert_restorable(here: World, state: Path) -> None:
    report = here.restore(state)
    assert report.complete, report
    assert not report.foreign, report
    assert not here.differing(), here.differing()
    again = here.restore(state)
    assert not again, again


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("took_effect", [False, True], ids=["before", "after"])
def test_killed_at_every_write_everything_comes_back(writer: str, took_effect: bool, tmp_path: Path) -> None:
    count = sum(operation.changes for operation in _operations(writer))
    assert count >= 8
    refused = 0
    for moment in range(0, count, AFTER_STEP if took_effect else 1):
        here, state = world(writer), tmp_path / str(moment)

        def die(number: int, _operation: Operation, moment: int = moment) -> None:
            if number == moment:
                raise Killed

        if took_effect:
            here.gate.after = die
        else:
            here.gate.refuse = die
        with suppress(Killed):  # a write that the kernel refused by itself took no effect to die after
            _drive(here, state)
            refused += 1
        here.assert_lra_not_worse()
        _assert_restorable(here, state)
    assert refused < count / 4


@pytest.mark.parametrize("writer", WRITERS)
def test_at_no_moment_of_any_change_is_an_lra_worse_off(writer: str, tmp_path: Path) -> None:
    here = world(writer)
    here.gate.after = lambda number, operation: here.assert_lra_not_worse()
    assert all(applied.ok for applied in _drive(here, tmp_path))


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("most", [1, 2, 3])
def test_in_pieces_every_change_comes_to_the_same(
    writer: str, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut after any few writes and planned anew from there: no LRA is ever worse off, and all ends as it would."""
    monkeypatch.setattr(TransactionSize, "in_time", lambda self, made, took_s: None)
    whole, here = world(writer), world(writer)
    here.gate.after = lambda number, operation: here.assert_lra_not_worse()
    ends = _ends(whole, tmp_path / "whole", 1000)
    assert _ends(here, tmp_path / "pieces", most) == ends
    assert not here.differing()


def _ends(here: World, state: Path, most: int) -> list[dict[str, str]]:
    """What the files say after each target, with so many writes in one transaction."""
    found = []
    with Journal(state, boot_id=BOOT) as journal:
        executor = here.executor(journal)
        executor._size.too_slow(2 * most)
        for target in (*here.targets, {}):
            pieces, more = 0, True
            while more or pieces < 40:  # as many steps on the way down to a ceiling, too
                here.now_s += 10.0
                applied = asyncio.run(executor.apply(executor.plan(target, here.specs)))
                assert applied.ok, applied.failed
                pieces, more = pieces + 1, applied.more
            found.append(here.texts())
    return found


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("number", ERRNOS, ids=lambda number: errno.errorcode[number])
def test_any_write_may_be_refused_once(writer: str, number: int, tmp_path: Path) -> None:
    count = sum(operation.changes for operation in _operations(writer))
    for moment in (moment for moment in range(count) if _is_tried(moment, number)):
        here, state = world(writer), tmp_path / str(moment)
        here.gate.refuse = lambda n, operation, moment=moment: number if n == moment else None  # type: ignore[misc]
        here.gate.after = lambda n, operation, here=here: here.assert_lra_not_worse()  # type: ignore[misc]
        results = _drive(here, state)
        _assert_told(writer, results)
        _assert_restorable(here, state)


def _assert_told(writer: str, results: list[Applied]) -> None:
    """A failed change says which file and which errno; what is said to be written and not undone was written."""
    for applied in results:
        if not applied.ok:
            assert applied.failed is not None
            assert errno.errorcode[applied.failed.errno] in str(applied.failed)
            assert not applied.problems, applied.problems
            if (
                writer != "resctrl"
            ):  # a group that cannot be had does not take back what was written to cgroups
                assert set(applied.undone) == set(applied.written)


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("number", ERRNOS, ids=lambda number: errno.errorcode[number])
def test_any_file_may_fail_for_good(writer: str, number: int, tmp_path: Path) -> None:
    """Reads as well as writes, from some moment on, until it heals: the others go on, and all comes back."""
    operations = _operations(writer)
    places = list(dict.fromkeys((operation.kind, operation.path) for operation in operations))
    for index, (kind, path) in enumerate(places):
        if not _is_tried(index, number):
            continue
        here, state = world(writer), tmp_path / str(index)
        first = next(n for n, o in enumerate(operations) if (o.kind, o.path) == (kind, path))

        def refuse(
            _number: int,
            operation: Operation,
            kind: str = kind,
            path: str = path,
            here: World = here,
            first: int = first,
        ) -> int | None:
            return (
                number
                if (operation.kind, operation.path) == (kind, path) and len(here.gate.seen) > first
                else None
            )

        here.gate.refuse = refuse
        here.gate.after = lambda n, operation, here=here: here.assert_lra_not_worse()  # type: ignore[misc]
        for applied in _drive(here, state):
            assert applied.ok or errno.errorcode[applied.failed.errno] in str(applied.failed)  # type: ignore[union-attr]
        _assert_restorable(here, state)


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("comes_back", [False, True], ids=["gone", "new-inode"])
def test_a_cgroup_that_vanishes_at_any_write_owes_nothing(
    writer: str, comes_back: bool, tmp_path: Path
) -> None:
    count = sum(operation.changes for operation in _operations(writer))
    for moment in range(0 if ALL or comes_back else 1, count, SWAP_STEP):
        here, state = world(writer), tmp_path / str(moment)

        def vanish(number: int, _operation: Operation, moment: int = moment, here: World = here) -> None:
            if number == moment:
                here.vanish()
                if comes_back:
                    here.appear()

        here.gate.after = vanish
        _drive(here, state)
        here.gate.heal()
        if not comes_back:
            here.appear()
        _assert_restorable(here, state)


@pytest.mark.parametrize("writer", WRITERS)
def test_a_group_that_is_made_anew_between_the_look_and_the_write_is_not_written_to(
    writer: str, tmp_path: Path
) -> None:
    """The write lands in the group that was looked at, or nowhere; a unit is the same one when it is started again."""
    count = sum(operation.changes for operation in _operations(writer))
    for moment in range(0, count, SWAP_STEP):
        here, state = world(writer), tmp_path / str(moment)
        fresh: dict[str, str] = {}
        group = here.specs[-1].cgroup if writer == "resctrl" else here.specs[1].cgroup

        def of_group(here: World = here, group: str = group) -> dict[str, str]:
            return {path: text for path, text in here.texts().items() if f"{group}/" in path}

        def swap(
            number: int,
            operation: Operation,
            moment: int = moment,
            here: World = here,
            look: Callable[[], dict[str, str]] = of_group,
            fresh: dict[str, str] = fresh,
        ) -> None:
            if fresh:  # the first operation since
                assert look() == fresh, operation
                fresh.clear()
            if number == moment and not operation.path.startswith("D-Bus"):
                here.vanish()
                here.appear()
                fresh.update(look())

        here.gate.refuse = swap
        _drive(here, state)
        here.gate.heal()
        _assert_restorable(here, state)


@pytest.mark.parametrize("fate", ["goes", "goes and comes", "is taken"])
def test_a_link_that_goes_or_is_taken_at_any_moment_leaves_nothing(fate: str, tmp_path: Path) -> None:
    """Before any call of netlink or bpf(2): what perphd made is gone or goes, what somebody put there stays."""
    operations = _operations("egress")
    links = [n for n, o in enumerate(operations) if o.path.startswith(("tc", "bpf"))]
    for index in links[:: 1 if ALL else 5]:
        here, state = cast(EgressWorld, world("egress")), tmp_path / str(index)

        def strike(_number: int, _operation: Operation, index: int = index, here: EgressWorld = here) -> None:
            if len(here.gate.seen) == index + 1:
                here.link.is_taken() if fate == "is taken" else here.link.goes()
                if fate == "goes and comes":
                    here.link.comes()

        here.gate.refuse = strike
        here.gate.after = lambda n, operation, here=here: here.assert_lra_not_worse()  # type: ignore[misc]
        _drive(here, state)
        here.gate.heal()
        report = here.restore(state)
        assert report.complete, report
        assert not here.link.programs.pins()
        if fate == "goes":
            here.link.comes()
        if fate == "is taken":
            assert here.link.tc.roots["eth0"] == ("tbf", 5), "it is not perphd's to take away"
            here.link.comes()
        assert not here.differing(), here.differing()


def test_a_link_that_comes_back_gets_its_ceilings_again(tmp_path: Path) -> None:
    """However often it goes: that is nobody's interference, and no refusal for good."""
    here = cast(EgressWorld, world("egress"))
    with Journal(tmp_path, boot_id=BOOT) as journal:
        executor = here.executor(journal)

        def want() -> bool:
            here.now_s += 10.0
            return asyncio.run(executor.apply(executor.plan(here.targets[0], here.specs, here.now_s))).ok

        for _ in range(4):
            assert want()
            assert here.link.tc.ceilings["eth0"]
            here.link.goes()
            assert want(), "nothing is tried"
            assert "there is no network device eth0" in str(executor.not_enforceable("pi"))
            here.link.comes()
        assert want()
        assert not executor.conflicts()
        assert here.link.tc.ceilings["eth0"]
        assert asyncio.run(executor.restore()).complete
    assert not here.differing(), here.differing()


def test_every_setting_is_among_what_fails() -> None:
    """Of each writer all that it can set, but io_weight through systemd (as io_max there, by the same call)."""
    named = {
        "cgroup-v1": {
            "cpuset.cpus", "cpuset.mems", "cpu.shares", "cpu.idle", "cpu.cfs_quota_us", "blkio.bfq.weight",
            "blkio.throttle.read_bps_device", "freezer.state",
        },
        "cgroup-v2": {
            "cpuset.cpus", "cpuset.mems", "cpu.weight", "cpu.idle", "cpu.max", "memory.low", "memory.min",
            "memory.high", "memory.max", "memory.reclaim", "io.max", "io.bfq.weight", "io.latency", "cgroup.freeze",
        },
        "systemd": {
            "AllowedCPUs", "AllowedMemoryNodes", "CPUWeight", "CPUQuotaPerSecUSec", "MemoryLow", "MemoryHigh",
            "IOReadBandwidthMax", "freeze=True",
        },
        "resctrl": {"mkdir", "rmdir", "schemata", "tasks"},
        "egress": {"add", "class", "attach", "detach", "delete"},
    }  # fmt: skip
    for writer, names in named.items():
        changes = [operation for operation in _operations(writer) if operation.changes]
        words = {
            word
            for o in changes
            for word in (o.path.rpartition("/")[2], o.kind, *o.path.split(), *o.text.split())
        }
        assert names <= words, (writer, names - words)


def test_the_operations_are_those_of_every_writer() -> None:
    """What the table in docs/faults.md promises: each writer's own files are among those that fail above."""
    named: dict[str, Callable[[Operation], bool]] = {
        "cgroup-v1": lambda o: "/cpuset/" in o.path and o.kind == "write",
        "cgroup-v2": lambda o: o.path.endswith("memory.high") and o.kind == "write",
        "systemd": lambda o: o.path.startswith("D-Bus") and "AllowedCPUs" in o.path,
        "resctrl": lambda o: "/sys/fs/resctrl/perphd." in o.path and o.kind == "mkdir",
        "egress": lambda o: o.path == "tc eth0" and o.text == "add root",
    }
    for writer in WRITERS:
        operations = _operations(writer)
        assert any(named[writer](operation) for operation in operations), writer
        assert any(operation.kind == "read" for operation in operations), writer
