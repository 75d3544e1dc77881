"""Back-off from disks: what the kernel's files say, and what follows for batch."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perphd.agent.devices import disks as contended_disks
from perphd.agent.devices.backoff import DeviceBackoff
from perphd.agent.devices.disks import ContendedDisks
from perphd.domain.allocation import KEEP, UNTOUCHED, IoLimit, Settings
from perphd.domain.sample import Sample
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.host.disk_use import DiskCounters, disk_counters, group_bytes
from perphd.host.fs import RealFs

DISKSTATS = """\
   8       0 sda 10 0 200 5 20 0 400 7 0 1234 12 0 0 0 0
   8       1 sda1 10 0 200 5 20 0 400 7 0 1234 12 0 0 0 0
 253       0 dm-0 10 0 200 5 20 0 400 7 0 1234 12 0 0 0 0
   7       0 loop0 1 0 2 5 2 0 4 7 0 99 12
   1       0 ram0 1 0 2 5 2 0 4 7 0 99 12
 252       0 zram0 1 0 2 5 2 0 4 7 0 99 12
"""
V1 = "8:0 Read 100\n8:0 Write 20\n8:0 Sync 120\n8:0 Total 120\nTotal 120\n"
V2 = "8:0 rbytes=100 wbytes=20 rios=1 wios=2 dbytes=0 dios=0\n7:0 \n"
V2_ON_5_15 = "7:7 7:6 8:16 8:0 rbytes=100 wbytes=20 rios=1 wios=2 dbytes=0 dios=0\n7:0 "
DISK = "8:0"
SPECS = (
    WorkloadSpec("db", Kind.LRA, "/db"),
    WorkloadSpec("hog", Kind.BATCH, "/hog"),
    WorkloadSpec("paid", Kind.BATCH, "/paid", band="silver"),
)


def test_whole_disks_count_once_and_no_partition_file_or_memory_does(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/diskstats").write_text(DISKSTATS)
    for name in ("sda", "dm-0", "loop0", "ram0", "zram0"):
        (tmp_path / "sys/block" / name).mkdir(parents=True)
    assert disk_counters(RealFs(str(tmp_path))) == {"8:0": DiskCounters(1234, 600 * 512)}
    assert disk_counters(RealFs(str(tmp_path / "nothing"))) == {}


@pytest.mark.parametrize(
    ("version", "file", "text"),
    [
        (1, "blkio.throttle.io_service_bytes_recursive", V1),
        (2, "io.stat", V2),
        (2, "io.stat", V2_ON_5_15),
    ],
)
def test_a_group_s_bytes_by_disk(tmp_path: Path, version: int, file: str, text: str) -> None:
    (tmp_path / "g").mkdir()
    (tmp_path / "g" / file).write_text(text)
    hierarchy = SimpleNamespace(version=version, path=lambda *parts: "/".join(("", *parts)))
    found: Any = SimpleNamespace(of=lambda name: hierarchy)
    assert group_bytes(RealFs(str(tmp_path)), found, "g") == {"8:0": 120}
    assert group_bytes(RealFs(str(tmp_path)), found, "gone") == {}
    nothing: Any = SimpleNamespace(of=lambda name: None)
    assert group_bytes(RealFs(str(tmp_path)), nothing, "g") == {}


class Disk:
    """One disk of 300 MB/s that batch can take from the database; time goes on in seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, waits_pct: float = 50.0) -> None:
        nothing: Any = None
        self.backoff = DeviceBackoff([ContendedDisks(nothing, nothing)])
        self.now_s, self.busy_ms, self.waits_pct = 0.0, 0, waits_pct
        self.moved = {"db": 0, "hog": 0, "paid": 0}
        monkeypatch.setattr(
            contended_disks,
            "disk_counters",
            lambda fs: {DISK: DiskCounters(self.busy_ms, sum(self.moved.values()))},
        )
        monkeypatch.setattr(
            contended_disks, "group_bytes", lambda fs, found, cgroup: {DISK: self.moved[cgroup[1:]]}
        )

    def second(self, busy: float, **rates: float) -> list[tuple[str, str]]:
        self.now_s += 1.0
        self.busy_ms += int(1000 * busy)
        for name, rate in rates.items():
            self.moved[name] += int(rate)
        samples = {
            spec.name: Sample(spec.name, self.now_s, 1.0, cpu_usage_cores=2.0, io_some_pct=self.waits_pct)
            for spec in SPECS
        }
        return self.backoff.step(self.now_s, SPECS, samples)


def contended(monkeypatch: pytest.MonkeyPatch, waits_pct: float = 50.0) -> Disk:
    disk = Disk(monkeypatch, waits_pct)
    for _ in range(6):
        disk.second(0.9, db=100e6)
    for _ in range(3):
        disk.second(1.0, db=10e6, hog=200e6, paid=400e6)
    return disk


def test_the_culprit_gets_a_ceiling_and_paid_work_none(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = contended(monkeypatch)
    (row,) = disk.backoff.rows()
    assert (row.device, row.round, [each.workload for each in row.restrictions]) == (DISK, 1, ["hog"])
    wanted = disk.backoff.over("hog", UNTOUCHED)
    assert wanted.io_max == (IoLimit(DISK, 20_000_000, 20_000_000),)
    assert wanted.cpu_max_cores is KEEP
    assert disk.backoff.over("paid", UNTOUCHED) == UNTOUCHED
    assert disk.backoff.over("db", UNTOUCHED) == UNTOUCHED


def test_an_operators_lower_ceiling_and_other_disks_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = contended(monkeypatch)
    had = Settings(io_max=(IoLimit("7:0", read_bytes=5), IoLimit(DISK, read_bytes=1000, read_ops=9)))
    assert disk.backoff.over("hog", had).io_max == (
        IoLimit("7:0", read_bytes=5),
        IoLimit(DISK, 1000, 20_000_000, 9),
    )


def test_rounds_tighten_take_cpus_then_stand_still_at_times_and_all_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = contended(monkeypatch)
    cpus, frozen = set(), set()
    for _ in range(15):
        disk.second(1.0, db=10e6, hog=20e6)
        wanted = disk.backoff.over("hog", UNTOUCHED)
        cpus.add(wanted.cpu_max_cores)
        frozen.add(wanted.frozen)
    assert {KEEP, 0.06} <= cpus
    assert frozen == {KEEP, True}
    for _ in range(5):
        disk.second(1.0, db=10e6, hog=20e6)
    assert disk.backoff.rows() == ()
    assert disk.backoff.over("hog", UNTOUCHED) == UNTOUCHED


def test_an_lra_that_does_not_wait_is_no_victim(monkeypatch: pytest.MonkeyPatch) -> None:
    assert contended(monkeypatch, waits_pct=2.0).backoff.rows() == ()


def test_recovery_gives_everything_back(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = contended(monkeypatch)
    told = [text for _ in range(8) for _, text in disk.second(0.9, db=100e6, hog=20e6)]
    assert told == ["the device recovered in round 1"]
    assert disk.backoff.rows() == ()
