"""Recordings of decisions over the control API: rounds as they happen, one line of JSON each."""

from __future__ import annotations

import asyncio

from aiohttp import web

from perphd.control.client import MOST_ROUNDS
from perphd.control.errors import ApiError, Code
from perphd.control.limits import Limits
from perphd.control.port import AgentPort
from perphd.control.recording import head, line, round_out
from perphd.control.tagged import TaggedError

_MOST_AT_ONCE = 2
"""A round of many workloads is some ten kilobytes: nobody needs it more often."""


class Recordings:
    """All recordings that are being made."""

    def __init__(self, agent: AgentPort, limits: Limits) -> None:
        self._agent, self._limits = agent, limits
        self._open = 0
        self._ended = asyncio.Event()

    def end(self) -> None:
        """Let every recording end: the daemon stops."""
        self._ended.set()

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Send the next ``?rounds=`` rounds. Empty lines are signs of life."""
        wanted = _rounds(request)
        if self._open >= _MOST_AT_ONCE:
            raise ApiError(Code.BUSY, f"{self._open} recordings are being made already; try again")
        response = web.StreamResponse(
            headers={"Content-Type": "application/x-ndjson", "Cache-Control": "no-cache"}
        )
        self._open += 1
        try:
            async with asyncio.timeout(self._limits.write_s):
                await response.prepare(request)
            await self._pump(response, wanted)
        except (TimeoutError, ConnectionError, TaggedError):
            if request.transport is not None:
                request.transport.abort()
        finally:
            self._open -= 1
        return response

    async def _pump(self, response: web.StreamResponse, wanted: int) -> None:
        rounds = self._agent.rounds()
        following = asyncio.ensure_future(anext(rounds, None))
        ended = asyncio.ensure_future(self._ended.wait())
        count = 0
        try:
            while count < wanted and not self._ended.is_set():
                await asyncio.wait(
                    {following, ended},
                    timeout=self._limits.heartbeat_s,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if not following.done():
                    await self._write(response, "\n")
                    continue
                item = following.result()
                if item is None:
                    return
                following = asyncio.ensure_future(anext(rounds, None))
                if count == 0:
                    settings = self._agent.config.policy
                    policy = self._agent.config.daemon.policy
                    await self._write(response, line(head(item.snapshot, policy, settings)))
                await self._write(response, line(round_out(item)))
                count += 1
        finally:
            for task in (following, ended):
                task.cancel()
            await asyncio.gather(following, ended, return_exceptions=True)
            close = getattr(rounds, "aclose", None)
            if close is not None:
                await close()

    async def _write(self, response: web.StreamResponse, text: str) -> None:
        async with asyncio.timeout(self._limits.write_s):
            await response.write(text.encode())


def _rounds(request: web.Request) -> int:
    text = request.query.get("rounds", "60")
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= MOST_ROUNDS:
        raise ApiError(Code.REFUSED, f"{text[:40]!r} is no number of rounds", "rounds", f"1 to {MOST_ROUNDS}")
    return int(text)
