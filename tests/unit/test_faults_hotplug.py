"""CPUs that are switched off and on: what the kernel itself takes out of v1's lists is nobody's interference."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from perphd.domain.allocation import Settings
from perphd.domain.cpuset import CpuSet
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.host.fs import RealFs
from perphd.host.topology import Processors, read_topology
from perphd.isolation import Executor, Journal, restore
from tests.unit.isolation_kernel import FakeKernel
from tests.unit.isolation_systemd import FakeSystemd

SPECS = (WorkloadSpec("db", Kind.LRA, "/db"), WorkloadSpec("pi", Kind.BATCH, "/pi"))
APART = {"db": Settings(cpus=CpuSet.of([0, 1])), "pi": Settings(cpus=CpuSet.of([2, 3]))}
BOOT = "this-boot"


def kernel_of(layout: str) -> FakeKernel:
    kernel = FakeKernel(layout)
    for group in ("/db", "/pi", "/pi/kid"):
        kernel.mkdir(group)
    return kernel


def go(executor: Executor, targets: dict[str, Settings]) -> bool:
    return asyncio.run(executor.apply(executor.plan(targets, SPECS, 0.0))).ok


def cpus(kernel: FakeKernel, group: str) -> str:
    mount = "/sys/fs/cgroup/cpuset" if kernel.layout == "v1" else "/sys/fs/cgroup"
    return kernel.read(f"{mount}{group}/cpuset.cpus").decode().strip()


@pytest.mark.parametrize("layout", ["v1", "v2"])
def test_switched_off_and_on_again_and_again_is_no_conflict(layout: str, tmp_path: Path) -> None:
    kernel = kernel_of(layout)
    with Journal(tmp_path, boot_id=BOOT) as journal:
        executor = Executor(kernel, kernel.hierarchies, journal, in_thread=False)
        assert go(executor, APART)
        for _ in range(4):
            kernel.set_online("0-2")
            assert not executor.plan(APART, SPECS, 0.0), "what is left of it is in force"
            kernel.set_online("0-3")
            assert go(executor, APART)
            assert cpus(kernel, "/pi") == "2-3"
        assert not executor.conflicts()
        assert asyncio.run(executor.restore()).complete


def test_somebody_who_takes_more_than_what_was_switched_off_is_noticed(tmp_path: Path) -> None:
    kernel = kernel_of("v1")
    with Journal(tmp_path, boot_id=BOOT) as journal:
        executor = Executor(kernel, kernel.hierarchies, journal, in_thread=False)
        assert go(executor, {"pi": Settings(cpus=CpuSet.of([1, 2, 3]))})
        kernel.set_online("0-2")
        kernel.set("/sys/fs/cgroup/cpuset/pi/kid/cpuset.cpus", "1")
        kernel.set("/sys/fs/cgroup/cpuset/pi/cpuset.cpus", "1")
        executor.plan({"pi": Settings(cpus=CpuSet.of([1, 2, 3]))}, SPECS, 0.0)
        assert [conflict.path for conflict in executor.conflicts()] == [
            "/sys/fs/cgroup/cpuset/pi/cpuset.cpus"
        ]


@pytest.mark.parametrize("daemon", [True, False], ids=["by the daemon", "by perphd restore"])
def test_given_back_as_far_as_there_are_cpus_and_the_rest_when_they_are_back(
    daemon: bool, tmp_path: Path
) -> None:
    kernel = kernel_of("v1")
    before = kernel.texts()
    with Journal(tmp_path, boot_id=BOOT) as journal:
        executor = Executor(kernel, kernel.hierarchies, journal, in_thread=False)
        assert go(executor, APART)
        kernel.set_online("0-2")
        if daemon:
            assert go(executor, {})
            assert not executor.plan({}, SPECS, 0.0), "nothing more can be done now"
    report = restore(kernel, tmp_path, boot_id=BOOT)
    assert not report.complete, "the journal keeps what is owed"
    assert "when 3 is online" in str(report)
    assert {cpus(kernel, group) for group in ("/db", "/pi", "/pi/kid")} == {"0-2"}
    kernel.set_online("0-3")
    report = restore(kernel, tmp_path, boot_id=BOOT)
    assert report.complete, report
    assert not report.foreign, report
    assert kernel.texts() == before


@pytest.mark.parametrize("daemon", [True, False], ids=["by the daemon", "by perphd restore"])
def test_a_v2_group_restored_while_a_cpu_is_off_has_it_when_it_is_back(daemon: bool, tmp_path: Path) -> None:
    kernel = kernel_of("v2")
    with Journal(tmp_path, boot_id=BOOT) as journal:
        executor = Executor(kernel, kernel.hierarchies, journal, in_thread=False)
        assert go(executor, APART)
        kernel.set_online("0-2")
        if daemon:
            assert go(executor, {})
            assert not executor.plan({}, SPECS, 0.0)
            assert not executor.conflicts()
    report = restore(kernel, tmp_path, boot_id=BOOT)
    assert report.complete, report
    assert not report.foreign, report
    assert {cpus(kernel, group) for group in ("/db", "/pi")} == {"0-3"}
    kernel.set_online("0-3")
    for group in ("/db", "/pi", "/pi/kid"):
        assert kernel.read(f"/sys/fs/cgroup{group}/cpuset.cpus.effective") == b"0-3\n"


def test_a_unit_restored_while_a_cpu_is_off_has_it_when_it_is_back(tmp_path: Path) -> None:
    systemd = FakeSystemd()
    systemd.start("job.service")
    fs, specs = systemd.fs(), (WorkloadSpec("job", Kind.BATCH, "/system.slice/job.service"),)
    effective = "/sys/fs/cgroup/system.slice/job.service/cpuset.cpus.effective"
    with Journal(tmp_path, boot_id=BOOT) as journal:
        executor = Executor(fs, systemd.kernel.hierarchies, journal, in_thread=False)
        changes = executor.plan({"job": Settings(cpus=CpuSet.of([0]))}, specs, 0.0)
        assert asyncio.run(executor.apply(changes)).ok
    assert systemd.kernel.read(effective) == b"0\n"
    systemd.kernel.set_online("0-2")
    assert restore(fs, tmp_path, boot_id=BOOT).complete
    assert systemd.kernel.read(effective) == b"0-2\n"
    systemd.kernel.set_online("0-3")
    assert systemd.kernel.read(effective) == b"0-3\n"
    assert fs.read(effective.removesuffix(".effective")) == b"\n", "still known as released"


def test_the_topology_is_read_anew_when_other_cpus_are_online_and_only_then(tmp_path: Path) -> None:
    root = tmp_path / "sys/devices/system/cpu"
    root.mkdir(parents=True)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 1024 kB\n")
    online = root / "online"
    online.write_text("0-3\n")
    (root / "present").write_text("0-3\n")
    processors = Processors(RealFs(tmp_path))
    try:
        assert processors.look() is None
        online.write_text("0-1\n")
        found = processors.look()
        assert found is not None
        assert (found.online, found.offline) == (CpuSet.of([0, 1]), CpuSet.of([2, 3]))
        assert processors.look() is None
        online.write_text("nonsense\n")
        assert processors.look() is None, "what cannot be read is no change"
        online.write_text("0-3\n")
        assert processors.look() == read_topology(RealFs(tmp_path))
    finally:
        processors.close()
