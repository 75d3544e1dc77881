"""Readers are answered one after the other, with a rest after each answer: none of them can keep the loop busy.

Answers are made on the loop that also samples and decides. That goes on between any two answers, and has most of the
time for itself: after an answer no reader has the next one before a multiple of the CPU time that it took. A monitoring
system that asks every few seconds does not notice.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from perphd.control.errors import ApiError, Code
from perphd.control.limits import Limits

Later = Callable[[float, Callable[[], None]], object]
"""Calls something after so many seconds."""


class Turn:
    """One reader's turn. It ends once; what is long and not made on the loop (a stream, a query) ends it early."""

    def __init__(self, end: Callable[[], None]) -> None:
        self._end: Callable[[], None] | None = end

    def end(self) -> None:
        """Let the next one have a turn, after the rest. Ending twice is fine."""
        end, self._end = self._end, None
        if end is not None:
            end()


class Turns:
    """Hands out turns in the order of asking.

    Args:
        limits: how long the rest is, and how many may wait.
        cpu_s: the CPU time of the loop's thread.
        later: default: the running loop's.
    """

    def __init__(
        self, limits: Limits, cpu_s: Callable[[], float] = time.thread_time, later: Later | None = None
    ) -> None:
        self._limits, self._cpu_s, self._later = limits, cpu_s, later
        self._lock = asyncio.Lock()
        self._waiting = 0

    async def take(self) -> Turn:
        """Wait for a turn.

        Raises:
            ApiError: more are waiting than there can be connections: some have left, and are waited for all the same.
        """
        if self._waiting >= self._limits.connections:
            raise ApiError(Code.BUSY, f"{self._waiting} requests are waiting already; try again")
        self._waiting += 1
        try:
            await self._lock.acquire()
        finally:
            self._waiting -= 1
        began_s = self._cpu_s()
        return Turn(lambda: self._rest(began_s))

    def _rest(self, began_s: float) -> None:
        took_s = max(self._cpu_s() - began_s, self._limits.least_answer_s)
        later = self._later if self._later is not None else asyncio.get_running_loop().call_later
        later(self._limits.rest * took_s, self._lock.release)
