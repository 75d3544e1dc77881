"""A simulated server mounted by FUSE: what shells and other programs see of it, and a daemon of its own beside it."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

PERPHD = [sys.executable, "-c", "from perphd.commands.daemon import main; main()"]
PATIENCE_S = 60.0
GROUPS = ("mysql", "pi")
KNOBS = ("cpu.weight", "cpu.idle", "cpu.max", "cpuset.cpus", "memory.low", "memory.high")


def _missing() -> str:
    if not os.path.exists("/dev/fuse"):
        return "needs FUSE in the kernel: there is no /dev/fuse"
    if shutil.which("fusermount3") is None:
        return "needs fusermount3 (Debian package fuse3)"
    if os.geteuid() != 0:
        return "needs root to mount for other users"
    try:
        import mfusepy  # noqa: F401
    except (ImportError, OSError) as exc:
        return f"needs mfusepy and libfuse3: {exc}"
    return ""


pytestmark = pytest.mark.skipif(bool(_missing()), reason=_missing() or "FUSE is there")


def eventually(what: str, holds: Callable[[], bool], log: Path | None = None) -> None:
    """Wait until it holds; fail with ``what`` and the log when patience ends."""
    until_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < until_s, what if log is None else f"{what}:\n{log.read_text()}"
        time.sleep(0.05)


@contextmanager
def running(*command: str, output: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is ended whatever happens: first asked, then killed."""
    with output.open("wb") as log:
        process = subprocess.Popen([*PERPHD, *command], stdout=log, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def mounting(folder: Path, *options: str) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    """A simulated server on a new directory, and its process; unmounted whatever happens."""
    at, said = folder / "server", folder / "mount.log"
    at.mkdir()
    try:
        with running("sim", "mount", *options, str(at), output=said) as process:
            eventually(
                "the mount appears", lambda: b"mounted on" in said.read_bytes() or process.poll() is not None
            )
            assert process.poll() is None, said.read_text()
            yield at, process
    finally:
        subprocess.run(["umount", "-l", str(at)], check=False, stderr=subprocess.DEVNULL)
    assert not os.listdir(at), "the mount is gone and left nothing"


@contextmanager
def mounted(folder: Path, *options: str) -> Iterator[Path]:
    """The same, of which only the directory matters; its process ends well when it is asked to."""
    with mounting(folder, *options) as (at, process):
        yield at
        process.terminate()
        assert process.wait(20) == 0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with mounted(tmp_path_factory.mktemp("fuse"), "--machine", "captured") as at:
        yield at


def shell(command: str, at: Path) -> tuple[int, str]:
    """Exit code, and what a shell in the cgroup root said."""
    done = subprocess.run(
        ["sh", "-c", command],
        check=False,
        cwd=at / "sys/fs/cgroup",
        capture_output=True,
        text=True,
        env={"PATH": "/bin:/usr/bin"},
    )
    return done.returncode, done.stdout + done.stderr


def refusal(action: Callable[[], object]) -> int:
    """The errno of an action (0: it was done)."""
    try:
        action()
    except OSError as exc:
        return exc.errno or 0
    return 0


def test_cat_and_echo_work_as_on_a_kernel(server: Path) -> None:
    assert shell("cat simulated/pi/cpu.weight", server) == (0, "100\n")
    assert shell("echo 50 > simulated/pi/cpu.weight && cat simulated/pi/cpu.weight", server) == (0, "50\n")
    for command, said in (
        ("env echo 0 > simulated/pi/cpu.weight", "Numerical result out of range"),
        ("env echo x > simulated/pi/memory.high", "Invalid argument"),
        ("env echo 1 > simulated/pi/cgroup.events", "Invalid argument"),
        ("env echo '' > simulated/mysql/cpuset.cpus", "No space left on device"),
        ("rmdir simulated", "Device or resource busy"),
        ("rm simulated/pi/cpu.max", "Operation not permitted"),
        ("mv simulated/pi simulated/tau", "Operation not permitted"),
        ("env echo 1 > simulated/pi/new", "ermission denied"),
        ("mkdir simulated", "File exists"),
        ("cat simulated/pi/cgroup.kill", "Invalid argument"),
    ):
        code, text = shell(command, server)
        assert (code != 0, said in text) == (True, True), f"{command}: {text}"
    assert shell("grep -c . /proc/self/mounts > /dev/null; head -1 memory.stat", server)[1].startswith(
        "anon "
    )


def test_one_write_is_one_command_and_long_files_are_read_in_parts(server: Path) -> None:
    group = server / "sys/fs/cgroup/parts"
    group.mkdir()
    try:
        fd = os.open(group / "cgroup.max.depth", os.O_RDWR)
        os.write(fd, b"3")
        assert refusal(lambda: os.write(fd, b"-1")) == errno.ERANGE
        assert refusal(lambda: os.write(fd, b"9" * 5000)) == errno.E2BIG
        assert os.pread(fd, 100, 0) == b"3\n"
        os.close(fd)
        with (server / "sys/fs/cgroup/memory.stat").open("rb", buffering=0) as file:
            parts = iter(lambda: file.read(7), b"")
            assert b"".join(parts).count(b"\n") == len(
                (server / "sys/fs/cgroup/memory.stat").read_text().splitlines()
            )
        trigger = os.open(group / "cpu.pressure", os.O_RDWR)
        os.write(trigger, b"some 150000 1000000")
        assert refusal(lambda: os.write(trigger, b"some 150000 1000000")) == errno.EBUSY
        os.close(trigger)
    finally:
        group.rmdir()


def test_a_removed_group_answers_enodev_and_comes_back_as_another(server: Path) -> None:
    group = server / "sys/fs/cgroup/passing"
    group.mkdir()
    fd, inode = os.open(group / "cgroup.events", os.O_RDONLY), group.stat().st_ino
    assert os.pread(fd, 100, 0) == b"populated 0\nfrozen 0\n"
    group.rmdir()
    assert refusal(lambda: os.pread(fd, 100, 0)) == errno.ENODEV
    assert refusal(group.stat) == errno.ENOENT
    group.mkdir()
    assert group.stat().st_ino != inode
    assert refusal(lambda: os.pread(fd, 100, 0)) == errno.ENODEV  # still the old one
    os.close(fd)
    group.rmdir()


def test_others_may_look_and_not_touch_until_a_group_is_theirs(server: Path) -> None:
    group = server / "sys/fs/cgroup/theirs"
    group.mkdir()
    as_nobody = "setpriv --reuid=65534 --regid=65534 --clear-groups sh -c '{}'"
    try:
        assert shell(as_nobody.format("cat theirs/cgroup.events"), server)[0] == 0
        for command in ("mkdir theirs/y", "echo 1 > theirs/cgroup.max.depth"):
            code, said = shell(as_nobody.format(command), server)
            assert (code != 0, "ermission denied" in said) == (True, True), said
        os.chown(group, 65534, 65534)
        assert shell(as_nobody.format("mkdir theirs/y && echo 2 > theirs/y/cgroup.max.depth"), server) == (
            0,
            "",
        )
        (group / "y").rmdir()
    finally:
        group.rmdir()


def test_resctrl_is_there_with_its_own_rules_and_locks(server: Path) -> None:
    resctrl = server / "sys/fs/resctrl"
    group = resctrl / "g"
    group.mkdir()
    try:
        (group / "schemata").write_text("L3:0=f\n")
        assert "L3:0=00f;1=7ff" in (group / "schemata").read_text()
        assert refusal(lambda: (group / "schemata").write_text("L3:0=505\n")) == errno.EINVAL
        assert "consecutive" in (resctrl / "info/last_cmd_status").read_text()
        # Read-only means read-only there, for root too.
        assert refusal(lambda: os.open(resctrl / "info/L3/cbm_mask", os.O_WRONLY)) == errno.EACCES
        first, second = (os.open(resctrl, os.O_RDONLY | os.O_DIRECTORY) for _ in range(2))
        fcntl.flock(first, fcntl.LOCK_EX)
        assert refusal(lambda: fcntl.flock(second, fcntl.LOCK_SH | fcntl.LOCK_NB)) == errno.EWOULDBLOCK
        os.close(first)
        assert refusal(lambda: fcntl.flock(second, fcntl.LOCK_SH | fcntl.LOCK_NB)) == 0
        os.close(second)
    finally:
        group.rmdir()
    assert "resctrl /sys/fs/resctrl resctrl" in (server / "proc/self/mounts").read_text()


CONFIG = """
[daemon]
mode = "enforce"
period_s = 0.2
state_dir = "{state}"
socket = "{state}/perphd.sock"
read_group = "root"
admin_group = "root"
[store]
enabled = false
[tuning.policy]
confirm_ticks = 1
settle_s = 0.2
evaluate_ticks = 1
probe_after_s = 1.0
[tuning.host]
root = "{server}"
[[lra]]
name = "mysql"
cgroup = "/simulated/mysql"
[lra.sli]
source = "file"
path = "{server}/run/perphd-sim/mysql"
[[batch]]
name = "pi"
cgroup = "/simulated/pi"
"""


def test_a_daemon_in_its_own_process_rescues_the_lra_and_gives_everything_back(tmp_path: Path) -> None:
    """A database beside a job that thrashes the cache gets what it needs; resctrl counts both; by files alone."""
    state, config, log = tmp_path / "state", tmp_path / "perphd.toml", tmp_path / "daemon.log"
    state.mkdir()
    kinds = ("--as", "mysql=mysql-oltp", "--as", "pi=batch-thrash")
    with mounted(tmp_path, "--batch-after", "5", *kinds) as at:
        config.write_text(CONFIG.format(state=state, server=at))
        cgroups, resctrl = at / "sys/fs/cgroup/simulated", at / "sys/fs/resctrl"

        def found() -> dict[str, str]:
            files = {
                f"{group}/{knob}": (cgroups / group / knob).read_text() for group in GROUPS for knob in KNOBS
            }
            return files | dict.fromkeys(os.listdir(resctrl), "")

        def counted() -> list[str]:
            """The workloads whose cache use resctrl counts."""
            return os.listdir(resctrl / "mon_groups")

        def p95_ms() -> float:
            with suppress(ValueError, KeyError):  # not yet
                lines = (at / "run/perphd-sim/mysql").read_text().splitlines()
                return float(dict(line.split(" = ") for line in lines)["latency_p95_ms"])
            return 0.0

        def stays_fast() -> bool:
            """True once four indicators in a row, which is two seconds, were good."""
            if (now_ms := p95_ms()) not in said[-1:]:
                said.append(now_ms)
            return len(said) >= 4 and all(0 < ms < 1.4 * calm_ms for ms in said[-4:])

        said: list[float] = []
        before = found()
        eventually("the application answers", lambda: p95_ms() > 0)
        calm_ms = p95_ms()
        with running("run", "--config", str(config), output=log) as daemon:
            eventually(
                "batch disturbs and is held back", lambda: found() != before or daemon.poll() is not None, log
            )
            assert daemon.poll() is None, log.read_text()
            eventually(
                "resctrl is used, and the application is fast again while batch runs",
                lambda: bool(counted()) and stays_fast(),
                log,
            )
            assert "populated 1" in (cgroups / "pi/cgroup.events").read_text()
            assert found() != before, "it is fast because of what is in force"
            daemon.send_signal(signal.SIGTERM)
            assert daemon.wait(30) == 0, log.read_text()
        assert found() == before, log.read_text()
        assert not counted(), log.read_text()


def test_a_mount_whose_process_was_killed_is_told(tmp_path: Path) -> None:
    with mounting(tmp_path, "--machine", "plain") as (at, process):
        process.kill()
        eventually("the mount is dead", lambda: refusal(at.stat) == errno.ENOTCONN)
        done = subprocess.run([*PERPHD, "sim", "mount", str(at)], check=False, capture_output=True, text=True)
        assert (done.returncode, f"umount {at}" in done.stderr) == (1, True), done.stderr
        subprocess.run(["umount", str(at)], check=True)


def test_v1_hierarchies_on_request(tmp_path: Path) -> None:
    with mounted(tmp_path, "--machine", "plain", "--cgroups", "v1") as at:
        cpu = at / "sys/fs/cgroup/cpu,cpuacct/simulated/mysql"
        (cpu / "cpu.shares").write_text("1\n")
        assert (cpu / "cpu.shares").read_text() == "2\n"
        assert refusal(lambda: (cpu.parent / "cpu.cfs_quota_us").write_text("999\n")) == errno.EINVAL
        assert "cgroup /sys/fs/cgroup/cpuset cgroup rw" in (at / "proc/self/mounts").read_text()
        assert not (at / "sys/fs/resctrl").exists()
