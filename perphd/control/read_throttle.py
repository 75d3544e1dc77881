"""Serialises and rate-limits read-only requests so that they cannot monopolise the event loop.

The event loop that answers requests also samples and decides. It keeps most of the CPU time, because after each answer
the next reader waits for a multiple of the CPU time that the answer took. A monitoring system that polls every few
seconds is not affected.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from perphd.control.errors import ApiError, Code
from perphd.control.limits import ApiLimits

Later = Callable[[float, Callable[[], None]], object]
"""Calls a function after a number of seconds."""


class ReadSlot:
    """Permission to be answered now. Streams and queries end it early, since they do not occupy the loop."""

    def __init__(self, end: Callable[[], None]) -> None:
        self._end: Callable[[], None] | None = end

    def end(self) -> None:
        """Admit the next reader after the rest period. Ending twice is fine."""
        end, self._end = self._end, None
        if end is not None:
            end()


class ReadThrottle:
    """Admits one reader at a time, in the order of arrival.

    Args:
        limits: length of the rest period, and maximum number of waiting readers.
        cpu_s: returns the CPU time of the loop's thread, in seconds.
        later: calls a function after some seconds; default: the running loop's ``call_later``.
    """

    def __init__(
        self, limits: ApiLimits, cpu_s: Callable[[], float] = time.thread_time, later: Later | None = None
    ) -> None:
        self._limits, self._cpu_s, self._later = limits, cpu_s, later
        self._lock = asyncio.Lock()
        self._waiting = 0

    async def take(self) -> ReadSlot:
        """Wait for admission.

        Raises:
            ApiError: more requests are waiting than there can be connections, because clients of waiting requests
            have disconnected.
        """
        if self._waiting >= self._limits.connections:
            raise ApiError(Code.BUSY, f"{self._waiting} requests are waiting already; try again")
        self._waiting += 1
        try:
            await self._lock.acquire()
        finally:
            self._waiting -= 1
        began_s = self._cpu_s()
        return ReadSlot(lambda: self._rest(began_s))

    def _rest(self, began_s: float) -> None:
        took_s = max(self._cpu_s() - began_s, self._limits.least_answer_s)
        later = self._later if self._later is not None else asyncio.get_running_loop().call_later
        later(self._limits.rest * took_s, self._lock.release)
