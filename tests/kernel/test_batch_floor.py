"""The floor of batch on real control groups: work that nobody declared fills the host, and batch gets its CPU time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from perphd.control.client import Client
from perphd.host.cgroup import discover
from perphd.host.fs import RealFs

pytestmark = [pytest.mark.requires_root, pytest.mark.requires_cgroup_v1("cpu", "cpuacct", "cpuset")]

FS = RealFs()
PERPHD = [sys.executable, "-c", "from perphd.commands.daemon import main; main()"]
SPIN = "while True: pass"
BURSTS = "import time\nwhile True:\n    sum(range(20000))\n    time.sleep(0.005)"
FLOOR_CORES = 0.5
SETTLED_S = float(os.environ.get("PERPHD_TEST_FLOOR_SETTLED_S", "20"))
WATCHED_S = float(os.environ.get("PERPHD_TEST_FLOOR_S", "15"))
PATIENCE_S = 60.0
CONFIG = """
[daemon]
mode = "enforce"
period_s = 1.0
state_dir = "{state}"
socket = "{state}/perphd.sock"
read_group = "root"
admin_group = "root"
[[lra]]
name = "app"
cgroup = "{top}-app"
[[batch]]
name = "job"
cgroup = "{top}-job"
{floor}
"""


class Host:
    """Groups beside each other at the top: app, job, and a hog that nobody declares, with ten times the weight."""

    def __init__(self, tmp_path: Path) -> None:
        self.top, self.state = f"/perphd-test-floor-{os.getpid()}", tmp_path
        hierarchies = discover(FS)
        self.mounts = [h.mount for h in hierarchies.all() if h.controllers & {"cpu", "cpuset", "cpuacct"}]
        self.mounts += [hierarchies.unified.mount] if hierarchies.unified is not None else []
        self.usage = next(
            Path(f"{h.mount}{self.top}-job/cpuacct.usage")
            for h in hierarchies.all()
            if "cpuacct" in h.controllers
        )
        self.processes: list[subprocess.Popen[bytes]] = []
        for name in ("app", "job", "hog"):
            for mount in self.mounts:
                self._make(f"{mount}{self.top}-{name}", mount, 10240 if name == "hog" else 1024)

    def _make(self, directory: str, mount: str, shares: int) -> None:
        os.mkdir(directory)
        for name in ("cpus", "mems"):
            file = Path(f"{directory}/cpuset.{name}")
            if file.exists():
                file.write_text(Path(mount, f"cpuset.{name}").read_text())
        weight = Path(f"{directory}/cpu.shares")
        if weight.exists():
            weight.write_text(f"{shares}\n")

    def make_idle(self, group: str) -> None:
        """As an operator does who wants it to run only when nobody else does."""
        (idle,) = (path for m in self.mounts if (path := Path(f"{m}{self.top}-{group}/cpu.idle")).exists())
        idle.write_text("1\n")

    def run(self, group: str, text: str, times: int) -> None:
        for _ in range(times):
            process = subprocess.Popen([sys.executable, "-c", text])
            self.processes.append(process)
            for mount in self.mounts:
                Path(f"{mount}{self.top}-{group}/cgroup.procs").write_text(f"{process.pid}\n")

    def daemon(self, floor: str) -> Client:
        config = self.state / "perphd.toml"
        config.write_text(CONFIG.format(state=self.state, top=self.top, floor=floor))
        with open(self.state / "log", "wb") as log:
            self.processes.append(subprocess.Popen([*PERPHD, "run", "--config", str(config)], stderr=log))
        return Client(str(self.state / "perphd.sock"))

    def cpu_s(self) -> float:
        return int(self.usage.read_text()) / 1e9

    def end(self) -> None:
        for process in reversed(self.processes):  # the daemon first, so that it gives back
            process.terminate()
        for process in self.processes:
            process.wait(PATIENCE_S)
        for name in ("app", "job", "hog"):
            for mount in self.mounts:
                os.rmdir(f"{mount}{self.top}-{name}")


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    try:
        yield host
    finally:
        host.end()


def looks(host: Host, seconds: float) -> list[tuple[float, float]]:
    """When, and how much CPU time batch had used until then."""
    found = []
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        found.append((time.monotonic(), host.cpu_s()))
        time.sleep(0.25)
    return found


def least_cores(found: Sequence[tuple[float, float]]) -> float:
    """The least CPU time per second over any ten seconds."""
    rates = [
        (used - before) / (at_s - since_s)
        for since_s, before in found
        for at_s, used in found
        if 9.9 <= at_s - since_s <= 11.0
    ]
    assert rates
    return min(rates)


def longest_stop_s(found: Sequence[tuple[float, float]]) -> float:
    """The longest time without a hundredth of a second of CPU time."""
    longest, since_s, used = 0.0, found[0][0], found[0][1]
    for at_s, total in found:
        longest = max(longest, at_s - since_s)
        if total - used >= 0.01:
            since_s, used = at_s, total
    return longest


def when_ready(client: Client) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            client.get("status")
            return
        except Exception:
            assert time.monotonic() < deadline, "the daemon does not come up"
            time.sleep(0.1)


def job(client: Client) -> dict[str, object]:
    (found,) = (item for item in client.get("status")["workloads"] if item["spec"]["name"] == "job")
    assert isinstance(found, dict)
    return found


def test_batch_gets_its_floor_beside_work_that_nobody_declared(host: Host) -> None:
    host.run("app", BURSTS, 2)
    host.run("hog", SPIN, 4)
    client = host.daemon(f"min_cores = {FLOOR_CORES}")
    when_ready(client)
    host.run("job", SPIN, 4)
    looks(host, SETTLED_S)
    found = looks(host, WATCHED_S)
    status = job(client)
    print(least_cores(found), longest_stop_s(found), json.dumps(status["in_force"]), status["condition"])
    assert least_cores(found) >= 0.9 * FLOOR_CORES
    assert status["condition"] == "running"
    weight = status["in_force"]["cpu_weight"]  # type: ignore[index]
    assert isinstance(weight, int)
    assert weight > 100, "a tenth of the hog's weight gives a tenth of its time"


def test_batch_is_never_without_progress_for_longer_than_its_bound(host: Host) -> None:
    host.run("app", BURSTS, 2)
    host.run("hog", SPIN, 4)
    host.make_idle("job")
    client = host.daemon("max_starvation_s = 20")
    when_ready(client)
    host.run("job", SPIN, 4)
    began = host.cpu_s()
    looks(host, SETTLED_S)
    before = host.cpu_s() - began
    found = looks(host, WATCHED_S)
    print(before, longest_stop_s(found), job(client)["in_force"])
    assert longest_stop_s(found) <= 20.0
    assert found[-1][1] - found[0][1] > 0.01 * WATCHED_S
    starved_s = job(client)["starved_s"]
    assert isinstance(starved_s, float)
    assert starved_s <= 20.0
