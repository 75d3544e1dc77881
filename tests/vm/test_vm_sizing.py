"""Memory fits and the shaper on cgroup v2, by the programs of tools/lab/sizing; PERPHD_VM_ALL=1: in full.

Short: 192 MiB with and without a CPU hog beside it, anonymous memory behind compressed swap, and five minutes of walks.
In full: 320 MiB, a JVM (on a machine of its own, which has one; Hold.class is compiled here), and thirty minutes. The
machine has 1.5 GiB, so that the walks' four groups have 192 MiB each.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.vm import bytecode
from tests.vm.guest import Vm
from tools.vm.image import VmError, image
from tools.vm.machine import Machine

pytestmark = pytest.mark.requires_vm

ROOT = Path(__file__).parents[2]
ALL = "PERPHD_VM_ALL" in os.environ
FOLDER = "/srv/perphd-sizing"
PARTS = ("perphd", "rdt", "pyproject.toml", "tools/__init__.py", "tools/lab")
JVM = "openjdk-17-jre-headless"
SEARCH = ("--hot 320M", 7200.0) if ALL else ("--hot 192M", 3600.0)
WALKS = (
    ("--memory 1G --seconds 1800", 2700.0) if ALL else ("--memory 512M --seconds 300 --interval 5", 1200.0)
)


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
def jvm(lab: Vm) -> Iterator[Vm | None]:
    """A machine with a JVM; None where it is not asked for, or nothing compiles for it here."""
    if not ALL or shutil.which("javac") is None:
        yield None
        return
    suite = os.environ["PERPHD_VM_SUITE"]
    out = Path(os.environ.get("PERPHD_VM_OUT", ROOT / "out/vm")).resolve()
    try:
        built = image(suite, out, JVM)
    except VmError as exc:
        pytest.skip(f"no image of a virtual machine: {exc}")
    machine = Machine(built, out / f"run-jvm-{suite}", memory_mb=2048)
    machine.stop()
    try:
        machine.boot()
        vm = Vm(machine, lab.package)
        machine.put(lab.package, "/root")
        vm.sh(f"dpkg-deb -x /root/{lab.package.name} /")
        _stage(vm)
        with tempfile.TemporaryDirectory() as folder:
            classes = Path(folder, "classes")
            source = str(ROOT / "tools/lab/sizing/Hold.java")
            subprocess.run(["javac", "--release", "17", "-d", str(classes), source], check=True)
            machine.put(classes, FOLDER)
        yield vm
    finally:
        machine.stop()


def ran(vm: Vm, program: str, words: str, patience_s: float) -> Any:
    """What this program of the lab found."""
    python = f"cd {FOLDER} && env PYTHONPATH=.:/usr/lib/perphd python3"
    vm.sh(f"{python} -m tools.lab.sizing.{program} {words} --out {FOLDER}/{program}.json", patience_s)
    return json.loads(vm.sh(f"cat {FOLDER}/{program}.json"))


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


def test_anonymous_memory_and_a_jvm_are_fitted_where_there_is_swap(jvm: Vm | None, lab: Vm) -> None:
    """The JVM's heap is known, and so is from its performance data how much of its time it collects garbage."""
    words, patience_s = SEARCH
    cases, vm = ("anon", lab) if jvm is None else ("anon,java", jvm)
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


def test_observe_and_k1_of_100_per_cent_write_nothing_and_pessimistic_kills_nobody(lab: Vm) -> None:
    words, patience_s = WALKS
    arms = {each["arm"]: each for each in ran(lab, "shaper", words, patience_s)["arms"]}
    for name in ("observe", "k1-100"):
        assert arms[name]["files_that_differ"] == 0, arms[name]
        assert arms[name]["writes"] == {}, arms[name]
    assert arms["optimistic"]["writes"].get("written", 0) > 0
    assert arms["pessimistic"]["oom_kills"] == 0, arms["pessimistic"]
    if ALL:  # five minutes of small walks say little of slack
        assert arms["pessimistic"]["mean_slack_mib"] < arms["observe"]["mean_slack_mib"]
    assert all(each["restored"] for each in arms.values())
