"""The journal cut anywhere, overwritten, deleted, of another boot, on a full or read-only disk: no original is lost."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perphd.domain.errors import Full, KernelError
from perphd.isolation import Journal, JournalInUse, restore
from perphd.isolation.journal import DAMAGED, FILE
from perphd.isolation.journal_format import COPY
from tests.unit.faults_fs import Killed
from tests.unit.faults_world import BOOT, World, cgroups, quick_folder

STEP = 1 if os.environ.get("PERPHD_FAULTS") == "all" else 7


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """In memory, where there is room for it: what a disk does is tried on purpose, below."""
    with quick_folder(tmp_path) as made:
        yield made


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perphd.isolation.journal.os.fsync", lambda fd: None)
    monkeypatch.setattr("perphd.isolation.journal.os.fdatasync", lambda fd: None)


@pytest.fixture
def left(tmp_path: Path) -> tuple[World, Path]:
    """A host as a killed daemon leaves it: everything changed, nothing given back."""
    here = cgroups("cgroup-v2")

    async def confine() -> None:
        with Journal(tmp_path, boot_id=BOOT) as journal:
            executor = here.executor(journal)
            for target in here.targets:
                here.now_s += 10.0
                assert (await executor.apply(executor.plan(target, here.specs, here.now_s))).ok

    asyncio.run(confine())
    assert here.differing()
    return here, tmp_path


def test_cut_at_every_byte_it_still_knows_every_original(left: tuple[World, Path]) -> None:
    _, state = left
    whole, copy = (state / FILE).read_bytes(), (state / COPY).read_bytes()
    assert copy == whole
    with Journal(state, boot_id=BOOT) as journal:
        originals = dict(journal.originals)
        intents = {path: journal.intents(path) for path in originals}
    assert len(originals) > 6
    marks = [index for index, byte in enumerate(whole) if byte == 10]
    lines = {index + shift for index in marks for shift in (0, 1, 2)}
    for end in sorted(
        {*range(0, marks[2], STEP), *lines} - {len(whole), len(whole) + 1}
    ):  # bytes of three lines, then ends
        (state / FILE).write_bytes(whole[:end])
        (state / COPY).write_bytes(copy)
        with Journal(state, boot_id=BOOT) as journal:
            assert dict(journal.originals) == originals, end
            assert {path: journal.intents(path) for path in originals} == intents, end
            assert len(journal.notes) == 1, journal.notes
        (state / FILE).write_bytes(whole)
        (state / COPY).write_bytes(copy[:end])
        with Journal(state, boot_id=BOOT) as journal:
            assert dict(journal.originals) == originals, end
            assert not journal.notes
            assert (state / COPY).read_bytes() == whole, "the copy is whole again"


def _nothing(state: Path) -> None:
    (state / FILE).unlink()


def _zeroes(state: Path) -> None:
    (state / FILE).write_bytes(b"\0" * len((state / FILE).read_bytes()))


def _half(state: Path) -> None:
    data = (state / FILE).read_bytes()
    (state / FILE).write_bytes(data[: len(data) // 2] + os.urandom(300) + data[len(data) // 2 :])


def _one_bit(state: Path) -> None:
    data = bytearray((state / FILE).read_bytes())
    data[len(data) // 3] ^= 4
    (state / FILE).write_bytes(data)


def _bad_copy(state: Path) -> None:
    (state / COPY).write_bytes(b"not what it was\n")


def _no_copy(state: Path) -> None:
    (state / COPY).unlink()


@pytest.mark.parametrize("damage", [_nothing, _zeroes, _half, _one_bit, _bad_copy, _no_copy])
def test_whatever_becomes_of_one_file_everything_is_given_back(
    left: tuple[World, Path], damage: Callable[[Path], None]
) -> None:
    here, state = left
    damage(state)
    report = here.restore(state)
    assert report.complete
    assert not here.differing()
    told = [note for note in report.notes if "no original is lost" in note]
    assert len(told) == (0 if damage in (_bad_copy, _no_copy) else 1)
    if damage in (_zeroes, _half, _one_bit):
        assert (state / DAMAGED).exists(), "for whoever wonders"


def test_of_another_boot_nothing_is_written_whatever_the_copy_says(left: tuple[World, Path]) -> None:
    here, state = left
    before = here.texts()
    (state / FILE).write_bytes((state / FILE).read_bytes()[:-40])
    report = restore(here.fs, state, boot_id="another")
    assert here.texts() == before
    assert not report
    assert any("earlier boot" in note for note in report.notes)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO])
@pytest.mark.parametrize("call", ["write", "fdatasync", "fsync", "open", "rename"])
def test_on_a_disk_that_takes_nothing_nothing_is_changed(
    number: int, call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it is said, tried again, and goes on when there is room."""
    here = cgroups("cgroup-v2")
    real = getattr(os, call)

    def refused(*args: object, **kwargs: object) -> object:
        if call == "open" and not int(args[1]) & (os.O_WRONLY | os.O_RDWR):  # type: ignore[call-overload]
            return real(*args, **kwargs)
        raise OSError(number, os.strerror(number))

    async def confine() -> None:
        monkeypatch.setattr(f"perphd.isolation.journal.os.{call}", refused)
        with Journal(tmp_path, boot_id=BOOT) as journal:
            executor = here.executor(journal)
            here.now_s += 10.0
            applied = await executor.apply(executor.plan(here.targets[0], here.specs, here.now_s))
            if applied.ok:  # this call is not needed for a journal that is there already
                assert (call, number) not in [("write", number), ("fdatasync", number)]
            else:
                assert errno.errorcode[number] in str(applied.failed)
                assert str(tmp_path) in str(applied.failed)
                assert not here.differing()
                assert "no kernel file is changed" in str(applied.failed)
            monkeypatch.setattr(f"perphd.isolation.journal.os.{call}", real)
            here.now_s += 120.0
            assert (await executor.apply(executor.plan(here.targets[0], here.specs, here.now_s))).ok
            assert here.differing()

    asyncio.run(confine())
    assert here.restore(tmp_path).complete
    assert not here.differing()


def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    """/dev/full answers as a full disk does, without a patched function."""
    here = cgroups("cgroup-v2")
    with Journal(tmp_path, boot_id=BOOT) as journal:
        os.dup2(full := os.open("/dev/full", os.O_WRONLY | os.O_APPEND), journal._fd)
        os.close(full)
        executor = here.executor(journal)
        applied = asyncio.run(executor.apply(executor.plan(here.targets[0], here.specs, 10.0)))
        assert isinstance(applied.failed, Full)
        assert not here.differing()
        assert asyncio.run(executor.apply(executor.plan(here.targets[0], here.specs, 100.0))).ok
    assert here.restore(tmp_path).complete
    assert not here.differing()


def test_restoring_needs_no_room(left: tuple[World, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    here, state = left

    def refused(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("perphd.isolation.journal.os.write", refused)
    assert here.restore(state).complete
    assert not here.differing()


def test_two_daemons_the_second_changes_nothing_and_names_the_first(left: tuple[World, Path]) -> None:
    here, state = left
    before = here.texts()
    files = {path.name: path.read_bytes() for path in state.iterdir() if path.name != "lock"}
    with Journal(state, boot_id=BOOT):
        for start in (lambda: Journal(state, boot_id=BOOT), lambda: here.restore(state)):
            with pytest.raises(JournalInUse, match=f"process {os.getpid()}"):
                start()
        assert here.texts() == before
    assert {path.name: path.read_bytes() for path in state.iterdir() if path.name != "lock"} == files


def test_killed_at_every_write_of_the_journal_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    for moment in range(200):
        here, state, count = cgroups("cgroup-v2"), tmp_path / str(moment), 0

        def die(fd: int, data: bytes, moment: int = moment) -> int:
            nonlocal count
            count += 1
            if count > moment:
                real(fd, data[: len(data) // 2])  # torn, as a kill in the middle of a large write leaves it
                raise Killed
            return real(fd, data)

        async def live(here: World = here, state: Path = state) -> None:
            with Journal(state, boot_id=BOOT) as journal:
                executor = here.executor(journal)
                for target in (*here.targets, {}):
                    here.now_s += 10.0
                    await executor.apply(executor.plan(target, here.specs, here.now_s))

        monkeypatch.setattr("perphd.isolation.journal.os.write", die)
        try:
            asyncio.run(live())
            break
        except Killed:
            pass
        finally:
            monkeypatch.setattr("perphd.isolation.journal.os.write", real)
        here.assert_lra_not_worse()
        report = here.restore(state)
        assert report.complete
        assert not report.foreign
        assert not here.differing()
    assert 5 < moment < 199


def test_an_unreadable_journal_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    here = cgroups("cgroup-v2")
    with Journal(tmp_path, boot_id=BOOT) as journal:
        executor = here.executor(journal)
        applied = asyncio.run(executor.apply(executor.plan(here.targets[0], here.specs, 10.0)))
        assert isinstance(applied.failed, KernelError)
        assert not here.differing()
    assert (tmp_path / FILE).is_dir()
