"""The event stream: server-sent events, one ``data`` line of JSON each, with keep-alives in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from aiohttp import web

from perphd.control.errors import ApiError, Code
from perphd.control.limits import ApiLimits
from perphd.control.port import AgentPort
from perphd.domain.event import Event, EventKind
from perphd.domain.wire import encode, json_of


class Streams:
    """All open event streams."""

    def __init__(self, agent: AgentPort, limits: ApiLimits, clock: Callable[[], dict[str, float]]) -> None:
        self._agent, self._limits, self._clock = agent, limits, clock
        self._open = 0
        self._ended = asyncio.Event()

    def end(self) -> None:
        """Close all streams and refuse new ones."""
        self._ended.set()

    async def serve(self, request: web.Request, may_change: bool) -> web.StreamResponse:
        """Send events until the client disconnects, receives one too slowly, or the daemon stops.

        The first event is ``hello`` with the clock, which converts ``at_s`` to the time of day. ``?kind=``
        (several separated by commas) and ``?workload=`` filter. ``may_change``: the client may use the
        reserved streams as well.
        """
        kinds, workload = _kinds(request), request.query.get("workload")
        if self._open >= self._limits.streams - (0 if may_change else self._limits.reserved_streams):
            raise ApiError(Code.BUSY, f"{self._open} event streams are open already; try again")
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
        )
        self._open += 1
        events = self._agent.subscribe()
        try:
            async with asyncio.timeout(self._limits.write_s):
                await response.prepare(request)
            await self._pump(response, events, kinds, workload)
        except (TimeoutError, ConnectionError):
            if request.transport is not None:
                request.transport.abort()
        finally:
            self._open -= 1
            close = getattr(events, "aclose", None)  # a plain iterator may lack this method
            if close is not None:
                await close()
        return response

    async def _pump(
        self,
        response: web.StreamResponse,
        events: AsyncIterator[Event],
        kinds: frozenset[EventKind],
        workload: str | None,
    ) -> None:
        following = asyncio.ensure_future(anext(events, None))
        ended = asyncio.ensure_future(self._ended.wait())
        try:
            await self._send(response, "hello", {"clock": self._clock()})
            while not self._ended.is_set():
                await asyncio.wait(
                    {following, ended},
                    timeout=self._limits.heartbeat_s,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if not following.done():
                    await self._write(response, b": alive\n\n")
                    continue
                event = following.result()
                if event is None:
                    return
                following = asyncio.ensure_future(anext(events, None))
                if event.kind in kinds and workload in (None, event.workload):
                    await self._send(response, event.kind.value, encode(event))
        finally:
            for task in (following, ended):
                task.cancel()
            await asyncio.gather(following, ended, return_exceptions=True)

    async def _send(self, response: web.StreamResponse, name: str, data: Any) -> None:
        await self._write(response, f"event: {name}\ndata: {json_of(data)}\n\n".encode())

    async def _write(self, response: web.StreamResponse, data: bytes) -> None:
        async with asyncio.timeout(self._limits.write_s):
            await response.write(data)


def _kinds(request: web.Request) -> frozenset[EventKind]:
    names = [name for name in request.query.get("kind", "").split(",") if name]
    for name in names:
        if name not in tuple(EventKind):
            allowed = ", ".join(EventKind)
            raise ApiError(Code.REFUSED, f"{name[:80]!r} is not a kind of event", "kind", allowed)
    return frozenset(EventKind(name) for name in names) or frozenset(EventKind)
