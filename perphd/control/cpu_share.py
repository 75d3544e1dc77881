"""How much CPU time was used of late, by several threads together."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable


class CpuShare:
    """A sum over the last ``within_s`` seconds, kept by the second. Any thread may ask and add.

    Args:
        within_s: what was used longer ago than this is forgotten.
        now_s: a clock that only goes forward.
    """

    def __init__(self, within_s: float, now_s: Callable[[], float]) -> None:
        self.within_s, self._now_s = within_s, now_s
        self._lock = threading.Lock()
        self._used: deque[tuple[int, float]] = deque()

    def add(self, cpu_s: float) -> None:
        """So much was used now."""
        with self._lock:
            second = math.floor(self._now_s())
            if self._used and self._used[-1][0] == second:
                cpu_s += self._used.pop()[1]
            self._used.append((second, cpu_s))

    def used_s(self) -> float:
        """What was used within the time."""
        with self._lock:
            return sum(cpu_s for _, cpu_s in self._recent())

    def free_in_s(self, most_s: float) -> float:
        """How long until less than ``most_s`` was used within the time, if nothing more is; 0: it is so now."""
        with self._lock:
            used = list(self._recent())
            free_s = 0.0
            for index, (second, _) in enumerate(used):
                # Added up as ``used_s`` does: a running difference rounds otherwise.
                if sum(cpu_s for _, cpu_s in used[index:]) < most_s:
                    break
                free_s = second + 1 + self.within_s - self._now_s()
            return free_s

    def _recent(self) -> deque[tuple[int, float]]:
        oldest = self._now_s() - self.within_s
        while self._used and self._used[0][0] + 1 <= oldest:
            self._used.popleft()
        return self._used
