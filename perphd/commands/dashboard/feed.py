"""The live feed: one connection to the daemon's events while there are viewers, none otherwise.

The daemon announces every tick, and the feed then requests the status, at most once a second. Every viewer
gets the same message.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

import aiohttp

from perphd.domain.errors import PerphError

LEAST_S: Final = 0.95
"""Minimum time in seconds between two status requests: slightly below a second, because ticks jitter."""
AGAIN_S: Final = 2.0
"""Seconds before the next attempt to reach a daemon that does not answer."""
SILENT_S: Final = 60.0
"""Seconds of silence after which a stream counts as broken; the daemon sends a keep-alive every 15 s."""
MAX_BEHIND: Final = 64
"""Number of unread messages after which a viewer loses the oldest."""


class FeedMessage(NamedTuple):
    """One server-sent event: its name, and its data as JSON text."""

    name: str
    data: str


class Feed:
    """Distributes the daemon's events to viewers.

    Args:
        socket: path of the daemon's socket.
        picture: queries the daemon and makes the page's data.
        announced: converts an event for the page, or returns None to hide it; its second argument is the
            offset to the epoch.
        now_s: a monotonic clock.
    """

    def __init__(
        self,
        socket: str,
        picture: Callable[[], Awaitable[Any]],
        announced: Callable[[Any, float], Any],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._socket, self._picture, self._announced, self._now_s = socket, picture, announced, now_s
        self._viewers: set[asyncio.Queue[FeedMessage]] = set()
        self._task: asyncio.Task[None] | None = None
        self._last: FeedMessage | None = None
        self._asked_s = float("-inf")
        self._offset_s = 0.0
        self._news = asyncio.Event()

    async def messages(self) -> AsyncIterator[FeedMessage]:
        """All messages from now on, after the newest picture.

        The connection to the daemon lasts until the last viewer's iteration ends.
        """
        queue: asyncio.Queue[FeedMessage] = asyncio.Queue()
        if self._last is not None and self._viewers:
            queue.put_nowait(self._last)
        self._viewers.add(queue)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        try:
            while True:
                yield await queue.get()
        finally:
            self._viewers.discard(queue)
            if not self._viewers:
                await self.stop()

    async def stop(self) -> None:
        """Close the connection to the daemon. Stopping twice is fine."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=SILENT_S)
        while True:
            why = "the daemon closed the connection"
            try:
                connector = aiohttp.UnixConnector(self._socket)
                async with (
                    aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
                    session.get("http://localhost/v1/events") as response,
                ):
                    if response.status == 200:
                        await self._follow(response)
                    else:
                        why = await _refusal(response)
            except PerphError as exc:
                why = str(exc)
            except (OSError, aiohttp.ClientError) as exc:
                why = f"no daemon answers on {self._socket}: {exc}"
            except TimeoutError:
                why = "the daemon does not answer"
            self._send(FeedMessage("offline", json.dumps({"why": why})))
            await asyncio.sleep(AGAIN_S)

    async def _follow(self, response: aiohttp.ClientResponse) -> None:
        asking = asyncio.create_task(self._ask())
        reading = asyncio.create_task(self._read(response))
        try:
            await asyncio.wait({asking, reading}, return_when=asyncio.FIRST_COMPLETED)
            for task in (asking, reading):
                if task.done():
                    task.result()
        finally:
            for task in (asking, reading):
                task.cancel()
            await asyncio.gather(asking, reading, return_exceptions=True)

    async def _read(self, response: aiohttp.ClientResponse) -> None:
        name = ""
        async for raw in response.content:
            line = raw.decode("utf-8", "replace").rstrip("\n")
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                self._take(name, json.loads(line[6:]))

    def _take(self, name: str, data: Any) -> None:
        self._news.set()
        if name == "hello":
            clock = data["clock"]
            self._offset_s = clock["unix_s"] - clock["monotonic_s"]
        elif name != "tick" and (shown := self._announced(data, self._offset_s)) is not None:
            self._send(FeedMessage("event", json.dumps(shown)))

    async def _ask(self) -> None:
        """Request the status after every announcement, at most once per ``LEAST_S``."""
        while True:
            await self._news.wait()
            await asyncio.sleep(max(0.0, self._asked_s + LEAST_S - self._now_s()))
            self._news.clear()
            self._asked_s = self._now_s()
            self._last = FeedMessage("picture", json.dumps(await self._picture()))
            self._send(self._last)

    def _send(self, message: FeedMessage) -> None:
        for queue in self._viewers:
            if queue.qsize() >= MAX_BEHIND:
                queue.get_nowait()
            queue.put_nowait(message)


async def _refusal(response: aiohttp.ClientResponse) -> str:
    try:
        return str((await response.json())["error"]["message"])
    except (ValueError, KeyError, TypeError, aiohttp.ClientError):
        return f"the daemon answered with HTTP status {response.status}"
