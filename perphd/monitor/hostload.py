"""How busy the CPUs for workloads are: what no workload of perphd's accounts for belongs to somebody else."""

from __future__ import annotations

import os

from perphd.domain.cpuset import CpuSet
from perphd.domain.errors import KernelError
from perphd.domain.reading import Reading, Unavailable
from perphd.host.fs import KernelFile, KernelFs

PATH = "/proc/stat"
_IDLE_FIELDS = (3, 4)  # idle, iowait: proc(5)
_GUEST_FIELDS = 8  # guest time is contained in user time already


class HostLoad:
    """How busy the host's CPUs were over the time between two readings, from /proc/stat.

    Args:
        cpus: those that count. CPUs set apart (isolcpus=) are often polled without a pause, which is no load of those
            that workloads are given.
    """

    def __init__(self, fs: KernelFs, cpus: CpuSet) -> None:
        self._fs = fs
        self._lines = frozenset(f"cpu{cpu}".encode() for cpu in cpus)
        self._file: KernelFile | None = None
        self._last: tuple[float, dict[bytes, int]] | None = None
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")

    def read(self, now_s: float) -> Reading:
        """CPUs that were busy since the last call (user, system, interrupts, stolen time), in cores."""
        try:
            if self._file is None:
                self._file = self._fs.open(PATH)
            busy = self._busy(self._file.read())
        except (KernelError, ValueError) as exc:
            return Unavailable(f"{PATH}: {exc}")
        if not busy:
            return Unavailable(f"{PATH}: it has none of the CPUs that workloads may be given")
        before, self._last = self._last, (now_s, busy)
        if before is None or now_s <= before[0]:
            return Unavailable("no interval yet")
        # A CPU that was just switched on brings no earlier reading: it counts from the next interval on.
        ticks = sum(max(0, now - before[1][cpu]) for cpu, now in busy.items() if cpu in before[1])
        return ticks / self._ticks_per_s / (now_s - before[0])

    def _busy(self, text: bytes) -> dict[bytes, int]:
        """Busy ticks since boot by CPU."""
        found: dict[bytes, int] = {}
        for line in text.split(b"\n"):
            if not line.startswith(b"cpu"):
                break  # CPUs come first; the line of all interrupts that follows is long
            name, *ticks = line.split()
            if name in self._lines:
                fields = ticks[:_GUEST_FIELDS]
                found[name] = sum(int(field) for n, field in enumerate(fields) if n not in _IDLE_FIELDS)
        return found

    def close(self) -> None:
        """Give the descriptor back."""
        if self._file is not None:
            self._file.close()
            self._file = None
