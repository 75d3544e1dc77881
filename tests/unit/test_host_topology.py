from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.domain.cpuset import CpuSet
from perphd.domain.errors import KernelError, ParseError
from perphd.domain.topology import Core, L3Domain, NumaNode
from perphd.host.topology import read_topology
from tests.unit.host_tree import CPU, Cpu, cpu_files, write_tree


def _cpus(text: str) -> CpuSet:
    return CpuSet.parse(text)


def _two_sockets() -> list[Cpu]:
    """Two sockets of two cores with SMT, numbered as Intel does, core ids repeating and sparse, L3 ids 0 and 8."""
    return [
        Cpu(
            cpu,
            socket=cpu % 4 // 2,
            core=(0, 9)[cpu % 2],
            siblings=f"{cpu % 4},{cpu % 4 + 4}",
            l3=((0, "0-1,4-5", "11264K"), (8, "2-3,6-7", "11264K"))[cpu % 4 // 2],
        )
        for cpu in range(8)
    ]


def test_two_sockets_with_smt_and_sparse_l3_ids(tmp_path: Path) -> None:
    nodes = {0: ("0-1,4-5", 4000), 1: ("2-3,6-7", 6000)}
    fs = write_tree(tmp_path, cpu_files(_two_sockets(), memory_kb=10_000, nodes=nodes))

    found = read_topology(fs)

    assert found.cores == (
        Core(0, 0, _cpus("0,4")),
        Core(0, 9, _cpus("1,5")),
        Core(1, 0, _cpus("2,6")),
        Core(1, 9, _cpus("3,7")),
    )
    assert found.l3_domains == (
        L3Domain(0, _cpus("0-1,4-5"), 11264 << 10),
        L3Domain(8, _cpus("2-3,6-7"), 11264 << 10),
    )
    assert found.nodes == (
        NumaNode(0, _cpus("0-1,4-5"), 4000 << 10),
        NumaNode(1, _cpus("2-3,6-7"), 6000 << 10),
    )
    assert found.memory_bytes == 10_000 << 10
    assert not found.offline


def test_one_cpu_without_cache_or_numa_directories(tmp_path: Path) -> None:
    found = read_topology(write_tree(tmp_path, cpu_files([Cpu(0)], memory_kb=2048)))

    assert found.cores == (Core(0, 0, _cpus("0")),)
    assert found.l3_domains == ()
    assert found.nodes == (NumaNode(0, _cpus("0"), 2 << 20),)


def test_offline_and_isolated_cpus(tmp_path: Path) -> None:
    """CPU 1 is switched off and has no topology; its sibling stays a core of one thread. CPU 4 is isolated."""
    cpus = [
        Cpu(0, core=0, siblings="0"),
        Cpu(2, core=1, siblings="2-3"),
        Cpu(3, core=1, siblings="2-3"),
        Cpu(4, core=2, siblings="4-5"),
        Cpu(5, core=2, siblings="4-5"),
    ]
    files = cpu_files(cpus, present="0-5", isolated="4")
    files[f"{CPU}/cpu1/online"] = "0"

    found = read_topology(write_tree(tmp_path, files))

    assert found.online == _cpus("0,2-5")
    assert found.offline == _cpus("1"), "sockets that could still be plugged (possible) are not offline CPUs"
    assert found.usable_cores == (
        Core(0, 0, _cpus("0")),
        Core(0, 1, _cpus("2-3")),
        Core(0, 2, _cpus("5")),
    )


def test_amd_with_several_core_complexes_on_one_socket(tmp_path: Path) -> None:
    cpus = [
        Cpu(cpu, core=cpu, l3=(cpu // 4, f"{cpu // 4 * 4}-{cpu // 4 * 4 + 3}", "32768K")) for cpu in range(12)
    ]
    found = read_topology(write_tree(tmp_path, cpu_files(cpus)))

    assert [(l3.domain, str(l3.cpus)) for l3 in found.l3_domains] == [(0, "0-3"), (1, "4-7"), (2, "8-11")]


def test_core_ids_that_repeat_within_a_socket_are_replaced(tmp_path: Path) -> None:
    """Two dies in one socket, each counting its cores from 0, beside a socket that is in order."""
    cpus = [Cpu(0, 0, 0), Cpu(1, 0, 1), Cpu(2, 0, 0), Cpu(3, 0, 1), Cpu(4, 1, 0), Cpu(5, 1, 7)]
    found = read_topology(write_tree(tmp_path, cpu_files(cpus)))

    assert [(core.socket, core.core, str(core.cpus)) for core in found.cores] == [
        (0, 0, "0"),
        (0, 1, "1"),
        (0, 2, "2"),
        (0, 3, "3"),
        (1, 0, "4"),
        (1, 7, "5"),
    ]


def test_caches_without_ids_still_are_distinct_domains(tmp_path: Path) -> None:
    cpus = [Cpu(0, core=0, l3=(None, "0", "1M")), Cpu(1, core=1, l3=(None, "1", "1M"))]
    found = read_topology(write_tree(tmp_path, cpu_files(cpus)))

    assert [str(l3.cpus) for l3 in found.l3_domains] == ["0", "1"]
    assert len({l3.domain for l3 in found.l3_domains}) == 2


def test_unknown_socket_and_core_numbers(tmp_path: Path) -> None:
    found = read_topology(write_tree(tmp_path, cpu_files([Cpu(0, -1, -1), Cpu(1, -1, -1)])))

    assert [(core.socket, str(core.cpus)) for core in found.cores] == [(0, "0"), (0, "1")]


def test_memory_only_node_and_sparse_node_numbers(tmp_path: Path) -> None:
    nodes = {0: ("0", 100), 3: ("", 900)}
    found = read_topology(write_tree(tmp_path, cpu_files([Cpu(0)], nodes=nodes)))

    assert [(node.node, bool(node.cpus), node.memory_bytes >> 10) for node in found.nodes] == [
        (0, True, 100),
        (3, False, 900),
    ]


def test_files_that_a_small_kernel_lacks(tmp_path: Path) -> None:
    """No hotplug files and no topology at all: every CPU directory is an online core of its own."""
    files = {
        f"{CPU}/cpu0/": "",
        f"{CPU}/cpu1/": "",
        f"{CPU}/cpuidle/": "",
        "/proc/meminfo": "MemTotal:  5 kB",
    }
    found = read_topology(write_tree(tmp_path, files))

    assert [str(core.cpus) for core in found.cores] == ["0", "1"]
    assert not found.offline
    assert not found.isolated


def test_no_sysfs_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match=r"/sys/devices/system/cpu/online.*mount sysfs"):
        read_topology(write_tree(tmp_path, {"/proc/meminfo": "MemTotal: 5 kB"}))


def test_no_figure_for_memory_is_an_error(tmp_path: Path) -> None:
    files = cpu_files([Cpu(0)])
    del files["/proc/meminfo"]
    with pytest.raises(KernelError, match=r"/proc/meminfo.*mount procfs"):
        read_topology(write_tree(tmp_path, files))


@pytest.mark.parametrize(
    "path", [f"{CPU}/online", f"{CPU}/cpu0/topology/thread_siblings_list", f"{CPU}/cpu0/topology/core_id"]
)
def test_nonsense_names_the_file(tmp_path: Path, path: str) -> None:
    files = cpu_files([Cpu(0)]) | {path: "all of them"}
    with pytest.raises(ParseError, match=path):
        read_topology(write_tree(tmp_path, files))


@given(
    shape=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(1, 2)), min_size=1, max_size=8
    ),
    isolated=st.sets(st.integers(0, 20), max_size=3),
)
def test_every_online_cpu_is_in_exactly_one_core_and_core_names_are_unique(
    shape: list[tuple[int, int, int]], isolated: set[int]
) -> None:
    """Arbitrary (socket, core id, threads), ids repeating at will."""
    cpus: list[Cpu] = []
    for socket, core, threads in shape:
        first = len(cpus)
        siblings = f"{first}-{first + threads - 1}" if threads > 1 else str(first)
        cpus.extend(Cpu(first + thread, socket, core, siblings) for thread in range(threads))
    root = Path(tempfile.mkdtemp())
    try:
        found = read_topology(write_tree(root, cpu_files(cpus, isolated=str(CpuSet.of(isolated)))))
    finally:
        shutil.rmtree(root)

    assert sorted(cpu for core in found.cores for cpu in core.cpus) == [cpu.number for cpu in cpus]
    assert len({(core.socket, core.core) for core in found.cores}) == len(found.cores) == len(shape)
    assert sum(len(core.cpus) for core in found.usable_cores) == len(set(range(len(cpus))) - isolated)
