"""Event counters -> MIPS, CPI, MPKI, context switches; and what happens where events are missing."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from perphd.domain.cpuset import CpuSet
from perphd.domain.errors import Denied, Unsupported
from perphd.domain.reading import Reading, Unavailable, available
from perphd.domain.sample import Quality, Sample
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.host.perf_events import EventKind
from perphd.monitor.sampler import LOOK_BATCH_OVER_EVERY, LOOK_OVER_EVERY, Monitor
from tests.unit.monitor_tree import Tree

SPEC = WorkloadSpec("db", Kind.LRA, "/db")
TWO = CpuSet.of([0, 1])
PER_SECOND = {
    EventKind.INSTRUCTIONS: 2e9,
    EventKind.CYCLES: 3e9,
    EventKind.LLC_REFERENCES: 8e6,
    EventKind.LLC_MISSES: 4e6,
    EventKind.TASK_CLOCK_NS: 1.5e9,
    EventKind.CONTEXT_SWITCHES: 700.0,
}


class FakeGroup:
    def __init__(self, events: Sequence[EventKind], directory: str) -> None:
        self.events, self.directory, self.second = events, directory, 0.0
        self.running_ratio, self.lost_cpus, self.fds = 1.0, CpuSet(), 2 * len(events)
        self.refused: Unavailable | None = None
        self.closed = False

    def read(self) -> Mapping[EventKind, Reading]:
        if self.refused is not None:
            return dict.fromkeys(self.events, self.refused)
        return {kind: PER_SECOND[kind] * self.second for kind in self.events}

    def close(self) -> None:
        self.closed, self.fds = True, 0


class FakeOpener:
    """A host that counts only some events."""

    def __init__(self, *missing: EventKind) -> None:
        self.missing, self.tries = missing, 0
        self.groups: list[FakeGroup] = []
        self.denied = False
        self.directories: list[str] = []

    def __call__(self, cgroup_dir: str, cpus: CpuSet, events: Sequence[EventKind]) -> FakeGroup:
        self.tries += 1
        self.directories.append(cgroup_dir)
        if self.denied:
            raise Denied(cgroup_dir, "perf_event_open", errno.EACCES)
        if set(events) & set(self.missing):
            raise Unsupported(cgroup_dir, "perf_event_open", errno.ENOENT)
        self.groups.append(FakeGroup(events, cgroup_dir))
        return self.groups[-1]


def watch(tmp_path: Path, opener: FakeOpener, layout: str = "v2") -> tuple[Monitor, Tree]:
    tree = Tree(tmp_path, layout)
    tree.make(SPEC.cgroup, 1)
    return Monitor(tree.fs, tree.hierarchies, cpus=TWO, opener=opener), tree


def at(monitor: Monitor, now_s: float) -> Sample:
    return monitor.sample(now_s, [SPEC], {})[0]


def second(opener: FakeOpener, seconds: float) -> None:
    for group in opener.groups:
        group.second = seconds


def test_everything_with_a_pmu(tmp_path: Path):
    opener = FakeOpener()
    monitor, _ = watch(tmp_path, opener)
    assert not available(at(monitor, 0.0).mips)
    second(opener, 2.0)
    sample = at(monitor, 2.0)
    assert sample.mips == pytest.approx(2000.0)
    assert sample.cpi == pytest.approx(1.5)
    assert sample.llc_mpki == pytest.approx(2.0)
    assert sample.context_switches_per_s == pytest.approx(700.0)
    assert opener.directories == ["/sys/fs/cgroup/db"]


def test_without_llc_events_the_core_ones_stay(tmp_path: Path):
    opener = FakeOpener(EventKind.LLC_REFERENCES, EventKind.LLC_MISSES)
    monitor, _ = watch(tmp_path, opener)
    at(monitor, 0.0)
    second(opener, 1.0)
    sample = at(monitor, 1.0)
    assert sample.mips == pytest.approx(2000.0)
    assert not available(sample.llc_mpki)


def test_without_a_pmu_context_switches_remain_and_the_rest_says_why(tmp_path: Path):
    opener = FakeOpener(*[kind for kind in EventKind if kind.is_hardware])
    monitor, tree = watch(tmp_path, opener)
    at(monitor, 0.0)
    tries = opener.tries
    second(opener, 1.0)
    sample = at(monitor, 1.0)
    assert sample.context_switches_per_s == pytest.approx(700.0)
    assert "no performance monitoring unit" in str(sample.mips)
    tree.make("/second", 1)
    monitor.sample(2.0, [SPEC, WorkloadSpec("other", Kind.LRA, "/second")], {})
    assert opener.tries == tries + 1  # what is missing was learned once


@pytest.mark.parametrize("lra_first", [True, False])
def test_without_a_pmu_nothing_of_batch_is_counted_where_its_cpu_time_is_known(
    tmp_path: Path, lra_first: bool
):
    opener = FakeOpener(*[kind for kind in EventKind if kind.is_hardware])
    monitor, tree = watch(tmp_path, opener)
    batch = [WorkloadSpec("one", Kind.BATCH, "/one"), WorkloadSpec("two", Kind.BATCH, "/two")]
    for spec in batch:
        tree.make(spec.cgroup, 1)
    (tmp_path / "sys/fs/cgroup/two/cpu.stat").unlink()
    specs = [SPEC, *batch] if lra_first else [*batch, SPEC]
    samples: dict[str, Sample] = {}
    for n in range(2 * LOOK_BATCH_OVER_EVERY):
        second(opener, float(n))
        samples = {sample.workload: sample for sample in monitor.sample(float(n), specs, {})}
    assert sorted(group.directory for group in opener.groups) == ["/sys/fs/cgroup/db", "/sys/fs/cgroup/two"]
    assert "for LRAs only" in str(samples["one"].context_switches_per_s)
    assert "no performance monitoring unit" in str(samples["one"].mips)
    assert samples["db"].context_switches_per_s == pytest.approx(700.0)
    assert samples["two"].cpu_usage_cores == pytest.approx(1.5)
    assert available(samples["two"].context_switches_per_s)


def test_with_a_pmu_batch_is_counted_as_well(tmp_path: Path):
    opener = FakeOpener()
    monitor, tree = watch(tmp_path, opener)
    batch = WorkloadSpec("one", Kind.BATCH, "/one")
    tree.make(batch.cgroup, 1)
    monitor.sample(0.0, [batch], {})
    second(opener, 1.0)
    assert monitor.sample(1.0, [batch], {})[0].mips == pytest.approx(2000.0)


def test_task_clock_stands_in_for_a_missing_cpu_stat(tmp_path: Path):
    opener = FakeOpener()
    monitor, _ = watch(tmp_path, opener)
    (tmp_path / "sys/fs/cgroup/db/cpu.stat").unlink()
    at(monitor, 0.0)
    second(opener, 1.0)
    assert at(monitor, 1.0).cpu_usage_cores == pytest.approx(1.5)


def test_multiplexed_counters_are_flagged_below_half(tmp_path: Path):
    opener = FakeOpener()
    monitor, _ = watch(tmp_path, opener)
    at(monitor, 0.0)
    opener.groups[0].running_ratio = 0.5
    assert at(monitor, 1.0).quality == ()
    opener.groups[0].running_ratio = 0.49
    assert at(monitor, 2.0).quality == (Quality.MULTIPLEXED,)


def test_interval_in_which_no_counter_ran_is_covered_by_the_next(tmp_path: Path):
    opener = FakeOpener()
    monitor, _ = watch(tmp_path, opener)
    at(monitor, 0.0)
    opener.groups[0].refused = Unavailable("the counters did not run")
    assert str(at(monitor, 1.0).mips) == str(Unavailable("the counters did not run"))
    opener.groups[0].refused = None
    second(opener, 2.0)
    assert at(monitor, 2.0).mips == pytest.approx(2000.0)


def test_idle_workload_has_no_cpi_rather_than_zero(tmp_path: Path):
    opener = FakeOpener()
    monitor, _ = watch(tmp_path, opener)
    at(monitor, 0.0)
    sample = at(monitor, 1.0)
    assert sample.mips == 0.0
    assert "nothing to divide by" in str(sample.cpi)


def test_refused_events_say_why_and_are_tried_again(tmp_path: Path):
    opener = FakeOpener()
    opener.denied = True
    monitor, _ = watch(tmp_path, opener)
    assert "EACCES" in str(at(monitor, 0.0).mips)
    opener.denied = False
    for n in range(LOOK_OVER_EVERY + 1):
        second(opener, n)
        at(monitor, 1.0 + n)
    assert available(at(monitor, 100.0).mips)


def test_cpus_that_come_back_are_counted_again(tmp_path: Path):
    opener = FakeOpener()
    monitor, tree = watch(tmp_path, opener)
    at(monitor, 0.0)
    tree.put("/sys/devices/system/cpu/online", "0\n")
    opener.groups[0].lost_cpus = CpuSet.of([1])
    for n in range(LOOK_OVER_EVERY):
        at(monitor, 1.0 + n)
    assert len(opener.groups) == 1
    tree.put("/sys/devices/system/cpu/online", "0-1\n")
    for n in range(LOOK_OVER_EVERY):
        at(monitor, 20.0 + n)
    assert len(opener.groups) == 2
    assert opener.groups[0].closed


def test_group_is_closed_with_its_cgroup(tmp_path: Path):
    opener = FakeOpener()
    monitor, tree = watch(tmp_path, opener, "hybrid")
    at(monitor, 0.0)
    assert opener.directories == ["/sys/fs/cgroup/unified/db"]
    tree.remove(SPEC.cgroup)
    at(monitor, 1.0)
    assert opener.groups[0].closed
    assert monitor.open_fds == 0
