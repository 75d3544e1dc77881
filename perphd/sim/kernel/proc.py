"""Adds the files of /proc about the whole host: processor time, load, mounts, the boot.

Files that ``perphd.sim.machine`` has created are kept.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from perphd.sim.kernel.cgroup2 import CgroupTree
from perphd.sim.kernel.vfs import DEVICE, Directory

_TICKS_PER_S: Final = 100


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of the mount table."""

    source: str
    path: str
    kind: str
    options: str

    def __str__(self) -> str:
        return f"{self.source} {self.path} {self.kind} {self.options} 0 0\n"


BASE_MOUNTS: Final = (
    Mount("proc", "/proc", "proc", "rw,nosuid,nodev,noexec,relatime"),
    Mount("sysfs", "/sys", "sysfs", "rw,nosuid,nodev,noexec,relatime"),
)


def cgroup2_mount(path: str) -> Mount:
    """The unified hierarchy as systemd mounts it."""
    options = "rw,nosuid,nodev,noexec,relatime,nsdelegate,memory_recursiveprot"
    return Mount("cgroup2", path, "cgroup2", options)


def set_mounts(root: Directory, mounts: Sequence[Mount], more: str = "") -> None:
    """Write the mount table to /proc/mounts and /proc/self/mounts; ``more``: further lines."""
    text = "".join(str(mount) for mount in mounts) + more
    root.make("/proc").add("mounts", text)
    root.make("/proc/self").add("mounts", text)


def add_locks(root: Directory, lockable: Sequence[Directory]) -> None:
    """Add /proc/locks with the flock(2) locks on these directories, in the order in which they were taken."""

    def show() -> str:
        lines: list[str] = []
        for place in lockable:
            for held in place.flocks:
                kind = "WRITE" if held.exclusive else "READ "
                where = f"{DEVICE >> 8:02x}:{DEVICE & 0xFF:02x}:{place.inode}"
                lines.append(f"{len(lines) + 1}: FLOCK  ADVISORY  {kind} {held.pid} {where} 0 EOF\n")
        return "".join(lines)

    root.make("/proc").add("locks", show)


@contextmanager
def foreign_lock(
    root: Directory, place: Directory, *, exclusive: bool = True, pid: int = 4711, comm: str = "flock"
) -> Iterator[int]:
    """Let another process ``pid`` hold flock(2) on ``place`` during the block. Raises BlockingIOError if it cannot.

    The lock prevents no reads, writes, creations or removals. It only keeps others from taking the lock, and
    the open directory prevents unmounting.
    """
    if not place.try_lock(exclusive=exclusive, pid=pid):
        raise BlockingIOError(f"the lock is held by {place.flocks}")
    proc = root.make("/proc")
    process = proc.make(str(pid))
    process.add("comm", f"{comm}\n")
    process.add("status", f"Name:\t{comm}\nPid:\t{pid}\nUid:\t65534\t65534\t65534\t65534\n")
    try:
        yield pid
    finally:
        place.unlock(exclusive=exclusive, pid=pid)
        proc.remove(str(pid))


def add_cpu_times(root: Directory, tree: CgroupTree, clock: Callable[[], float]) -> None:
    """Add /proc/stat, the CPU time of all CPUs since boot. ``clock``: seconds since boot."""
    proc = root.make("/proc")
    if "stat" not in proc.children:
        proc.add("stat", lambda: _stat(tree, clock()))


def add_host_files(root: Directory, tree: CgroupTree, clock: Callable[[], float]) -> None:
    """Add /proc/stat and other files about the whole host. ``clock``: seconds since its boot."""
    add_cpu_times(root, tree, clock)
    proc = root.make("/proc")
    missing = {
        "uptime": lambda: f"{clock():.2f} {max(0.0, _idle_s(tree, clock())):.2f}\n",
        "loadavg": lambda: "0.00 0.00 0.00 1/1 1\n",
    }
    for name, read in missing.items():
        if name not in proc.children:
            proc.add(name, read)
    boot = proc.make("sys/kernel/random")
    if "boot_id" not in boot.children:
        boot.add("boot_id", f"{uuid.uuid4()}\n")


def _idle_s(tree: CgroupTree, now_s: float) -> float:
    return now_s * len(tree.online) - tree.root.cpu.usage_s


def _stat(tree: CgroupTree, now_s: float) -> str:
    # The workloads' use is spread evenly, because the model has no individual CPUs.
    count = len(tree.online)
    system = int(tree.root.cpu.system_s * _TICKS_PER_S)
    user = int(tree.root.cpu.usage_s * _TICKS_PER_S) - system
    idle = max(0, int(_idle_s(tree, now_s) * _TICKS_PER_S))
    lines = [f"cpu  {user} 0 {system} {idle} 0 0 0 0 0 0\n"]
    for nth, cpu in enumerate(tree.online):
        shares = (_share(ticks, nth, count) for ticks in (user, system, idle))
        lines.append("cpu{} {} 0 {} {} 0 0 0 0 0 0\n".format(cpu, *shares))
    lines.append(f"intr 0\nctxt {int(tree.root.perf.switches)}\nbtime 0\n")
    return "".join(lines)


def _share(ticks: int, nth: int, count: int) -> int:
    return ticks // count + (1 if nth < ticks % count else 0)
