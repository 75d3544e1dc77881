"""Threads for reading and writing model files, because disks may be slow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from perphd.agent.model_life import Written

_T = TypeVar("_T")
_P = ParamSpec("_P")


class FileReader:
    """Runs calls that read or decode files. ``in_thread``: False runs them inline, for virtual time."""

    def __init__(self, in_thread: bool) -> None:
        self._in_thread = in_thread

    async def __call__(self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """The result of ``call`` with these arguments."""
        if self._in_thread:
            return await asyncio.to_thread(call, *args, **kwargs)
        return call(*args, **kwargs)


class ModelWriter:
    """Runs one write at a time."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._running: Future[Sequence[Written]] | None = None

    @property
    def is_busy(self) -> bool:
        """True while files are being written."""
        return self._running is not None and not self._running.done()

    @property
    def has_result(self) -> bool:
        """True if the result of the last write has not been taken yet."""
        return self._running is not None

    def start(self, write: Callable[[_T], Sequence[Written]], what: _T) -> None:
        """Start a write. The caller has taken the result of the previous write."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="perphd-models")
        self._running = self._thread.submit(write, what)

    async def idle(self) -> None:
        """Wait until nothing is being written."""
        if self._running is not None:
            await asyncio.wait({asyncio.wrap_future(self._running)})

    def result(self) -> Sequence[Written]:
        """The result of the last write, returned once; blocks while files are being written."""
        running, self._running = self._running, None
        return () if running is None else running.result()

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._thread.shutdown()
