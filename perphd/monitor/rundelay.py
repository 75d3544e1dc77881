"""Measures the run-queue delay of an LRA's whole cgroup subtree, whose process lists are read at every sample."""

from __future__ import annotations

from typing import Final, Protocol

from perphd.domain.errors import Gone, KernelError
from perphd.domain.reading import Reading, Unavailable
from perphd.host.fs import KernelFile, KernelFs
from perphd.host.schedstat import RunDelay
from perphd.monitor.rates import FIRST_READING, NO_TIME_PASSED

MAX_GROUPS: Final = 64
"""Maximum number of groups of a subtree that are followed. A larger subtree is not a single application."""

ONLY_LRAS: Final = Unavailable("measured for LRAs only")
NOT_USED: Final = Unavailable("run-queue delay is not measured on this host")


class RunDelaySource(Protocol):
    """Growth of run-queue delay of given processes (``perphd.host.schedstat.RunDelayReader``)."""

    def update(self, pids: list[int]) -> None:
        """Set the workload's present processes."""

    def read(self) -> RunDelay | Unavailable:
        """Growth since the previous call."""

    @property
    def fds(self) -> int:
        """Number of open descriptors."""

    def close(self) -> None:
        """Close all descriptors."""


class RunDelayMeter:
    """Converts the growth of a subtree's run-queue delay to waiting time per second."""

    def __init__(self, fs: KernelFs, directory: str, source: RunDelaySource) -> None:
        self._fs, self._directory, self._source = fs, directory, source
        self._lists: dict[str, KernelFile] = {}
        self._read_at_s: float | None = None
        self.find_groups()

    def find_groups(self) -> None:
        """Find groups of the subtree that appeared or vanished. It walks the tree and is called only occasionally."""
        found: list[str] = []
        pending = [self._directory]
        while pending and len(found) < MAX_GROUPS:
            directory = pending.pop()
            found.append(directory)
            try:
                pending += [f"{directory}/{name}" for name in self._fs.subdirectories(directory)]
            except KernelError:
                continue
        for path in self._lists.keys() - set(found):
            self._lists.pop(path).close()
        for path in found:
            if path not in self._lists:
                try:
                    self._lists[path] = self._fs.open(f"{path}/cgroup.procs")
                except KernelError:
                    continue

    def take(self, now_s: float) -> Reading:
        """Seconds waited per second, summed over all threads."""
        pids = self._processes()
        if isinstance(pids, Unavailable):
            return pids
        self._source.update(pids)
        before, self._read_at_s = self._read_at_s, now_s
        waited = self._source.read()
        if isinstance(waited, Unavailable):
            return waited
        if before is None:
            return FIRST_READING
        return waited.delay_ns / 1e9 / (now_s - before) if now_s > before else NO_TIME_PASSED

    def _processes(self) -> list[int] | Unavailable:
        pids: list[int] = []
        for path, file in list(self._lists.items()):
            try:
                data = file.read()
            except Gone:
                self._lists.pop(path).close()
                continue
            except KernelError as exc:
                return Unavailable(str(exc))
            pids += [int(line) for line in data.split() if line.isdigit()]
        if not self._lists:
            return Unavailable(f"{self._directory}/cgroup.procs cannot be read")
        return pids

    @property
    def fds(self) -> int:
        """Number of open descriptors, including those of the source."""
        return len(self._lists) + self._source.fds

    def close(self) -> None:
        """Close all descriptors."""
        for file in self._lists.values():
            file.close()
        self._lists.clear()
        self._source.close()
