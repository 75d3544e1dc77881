"""The machine of tests/pmu, booted for this run (PERPHD_PMU_SUITE, as ``make test-pmu`` sets it)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.pmu.readings import Row, rows_of
from tools.pmu.image import ROOT, pmu_image
from tools.pmu.machine import PmuMachine
from tools.vm.making import VmError

Play = Callable[[str], list[Row]]


@pytest.fixture(scope="session")
def machine() -> Iterator[PmuMachine]:
    """A machine of this test run alone, ended after it."""
    suite = os.environ.get("PERPHD_PMU_SUITE")
    if not suite:
        pytest.skip("needs a booted machine with a performance monitoring unit: make test-pmu")
    out = Path(os.environ.get("PERPHD_PMU_OUT", ROOT / "out/pmu")).resolve()
    try:
        booted = PmuMachine(pmu_image(suite, out), out / f"run-{suite}")
        booted.boot(ROOT)
    except VmError as exc:
        pytest.skip(f"no machine with a performance monitoring unit: {exc}")
    try:
        yield booted
    finally:
        booted.stop()


@pytest.fixture(scope="session")
def unseen(machine: PmuMachine) -> tuple[str, list[Row]]:
    """What doctor says, and the scene, before and while cgroup.subtree_control is written for the first time."""
    machine.run("mkdir /sys/fs/cgroup/early")
    try:
        doctor = machine.run("python3 -m tests.pmu.doctor")
    finally:
        machine.run("rmdir /sys/fs/cgroup/early")
    return doctor, rows_of(machine.run("cd /tmp; python3 -m tests.pmu.scenes written_late"))


@pytest.fixture
def play(machine: PmuMachine, unseen: object, record_property: Callable[[str, object], None]) -> Play:
    """Play a scene and give its samples. ``unseen`` comes first: it is possible once in a boot."""

    def played(scene: str) -> list[Row]:
        rows = rows_of(machine.run(f"cd /tmp; python3 -m tests.pmu.scenes {scene}"))
        record_property(scene, str(rows))
        return rows

    return played
