"""The bench's control groups: made in every hierarchy, occupied as told, gone afterwards whatever happened."""

from __future__ import annotations

from pathlib import Path

import pytest

from perphd.host.cgroup.hierarchy import discover
from perphd.host.fs import RealFs
from tools.bench.groups import BenchError, BenchGroups
from tools.bench.reaction import measure

pytestmark = pytest.mark.requires_root


def _directories(path: str) -> tuple[str, ...]:
    fs = RealFs()
    return discover(fs).directories(fs, path)


@pytest.fixture(autouse=True)
def _needs_groups() -> None:
    try:
        with BenchGroups(0, 0):
            pass
    except BenchError as exc:
        pytest.skip(str(exc))


def test_groups_are_made_occupied_and_removed() -> None:
    with BenchGroups(3, occupied=1) as groups:
        procs = [
            [Path(directory, "cgroup.procs").read_text().split() for directory in _directories(path)]
            for path in groups.paths
        ]
        assert all(len(pids) == 1 for pids in procs[0])
        assert not any(pids for group in procs[1:] for pids in group)
        paths = groups.paths
    assert not any(_directories(path) for path in paths)


def test_processes_that_wake_are_one_in_each_group_and_end_with_it() -> None:
    with BenchGroups(3, occupied=2, waking=1) as groups:
        found = [
            {Path(directory, "cgroup.procs").read_text().strip() for directory in _directories(path)}
            for path in groups.paths
        ]
        assert [len(pids) for pids in found] == [1, 1, 1]
        assert found[2] == {""}
        assert found[0] != found[1]
        paths, pids = groups.paths, [int(pid) for pids in found[:2] for pid in pids]
    assert not any(_directories(path) for path in paths)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def _fail_within(groups: BenchGroups) -> None:
    with groups:
        raise RuntimeError("the measurement failed")


def test_groups_are_removed_after_a_failure() -> None:
    groups = BenchGroups(2, occupied=2)
    with pytest.raises(RuntimeError, match="the measurement failed"):
        _fail_within(groups)
    assert not any(_directories(path) for path in groups.paths)


async def test_every_change_of_the_reaction_bench_is_a_real_one() -> None:
    found = await measure(workloads=3, changes=6)
    assert found.changes == 6
    assert found.writes >= 2.0, "two batch groups, at least one write each"
