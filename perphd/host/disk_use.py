"""Reads the use of disks by device: busy time of each disk, and bytes moved by individual control groups.

Only whole disks count (/proc/diskstats, Documentation/admin-guide/iostats.rst), because partitions, loop devices and
device mappers repeat them. Control groups: ``io.stat`` on v2, ``blkio.throttle.io_service_bytes_recursive`` on v1. On
v1, delayed writes from memory count for the root group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from perphd.domain.errors import KernelError
from perphd.host.cgroup.hierarchy import Hierarchies
from perphd.host.fs import KernelFs

_SECTOR: Final = 512
_IGNORED: Final = ("ram", "zram", "loop", "dm-", "md")
"""Names of block devices in memory, in files, or composed of other disks."""


@dataclass(frozen=True, slots=True)
class DiskCounters:
    """Milliseconds for which one disk was busy since boot, and bytes moved."""

    busy_ms: int
    moved_bytes: int


def read_disks(fs: KernelFs) -> dict[str, DiskCounters]:
    """Counters by ``MAJOR:MINOR`` of whole disks.

    Raises:
        KernelError: the kernel does not report them.
        ValueError: a line cannot be understood.
    """
    names = {name for name in fs.listdir("/sys/block") if not name.startswith(_IGNORED)}
    found = {}
    for line in fs.read("/proc/diskstats").decode("ascii", "replace").splitlines():
        fields = line.split()
        if len(fields) > 12 and fields[2] in names:
            moved = _SECTOR * (int(fields[5]) + int(fields[9]))
            found[f"{fields[0]}:{fields[1]}"] = DiskCounters(int(fields[12]), moved)
    return found


def disk_counters(fs: KernelFs) -> dict[str, DiskCounters]:
    """Counters by disk (``MAJOR:MINOR``); empty if the kernel does not report them."""
    try:
        return read_disks(fs)
    except (KernelError, ValueError):
        return {}


def group_bytes(fs: KernelFs, hierarchies: Hierarchies, cgroup: str) -> dict[str, int]:
    """Bytes that a group has read and written, by disk (``MAJOR:MINOR``); empty if they are not counted."""
    hierarchy = hierarchies.of("io") or hierarchies.of("blkio")
    if hierarchy is None:
        return {}
    v2 = hierarchy.version == 2
    file = "io.stat" if v2 else "blkio.throttle.io_service_bytes_recursive"
    try:
        lines = fs.read(hierarchy.path(cgroup, file)).decode("ascii", "replace").splitlines()
    except KernelError:
        return {}
    found: dict[str, int] = {}
    for line in lines:
        device, *rest = line.split()
        if v2:
            # Linux 5.15 lists disks without I/O in front of the next disk's line: "8:16 8:0 rbytes=1 wbytes=2".
            device = next((each for each in reversed(rest) if "=" not in each), device)
            pairs = (each.partition("=") for each in rest)
            counts = [int(value) for name, _, value in pairs if name in ("rbytes", "wbytes")]
        else:
            counts = [int(rest[1])] if len(rest) == 2 and rest[0] in ("Read", "Write") else []
        if counts:
            found[device] = found.get(device, 0) + sum(counts)
    return found
