"""Counts performance events of one workload: MIPS, CPI, LLC misses per thousand instructions, stalls, context
switches.

All users of this host share its counters, so a group may count for only part of the interval. Its share is the
group's own task clock divided by the CPU time that the kernel accounted to the workload:

    share = task clock / usage          MIPS = instructions / task clock x usage

Both cover this interval alone: events missed in one interval are never added to another. The kernel's
time_enabled and time_running are not used (see ``perphd.host.perf_events``). If the task clock is at least
the usage (only one of them includes steal time and interrupts), the counts are exact and are not scaled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

from perphd.domain.backoff import BackoffRule, RetryPause
from perphd.domain.cpuset import CpuSet
from perphd.domain.errors import KernelError
from perphd.domain.reading import Reading, Unavailable, available, fmap, ratio
from perphd.host.perf_event_types import EventGroup, PerfEventKind
from perphd.monitor.ladder import GROUP_SIZES, HARDWARE_ORDER, NO_PMU, EventLadder
from perphd.monitor.meters import Readings
from perphd.monitor.rates import Rate

MIN_SHARE: Final = 0.5
"""Share of the workload's CPU time below which a scaled count is more estimate than measurement."""
ALL_SHARE: Final = 0.9
"""Share of the workload's CPU time from which CPUs without counters no longer matter."""
SKEW_S: Final = 0.01
"""CPU time in seconds, one scheduler tick, by which the usage may exceed the task clock.

The two may differ because they are read at different moments.
"""
STARVED_SAMPLES: Final = 3
"""Consecutive samples with too little counting time after which fewer events are opened."""

RETRY: Final = BackoffRule(2.0, 60.0)
"""Backoff between attempts to open events, after a refusal that was not due to the events."""
RISE: Final = BackoffRule(60.0, 960.0)
"""Backoff between attempts to open more events, after a shortage of counters."""
NEXT_RISE_S: Final = 10.0
"""Seconds until more events are tried, after a larger group has run."""

EVENT_FIELDS: Final = (
    "context_switches_per_s",
    "mips",
    "cpi",
    "llc_mpki",
    "backend_stall_ratio",
    "memory_stall_ratio",
)

NOT_USED: Final = Unavailable("performance events are not counted on this host")
NOT_FOR_BATCH: Final = Unavailable("without a performance monitoring unit, events are counted for LRAs only")
"""Reason for batch without a PMU: nothing uses its software events, which cost time at every task switch."""
DID_NOT_RUN: Final = Unavailable(
    "the counters did not run in this interval: other users hold them (a profiler, pinned events, the NMI watchdog)"
)
TOO_BRIEF: Final = Unavailable("the workload ran too briefly in this interval to be counted")
NO_CLOCK: Final = Unavailable("the task clock of this cgroup is not counted")
LEFT_OUT: Final = Unavailable("left out for a while: other users hold too many counters")

Online = Callable[[], CpuSet]
"""Returns the CPUs that are online in this tick."""


class EventMeter:
    """The event counters of one workload. ``hardware``: see ``EventLadder.open``."""

    def __init__(
        self, ladder: EventLadder | None, directory: str, cpus: CpuSet, hardware: bool = False
    ) -> None:
        self._ladder, self._directory, self._cpus = ladder, directory, cpus
        self._hardware = hardware
        self._group: EventGroup | None = None
        self._missing: Readings = dict.fromkeys(EVENT_FIELDS, NOT_USED)
        self._retry = RetryPause(RETRY)
        self._most = len(HARDWARE_ORDER)
        self._share = 1.0
        self._starved = 0
        self._look = False
        self._rise_at_s, self._rise_s, self._rose = math.inf, 0.0, False
        self._forget_counts()

    def _forget_counts(self) -> None:
        self._rates = {kind: Rate() for kind in PerfEventKind}
        self._counts: Mapping[PerfEventKind, Reading] = {}
        self._at_s = -math.inf
        self._held: Readings | None = None
        self._lags = False

    def take(self, now_s: float, out: Readings, online: Online) -> bool:
        """Put the readings of ``EVENT_FIELDS`` into ``out``, and the CPU usage if no file provided it.

        Returns True if the counters ran for less than the accepted share of the workload's CPU time, or not
        on all CPUs.
        """
        if self._group is None:
            self._open(now_s)
        group = self._group
        if group is None:
            out.update(self._missing)
            return False
        interval_s = now_s - self._at_s
        try:
            flagged = self._read(group, now_s, out)
        except KernelError as exc:
            self.close()
            self._missing = dict.fromkeys(EVENT_FIELDS, Unavailable(str(exc)))
            out.update(self._missing)
            return False
        if group.lost_cpus and group.lost_cpus & online():
            # Work on that CPU was not counted; reopening the group includes it.
            self._replace(now_s)
            return True
        if _cpu_time_s(out, interval_s) > SKEW_S:
            with_stalls = sum(kind.is_hardware for kind in group.events) > GROUP_SIZES[1]
            short = flagged or (with_stalls and self._share < ALL_SHARE)
            if not short and self._starved and self._rise_at_s < math.inf:
                # The group is unchanged, so another user has released counters.
                self._rise_at_s = min(self._rise_at_s, now_s + NEXT_RISE_S)
            self._starved = self._starved + 1 if short else 0
            if self._starved >= STARVED_SAMPLES:
                self._shed(group, now_s)
        if self._look:
            self._look = False
            self._grow(group, now_s)
        return flagged

    def look_over(self) -> None:
        """Try refused or omitted events again after the next sample."""
        self._look = True

    def _grow(self, group: EventGroup, now_s: float) -> None:
        if self._ladder is None or group is not self._group:
            return
        if now_s >= self._rise_at_s:
            self._most = min((size for size in GROUP_SIZES if size > self._most), default=GROUP_SIZES[0])
            self._rise_at_s = math.inf if self._most == GROUP_SIZES[0] else now_s + NEXT_RISE_S
            self._rose = True
        if not set(self._ladder.wanted(now_s, self._most)) <= set(group.events):
            self._replace(now_s)

    # -- opening ------------------------------------------------------------------------------------

    def _open(self, now_s: float) -> None:
        if self._ladder is None or now_s < self._retry.until_s:
            return
        self._forget_counts()
        self._retry.failed(now_s)
        try:
            self._group = self._ladder.open(
                self._directory, self._cpus, now_s, self._most, hardware=self._hardware
            )
        except KernelError as exc:
            self._missing = dict.fromkeys(EVENT_FIELDS, Unavailable(str(exc)))
            return
        if self._group is None:
            why = self._ladder.why(PerfEventKind.INSTRUCTIONS)
            reason = NO_PMU if why is None else why
            self._missing = {**dict.fromkeys(EVENT_FIELDS, reason), "context_switches_per_s": NOT_FOR_BATCH}
        else:
            self._retry.pause_s = 0.0

    def _replace(self, now_s: float) -> None:
        """Switch to a new group of events without losing an interval. The old group stays if no other can be opened."""
        old = self._group
        if old is None or self._ladder is None:
            return
        try:
            new = self._ladder.open(self._directory, self._cpus, now_s, self._most, hardware=self._hardware)
        except KernelError:
            return
        if new is None:
            return
        old.close()
        self._group = new
        self._forget_counts()
        self._counts, self._at_s = new.read(), now_s
        for kind, count in self._counts.items():
            if available(count):
                self._rates[kind].update(count, now_s)

    def _shed(self, group: EventGroup, now_s: float) -> None:
        """Open fewer events because counters are scarce, and schedule an attempt with more."""
        counted = sum(kind.is_hardware for kind in group.events)
        smaller = [size for size in GROUP_SIZES if size < counted]
        if not smaller:
            self._starved = 1
            return
        self._rise_s = RISE.after(self._rise_s if self._rose else 0.0)
        self._most, self._rise_at_s, self._rose = smaller[0], now_s + self._rise_s, False
        self._starved = 0
        self._replace(now_s)

    # -- reading ------------------------------------------------------------------------------------

    def _read(self, group: EventGroup, now_s: float, out: Readings) -> bool:
        counts = group.read()
        idle = _cpu_time_s(out, now_s - self._at_s) <= SKEW_S
        if counts is self._counts and now_s > self._at_s and idle:
            if self._held is not None:  # unchanged for the second time: repeat the last readings
                self._at_s, self._lags = now_s, True
                out.update(self._held)
                if isinstance(out.get("cpu_usage_cores"), Unavailable):
                    out["cpu_usage_cores"] = 0.0
                return False
            flagged = self._update(group, counts, now_s, out)
            self._held = {field: out[field] for field in EVENT_FIELDS}
        else:
            if self._lags:
                self._update(group, self._counts, self._at_s, {})
            flagged = self._update(group, counts, now_s, out)
            self._held, self._lags = None, False
        # Without elapsed time, growth belongs to the next interval, so the next content must not count as
        # unchanged.
        self._counts = counts if now_s > self._at_s else {}
        self._at_s = now_s
        return flagged

    def _update(
        self, group: EventGroup, counts: Mapping[PerfEventKind, Reading], now_s: float, out: Readings
    ) -> bool:
        interval_s = now_s - self._at_s
        grown = {
            kind: count if isinstance(count, Unavailable) else self._rates[kind].update(count, now_s)
            for kind, count in counts.items()
        }
        clock_cores = fmap(_seconds, grown.get(PerfEventKind.TASK_CLOCK_NS, NO_CLOCK))
        usage_cores = out.get("cpu_usage_cores", NOT_USED)
        scale, self._share = relate(clock_cores, usage_cores, interval_s, bool(group.starved_cpus))
        if isinstance(scale, Unavailable):
            grown = dict.fromkeys(grown, scale)
            factor = 1.0
        else:
            factor = scale
        instructions = self._of(grown, PerfEventKind.INSTRUCTIONS)
        cycles = self._of(grown, PerfEventKind.CYCLES)
        misses = ratio(self._of(grown, PerfEventKind.LLC_MISSES), instructions, "misses per instruction")
        out["mips"] = fmap(lambda rate: rate * factor / 1e6, instructions)
        out["cpi"] = ratio(cycles, instructions, "cycles per instruction")
        out["llc_mpki"] = fmap(_thousands, misses)
        for field, kind in _STALLS:
            out[field] = ratio(self._of(grown, kind), cycles, "stalls per cycle")
        switches = self._of(grown, PerfEventKind.CONTEXT_SWITCHES)
        out["context_switches_per_s"] = fmap(lambda rate: rate * factor, switches)
        if isinstance(usage_cores, Unavailable) and "cpu_usage_cores" in out:
            out["cpu_usage_cores"] = clock_cores
        return self._share < MIN_SHARE or (self._share < ALL_SHARE and bool(group.starved_cpus))

    def _of(self, grown: Mapping[PerfEventKind, Reading], kind: PerfEventKind) -> Reading:
        """The growth of this event, or the reason why it is not counted."""
        found = grown.get(kind)
        if found is not None:
            return found
        why = None if self._ladder is None else self._ladder.why(kind)
        return LEFT_OUT if why is None else why

    @property
    def fds(self) -> int:
        """Number of open descriptors."""
        return 0 if self._group is None else self._group.fds

    def close(self) -> None:
        """Close all descriptors."""
        if self._group is not None:
            self._group.close()
            self._group = None


_STALLS: Final = (
    ("backend_stall_ratio", PerfEventKind.STALL_BACKEND),
    ("memory_stall_ratio", PerfEventKind.STALL_MEMORY),
)


def relate(
    clock_cores: Reading, usage_cores: Reading, interval_s: float, starved: bool
) -> tuple[Reading, float]:
    """The factor for scaling counts, and the share (0..1) of the workload's CPU time that they cover.

    Args:
        clock_cores: the group's task clock over the interval, in CPUs.
        usage_cores: CPU time that the kernel accounted to the workload over the same interval, in CPUs.
        interval_s: length of the interval.
        starved: the group reports that it missed most of the time on some CPU.

    Returns:
        The factor is Unavailable if nothing was counted although the workload ran.
    """
    if isinstance(clock_cores, Unavailable):
        # Without a task clock, only the group itself can report starvation. A first reading has no rates.
        return 1.0, 0.0 if starved and clock_cores is NO_CLOCK else 1.0
    if isinstance(usage_cores, Unavailable):
        if starved and clock_cores <= 0.0:
            return DID_NOT_RUN, 0.0
        return 1.0, 0.0 if starved else 1.0
    missed_s = (usage_cores - clock_cores) * interval_s
    if clock_cores <= 0.0:
        if missed_s > SKEW_S:
            return DID_NOT_RUN, 0.0
        return (TOO_BRIEF if starved and missed_s > 0.0 else 1.0), 1.0
    if usage_cores <= clock_cores:
        return 1.0, 1.0
    share = clock_cores / usage_cores
    return 1.0 / share, share if missed_s > SKEW_S else 1.0


def _cpu_time_s(readings: Readings, interval_s: float) -> float:
    """CPU time of the interval; 0 if the usage is unknown."""
    usage_cores = readings.get("cpu_usage_cores")
    if usage_cores is None or isinstance(usage_cores, Unavailable) or not math.isfinite(interval_s):
        return 0.0
    return usage_cores * interval_s


def _thousands(value: float) -> float:
    return value * 1e3


def _seconds(nanoseconds: float) -> float:
    return nanoseconds / 1e9
