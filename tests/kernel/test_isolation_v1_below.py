"""Containers that start below a confined group on this kernel's v1 cpuset: they follow it, and get what it had."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perphd.domain.allocation import Settings
from perphd.domain.cpuset import CpuSet
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.host.cgroup import discover
from perphd.isolation import Executor, Journal, restore
from tests.kernel.isolation_groups import FS

pytestmark = [pytest.mark.requires_root, pytest.mark.requires_cgroup_v1("cpuset")]
TOP = f"/perphd-test-below-{os.getpid()}"
SPEC = WorkloadSpec("db", Kind.LRA, TOP)


@pytest.fixture
def start() -> Iterator[Callable[[str], Path]]:
    """Makes a group as runc does: with the lists that the group above has now."""
    tree = discover(FS).of("cpuset")
    assert tree is not None
    made: list[Path] = []

    def make(below: str) -> Path:
        group = Path(f"{tree.path(TOP)}{below}")
        group.mkdir()
        made.append(group)
        for name in ("cpuset.cpus", "cpuset.mems"):
            (group / name).write_text((group.parent / name).read_text())
        return group

    yield make
    for group in reversed(made):
        group.rmdir()


async def test_a_container_that_starts_in_a_confined_group_gains_with_it_and_is_given_back(
    start: Callable[[str], Path], tmp_path: Path
) -> None:
    groups = [start(""), start("/old")]
    everything = CpuSet.parse((groups[0] / "cpuset.cpus").read_text().strip())
    if len(everything) < 2:
        pytest.skip("one CPU")
    first = CpuSet.of([min(everything)])

    def lists() -> set[str]:
        return {(group / "cpuset.cpus").read_text().strip() for group in groups}

    with Journal(tmp_path) as journal:
        executor = Executor(FS, discover(FS), journal)
        for confined, then in ((first, everything), (everything - first, first)):
            assert (await executor.apply(executor.plan({"db": Settings(cpus=confined)}, [SPEC]))).ok
            groups.append(start(f"/new-{len(groups)}"))
            assert lists() == {str(confined)}
            applied = await executor.apply(executor.plan({"db": Settings(cpus=then)}, [SPEC]))
            assert applied.ok, applied
            assert lists() == {str(then)}
        groups.append(start("/pod"))
        groups.append(start("/pod/container"))
        executor.close()
    report = restore(FS, tmp_path)
    assert report.complete, str(report)
    assert not report.foreign, str(report)
    assert lists() == {str(everything)}
