"""Measures the run-queue delay of a cgroup: the time that its runnable threads waited for a CPU.

Two sources give the same scheduler figure (``sched_info.run_delay``). Their cost per reading of a process
with 40 / 250 threads:

* taskstats, per process, including ended threads: 4 / 8 us, no descriptors; needs CAP_NET_ADMIN.
* ``/proc/PID/task/TID/schedstat``, per thread, over kept-open descriptors: 41 / 246 us. The wait of a thread
  between the last reading and its end is lost; with short-lived threads that was four fifths of the total.

taskstats is used where available, else schedstat. Neither needs kernel.sched_schedstats.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from perphd.domain.errors import Gone, KernelError
from perphd.domain.reading import Unavailable
from perphd.host.fs import KernelFile, KernelFs

MAX_THREADS: Final = 256
"""Maximum number of threads that schedstat follows, since each costs a descriptor; more threads are sampled."""


class ProcessDelays(Protocol):
    """Waiting times by process: the kernel's taskstats (``perphd.host.taskstats``), or a simulated kernel."""

    def run_delay_ns(self, pid: int) -> int:
        """Nanoseconds that all threads of a process, ended ones included, waited for a CPU. Raises KernelError."""


@dataclass(frozen=True, slots=True)
class RunDelay:
    """Waiting time since the previous reading.

    ``delay_ns`` is already scaled up if only ``followed`` of ``present`` tasks could be followed. Tasks are
    processes with taskstats, threads with schedstat.
    """

    delay_ns: int
    present: int
    followed: int

    @property
    def sampled(self) -> bool:
        """True if ``delay_ns`` is extrapolated from a part of the tasks."""
        return self.followed < self.present


class RunDelayReader:
    """Run-queue delay of one workload, as growth between readings.

    Call ``update`` with the workload's processes, then ``read``. Growth is counted per task from its first
    reading, so that tasks that start or end cause no jumps.

    Args:
        fs: the file system with /proc.
        taskstats: the preferred source, shared by all readers and closed by its owner; None: use schedstat.
        max_threads: maximum number of threads that schedstat follows.
    """

    def __init__(
        self, fs: KernelFs, taskstats: ProcessDelays | None = None, max_threads: int = MAX_THREADS
    ) -> None:
        self._source: _Processes | _Threads
        self._source = _Threads(fs, max_threads) if taskstats is None else _Processes(taskstats)

    def update(self, pids: Iterable[int]) -> None:
        """Set the workload's present processes (thread group ids, as in cgroup.procs)."""
        self._source.update(pids)

    def read(self) -> RunDelay | Unavailable:
        """Growth since the previous call (0 for new tasks).

        Unavailable if no task can be read, or if all followed tasks have ended since ``update``.
        """
        return self._source.read()

    @property
    def fds(self) -> int:
        """Number of open descriptors."""
        return self._source.fds

    def close(self) -> None:
        """Close all descriptors; closing twice is allowed."""
        self._source.close()


class _Processes:
    """Growth through taskstats. Keeps the last total of each process."""

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
            except KernelError:  # ended since it was listed; read() reports other errors
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
            # A decrease means another process with the same id, whose past does not count.
            grown += max(total - last, 0)
            followed += 1
            self._last[pid] = total
        return _estimated(grown, len(self._last), followed, refusal)

    def close(self) -> None:
        self._last.clear()


class _Threads:
    """Growth through schedstat. Keeps an open file and the last value of each followed thread."""

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
            return  # the same threads, all followed
        paths: dict[int, str] = {}
        for pid, names in listed.items():
            paths.update(
                (int(name), f"/proc/{pid}/task/{name}/schedstat") for name in names if name.isdecimal()
            )
        for tid in self._files.keys() - paths.keys():
            self._drop(tid)
        self._present = len(paths)
        self._refusal = None
        # Followed threads stay. Others are added in an order independent of age, because a server's oldest
        # threads do only housekeeping.
        candidates = sorted(paths.keys() - self._files.keys(), key=_scatter_key)
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
        self._listed = {}  # a later thread with this id is another one


def _run_delay_ns(file: KernelFile) -> int:
    """The second of schedstat's three numbers. Raises ValueError for any other content."""
    _, delay, _ = file.read().split()
    return int(delay)


def _scatter_key(tid: int) -> int:
    """A sort key that scatters thread ids (Knuth's multiplicative hash)."""
    return tid * 2654435761 % (1 << 32)


def _estimated(
    grown: int, present: int, followed: int, refusal: KernelError | None
) -> RunDelay | Unavailable:
    if present > 0 and followed == 0:
        ended = "all followed threads have ended since threads were last listed"
        return Unavailable(ended if refusal is None else str(refusal))
    return RunDelay(grown * present // followed if followed else grown, present, followed)
