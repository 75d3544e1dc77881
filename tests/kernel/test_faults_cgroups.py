"""Faults on this kernel's own cgroups: kill -9 before and after every single write, refusals, groups that come and go.

And the daemon's socket, asked by a process of another user: nothing that it sends changes anything.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from perphd.domain.allocation import IDLE, Settings
from perphd.domain.cpuset import CpuSet
from perphd.domain.errors import Gone
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.host.cgroup import discover
from perphd.isolation import Executor, Journal, restore
from tests.kernel.isolation_groups import FS
from tests.kernel.isolation_groups import contents as every_file
from tests.unit.faults_fs import FaultyFs, Gate, Operation

pytestmark = [pytest.mark.requires_root, pytest.mark.requires_cgroup_v1("cpu", "cpuset", "memory")]

STEP = 1 if os.environ.get("PERPHD_FAULTS") == "all" else 3
"""Of all moments of a kill one in so many is tried, before and after writes by turns; with PERPHD_FAULTS=all each."""
NOBODY = 65534
READERS = 64999
PERPHD = [sys.executable, "-c", "from perphd.commands.daemon import main; main()"]
CONFIG = """
[daemon]
state_dir = "{state}"
socket = "{socket}"
read_group = "{group}"
admin_group = "root"
[[lra]]
name = "db"
cgroup = "{top}/lra"
[[batch]]
name = "pi"
cgroup = "{top}/batch"
"""


@pytest.fixture
def top() -> Iterator[str]:
    """An LRA's group and a batch group with one below it, in every hierarchy; all gone afterwards."""
    hierarchies = discover(FS)
    top = f"/perphd-test-faults-{os.getpid()}"
    for path in (top, f"{top}/lra", f"{top}/batch", f"{top}/batch/kid"):
        make(path)
    assert hierarchies.of("cpu") is not None
    yield top
    for path in (f"{top}/batch/kid", f"{top}/batch", f"{top}/lra", top):
        remove(path)


def contents(top: str) -> dict[str, bytes]:
    """Every settable file but the kernel's own high-water marks."""
    return {path: text for path, text in every_file(top).items() if "max_usage" not in path}


def mounts() -> list[str]:
    hierarchies = discover(FS)
    found = dict.fromkeys(hierarchies.by_controller[name].mount for name in ("cpu", "cpuset", "memory"))
    return [*found, *([hierarchies.unified.mount] if hierarchies.unified else [])]


def make(path: str) -> None:
    for mount in mounts():
        Path(mount + path).mkdir()
        for name in ("cpus", "mems"):
            file = Path(f"{mount}{path}/cpuset.{name}")
            if file.exists():
                file.write_text(Path(mount, f"cpuset.{name}").read_text())


def remove(path: str) -> None:
    for mount in mounts():
        if Path(mount + path).exists():
            Path(mount + path).rmdir()


def wanted(top: str) -> tuple[list[WorkloadSpec], list[dict[str, Settings]]]:
    cpus = sorted(CpuSet.parse(Path(discover(FS).by_controller["cpuset"].mount, "cpuset.cpus").read_text()))
    specs = [WorkloadSpec("db", Kind.LRA, f"{top}/lra"), WorkloadSpec("pi", Kind.BATCH, f"{top}/batch")]
    first = {
        "pi": Settings(cpus=CpuSet.of(cpus[-1:]), cpu_weight=IDLE, cpu_max_cores=0.5),
        "db": Settings(cpus=CpuSet.of(cpus[:1])),
    }
    second = {"pi": Settings(cpus=CpuSet.of(cpus), cpu_weight=30, cpu_max_cores=0.25)}
    return specs, [first, second, {}]


def drive(top: str, state: Path, gate: Gate) -> bool:
    """Both targets, then everything back; whether all of it was done at once."""
    specs, targets = wanted(top)
    done = True
    with Journal(state) as journal:
        executor = Executor(FaultyFs(FS, gate), discover(FS), journal, in_thread=False)
        for target in targets:
            for _ in range(2):
                applied = asyncio.run(executor.apply(executor.plan(target, specs)))
                done = done and applied.ok
                if applied.ok:
                    break
        executor.close()
    return done


def test_killed_before_and_after_every_write_everything_comes_back(top: str, tmp_path: Path) -> None:
    before = contents(top)
    gate = Gate()
    assert drive(top, tmp_path / "dry", gate)
    assert contents(top) == before
    count = gate.changes
    assert count >= 12
    for moment in range(0, 2 * count, STEP):
        state = tmp_path / str(moment)

        def die(number: int, _operation: Operation, moment: int = moment) -> None:
            if number == moment // 2:
                os.kill(os.getpid(), signal.SIGKILL)

        child = os.fork()
        if child == 0:
            drive(top, state, Gate(refuse=die) if moment % 2 == 0 else Gate(after=die))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), f"moment {moment}: it was not killed"
        report = restore(FS, state)
        assert report.complete
        assert not report.foreign
        assert contents(top) == before, f"moment {moment}"
        assert not restore(FS, state)


@pytest.mark.parametrize("number", [errno.EIO, errno.EBUSY, errno.ENOSPC, errno.ENODEV])
def test_any_write_refused_everything_comes_back(top: str, number: int, tmp_path: Path) -> None:
    before = contents(top)
    gate = Gate()
    assert drive(top, tmp_path / "dry", gate)
    for moment in range(gate.changes):
        state = tmp_path / str(moment)
        drive(top, state, Gate(refuse=lambda n, o, moment=moment: number if n == moment else None))  # type: ignore[misc]
        report = restore(FS, state)
        assert report.complete
        assert not report.foreign
        assert contents(top) == before, f"write {moment}"


def test_what_this_kernel_itself_refuses_is_undone_and_told(top: str, tmp_path: Path) -> None:
    """A child that somebody else put on a CPU makes the kernel answer EBUSY to narrowing its parent."""
    specs, _ = wanted(top)
    cpuset = discover(FS).by_controller["cpuset"]
    cpus = sorted(CpuSet.parse(Path(cpuset.mount, "cpuset.cpus").read_text()))
    if len(cpus) < 2:
        pytest.skip("needs two CPUs")
    before = contents(top)
    with Journal(tmp_path) as journal:
        gate = Gate()
        executor = Executor(FaultyFs(FS, gate), discover(FS), journal, in_thread=False)
        late = Path(cpuset.path(f"{top}/batch/late"))

        def somebody_else(number: int, operation: Operation) -> None:
            if operation.changes and operation.path.endswith("batch/cpuset.cpus") and not late.exists():
                late.mkdir()
                (late / "cpuset.cpus").write_text(f"{cpus[0]}\n")

        gate.refuse = somebody_else
        target = {"pi": Settings(cpus=CpuSet.of(cpus[-1:]), cpu_weight=5)}
        applied = asyncio.run(executor.apply(executor.plan(target, specs)))
        late.rmdir()
        assert applied.failed is not None
        assert "EBUSY" in str(applied.failed)
        assert "batch/cpuset.cpus" in str(applied.failed)
        assert contents(top) == before
        executor.close()


@pytest.mark.parametrize("comes_back", [False, True], ids=["gone", "new-inode"])
def test_a_group_that_vanishes_after_any_write_owes_nothing(
    top: str, comes_back: bool, tmp_path: Path
) -> None:
    gate = Gate()
    assert drive(top, tmp_path / "dry", gate)
    before = contents(top)
    for moment in range(gate.changes):
        state = tmp_path / str(moment)

        def vanish(number: int, _operation: Operation, moment: int = moment) -> None:
            if number == moment:
                for path in (f"{top}/batch/kid", f"{top}/batch"):
                    remove(path)
                for path in (f"{top}/batch", f"{top}/batch/kid") if comes_back else ():
                    make(path)

        drive(top, state, Gate(after=vanish))
        for path in () if comes_back else (f"{top}/batch", f"{top}/batch/kid"):
            make(path)
        report = restore(FS, state)
        assert report.complete
        assert contents(top) == before, f"write {moment}"


@pytest.mark.parametrize("moment", ["looked at", "opened"])
def test_a_write_never_lands_in_another_group_of_the_same_path(
    top: str, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On v1 and v2: the group is removed and made anew after it was looked at, or after its file was opened."""
    files = {"cpu": "cpu.shares", "cpuset": "cpuset.cpus", "memory": "memory.limit_in_bytes"}
    hierarchies = discover(FS)
    places = [f"{hierarchies.by_controller[name].mount}{top}/lra/{file}" for name, file in files.items()]
    if hierarchies.unified is not None:
        places.append(f"{hierarchies.unified.mount}{top}/lra/cgroup.max.depth")
    real_look, real_open = os.fstat, os.open
    for path in places:
        directory, value = os.path.dirname(path), FS.read(path)
        before = FS.identity(directory)

        def swap(directory: str = directory) -> None:
            monkeypatch.undo()
            os.rmdir(directory)
            os.mkdir(directory)

        def look(fd: int) -> os.stat_result:
            found = real_look(fd)
            swap()
            return found

        def opened(name: str, flags: int, dir_fd: int | None = None) -> int:
            fd = real_open(name, flags, dir_fd=dir_fd)
            if dir_fd is not None:
                swap()
            return fd

        FS.write_within(path, value, before)
        monkeypatch.setattr(
            "perphd.host.fs.os.fstat" if moment == "looked at" else "perphd.host.fs.os.open",
            look if moment == "looked at" else opened,
        )
        fresh_value = b"2048\n" if value != b"2048\n" else b"4096\n"
        with pytest.raises(Gone):
            FS.write_within(path, value if "cpuset" in path else fresh_value, before)
        assert FS.identity(directory) != before
        now = FS.read(path)
        assert now.strip() == b"" if "cpuset" in path else now == value
        with pytest.raises(Gone, match="another cgroup now has this path"):
            FS.write_within(path, value, before)


ASK = """
import http.client, json, os, socket, sys
path, gid = sys.argv[1], int(sys.argv[2])
os.setgroups([]); os.setgid(gid); os.setuid(65534)
for method, route, body in json.loads(sys.argv[3]):
    connection = http.client.HTTPConnection("localhost", timeout=20)
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.sock.connect(path)
        connection.request(method, route, None if body is None else json.dumps(body))
        print(method, route, connection.getresponse().status)
    except OSError as exc:
        print(method, route, type(exc).__name__)
    connection.close()
"""
CHANGES = """[["PUT", "/v1/mode", {"mode": "enforce"}],
["POST", "/v1/workloads", {"kind": "batch", "name": "more", "cgroup": "/more"}],
["DELETE", "/v1/workloads/pi", null], ["DELETE", "/v1/models/db", null], ["PUT", "/v1/models/db", {}],
["POST", "/v1/workloads/db/sli", {"work_rate_per_s": 1}], ["POST", "/v1/restore", null], ["POST", "/v1/reload", null],
["GET", "/v1/status", null]]"""


def digest(top: str, *folders: Path) -> dict[str, str]:
    """Of the configuration, the journal, what was added at run time, the models, and the groups' files."""
    files = [
        path
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file() and "perphd.db" not in path.name
    ]
    found = {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    return found | {path: hashlib.sha256(text).hexdigest() for path, text in contents(top).items()}


def test_a_process_of_another_user_changes_nothing(
    top: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    state = tmp_path_factory.mktemp("state")
    open_folder = Path("/tmp", f"perphd-test-faults-{os.getpid()}")
    open_folder.mkdir(mode=0o755)
    path = open_folder / "perphd.sock"
    config = state / "perphd.toml"
    config.write_text(CONFIG.format(state=state / "s", socket=path, group="nogroup", top=top))
    config.chmod(0o600)
    daemon = subprocess.Popen([*PERPHD, "run", "--config", str(config)], stderr=subprocess.DEVNULL)
    try:
        give_up = time.monotonic() + 60
        while not path.exists() or "200" not in ask(path, 0, '[["GET", "/v1/status", null]]', uid0=True):
            assert daemon.poll() is None
            assert time.monotonic() < give_up
            time.sleep(0.1)
        before = digest(top, state)
        stranger = ask(path, READERS, CHANGES)
        assert {line.split()[-1] for line in stranger.splitlines()} == {"PermissionError"}, stranger
        reader = ask(path, NOBODY, CHANGES).splitlines()
        assert [line.split()[-1] for line in reader] == ["403"] * 8 + ["200"], reader
        assert digest(top, state) == before
    finally:
        daemon.terminate()
        assert daemon.wait(60) == 0
        for left in open_folder.iterdir():
            left.unlink()
        open_folder.rmdir()


def ask(path: Path, gid: int, requests: str, uid0: bool = False) -> str:
    text = ASK.replace("os.setgroups([]); os.setgid(gid); os.setuid(65534)", "") if uid0 else ASK
    command = [sys.executable, "-c", text, str(path), str(gid), requests]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
