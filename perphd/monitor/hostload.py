"""How much CPU the whole host uses: what no workload of perphd's accounts for belongs to somebody else."""

from __future__ import annotations

import os

from perphd.domain.errors import KernelError
from perphd.domain.reading import Reading, Unavailable
from perphd.host.fs import KernelFile, KernelFs

PATH = "/proc/stat"
_IDLE_FIELDS = (3, 4)  # idle, iowait: proc(5)
_GUEST_FIELDS = 8  # guest time is contained in user time already


class HostLoad:
    """Busy CPUs over the time between two readings, from /proc/stat."""

    def __init__(self, fs: KernelFs) -> None:
        self._fs = fs
        self._file: KernelFile | None = None
        self._last: tuple[float, int] | None = None
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")

    def read(self, now_s: float) -> Reading:
        """CPUs that were busy since the last call (user, system, interrupts, stolen time), in cores."""
        try:
            if self._file is None:
                self._file = self._fs.open(PATH)
            first = self._file.read().split(b"\n", 1)[0].split()
            busy = sum(
                int(ticks)
                for place, ticks in enumerate(first[1 : _GUEST_FIELDS + 1])
                if place not in _IDLE_FIELDS
            )
        except (KernelError, ValueError) as exc:
            return Unavailable(f"{PATH}: {exc}")
        before, self._last = self._last, (now_s, busy)
        if before is None or now_s <= before[0]:
            return Unavailable("no interval yet")
        return max(0, busy - before[1]) / self._ticks_per_s / (now_s - before[0])

    def close(self) -> None:
        """Give the descriptor back."""
        if self._file is not None:
            self._file.close()
            self._file = None
