"""Memory nodes, disks and the freezer on this kernel's v1 controllers: set, effective, read back, given back."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from perphd.domain.allocation import IoLimit, Settings
from perphd.domain.cpuset import CpuSet
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.host.cgroup import discover
from perphd.isolation import Executor, Journal, restore
from tests.kernel.isolation_groups import FS, sleeper

CONTROLLERS = ("cpu", "cpuset", "blkio", "freezer")
pytestmark = [pytest.mark.requires_root, pytest.mark.requires_cgroup_v1(*CONTROLLERS)]
TOP = f"/perphd-test-knobs-{os.getpid()}"
SPEC = WorkloadSpec("batch", Kind.BATCH, TOP)


@pytest.fixture
def directories() -> Iterator[dict[str, Path]]:
    """The directories of one group, by controller."""
    of = discover(FS).of
    trees = {name: of("io" if name == "blkio" else name) for name in CONTROLLERS}
    found = {name: Path(tree.path(TOP)) for name, tree in trees.items() if tree is not None}
    for path in dict.fromkeys(found.values()):
        path.mkdir()
    for name in ("cpuset.cpus", "cpuset.mems"):
        (found["cpuset"] / name).write_text((found["cpuset"].parent / name).read_text())
    yield found
    for path in dict.fromkeys(found.values()):
        path.rmdir()


async def test_a_frozen_group_stands_still_and_restore_thaws_it(
    directories: dict[str, Path], tmp_path: Path
) -> None:
    process = sleeper()
    state = directories["freezer"] / "freezer.state"
    try:
        (directories["freezer"] / "cgroup.procs").write_text(f"{process.pid}\n")
        with Journal(tmp_path) as journal:
            executor = Executor(FS, discover(FS), journal)
            applied = await executor.apply(executor.plan({"batch": Settings(frozen=True)}, [SPEC]))
            assert applied.ok, applied
            for _ in range(200):
                if state.read_text() == "FROZEN\n":
                    break
                await asyncio.sleep(0.01)
            assert state.read_text() == "FROZEN\n"
            assert executor.in_force("batch").frozen is True
            assert not executor.plan({"batch": Settings(frozen=True)}, [SPEC])
            assert not executor.conflicts()
            executor.close()
        report = restore(FS, tmp_path)
        assert report.complete, str(report)
        assert not report.foreign, str(report)
        assert state.read_text() == "THAWED\n"
    finally:
        process.kill()
        process.wait()


async def test_ceilings_of_a_disk_come_and_go_and_an_operators_own_stay(
    directories: dict[str, Path], tmp_path: Path
) -> None:
    disks = [Path(path, "dev").read_text().strip() for path in Path("/sys/block").iterdir()]
    if len(disks) < 2:
        pytest.skip("needs two block devices, one of them with a ceiling of its operator")
    mine, theirs = sorted(disks)[:2]
    read = directories["blkio"] / "blkio.throttle.read_bps_device"
    write = directories["blkio"] / "blkio.throttle.write_iops_device"
    read.write_text(f"{theirs} 5000000\n")
    limits = (IoLimit(mine, read_bytes=1 << 20, write_ops=100), IoLimit(theirs, read_bytes=1 << 30))
    with Journal(tmp_path) as journal:
        executor = Executor(FS, discover(FS), journal)
        target = {"batch": Settings(io_max=limits)}
        applied = await executor.apply(executor.plan(target, [SPEC]))
        assert applied.ok, applied
        assert sorted(read.read_text().splitlines()) == sorted([f"{mine} {1 << 20}", f"{theirs} 5000000"])
        assert write.read_text() == f"{mine} 100\n"
        assert not executor.plan(target, [SPEC])
        unknown = {"batch": Settings(io_max=(IoLimit("9999:0", read_bytes=1 << 20),))}
        changes = executor.plan(unknown, [SPEC])
        assert "there is no such disk" in executor.limited("batch")[0].reason
        assert (await executor.apply(changes)).ok
        assert not executor.plan(unknown, [SPEC]).writes, "not tried"
        executor.close()
    assert restore(FS, tmp_path).complete
    assert (read.read_text(), write.read_text()) == (f"{theirs} 5000000\n", "")


async def test_memory_nodes_are_bound_by_the_parents(directories: dict[str, Path], tmp_path: Path) -> None:
    mems = directories["cpuset"] / "cpuset.mems"
    nodes = CpuSet.parse(mems.read_text())
    with Journal(tmp_path) as journal:
        executor = Executor(FS, discover(FS), journal)
        assert not executor.plan({"batch": Settings(mems=nodes)}, [SPEC])
        executor.plan({"batch": Settings(mems=CpuSet.of([63]))}, [SPEC])
        assert "none of the memory nodes 63" in executor.not_enforceable("batch")[0].reason
        executor.close()
