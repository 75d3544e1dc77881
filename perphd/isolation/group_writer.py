"""The thread that writes resctrl groups: whoever holds resctrl's lock must not keep a round waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from perphd.domain.errors import Busy
from perphd.isolation.group_jobs import CacheResult
from perphd.isolation.worker import Worker

PATIENCE_S: Final = 0.5
"""Longest wait of a round for group writes, which take milliseconds. Slower writes go on by themselves."""
_POLL_S: Final = 0.05


class GroupWriter:
    """Runs one set of group writes at a time.

    Args:
        in_thread: False runs inline (simulated hosts).
    """

    def __init__(self, in_thread: bool) -> None:
        self._worker = Worker(in_thread, PATIENCE_S)
        self._late: CacheResult | None = None

    @property
    def is_busy(self) -> bool:
        """True while writes are being made."""
        return self._worker.is_busy

    async def run(self, work: Callable[[], CacheResult]) -> CacheResult | None:
        """Run it; None: it goes on by itself, and ``late`` has its result later."""

        def kept() -> CacheResult:
            self._late = work()
            return self._late

        done = await self._worker.run(kept)
        if isinstance(done, Busy):
            return None
        self._late = None
        return done

    def late(self) -> CacheResult | None:
        """The result of writes that nobody waited for any longer; once."""
        if self.is_busy:
            return None
        done, self._late = self._late, None
        return done

    async def idle(self, within_s: float) -> bool:
        """Wait for writes to end; False: they have not."""
        for _ in range(max(1, round(within_s / _POLL_S))):
            if not self.is_busy:
                return True
            await asyncio.sleep(_POLL_S)
        return not self.is_busy

    def close(self) -> None:
        """End the thread."""
        self._worker.close()
