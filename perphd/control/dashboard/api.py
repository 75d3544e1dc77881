"""What the page asks beside the live stream. Answers are JSON values."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

from perphd.control.dashboard.daemon_side import DaemonSide
from perphd.control.dashboard.history import RANGES_S, Grid, history
from perphd.control.dashboard.shown_parts import shown
from perphd.control.dashboard.store_side import StoreSide
from perphd.control.explain import batch_parts, summary_parts
from perphd.control.wire import decode
from perphd.domain.decision import Aftermath, Decision
from perphd.domain.errors import PerphError
from perphd.domain.status import WorkloadStatus
from perphd.domain.workload import Kind

Reader: TypeAlias = Callable[[Mapping[str, str]], Awaitable[Any]]
Changer: TypeAlias = Callable[[dict[str, Any]], Awaitable[Any]]
REMEMBERED: Final = 256
"""Decisions that the daemon remembers of each LRA, at most."""


def number(query: Mapping[str, str], key: str, default: float, least: float, most: float) -> float:
    """A number of the query. Raises PerphError."""
    text = query.get(key, str(default))
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value <= most:
        raise PerphError(f"{key}={text[:80]}: is to be a number from {least:g} to {most:g}")
    return value


class Api:
    """Answers with the daemon's help."""

    def __init__(self, daemon: DaemonSide, store: StoreSide) -> None:
        self._daemon, self._store = daemon, store

    def readers(self) -> dict[str, Reader]:
        """What anybody with a session may ask, by path."""
        return {"explain": self._explain, "history": self._history}

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

    async def _history(self, query: Mapping[str, str]) -> Any:
        last_s = number(query, "last_s", RANGES_S[0], 60.0, 366 * 86_400.0)
        status, now_s, offset_s = await self._daemon.status()
        lras = {
            item.spec.name: item.spec.objective.latency_percentile
            for item in status.workloads
            if item.spec.kind is Kind.LRA
        }
        grid = Grid.until(now_s + offset_s, last_s)
        return await self._store.run(lambda ask: history(ask, lras, grid)) | {"ranges_s": RANGES_S}

    async def _pause(self, body: dict[str, Any]) -> Any:
        wanted = {key: body[key] for key in ("workload", "for_s", "reason") if body.get(key) is not None}
        return await self._daemon.send("POST", "pause", wanted)

    async def _resume(self, body: dict[str, Any]) -> Any:
        wanted = {key: body[key] for key in ("workload",) if body.get(key) is not None}
        return await self._daemon.send("POST", "resume", wanted)

    async def _mode(self, body: dict[str, Any]) -> Any:
        wanted = {key: body[key] for key in ("mode", "workload") if body.get(key) is not None}
        return await self._daemon.send("PUT", "mode", wanted)
