"""The pids controller: a group's number of tasks and its limit."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Final

from perphd.sim.kernel import formats
from perphd.sim.kernel.cgroup2.rules import FileSpec
from perphd.sim.kernel.vfs import refuse

_CEILING: Final = 1 << 22  # PID_MAX_LIMIT of 64-bit kernels


class Pids:
    """State and files of one group's pids controller. The limit applies to forks, not to moves."""

    def __init__(self, count: Callable[[], int]) -> None:
        self._count = count
        self.limit: int | None = None
        self._peak = 0

    def files(self) -> list[FileSpec]:
        """The controller's files."""
        return [
            FileSpec("pids.current", lambda: f"{self._now()}\n"),
            FileSpec("pids.peak", self._read_peak),
            FileSpec("pids.max", lambda: f"{'max' if self.limit is None else self.limit}\n", self._write_max),
            FileSpec("pids.events", lambda: "max 0\n"),
        ]

    def _now(self) -> int:
        count = self._count()
        self._peak = max(self._peak, count)
        return count

    def _read_peak(self) -> str:
        self._now()
        return f"{self._peak}\n"

    def _write_max(self, data: bytes) -> None:
        if formats.text_of(data) == "max":
            self.limit = None
            return
        limit = formats.parse_int(data)
        if not 0 <= limit <= _CEILING:
            raise refuse(errno.EINVAL)
        self.limit = limit
