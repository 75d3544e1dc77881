"""Reads event counters from files, on hosts where only files are available (``[tuning.host] root``).

A cgroup's file is ``/run/perphd-sim/perf`` followed by the cgroup's directory. It has one ``EVENT COUNT`` per
line: growing totals, with the names of ``PerfEventKind`` in lower case. ``perphd sim mount`` writes the
files.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from typing import Final

from perphd.domain.cpuset import CpuSet
from perphd.domain.reading import Reading, Unavailable
from perphd.host.fs import KernelFile, KernelFs
from perphd.host.perf_event_types import EventGroup, EventRefused, PerfEventKind

EVENT_FILES: Final = "/run/perphd-sim/perf"


class EventFiles:
    """An ``EventOpener`` that reads counter files."""

    def __init__(self, fs: KernelFs) -> None:
        self._fs = fs

    def __call__(self, cgroup_dir: str, cpus: CpuSet, events: Sequence[PerfEventKind]) -> EventGroup:
        """Open the counters of a cgroup. Raises Gone if it has no file, EventRefused for events missing from it."""
        path = EVENT_FILES + cgroup_dir
        file = self._fs.open(path)
        stated = _counts(file.read())
        missing = next((event for event in events if event not in stated), None)
        if missing is not None:
            file.close()
            advice = f"it has no {missing.name.lower()}"
            raise EventRefused(path, "open", errno.EOPNOTSUPP, missing, advice=advice)
        return _FileGroup(file, tuple(events), stated)


class _FileGroup:
    """Counts since opening. Never multiplexed."""

    def __init__(
        self, file: KernelFile, events: tuple[PerfEventKind, ...], start: Mapping[PerfEventKind, int]
    ) -> None:
        self._file, self._events, self._start = file, events, start

    def read(self) -> Mapping[PerfEventKind, Reading]:
        """Counts since opening. Raises Gone when the file vanished."""
        now = _counts(self._file.read())
        gone = Unavailable("the file no longer has this event")
        return {
            event: float(now[event] - self._start[event]) if event in now else gone for event in self._events
        }

    @property
    def events(self) -> tuple[PerfEventKind, ...]:
        """The events that are counted."""
        return self._events

    @property
    def starved_cpus(self) -> CpuSet:
        """Always empty, because counters are not shared."""
        return CpuSet()

    @property
    def lost_cpus(self) -> CpuSet:
        """Always empty, because the counts cover the whole cgroup."""
        return CpuSet()

    @property
    def fds(self) -> int:
        """Number of open descriptors."""
        return 1

    def close(self) -> None:
        """Close the file; closing twice is allowed."""
        self._file.close()


def counts_text(counts: Mapping[PerfEventKind, float]) -> str:
    """The text of a counter file."""
    return "".join(f"{event.name.lower()} {int(count)}\n" for event, count in counts.items())


def _counts(data: bytes) -> dict[PerfEventKind, int]:
    found: dict[PerfEventKind, int] = {}
    for line in data.decode(errors="replace").splitlines():
        name, _, count = line.partition(" ")
        if name.upper() in PerfEventKind.__members__ and count.isdecimal():
            found[PerfEventKind[name.upper()]] = int(count)
    return found
