"""Where workloads run, from cpusets and from the CPUs on which threads were last seen."""

from __future__ import annotations

import pytest

from perphd.domain.cpuset import CpuSet
from perphd.domain.topology import Core, L3Domain, Topology
from perphd.host.cgroup import discover
from perphd.monitor.residence import LOOK_S, MAX_THREADS, NOWHERE, Residence
from tests.unit.residence_tree import Tree

TWO = Topology(
    cores=tuple(Core(n // 2, n, CpuSet.of([n])) for n in range(4)),
    l3_domains=(L3Domain(0, CpuSet.parse("0-1"), 1 << 20), L3Domain(1, CpuSet.parse("2-3"), 1 << 20)),
    nodes=(),
    online=CpuSet.parse("0-3"),
)


class Run:
    def __init__(self, tree: Tree) -> None:
        self.tree, self.now_s = tree, 0.0
        self.residence = Residence(tree.fs, discover(tree.fs))

    def look(self, times: int = 1, *, closely: bool = True) -> tuple[int, ...]:
        for _ in range(times):
            self.now_s += LOOK_S
            self.residence.follow({"db": "/db"}, {"db"} if closely else set(), TWO, self.now_s)
        return self.residence.home("db").domains


def test_a_cpuset_in_one_domain_says_it_all(tmp_path) -> None:
    tree = Tree(tmp_path, cpus="2-3")
    run = Run(tree)
    assert run.look() == (1,)
    assert run.residence.home("db").allowed == CpuSet.parse("2-3")
    assert run.residence.home("other") is NOWHERE


def test_without_the_controller_the_group_above_says_it(tmp_path) -> None:
    tree = Tree(tmp_path, cpus=None, root="0-1")
    assert Run(tree).look() == (0,)


def test_a_domain_is_left_slowly_and_entered_at_once(tmp_path) -> None:
    tree = Tree(tmp_path, cpus="0-3")
    tree.threads = {11: (0, 0), 12: (1, 0)}
    run = Run(tree)
    assert run.look() == (0, 1), "nothing is known yet: both"
    seen = []
    for _ in range(15):
        tree.run(ticks=100)
        seen.append(run.look())
    assert 8 <= seen.index((0,)) <= 11, "about a minute"
    assert set(seen[:8]) == {(0, 1)}
    tree.threads[12] = (3, tree.threads[12][1])
    tree.run(ticks=100)
    assert run.look() == (0, 1)


def test_threads_that_sleep_say_nothing_and_those_that_ended_are_passed_over(tmp_path) -> None:
    tree = Tree(tmp_path, cpus="0-3")
    tree.threads = {11: (0, 0), 12: (2, 0)}
    run = Run(tree)
    for _ in range(20):
        tree.run(ticks=50, only=11)  # 12 parks on the other socket and does nothing
        run.look()
    assert run.look() == (0,)
    tree.gone(12)
    assert run.look(3) == (0,)


@pytest.mark.parametrize("count", [MAX_THREADS, 5 * MAX_THREADS])
def test_of_many_threads_some_are_read_from_all_over(tmp_path, count: int) -> None:
    tree = Tree(tmp_path, cpus="0-3")
    tree.threads = {100 + n: (0 if n < count // 2 else 2, 0) for n in range(count)}
    run = Run(tree)
    for _ in range(15):
        tree.run(ticks=10)
        assert run.look() == (0, 1)


def test_of_batch_only_the_cpuset_is_asked(tmp_path) -> None:
    tree = Tree(tmp_path, cpus="0-3")
    tree.threads = {11: (0, 0)}
    run = Run(tree)
    for _ in range(15):
        tree.run(ticks=10)
        assert run.look(closely=False) == (0, 1)
