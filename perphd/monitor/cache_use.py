"""Measures cache occupancy and memory bandwidth of workloads, with the resctrl groups that count them.

The files of all groups stay open (``rdt.Monitor``). A workload that moves to another group, or whose group
gets many new threads, has no rate for that interval, because the counters before and after cover different
threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import rdt
from perphd.domain.reading import Reading, Unavailable
from perphd.domain.sample import DomainUse
from perphd.host.resctrl_counters import NOTHING_COUNTED, CountedGroups, Counter
from rdt.monitor import OCCUPANCY, TOTAL
from rdt.reading import Why

CACHE_FIELDS: Final = ("llc_occupancy_bytes", "mbw_bytes_per_s")
_NO_DOMAIN: Final = Unavailable("no cache domain with this workload's counters is online")


@dataclass(frozen=True, slots=True)
class CacheReading:
    """One workload's use of the last-level caches, in total and by domain."""

    occupancy_bytes: Reading
    bandwidth_bytes_per_s: Reading
    domains: tuple[DomainUse, ...] = ()


class CacheUse:
    """Reads the counters of all workloads at once; holds files open until ``close``.

    Args:
        clock: monotonic seconds at the moment of reading; None: use the time passed to ``read``.
    """

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock
        self._now_s = 0.0
        self._counted: CountedGroups = NOTHING_COUNTED
        self._monitor: rdt.Monitor | None = None
        self._watched: dict[str, Counter] = {}
        self._reasons: dict[tuple[str, int | None], Unavailable] = {}

    def read(self, now_s: float, counted: CountedGroups) -> Mapping[str, CacheReading]:
        """The readings of every workload that has a counter. Never raises."""
        self._now_s = now_s
        self._follow(counted)
        if self._monitor is None:
            return {}
        readings = self._monitor.read()
        return {name: self._summed(readings[counter.group]) for name, counter in self._watched.items()}

    @property
    def open_fds(self) -> int:
        """Number of open descriptors."""
        return 0 if self._monitor is None else self._monitor.open_files

    def close(self) -> None:
        """Close all descriptors."""
        if self._monitor is not None:
            self._monitor.close()
        self._monitor = None
        self._watched.clear()
        self._counted = NOTHING_COUNTED

    def _follow(self, counted: CountedGroups) -> None:
        """Open and close files to read exactly these groups."""
        before, self._counted = self._counted, counted
        if counted is before:
            return
        if counted.resctrl is not before.resctrl or counted.epoch != before.epoch:
            self.close()
            self._counted = counted
        if self._monitor is None:
            if counted.resctrl is None or not counted.counters:
                return
            self._monitor = rdt.Monitor(
                counted.resctrl.access, counted.resctrl.info, clock=self._time_s, events=(OCCUPANCY, TOTAL)
            )
        for name, counter in list(self._watched.items()):
            if counted.counters.get(name) != counter:
                self._monitor.unwatch(counter.group)
                del self._watched[name]
        for name, counter in counted.counters.items():
            if name not in self._watched:
                self._monitor.watch(counter.group)
                self._watched[name] = counter

    def _time_s(self) -> float:
        return self._now_s if self._clock is None else self._clock()

    def _summed(self, reading: rdt.GroupReading) -> CacheReading:
        """Sums over online domains. In offline domains no thread runs and none occupies cache."""
        occupancy: Reading = 0.0
        bandwidth: Reading = 0.0
        domains: list[DomainUse] = []
        for number, each in reading.domains.items():
            held, moved = each.occupancy_bytes, each.total_bytes_per_s
            if isinstance(held, rdt.Unavailable) and held.why is Why.OFFLINE:
                continue
            use = DomainUse(number, self._plain(held), self._plain(moved))
            domains.append(use)
            occupancy = self._added(occupancy, held, number)
            bandwidth = self._added(bandwidth, moved, number)
        if not domains:
            return CacheReading(_NO_DOMAIN, _NO_DOMAIN)
        return CacheReading(occupancy, bandwidth, tuple(domains))

    def _added(self, total: Reading, part: rdt.Reading, domain: int) -> Reading:
        if isinstance(total, Unavailable):
            return total
        return self._plain(part, domain) if isinstance(part, rdt.Unavailable) else total + part

    def _plain(self, reading: rdt.Reading, domain: int | None = None) -> Reading:
        """Convert a reading of ``rdt`` to one of perphd.

        Equal reasons become the same object, because the store compares reasons at every sample.
        """
        if not isinstance(reading, rdt.Unavailable):
            return float(reading)
        key = (reading.reason, domain)
        if key not in self._reasons:
            if len(self._reasons) > _MOST_REASONS:
                self._reasons.clear()
            text = reading.reason if domain is None else f"domain {domain}: {reading.reason}"
            self._reasons[key] = Unavailable(text)
        return self._reasons[key]


_MOST_REASONS: Final = 100
