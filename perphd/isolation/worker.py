"""Threads for kernel writes, which can block: one for files, one for resctrl groups."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from perphd.domain.errors import Busy
from perphd.isolation.engine import Result

_T = TypeVar("_T")


class Worker:
    """Runs one piece of work at a time.

    Args:
        in_thread: False runs inline (simulated hosts).
        patience_s: time that a caller waits; work that takes longer continues in the background.
    """

    def __init__(self, in_thread: bool, patience_s: float) -> None:
        self._thread = _thread() if in_thread else None
        self._patience_s = patience_s
        self._running: asyncio.Future[object] | None = None

    @property
    def is_busy(self) -> bool:
        """True while work is running or stuck in the kernel."""
        return self._running is not None

    async def run(self, work: Callable[[], _T]) -> _T | Busy:
        """Run the work in the thread; returns Busy if no thread can start, or if this or earlier work is late.

        A cancelled call waits for the work, so that it is never abandoned halfway.
        """
        if self._thread is None:
            return work()
        if self._running is not None:
            return _stuck()
        try:
            future = asyncio.get_running_loop().run_in_executor(self._thread, work)
        except RuntimeError as exc:  # no thread could be started; do not leave the work queued
            self._thread.shutdown(wait=False, cancel_futures=True)
            self._thread = _thread()
            advice = "nothing was written; the limit on threads (TasksMax) may be reached"
            return Busy("", "write", errno.EAGAIN, detail=str(exc), advice=advice)
        self._running = future  # type: ignore[assignment]
        future.add_done_callback(self._finished)
        cancelled = False
        while True:
            try:
                await asyncio.wait({future}, timeout=self._patience_s)
                break
            except asyncio.CancelledError:
                cancelled = True
        if cancelled:
            raise asyncio.CancelledError
        return future.result() if future.done() else _stuck()

    def _finished(self, _future: object) -> None:
        self._running = None

    def close(self) -> None:
        """End the thread without waiting for stuck work."""
        if self._thread is not None:
            self._thread.shutdown(wait=False)


def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "perphd-isolation")


def _stuck() -> Busy:
    advice = "the kernel has not answered an earlier write; nothing else is written until it does"
    return Busy("", "write", errno.ETIMEDOUT, advice=advice)


PATIENCE_S: Final = 0.5
"""Maximum wait of a tick, in seconds, for group writes, which take milliseconds. Slower ones continue in the
background.
"""
_POLL_S: Final = 0.05


class GroupWriter:
    """Runs one set of group writes at a time.

    Args:
        in_thread: False runs inline (simulated hosts).
    """

    def __init__(self, in_thread: bool) -> None:
        self._worker = Worker(in_thread, PATIENCE_S)
        self._late: Result | None = None

    @property
    def is_busy(self) -> bool:
        """True while writes are being made."""
        return self._worker.is_busy

    async def run(self, work: Callable[[], Result]) -> Result | None:
        """Run the work; None means that it continues and ``late`` returns its result."""

        def kept() -> Result:
            self._late = work()
            return self._late

        done = await self._worker.run(kept)
        if isinstance(done, Busy):
            return None
        self._late = None
        return done

    def late(self) -> Result | None:
        """The result of work that outlasted its caller's wait; returned once, else None."""
        if self.is_busy:
            return None
        done, self._late = self._late, None
        return done

    async def idle(self, within_s: float) -> bool:
        """Wait for writes to end; returns False if they have not."""
        for _ in range(max(1, round(within_s / _POLL_S))):
            if not self.is_busy:
                return True
            await asyncio.sleep(_POLL_S)
        return not self.is_busy

    def close(self) -> None:
        """End the thread."""
        self._worker.close()
