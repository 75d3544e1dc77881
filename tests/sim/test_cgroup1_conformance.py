"""The simulated cgroup v1 answers every captured operation as the kernel did, and perphd confines work through it."""

from __future__ import annotations

import os
import subprocess
import tomllib
from pathlib import Path

import pytest

from perphd.domain.cpuset import CpuSet
from perphd.host.cgroup import discover
from perphd.host.cgroup.group import Cgroups
from perphd.host.cgroup.hierarchy import Layout
from perphd.host.fs import RealFs
from perphd.sim.counters import Process
from perphd.sim.kernel import Directory, RawFs, SimFs
from perphd.sim.kernel.cgroup1 import HIERARCHIES, mount_v1
from perphd.sim.kernel.cgroup2 import CgroupTree
from perphd.sim.kernel.proc import BASE_MOUNTS, set_mounts
from perphd.sim.machine import CGROUP_ROOT
from tests.sim.cgroup2_replay import InProcess, Replay, Step, System

TABLE = tomllib.loads((Path(__file__).parent / "data" / "cgroup1_operations.toml").read_text())
STEPS = sum(len(section["steps"]) for section in TABLE["section"])


class Simulated:
    """Two CPUs, every hierarchy, and two processes in the roots."""

    def __init__(self) -> None:
        self.root = Directory()
        self.tree = CgroupTree(self.root.make(CGROUP_ROOT), CpuSet(3), CpuSet(1), 2)
        self.tree.root.processes += [Process(pid, (pid,), "sleep") for pid in (284, 285)]
        self.hierarchies, mounts = mount_v1(self.root, CGROUP_ROOT, self.tree)
        set_mounts(self.root, [*BASE_MOUNTS, *mounts])
        self.names = {"A": 284, "B": 285}
        self.calls = InProcess(RawFs(self.root))

    def place(self, path: str) -> str | None:
        """A path of the table: controller, then the path in its hierarchy."""
        controller, _, rest = path.partition("/")
        mount = next(names for names in HIERARCHIES if controller in names.split(","))
        return f"{CGROUP_ROOT}/{mount}/{rest}"

    def refusal(self, step: Step) -> str:
        return ""

    def happen(self, step: Step) -> None:
        raise AssertionError(f"no step of this table needs anything to happen: {step}")


class ThisKernel:
    """The hierarchies of this machine, with groups and processes of our own."""

    def __init__(self) -> None:
        self._hierarchies, self._prefix = discover(RealFs()), f"perphd-test-{os.getpid()}-"
        self._started = [subprocess.Popen(["/bin/sleep", "600"]) for _ in range(2)]
        a, b = (process.pid for process in self._started)
        self.names = {"A": a, "B": b}
        self.calls = System("", fuse=False)
        self._exclusive_ended = False

    def place(self, path: str) -> str | None:
        controller, _, rest = path.partition("/")
        tree = self._hierarchies.of("io" if controller == "blkio" else controller)
        if tree is None or tree.version != 1 or not rest.startswith(("lab", "tasks")):
            return None
        return f"{tree.mount}/{rest.replace('lab', self._prefix, 1)}"

    def refusal(self, step: Step) -> str:
        path = next(step[key] for key in ("write", "mkdir", "rmdir") if key in step)
        if self.place(path) is None:
            return "not a v1 controller here, or not ours to change"
        if os.cpu_count() != 2 and "cpuset" in path:
            return "captured with two CPUs"
        if "254:0" in step.get("data", "") and not os.path.exists("/sys/dev/block/254:0"):
            return "this machine has no disk 254:0"
        # No group has its CPUs exclusively beside another that has them too, and what follows builds on that.
        self._exclusive_ended |= path.endswith("cpu_exclusive") and self._others_have_cpus()
        if self._exclusive_ended and "cpuset" in path:
            return "another group of this machine has CPUs of its own"
        return ""

    def _others_have_cpus(self) -> bool:
        tree = self._hierarchies.of("cpuset")
        groups = Path(tree.mount).glob("*/cpuset.cpus") if tree is not None else ()
        return any(
            cpus.read_text().strip() for cpus in groups if not cpus.parent.name.startswith(self._prefix)
        )

    def happen(self, step: Step) -> None:
        raise AssertionError(f"no step of this table needs anything to happen: {step}")

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()
        for tree in self._hierarchies.all():
            left = Path(tree.mount).glob(f"{self._prefix}*/**/")
            for group in sorted(left, reverse=True):
                group.rmdir()


def test_every_captured_operation() -> None:
    done = list(Replay(Simulated(), table=TABLE).run())
    assert len(done) == STEPS > 150
    assert [reason for _, _, reason in done if reason] == []


@pytest.mark.requires_root
@pytest.mark.requires_cgroup_v1("cpu")
def test_the_same_on_this_kernel() -> None:
    world = ThisKernel()
    try:
        asked = [step for _, step, reason in Replay(world, table=TABLE).run() if reason is None]
    finally:
        world.close()
    assert len(asked) > 40


def test_perphd_sees_a_v1_host_and_its_writes_act_on_the_work() -> None:
    world = Simulated()
    group = world.tree.make("/lab/db")
    group.processes.append(Process(500, (500, 501), "db"))
    for above in group.ancestry():
        above.cpu.usage_s, above.memory.file_bytes, above.io.read_bytes, above.io.reads = (
            2.5,
            8e6,
            4096.0,
            1.0,
        )
    fs = SimFs(world.root)
    hierarchies = discover(fs)
    assert hierarchies.layout is Layout.V1
    mine = Cgroups(fs, hierarchies).group("/lab/db")
    assert mine.exists()
    assert mine.procs() == {500}
    assert mine.threads() == {500, 501}
    for setting in ("cpus", "cpu_weight", "cpu_max_cores"):
        assert not isinstance(mine.knob(setting), str), setting
    read = {name: fs.read(f"{CGROUP_ROOT}/{name}").decode() for name in (
        "cpu,cpuacct/lab/db/cpuacct.usage",
        "memory/lab/db/memory.usage_in_bytes",
        "blkio/lab/blkio.throttle.io_service_bytes_recursive",
        "cpuset/lab/db/cpuset.cpus",
    )}  # fmt: skip
    assert [text.splitlines()[0] for text in read.values()] == [
        "2500000000",
        "7999488",
        "254:0 Read 4096",
        "0-1",
    ]
    fs.write(f"{CGROUP_ROOT}/cpuset/lab/db/cpuset.cpus", b"1")
    fs.write(f"{CGROUP_ROOT}/cpu,cpuacct/lab/db/cpu.shares", b"512")
    fs.write(f"{CGROUP_ROOT}/cpu,cpuacct/lab/db/cpu.cfs_quota_us", b"50000")
    fs.write(f"{CGROUP_ROOT}/freezer/lab/freezer.state", b"FROZEN")
    assert (str(group.effective_cpus), group.weight, group.quota_us, group.frozen) == ("1", 50, 50_000, True)
    fs.write(f"{CGROUP_ROOT}/cpu,cpuacct/tasks", b"501")
    assert "501" in fs.read(f"{CGROUP_ROOT}/cpu,cpuacct/tasks").decode().split()
    assert fs.read(f"{CGROUP_ROOT}/cpu,cpuacct/lab/db/tasks") == b""
    assert mine.procs() == frozenset({500})  # still there in the other hierarchies


def test_a_group_that_goes_and_comes_in_the_tree_does_so_in_every_hierarchy() -> None:
    world = Simulated()
    world.tree.make("/batch/pi")
    assert all(tree.find("/batch/pi") is not None for tree in world.hierarchies.values())
    world.tree.remove("/batch/pi")
    assert all(tree.find("/batch/pi") is None for tree in world.hierarchies.values())
