"""Bands on real control groups: gold has a core, copper has the rest in the idle class, and all is given back.

Needs two physical cores. A silver group and one that nobody declared are beside them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from perphd.control.client import Client
from perphd.domain.cpuset import CpuSet
from perphd.host.cgroup import discover
from perphd.host.fs import RealFs
from perphd.host.topology import read_topology

FS = RealFs()
PERPHD = [sys.executable, "-c", "from perphd.commands.daemon import main; main()"]
PERPHCTL = [sys.executable, "-c", "from perphd.commands.cli import main; main()"]
SPIN = "while True: pass"
PATIENCE_S = 60.0
NAMES = ("gold", "silver", "copper", "other")
CONFIG = """
[daemon]
mode = "{mode}"
period_s = 0.5
state_dir = "{state}"
socket = "{state}/perphd.sock"
read_group = "root"
admin_group = "root"
[tuning.daemon]
policy = "none"
[[lra]]
name = "gold"
cgroup = "{top}-gold"
band = "gold"
touch = "{touch}"
reserved_cpus = {cpus}
[[lra]]
name = "silver"
cgroup = "{top}-silver"
band = "silver"
touch = "batch"
[[batch]]
name = "copper"
cgroup = "{top}-copper"
band = "copper"
"""
pytestmark = [pytest.mark.requires_root, pytest.mark.requires_cgroup_v1("cpu", "cpuset")]


class Host:
    """Groups beside each other, each with two busy processes."""

    def __init__(self, state: Path) -> None:
        self.top, self.state = f"/perphd-test-bands-{os.getpid()}", state
        self.topology = read_topology(FS)
        self.cores = [core.cpus for core in self.topology.usable_cores]
        hierarchies = discover(FS)
        self.mounts = [h.mount for h in hierarchies.all() if h.controllers & {"cpu", "cpuset"}]
        self.mounts += [hierarchies.unified.mount] if hierarchies.unified is not None else []
        self.cpuset, self.cpu = (
            next(h.mount for h in hierarchies.all() if name in h.controllers) for name in ("cpuset", "cpu")
        )
        self.processes: list[subprocess.Popen[bytes]] = []
        for name in NAMES:
            for mount in self.mounts:
                directory = f"{mount}{self.top}-{name}"
                os.mkdir(directory)
                for file in ("cpus", "mems"):
                    if Path(f"{directory}/cpuset.{file}").exists():
                        Path(f"{directory}/cpuset.{file}").write_text(
                            Path(mount, f"cpuset.{file}").read_text()
                        )
            self.run(name)
        self.before = self.texts()

    def run(self, name: str) -> None:
        for _ in range(2):
            process = subprocess.Popen([sys.executable, "-c", SPIN])
            self.processes.append(process)
            for mount in self.mounts:
                Path(f"{mount}{self.top}-{name}/cgroup.procs").write_text(f"{process.pid}\n")

    def texts(self) -> dict[str, str]:
        """What perphd may have changed."""
        paths = [f"{self.cpuset}{self.top}-{name}/cpuset.cpus" for name in NAMES]
        paths += [
            f"{self.cpu}{self.top}-{name}/{file}" for name in NAMES for file in ("cpu.shares", "cpu.idle")
        ]
        return {path: Path(path).read_text() for path in paths if Path(path).exists()}

    def cpus(self, name: str) -> CpuSet:
        return CpuSet.parse(Path(f"{self.cpuset}{self.top}-{name}/cpuset.cpus").read_text())

    def is_idle(self, name: str) -> bool:
        """In the idle class, or with the least weight where the kernel has no such class for groups."""
        idle = Path(f"{self.cpu}{self.top}-{name}/cpu.idle")
        if idle.exists():
            return idle.read_text() == "1\n"
        return int(Path(f"{self.cpu}{self.top}-{name}/cpu.shares").read_text()) <= 3

    def shares(self, name: str) -> int:
        return int(Path(f"{self.cpu}{self.top}-{name}/cpu.shares").read_text())

    def seen_on(self, name: str) -> CpuSet:
        """CPUs on which the group's processes ran last."""
        pids = Path(f"{self.cpu}{self.top}-{name}/cgroup.procs").read_text().split()
        return CpuSet.of(
            int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[36]) for pid in pids
        )

    def daemon(self, mode: str, touch: str, cpus: int = 1) -> subprocess.Popen[bytes]:
        text = CONFIG.format(state=self.state, top=self.top, mode=mode, touch=touch, cpus=cpus)
        (self.state / "perphd.toml").write_text(text)
        with open(self.state / "log", "wb") as log:
            process = subprocess.Popen([*PERPHD, "run", "--config", f"{self.state}/perphd.toml"], stderr=log)
        self.processes.append(process)
        client, deadline = Client(str(self.state / "perphd.sock")), time.monotonic() + PATIENCE_S
        while True:
            try:
                if client.get("status")["tick"] >= 3:
                    return process
            except Exception:
                assert process.poll() is None, (self.state / "log").read_text()
            assert time.monotonic() < deadline, "the daemon does not come up"
            time.sleep(0.1)

    def doctor(self) -> str:
        command = [*PERPHCTL, "--socket", f"{self.state}/perphd.sock", "doctor"]
        return " ".join(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())

    def end(self) -> None:
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            process.wait(PATIENCE_S)
        for name in NAMES:
            for mount in self.mounts:
                os.rmdir(f"{mount}{self.top}-{name}")


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    try:
        if len(host.cores) < 2:
            pytest.skip("one physical core: there is none that gold could have")
        yield host
    finally:
        host.end()


def stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    assert process.wait(PATIENCE_S) == 0


def test_gold_has_a_core_and_everything_is_given_back(host: Host) -> None:
    process = host.daemon("enforce", "all")
    own = host.cpus("gold")
    assert own == host.cores[0], "one CPU is one core, with its siblings"
    assert not own & host.cpus("copper")
    assert host.is_idle("copper")
    assert host.cpus("silver") == host.cpus("other") == host.topology.usable, (
        "not narrowed: touch batch, undeclared"
    )
    time.sleep(0.5)
    assert host.seen_on("gold") <= own
    assert host.seen_on("copper") <= host.cpus("copper")
    said = host.doctor()
    assert f"gold (gold): CPUs {own} are its own" in said
    assert f"copper: CPUs {host.cpus('copper')}" in said
    stop(process)
    assert host.texts() == host.before


def test_gold_that_may_not_be_narrowed_is_left_room_by_copper(host: Host) -> None:
    process = host.daemon("enforce", "batch", 1)
    assert host.cpus("gold") == host.topology.usable
    assert not host.cpus("copper") & host.cores[0]
    assert host.shares("gold") == 1024, "one reserved CPU is the kernel's default weight"
    assert 'touch = "batch" leaves its CPUs as they are' in host.doctor()
    stop(process)
    assert host.texts() == host.before


def test_what_does_not_fit_has_a_weight_instead(host: Host) -> None:
    cpus = len(host.topology.usable)
    process = host.daemon("enforce", "all", cpus)
    assert host.cpus("gold") == host.cpus("copper") == host.topology.usable
    assert host.shares("gold") == 1024 * cpus
    assert host.is_idle("copper")
    assert "gold (gold): no reserved CPUs, CPU weight of at least" in host.doctor()
    stop(process)
    assert host.texts() == host.before


def test_observe_writes_nothing(host: Host) -> None:
    process = host.daemon("observe", "all")
    assert host.texts() == host.before
    assert "gold (gold): nothing is set: it is only observed" in host.doctor()
    stop(process)


def test_a_killed_daemons_division_is_given_back_by_the_next(host: Host) -> None:
    process = host.daemon("enforce", "all")
    assert host.cpus("gold") == host.cores[0]
    process.kill()
    process.wait(PATIENCE_S)
    assert host.cpus("gold") == host.cores[0]
    stop(host.daemon("observe", "all"))
    assert host.texts() == host.before
