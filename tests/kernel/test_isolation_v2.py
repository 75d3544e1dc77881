"""On cgroup v2: apply, die at random moments, give back byte for byte; and the one exception to it."""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from perphd.domain.allocation import IDLE, NO_LIMIT, Settings
from perphd.domain.cpuset import CpuSet
from perphd.domain.errors import Full, Invalid
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.host.cgroup import discover
from perphd.host.cgroup.group import with_offline
from perphd.isolation import Executor, Journal, restore
from tests.kernel.isolation_groups import FS, churn, contents, kill, sleeper, v2_tree

CONTROLLERS = ("cpu", "cpuset", "memory")
pytestmark = [pytest.mark.requires_root, pytest.mark.requires_cgroup_v2(*CONTROLLERS)]

TOP = f"/perphd-test-v2-{os.getpid()}"
SPECS = [
    WorkloadSpec("lra", Kind.LRA, f"{TOP}/lra"),
    WorkloadSpec("batch", Kind.BATCH, f"{TOP}/batch"),
]


@pytest.fixture
def tree() -> Iterator[Path]:
    """Groups of an LRA and of batch with values of their own, except for CPU sets; batch holds nested groups."""
    with v2_tree(TOP, ("lra", "batch", "batch/job", "batch/job/step"), CONTROLLERS) as directory:
        write(directory / "lra", "cpu.weight", "250")
        write(directory / "lra", "memory.low", str(24 << 20))
        write(directory / "batch", "cpu.idle", "1")
        write(directory / "batch", "cpu.max", "150000 200000")
        write(directory / "batch", "memory.high", str(512 << 20))
        yield directory


@pytest.fixture
def cpus(tree: Path) -> CpuSet:
    """The CPUs that the groups may have; at least two."""
    found = CpuSet.parse(read(tree, "cpuset.cpus.effective"))
    if len(found) < 2:
        pytest.skip("needs two CPUs to confine to one of them")
    return found


@contextmanager
def populated(*groups: Path) -> Iterator[list[int]]:
    """A sleeping process in each."""
    processes = []
    try:
        for group in groups:
            processes.append(sleeper())
            write(group, "cgroup.procs", str(processes[-1].pid))
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def read(directory: Path, name: str) -> str:
    return (directory / name).read_text().rstrip("\n")


def write(directory: Path, name: str, text: str) -> None:
    (directory / name).write_text(f"{text}\n")


def die_at_random_moments(state: Path, before: dict[str, bytes], moments: int) -> int:
    """Let writers of random settings die; after each, all must come back. How often there was something to restore."""
    rng = random.Random(20261121)
    changed = 0
    for seed in range(moments):
        process = churn(TOP, state, seed)
        try:
            time.sleep(rng.uniform(0.0, 0.2))
        finally:
            said = kill(process)
        assert said == ""
        changed += contents(TOP) != before
        report = restore(FS, state)
        assert not report.failed, str(report)
        assert not report.foreign, str(report)
        assert contents(TOP) == before
        assert not restore(FS, state)
    return changed


def test_killed_at_random_moments_everything_comes_back(tree: Path, cpus: CpuSet, tmp_path: Path) -> None:
    write(tree / "lra", "cpuset.cpus", str(max(cpus)))
    write(tree / "batch", "cpuset.cpus", str(cpus))
    write(tree / "batch/job/step", "cpuset.cpus", str(min(cpus)))
    with populated(tree / "lra", tree / "batch/job/step"):
        changed = die_at_random_moments(tmp_path, contents(TOP), 20)
    assert changed > 10, "most moments must have found something to restore"


@pytest.mark.usefixtures("cpus")
def test_without_processes_an_empty_cpu_set_comes_back_empty(tree: Path, tmp_path: Path) -> None:
    before = contents(TOP)
    assert before[str(tree / "batch/cpuset.cpus")] == b"\n"
    assert die_at_random_moments(tmp_path, before, 8) > 4


def test_with_processes_an_empty_cpu_set_becomes_all_cpus_of_the_parent(
    tree: Path, cpus: CpuSet, tmp_path: Path
) -> None:
    before = contents(TOP)
    path = tree / "batch/cpuset.cpus"
    with populated(tree / "batch/job/step") as (pid,):
        before[str(tree / "batch/job/step/cgroup.procs")] = f"{pid}\n".encode()
        # Its last settings confine batch to the first CPU.
        process = churn(TOP, tmp_path, 1)
        kill(process)
        write(path.parent, "cpuset.cpus", str(min(cpus)))
        with pytest.raises(Full, match="ENOSPC"):
            FS.write(str(path), b"\n")
        report = restore(FS, tmp_path)
        assert not report.failed, str(report)
        assert not report.foreign, str(report)
        (file,) = [file for file in report.restored if file.path == str(path)]
        whole = with_offline(FS, str(path), str(cpus))
        assert (file.original, file.now) == ("", whole)
        assert "equivalent" in file.note
        assert "equivalent" in str(report)
        assert os.sched_getaffinity(pid) == set(cpus)
        after = contents(TOP)
        assert after.pop(str(path)) == f"{whole}\n".encode()
        before.pop(str(path))
        assert {name: text for name, text in after.items() if not name.endswith(("procs", "threads"))} == {
            name: text for name, text in before.items() if not name.endswith(("procs", "threads"))
        }
        assert not restore(FS, tmp_path)


async def test_the_kernel_takes_every_write_and_gives_the_expected_readings(
    tree: Path, cpus: CpuSet, tmp_path: Path
) -> None:
    """The fakes of the unit tests answer as this kernel does where perphd depends on it."""
    write(tree / "batch", "cpu.idle", "0")  # what an operator made idle stays so
    before = contents(TOP)
    batch, last = tree / "batch", CpuSet.of([max(cpus)])
    with Journal(tmp_path) as journal:
        executor = Executor(FS, discover(FS), journal)
        knobs, missing = executor.enforceable(SPECS[1])
        assert knobs == {
            *("cpus", "mems", "cpu_weight", "cpu_max_cores", "frozen"),
            *("memory_low_bytes", "memory_min_bytes", "memory_high_bytes", "memory_max_bytes"),
        }
        assert {left.knob for left in missing} == {
            *("io_weight", "io_max", "io_latency_us", "egress_max", "llc_masks", "mba_pct"),
        }
        target = {
            "batch": Settings(
                cpus=last,
                cpu_weight=7,
                cpu_max_cores=0.5,
                memory_low_bytes=(1 << 20) + 5,
                memory_high_bytes=NO_LIMIT,
            )
        }
        with populated(batch / "job/step") as (pid,):
            applied = await executor.apply(executor.plan(target, SPECS))
            assert applied.ok, applied
            assert not executor.plan(target, SPECS)
            assert os.sched_getaffinity(pid) == set(last)
        assert read(batch, "cpuset.cpus") == str(last)
        assert (read(batch, "cpu.idle"), read(batch, "cpu.weight")) == ("0", "7")
        assert read(batch, "cpu.max") == "100000 200000", "the period stays as it was"
        assert (read(batch, "memory.low"), read(batch, "memory.high")) == (str(1 << 20), str(512 << 20)), (
            "the operator's ceiling stays"
        )
        assert executor.in_force("batch").cpu_weight == 7

        idle = {"batch": Settings(cpu_weight=IDLE)}
        assert (await executor.apply(executor.plan(idle, SPECS))).ok
        assert read(batch, "cpu.weight") in ("0", "1"), "by version: 0 on 6.1, 1 on 6.12"
        with pytest.raises(Invalid, match="EINVAL"):
            FS.write(f"{batch}/cpu.weight", b"50\n")
        assert (await executor.apply(executor.plan({}, SPECS))).ok
        assert executor.journal_entries == 0
        assert not executor.conflicts()
        executor.close()
    assert contents(TOP) == before


async def test_a_controller_that_the_parent_does_not_enable_is_told(tree: Path, tmp_path: Path) -> None:
    write(tree / "batch/job", "cgroup.subtree_control", "-cpuset")
    spec = WorkloadSpec("step", Kind.BATCH, f"{TOP}/batch/job/step")
    with Journal(tmp_path) as journal:
        executor = Executor(FS, discover(FS), journal)
        knobs, missing = executor.enforceable(spec)
        assert "cpus" not in knobs
        assert "cpu_weight" in knobs
        (reason,) = [left.reason for left in missing if left.knob == "cpus"]
        assert f"{tree}/batch/job/cgroup.subtree_control does not enable the cpuset controller" in reason
        changes = executor.plan({"step": Settings(cpus=CpuSet.of([0]))}, [spec])
        assert not changes
        assert [left.knob for left in changes.skipped] == ["cpus"]
        executor.close()
