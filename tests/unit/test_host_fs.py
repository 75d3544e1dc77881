"""Kernel files below a root: what counts as a directory, and errors by class."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perphd.domain.errors import Gone, KernelError
from perphd.host.fs import RealFs, hold


def test_subdirectories_are_directories_only(tmp_path: Path) -> None:
    for name in ("b.service", "a"):
        (tmp_path / "cg" / name).mkdir(parents=True)
    (tmp_path / "cg/cgroup.procs").write_text("")
    (tmp_path / "cg/link").symlink_to("a")
    fs = RealFs(tmp_path)
    assert fs.subdirectories("/cg") == ["a", "b.service"]
    with pytest.raises(Gone):
        fs.subdirectories("/none")
    with pytest.raises(KernelError, match="list"):
        fs.subdirectories("/cg/cgroup.procs")


def test_what_comes_in_pieces_is_read_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernel files end a piece where the next record would pass the page, wherever that is."""
    (tmp_path / "cgroup.threads").write_bytes(b"".join(b"%d\n" % tid for tid in range(100_000, 102_000)))
    whole = (tmp_path / "cgroup.threads").read_bytes()
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, count, offset: pread(fd, min(count, 4091), offset))
    assert RealFs(tmp_path).read("/cgroup.threads") == whole


def test_a_held_file_reads_and_writes_what_is_there_now(tmp_path: Path) -> None:
    (tmp_path / "cg").mkdir()
    file = tmp_path / "cg/cpu.shares"
    file.write_text("1024\n")
    fs = RealFs(tmp_path)
    held = hold(fs, "/cg/cpu.shares", fs.identity("/cg"))
    assert held is not None
    assert held.read() == b"1024\n"
    held.write(b"2048\n")
    assert file.read_text() == "2048\n"
    file.write_text("9999\n")
    assert held.read() == b"9999\n"
    held.close()
    held.close()


def test_a_file_is_not_held_in_a_directory_that_took_the_place_of_another(tmp_path: Path) -> None:
    (tmp_path / "cg").mkdir()
    (tmp_path / "cg/cpu.shares").write_text("1024\n")
    fs = RealFs(tmp_path)
    before = fs.identity("/cg")
    os.rename(tmp_path / "cg", tmp_path / "old")
    with pytest.raises(Gone):
        hold(fs, "/cg/cpu.shares", before)
    (tmp_path / "cg").mkdir()
    (tmp_path / "cg/cpu.shares").write_text("1024\n")
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(Gone):
        hold(fs, "/cg/cpu.shares", before)
    with pytest.raises(Gone):
        hold(fs, "/cg/none", fs.identity("/cg"))
    assert len(os.listdir("/proc/self/fd")) == descriptors
