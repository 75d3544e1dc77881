"""Run-time drop-ins of systemd: what perphd's requests made goes, with the folder if that is empty then."""

from __future__ import annotations

from pathlib import Path

import pytest

from perphd.host import systemd_dropins
from perphd.host.fs import RealFs
from perphd.host.systemd_dropins import DropIns
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
    found.expect(UNIT, FILE)
    folder.mkdir(parents=True, exist_ok=True)
    for name in drop_ins(FILE):
        (folder / f"50-{name}.conf").write_text("[Slice]\nCPUWeight=50\n")
    return found


def test_a_folder_that_is_empty_goes_with_its_last_drop_in(folder: Path) -> None:
    asked(folder).given_back(UNIT, FILE)
    assert not folder.exists()
    assert folder.parent.exists()


def test_a_folder_with_drop_ins_of_others_stays(folder: Path) -> None:
    found = asked(folder)
    (folder / "50-MemoryHigh.conf").write_text("[Slice]\nMemoryHigh=1G\n")
    found.given_back(UNIT, FILE)
    assert [path.name for path in folder.iterdir()] == ["50-MemoryHigh.conf"]
