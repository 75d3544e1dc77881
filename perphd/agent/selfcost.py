"""Measures the daemon's own cost: CPU, memory, descriptors and the duration of its ticks."""

from __future__ import annotations

import os
import resource
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from perphd.domain.reading import Reading, Unavailable
from perphd.domain.status import SelfCost

KEPT_TICKS = 600
REFRESH_S = 5.0


class CostMeter:
    """Collects tick durations and reads the kernel's data about this process every few seconds."""

    def __init__(self) -> None:
        self._ticks_ms: deque[float] = deque(maxlen=KEPT_TICKS)
        self._writes_ms: deque[float] = deque(maxlen=KEPT_TICKS)
        self._asked_s: float | None = None
        self._cpu_s = 0.0
        self._cpu_pct: Reading = Unavailable("not measured yet: the first value takes a few seconds")
        self._rss_bytes: Reading = Unavailable("not measured before the first tick")
        self._open_fds: Reading = Unavailable("not measured before the first tick")
        self.missed_ticks = 0

    def tick(self, now_s: float, duration_s: float) -> None:
        """Count the duration of a tick; refresh the kernel's figures about this process when due."""
        self._ticks_ms.append(duration_s * 1000.0)
        if self._asked_s is not None and now_s - self._asked_s < REFRESH_S:
            return
        used_s = time.process_time()
        if self._asked_s is not None and now_s > self._asked_s:
            self._cpu_pct = 100.0 * (used_s - self._cpu_s) / (now_s - self._asked_s)
        self._asked_s, self._cpu_s = now_s, used_s
        self._rss_bytes, self._open_fds = _reading(_resident_bytes), _reading(_descriptors)

    def wrote(self, duration_s: float) -> None:
        """Count the time from the start of a decision to its last kernel write."""
        self._writes_ms.append(duration_s * 1000.0)

    def cost(self) -> SelfCost:
        """The present cost; memory and descriptors are those of the last refresh."""
        return SelfCost(
            cpu_pct=self._cpu_pct,
            rss_bytes=self._rss_bytes,
            open_fds=self._open_fds,
            tick_ms_p50=_quantile(self._ticks_ms, 0.5),
            tick_ms_p99=_quantile(self._ticks_ms, 0.99),
            decide_to_written_ms_p99=_quantile(self._writes_ms, 0.99),
            missed_ticks=self.missed_ticks,
        )


def _reading(ask: Callable[[], int]) -> Reading:
    try:
        return float(ask())
    except OSError as exc:  # for example, no free descriptor
        return Unavailable(f"/proc/self cannot be read: {exc}")


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _descriptors() -> int:
    """Number of open descriptors. Since Linux 6.2 it is the size of the folder; earlier kernels need a listing."""
    counted = os.stat("/proc/self/fd").st_size
    if counted:
        return counted
    return len(os.listdir("/proc/self/fd")) - 1  # without the descriptor of this listing


def _quantile(values: deque[float], share: float) -> Reading:
    if not values:
        return Unavailable("nothing measured yet")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
