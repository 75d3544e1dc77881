from __future__ import annotations

from pathlib import Path

import pytest

from perphd.host.catalogue import CgroupEntry, list_cgroups, suggest
from perphd.host.cgroup.hierarchy import Hierarchies, Hierarchy, Layout
from perphd.host.fs import RealFs
from tests.unit.host_tree import write_tree

V2 = Hierarchy(2, "/sys/fs/cgroup/unified", frozenset())
CPU = Hierarchy(1, "/sys/fs/cgroup/cpu", frozenset({"cpu"}))
MEMORY = Hierarchy(1, "/sys/fs/cgroup/memory", frozenset({"memory"}))
HYBRID = Hierarchies(Layout.HYBRID, V2, {"cpu": CPU, "memory": MEMORY})


@pytest.fixture
def fs(tmp_path: Path) -> RealFs:
    groups = {
        f"{V2.mount}": "1 2 3",
        f"{V2.mount}/system.slice": "",
        f"{V2.mount}/system.slice/db.service": "10\n11",
        f"{CPU.mount}": "1",
        f"{CPU.mount}/system.slice": "",
        f"{CPU.mount}/system.slice/db.service": "10\n11\n12",
        f"{CPU.mount}/batch": "",
        f"{MEMORY.mount}": "1",
        f"{MEMORY.mount}/only-here": "20",
    }
    files = {f"{directory}/cgroup.procs": pids for directory, pids in groups.items()}
    return write_tree(tmp_path, files | {f"{V2.mount}/cpu.stat": "usage_usec 0"})


def test_groups_of_all_hierarchies_are_one_list(fs: RealFs) -> None:
    assert list_cgroups(fs, HYBRID, 100) == (
        CgroupEntry("/batch", populated=False, processes=0),
        CgroupEntry("/only-here", populated=True, processes=1),
        CgroupEntry("/system.slice", populated=True, processes=0),
        CgroupEntry("/system.slice/db.service", populated=True, processes=3),
    )


def test_beyond_the_limit_the_shallowest_are_kept(fs: RealFs) -> None:
    assert [entry.path for entry in list_cgroups(fs, HYBRID, 3)] == ["/batch", "/only-here", "/system.slice"]


def test_a_host_without_hierarchies_has_none(fs: RealFs) -> None:
    assert list_cgroups(fs, Hierarchies(Layout.NONE, None, {}), 10) == ()


@pytest.mark.parametrize(
    ("asked", "first"),
    [
        ("/system.slice/mariadbd.service", "/system.slice/mariadb.service"),
        ("/mariadb.service", "/system.slice/mariadb.service"),
        ("/system.slice/mariadb", "/system.slice/mariadb.service"),
        ("mariadb.service", "/system.slice/mariadb.service"),
        ("/bacth", "/batch"),
    ],
)
def test_what_was_meant_comes_first(asked: str, first: str) -> None:
    known = ["/system.slice", "/system.slice/mariadb.service", "/system.slice/ssh.service", "/batch"]
    found = suggest(asked, [CgroupEntry(path, True, 1) for path in known])
    assert found[0] == first
    assert len(found) == len(set(found)) <= 3


def test_nothing_alike_suggests_nothing() -> None:
    assert suggest("/zzz", [CgroupEntry("/system.slice/mariadb.service", True, 1)]) == ()
    assert suggest("/", [CgroupEntry("/system.slice", True, 1)]) == ()
