"""A simulated host with cached file contents, which are computed again only after a change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perphd.domain.cpuset import CpuSet
from perphd.domain.reading import Reading
from perphd.host.fs import KernelFile
from perphd.host.perf_event_types import EventGroup, PerfEventKind
from perphd.sim.host import SimHost
from perphd.sim.kernel import SimFs


class Still:
    """The host's files and counters. ``moved``: the host's time or state has changed."""

    def __init__(self, host: SimHost) -> None:
        self._host = host
        self.state = 0
        self.fs = _Files(host, self)
        self.fs.on_write = lambda path, text: self.moved()

    def moved(self) -> None:
        """Discard the cache."""
        self.state += 1

    def opener(self, cgroup_dir: str, cpus: CpuSet, events: Sequence[PerfEventKind]) -> EventGroup:
        """The host's own method; see ``SimPerf``."""
        return _Group(self._host.perf_opener(cgroup_dir, cpus, events), self)


class _Files(SimFs):
    def __init__(self, host: SimHost, still: Still) -> None:
        super().__init__(host.fs.root)
        self._still = still

    def open(self, path: str) -> KernelFile:  # type: ignore[override]
        return _File(super().open(path), self._still)


class _File:
    __slots__ = ("_data", "_file", "_state", "_still")

    def __init__(self, file: KernelFile, still: Still) -> None:
        self._file, self._still = file, still
        self._state, self._data = -1, b""

    def read(self) -> bytes:
        if self._state != self._still.state:
            self._data = self._file.read()
            self._state = self._still.state
        return self._data

    def close(self) -> None:
        self._file.close()


class _Group:
    def __init__(self, group: EventGroup, still: Still) -> None:
        self._group, self._still = group, still
        self._state = -1
        self._counts: Mapping[PerfEventKind, Reading] = {}

    def read(self) -> Mapping[PerfEventKind, Reading]:
        if self._state != self._still.state:
            self._counts = self._group.read()
            self._state = self._still.state
        return self._counts

    @property
    def events(self) -> tuple[PerfEventKind, ...]:
        return self._group.events

    @property
    def starved_cpus(self) -> CpuSet:
        return self._group.starved_cpus

    @property
    def lost_cpus(self) -> CpuSet:
        return self._group.lost_cpus

    @property
    def fds(self) -> int:
        return self._group.fds

    def close(self) -> None:
        self._group.close()
