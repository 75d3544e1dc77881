from __future__ import annotations

import errno
import os
import resource
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.domain.cpuset import CpuSet
from perphd.domain.errors import Busy, Denied, Full, Gone
from perphd.domain.reading import available
from perphd.host import perf_events
from perphd.host.cgroup.hierarchy import Hierarchies, Hierarchy, Layout
from perphd.host.perf_event_types import COMMON_CODES, EventCode, EventRefused, PerfEventKind
from perphd.host.perf_events import PerfEventGroup, open_group, perf_hierarchy, reserve_fds

EVENTS = (PerfEventKind.INSTRUCTIONS, PerfEventKind.CYCLES, PerfEventKind.TASK_CLOCK_NS)
CORE = EVENTS[:2]
MS = 1_000_000


def counts(instructions: float, cycles: float, clock_ms: float) -> dict[PerfEventKind, float]:
    return dict(zip(EVENTS, (instructions, cycles, clock_ms * MS), strict=True))


class _Counters:
    """A perf group's descriptors as pipes: what is put in is what the next read of that CPU returns."""

    def __init__(self, cpus: int) -> None:
        self.ends = {cpu: os.pipe() for cpu in range(cpus)}
        self.group = PerfEventGroup(EVENTS, {cpu: [ends[0]] for cpu, ends in self.ends.items()}, CpuSet())

    def put(self, cpu: int, enabled: int, running: int, *counts: int) -> None:
        os.write(
            self.ends[cpu][1], struct.pack(f"={3 + len(counts)}q", len(counts), enabled, running, *counts)
        )

    def close(self) -> None:
        self.group.close()
        for _, write_end in self.ends.values():
            os.close(write_end)


@pytest.fixture
def two() -> Iterator[_Counters]:
    counters = _Counters(2)
    yield counters
    counters.close()


def test_counts_are_summed_over_cpus_and_cumulative(two: _Counters) -> None:
    two.put(0, 10 * MS, 10 * MS, 100, 50, 10 * MS)
    two.put(1, 5 * MS, 5 * MS, 30, 20, 5 * MS)
    assert two.group.read() == counts(130.0, 70.0, 15.0)

    two.put(0, 11 * MS, 11 * MS, 101, 50, 11 * MS)
    two.put(1, 5 * MS, 5 * MS, 30, 20, 5 * MS)
    assert two.group.read() == counts(131.0, 70.0, 16.0)
    assert not two.group.starved_cpus


def test_a_workload_that_did_not_run_counts_zero(two: _Counters) -> None:
    two.put(0, 0, 0, 0, 0, 0)
    two.put(1, 0, 0, 0, 0, 0)
    assert two.group.read() == counts(0.0, 0.0, 0.0)
    assert not two.group.starved_cpus


def test_counts_are_never_scaled_by_the_kernels_times(two: _Counters) -> None:
    """As read on Linux 6.12 beside six foreign events: time_running is far from the group's own clock."""
    two.put(0, 1000 * MS, 85 * MS, 125, 500, 500 * MS)
    two.put(1, 0, 0, 0, 0, 0)
    assert two.group.read() == counts(125.0, 500.0, 500.0)
    assert not two.group.starved_cpus


def test_a_cpu_whose_enabled_time_covers_a_gap_adds_nothing(two: _Counters) -> None:
    """As read on Linux 6.1 and 6.12 after a restart: CPU 0 was left during the gap, and enabled grows there."""
    two.put(0, 24_368 * MS, 0, 0, 0, 0)
    two.put(1, 3_340 * MS, 3_340 * MS, 835, 3340, 3_340 * MS)
    assert two.group.read() == counts(835.0, 3340.0, 3340.0)
    assert two.group.starved_cpus == CpuSet.of([0])

    two.put(0, 25_668 * MS, 300 * MS, 75, 300, 300 * MS)  # back for 0.3 s
    two.put(1, 4_340 * MS, 4_340 * MS, 1085, 4340, 4_340 * MS)
    assert two.group.read() == counts(1160.0, 4640.0, 4640.0)


def test_what_a_starved_cpu_missed_is_not_booked_later(two: _Counters) -> None:
    for step in (1, 2, 3):
        two.put(0, step * 1000 * MS, 0, 0, 0, 0)
        two.put(1, step * 1000 * MS, step * 1000 * MS, 250 * step, step, step * 1000 * MS)
        two.group.read()
        assert two.group.starved_cpus == CpuSet.of([0])
    two.put(0, 4000 * MS, 1000 * MS, 250, 1, 1000 * MS)
    two.put(1, 4000 * MS, 4000 * MS, 1000, 4, 4000 * MS)
    assert two.group.read() == counts(1250.0, 5.0, 5000.0)
    assert not two.group.starved_cpus


def test_a_count_that_falls_is_a_reset_not_negative_work(two: _Counters) -> None:
    totals: list[object] = []
    for enabled, count in ((10, 100), (11, 40), (12, 45)):
        two.put(0, enabled * MS, enabled * MS, count, 1, enabled * MS)
        two.put(1, 0, 0, 0, 0, 0)
        totals.append(two.group.read()[PerfEventKind.INSTRUCTIONS])
    assert totals == [100.0, 100.0, 105.0]


def test_a_cpu_that_goes_offline_keeps_its_share_and_frees_its_descriptors(two: _Counters) -> None:
    two.put(0, MS, MS, 10, 1, MS)
    two.put(1, MS, MS, 20, 2, MS)
    two.group.read()
    fds = two.group.fds

    two.put(0, 2 * MS, 2 * MS, 15, 1, 2 * MS)
    os.write(two.ends[1][1], struct.pack("=4q", 1, 2 * MS, 2 * MS, 25))  # the siblings were detached
    assert two.group.read()[PerfEventKind.INSTRUCTIONS] == 35.0
    assert two.group.lost_cpus == CpuSet.of([1])
    assert two.group.fds == fds - 1


def test_without_any_cpu_left_nothing_is_claimed(two: _Counters) -> None:
    for ends in two.ends.values():
        os.write(ends[1], b"short")
    assert not any(available(reading) for reading in two.group.read().values())
    assert two.group.fds == 0


def test_closing_twice_is_fine(two: _Counters) -> None:
    two.group.close()
    two.group.close()
    assert two.group.fds == 0


_STEP = st.tuples(st.integers(0, 10**9), st.floats(0, 1), st.integers(0, 2**40), st.integers(0, 2**40))


@given(st.lists(_STEP, max_size=12))
def test_totals_are_what_was_counted_whatever_the_times_say(
    steps: list[tuple[int, float, int, int]],
) -> None:
    counters = _Counters(1)
    try:
        enabled = running = first = second = 0
        for more, share, a, b in steps:
            enabled, running, first, second = (
                enabled + more,
                running + int(more * share),
                first + a,
                second + b,
            )
            counters.put(0, enabled, running, first, second, running)
            assert list(counters.group.read().values()) == [first, second, running]
    finally:
        counters.close()


@given(st.lists(st.tuples(*[st.integers(-(2**63), 2**63 - 1)] * 5), max_size=6))
def test_arbitrary_numbers_neither_crash_nor_lower_a_total(
    steps: list[tuple[int, int, int, int, int]],
) -> None:
    counters = _Counters(1)
    try:
        before = 0.0
        for numbers in steps:
            counters.put(0, *numbers)
            total = counters.group.read()[PerfEventKind.INSTRUCTIONS]
            if available(total):
                assert total >= before
                before = total
    finally:
        counters.close()


def test_the_soft_limit_is_raised_before_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"now": (64, 4096)}
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits["now"])
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: limits.update(now=pair))

    reserve_fds(1000)
    assert limits["now"] == (4096, 4096)
    with pytest.raises(Full, match=r"descriptors are needed \(limit 4096\).*LimitNOFILE"):
        reserve_fds(5000)


def test_an_unlimited_hard_limit_is_not_written_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"now": (64, resource.RLIM_INFINITY)}
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits["now"])
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: limits.update(now=pair))
    reserve_fds(1000)
    assert limits["now"] == (1 << 20, resource.RLIM_INFINITY)


class Kernel:
    """perf_event_open(2) as real kernels answer it; what it opens are descriptors of /dev/null."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened: list[int] = []
        self.groups: dict[int, int] = {}
        self.offline: frozenset[int] = frozenset()
        self.denied: tuple[PerfEventKind, int] | None = None
        self.lacking: frozenset[PerfEventKind] = frozenset()
        self.counters = 9
        self.sees_cgroups = True
        monkeypatch.setattr(perf_events, "_perf_event_open", self.open)

    def open(self, code: EventCode, pid: int, cpu: int, group: int, flags: int) -> int:
        kind = next(kind for kind, known in COMMON_CODES.items() if known == code)
        if cpu in self.offline:
            raise OSError(errno.ENODEV, "offline")
        if self.denied == (kind, cpu):
            raise OSError(errno.EACCES, "no")
        if kind in self.lacking or not self.sees_cgroups:
            raise OSError(errno.ENOENT, "none")
        if group >= 0 and kind.is_hardware and self.groups[group] >= self.counters:
            raise OSError(errno.EINVAL, "too many")
        fd = os.open("/dev/null", os.O_RDONLY)
        leader = fd if group < 0 else group
        self.groups[leader] = self.groups.get(leader, 0) * (group >= 0) + kind.is_hardware
        self.opened.append(fd)
        return fd

    @property
    def left_open(self) -> list[int]:
        return [fd for fd in self.opened if os.path.exists(f"/proc/self/fd/{fd}")]


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    return Kernel(monkeypatch)


def test_a_failure_midway_closes_what_was_opened(kernel: Kernel, tmp_path: object) -> None:
    kernel.denied = (PerfEventKind.CYCLES, 1)
    with pytest.raises(Denied, match=r"cycles, CPU 1.*EACCES.*CAP_PERFMON"):
        open_group(str(tmp_path), CpuSet.of([0, 1]), EVENTS)
    assert len(kernel.opened) >= 4
    assert not kernel.left_open


def test_offline_cpus_are_left_out_and_named(kernel: Kernel, tmp_path: object) -> None:
    kernel.offline = frozenset([1])
    with open_group(str(tmp_path), CpuSet.of([0, 1, 2]), CORE) as group:
        assert group.lost_cpus == CpuSet.of([1])
        assert group.fds == 4
        assert group.events == CORE
    kernel.offline = frozenset([0, 1])
    with pytest.raises(Gone, match="no CPU of 0-1 is online"):
        open_group(str(tmp_path), CpuSet.of([0, 1]), CORE)


def test_a_group_larger_than_the_pmu_is_told_from_an_event_it_lacks(kernel: Kernel, tmp_path: object) -> None:
    kernel.counters = 1
    with pytest.raises(EventRefused, match=r"cycles.*EINVAL.*too few counters") as larger:
        open_group(str(tmp_path), CpuSet.of([0]), EVENTS)
    assert (larger.value.kind, larger.value.too_many) == (PerfEventKind.CYCLES, True)
    kernel.lacking = frozenset([PerfEventKind.INSTRUCTIONS])
    with pytest.raises(EventRefused, match=r"instructions.*ENOENT.*lacks this event") as lacking:
        open_group(str(tmp_path), CpuSet.of([0]), EVENTS)
    assert (lacking.value.kind, lacking.value.too_many) == (PerfEventKind.INSTRUCTIONS, False)
    assert not kernel.left_open


def test_a_cgroup_that_perf_does_not_see_says_nothing_about_events(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    kernel.sees_cgroups = False
    for bound, words in ((False, "subtree_control"), (True, "v1 hierarchy")):
        monkeypatch.setattr(perf_events, "_perf_is_v1", lambda bound=bound: bound)
        with pytest.raises(Busy, match=words) as refused:
            open_group(str(tmp_path), CpuSet.of([0]), EVENTS)
        assert refused.value.errno == errno.ENOENT


def test_an_event_without_a_code_is_not_asked_of_the_kernel(kernel: Kernel, tmp_path: object) -> None:
    with pytest.raises(EventRefused, match=r"llc-misses.*the code of this event") as refused:
        open_group(str(tmp_path), CpuSet.of([0]), (PerfEventKind.INSTRUCTIONS, PerfEventKind.LLC_MISSES))
    assert refused.value.kind is PerfEventKind.LLC_MISSES
    assert not kernel.opened


def test_nothing_to_open_is_a_mistake(tmp_path: object) -> None:
    for cpus, events in ((CpuSet(), EVENTS), (CpuSet.of([0]), ()), (CpuSet.of([0]), EVENTS * 2)):
        with pytest.raises(ValueError, match="at least one"):
            open_group(str(tmp_path), cpus, events)


def test_perf_names_cgroups_by_its_own_v1_tree_if_there_is_one() -> None:
    unified, own = Hierarchy(2, "/u", frozenset()), Hierarchy(1, "/p", frozenset({"perf_event"}))
    assert perf_hierarchy(Hierarchies(Layout.HYBRID, unified, {"perf_event": own})) is own
    assert perf_hierarchy(Hierarchies(Layout.V2, unified, {})) is unified
    assert perf_hierarchy(Hierarchies(Layout.NONE, None, {})) is None
