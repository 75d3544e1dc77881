"""Meters, which convert the content of one kernel file to readings of a workload.

A meter keeps the counters' last values and knows neither paths nor read errors (``files`` does). ``take``
puts a Reading for each of its ``fields`` into ``out``, regardless of the content.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Protocol, TypeAlias

from perphd.domain.reading import Reading, Unavailable
from perphd.monitor.parse import (
    blkio_bytes,
    io_stat_bytes,
    line_needle,
    psi_total_us,
    values_of,
    whole_number,
)
from perphd.monitor.rates import FIRST_READING, WENT_BACKWARDS, Rate

Readings: TypeAlias = dict[str, Reading]
"""Readings, keyed by the name of their field in ``Sample``."""


class Meter(Protocol):
    """Converts the content of one file to readings."""

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of ``Sample`` that it provides."""

    def take(self, data: bytes, now_s: float, out: Readings) -> None:
        """Put the readings of the file's present content into ``out``; never raises."""


class Gauge:
    """A file with one number, which is the reading."""

    def __init__(self, field: str) -> None:
        self.fields: tuple[str, ...] = (field,)
        self._malformed = Unavailable("the file must contain exactly one whole number")

    def take(self, data: bytes, now_s: float, out: Readings) -> None:
        """Put the file's number into ``out``."""
        value = whole_number(data)
        out[self.fields[0]] = self._malformed if value is None else float(value)


class ThreadList:
    """``cgroup.threads`` or v1 ``tasks``: one thread per line, descendants excluded."""

    fields: tuple[str, ...] = ("threads",)

    def take(self, data: bytes, now_s: float, out: Readings) -> None:
        """Put the number of threads, which is the number of lines, into ``out``."""
        out["threads"] = float(data.count(b"\n"))


class CpuAcct:
    """v1 ``cpuacct.usage``: nanoseconds of CPU time, descendants included."""

    fields: tuple[str, ...] = ("cpu_usage_cores",)

    def __init__(self) -> None:
        self._rate = Rate()

    def take(self, data: bytes, now_s: float, out: Readings) -> None:
        """Put CPU seconds per second into ``out``."""
        used_ns = whole_number(data)
        if used_ns is None:
            out["cpu_usage_cores"] = Unavailable("cpuacct.usage contains no number")
        else:
            out["cpu_usage_cores"] = self._rate.update(used_ns / 1e9, now_s)


class CpuStat:
    """``cpu.stat``: CPU time (v2), and throttling by the CPU quota (the cpu controller, v2 or v1)."""

    _USAGE = (line_needle("usage_usec"),)
    _THROTTLING = (line_needle("nr_periods"), line_needle("nr_throttled"))

    def __init__(self, usage: bool, throttling: bool) -> None:
        self.fields: tuple[str, ...] = ("cpu_usage_cores",) * usage + ("cpu_throttled_pct",) * throttling
        self._needles = self._USAGE * usage + self._THROTTLING * throttling
        self._with_usage, self._with_throttling = usage, throttling
        self._usage = Rate()
        self._periods: tuple[int, int] | None = None

    def take(self, data: bytes, now_s: float, out: Readings) -> None:
        """Put CPU seconds per second, and the % of quota periods in which the group was throttled, into ``out``."""
        values = values_of(data, self._needles)
        if self._with_usage:
            used_us = values[0]
            out["cpu_usage_cores"] = (
                Unavailable("cpu.stat has no usage_usec")
                if used_us is None
                else self._usage.update(used_us / 1e6, now_s)
            )
        if self._with_throttling:
            out["cpu_throttled_pct"] = self._throttled(values[-2], values[-1])

    def _throttled(self, periods: int | None, throttled: int | None) -> Reading:
        if periods is None or throttled is None:
            return Unavailable(
                "cpu.stat has no nr_periods or no nr_throttled: the cpu controller is not enabled for this cgroup"
            )
        before, self._periods = self._periods, (periods, throttled)
        if before is None:
            return FIRST_READING
        passed, stopped = periods - before[0], throttled - before[1]
        if passed < 0 or stopped < 0:
            return WENT_BACKWARDS
        # Periods pass only while a quota is set and the group runs: no period means no throttling.
        return 100.0 * stopped / passed if passed else 0.0


class PressureMeter:
    """A PSI file: stall shares of the interval from the ``total`` counters (not the kernel's slow averages)."""

    def __init__(self, some: str, full: str | None) -> None:
        self.fields: tuple[str, ...] = (some,) if full is None else (some, full)
        shares = (b"some",) if full is None else (b"some", b"full")
        self._shares = tuple(zip(self.fields, shares, (Rate(), Rate()), strict=False))

    def take(self, data: bytes, now_s: float, out: Readings) -> None:
        """Put the % of the interval in which some (or all) tasks were stalled, at most 100, into ``out``."""
        for field, share, rate in self._shares:
            total_us = psi_total_us(data, share)
            if total_us is None:
                out[field] = Unavailable(f"the pressure file has no {share.decode()!r} line with a total")
            else:
                stalled = rate.update(float(total_us), now_s)
                # The kernel adds an ongoing stall when the file is read, so that growth may exceed the
                # interval.
                out[field] = stalled if isinstance(stalled, Unavailable) else min(100.0, stalled / 1e4)


class MemoryStat:
    """``memory.stat``: working set, refaults and major faults.

    The working set is the memory that reclaim cannot take without cost: both anonymous lists (which include
    shared memory), the active file list, unevictable pages, and unreclaimable kernel memory where it is
    counted. The lists are disjoint, so that locked or shared pages count once.
    """

    fields: tuple[str, ...] = ("memory_working_set_bytes", "refaults_per_s", "major_faults_per_s")

    def __init__(
        self, order: tuple[str, ...], working_set: frozenset[str], refaults: frozenset[str], major: str
    ) -> None:
        self._needles = tuple(line_needle(key) for key in order)
        self._working_set = tuple(order.index(key) for key in sorted(working_set))
        self._refault = tuple(order.index(key) for key in sorted(refaults))
        self._major_fault = order.index(major)
        self._refaults, self._major = Rate(), Rate()

    @classmethod
    def v2(cls) -> MemoryStat:
        """A meter for cgroup v2, where every line includes descendants."""
        lists = ("inactive_anon", "active_anon", "active_file", "unevictable")
        kernel = ("kernel_stack", "pagetables")
        refaults = ("workingset_refault_anon", "workingset_refault_file")
        # The names are in the order of the file, so that one pass over the file finds all lines.
        order = (*kernel, *lists, "slab_unreclaimable", *refaults, "pgmajfault")
        return cls(
            order, frozenset((*kernel, *lists, "slab_unreclaimable")), frozenset(refaults), "pgmajfault"
        )

    @classmethod
    def v1(cls) -> MemoryStat:
        """A meter for cgroup v1, where only ``total_`` lines include descendants; kernel memory has no lines."""
        lists = ("total_inactive_anon", "total_active_anon", "total_active_file", "total_unevictable")
        refaults = ("total_workingset_refault_anon", "total_workingset_refault_file")
        return cls(
            (*refaults, "total_pgmajfault", *lists), frozenset(lists), frozenset(refaults), "total_pgmajfault"
        )

    def take(self, data: bytes, now_s: float, out: Readings) -> None:
        """Put the working set (bytes) and the fault rates (per second) into ``out``."""
        values = values_of(data, self._needles)
        held = _sum_of(values, self._working_set)
        out["memory_working_set_bytes"] = _lacks("one of the page lists") if held is None else float(held)
        refaults = _sum_of(values, self._refault)
        out["refaults_per_s"] = (
            _lacks("workingset_refault lines") if refaults is None else self._refaults.update(refaults, now_s)
        )
        major = values[self._major_fault]
        out["major_faults_per_s"] = (
            _lacks("pgmajfault") if major is None else self._major.update(major, now_s)
        )


def _sum_of(values: list[int | None], at: tuple[int, ...]) -> int | None:
    total = 0
    for index in at:
        value = values[index]
        if value is None:
            return None
        total += value
    return total


def _lacks(what: str) -> Unavailable:
    return Unavailable(f"memory.stat of this kernel lacks {what}")


class BlockIo:
    """v2 ``io.stat`` or v1 ``blkio.throttle.io_service_bytes_recursive``: bytes read and written."""

    fields: tuple[str, ...] = ("read_bytes_per_s", "write_bytes_per_s")
    _MALFORMED: ClassVar = Unavailable("the block I/O file has an unknown format")

    def __init__(self, total: Callable[[bytes], tuple[int, int] | None]) -> None:
        self._total = total
        self._read, self._write = Rate(), Rate()

    @classmethod
    def v2(cls) -> BlockIo:
        """A meter for v2 ``io.stat``."""
        return cls(io_stat_bytes)

    @classmethod
    def v1(cls) -> BlockIo:
        """A meter for the v1 blkio controller."""
        return cls(blkio_bytes)

    def take(self, data: bytes, now_s: float, out: Readings) -> None:
        """Put the bytes read and written per second into ``out``."""
        totals = self._total(data)
        if totals is None:
            out["read_bytes_per_s"] = out["write_bytes_per_s"] = self._MALFORMED
            return
        out["read_bytes_per_s"] = self._read.update(totals[0], now_s)
        out["write_bytes_per_s"] = self._write.update(totals[1], now_s)
