"""Performance events of one workload -> MIPS, CPI, LLC misses per thousand instructions, context switches.

Which events a kernel counts is found by asking for fewer and fewer; the first answer holds for all workloads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from perphd.domain.cpuset import CpuSet
from perphd.domain.errors import KernelError, Unsupported
from perphd.domain.reading import Reading, Unavailable, fmap, ratio
from perphd.host.perf_events import EventGroup, EventKind, EventOpener
from perphd.monitor.meters import Readings
from perphd.monitor.rates import Rate

MIN_RUNNING_RATIO: Final = 0.5
"""Below this share of running time a scaled count is more estimate than measurement."""

EVENT_FIELDS: Final = ("context_switches_per_s", "mips", "cpi", "llc_mpki")

_SOFTWARE: Final = (EventKind.TASK_CLOCK_NS, EventKind.CONTEXT_SWITCHES)
_CORE: Final = (EventKind.INSTRUCTIONS, EventKind.CYCLES)
_LADDER: Final[tuple[tuple[EventKind, ...], ...]] = (
    (*_CORE, EventKind.LLC_REFERENCES, EventKind.LLC_MISSES, *_SOFTWARE),
    (*_CORE, EventKind.LLC_MISSES, *_SOFTWARE),
    (*_CORE, *_SOFTWARE),
    _SOFTWARE,
)
NO_PMU: Final = Unavailable("no performance monitoring unit is visible on this host")
NOT_USED: Final = Unavailable("performance events are not used")
NOT_FOR_BATCH: Final = Unavailable("without a performance monitoring unit, events are counted for LRAs only")
"""Software events alone tell nothing of batch that anybody decides by, and each costs at every switch of its tasks."""

_WITHOUT_PMU: Final[Readings] = {
    "context_switches_per_s": NOT_FOR_BATCH,
    "mips": NO_PMU,
    "cpi": NO_PMU,
    "llc_mpki": NO_PMU,
}


class EventLadder:
    """Opens event groups, remembering after the first which events this host has. One for a whole Monitor."""

    def __init__(self, opener: EventOpener) -> None:
        self._opener = opener
        self._rung = 0

    def open(self, directory: str, cpus: CpuSet, hardware: bool = False) -> EventGroup | None:
        """Open the richest group that this host supports. ``hardware``: only with hardware events; None: it has none.

        Raises:
            KernelError: of the last attempt, when none is supported, or at once for any other refusal.
        """
        while True:
            if hardware and _LADDER[self._rung] is _SOFTWARE:
                return None
            try:
                return self._opener(directory, cpus, _LADDER[self._rung])
            except Unsupported:
                if self._rung == len(_LADDER) - 1:
                    raise
                self._rung += 1


class EventMeter:
    """The event counters of one workload. ``hardware``: see ``EventLadder.open``."""

    def __init__(
        self, ladder: EventLadder | None, directory: str, cpus: CpuSet, hardware: bool = False
    ) -> None:
        self._ladder, self._directory, self._cpus = ladder, directory, cpus
        self._group: EventGroup | None = None
        self._missing: Readings = dict.fromkeys(EVENT_FIELDS, NOT_USED)
        self._forget_counts()
        self.open(hardware=hardware)

    def _forget_counts(self) -> None:
        self._rates = {kind: Rate() for kind in EventKind}
        self._counts: Mapping[EventKind, Reading] = {}
        self._at_s = -math.inf
        self._held: Readings | None = None
        self._lags = False

    @property
    def is_whole(self) -> bool:
        """True if everything is counted that was to be: ``open`` has nothing to do."""
        return self._ladder is None or (self._group is not None and not self._group.lost_cpus)

    def open(self, online: CpuSet | None = None, hardware: bool = False) -> None:
        """Open if not open; open anew if CPUs that were lost are among ``online``."""
        if self._ladder is None:
            return
        if self._group is not None:
            if online is None or not self._group.lost_cpus & online:
                return
            self.close()
        self._forget_counts()
        try:
            self._group = self._ladder.open(self._directory, self._cpus, hardware)
        except KernelError as exc:
            self._missing = dict.fromkeys(EVENT_FIELDS, Unavailable(str(exc)))
        else:
            self._missing = _WITHOUT_PMU

    def take(self, now_s: float, out: Readings) -> bool:
        """Put the readings of ``EVENT_FIELDS`` into ``out`` (and the CPU usage, where no file gave it).

        True if the counters ran for less than the accepted share of the interval.
        """
        if self._group is None:
            out.update(self._missing)
            return False
        counts = self._group.read()
        if counts is self._counts and now_s > self._at_s:
            if self._held is not None:  # nothing has moved for the second time: as the last time
                self._at_s, self._lags = now_s, True
                out.update(self._held)
                if isinstance(out.get("cpu_usage_cores"), Unavailable):
                    out["cpu_usage_cores"] = 0.0
                return False
            self._update(counts, now_s, out)
            self._held = {field: out[field] for field in EVENT_FIELDS}
        else:
            if self._lags:
                self._update(self._counts, self._at_s, {})
            self._update(counts, now_s, out)
            self._held, self._lags = None, False
        # Where no time has passed, growth belongs to the next interval: what comes then is not the same yet.
        self._counts = counts if now_s > self._at_s else {}
        self._at_s = now_s
        return self._group.running_ratio < MIN_RUNNING_RATIO

    def _update(self, counts: Mapping[EventKind, Reading], now_s: float, out: Readings) -> None:
        rates = self._rates
        grown = {
            kind: count if isinstance(count, Unavailable) else rates[kind].update(count, now_s)
            for kind, count in counts.items()
        }
        instructions = grown.get(EventKind.INSTRUCTIONS)
        if instructions is None:
            out["mips"] = out["cpi"] = out["llc_mpki"] = NO_PMU
        else:
            out["mips"] = fmap(_millions, instructions)
            out["cpi"] = ratio(grown.get(EventKind.CYCLES, NO_PMU), instructions, "cycles per instruction")
            misses = grown.get(EventKind.LLC_MISSES, NO_PMU)
            out["llc_mpki"] = fmap(_thousands, ratio(misses, instructions, "misses per instruction"))
        out["context_switches_per_s"] = grown[EventKind.CONTEXT_SWITCHES]
        if isinstance(out.get("cpu_usage_cores"), Unavailable):
            out["cpu_usage_cores"] = fmap(_seconds, grown[EventKind.TASK_CLOCK_NS])

    @property
    def fds(self) -> int:
        """Descriptors held."""
        return 0 if self._group is None else self._group.fds

    def close(self) -> None:
        """Give the descriptors back."""
        if self._group is not None:
            self._group.close()
            self._group = None


def _millions(value: float) -> float:
    return value / 1e6


def _thousands(value: float) -> float:
    return value * 1e3


def _seconds(nanoseconds: float) -> float:
    return nanoseconds / 1e9
