"""Elements of a cgroup v2 tree: controllers, kernel features, and descriptions of controllers' files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from perphd.sim.kernel.vfs import Reader, Writer

CONTROLLERS: Final = ("cpuset", "cpu", "io", "memory", "pids")
"""Controllers in the kernel's order (hugetlb, rdma and misc are not built in)."""
THREADED: Final = frozenset({"cpuset", "cpu", "pids"})
"""Controllers that a threaded group may have."""
DISK: Final = "254:0"
"""Device number of the one disk."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """The simulated kernel.

    Args:
        version: (6, 1) as captured from Debian 12, or (6, 12) from Debian 13 with its differences: the value of
            ``cpu.weight`` while idle, short PSI windows, resettable ``memory.peak``, ``nice_usec``.
        io_latency: built with CONFIG_BLK_CGROUP_IOLATENCY (unlike Debian's): ``io.latency`` exists.
    """

    version: tuple[int, int] = (6, 1)
    io_latency: bool = False

    @property
    def is_6_12(self) -> bool:
        """True for Linux 6.12 and later."""
        return self.version >= (6, 12)


@dataclass(frozen=True, slots=True)
class FileSpec:
    """One file of a controller: its name, content and the effect of a write."""

    name: str
    read: Reader | None
    write: Writer | None = None
    per_open: Callable[[], Writer] | None = None


def ignoring_empty(write: Writer) -> Writer:
    """A writer that ignores zero-length writes, as cgroupfs does for any writable file."""

    def taken(data: bytes) -> None:
        if data:
            write(data)

    return taken
