"""What a cgroup v2 tree is made of: controllers, kernel features, and how a controller states its files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from perphd.sim.kernel.vfs import Reader, Writer

CONTROLLERS: Final = ("cpuset", "cpu", "io", "memory", "pids")
"""In the order in which the kernel lists them (hugetlb, rdma and misc are not built in)."""
THREADED: Final = frozenset({"cpuset", "cpu", "pids"})
"""Controllers that a threaded group may have."""
DISK: Final = "254:0"
"""Device number of the one disk."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """The kernel that is simulated.

    Args:
        version: (6, 1) as captured from Debian 12, or (6, 12) from Debian 13 with its differences: what
            ``cpu.weight`` reads while idle, short PSI windows, ``memory.peak`` that can be reset, ``nice_usec``.
        io_latency: built with CONFIG_BLK_CGROUP_IOLATENCY (Debian's are not): ``io.latency`` is there.
    """

    version: tuple[int, int] = (6, 1)
    io_latency: bool = False

    @property
    def is_6_12(self) -> bool:
        """At least 6.12."""
        return self.version >= (6, 12)


@dataclass(frozen=True, slots=True)
class FileSpec:
    """One file of a controller: its name, what it reads and what a write does."""

    name: str
    read: Reader | None
    write: Writer | None = None
    per_open: Callable[[], Writer] | None = None


def ignoring_empty(write: Writer) -> Writer:
    """Cgroupfs takes a zero-length write of any file that can be written, and does nothing."""

    def taken(data: bytes) -> None:
        if data:
            write(data)

    return taken
