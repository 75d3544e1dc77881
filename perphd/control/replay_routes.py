"""Recordings of decisions over the control API: rounds as they happen, one line of JSON each.

The head contains the host, the policy and its memory; each line contains the policy's input, its queries to models,
their answers, and its decision. These suffice to repeat a decision bit for bit (``tools/replay``), also in another
version of perphd.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Final

from aiohttp import web

from perphd.agent.rounds import Question, Round
from perphd.control.client import MOST_ROUNDS
from perphd.control.errors import ApiError, Code
from perphd.control.limits import ApiLimits
from perphd.control.port import AgentPort
from perphd.control.tagged import TaggedError, encode_tagged
from perphd.domain.masking import without_secrets
from perphd.domain.policy import HostView, Snapshot, TargetState, WorkloadView
from perphd.domain.wire import encode

_MOST_AT_ONCE = 2
"""Maximum number of concurrent recordings; a round of many workloads takes some ten kilobytes."""


class Recordings:
    """All recordings in progress."""

    def __init__(self, agent: AgentPort, limits: ApiLimits) -> None:
        self._agent, self._limits = agent, limits
        self._open = 0
        self._ended = asyncio.Event()

    def end(self) -> None:
        """End every recording, because the daemon stops."""
        self._ended.set()

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Send the next ``?rounds=`` rounds. Empty lines are keep-alives."""
        wanted = _rounds(request)
        if self._open >= _MOST_AT_ONCE:
            raise ApiError(Code.BUSY, f"{self._open} recordings are in progress already; try again")
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
        raise ApiError(
            Code.REFUSED, f"{text[:40]!r} is not a number of rounds", "rounds", f"1 to {MOST_ROUNDS}"
        )
    return int(text)


FORMAT: Final = 2


def head(first: Snapshot, policy: str, settings: object = None) -> dict[str, Any]:
    """The first line of a recording. ``settings``: the policy's settings, if it has any.

    Raises:
        TaggedError: the policy's memory contains a value that cannot be encoded.
    """
    return {
        "format": FORMAT,
        "policy": policy,
        "settings": encode(settings),
        "topology": encode(first.host.topology),
        "memory": encode_tagged(first.memory),
    }


def round_out(item: Round) -> dict[str, Any]:
    """One round as a line."""
    answers = {name: answers_out(asked) for name, asked in item.asked.items()}
    return {"snapshot": snapshot_out(item.snapshot), "answers": answers, "target": target_out(item.target)}


def answers_out(asked: tuple[Question, ...]) -> dict[str, Any]:
    """The models' recorded answers, by the text of the question."""
    return {question_key(q.what, *q.parts): encode(q.answer) for q in asked}


def question_key(what: str, *parts: object) -> str:
    """A text that identifies a question; identical questions have identical texts."""
    return json.dumps([what, *(encode(part) for part in parts)], separators=(",", ":"))


def target_out(target: TargetState) -> dict[str, Any]:
    """A target state without the memory, which is the policy's own."""
    settings: Mapping[str, object] = dict(sorted(target.settings.items()))
    return {
        "settings": encode(settings),
        "decisions": encode(target.decisions),
        "outcomes": encode(target.outcomes),
    }


def snapshot_out(snapshot: Snapshot) -> dict[str, Any]:
    """A snapshot without the topology (in the head), the models (their answers are recorded) and the memory.

    User names and passwords in workloads' URLs are omitted too: no policy uses them, and readers of a recording
    must not see them.
    """
    host = {f.name: encode(getattr(snapshot.host, f.name)) for f in fields(HostView) if f.name != "topology"}
    views = [
        {f.name: encode(getattr(view, f.name)) for f in fields(WorkloadView) if f.name != "model"}
        for view in (replace(view, spec=without_secrets(view.spec)) for view in snapshot.workloads)
    ]
    return {
        "tick": snapshot.tick, "at_s": snapshot.at_s, "period_s": snapshot.period_s, "host": host,
        "workloads": views,
    }  # fmt: skip


def line(value: Mapping[str, Any]) -> str:
    """The line of a recording that holds this value as JSON."""
    return json.dumps(value, separators=(",", ":")) + "\n"
