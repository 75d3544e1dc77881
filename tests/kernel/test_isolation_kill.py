"""On this kernel's cgroups: apply, give back, die at random moments, restore byte for byte."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from perphd.domain.allocation import IDLE, Settings
from perphd.domain.cpuset import CpuSet
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.host.cgroup import discover
from perphd.host.cgroup.group import Cgroups
from perphd.isolation import Executor, Journal, JournalInUse, restore
from tests.kernel.isolation_groups import FS, churn, contents, kill, sleeper

pytestmark = [pytest.mark.requires_root, pytest.mark.requires_cgroup_v1("cpu", "cpuset", "memory")]

MOMENTS = 20


@pytest.fixture
def group() -> Iterator[str]:
    """A parent with an LRA's and a batch job's group, each with values of its own; batch holds a nested group."""
    hierarchies = discover(FS)
    top = f"/perphd-test-iso-{os.getpid()}"
    tree = (top, f"{top}/lra", f"{top}/batch", f"{top}/batch/job", f"{top}/batch/job/step")
    mounts = {
        controller: hierarchies.by_controller[controller].mount for controller in ("cpu", "cpuset", "memory")
    }
    if hierarchies.unified is not None:
        mounts["unified"] = hierarchies.unified.mount
    for path in tree:
        for mount in mounts.values():
            os.mkdir(mount + path)
        for name in ("cpus", "mems"):
            root = Path(mounts["cpuset"], f"cpuset.{name}").read_text()
            Path(f"{mounts['cpuset']}{path}/cpuset.{name}").write_text(root)
    Path(f"{mounts['cpu']}{top}/batch/cpu.shares").write_text("700\n")
    Path(f"{mounts['cpu']}{top}/lra/cpu.idle").write_text("1\n")
    Path(f"{mounts['cpu']}{top}/lra/cpu.cfs_quota_us").write_text("150000\n")
    first_cpu = next(iter(CpuSet.parse(Path(mounts["cpuset"], "cpuset.cpus").read_text())))
    Path(f"{mounts['cpuset']}{top}/batch/job/step/cpuset.cpus").write_text(f"{first_cpu}\n")
    yield top
    for path in reversed(tree):
        for mount in mounts.values():
            os.rmdir(mount + path)


def test_killed_at_random_moments_everything_comes_back(group: str, tmp_path: Path) -> None:
    before = contents(group)
    assert any(path.endswith("cpu.shares") for path in before)
    assert any(path.endswith("memory.limit_in_bytes") for path in before)
    rng = random.Random(20261121)
    changed = 0
    for seed in range(MOMENTS):
        process = churn(group, tmp_path, seed)
        try:
            time.sleep(rng.uniform(0.0, 0.05))
        finally:
            said = kill(process)
        assert said == ""
        changed += contents(group) != before
        report = restore(FS, tmp_path)
        assert not report.failed, str(report)
        assert not report.foreign, str(report)
        assert contents(group) == before
        assert not restore(FS, tmp_path)
    assert changed > MOMENTS // 2, "most moments must have found something to restore"


async def test_started_again_on_a_dead_ones_journal_it_continues(group: str, tmp_path: Path) -> None:
    before = contents(group)
    specs = [
        WorkloadSpec("lra", Kind.LRA, f"{group}/lra"),
        WorkloadSpec("batch", Kind.BATCH, f"{group}/batch"),
    ]
    rng = random.Random(4)
    for seed in range(MOMENTS):
        process = churn(group, tmp_path, seed)
        await asyncio.sleep(rng.uniform(0.0, 0.03))
        kill(process)
        await continues(group, tmp_path, specs, before)


async def continues(group: str, tmp_path: Path, specs: list[WorkloadSpec], before: dict[str, bytes]) -> None:
    with Journal(tmp_path) as journal:
        executor = Executor(FS, discover(FS), journal)
        target = {"batch": Settings(cpu_weight=5, cpu_max_cores=0.25), "lra": Settings(cpu_weight=80)}
        assert (await executor.apply(executor.plan(target, specs))).ok
        assert not executor.conflicts()
        assert executor.in_force("batch") == target["batch"]
        assert (await executor.apply(executor.plan({}, specs))).ok
        assert contents(group) == before
        assert executor.journal_entries == 0
        executor.close()


async def test_a_live_process_keeps_restore_and_a_second_writer_out(group: str, tmp_path: Path) -> None:
    process = churn(group, tmp_path, 5)
    try:
        with pytest.raises(JournalInUse, match=f"process {process.pid}"):
            restore(FS, tmp_path)
        with pytest.raises(JournalInUse, match=f"process {process.pid}"):
            Journal(tmp_path)
    finally:
        kill(process)
        restore(FS, tmp_path)


async def test_the_kernel_takes_every_write_and_gives_the_expected_readings(
    group: str, tmp_path: Path
) -> None:
    """The fakes of the unit tests answer as this kernel does where perphd depends on it."""
    hierarchies = discover(FS)
    cpu = hierarchies.by_controller["cpu"].path(f"{group}/batch")
    before = contents(group)
    specs = [WorkloadSpec("batch", Kind.BATCH, f"{group}/batch")]
    with Journal(tmp_path) as journal:
        executor = Executor(FS, hierarchies, journal)
        knobs, missing = executor.enforceable(specs[0])
        assert knobs - {"io_weight", "io_max", "frozen"} == {"cpus", "mems", "cpu_weight", "cpu_max_cores"}
        assert {left.knob for left in missing} - {"io_weight", "io_max", "frozen"} == {
            *("memory_low_bytes", "memory_min_bytes", "memory_high_bytes", "memory_max_bytes"),
            *("io_latency_us", "egress_max", "llc_masks", "mba_pct"),
        }
        assert all(left.reason for left in missing)
        assert (await executor.apply(executor.plan({"batch": Settings(cpu_weight=IDLE)}, specs))).ok
        assert FS.read(f"{cpu}/cpu.shares") == b"3\n"
        with pytest.raises(Exception, match="EINVAL"):
            FS.write(f"{cpu}/cpu.shares", b"512\n")
        changes = executor.plan({"batch": Settings(cpu_weight=50, cpu_max_cores=0.5)}, specs)
        assert [write.stage.name for write in changes.writes] == ["SHRINK", "PROMOTE", "PROMOTE"]
        assert (await executor.apply(changes)).ok
        assert FS.read(f"{cpu}/cpu.shares") == b"512\n"
        assert FS.read(f"{cpu}/cpu.cfs_quota_us") == b"50000\n"
        Path(cpu, "cpu.shares").write_text("600\n")
        target = {"batch": Settings(cpu_weight=50, cpu_max_cores=0.5)}
        assert (await executor.apply(executor.plan(target, specs))).ok
        Path(cpu, "cpu.shares").write_text("601\n")
        assert not executor.plan(target, specs)
        assert executor.conflicts()[0].yielded
        report = await executor.restore(force=True)
        assert not report.failed
        executor.close()
    assert contents(group) == before


async def test_processes_inside_are_confined_with_their_nested_groups(group: str, tmp_path: Path) -> None:
    hierarchies = discover(FS)
    cpuset = hierarchies.by_controller["cpuset"]
    cpus = CpuSet.parse(FS.read(f"{cpuset.mount}/cpuset.cpus").decode())
    if len(cpus) < 2:
        pytest.skip("needs two CPUs to confine to one of them")
    last = max(cpus)
    before = contents(group)
    specs = [WorkloadSpec("batch", Kind.BATCH, f"{group}/batch")]
    process = sleeper()
    try:
        Path(cpuset.path(f"{group}/batch/job", "cgroup.procs")).write_text(f"{process.pid}\n")
        assert Cgroups(FS, hierarchies).group(f"{group}/batch").procs() == {process.pid}
        with Journal(tmp_path) as journal:
            executor = Executor(FS, hierarchies, journal)
            target = {"batch": Settings(cpus=CpuSet.of([last]))}
            applied = await executor.apply(executor.plan(target, specs))
            assert applied.ok, applied
            assert os.sched_getaffinity(process.pid) == {last}
            assert not executor.plan(target, specs)
            assert not (await executor.restore()).failed
            assert os.sched_getaffinity(process.pid) == set(cpus)
            executor.close()
    finally:
        process.kill()
        process.wait()
    inside = {path: text for path, text in contents(group).items() if not path.endswith(("procs", "tasks"))}
    assert inside == {path: text for path, text in before.items() if not path.endswith(("procs", "tasks"))}
