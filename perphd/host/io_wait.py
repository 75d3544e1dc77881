"""Splits the time of processes' threads by activity: running, waiting for block devices or remote storage.

CPU time comes from the kernel's counters, and so does the wait for block devices if ``kernel.task_delayacct``
is on. Everything else is sampled: the state of each thread and, for sleeping threads, the kernel function or
connection that they wait for.

A sample taken from a thread's own CPU does not see short waits: the wait ends while the watcher wakes, and the thread
then waits for the watcher's CPU, in state R. (A writer spent 67 % of its time waiting for a disk that answers
within 60 us. It was seen to wait in 2 of 40 such samples, and in 54 of 80 samples from another CPU.) The
watcher therefore moves from CPU to CPU. Samples from a thread's own CPU count only if there are no others.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from perphd.domain.io_path import TimeSplit
from perphd.domain.reading import Reading, Unavailable
from perphd.host.fs import KernelFs, text_or_empty
from perphd.host.process_stat import BLOCK_TICKS, PROCESSOR, STATE, SYSTEM_TICKS, USER_TICKS, stat_fields

MOST_THREADS: Final = 256
"""Maximum number of threads sampled (the first that are listed); each takes about 40 us per sample."""
LOOKS_PER_S: Final = 20
DELAY_ACCOUNTING: Final = "/proc/sys/kernel/task_delayacct"
_NETWORK_WAIT: Final = re.compile(
    r"nfs|rpc_|cifs|smb|ceph|p9_|v9fs|fuse|request_wait_answer|virtio_fs|sk_wait|tcp_|inet_wait|ocfs2|gfs2"
)
"""Kernel functions in which a thread waits for a server, or for a user-space file system."""
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_WITH_DESCRIPTOR: Final = frozenset({0, 1, 17, 18, 19, 20, 44, 45, 46, 47, 295, 296, 299, 307, 327, 328})
"""x86-64 system calls whose first argument is the descriptor that is read or written."""
_ON_ARM64: Final = frozenset({63, 64, 65, 66, 67, 68, 69, 70, 206, 207, 211, 212, 243, 269, 286, 287})


def split(
    fs: KernelFs,
    readlink: Callable[[str], str],
    threads: Callable[[], Sequence[tuple[int, int]]],
    sockets: frozenset[str],
    seconds: float,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> TimeSplit:
    """Watch threads for some seconds and split their time by activity.

    Args:
        fs: the host.
        readlink: reads a symbolic link of that host.
        threads: returns (process, thread) ids at the moment of the call.
        sockets: inodes of connections to storage.
        seconds: duration.
        sleep: waits for a number of seconds.
        clock: monotonic seconds.
    """
    counted = _is_counted(fs)
    calls = _ON_ARM64 if os.uname().machine == "aarch64" else _WITH_DESCRIPTOR
    began = clock()
    first = {each: _times(fs, *each) for each in threads()[:MOST_THREADS]}
    looks = 0
    seen: defaultdict[tuple[int, int], tuple[Counter[str], Counter[str]]]
    seen = defaultdict(lambda: (Counter(), Counter()))
    with _from_cpu_to_cpu() as move:
        while clock() - began < seconds:
            own = move(looks)
            for each in threads()[:MOST_THREADS]:
                cpu_of, where = _waits_for(fs, readlink, *each, sockets, calls)
                seen[each][cpu_of == own][where] += 1
            looks += 1
            sleep(max(0.0, began + looks / LOOKS_PER_S - clock()))
    passed = max(clock() - began, 1e-9)
    cpu = block = 0.0
    for each, before in first.items():
        after = _times(fs, *each)
        if before is not None and after is not None:
            cpu += (after[0] - before[0]) / passed
            block += (after[1] - before[1]) / passed
    return TimeSplit(
        passed,
        cpu=cpu,
        block=block if counted else _sampled(seen.values(), "block", looks),
        network=_sampled(seen.values(), "network", looks),
        block_source="delay accounting" if counted else f"sampled {LOOKS_PER_S} times a second",
    )


def _sampled(seen: Iterable[tuple[Counter[str], Counter[str]]], where: str, looks: int) -> Reading:
    """Average number of threads that waited at ``where``.

    ``seen``: counts of samples from other CPUs, and from the same CPU.
    """
    if not looks:
        return Unavailable("no sample was taken")
    threads = 0.0
    for apart, beside in seen:
        told = apart if apart else beside
        present = (apart.total() + beside.total()) / looks
        threads += present * told[where] / told.total()
    return threads


@contextmanager
def _from_cpu_to_cpu() -> Iterator[Callable[[int], int]]:
    """Yield a function that moves this thread to the next CPU and returns its number; -1 if it may not be moved."""
    cpus = sorted(os.sched_getaffinity(0))

    def move(look: int) -> int:
        cpu = cpus[look % len(cpus)]
        try:
            os.sched_setaffinity(0, {cpu})
        except OSError:
            return -1
        return cpu

    try:
        yield move
    finally:
        with suppress(OSError):
            os.sched_setaffinity(0, cpus)


def _is_counted(fs: KernelFs) -> bool:
    return text_or_empty(fs, DELAY_ACCOUNTING).strip() == "1"


def _times(fs: KernelFs, pid: int, tid: int) -> tuple[float, float] | None:
    """Seconds of CPU time and of waiting for block devices since the thread began; None if it has ended."""
    words = stat_fields(fs, pid, tid)
    try:
        used = int(words[USER_TICKS]) + int(words[SYSTEM_TICKS])
        return used / _TICKS_PER_S, int(words[BLOCK_TICKS]) / _TICKS_PER_S
    except (IndexError, ValueError):
        return None


def _waits_for(
    fs: KernelFs,
    readlink: Callable[[str], str],
    pid: int,
    tid: int,
    sockets: frozenset[str],
    calls: frozenset[int],
) -> tuple[int | None, str]:
    """The CPU on which a thread runs or ran last, and its kind of wait; None and empty if it has ended."""
    words = stat_fields(fs, pid, tid)
    if len(words) <= PROCESSOR:
        return None, ""
    return int(words[PROCESSOR]), _place(fs, readlink, words[STATE], pid, tid, sockets, calls)


def _place(
    fs: KernelFs,
    readlink: Callable[[str], str],
    state: str,
    pid: int,
    tid: int,
    sockets: frozenset[str],
    calls: frozenset[int],
) -> str:
    """``block`` or ``network``; empty if a thread in this state runs or waits for something else."""
    channel = text_or_empty(fs, f"/proc/{pid}/task/{tid}/wchan") if state in ("D", "S") else ""
    if state == "D":
        return "network" if _NETWORK_WAIT.search(channel) else "block"
    if state != "S":
        return ""
    if re.match(r"fuse|request_wait_answer|nfs|rpc_wait|ceph|p9_", channel):
        return "network"
    if not sockets:
        return ""
    call = text_or_empty(fs, f"/proc/{pid}/task/{tid}/syscall").split()
    try:
        if len(call) < 2 or int(call[0]) not in calls:
            return ""
        target = readlink(f"/proc/{pid}/fd/{int(call[1], 16)}")
    except (ValueError, OSError):
        return ""
    return "network" if target.startswith("socket:[") and target[8:-1] in sockets else ""
