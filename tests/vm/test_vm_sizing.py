"""Memory fits and the shaper on cgroup v2, by the programs of tools/lab/sizing; PERPHD_VM_ALL=1: in full.

Short: 192 MiB with and without a CPU hog beside it, anonymous memory behind compressed swap, and five minutes of walks
in four groups of 192 MiB. In full: 320 MiB, a JVM on a machine of its own (Hold.class is compiled here), and thirty
minutes in four groups of 4 GiB, on a machine of 17.5 GiB.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.vm import bytecode
from tests.vm.conftest import install_quickly
from tests.vm.guest import ROOT, Vm, booted, package

pytestmark = pytest.mark.requires_vm

ALL = "PERPHD_VM_ALL" in os.environ
FOLDER = "/srv/perphd-sizing"
PARTS = ("perphd", "rdt", "pyproject.toml", "tools/__init__.py", "tools/lab")
JVM = "openjdk-17-jre-headless"
SEARCH = ("--hot 320M", 7200.0) if ALL else ("--hot 192M", 3600.0)
GROUP_MB = 4096 if ALL else 192
WALKS = ("--seconds 1800", 2700.0) if ALL else ("--seconds 300 --interval 5", 1200.0)
WALKING_MB = 4 * GROUP_MB + 1536


def _stage(vm: Vm) -> None:
    """The lab's programs, with their bytecode."""
    minor = vm.sh("python3 -c 'import sys; print(sys.version_info.minor)'")
    with tempfile.TemporaryDirectory() as folder:
        bytecode.stage(ROOT, PARTS, Path(folder))
        vm.machine.unpack(bytecode.packed(Path(folder), minor, FOLDER), FOLDER)


@pytest.fixture(scope="module")
def lab(installed: Vm) -> Iterator[Vm]:
    installed.sh("systemctl stop perphd")
    _stage(installed)
    try:
        yield installed
    finally:
        installed.try_(f"rm -rf {FOLDER}")


@pytest.fixture(scope="module")
def swapping(request: pytest.FixtureRequest) -> Iterator[tuple[str, Vm]]:
    """The cases that need swap, and a machine for them; in full with a JVM, where something compiles for it."""
    if not ALL or shutil.which("javac") is None:
        yield "anon", request.getfixturevalue("lab")
        return
    with _another("run-jvm", JVM, 2048) as vm, tempfile.TemporaryDirectory() as folder:
        classes = Path(folder, "classes")
        source = str(ROOT / "tools/lab/sizing/Hold.java")
        subprocess.run(["javac", "--release", "17", "-d", str(classes), source], check=True)
        vm.machine.put(classes, FOLDER)
        yield "anon,java", vm


@pytest.fixture(scope="module")
def walking(request: pytest.FixtureRequest) -> Iterator[Vm]:
    """A machine that holds all walks at once: where memory is short, the host's pressure is measured, and no arm."""
    if not ALL:
        yield request.getfixturevalue("lab")
        return
    if psutil.virtual_memory().available < WALKING_MB << 20:
        pytest.skip(f"the machine for four groups of {GROUP_MB} MiB needs {WALKING_MB} MiB of this host")
    with _another("run-walks", "", WALKING_MB) as vm:
        yield vm


@contextmanager
def _another(name: str, extra: str, memory_mb: int) -> Iterator[Vm]:
    """One more machine with the package and the lab's programs."""
    with booted(name, extra, memory_mb=memory_mb) as machine:
        vm = Vm(machine, package())
        install_quickly(vm, vm.sh("python3 -c 'import sys; print(sys.version_info.minor)'"))
        _stage(vm)
        yield vm


def ran(vm: Vm, program: str, words: str, patience_s: float) -> Any:
    """What this program of the lab found; printed, too."""
    python = f"cd {FOLDER} && env PYTHONPATH=.:/usr/lib/perphd python3"
    vm.sh(f"{python} -m tools.lab.sizing.{program} {words} --out {FOLDER}/{program}.json", patience_s)
    found = vm.sh(f"cat {FOLDER}/{program}.json")
    print(found)
    return json.loads(found)


def test_a_cpu_hog_does_not_move_the_result_of_a_memory_fit(lab: Vm) -> None:
    words, patience_s = SEARCH
    found = ran(lab, "memfit", f"--cases file,hog --samples 12 --period 1 {words}", patience_s)
    for each in found:
        assert 1.0 <= each["ratio"] <= 1.15, each
        assert each["crashes"] <= 1, each
        assert each["full_pressure_pct_after"] < 1.0, each
        assert each["restored"], each
    alone, beside = found
    assert abs(beside["recommended_bytes"] / alone["recommended_bytes"] - 1) <= 0.1, "two steps of the search"


def test_anonymous_memory_and_a_jvm_are_fitted_where_there_is_swap(swapping: tuple[str, Vm]) -> None:
    """The JVM's heap is known, and so is from its performance data how much of its time it collects garbage."""
    words, patience_s = SEARCH
    cases, vm = swapping
    vm.sh("modprobe zram && echo 1G > /sys/block/zram0/disksize && mkswap -q /dev/zram0 && swapon /dev/zram0")
    try:
        options = f"--cases {cases} --samples 12 --period 1 --heap 384M --classes classes {words}"
        found = ran(vm, "memfit", options, patience_s)
    finally:
        vm.try_("swapoff /dev/zram0; rmmod zram")
    for each in found:
        assert 1.0 <= each["ratio"] <= 1.15, each
        assert each["crashes"] <= 1, each
        assert each["full_pressure_pct_after"] < 1.0, each
        assert each["restored"], each
        if each["case"] == "java":
            assert "garbage collection" in each["reason"], each


def test_observe_and_k1_of_100_per_cent_write_nothing_and_pessimistic_kills_nobody(walking: Vm) -> None:
    words, patience_s = WALKS
    found = ran(walking, "shaper", f"--memory {GROUP_MB}M {words}", patience_s)
    arms = {each["arm"]: each for each in found["arms"]}
    for name in ("observe", "k1-100"):
        assert arms[name]["files_that_differ"] == 0, arms[name]
        assert arms[name]["writes"] == {}, arms[name]
    assert arms["optimistic"]["writes"].get("written", 0) > 0
    assert arms["pessimistic"]["oom_kills"] == 0, arms["pessimistic"]
    if ALL:  # five minutes of small walks say little of slack
        assert arms["optimistic"]["oom_kills"] > 0
        assert arms["pessimistic"]["mean_slack_mib"] <= arms["observe"]["mean_slack_mib"] / 2
    assert all(each["restored"] for each in arms.values())
