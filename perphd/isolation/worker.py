"""The one thread that writes to the kernel: a write can block there, and the event loop must not."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from perphd.domain.errors import Busy

_T = TypeVar("_T")


class Worker:
    """Runs one piece of work at a time.

    Args:
        in_thread: False runs inline (simulated hosts).
        patience_s: so long a caller waits for its work; what the kernel holds longer goes on by itself.
    """

    def __init__(self, in_thread: bool, patience_s: float) -> None:
        self._thread = _thread() if in_thread else None
        self._patience_s = patience_s
        self._running: asyncio.Future[object] | None = None

    @property
    def is_busy(self) -> bool:
        """True while work is being done, or is stuck in the kernel."""
        return self._running is not None

    async def run(self, work: Callable[[], _T]) -> _T | Busy:
        """Run it in the thread; Busy if there is none, or if it, or an earlier one, does not come back in time.

        Cancellation waits for the work: the kernel is not left halfway.
        """
        if self._thread is None:
            return work()
        if self._running is not None:
            return _stuck()
        try:
            future = asyncio.get_running_loop().run_in_executor(self._thread, work)
        except RuntimeError as exc:  # no thread could be started: the work must not wait for one unseen
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
        """End the thread; work that is stuck is not waited for."""
        if self._thread is not None:
            self._thread.shutdown(wait=False)


def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "perphd-isolation")


def _stuck() -> Busy:
    advice = "the kernel has not answered an earlier write; nothing else is written until it does"
    return Busy("", "write", errno.ETIMEDOUT, advice=advice)
