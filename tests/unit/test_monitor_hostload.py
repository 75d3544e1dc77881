"""The host's load: only CPUs that workloads may be given count, and nothing is made up for what is missing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perphd.domain.cpuset import CpuSet
from perphd.domain.reading import Unavailable
from perphd.host.fs import RealFs
from perphd.monitor.hostload import HostLoad

HZ = os.sysconf("SC_CLK_TCK")


def stat(**busy: int) -> str:
    """A /proc/stat: of each CPU ``user`` as given, a fifth of it as guest, and much idle time and iowait."""
    lines = [f"{name} {ticks} 1 2 900000 800000 3 4 5 {ticks // 5} 0" for name, ticks in busy.items()]
    return "\n".join(["cpu  1 1 1 1 1 1 1 1 1 1", *lines, "intr 77 0 5", "ctxt 5", "cpufake 1", ""])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "proc").mkdir()
    return tmp_path / "proc/stat"


def load_of(path: Path, cpus: CpuSet) -> HostLoad:
    return HostLoad(RealFs(path.parents[1]), cpus)


def test_only_usable_cpus_count(path: Path) -> None:
    path.write_text(stat(cpu0=0, cpu1=0, cpu10=0))
    load = load_of(path, CpuSet.of([0, 1]))
    assert isinstance(load.read(10.0), Unavailable)
    path.write_text(stat(cpu0=HZ, cpu1=2 * HZ, cpu10=50 * HZ))
    assert load.read(12.0) == pytest.approx(1.5)
    assert isinstance(load.read(12.0), Unavailable)
    load.close()
    load.close()


def test_a_cpu_that_comes_or_goes_makes_no_load(path: Path) -> None:
    path.write_text(stat(cpu0=0, cpu1=7 * HZ))
    load = load_of(path, CpuSet.of([0, 1, 2]))
    load.read(0.0)
    path.write_text(stat(cpu0=HZ, cpu2=100 * HZ))
    assert load.read(1.0) == pytest.approx(1.0)
    path.write_text(stat(cpu0=HZ, cpu2=101 * HZ))
    assert load.read(2.0) == pytest.approx(1.0)
    load.close()


def test_what_cannot_be_read_is_missing_with_the_reason(path: Path) -> None:
    load = load_of(path, CpuSet.of([0]))
    assert "/proc/stat" in str(load.read(0.0))
    path.write_text("cpu 1 2 3\ncpu0 a b c d\n")
    assert isinstance(load.read(1.0), Unavailable)
    path.write_text(stat(cpu4=5))
    assert "none of the CPUs" in str(load.read(2.0))
    load.close()
