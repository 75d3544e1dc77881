"""Event counters that somebody states in files, for hosts of which only the files are here (``[host] root``).

``/run/perphd-sim/perf`` followed by a cgroup's directory names a file with one ``EVENT COUNT`` a line: totals that
only grow, under the names of ``EventKind`` in lower case. ``perphd sim mount`` writes them.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from typing import Final

from perphd.domain.cpuset import CpuSet
from perphd.domain.reading import Reading, Unavailable
from perphd.host.fs import KernelFile, KernelFs
from perphd.host.perf_events import EventGroup, EventKind, EventRefused

EVENT_FILES: Final = "/run/perphd-sim/perf"


class EventFiles:
    """An ``EventOpener`` over such files."""

    def __init__(self, fs: KernelFs) -> None:
        self._fs = fs

    def __call__(self, cgroup_dir: str, cpus: CpuSet, events: Sequence[EventKind]) -> EventGroup:
        """Open the counters of a cgroup. Raises Gone where none are stated, EventRefused for events that are not."""
        path = EVENT_FILES + cgroup_dir
        file = self._fs.open(path)
        stated = _counts(file.read())
        missing = next((event for event in events if event not in stated), None)
        if missing is not None:
            file.close()
            advice = f"it states no {missing.name.lower()}"
            raise EventRefused(path, "open", errno.EOPNOTSUPP, missing, advice=advice)
        return _FileGroup(file, tuple(events), stated)


class _FileGroup:
    """Counts since opening. Never multiplexed."""

    def __init__(
        self, file: KernelFile, events: tuple[EventKind, ...], start: Mapping[EventKind, int]
    ) -> None:
        self._file, self._events, self._start = file, events, start

    def read(self) -> Mapping[EventKind, Reading]:
        """Counts since opening. Raises Gone when the file vanished."""
        now = _counts(self._file.read())
        gone = Unavailable("the file no longer states it")
        return {
            event: float(now[event] - self._start[event]) if event in now else gone for event in self._events
        }

    @property
    def events(self) -> tuple[EventKind, ...]:
        """What is counted."""
        return self._events

    @property
    def starved_cpus(self) -> CpuSet:
        """None: nobody else has counters there."""
        return CpuSet()

    @property
    def lost_cpus(self) -> CpuSet:
        """None: the counts are of the whole cgroup."""
        return CpuSet()

    @property
    def fds(self) -> int:
        """One."""
        return 1

    def close(self) -> None:
        """Closing twice is fine."""
        self._file.close()


def counts_text(counts: Mapping[EventKind, float]) -> str:
    """What such a file holds."""
    return "".join(f"{event.name.lower()} {int(count)}\n" for event, count in counts.items())


def _counts(data: bytes) -> dict[EventKind, int]:
    found: dict[EventKind, int] = {}
    for line in data.decode(errors="replace").splitlines():
        name, _, count = line.partition(" ")
        if name.upper() in EventKind.__members__ and count.isdecimal():
            found[EventKind[name.upper()]] = int(count)
    return found
