from __future__ import annotations

import os
import resource
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.domain.cpuset import CpuSet
from perphd.domain.errors import Full, KernelError
from perphd.domain.reading import Unavailable, available
from perphd.host import perf_events
from perphd.host.cgroup.hierarchy import Hierarchies, Hierarchy, Layout
from perphd.host.perf_events import EventKind, PerfEventGroup, open_group, perf_hierarchy, reserve_fds

EVENTS = (EventKind.INSTRUCTIONS, EventKind.CYCLES)
MS = 1_000_000


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
    two.put(0, 10 * MS, 10 * MS, 100, 50)
    two.put(1, 5 * MS, 5 * MS, 30, 20)
    assert two.group.read() == {EventKind.INSTRUCTIONS: 130.0, EventKind.CYCLES: 70.0}

    two.put(0, 11 * MS, 11 * MS, 101, 50)
    two.put(1, 5 * MS, 5 * MS, 30, 20)
    assert two.group.read() == {EventKind.INSTRUCTIONS: 131.0, EventKind.CYCLES: 70.0}
    assert two.group.running_ratio == 1.0


def test_a_workload_that_did_not_run_counts_zero(two: _Counters) -> None:
    two.put(0, 0, 0, 0, 0)
    two.put(1, 0, 0, 0, 0)
    assert two.group.read() == {EventKind.INSTRUCTIONS: 0.0, EventKind.CYCLES: 0.0}
    assert two.group.running_ratio == 1.0


def test_multiplexing_scales_each_interval_by_its_own_share(two: _Counters) -> None:
    two.put(0, 10 * MS, 5 * MS, 100, 10)
    two.put(1, 0, 0, 0, 0)
    assert two.group.read()[EventKind.INSTRUCTIONS] == pytest.approx(200.0)
    assert two.group.running_ratio == pytest.approx(0.5)

    two.put(0, 20 * MS, 15 * MS, 200, 20)  # ran all the time since: what it counted is exact
    two.put(1, 0, 0, 0, 0)
    assert two.group.read()[EventKind.INSTRUCTIONS] == pytest.approx(300.0)
    assert two.group.running_ratio == 1.0


def test_counters_that_never_ran_are_unavailable_and_caught_up_later(two: _Counters) -> None:
    two.put(0, 10 * MS, 0, 0, 0)
    two.put(1, 0, 0, 0, 0)
    reading = two.group.read()[EventKind.CYCLES]
    assert isinstance(reading, Unavailable)
    assert "did not run" in reading.reason
    assert two.group.running_ratio == 0.0

    two.put(0, 20 * MS, 5 * MS, 50, 5)  # a quarter of the whole time since the last good reading
    two.put(1, 0, 0, 0, 0)
    assert two.group.read()[EventKind.INSTRUCTIONS] == pytest.approx(200.0)
    assert two.group.running_ratio == pytest.approx(0.25)


def test_a_count_that_falls_is_a_reset_not_negative_work(two: _Counters) -> None:
    totals: list[object] = []
    for enabled, count in ((10, 100), (11, 40), (12, 45)):
        two.put(0, enabled * MS, enabled * MS, count, 1)
        two.put(1, 0, 0, 0, 0)
        totals.append(two.group.read()[EventKind.INSTRUCTIONS])
    assert totals == [100.0, 100.0, 105.0]


def test_a_cpu_that_goes_offline_keeps_its_share_and_frees_its_descriptors(two: _Counters) -> None:
    two.put(0, MS, MS, 10, 1)
    two.put(1, MS, MS, 20, 2)
    two.group.read()
    fds = two.group.fds

    two.put(0, 2 * MS, 2 * MS, 15, 1)
    os.write(two.ends[1][1], struct.pack("=4q", 1, 2 * MS, 2 * MS, 25))  # the siblings were detached
    assert two.group.read()[EventKind.INSTRUCTIONS] == 35.0
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
def test_totals_never_fall_and_never_undercut_what_was_counted(
    steps: list[tuple[int, float, int, int]],
) -> None:
    counters = _Counters(1)
    try:
        enabled = running = first = second = 0
        before = 0.0
        for more, share, a, b in steps:
            ran = int(more * share)
            # What does not run does not count.
            enabled, running = enabled + more, running + ran
            first, second = first + (a if ran else 0), second + (b if ran else 0)
            counters.put(0, enabled, running, first, second)
            total = counters.group.read()[EventKind.INSTRUCTIONS]
            if available(total):
                assert total >= before
                assert total >= first * (1 - 1e-12)
                before = total
            assert 0.0 <= counters.group.running_ratio <= 1.0
    finally:
        counters.close()


@given(st.lists(st.tuples(*[st.integers(-(2**63), 2**63 - 1)] * 4), max_size=6))
def test_arbitrary_numbers_neither_crash_nor_lower_a_total(steps: list[tuple[int, int, int, int]]) -> None:
    counters = _Counters(1)
    try:
        before = 0.0
        for numbers in steps:
            counters.put(0, *numbers)
            total = counters.group.read()[EventKind.INSTRUCTIONS]
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
    with pytest.raises(Full, match=r"descriptors are needed, 4096 are allowed.*LimitNOFILE"):
        reserve_fds(5000)


def test_an_unlimited_hard_limit_is_not_written_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"now": (64, resource.RLIM_INFINITY)}
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits["now"])
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: limits.update(now=pair))
    reserve_fds(1000)
    assert limits["now"] == (1 << 20, resource.RLIM_INFINITY)


def test_a_failure_midway_closes_what_was_opened(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    opened: list[int] = []

    def opening(kind: EventKind, pid: int, cpu: int, group: int, flags: int) -> int:
        if cpu == 1 and kind is EventKind.CYCLES:
            raise OSError(13, "no")
        assert group == (-1 if kind is EventKind.INSTRUCTIONS else opened[-1])
        opened.append(os.open("/dev/null", os.O_RDONLY))
        return opened[-1]

    monkeypatch.setattr(perf_events, "_perf_event_open", opening)
    with pytest.raises(KernelError, match=r"cycles, CPU 1.*EACCES.*CAP_PERFMON"):
        open_group(str(tmp_path), CpuSet.of([0, 1]), EVENTS)
    assert len(opened) == 3
    for fd in opened:
        with pytest.raises(OSError):
            os.fstat(fd)


def test_offline_cpus_are_left_out_and_named(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    def opening(kind: EventKind, pid: int, cpu: int, group: int, flags: int) -> int:
        if cpu == 1:
            raise OSError(19, "offline")
        return os.open("/dev/null", os.O_RDONLY)

    monkeypatch.setattr(perf_events, "_perf_event_open", opening)
    with open_group(str(tmp_path), CpuSet.of([0, 1, 2]), EVENTS) as group:
        assert group.lost_cpus == CpuSet.of([1])
        assert group.fds == 4


def test_nothing_to_open_is_a_mistake(tmp_path: object) -> None:
    for cpus, events in ((CpuSet(), EVENTS), (CpuSet.of([0]), ()), (CpuSet.of([0]), EVENTS * 2)):
        with pytest.raises(ValueError, match="at least one"):
            open_group(str(tmp_path), cpus, events)


def test_perf_names_cgroups_by_its_own_v1_tree_if_there_is_one() -> None:
    unified, own = Hierarchy(2, "/u", frozenset()), Hierarchy(1, "/p", frozenset({"perf_event"}))
    assert perf_hierarchy(Hierarchies(Layout.HYBRID, unified, {"perf_event": own})) is own
    assert perf_hierarchy(Hierarchies(Layout.V2, unified, {})) is unified
    assert perf_hierarchy(Hierarchies(Layout.NONE, None, {})) is None
