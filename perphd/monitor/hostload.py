"""Measures the utilisation of the CPUs available to workloads, from /proc/stat."""

from __future__ import annotations

import os

from perphd.domain.cpuset import CpuSet
from perphd.domain.errors import KernelError
from perphd.domain.reading import Reading, Unavailable
from perphd.host.fs import KernelFile, KernelFs
from perphd.monitor.host_cpu import CpuTimes

PATH = "/proc/stat"
_FIELDS = 8  # user nice system idle iowait irq softirq steal: proc(5); user time already includes guest time


class HostLoad:
    """Utilisation of the host's CPUs between two readings, from /proc/stat.

    Args:
        cpus: the CPUs to count. Isolated CPUs (isolcpus=) are often polled permanently, which does not load the
            CPUs available to workloads.
    """

    def __init__(self, fs: KernelFs, cpus: CpuSet) -> None:
        self._fs = fs
        self._lines = frozenset(f"cpu{cpu}".encode() for cpu in cpus)
        self._file: KernelFile | None = None
        self._last: tuple[float, dict[bytes, list[int]]] | None = None
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")
        self.times: CpuTimes | None = None
        """CPU times of the last interval; None if ``read`` gave no number."""

    def read(self, now_s: float) -> Reading:
        """CPUs busy since the last call (user, system, interrupts, stolen time), in cores."""
        self.times = None
        try:
            if self._file is None:
                self._file = self._fs.open(PATH)
            seen = self._ticks(self._file.read())
        except (KernelError, ValueError) as exc:
            return Unavailable(f"{PATH}: {exc}")
        if not seen:
            return Unavailable(f"{PATH}: none of the CPUs available to workloads is listed")
        before, self._last = self._last, (now_s, seen)
        if before is None or now_s <= before[0]:
            return Unavailable("no interval yet")
        # A CPU that just came online has no earlier reading: it counts from the next interval on.
        both = [(now, then) for cpu, now in seen.items() if (then := before[1].get(cpu)) is not None]
        sums = [sum(max(0, now[n] - then[n]) for now, then in both) for n in range(_FIELDS)]
        user, nice, system, idle, iowait, irq, softirq, steal = sums
        self.times = CpuTimes(len(seen), user + nice + system, irq + softirq, steal, idle + iowait)
        busy = user + nice + system + irq + softirq + steal
        return busy / self._ticks_per_s / (now_s - before[0])

    def _ticks(self, text: bytes) -> dict[bytes, list[int]]:
        """Ticks since boot by CPU, in the order of the fields of /proc/stat."""
        found: dict[bytes, list[int]] = {}
        for line in text.split(b"\n"):
            if not line.startswith(b"cpu"):
                break  # The CPUs' lines come first; the line of interrupts after them is long.
            name, *ticks = line.split(None, _FIELDS + 1)
            if name in self._lines:
                fields = [int(field) for field in ticks[:_FIELDS]]
                found[name] = fields + [0] * (_FIELDS - len(fields))
        return found

    def close(self) -> None:
        """Close the descriptor."""
        if self._file is not None:
            self._file.close()
            self._file = None
