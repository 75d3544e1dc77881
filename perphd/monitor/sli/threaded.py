"""Sources with blocking database clients, each in its own thread.

A server that does not answer therefore delays no other source.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from abc import abstractmethod
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from perphd.monitor.sli.polled import AnsweredAt, PolledSource, SliError
from perphd.monitor.sli.reading import SliReading
from perphd.monitor.sli.resolution import Resolution

UNASKED_S: Final = 30.0
"""Seconds after the last reading for which a source is still watched."""


class OwnThreadSource(PolledSource):
    """A source with a blocking client. ``_disconnect`` and all queries run in its thread, one at a time."""

    def __init__(self, label: str, timeout_s: float, known: Resolution | None = None) -> None:
        super().__init__(label, timeout_s, known)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"sli-{label}")

    @abstractmethod
    def _disconnect(self) -> None:
        """Drop the connection if there is one. Exceptions are ignored."""

    async def _failed(self) -> None:
        self._submit_disconnect()

    async def close(self) -> None:
        """Disconnect and let the thread end, without waiting for a hung server."""
        self._submit_disconnect()
        self._thread.shutdown(wait=False)

    def _submit_disconnect(self) -> None:
        def work() -> None:
            with contextlib.suppress(Exception):  # the connection is discarded, broken or not
                self._disconnect()

        with contextlib.suppress(RuntimeError):  # already closed
            self._thread.submit(work)


class ThreadedSource(OwnThreadSource):
    """A source that is queried once per reading."""

    _running: Future[tuple[Mapping[str, int], float]] | None = None

    @abstractmethod
    def _query(self) -> Mapping[str, int]:
        """Connect if necessary, query, and return the counters. The client's own timeouts must bound the time."""

    @abstractmethod
    def _reading(self, counters: Mapping[str, int], at_s: float) -> SliReading:
        """Convert counters as of ``at_s`` to indicators."""

    async def _ask(self, answered_at: AnsweredAt) -> SliReading:
        if self._running is not None and not self._running.done():
            raise SliError("the previous query is still unanswered")

        def work() -> tuple[Mapping[str, int], float]:
            return self._query(), answered_at()

        self._running = self._thread.submit(work)
        counters, at_s = await asyncio.wrap_future(self._running)
        return self._reading(counters, at_s)


class WatchedSource(OwnThreadSource):
    """A source whose thread also queries between readings. ``_look`` and ``_take`` run in the thread.

    Each reading begins with a query, so that it is as current as that of a source queried once per reading.
    """

    def __init__(self, label: str, timeout_s: float, known: Resolution | None = None) -> None:
        super().__init__(label, timeout_s, known)
        self._asked = threading.Event()
        """Set while a caller waits for a reading; the running watch then ends and returns one."""
        self._closed = False
        self._pause_s = 0.0
        self._watching: Future[SliReading | None] | None = None

    @abstractmethod
    def _look(self) -> float:
        """Connect if necessary and query once. Returns the seconds until the next query.

        The client's own timeouts must bound the time, as in ``_query``.
        """

    @abstractmethod
    def _take(self) -> SliReading:
        """Convert the counts of the last query to a reading."""

    async def _ask(self, answered_at: AnsweredAt) -> SliReading:
        watching = self._watching
        if watching is not None and self._asked.is_set() and not watching.done():
            raise SliError("the previous query is still unanswered")
        ended = watching is not None and watching.done() and watching.exception() is None
        if watching is None or self._asked.is_set() or ended:
            self._asked.set()
            watching = self._watching = self._thread.submit(self._watch)
        self._asked.set()
        reading = await asyncio.wrap_future(watching)
        assert reading is not None, "a watch that was asked for a reading ends with one"
        self._asked.clear()
        self._watching = self._thread.submit(self._watch)
        return reading

    def _watch(self) -> SliReading | None:
        """Query repeatedly until a reading is requested; None if none is requested for too long."""
        unasked_s = time.monotonic() + UNASKED_S
        pause_s = self._pause_s
        while True:
            asked = self._asked.wait(pause_s)
            if self._closed:
                raise SliError("the source was closed")
            began_s = time.monotonic()
            self._pause_s = self._look()
            ended_s = time.monotonic()
            if asked:
                return self._take()
            if ended_s >= unasked_s:
                return None
            pause_s = max(self._pause_s, ended_s - began_s)  # do not keep a slow server busy all the time

    async def close(self) -> None:
        """Disconnect and let the thread end, without waiting for a hung server."""
        self._closed = True
        self._asked.set()
        await super().close()
