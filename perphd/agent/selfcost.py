"""What the daemon itself uses: its own CPU, memory, descriptors and the time of its ticks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import psutil

from perphd.domain.reading import Reading, Unavailable
from perphd.domain.status import SelfCost

KEPT_TICKS = 600
REFRESH_S = 5.0


class CostMeter:
    """Collects tick durations and asks the kernel about this process every few seconds."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._ticks_ms: deque[float] = deque(maxlen=KEPT_TICKS)
        self._writes_ms: deque[float] = deque(maxlen=KEPT_TICKS)
        self._asked_s: float | None = None
        self._cpu_s = 0.0
        self._cpu_pct: Reading = Unavailable("measured over the first seconds")
        self.missed_ticks = 0

    def tick(self, now_s: float, duration_s: float) -> None:
        """One tick took so long; refreshes the CPU share when it is due."""
        self._ticks_ms.append(duration_s * 1000.0)
        if self._asked_s is not None and now_s - self._asked_s < REFRESH_S:
            return
        try:
            times = self._process.cpu_times()
        except (OSError, psutil.Error) as exc:  # /proc is not readable now: no descriptor is left, for one
            self._asked_s, self._cpu_pct = None, Unavailable(f"/proc/self/stat cannot be read: {exc}")
            return
        used_s = times.user + times.system
        if self._asked_s is not None and now_s > self._asked_s:
            self._cpu_pct = 100.0 * (used_s - self._cpu_s) / (now_s - self._asked_s)
        self._asked_s, self._cpu_s = now_s, used_s

    def wrote(self, duration_s: float) -> None:
        """A change was in the kernel so long after the decision began."""
        self._writes_ms.append(duration_s * 1000.0)

    def cost(self) -> SelfCost:
        """The figures now."""
        return SelfCost(
            cpu_pct=self._cpu_pct,
            rss_bytes=_reading(lambda: self._process.memory_info().rss),
            open_fds=_reading(self._process.num_fds),
            tick_ms_p50=_quantile(self._ticks_ms, 0.5),
            tick_ms_p99=_quantile(self._ticks_ms, 0.99),
            decide_to_written_ms_p99=_quantile(self._writes_ms, 0.99),
            missed_ticks=self.missed_ticks,
        )


def _reading(ask: Callable[[], int]) -> Reading:
    try:
        return float(ask())
    except (OSError, psutil.Error) as exc:
        return Unavailable(f"/proc/self cannot be read: {exc}")


def _quantile(values: deque[float], share: float) -> Reading:
    if not values:
        return Unavailable("nothing measured yet")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
