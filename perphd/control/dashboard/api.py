"""What the page asks beside the live stream. Answers are JSON values."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

from perphd.control.dashboard.daemon_side import DaemonSide
from perphd.control.dashboard.shown_parts import shown
from perphd.control.explain import batch_parts, summary_parts
from perphd.control.wire import decode
from perphd.domain.decision import Aftermath, Decision
from perphd.domain.status import WorkloadStatus
from perphd.domain.workload import Kind

Reader: TypeAlias = Callable[[Mapping[str, str]], Awaitable[Any]]
Changer: TypeAlias = Callable[[dict[str, Any]], Awaitable[Any]]
REMEMBERED: Final = 256
"""Decisions that the daemon remembers of each LRA, at most."""


class Api:
    """Answers with the daemon's help."""

    def __init__(self, daemon: DaemonSide) -> None:
        self._daemon = daemon

    def readers(self) -> dict[str, Reader]:
        """What anybody with a session may ask, by path."""
        return {"explain": self._explain}

    def changers(self) -> dict[str, Changer]:
        """What takes ``--admin``, by path."""
        return {"pause": self._pause, "resume": self._resume, "mode": self._mode}

    async def _explain(self, query: Mapping[str, str]) -> Any:
        name = query.get("workload", "")
        data = await self._daemon.get("explain", workload=name, limit=REMEMBERED)
        decisions = decode(tuple[Decision, ...], data["decisions"], "decisions")
        after = decode(tuple[Aftermath, ...], data.get("aftermath", []), "aftermath")
        status = decode(WorkloadStatus, data["workload"], "workload")
        offset_s = data["clock"]["unix_s"] - data["clock"]["monotonic_s"]
        if status.spec.kind is Kind.BATCH:
            parts = batch_parts(status, decisions[:1], offset_s)
        else:
            parts = summary_parts(decisions, offset_s, verbose=True, after=after)
        return {"title": name, "parts": shown(parts, "Considered")}

    async def _pause(self, body: dict[str, Any]) -> Any:
        wanted = {key: body[key] for key in ("workload", "for_s", "reason") if body.get(key) is not None}
        return await self._daemon.send("POST", "pause", wanted)

    async def _resume(self, body: dict[str, Any]) -> Any:
        wanted = {key: body[key] for key in ("workload",) if body.get(key) is not None}
        return await self._daemon.send("POST", "resume", wanted)

    async def _mode(self, body: dict[str, Any]) -> Any:
        wanted = {key: body[key] for key in ("mode", "workload") if body.get(key) is not None}
        return await self._daemon.send("PUT", "mode", wanted)
