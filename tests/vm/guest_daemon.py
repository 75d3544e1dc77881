"""The daemon on a cgroup v2 host with systemd as PID 1: runs inside the virtual machine, started by test_v2_host.py.

By hand, on a machine that may be spoilt: ``python3 -m pytest tests/vm/guest_daemon.py`` as root.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.kernel.isolation_groups import contents, v2_tree

pytestmark = [pytest.mark.requires_root, pytest.mark.requires_cgroup_v2("cpu", "cpuset", "memory")]

ROOT = Path(__file__).parents[2]
NAME = f"perphd-test-vm-{os.getpid()}"
TOP = f"/{NAME}"
JOB = f"{NAME}-job.service"
PATIENCE_S = 240.0
SPIN = "while True: pass"
# An application in a closed loop: two workers that each answer "requests" of 5 ms CPU time, and tell how many.
APPLICATION = """
import mmap, os, struct, sys, time
count = mmap.mmap(-1, 16)
for worker in range(2):
    if os.fork() == 0:
        while True:
            end = time.thread_time() + 0.005
            while time.thread_time() < end:
                pass
            struct.pack_into("q", count, 8 * worker, struct.unpack_from("q", count, 8 * worker)[0] + 1)
            time.sleep(0.001)
while True:
    time.sleep(0.2)
    with open(sys.argv[1] + ".new", "w") as file:
        file.write(f"work_total = {sum(struct.unpack('2q', count[:16]))}")
    os.replace(sys.argv[1] + ".new", sys.argv[1])
"""
CONFIG = """
[daemon]
mode = "enforce"
period_s = 0.5
state_dir = "{state}"
socket = "{socket}"
read_group = "root"
admin_group = "root"
[tuning.isolation]
deadline_s = 20.0
[tuning.policy]
probe_after_s = 3600.0
[[lra]]
name = "app"
cgroup = "{top}/lra"
[lra.sli]
source = "file"
path = "{directory}/sli"
[[batch]]
name = "spin"
cgroup = "{top}/batch"
[[batch]]
name = "unit"
cgroup = "/system.slice/{job}"
"""


class Host:
    """Test groups with an application in one of them, and the daemon's files."""

    def __init__(self, tree: Path, directory: Path) -> None:
        self.tree, self.directory = tree, directory
        self.config, self.socket, self.state = (
            directory / "perphd.toml",
            directory / "socket",
            directory / "state",
        )
        self._processes: list[subprocess.Popen[bytes]] = []
        self.configure()

    def configure(self) -> None:
        text = CONFIG.format(state=self.state, socket=self.socket, top=TOP, directory=self.directory, job=JOB)
        self.config.write_text(text)

    def spawn(self, group: str, code: str, *arguments: str) -> None:
        """A process of its own session, inside this group before its code begins."""
        enter = f"open('{self.tree / group}/cgroup.procs', 'w').write('0')\n"
        command = [sys.executable, "-S", "-c", enter + code, *arguments]
        self._processes.append(subprocess.Popen(command, start_new_session=True))

    def antagonists(self) -> None:
        for _ in range(2):
            self.spawn("batch", SPIN)

    def end(self) -> None:
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.wait()
        self._processes.clear()
        wait_for(lambda: not any((self.tree / g / "cgroup.procs").read_text() for g in ("lra", "batch")))

    def settings(self) -> dict[str, bytes]:
        """Everything that can be set on the groups, without who is in them."""
        return {path: text for path, text in contents(TOP).items() if not path.endswith(("procs", "threads"))}

    def ctl(self, *words: str) -> str:
        return command("perphd.commands.cli", *words, "--socket", str(self.socket))

    def restore(self) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*module("perphd.commands.daemon"), "restore", "--config", str(self.config)],
            capture_output=True,
            text=True,
            check=False,
        )


def module(name: str) -> list[str]:
    return [
        sys.executable,
        "-c",
        f"import sys; sys.path.insert(0, '{ROOT}'); from {name} import main; main()",
    ]


def command(name: str, *words: str) -> str:
    done = subprocess.run([*module(name), *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def systemctl(*words: str) -> str:
    done = subprocess.run(["systemctl", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def shown(unit: str, name: str) -> str:
    return systemctl("show", unit, "--value", "-p", name)


def wait_for(done: Callable[[], object], what: str = "") -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < deadline, what or "it did not happen"
        time.sleep(0.1)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """An LRA at work, its reference to be learned; no antagonist yet. Afterwards the groups are empty and removed."""
    if not Path("/run/systemd/system").is_dir():
        pytest.skip("needs systemd as PID 1")
    with v2_tree(TOP, ("lra", "batch"), ("cpu", "cpuset", "memory")) as tree:
        cpus = (tree / "cpuset.cpus.effective").read_text()
        # Beside each other they shall be short of CPU time, and not what tests them.
        (tree / "cpu.weight").write_text("30\n")
        for name in ("lra", "batch"):
            (tree / name / "cpuset.cpus").write_text(cpus)
        (tree / "batch/cpu.weight").write_text("90\n")
        found = Host(tree, tmp_path)
        try:
            found.spawn("lra", APPLICATION, str(tmp_path / "sli"))
            yield found
        finally:
            found.end()


@contextmanager
def running(host: Host) -> Iterator[subprocess.Popen[bytes]]:
    """The daemon, ready to answer; killed at the end if it still runs, and what it did is given back."""
    daemon = subprocess.Popen([*module("perphd.commands.daemon"), "run", "--config", str(host.config)])
    try:
        wait_for(lambda: daemon.poll() is not None or host.socket.exists(), "the daemon does not answer")
        assert daemon.poll() is None, "the daemon ended by itself"
        yield daemon
    finally:
        daemon.kill()
        daemon.wait()
        host.restore()


@pytest.fixture
def job() -> Iterator[Path]:
    """A workload that is a systemd unit, with a setting of its own; its cgroup."""
    subprocess.run(
        ["systemd-run", "--quiet", f"--unit={JOB}", "-p", "CPUWeight=70", "sleep", "3600"], check=True
    )
    try:
        yield Path("/sys/fs/cgroup/system.slice", JOB)
    finally:
        systemctl("stop", JOB)


def said_by_drop_ins() -> set[str]:
    texts = [path.read_text() for path in Path("/run/systemd").glob(f"*/{JOB}.d/*")]
    return {line for text in texts for line in text.splitlines() if not line.startswith("#")}


def test_detects_protects_explains_and_gives_back(host: Host, job: Path) -> None:
    before = host.settings()
    unit = {name: (job / name).read_text() for name in ("cpu.weight", "cpu.max", "cgroup.procs")}
    assert unit["cpu.weight"] == "70\n"
    drop_ins = said_by_drop_ins()
    with running(host) as daemon:
        wait_for(
            lambda: '"healthy"' in host.ctl("status", "--json"), "the application's reference was not learned"
        )
        assert host.settings() == before, "nothing is written while all is well"
        host.antagonists()
        wait_for(lambda: host.settings() != before, "the daemon enforced nothing")
        now = host.settings()
        changed = {path for path, text in now.items() if before[path] != text}
        own = ("cpuset.cpus", "cpu.weight", "cpu.weight.nice", "cpu.idle", "cpu.max")
        cores, batchs = str(host.tree / "lra/cpuset.cpus"), str(host.tree / "batch/cpuset.cpus")
        assert changed - {cores} <= {str(host.tree / "batch" / name) for name in own}, "only batch gives way"
        if cores in changed:
            # On a machine of two processors: one each, when both are written.
            wait_for(
                lambda: {host.settings()[path] for path in (cores, batchs)} == {b"0\n", b"1\n"}, "not its own"
            )

        # What is a unit gives way likewise, by systemd's own means.
        wait_for(
            lambda: shown(JOB, "CPUWeight") != "70" or shown(JOB, "AllowedCPUs"), "the unit was left alone"
        )
        explained = host.ctl("explain", "app", "--limit", "1000")
        change = r"from +(none|demoted)\(batch on .*\)\n +to +(demoted|confined|exclusive)\(batch on"
        assert re.search(change, explained), explained
        doctor = host.ctl("doctor")
        for name, value in (("cgroup.cpuset", "yes"), ("memory.protection", "yes"), ("psi.cgroup", "yes")):
            assert re.search(rf"^{re.escape(name)} +{value} ", doctor, re.MULTILINE), doctor
        assert re.search(r"^cgroup +yes +v2: v2 at ", doctor, re.MULTILINE), doctor

        daemon.terminate()
        assert daemon.wait(PATIENCE_S) == 0
        assert host.settings() == before
        assert {name: (job / name).read_text() for name in unit} == unit
        assert said_by_drop_ins() == drop_ins
