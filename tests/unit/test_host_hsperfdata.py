"""Performance data of real JVMs (OpenJDK 17, two collectors, 60 MiB live in a heap of 128 MiB), and damage."""

from __future__ import annotations

import contextlib
import gzip
import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.domain.errors import ParseError
from perphd.domain.reading import Reading, Unavailable
from perphd.host.fs import RealFs
from perphd.host.hsperfdata import (
    MOST_NAMES,
    SEARCHED,
    CollectionShare,
    collection_s,
    find_jvm,
    parse,
    read_jvm,
)

FIXTURES = Path(__file__).parents[1] / "fixtures/jvm"


def _file(name: str) -> bytes:
    return gzip.decompress((FIXTURES / f"{name}.hsperf.gz").read_bytes())


@pytest.mark.parametrize(("name", "spent_s"), [("serial", 1.2226), ("g1", 1.0189)])
def test_real_files(name: str, spent_s: float) -> None:
    counters = parse(_file(name))
    assert counters["java.property.java.vm.name"] == "OpenJDK 64-Bit Server VM"
    assert collection_s(counters) == pytest.approx(spent_s, abs=1e-3)


@given(st.data())
def test_damaged_files_are_refused_or_read(data: st.DataObject) -> None:
    whole = bytearray(_file("serial"))
    for _ in range(data.draw(st.integers(1, 8))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    with contextlib.suppress(ParseError):
        parse(cut)


@pytest.mark.parametrize(
    ("at", "value"), [(0, b"\0"), (4, b"\7"), (5, b"\1"), (7, b"\0"), (24, struct.pack("<I", 1 << 31))]
)
def test_what_is_no_such_file_is_refused(at: int, value: bytes) -> None:
    data = bytearray(_file("serial"))
    data[at : at + len(value)] = value
    with pytest.raises(ParseError):
        parse(bytes(data))


def _process(root: Path, pid: int, inner: int, data: bytes) -> None:
    folder = root / f"proc/{pid}/root/tmp/hsperfdata_app"
    folder.mkdir(parents=True, exist_ok=True)
    (root / f"proc/{pid}/status").write_text(f"Name:\tjava\nNSpid:\t{pid}\t{inner}\n")
    (folder / str(inner)).write_bytes(data)


def _of(fs: RealFs, pid: int) -> Reading:
    path = find_jvm(fs, pid)
    return path if isinstance(path, Unavailable) else read_jvm(fs, path)


def test_a_jvm_in_a_container_is_found_by_its_own_number(tmp_path: Path) -> None:
    _process(tmp_path, 4711, 7, _file("serial"))
    assert isinstance(_of(RealFs(tmp_path), 4711), float)


def test_a_process_without_such_a_file_is_no_jvm(tmp_path: Path) -> None:
    assert isinstance(find_jvm(RealFs(), os.getpid()), Unavailable)
    assert isinstance(find_jvm(RealFs(tmp_path), 1), Unavailable)


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    _process(tmp_path, 5, 5, b"")
    place = tmp_path / "proc/5/root/tmp/hsperfdata_app/5"
    place.unlink()
    (tmp_path / "elsewhere").write_bytes(_file("serial"))
    place.symlink_to(tmp_path / "elsewhere")
    assert isinstance(_of(RealFs(tmp_path), 5), Unavailable)


class _Counting(RealFs):
    """Counts what it is asked for."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.listed: list[int] = []
        self.looked = 0

    def read(self, path: str) -> bytes:
        self.looked += path.endswith("/status")
        return super().read(path)

    def list_strangers(self, path: str, most: int) -> list[str]:
        self.listed.append(len(super().list_strangers(path, most)))
        return super().list_strangers(path, most)


def test_the_folder_of_a_user_in_the_process_own_passwd_is_found_without_listing(tmp_path: Path) -> None:
    _process(tmp_path, 8, 8, _file("serial"))
    (tmp_path / "proc/8/status").write_text("Name:\tjava\nUid:\t990\t990\t990\t990\nNSpid:\t8\n")
    (tmp_path / "proc/8/root/etc").mkdir()
    (tmp_path / "proc/8/root/etc/passwd").write_text("root:x:0:0::/:\nother:x:99:99::/:\napp:x:990:990::/:\n")
    fs = _Counting(tmp_path)
    assert isinstance(_of(fs, 8), float)
    assert fs.listed == []
    (tmp_path / "proc/8/root/etc/passwd").write_text("root:x:0:0::/:\n")
    assert isinstance(_of(fs, 8), float)
    assert len(fs.listed) == 1


def test_however_much_is_in_a_group_and_in_its_tmp_a_look_is_bounded(tmp_path: Path) -> None:
    for pid in range(1, 41):
        _process(tmp_path, pid, 1000, _file("serial"))  # none of them is process 1000 of its container
        (tmp_path / f"proc/{pid}/status").write_text(f"Name:\tsh\nNSpid:\t{pid}\n")
    crowd = tmp_path / "proc/1/root/tmp"
    for number in range(MOST_NAMES + 10):
        (crowd / str(number)).touch()
    fs = _Counting(tmp_path)
    share, pids = CollectionShare(fs), tuple(range(1, 41))
    for second in range(10):
        assert isinstance(share.read(pids, float(second)), Unavailable)
        assert fs.looked <= SEARCHED * (second + 1)
    assert max(fs.listed) == MOST_NAMES
    for second in range(10, 100):
        share.read(pids, float(second))
    before = fs.looked
    for second in range(1000, 1060):  # by now the pauses are long
        share.read(pids, float(second))
    assert fs.looked - before <= len(pids)


def test_a_jvm_is_found_once_its_process_has_become_one(tmp_path: Path) -> None:
    (tmp_path / "proc/9").mkdir(parents=True)
    (tmp_path / "proc/9/status").write_text("Name:\tsh\nNSpid:\t9\n")
    share = CollectionShare(RealFs(tmp_path))
    assert isinstance(share.read((9,), 0.0), Unavailable)
    _process(tmp_path, 9, 9, _file("serial"))
    assert isinstance(share.read((9,), 6.0), Unavailable)
    assert share.read((9,), 7.0) == 0.0
    (tmp_path / "proc/9/root/tmp/hsperfdata_app/9").unlink()
    assert isinstance(share.read((9,), 8.0), Unavailable)


def _after(data: bytes, seconds: float) -> bytes:
    """The file when its collector has worked that much longer."""
    before = struct.pack("<q", int(str(parse(data)["sun.gc.collector.0.time"])))
    assert data.count(before) == 1
    return data.replace(before, struct.pack("<q", struct.unpack("<q", before)[0] + int(seconds * 1e9)))


def test_the_share_of_time_in_collection(tmp_path: Path) -> None:
    share = CollectionShare(RealFs(tmp_path))
    assert isinstance(share.read((9,), 0.0), Unavailable)
    _process(tmp_path, 9, 9, _file("serial"))
    assert isinstance(share.read((9,), 10.0), Unavailable)
    _process(tmp_path, 9, 9, _after(_file("serial"), 3.0))
    assert share.read((9,), 14.0) == pytest.approx(0.75)
    assert share.read((9,), 15.0) == 0.0
