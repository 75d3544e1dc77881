"""Run-time drop-ins that perphd has emptied, before a real systemd: the manager of a user, in a mount namespace."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

MANAGER = Path("/lib/systemd/systemd")
TREES = tuple(Path("/sys/fs/cgroup", name) for name in ("systemd", "unified", "."))
UNIT = "job.service"
SCENE = """
mount -t tmpfs tmpfs /run && mkdir -p /run/systemd/system
for group in "$@"; do echo $$ > "$group/cgroup.procs" || exit 77; done
{manager} --user > manager.log 2>&1 & manager=$!
trap 'systemctl --user stop {unit}; kill $manager; wait $manager' EXIT
until systemctl --user start {unit} 2> /dev/null; do kill -0 $manager || exit 77; sleep 0.1; done
edit() {{ SYSTEMD_EDITOR='cp said' script -qec 'systemctl --user edit {unit}' /dev/null < /dev/null; }}
show() {{ echo "$1: $(systemctl --user show {unit} --value -p CPUWeight -p NeedDaemonReload | tr '\\n' ' ')"; }}
systemctl --user set-property --runtime {unit} CPUWeight=20; show set
systemctl --user set-property --runtime {unit} CPUWeight=70
python -c 'import sys; from perphd.host.systemd_dropins import empty; empty(sys.argv[1])' "$DROP_IN"; show emptied
edit && show edited
systemctl --user set-property --runtime {unit} CPUWeight=20; rm "$DROP_IN"; show removed
edit > refused || echo "refused: $(grep -o 'Failed to read' refused)"
"""


@pytest.fixture
def groups() -> Iterator[list[Path]]:
    """Control groups for the manager, where it looks for its own."""
    if os.geteuid() != 0 or not MANAGER.exists() or Path("/run/systemd/system").exists():
        pytest.skip(
            "needs root, systemd installed, and another init: nothing is tried on a host that it manages"
        )
    if any(shutil.which(tool) is None for tool in ("unshare", "script", "systemctl")):
        pytest.skip("needs unshare, script and systemctl")
    made = [tree / f"perphd-test-{os.getpid()}" for tree in TREES if (tree / "cgroup.procs").exists()]
    for group in made:
        group.mkdir()
    yield made
    for group in made:
        for path, _, _ in os.walk(group, topdown=False):
            os.rmdir(path)


def test_an_emptied_drop_in_is_edited_around_and_a_removed_one_is_not(
    groups: list[Path], tmp_path: Path
) -> None:
    unit, runtime = tmp_path / ".config/systemd/user" / UNIT, tmp_path / "run"
    unit.parent.mkdir(parents=True)
    unit.write_text("[Service]\nExecStart=/bin/sleep 1000\nCPUWeight=70\n")
    runtime.mkdir(mode=0o700)
    (tmp_path / "said").write_text("[Service]\nCPUWeight=90\n")
    environment = {
        **os.environ,
        "HOME": str(tmp_path),
        "XDG_RUNTIME_DIR": str(runtime),
        "DROP_IN": str(runtime / f"systemd/user.control/{UNIT}.d/50-CPUWeight.conf"),
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "PATH": f"{Path(shutil.which('python') or '').parent}:{os.environ['PATH']}",
    }
    environment.pop("DBUS_SESSION_BUS_ADDRESS", None)
    scene = SCENE.format(manager=MANAGER, unit=UNIT)
    command = ["unshare", "-m", "sh", "-c", scene, "sh", *map(str, groups)]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode == 77:
        pytest.skip(f"no manager of a user here: {(tmp_path / 'manager.log').read_text()[-300:]}")
    shown = [line for line in done.stdout.splitlines() if line.partition(":")[0] in STEPS]
    assert shown == [f"{step}: {told}" for step, told in STEPS.items()], done.stdout + done.stderr


STEPS = {
    "set": "20 no ",
    "emptied": "70 no ",
    "edited": "90 no ",
    "removed": "20 yes ",
    "refused": "Failed to read",
}
"""The unit's weight, and whether systemd wants to be told to reload."""
