"""The table of faults names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "faults.md").read_text()
DEFINED = {
    name
    for folder in ("unit", "sim", "kernel")
    for path in (ROOT / "tests" / folder).glob("test_*.py")
    for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
}


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(test_\w+)`", TEXT))))
def test_a_test_that_is_named_exists(name: str) -> None:
    assert name in DEFINED


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`?(tests/[\w/]+\.py)`?", TEXT))))
def test_a_file_that_is_named_exists(path: str) -> None:
    assert (ROOT / path).is_file()


def test_the_unit_protects_the_daemon_from_a_short_host() -> None:
    service = (ROOT / "systemd" / "perphd.service").read_text().splitlines()
    own_slice = (ROOT / "systemd" / "perphd.slice").read_text().splitlines()
    assert {"Slice=perphd.slice", "OOMScoreAdjust=-900", "MemoryMin=64M", "OOMPolicy=continue"} <= set(
        service
    )
    assert {"MemoryMin=64M", "MemoryLow=128M"} <= set(own_slice)
    assert any(line.startswith("MemoryMax=") for line in service), "nor may it starve others"
