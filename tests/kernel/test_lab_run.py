"""One short run of the lab on this kernel: a real Redis, the lab's generator, batch, and the daemon."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.lab import groups as g
from tools.lab import processes
from tools.lab.groups import Groups
from tools.lab.processes import LabError

pytestmark = pytest.mark.requires_root
ROOT = Path(__file__).parents[2]


def test_redis_under_the_lab_gives_a_report_and_leaves_nothing(tmp_path: Path) -> None:
    for program in ("redis-server", "gcc"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    if processes.running():
        pytest.skip("a lab is running on this machine")
    try:
        groups = Groups()
    except LabError as exc:
        pytest.skip(str(exc))
    command = [
        sys.executable, "-m", "tools.lab", "--only", "redis-open-pi4", "--schemes", "native,koordinator", "--reps", "1",
        "--window", "4", "--learn", "4", "--patience", "1", "--others", "99", "--out", str(tmp_path),
    ]  # fmt: skip
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / "results.json").read_text())
    assert [row["scheme"] for row in results["rows"]] == ["native", "koordinator"]
    for run in results["runs"]:
        assert run["whole"]["tps"] > 0
        assert run["whole"]["p95_ms"] > 0
        assert run["whole"]["batch"] > 0
        assert run["daemon_problem"] == ""
    assert any("Redis" in text for text in results["machine"]["software"])
    log = (tmp_path / "perphd" / "redis-open-pi4-koordinator-1" / "log").read_text()
    assert "mode enforce" in log
    assert not any(os.path.exists(directory) for directory in groups.directories(g.PARENT))
    # What it found is kept: nothing is left to do.
    again = subprocess.run(
        [*command, "--resume"], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        check=False, timeout=240,
    )  # fmt: skip
    assert again.returncode == 0, again.stdout + again.stderr
    assert "[1/" not in again.stdout
