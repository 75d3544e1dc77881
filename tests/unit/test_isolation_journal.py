"""The journal of originals: what it promises about disks, crashes, damage and other daemons."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.domain.errors import Full, KernelError, PerphError
from perphd.host.fs import RealFs
from perphd.isolation import journal as module
from perphd.isolation import journal_format
from perphd.isolation.journal import Journal
from perphd.isolation.journal_format import COPY, Original
from perphd.isolation.journal_lock import JournalInUse

A = Original("/cg/a/cpu.weight", b"100\n", (1, 7), "cpu_weight", "batch")
B = Original("/cg/a/cpu.idle", b"0\n", (1, 7), "cpu_weight", "batch")


def opened(directory: Path, boot: str = "boot") -> Journal:
    return Journal(directory, boot_id=boot)


def test_originals_and_intents_survive_a_killed_process(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        journal.record([A, B], [(A.path, "10")])
        journal.intend([(A.path, "20"), (A.path, "10"), (B.path, "1")])
    with opened(tmp_path) as journal:
        assert list(journal.originals) == [A.path, B.path]
        assert journal.originals[A.path].raw == b"100\n"
        assert [entry.sequence for entry in journal.originals.values()] == [1, 2]
        assert journal.intents(A.path) == ("20", "10")
        assert journal.notes == ()


def test_of_all_that_was_written_to_a_file_the_latest_values_are_remembered(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        journal.record([A])
        for value in range(1000):
            journal.intend([(A.path, str(value))])
        assert journal.intents(A.path) == tuple(map(str, range(984, 1000)))
    with opened(tmp_path) as journal:
        assert journal.intents(A.path) == tuple(map(str, range(984, 1000)))


def test_originals_are_on_disk_when_record_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[bytes] = []
    with opened(tmp_path) as journal:
        monkeypatch.setattr(os, "fdatasync", lambda fd: synced.append(Path(journal.path).read_bytes()))
        journal.record([A], [(A.path, "10")])
        assert len(synced) == 1
        assert b'"raw":"100\\n"' in synced[0]
        journal.intend([(A.path, "11")])
        assert len(synced) == 1, (
            "intents are not synced: a killed process keeps them, a power cut needs them not"
        )


def test_a_copy_that_cannot_be_shortened_or_opened_brings_nothing_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def refused(path: str, *args: int, **kwargs: int) -> int:
        if str(path).endswith(COPY):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        return real(path, *args, **kwargs)

    truncate, asked = os.ftruncate, []

    def failing(fd: int, length: int) -> None:
        asked.append(os.readlink(f"/proc/self/fd/{fd}"))
        if asked[-1].endswith(COPY):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        truncate(fd, length)

    with opened(tmp_path) as journal:
        journal.record([A, B], [(A.path, "10")])
        monkeypatch.setattr(os, "open", refused)
        monkeypatch.setattr(os, "ftruncate", failing)
        journal.close_out([A.path, B.path])
        assert [Path(path).name for path in asked] == [COPY, Path(journal.path).name], (
            "the copy before the journal"
        )
        assert not (tmp_path / COPY).exists()
    with opened(tmp_path) as journal:
        assert not journal.originals
        assert journal.notes == ()
        monkeypatch.undo()
        journal.record([A])
    with opened(tmp_path) as journal:
        assert list(journal.originals) == [A.path]
        assert (tmp_path / COPY).read_bytes() == Path(journal.path).read_bytes(), "and there is one again"


def test_closing_everything_leaves_the_header_and_order_goes_on(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        empty = Path(journal.path).read_bytes()
        journal.record([A, B])
        journal.close_out([A.path])
        assert list(journal.originals) == [B.path]
        journal.close_out([B.path, "/never/there"])
        assert Path(journal.path).read_bytes() == empty == (tmp_path / COPY).read_bytes()
        journal.record([A])
        assert journal.originals[A.path].sequence == 3
    with opened(tmp_path) as journal:
        assert list(journal.originals) == [A.path]


def test_a_closed_file_stays_closed_for_the_next_reader(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        journal.record([A, B])
        journal.close_out([A.path])
    with opened(tmp_path) as journal:
        assert list(journal.originals) == [B.path]


def test_another_boots_journal_is_set_aside_with_a_note(tmp_path: Path) -> None:
    with opened(tmp_path, "monday") as journal:
        journal.record([A])
    with opened(tmp_path, "tuesday") as journal:
        assert not journal.originals
        assert "1 originals are from an earlier boot" in journal.notes[0]
        assert (tmp_path / module.ASIDE).exists()
    with opened(tmp_path, "tuesday") as journal:
        assert journal.notes == ()


def test_a_last_line_that_lacks_only_its_end_is_whole(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        journal.record([A, B])
        path = Path(journal.path)
    (tmp_path / COPY).unlink()
    path.write_bytes(path.read_bytes()[:-1])
    with opened(tmp_path) as journal:
        assert list(journal.originals) == [A.path, B.path]
        assert journal.notes == ()
    path.write_bytes(path.read_bytes()[:-2])
    (tmp_path / COPY).unlink()
    with opened(tmp_path) as journal:
        assert list(journal.originals) == [A.path]
        assert "the last line is incomplete" in journal.notes[0]


@given(cut=st.integers(1, 400))
def test_a_torn_end_costs_only_what_stood_for_no_write(
    cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("torn")
    with opened(directory) as journal:
        journal.record([A])
        whole = Path(journal.path).stat().st_size
        journal.record([B])
    path = directory / module.FILE
    data = path.read_bytes()
    path.write_bytes(data[: max(whole, len(data) - cut)])
    with opened(directory) as journal:
        assert journal.originals[A.path].raw == A.raw
        journal.record([B])
    with opened(directory) as journal:
        assert list(journal.originals) == [A.path, B.path]
        assert journal.notes == ()


@given(position=st.integers(0, 10_000), value=st.integers(0, 255))
def test_damage_is_reported_and_the_rest_is_used(
    position: int, value: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("damage")
    with opened(directory) as journal:
        journal.record([A])
        journal.record([B])
    path = directory / module.FILE
    data = bytearray(path.read_bytes())
    position %= len(data)
    ends = [n for n, byte in enumerate(data) if byte == ord("\n")]
    changed = data[position] != value
    data[position] = value
    path.write_bytes(data)
    with opened(directory) as journal:
        assert all(entry in (A.raw, B.raw) for entry in (e.raw for e in journal.originals.values()))
        lost = (
            0 if not changed else 2 if position in ends else 1
        )  # a lost line end takes both its lines along
        assert len(journal.originals) >= 2 - lost
        assert bool(journal.notes) is changed


def test_a_missing_header_is_said(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        journal.record([A])
    path = tmp_path / module.FILE
    path.write_bytes(b"garbage\n" + b"".join(path.read_bytes().splitlines(keepends=True)[1:]))
    (tmp_path / COPY).unlink()
    with opened(tmp_path) as journal:
        assert list(journal.originals) == [A.path]
        assert "assumed to be from this boot" in journal.notes[0]
    assert (tmp_path / module.DAMAGED).exists()


@given(data=st.binary(max_size=300))
def test_arbitrary_bytes_never_break_the_opening(
    data: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("noise")
    (directory / module.FILE).write_bytes(data)
    with opened(directory) as journal:
        assert not journal.originals


def test_a_newer_version_is_refused(tmp_path: Path) -> None:
    line = journal_format._line({"kind": "header", "version": 99, "boot": "boot"})
    (tmp_path / module.FILE).write_text(line)
    with pytest.raises(PerphError, match="version 99"):
        opened(tmp_path)
    (tmp_path / module.FILE).unlink()
    opened(tmp_path).close()  # the refused opening gave the lock back


def test_a_second_journal_on_the_directory_is_refused_naming_the_pid(tmp_path: Path) -> None:
    with opened(tmp_path):
        with pytest.raises(JournalInUse, match=f"in use by process {os.getpid()}") as caught:
            opened(tmp_path)
        assert caught.value.pid == os.getpid()
    opened(tmp_path).close()


def test_a_full_disk_refuses_and_leaves_the_journal_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as journal:
        journal.record([A])
        real = os.write

        def half(fd: int, data: bytes) -> int:
            if len(data) > 20:
                return real(fd, data[:20])
            raise OSError(errno.ENOSPC, "full")

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", lambda fd, data: half(fd, data if len(data) > 100 else data[:5]))
            with pytest.raises(Full, match="no kernel file is changed"):
                journal.record([B])
        assert list(journal.originals) == [A.path]
        journal.record([B])
    with opened(tmp_path) as journal:
        assert list(journal.originals) == [A.path, B.path]
        assert journal.notes == ()


def test_a_directory_that_cannot_be_made_refuses_recording_but_not_opening(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with opened(tmp_path / "file" / "state") as journal:
        assert not journal.originals
        with pytest.raises(KernelError, match="no kernel file is changed"):
            journal.record([A])
        assert not journal.originals


def test_a_large_journal_is_rewritten_with_what_still_matters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_COMPACT_ABOVE_BYTES", 2000)
    with opened(tmp_path) as journal:
        journal.record([A])
        for value in range(200):
            journal.intend([(A.path, str(value))])
        assert Path(journal.path).stat().st_size < 4000
    with opened(tmp_path) as journal:
        assert journal.originals[A.path].raw == A.raw
        assert journal.intents(A.path)[-1] == "199"


def test_a_journal_of_much_that_matters_is_rewritten_when_it_has_doubled_and_not_for_every_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_COMPACT_ABOVE_BYTES", 2000)
    sizes: list[int] = []
    rewrite = Journal._rewrite

    def counted(journal: Journal) -> None:
        rewrite(journal)
        sizes.append(journal._size)

    monkeypatch.setattr(Journal, "_rewrite", counted)
    many = [Original(f"/cg/{n}/cpu.weight", b"100\n", (1, n), "cpu_weight", "w") for n in range(40)]
    with opened(tmp_path) as journal:
        journal.record(many, [(entry.path, str(value)) for entry in many for value in range(16)])
        journal.intend([(many[0].path, "1000")])
        assert sizes[-1] > 20 * 2000
        for value in range(100):
            journal.intend([(many[value % 40].path, str(2000 + value))])
        assert len(sizes) == 2  # the first file, and once more
        for value in range(1500):
            journal.intend([(many[value % 40].path, str(3000 + value))])
            assert Path(journal.path).stat().st_size < 2 * sizes[-1] + 200
        assert 3 <= len(sizes) <= 5
    with opened(tmp_path) as journal:
        assert [entry.path for entry in journal.originals.values()] == [entry.path for entry in many]
        journal.intend([(many[0].path, "written anew")])
        assert len(sizes) <= 6
        journal.close_out(entry.path for entry in many)
        journal.record([A])
        for value in range(200):
            journal.intend([(A.path, str(value))])
        assert Path(journal.path).stat().st_size < 4000  # little that matters: small again


def test_bytes_that_are_no_utf8_are_kept(tmp_path: Path) -> None:
    odd = Original("/cg/ä/x", b"\xff\x00\n", (1, 2), "cpus", "w")
    with opened(tmp_path) as journal:
        journal.record([odd])
    with opened(tmp_path) as journal:
        assert journal.originals[odd.path].raw == odd.raw


def test_names_that_are_no_utf8_lead_to_the_same_file(tmp_path: Path) -> None:
    directory = os.fsencode(tmp_path) + b"/b\xffd"
    os.mkdir(directory)
    path = os.fsdecode(directory) + "/cpu.shares"
    Path(path).write_bytes(b"1024\n")
    with opened(tmp_path / "state") as journal:
        journal.record([Original(path, b"1024\n", (1, 2), "cpu_weight", "w")])
        journal.intend([(path, "2")])
    with opened(tmp_path / "state") as journal:
        (found,) = journal.originals
        assert os.fsencode(found) == directory + b"/cpu.shares"
        assert RealFs().read(found) == b"1024\n"
        assert journal.intents(found) == journal.intents(path)
        journal.close_out([found])
        assert not journal.originals


def test_a_file_system_without_locks_is_not_taken_for_another_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    (tmp_path / "lock").write_text("4711\n")
    monkeypatch.setattr("perphd.isolation.journal_lock.fcntl.flock", refuse)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(KernelError, match="ENOLCK") as caught:
        opened(tmp_path)
    assert "4711" not in str(caught.value)
    assert os.listdir("/proc/self/fd") == before
