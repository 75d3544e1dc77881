"""Run-queue delay of a cgroup: the time that its runnable threads waited for a CPU.

Two sources of the same scheduler figure (``sched_info.run_delay``). Measured for a process of 40 / 250 threads:

* taskstats, per process, ended threads included: 4 / 8 us, no descriptors; needs CAP_NET_ADMIN.
* ``/proc/PID/task/TID/schedstat``, per thread, over kept-open descriptors: 41 / 246 us. What a thread waited
  between the last reading and its end is lost; with churning threads that was four fifths of the whole.

So taskstats is used where it answers, schedstat elsewhere. Neither needs kernel.sched_schedstats.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from perphd.domain.errors import Gone, KernelError
from perphd.domain.reading import Unavailable
from perphd.host.fs import KernelFile, KernelFs

MAX_THREADS: Final = 256
"""Threads followed through schedstat; a larger workload is sampled, since every thread costs a descriptor."""


class ProcessDelays(Protocol):
    """What waits are told by process: the kernel's taskstats (``perphd.host.taskstats``), or a simulated kernel."""

    def run_delay_ns(self, pid: int) -> int:
        """Nanoseconds that all threads of a process, ended ones included, waited for a CPU. Raises KernelError."""


@dataclass(frozen=True, slots=True)
class RunDelay:
    """What was waited since the previous reading.

    ``delay_ns`` is already scaled up when only ``followed`` of ``present`` tasks could be followed; these
    are processes with taskstats and threads with schedstat.
    """

    delay_ns: int
    present: int
    followed: int

    @property
    def sampled(self) -> bool:
        """True if ``delay_ns`` is an estimate from a part of the threads."""
        return self.followed < self.present


class RunDelayReader:
    """Run-queue delay of one workload, as growth between readings.

    Tell it the workload's processes with ``update`` (its caller decides how often), then ``read``. Growth is
    counted per task from the moment it is first seen, so tasks that come or go never make it jump or fall.

    Args:
        fs: where /proc is.
        taskstats: the preferred source, shared by all readers and closed by its owner; None: schedstat.
        max_threads: how many threads schedstat follows.
    """

    def __init__(
        self, fs: KernelFs, taskstats: ProcessDelays | None = None, max_threads: int = MAX_THREADS
    ) -> None:
        self._source: _Processes | _Threads
        self._source = _Threads(fs, max_threads) if taskstats is None else _Processes(taskstats)

    def update(self, pids: Iterable[int]) -> None:
        """Take note of the processes (thread group ids, as in cgroup.procs) that the workload has now."""
        self._source.update(pids)

    def read(self) -> RunDelay | Unavailable:
        """Growth since the previous call (0 for tasks that are new since then).

        Unavailable if the workload has tasks and the kernel tells of none of them, or if every followed one
        has ended since ``update``.
        """
        return self._source.read()

    @property
    def fds(self) -> int:
        """Descriptors held."""
        return self._source.fds

    def close(self) -> None:
        """Give the descriptors back; closing twice is fine."""
        self._source.close()


class _Processes:
    """By taskstats: the last total of each process."""

    fds = 0

    def __init__(self, taskstats: ProcessDelays) -> None:
        self._taskstats = taskstats
        self._last: dict[int, int] = {}

    def update(self, pids: Iterable[int]) -> None:
        now: dict[int, int] = {}
        for pid in pids:
            if pid in self._last:
                now[pid] = self._last[pid]
                continue
            try:
                now[pid] = self._taskstats.run_delay_ns(pid)
            except KernelError:  # ended since it was listed; what else it may be shows in read()
                continue
        self._last = now

    def read(self) -> RunDelay | Unavailable:
        grown = followed = 0
        refusal: KernelError | None = None
        for pid, last in list(self._last.items()):
            try:
                total = self._taskstats.run_delay_ns(pid)
            except Gone:
                del self._last[pid]
                continue
            except KernelError as exc:
                refusal = exc
                continue
            # Less than before: another process with the same pid. Its past is not this interval's.
            grown += max(total - last, 0)
            followed += 1
            self._last[pid] = total
        return _estimated(grown, len(self._last), followed, refusal)

    def close(self) -> None:
        self._last.clear()


class _Threads:
    """By schedstat: an open file and the last value of each followed thread."""

    def __init__(self, fs: KernelFs, limit: int) -> None:
        self._fs, self._limit = fs, limit
        self._files: dict[int, KernelFile] = {}
        self._last: dict[int, int] = {}
        self._listed: dict[int, list[str]] = {}
        self._present = 0
        self._refusal: KernelError | None = None

    @property
    def fds(self) -> int:
        return len(self._files)

    def update(self, pids: Iterable[int]) -> None:
        listed: dict[int, list[str]] = {}
        for pid in pids:
            try:
                listed[pid] = self._fs.listdir(f"/proc/{pid}/task")
            except KernelError:
                continue
        if listed == self._listed and len(self._files) == self._present:
            return  # the same threads, and all of them are followed
        paths: dict[int, str] = {}
        for pid, names in listed.items():
            paths.update(
                (int(name), f"/proc/{pid}/task/{name}/schedstat") for name in names if name.isdecimal()
            )
        for tid in self._files.keys() - paths.keys():
            self._drop(tid)
        self._present = len(paths)
        self._refusal = None
        # Whoever is followed stays; the others come in an order that has nothing to do with age, because
        # the oldest threads of a server are its housekeeping.
        candidates = sorted(paths.keys() - self._files.keys(), key=_scattered)
        for tid in candidates:
            if len(self._files) >= self._limit:
                break
            self._follow(tid, paths[tid])
        self._listed = listed

    def read(self) -> RunDelay | Unavailable:
        grown = 0
        for tid, file in list(self._files.items()):
            try:
                total = _run_delay_ns(file)
            except (KernelError, ValueError):
                self._drop(tid)
                self._present -= 1
                continue
            grown += max(total - self._last[tid], 0)
            self._last[tid] = total
        return _estimated(grown, self._present, len(self._files), self._refusal)

    def close(self) -> None:
        for tid in list(self._files):
            self._drop(tid)

    def _follow(self, tid: int, path: str) -> None:
        try:
            file = self._fs.open(path)
        except Gone:
            self._present -= 1
            return
        except KernelError as exc:
            self._refusal = exc
            return
        try:
            self._last[tid] = _run_delay_ns(file)
        except (KernelError, ValueError):
            file.close()
            self._present -= 1
            return
        self._files[tid] = file

    def _drop(self, tid: int) -> None:
        self._files.pop(tid).close()
        del self._last[tid]
        self._listed = {}  # whoever comes next under this number is another one


def _run_delay_ns(file: KernelFile) -> int:
    """The second of schedstat's three numbers. Raises ValueError for any other content."""
    _, delay, _ = file.read().split()
    return int(delay)


def _scattered(tid: int) -> int:
    """A fixed, order-destroying key (Knuth's multiplicative hash)."""
    return tid * 2654435761 % (1 << 32)


def _estimated(
    grown: int, present: int, followed: int, refusal: KernelError | None
) -> RunDelay | Unavailable:
    if present > 0 and followed == 0:
        ended = "every followed thread has ended since the workload was last looked through"
        return Unavailable(ended if refusal is None else str(refusal))
    return RunDelay(grown * present // followed if followed else grown, present, followed)
