"""Kernel files that notify readers: asyncio integration for exceptional events (POLLPRI, POLLERR).

The loop's own readers know only "readable", which such a file always is. The file is therefore watched by a separate
epoll, whose descriptor the loop reads.
"""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import Callable


class Notified:
    """Calls ``ready(events)`` from the running loop whenever the file notifies, until ``close``. Owns ``fd``.

    Raises:
        OSError: the file cannot be polled; the descriptor is closed.
        RuntimeError: no asyncio loop is running; the descriptor is closed.
    """

    def __init__(self, fd: int, events: int, ready: Callable[[int], None]) -> None:
        self._fd, self._ready = fd, ready
        self._epoll: select.epoll | None = None
        try:
            self._loop = asyncio.get_running_loop()
            self._epoll = select.epoll()
            self._epoll.register(fd, events)
            self._loop.add_reader(self._epoll.fileno(), self._notify)
        except BaseException:
            self._release()
            raise

    @property
    def closed(self) -> bool:
        """True after ``close``."""
        return self._epoll is None

    def close(self) -> None:
        """Stop listening and close the descriptors; closing twice is allowed."""
        if self._epoll is not None:
            self._loop.remove_reader(self._epoll.fileno())
            self._release()

    def _notify(self) -> None:
        if self._epoll is None:
            return
        events = 0
        for _, happened in self._epoll.poll(0):
            events |= happened
        self._ready(events)

    def _release(self) -> None:
        if self._epoll is not None:
            self._epoll.close()
            self._epoll = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
