"""The simulated resctrl answers what Linux answered: 200 captured operations, and what was told beside them.

The same steps run against the kernel's own resctrl where one is mounted, empty, and of the captured shape.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perphd.sim.kernel.resctrl import LINUX_6_1, LINUX_6_12, MACHINES, MOUNT_POINT, Kernel
from tests.sim.resctrl_replay import TABLE, MountedSimulation, Replay, Simulation, clean_real_kernel

SECTIONS = {section["name"]: section for section in TABLE["section"]}
KERNELS = {"6.1": LINUX_6_1, "6.12": LINUX_6_12}
NOT_IN_PROCESS = {"unlink": 2, "create": 1, "symlink": 1, "chmod": 1, "chown": 1, "truncate": 1}
"""Calls that the in-process face does not offer; through the FUSE mount they are made."""


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
@pytest.mark.parametrize("section", SECTIONS.values(), ids=SECTIONS)
def test_the_simulated_tree_answers_as_captured(section: dict[str, Any], kernel: Kernel) -> None:
    world = Simulation(MACHINES["captured"].on(kernel))
    left_out = [
        step for step, reason in Replay(world, kernel is LINUX_6_12).run(section) if reason is not None
    ]
    allowed = NOT_IN_PROCESS if section["name"] == "groups" else {}
    found = {call: sum(call in step for step in left_out) for call in NOT_IN_PROCESS}
    assert {call: count for call, count in found.items() if count} == allowed
    assert len(left_out) == sum(allowed.values())


def test_the_table_is_the_whole_capture() -> None:
    assert sum(not step.get("aside") for section in SECTIONS.values() for step in section["steps"]) == 200


def test_files_and_modes_after_mounting() -> None:
    calls = Simulation(MACHINES["captured"]).calls
    assert {path: calls.read(path).decode() for path in TABLE["files"]} == TABLE["files"]
    assert {path: calls.kind_and_mode("" if path == "." else path) for path in TABLE["tree"]} == TABLE["tree"]
    calls.mkdir("g1")
    group = TABLE["tree_of_a_group"]
    assert {path: calls.kind_and_mode(path) for path in group} == group


def test_nothing_else_is_in_the_tree() -> None:
    calls = Simulation(MACHINES["captured"]).calls
    calls.mkdir("g1")
    wanted = {path for path in (*TABLE["tree"], *TABLE["tree_of_a_group"]) if path != "."}
    found: set[str] = set()
    waiting = [""]
    while waiting:
        path = waiting.pop()
        for name in calls.listdir(path):
            inner = f"{path}/{name}".lstrip("/")
            found.add(inner)
            if calls.kind_and_mode(inner).startswith("d"):
                waiting.append(inner)
    assert found == wanted


def test_a_newer_kernel_tells_of_sparse_masks() -> None:
    calls = Simulation(MACHINES["captured"].on(LINUX_6_12)).calls
    assert calls.read("info/L3/sparse_masks") == b"0\n"
    assert calls.kind_and_mode("info/L3/sparse_masks") == "f 0444"


@pytest.fixture
def reachable() -> Iterator[Path]:
    """An empty directory that every user can get to."""
    path = Path(tempfile.mkdtemp(prefix="resctrl-"))
    path.chmod(0o755)
    yield path
    path.rmdir()


@pytest.mark.requires_root
@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_the_mounted_tree_answers_as_captured(kernel: Kernel, reachable: Path) -> None:
    if not os.access("/dev/fuse", os.W_OK) or shutil.which("fusermount3") is None:
        pytest.skip("needs /dev/fuse and fusermount3 (Debian package fuse3)")
    world = MountedSimulation(MACHINES["captured"].on(kernel), str(reachable))
    left_out: list[str] = []
    try:
        for section in SECTIONS.values():
            world.start_anew()
            outcomes = Replay(world, kernel is LINUX_6_12).run(section)
            left_out += [reason for _, reason in outcomes if reason is not None]
    finally:
        world.close()
    assert left_out == ["FUSE does not hand an empty write on"] * 3


@pytest.mark.requires_root
@pytest.mark.parametrize("section", SECTIONS.values(), ids=SECTIONS)
def test_the_real_kernel_answers_as_captured(section: dict[str, Any]) -> None:
    missing = _why_not_the_real_one()
    if missing:
        pytest.skip(missing)
    reason = section.get("simulated")
    if reason:
        pytest.skip(f"on a real machine not: {reason}")
    newer = os.path.exists(f"{MOUNT_POINT}/info/L3/sparse_masks")
    with clean_real_kernel() as world:
        outcomes = list(Replay(world, newer).run(section))
    assert any(left_out is None for _, left_out in outcomes)


def _why_not_the_real_one() -> str:
    root = Path(MOUNT_POINT)
    if not (root / "schemata").exists():
        return f"no resctrl file system is mounted at {MOUNT_POINT}"
    if (root / "schemata").read_text() != TABLE["files"]["schemata"]:
        return f"{MOUNT_POINT} is of another shape than the captured machine, or in use"
    if any(path.is_dir() and path.name not in ("info", "mon_data", "mon_groups") for path in root.iterdir()):
        return f"{MOUNT_POINT} holds groups of somebody else"
    return ""
