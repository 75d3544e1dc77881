"""The file seam on real files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rdt import RealFs


def test_files_of_many_records_are_read_to_the_end():
    """The kernel gives such files a page at a time: /proc/mounts of a host with many containers, for one."""
    text = RealFs().read("/proc/self/maps")
    with open("/proc/self/maps", "rb") as file:
        whole = file.read()
    assert len(whole) > 4096
    assert text.count(b"\n") > 0.9 * whole.count(b"\n")


def test_what_is_kept_open_shows_the_present(tmp_path):
    path = tmp_path / "counter"
    path.write_text("1\n")
    fs = RealFs(tmp_path)
    file = fs.open("/counter")
    assert file.read() == b"1\n"
    path.write_text("22\n")
    assert file.read() == b"22\n"
    path.write_bytes(b"x" * 200_000)
    assert len(file.read()) == len(fs.read("/counter")) == 200_000
    file.close()
    file.close()


def test_writing_makes_no_files(tmp_path):
    with pytest.raises(FileNotFoundError):
        RealFs(tmp_path).write("/new", b"1\n")
    assert list(tmp_path.iterdir()) == []


def test_directories(tmp_path):
    fs = RealFs(str(tmp_path) + "/")
    fs.mkdir("/b")
    fs.mkdir("/a")
    assert (fs.listdir("/"), fs.exists("/a"), fs.exists("/c")) == (["a", "b"], True, False)
    before = fs.identity("/a")
    assert before == (os.stat(tmp_path / "a").st_dev, os.stat(tmp_path / "a").st_ino)
    fs.rmdir("/a")
    with pytest.raises(FileNotFoundError):
        fs.identity("/a")


def test_the_lock_keeps_writers_out_and_readers_in(tmp_path):
    fs = RealFs(tmp_path)
    Path(tmp_path / "r").mkdir()
    with fs.lock("/r", exclusive=False, timeout_s=0.0):
        with fs.lock("/r", exclusive=False, timeout_s=0.0):
            pass
        with pytest.raises(TimeoutError), fs.lock("/r", exclusive=True, timeout_s=0.02):
            pass
    with fs.lock("/r", exclusive=True, timeout_s=0.0), pytest.raises(TimeoutError):  # noqa: SIM117
        with fs.lock("/r", exclusive=False, timeout_s=0.0):
            pass
