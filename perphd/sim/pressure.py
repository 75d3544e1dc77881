"""Pressure stall information of one group and resource: totals and decaying averages, in the kernel's format."""

from __future__ import annotations

import math
from functools import lru_cache

_WINDOWS_S = (10.0, 60.0, 300.0)
_NOTHING_PCT = 1e-4


@lru_cache(maxsize=64)
def _decays(dt_s: float) -> tuple[float, ...]:
    return tuple(math.exp(-dt_s / window) for window in _WINDOWS_S)


class _Line:
    __slots__ = ("averages", "total_s")

    def __init__(self) -> None:
        self.total_s = 0.0
        self.averages = [0.0, 0.0, 0.0]

    def advance(self, dt_s: float, share: float) -> None:
        if not share and self.averages[2] < _NOTHING_PCT:  # the slowest average has decayed to zero
            return
        self.total_s += dt_s * share
        percent = 100.0 * share
        fast, medium, slow = self.averages
        by_10s, by_60s, by_300s = _decays(dt_s)
        self.averages = [
            percent + (fast - percent) * by_10s,
            percent + (medium - percent) * by_60s,
            percent + (slow - percent) * by_300s,
        ]

    def text(self, name: str) -> str:
        avg10, avg60, avg300 = self.averages
        return f"{name} avg10={avg10:.2f} avg60={avg60:.2f} avg300={avg300:.2f} total={int(self.total_s * 1e6)}\n"


class PressureState:
    """``some`` and ``full`` of one resource."""

    __slots__ = ("_full", "_some")

    def __init__(self) -> None:
        self._some, self._full = _Line(), _Line()

    def advance(self, dt_s: float, some: float, full: float) -> None:
        """Advance by ``dt_s`` seconds with these shares (0..1) of stalled time."""
        some = min(1.0, max(0.0, some))
        self._some.advance(dt_s, some)
        self._full.advance(dt_s, min(some, max(0.0, full)))

    def text(self) -> str:
        """The file's content."""
        return self._some.text("some") + self._full.text("full")
