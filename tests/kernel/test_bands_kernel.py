"""Bands on this kernel: whom it kills first when memory runs out. Runs in the VM of tests/vm as well, on cgroup v2."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from perphd.qos.bands import OOM_SCORE_COPPER, OOM_SCORE_GOLD, OOM_SCORE_SILVER

V2 = Path("/sys/fs/cgroup/cgroup.controllers").exists()
MEMORY = Path("/sys/fs/cgroup" if V2 else "/sys/fs/cgroup/memory")
LIMIT = "memory.max" if V2 else "memory.limit_in_bytes"
LIMIT_BYTES = 192 << 20
HELD_MIB = 40
STEP_MIB = 4
HOLD = """
import sys, time
open(sys.argv[1] + "/cgroup.procs", "w").write("0")
with open("/proc/self/oom_score_adj", "w") as score:
    score.write(sys.argv[2])
held = [bytearray(b"x" * (1 << 20)) for _ in range(int(sys.argv[3]))]
print("ready", flush=True)
for line in sys.stdin:
    held += [bytearray(b"x" * (1 << 20)) for _ in range(int(line))]
    print("grown", flush=True)
"""
SCORES = {"gold": OOM_SCORE_GOLD, "silver": OOM_SCORE_SILVER, "copper": OOM_SCORE_COPPER}


def scores() -> dict[str, int]:
    """The bands' scores; without CAP_SYS_RESOURCE, which takes to lower one, others in the same order."""
    done = subprocess.run(["/bin/sh", "-c", f"echo {OOM_SCORE_GOLD} > /proc/self/oom_score_adj"], check=False)
    return SCORES if done.returncode == 0 else {"gold": 0, "silver": 600, "copper": OOM_SCORE_COPPER}


BANDS = scores()
pytestmark = pytest.mark.requires_root


@pytest.fixture
def room() -> Iterator[Path]:
    """A group with a limit, and one for each band below it."""
    if not MEMORY.is_dir():
        pytest.skip("no memory controller here")
    parent = MEMORY / f"perphd-oom-{os.getpid()}"
    parent.mkdir()
    try:
        if (parent / "memory.use_hierarchy").exists():
            (parent / "memory.use_hierarchy").write_text("1")
        if V2:
            (parent / "cgroup.subtree_control").write_text("+memory")
        for band in BANDS:
            (parent / band).mkdir()
        (parent / LIMIT).write_text(str(LIMIT_BYTES))
        yield parent
    finally:
        for path in (*(parent / band for band in BANDS), parent):
            for _ in range(100):
                try:
                    path.rmdir()
                    break
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.1)


def holding(room: Path, band: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(room / band), str(BANDS[band]), str(HELD_MIB)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def grow(process: subprocess.Popen[str], mib: int) -> bool:
    """True if the process lived to say so."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{mib}\n")
    process.stdin.flush()
    return process.stdout.readline() == "grown\n"


def grown_until_it_dies(grows: subprocess.Popen[str], dies: subprocess.Popen[str]) -> None:
    """``grows`` takes memory in steps until ``dies`` was killed for it."""
    for _ in range(2 * (LIMIT_BYTES >> 20) // STEP_MIB):
        if dies.poll() is not None:
            assert dies.returncode == -9
            return
        assert grow(grows, STEP_MIB), "the one that grows was killed first"
        time.sleep(0.02)
    raise AssertionError("nobody was killed")


def test_copper_dies_first_then_silver_and_gold_last(room: Path) -> None:
    held = {band: holding(room, band) for band in BANDS}
    try:
        grown_until_it_dies(held["gold"], held["copper"])
        assert held["silver"].poll() is None, "silver died although copper was enough"
        grown_until_it_dies(held["gold"], held["silver"])
        assert held["gold"].poll() is None
    finally:
        for each in held.values():
            each.kill()
            each.wait()


def test_a_greedy_silver_application_costs_copper_and_then_itself(room: Path) -> None:
    held = {band: holding(room, band) for band in BANDS}
    try:
        grown_until_it_dies(held["silver"], held["copper"])
        assert not grow(held["silver"], LIMIT_BYTES >> 20), "it has more than the room has"
        assert held["gold"].poll() is None, "gold died for silver's greed"
    finally:
        for each in held.values():
            each.kill()
            each.wait()
