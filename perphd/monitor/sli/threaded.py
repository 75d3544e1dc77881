"""Database clients that block: each lives in a thread of its own, so that a hung server holds up nobody else."""

from __future__ import annotations

import asyncio
import contextlib
from abc import abstractmethod
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from perphd.monitor.sli.polled import AnsweredAt, PolledSource, SliError
from perphd.monitor.sli.reading import SliReading
from perphd.monitor.sli.resolution import Resolution


class ThreadedSource(PolledSource):
    """A source whose client blocks. ``_query`` and ``_disconnect`` run in the source's thread, never at once."""

    def __init__(self, label: str, timeout_s: float, known: Resolution | None = None) -> None:
        super().__init__(label, timeout_s, known)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"sli-{label}")
        self._running: Future[tuple[Mapping[str, int], float]] | None = None

    @abstractmethod
    def _query(self) -> Mapping[str, int]:
        """Connect if need be, ask, and return the counters. Must be bounded in time by the client's own time-outs."""

    @abstractmethod
    def _disconnect(self) -> None:
        """Drop the connection if there is one; what it raises is of no interest."""

    @abstractmethod
    def _reading(self, counters: Mapping[str, int], at_s: float) -> SliReading:
        """Counters as they were at ``at_s`` -> indicators."""

    async def _ask(self, answered_at: AnsweredAt) -> SliReading:
        if self._running is not None and not self._running.done():
            raise SliError("the last question is still unanswered")

        def work() -> tuple[Mapping[str, int], float]:
            return self._query(), answered_at()

        self._running = self._thread.submit(work)
        counters, at_s = await asyncio.wrap_future(self._running)
        return self._reading(counters, at_s)

    async def _failed(self) -> None:
        self._submit_disconnect()

    async def close(self) -> None:
        """Disconnect and let the thread end; does not wait for a hung server."""
        self._submit_disconnect()
        self._thread.shutdown(wait=False)

    def _submit_disconnect(self) -> None:
        def work() -> None:
            with contextlib.suppress(Exception):  # it is being thrown away, broken or not
                self._disconnect()

        with contextlib.suppress(RuntimeError):  # closed before
            self._thread.submit(work)
