"""The daemon itself, killed at random moments while it enforces: restore, or its next start, gives back every byte."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from perphd.control.client import Client
from perphd.host.cgroup import discover
from perphd.host.cgroup.group import Cgroups
from perphd.host.fs import RealFs
from perphd.isolation.instances import open_originals

pytestmark = [pytest.mark.requires_root, pytest.mark.requires_cgroup_v1("cpu", "cpuset")]

FS = RealFs()
MOMENTS = 20
PATIENCE_S = 30.0
PERPHD = [sys.executable, "-c", "from perphd.commands.daemon import main; main()"]
SPIN = "while True: pass"
# An application that works in bursts: it feels neighbours, and leaves them something.
BURSTS = "import time\nwhile True:\n    sum(range(20000))\n    time.sleep(0.002)"
CONFIG = """
[daemon]
mode = "enforce"
period_s = 0.1
state_dir = "{state}"
socket = "{state}/perphd.sock"
read_group = "root"
admin_group = "root"
[tuning.policy]
confirm_ticks = 1
settle_s = 0.0
evaluate_ticks = 1
shrink_after_s = 1.0
probe_after_s = 1.0
regret_s = 1.0
[[lra]]
name = "app"
cgroup = "{top}/app"
[[batch]]
name = "job"
cgroup = "{top}/job"
"""


@pytest.fixture
def top() -> Iterator[str]:
    """Two groups in every hierarchy, with values of their own, and processes in them."""
    mounts = [h.mount for h in discover(FS).all() if h.controllers & {"cpu", "cpuset", "cpuacct"}]
    unified = discover(FS).unified
    mounts += [unified.mount] if unified is not None else []
    top = f"/perphd-test-kill-{os.getpid()}"
    paths = (top, f"{top}/app", f"{top}/job")
    for path in paths:
        for mount in mounts:
            os.mkdir(mount + path)
            for name in ("cpus", "mems"):
                file = Path(f"{mount}{path}/cpuset.{name}")
                if file.exists():
                    file.write_text(Path(mount, f"cpuset.{name}").read_text())
            shares = Path(f"{mount}{path}/cpu.shares")
            if shares.exists() and path.endswith("job"):
                shares.write_text("811\n")
    processes = []
    for group, text in (("app", BURSTS), ("job", SPIN), ("job", SPIN), ("job", SPIN)):
        process = subprocess.Popen([sys.executable, "-c", text])
        processes.append(process)
        for mount in mounts:
            Path(f"{mount}{top}/{group}/cgroup.procs").write_text(f"{process.pid}\n")
    try:
        yield top
    finally:
        for process in processes:
            process.kill()
            process.wait()
        for path in reversed(paths):
            for mount in mounts:
                os.rmdir(mount + path)


def contents(top: str) -> dict[str, bytes]:
    """Every file that perphd can write on these groups."""
    names = ("cpu.shares", "cpu.idle", "cpu.cfs_quota_us", "cpuset.cpus", "cpuset.mems")
    found: dict[str, bytes] = {}
    for group in (f"{top}/app", f"{top}/job"):
        for directory in Cgroups(FS, discover(FS)).group(group).directories():
            for name in names:
                path = Path(directory, name)
                if path.exists():
                    found[str(path)] = path.read_bytes()
    assert len(found) >= 6
    return found


STARTED: list[subprocess.Popen[bytes]] = []


@pytest.fixture(autouse=True)
def _no_daemon_is_left() -> Iterator[None]:
    yield
    while STARTED:
        daemon = STARTED.pop()
        daemon.kill()
        daemon.wait()


def start(config: Path) -> subprocess.Popen[bytes]:
    STARTED.append(subprocess.Popen([*PERPHD, "run", "--config", str(config)], stderr=subprocess.DEVNULL))
    return STARTED[-1]


def wait_for_change(top: str, before: dict[str, bytes], daemon: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while contents(top) == before:
        assert daemon.poll() is None, "the daemon ended by itself"
        assert time.monotonic() < deadline, "the daemon enforced nothing"
        time.sleep(0.01)


def wait_until_it_answers(path: Path, daemon: subprocess.Popen[bytes]) -> None:
    """The dead one's socket is there as well: only an answer tells that this one is up."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        assert daemon.poll() is None, "the daemon ended by itself"
        with socket.socket(socket.AF_UNIX) as client:
            try:
                client.connect(str(path))
                return
            except OSError:
                assert time.monotonic() < deadline, "the daemon does not answer"
        time.sleep(0.02)


def stop(daemon: subprocess.Popen[bytes]) -> int:
    daemon.terminate()
    return daemon.wait(PATIENCE_S)


def restore_by(config: Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*PERPHD, "restore", "--config", str(config)], capture_output=True, check=False)


def kept_by_a_daemon(top: str, config: Path, state: Path) -> None:
    """What a restart does: a daemon with this state directory enforces, and ends with all in force."""
    before = contents(top)
    text = CONFIG.format(state=state, top=top).replace("[tuning.policy]", 'on_stop = "keep"\n[tuning.policy]')
    config.write_text(f'{text}[tuning.daemon]\npolicy = "static"\n')
    daemon = start(config)
    wait_for_change(top, before, daemon)
    wait_until_it_answers(state / "perphd.sock", daemon)
    assert stop(daemon) == 0
    assert contents(top) != before


def test_what_was_kept_is_given_back_by_a_daemon_with_another_state_directory(
    top: str, tmp_path: Path
) -> None:
    config, old, new = tmp_path / "perphd.toml", tmp_path / "old", tmp_path / "new"
    new.mkdir()
    before = contents(top)
    kept_by_a_daemon(top, config, old)
    config.write_text(CONFIG.format(state=new, top=top))
    daemon = start(config)
    wait_until_it_answers(new / "perphd.sock", daemon)
    assert stop(daemon) == 0
    assert contents(top) == before
    assert b"nothing to restore" in restore_by(config).stdout


def test_restore_finds_what_was_kept_whatever_the_configuration_says_now(top: str, tmp_path: Path) -> None:
    config, old = tmp_path / "perphd.toml", tmp_path / "old"
    before = contents(top)
    for text in (CONFIG.format(state=tmp_path / "new", top=top), "[daemon", None):
        kept_by_a_daemon(top, config, old)
        if text is None:
            config.unlink()
        else:
            config.write_text(text)
        done = restore_by(config)
        assert done.returncode == 0, done.stderr
        assert contents(top) == before


def test_a_daemon_changes_nothing_in_groups_that_one_with_another_state_directory_has_changed(
    top: str, tmp_path: Path
) -> None:
    before = contents(top)
    daemons = []
    for name in ("first", "second"):
        config = tmp_path / f"{name}.toml"
        text = CONFIG.format(state=tmp_path / name, top=top)
        config.write_text(f'{text}[tuning.daemon]\npolicy = "static"\n')
        daemons.append(start(config))
        wait_until_it_answers(tmp_path / name / "perphd.sock", daemons[-1])
        wait_for_change(top, before, daemons[0])
    client = Client(str(tmp_path / "second" / "perphd.sock"))
    deadline = time.monotonic() + PATIENCE_S
    while str(tmp_path / "first") not in (said := json.dumps(client.get("status"))):
        assert time.monotonic() < deadline, f"it does not say why it can set nothing: {said}"
        time.sleep(0.1)
    assert open_originals(str(tmp_path / "first"))
    assert not open_originals(str(tmp_path / "second"))
    for daemon in daemons:
        assert stop(daemon) == 0
    assert contents(top) == before


def test_killed_while_enforcing_everything_comes_back(top: str, tmp_path: Path) -> None:
    chance = random.Random(20)
    config = tmp_path / "perphd.toml"
    config.write_text(CONFIG.format(state=tmp_path, top=top))
    before = contents(top)
    for moment in range(MOMENTS):
        daemon = start(config)
        wait_for_change(top, before, daemon)
        time.sleep(chance.uniform(0.0, 0.7))
        daemon.kill()
        daemon.wait()
        if moment % 4 == 3:
            # Simply starting it again gives back what the dead one left, and stopping what it did itself.
            again = start(config)
            wait_until_it_answers(tmp_path / "perphd.sock", again)
            time.sleep(chance.uniform(0.0, 0.4))
            again.terminate()
            assert again.wait(PATIENCE_S) == 0
        else:
            done = subprocess.run(
                [*PERPHD, "restore", "--config", str(config)], capture_output=True, check=False
            )
            assert done.returncode == 0, done.stderr
        assert contents(top) == before, f"moment {moment}"
        leftover = subprocess.run(
            [*PERPHD, "restore", "--config", str(config)], capture_output=True, check=False
        )
        assert b"nothing to restore" in leftover.stdout
