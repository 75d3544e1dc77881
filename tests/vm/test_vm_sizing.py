"""Memory fits and the shaper on cgroup v2, by the programs of tools/lab/sizing; PERPHD_VM_ALL=1: in full.

Short: 192 MiB with and without a CPU hog beside it, and five minutes of walks. In full: 320 MiB, and thirty minutes.
The machine has 1.5 GiB, so that the walks' four groups have 192 MiB each.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.vm import bytecode
from tests.vm.guest import Vm

pytestmark = pytest.mark.requires_vm

ROOT = Path(__file__).parents[2]
ALL = "PERPHD_VM_ALL" in os.environ
FOLDER = "/srv/perphd-sizing"
PARTS = ("perphd", "rdt", "pyproject.toml", "tools/__init__.py", "tools/lab")
SEARCH = ("--hot 320M", 7200.0) if ALL else ("--hot 192M", 3600.0)
WALKS = (
    ("--memory 1G --seconds 1800", 2700.0) if ALL else ("--memory 512M --seconds 300 --interval 5", 1200.0)
)


@pytest.fixture(scope="module")
def lab(installed: Vm) -> Iterator[Vm]:
    installed.sh("systemctl stop perphd")
    minor = installed.sh("python3 -c 'import sys; print(sys.version_info.minor)'")
    with tempfile.TemporaryDirectory() as folder:
        bytecode.stage(ROOT, PARTS, Path(folder))
        installed.machine.unpack(bytecode.packed(Path(folder), minor, FOLDER), FOLDER)
    try:
        yield installed
    finally:
        installed.try_(f"rm -rf {FOLDER}")


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
