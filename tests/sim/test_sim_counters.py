"""Counters of the simulated host, shared and scarce as on real kernels, under the Monitor that the daemon has."""

from __future__ import annotations

import pytest

from perphd.domain.cpuset import CpuSet
from perphd.domain.reading import available
from perphd.domain.sample import Quality, Sample
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.host.cgroup.hierarchy import discover
from perphd.monitor.sampler import Monitor
from perphd.sim.host import SimHost
from perphd.sim.machine import Machine
from perphd.sim.workload import Batch, Lra

SPECS = (WorkloadSpec("db", Kind.LRA, "/t/db"), WorkloadSpec("pi", Kind.BATCH, "/t/pi"))


class Two:
    """Two simulated hosts alike: on one of them somebody else uses the counters."""

    def __init__(self) -> None:
        works = (Lra("db", "/t/db", clients=10, service_ms=2.0), Batch("pi", "/t/pi", threads=4))
        self.hosts = [SimHost(works, machine=Machine(1, 8), seed=3, pmu=True) for _ in range(2)]
        self.free, self.shared = self.hosts
        self.monitors = [
            Monitor(host.fs, discover(host.fs), cpus=host.machine.online, opener=host.perf_opener)
            for host in self.hosts
        ]
        self.pmu = self.shared.perf_opener

    def step(self, count: int = 1) -> tuple[tuple[Sample, ...], tuple[Sample, ...]]:
        """A second passes on both; the last samples of the free and of the shared counters."""
        return [self._one() for _ in range(count)][-1]

    def _one(self) -> tuple[tuple[Sample, ...], tuple[Sample, ...]]:
        for host in self.hosts:
            host.advance(host.now_s + 1.0)
        free, shared = (
            monitor.sample(host.now_s, SPECS, {})
            for host, monitor in zip(self.hosts, self.monitors, strict=True)
        )
        return free, shared


@pytest.fixture
def two() -> Two:
    return Two()


def check_alike(two: Two, count: int = 5) -> None:
    for _ in range(count):
        for free, shared in zip(*two.step(), strict=True):
            assert available(free.mips)
            assert available(shared.mips)
            assert shared.mips == pytest.approx(free.mips, rel=0.03)
            assert Quality.MULTIPLEXED not in shared.quality


@pytest.mark.parametrize("share", [1.0, 0.8, 0.55])
def test_a_part_of_the_time_tells_the_whole(two: Two, share: float) -> None:
    two.step(2)
    two.pmu.counted_share = share
    two.step(1)
    check_alike(two)


def test_less_than_half_of_the_time_is_flagged(two: Two) -> None:
    two.step(2)
    two.pmu.counted_share = 0.3
    assert all(Quality.MULTIPLEXED in sample.quality for sample in two.step(1)[1])
    two.pmu.counted_share = 0.0
    for sample in two.step(1)[1]:
        assert not available(sample.mips)
        assert Quality.MULTIPLEXED in sample.quality
    two.pmu.counted_share = 1.0
    check_alike(two)


def test_a_cpu_without_counters_is_flagged_and_not_booked_later(two: Two) -> None:
    two.step(2)
    two.pmu.counted_share, two.pmu.starved = 0.75, CpuSet.of([1])
    assert all(Quality.MULTIPLEXED in sample.quality for sample in two.step(1)[1])
    two.pmu.counted_share, two.pmu.starved = 1.0, CpuSet()
    check_alike(two)


def test_a_cpu_that_only_looks_starved_is_not(two: Two) -> None:
    """time_enabled covers the time without the daemon on every CPU that the workload has left."""
    two.step(2)
    two.pmu.starved = CpuSet.of([1, 2])
    check_alike(two)


@pytest.mark.parametrize("counters", [4, 2, 1])
def test_a_small_pmu_counts_what_it_can(two: Two, counters: int) -> None:
    two.pmu.counters = counters
    two.step(2)
    check_alike(two)
    _, (db, _) = two.step(1)
    assert available(db.cpi) == (counters >= 2)
    assert available(db.llc_mpki) == (counters >= 3)


def test_cgroups_that_perf_does_not_see_yet_are_counted_once_it_does(two: Two) -> None:
    two.pmu.sees_cgroups = False
    _, (db, _) = two.step(10)
    assert "subtree_control" in str(db.mips)
    two.pmu.sees_cgroups = True
    two.step(65)
    check_alike(two)


def test_a_cpu_that_comes_back_is_counted_from_the_next_sample(two: Two) -> None:
    two.pmu.offline = CpuSet.of([3])
    two.step(1)
    two.pmu.offline = CpuSet()
    assert all(Quality.MULTIPLEXED in sample.quality for sample in two.step(1)[1])
    check_alike(two)
