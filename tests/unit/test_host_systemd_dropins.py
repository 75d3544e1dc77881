"""Run-time drop-ins of systemd: what perphd's requests made is emptied, and systemd need not look again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perphd.host import systemd_dropins
from perphd.host.fs import RealFs
from perphd.host.systemd_dropins import GIVEN_BACK, DropIns
from perphd.host.systemd_properties import drop_ins

UNIT, FILE = "batch.slice", "cpu.weight"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(systemd_dropins, "FOLDERS", (str(tmp_path / "control"), str(tmp_path / "transient")))
    monkeypatch.setattr(systemd_dropins, "MARKS", str(tmp_path / "marks"))
    return tmp_path / "control" / f"{UNIT}.d"


def asked(folder: Path) -> DropIns:
    """systemd has made the drop-ins that perphd asked for."""
    found = DropIns(RealFs())
    found.expect(UNIT, FILE, "100")
    folder.mkdir(parents=True, exist_ok=True)
    for name in drop_ins(FILE):
        (folder / f"50-{name}.conf").write_text("[Slice]\nCPUWeight=50\n")
    return found


def test_what_perphd_asked_for_becomes_a_comment_as_old_as_it_was(folder: Path) -> None:
    found = asked(folder)
    path = folder / "50-CPUWeight.conf"
    os.utime(path, ns=(1, 10**9))
    found.given_back(UNIT, FILE, {FILE: "100"}.get)
    assert path.read_text() == GIVEN_BACK
    assert path.stat().st_mtime_ns == 10**9
    assert not (folder.parents[1] / "marks" / UNIT).exists()


def test_a_drop_in_of_others_stays(folder: Path) -> None:
    folder.mkdir(parents=True)
    path = folder / "50-CPUWeight.conf"
    path.write_text("[Slice]\nCPUWeight=70\n")
    found = DropIns(RealFs())
    found.expect(UNIT, FILE, "100")
    found.given_back(UNIT, FILE, {FILE: "100"}.get)
    assert path.read_text() == "[Slice]\nCPUWeight=70\n"


def test_a_value_that_the_units_owner_has_set_meanwhile_stays(folder: Path) -> None:
    asked(folder)
    mark = folder.parents[1] / "marks" / UNIT / "CPUWeight"
    assert (mark.read_text(), mark.stat().st_mode & 0o777) == (f"{FILE} 100\n", 0o600)
    DropIns(RealFs()).given_back(UNIT, FILE, {FILE: "50"}.get)
    assert (folder / "50-CPUWeight.conf").read_text() == "[Slice]\nCPUWeight=50\n"
    assert not mark.parent.exists()


def test_a_link_is_not_followed(folder: Path, tmp_path: Path) -> None:
    found = asked(folder)
    (tmp_path / "other").write_text("kept")
    path = folder / "50-CPUWeight.conf"
    path.unlink()
    path.symlink_to(tmp_path / "other")
    found.given_back(UNIT, FILE, {FILE: "100"}.get)
    assert (tmp_path / "other").read_text() == "kept"
