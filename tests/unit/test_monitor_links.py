"""How full links are: only those that say their speed, the fuller direction, nothing made up."""

from __future__ import annotations

from pathlib import Path

import pytest

from perphd.domain.reading import Unavailable
from perphd.host.fs import RealFs
from perphd.monitor.links import LOOK_S, LinkLoad


def link(root: Path, name: str, speed: str | None, rx: int = 0, tx: int = 0, *, real: bool = True) -> None:
    base = root / "sys/class/net" / name
    (base / "statistics").mkdir(parents=True, exist_ok=True)
    if real:
        (base / "device").mkdir(exist_ok=True)
    if speed is not None:
        (base / "speed").write_text(speed)
    (base / "statistics/rx_bytes").write_text(f"{rx}\n")
    (base / "statistics/tx_bytes").write_text(f"{tx}\n")


def test_the_fuller_direction_of_the_fullest_link_counts(tmp_path: Path) -> None:
    link(tmp_path, "eth0", "1000\n")
    link(tmp_path, "eth1", "10000\n")
    load = LinkLoad(RealFs(tmp_path))
    assert isinstance(load.read(10.0), Unavailable)
    link(tmp_path, "eth0", "1000\n", rx=62_500_000, tx=125_000_000)
    link(tmp_path, "eth1", "10000\n", rx=125_000_000)
    assert load.read(12.0) == pytest.approx(50.0)
    load.close()


@pytest.mark.parametrize("speed", ["-1\n", "nonsense\n", None])
def test_links_without_a_speed_do_not_count(tmp_path: Path, speed: str | None) -> None:
    link(tmp_path, "eth0", speed)
    link(tmp_path, "docker0", "10000\n", real=False)
    load = LinkLoad(RealFs(tmp_path))
    load.read(1.0)
    found = load.read(2.0)
    assert isinstance(found, Unavailable)
    assert "no link" in found.reason


def test_a_host_without_links_says_so(tmp_path: Path) -> None:
    assert isinstance(LinkLoad(RealFs(tmp_path)).read(1.0), Unavailable)


def test_links_that_come_later_are_found_and_counters_that_begin_anew_tell_nothing(tmp_path: Path) -> None:
    (tmp_path / "sys/class/net").mkdir(parents=True)
    load = LinkLoad(RealFs(tmp_path))
    assert isinstance(load.read(0.0), Unavailable)
    link(tmp_path, "eth0", "1000\n", rx=1000)
    assert isinstance(load.read(LOOK_S + 1.0), Unavailable)
    link(tmp_path, "eth0", "1000\n", rx=10)
    load.read(LOOK_S + 2.0)
    link(tmp_path, "eth0", "1000\n", rx=10 + 12_500_000)
    assert load.read(LOOK_S + 3.0) == pytest.approx(10.0)
    load.close()
