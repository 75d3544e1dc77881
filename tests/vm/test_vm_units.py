"""A unit set through systemd on a booted host: in force, over daemon-reload and restart, given back without a trace."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.vm import bytecode
from tools.vm.machine import Machine

ROOT = Path(__file__).parents[2]
FOLDER = "/root/perphd-units"
PARTS = (
    "perphd/__init__.py",
    "perphd/domain",
    "perphd/host",
    "perphd/isolation",
    "rdt",
    "tests/vm/guest_units.py",
)


@pytest.fixture(scope="module")
def steps(machine: Machine) -> dict[str, dict[str, Any]]:
    """What the guest said, by step. Only the standard library is needed there, as by ``perphd restore``."""
    minor = machine.run("python3 -c 'import sys; print(sys.version_info.minor)'").stdout.decode().strip()
    with tempfile.TemporaryDirectory() as folder:
        bytecode.stage(ROOT, PARTS, Path(folder))
        machine.unpack(bytecode.packed(Path(folder), minor, FOLDER), FOLDER)
    command = (
        f"cd {FOLDER} && PYTHONPATH=. python3 tests/vm/guest_units.py; code=$?; rm -rf {FOLDER}; exit $code"
    )
    done = machine.run(command, timeout_s=300.0)
    found = [json.loads(line) for line in done.stdout.decode().splitlines() if line.startswith("{")]
    assert done.returncode == 0, (found, done.stderr.decode())
    return {item["step"]: item for item in found}


def test_every_setting_comes_into_force_and_is_read_back(steps: dict[str, dict[str, Any]]) -> None:
    assert steps["found"]["written"] == "UnitFs"
    assert "cpuset.cpus" not in steps["found"]["files"], "systemd brings the controller when it is asked to"
    assert {"cpus", "cpu_weight", "io_max", "memory_high_bytes"} <= set(steps["enforceable"]["knobs"])
    files = steps["set"]["files"]
    assert (files["cpuset.cpus.effective"], files["cpu.weight"], files["cpu.max"]) == (
        "1",
        "20",
        "50000 100000",
    )
    assert (files["memory.high"], files["memory.low"]) == (str(512 << 20), str(8 << 20))
    assert "rbps=10485760 wbps=max riops=max wiops=500" in files["io.max"]
    assert steps["idle"]["files"]["cpu.idle"] == "1"
    assert steps["frozen"]["files"]["cgroup.freeze"] == "1"
    assert steps["thawed"]["files"]["cgroup.freeze"] == "0"
    for item in steps.values():
        if "ok" in item:
            assert (item["ok"], item["left"], item["conflicts"], item["blocked"]) == (True, 0, 0, []), item


def test_daemon_reload_and_a_restart_of_the_unit_change_nothing(steps: dict[str, dict[str, Any]]) -> None:
    for step in ("after daemon-reload", "after a restart of the unit"):
        assert steps[step]["writes"] == 0
        assert steps[step]["files"]["cpuset.cpus.effective"] == "0"


def test_what_is_given_back_leaves_nothing_behind(steps: dict[str, dict[str, Any]]) -> None:
    for step in ("given back", "restored without the daemon"):
        files = steps[step]["files"]
        assert (files["memory.high"], files["memory.low"], files["cgroup.freeze"]) == ("max", "0", "0")
        assert files.get("cpuset.cpus.effective", "0-1") == "0-1"
        assert files.get("cpu.weight", "100") == "100"
        assert files.get("io.max", "") == ""
        assert steps[step]["drop_ins"] == []
        assert steps[step]["needs_reload"] == "no", "or systemctl edit fails at a file that has gone"
    assert steps["restored without the daemon"]["complete"]
    assert steps["restored without the daemon"]["left"] == "nothing to restore"
