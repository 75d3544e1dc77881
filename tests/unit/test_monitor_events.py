"""Event counters -> MIPS, CPI, MPKI, context switches; and what happens where events are missing."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from perphd.domain.cpuset import CpuSet
from perphd.domain.errors import Busy as BusyKernel
from perphd.domain.errors import Denied, KernelError
from perphd.domain.reading import Reading, Unavailable, available
from perphd.domain.sample import Quality, Sample
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.host.perf_event_types import EventRefused, PerfEventKind
from perphd.monitor.sampler import LOOK_BATCH_OVER_EVERY, Monitor
from tests.unit.monitor_tree import Tree

SPEC = WorkloadSpec("db", Kind.LRA, "/db")
TWO = CpuSet.of([0, 1])
LONGEST_WAIT = 65
PER_SECOND = {
    PerfEventKind.INSTRUCTIONS: 2e9,
    PerfEventKind.CYCLES: 3e9,
    PerfEventKind.LLC_REFERENCES: 8e6,
    PerfEventKind.LLC_MISSES: 4e6,
    PerfEventKind.STALL_BACKEND: 1.2e9,
    PerfEventKind.STALL_MEMORY: 0.6e9,
    PerfEventKind.TASK_CLOCK_NS: 1.5e9,
    PerfEventKind.CONTEXT_SWITCHES: 700.0,
}


class FakeGroup:
    """Counters of a workload that ran ``second`` seconds; they had the PMU for the ``share`` of the time since."""

    def __init__(self, events: Sequence[PerfEventKind], directory: str, pmu: FakeOpener) -> None:
        self.events, self.directory, self.second = tuple(events), directory, pmu.second
        self.share, self.starved_cpus = pmu.share, CpuSet()
        self.lost_cpus, self.fds = CpuSet(), 2 * len(events)
        self.refused: Unavailable | None = None
        self.closed = False
        self._counts = dict.fromkeys(self.events, 0.0)

    def run(self, second: float) -> None:
        more, self.second = self.share * (second - self.second), second
        for kind in self.events:
            self._counts[kind] += PER_SECOND[kind] * more

    def read(self) -> Mapping[PerfEventKind, Reading]:
        if self.refused is not None:
            return dict.fromkeys(self.events, self.refused)
        return dict(self._counts)

    def close(self) -> None:
        self.closed, self.fds = True, 0


class FakeOpener:
    """A host that counts only some events, and only so many at once."""

    def __init__(self, *missing: PerfEventKind) -> None:
        self.missing, self.tries = missing, 0
        self.groups: list[FakeGroup] = []
        self.refusal: KernelError | None = None
        self.counters, self.share, self.second = 8, 1.0, 0.0
        self.directories: list[str] = []
        self.wishes: list[tuple[PerfEventKind, ...]] = []

    def __call__(self, cgroup_dir: str, cpus: CpuSet, events: Sequence[PerfEventKind]) -> FakeGroup:
        self.tries += 1
        self.directories.append(cgroup_dir)
        self.wishes.append(tuple(events))
        if self.refusal is not None:
            raise self.refusal
        for kind in events:
            if kind in self.missing:
                raise EventRefused(cgroup_dir, "perf_event_open", errno.ENOENT, kind, advice="lacks it")
        hardware = [kind for kind in events if kind.is_hardware]
        if len(hardware) > self.counters:
            kind = hardware[self.counters]
            raise EventRefused(cgroup_dir, "perf_event_open", errno.EINVAL, kind, too_many=True)
        self.groups.append(FakeGroup(events, cgroup_dir, self))
        return self.groups[-1]

    @property
    def open(self) -> list[FakeGroup]:
        return [group for group in self.groups if not group.closed]


def watch(tmp_path: Path, opener: FakeOpener, layout: str = "v2") -> tuple[Monitor, Tree]:
    tree = Tree(tmp_path, layout)
    tree.make(SPEC.cgroup, 1)
    return Monitor(tree.fs, tree.hierarchies, cpus=TWO, opener=opener), tree


def at(monitor: Monitor, now_s: float) -> Sample:
    return monitor.sample(now_s, [SPEC], {})[0]


def second(opener: FakeOpener, seconds: float) -> None:
    opener.second = seconds
    for group in opener.open:
        group.run(seconds)


class Busy:
    """A workload that uses 1.5 cores, sampled every second."""

    def __init__(self, tmp_path: Path, opener: FakeOpener) -> None:
        self.opener = opener
        self.monitor, self.tree = watch(tmp_path, opener)
        self.now_s = -1.0
        self.step()

    def step(self, seconds: int = 1) -> Sample:
        """So many samples; the last one."""
        return [self._one() for _ in range(seconds)][-1]

    def _one(self) -> Sample:
        self.now_s += 1.0
        self.tree.put("/sys/fs/cgroup/db/cpu.stat", f"usage_usec {1.5e6 * self.now_s:.0f}\n")
        second(self.opener, self.now_s)
        return at(self.monitor, self.now_s)

    @property
    def events(self) -> tuple[PerfEventKind, ...]:
        """Hardware events that are open."""
        return tuple(kind for kind in self.opener.open[0].events if kind.is_hardware)


def test_everything_with_a_pmu(tmp_path: Path):
    opener = FakeOpener()
    monitor, _ = watch(tmp_path, opener)
    assert not available(at(monitor, 0.0).mips)
    second(opener, 2.0)
    sample = at(monitor, 2.0)
    assert sample.mips == pytest.approx(2000.0)
    assert sample.cpi == pytest.approx(1.5)
    assert sample.llc_mpki == pytest.approx(2.0)
    assert sample.backend_stall_ratio == pytest.approx(0.4)
    assert sample.memory_stall_ratio == pytest.approx(0.2)
    assert sample.context_switches_per_s == pytest.approx(700.0)
    assert opener.directories == ["/sys/fs/cgroup/db"]


def test_without_llc_events_the_core_ones_stay(tmp_path: Path):
    opener = FakeOpener(PerfEventKind.LLC_REFERENCES, PerfEventKind.LLC_MISSES)
    monitor, _ = watch(tmp_path, opener)
    at(monitor, 0.0)
    second(opener, 1.0)
    sample = at(monitor, 1.0)
    assert sample.mips == pytest.approx(2000.0)
    assert sample.backend_stall_ratio == pytest.approx(0.4)
    assert "lacks it" in str(sample.llc_mpki), "there is a PMU; it has no such event"


def test_without_a_pmu_context_switches_remain_and_the_rest_says_why(tmp_path: Path):
    opener = FakeOpener(*[kind for kind in PerfEventKind if kind.is_hardware])
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
    opener = FakeOpener(*[kind for kind in PerfEventKind if kind.is_hardware])
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


@pytest.mark.parametrize("share", [1.0, 0.6, 0.4])
def test_shared_counters_are_related_to_the_cpu_time(tmp_path: Path, share: float):
    busy = Busy(tmp_path, FakeOpener())
    busy.opener.groups[0].share = share
    for _ in range(2):
        sample = busy.step()
        assert sample.mips == pytest.approx(2000.0)
        assert sample.cpi == pytest.approx(1.5)
        assert sample.context_switches_per_s == pytest.approx(700.0)
        assert sample.quality == ((Quality.MULTIPLEXED,) if share < 0.5 else ())


def test_counters_starved_on_some_cpus_are_flagged_and_not_booked_later(tmp_path: Path):
    busy = Busy(tmp_path, FakeOpener())
    busy.opener.groups[0].share, busy.opener.groups[0].starved_cpus = 0.75, TWO
    assert busy.step().quality == (Quality.MULTIPLEXED,)
    busy.opener.groups[0].share, busy.opener.groups[0].starved_cpus = 1.0, CpuSet()
    sample = busy.step()
    assert sample.mips == pytest.approx(2000.0), "nothing of the interval before"
    assert sample.quality == ()


def test_enabled_time_that_covers_a_gap_starves_nobody(tmp_path: Path):
    """After a restart some CPUs look starved for ever; the task clock says that nothing is missing."""
    busy = Busy(tmp_path, FakeOpener())
    busy.opener.groups[0].starved_cpus = TWO
    assert busy.step(5).quality == ()


def test_counters_that_did_not_run_are_missing_and_flagged(tmp_path: Path):
    busy = Busy(tmp_path, FakeOpener())
    busy.opener.groups[0].share = 0.0
    sample = busy.step()
    assert "did not run" in str(sample.mips)
    assert "did not run" in str(sample.cpi)
    assert sample.quality == (Quality.MULTIPLEXED,)
    busy.opener.groups[0].share = 1.0
    assert busy.step().mips == pytest.approx(2000.0), "nothing of the interval before"


def test_starved_groups_shrink_and_grow_again_when_counters_are_back(tmp_path: Path):
    busy = Busy(tmp_path, FakeOpener())
    sizes: list[tuple[PerfEventKind, ...]] = [busy.events]
    busy.opener.share = busy.opener.groups[0].share = 0.0
    for _ in range(4):
        assert "did not run" in str(busy.step(3).mips)
        sizes.append(busy.events)
    assert [len(events) for events in sizes] == [5, 3, 2, 1, 1]
    assert list(sizes[-1]) == [PerfEventKind.INSTRUCTIONS]
    busy.opener.share = busy.opener.open[0].share = 1.0
    sample = busy.step(2)
    assert sample.mips == pytest.approx(2000.0)
    assert "other users hold too many counters" in str(sample.cpi)
    mips = [busy.step().mips for _ in range(60)]
    assert mips == pytest.approx([2000.0] * 60), "no sample is lost by opening more"
    assert len(busy.events) == 5
    assert len(busy.opener.open) == 1


def test_stalls_never_starve_the_rest(tmp_path: Path):
    """Five events that share the PMU are made three; those run; five are tried again ever more rarely."""

    class Shared(FakeOpener):
        def __call__(self, cgroup_dir: str, cpus: CpuSet, events: Sequence[PerfEventKind]) -> FakeGroup:
            self.share = 0.8 if sum(kind.is_hardware for kind in events) > 3 else 1.0
            return super().__call__(cgroup_dir, cpus, events)

    busy = Busy(tmp_path, Shared())
    fives = 0
    for n in range(600):
        sample = busy.step()
        assert sample.mips == pytest.approx(2000.0)
        assert sample.quality == ()
        fives += len(busy.events) == 5 and n > 10
    assert 3 <= fives <= 15


def test_an_idle_workload_is_not_starved(tmp_path: Path):
    opener = FakeOpener()
    monitor, tree = watch(tmp_path, opener)
    opener.share = 0.0
    for n in range(10):
        tree.put("/sys/fs/cgroup/db/cpu.stat", f"usage_usec {5000 * n}\n")  # 5 ms a second
        assert Quality.MULTIPLEXED not in at(monitor, float(n)).quality
    assert len(opener.groups) == 1


def test_usage_that_lags_behind_the_counters_takes_nothing_away(tmp_path: Path):
    """Steal time and interrupts are in the task clock and not in the usage; the instructions are all counted."""
    opener = FakeOpener()
    monitor, tree = watch(tmp_path, opener)
    at(monitor, 0.0)
    tree.put("/sys/fs/cgroup/db/cpu.stat", f"usage_usec {2_500_000}\n")  # 1.0 cores; the task clock says 1.5
    second(opener, 1.0)
    assert at(monitor, 1.0).mips == pytest.approx(2000.0)


@pytest.mark.parametrize("layout", ["v1", "v2", "hybrid"])
def test_the_usage_of_every_layout_relates_the_counts(tmp_path: Path, layout: str):
    opener = FakeOpener()
    monitor, tree = watch(tmp_path, opener, layout)
    opener.share = 0.7
    at(monitor, 0.0)
    tree.make(SPEC.cgroup, 2)
    second(opener, 1.0)
    assert at(monitor, 1.0).mips == pytest.approx(2000.0)


def test_without_usage_and_without_a_task_clock_only_the_group_can_tell(tmp_path: Path):
    for missing, starved, flags in (
        ((), CpuSet(), ()),
        ((), TWO, (Quality.MULTIPLEXED,)),
        ((PerfEventKind.TASK_CLOCK_NS,), CpuSet(), ()),
        ((PerfEventKind.TASK_CLOCK_NS,), TWO, (Quality.MULTIPLEXED,)),
    ):
        folder = tmp_path / f"{len(missing)}{len(starved)}"
        opener = FakeOpener(*missing)
        monitor, _ = watch(folder, opener)
        if not missing:
            (folder / "sys/fs/cgroup/db/cpu.stat").unlink()
        at(monitor, 0.0)
        opener.groups[0].starved_cpus = starved
        second(opener, 1.0)
        sample = at(monitor, 1.0)
        assert sample.mips == pytest.approx(2000.0)
        assert sample.quality == flags


def test_a_group_larger_than_the_pmu_is_made_smaller(tmp_path: Path):
    for counters, left in ((4, 4), (2, 2), (1, 1)):
        opener = FakeOpener()
        opener.counters = counters
        busy = Busy(tmp_path / str(counters), opener)
        sample = busy.step(2)
        assert len(busy.events) == left
        assert sample.mips == pytest.approx(2000.0)
        assert "too few counters" in str(sample.memory_stall_ratio)
        assert available(sample.cpi) == (counters > 1)


def test_a_pmu_that_counts_cycles_only_is_a_pmu(tmp_path: Path):
    busy = Busy(tmp_path, FakeOpener(PerfEventKind.INSTRUCTIONS))
    sample = busy.step(2)
    assert "counts cycles, but no instructions" in str(sample.mips)
    assert sample.context_switches_per_s == pytest.approx(700.0)


def test_refused_events_are_asked_for_again_ever_more_rarely(tmp_path: Path):
    opener = FakeOpener(PerfEventKind.LLC_MISSES)
    busy = Busy(tmp_path, opener)
    busy.step(1000)
    asked = [wish for wish in opener.wishes if PerfEventKind.LLC_MISSES in wish]
    assert 3 <= len(asked) <= 6
    opener.missing = ()
    for _ in range(1000):
        assert busy.step().mips == pytest.approx(2000.0)
    assert PerfEventKind.LLC_MISSES in busy.events
    assert len(opener.open) == 1


def test_an_unseen_cgroup_says_nothing_about_events(tmp_path: Path):
    """Started before anything was ever written to cgroup.subtree_control."""
    opener = FakeOpener()
    opener.refusal = BusyKernel(
        "/sys/fs/cgroup/db", "perf_event_open", errno.ENOENT, advice="subtree_control"
    )
    busy = Busy(tmp_path, opener)
    sample = busy.step(100)
    assert "subtree_control" in str(sample.mips)
    assert opener.tries < 10, "and it is not asked at every sample"
    assert set(opener.wishes) == {opener.wishes[0]}
    opener.refusal = None
    sample = busy.step(LONGEST_WAIT)
    assert sample.mips == pytest.approx(2000.0)
    assert len(busy.events) == 5


def test_idle_workload_has_no_cpi_rather_than_zero(tmp_path: Path):
    opener = FakeOpener()
    monitor, _ = watch(tmp_path, opener)
    at(monitor, 0.0)
    sample = at(monitor, 1.0)
    assert sample.mips == 0.0
    assert "nothing to divide by" in str(sample.cpi)


def test_refused_events_say_why_and_are_tried_again(tmp_path: Path):
    opener = FakeOpener()
    opener.refusal = Denied("/sys/fs/cgroup/db", "perf_event_open", errno.EACCES)
    monitor, _ = watch(tmp_path, opener)
    assert "EACCES" in str(at(monitor, 0.0).mips)
    opener.refusal = None
    for n in range(5):
        second(opener, n)
        at(monitor, 1.0 + n)
    assert available(at(monitor, 100.0).mips)


@pytest.mark.parametrize("kind", list(Kind))
def test_cpus_that_come_back_are_counted_at_the_next_sample(tmp_path: Path, kind: Kind):
    opener = FakeOpener()
    monitor, tree = watch(tmp_path, opener)
    spec = WorkloadSpec("db", kind, "/db")

    def step(n: int) -> Sample:
        second(opener, float(n))
        return monitor.sample(float(n), [spec], {})[0]

    step(0)
    tree.put("/sys/devices/system/cpu/online", "0\n")
    opener.groups[0].lost_cpus = CpuSet.of([1])
    assert [step(n).quality for n in (1, 2, 3)] == [()] * 3
    assert len(opener.groups) == 1
    tree.put("/sys/devices/system/cpu/online", "0-1\n")
    sample = step(4)
    assert sample.quality == (Quality.MULTIPLEXED,), "the CPU was back, and not counted"
    assert opener.groups[0].closed
    sample = step(5)
    assert sample.quality == ()
    assert sample.mips == pytest.approx(2000.0)
    assert len(opener.groups) == 2


def test_group_is_closed_with_its_cgroup(tmp_path: Path):
    opener = FakeOpener()
    monitor, tree = watch(tmp_path, opener, "hybrid")
    at(monitor, 0.0)
    assert opener.directories == ["/sys/fs/cgroup/unified/db"]
    tree.remove(SPEC.cgroup)
    at(monitor, 1.0)
    assert opener.groups[0].closed
    assert monitor.open_fds == 0
