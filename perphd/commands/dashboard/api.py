"""Answers the page's requests other than the live stream, with JSON values."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import quote

from perphd.commands.admission import whatif_parts
from perphd.commands.dashboard.fleet_page import FleetPage
from perphd.commands.dashboard.history import RANGES_S, Grid, history
from perphd.commands.dashboard.picture import picture
from perphd.commands.dashboard.shown_parts import shown
from perphd.commands.dashboard.sources import DaemonSide, StoreSide
from perphd.commands.explain import batch_parts, explain_parts, summary_parts
from perphd.commands.render_model import model_parts
from perphd.control.table import Part
from perphd.domain.belief import ModelView
from perphd.domain.decision import Consequences, Decision
from perphd.domain.errors import PerphError
from perphd.domain.status import AgentStatus, WorkloadStatus
from perphd.domain.wire import decode, encode
from perphd.domain.workload import Kind

if TYPE_CHECKING:
    from perphd.commands.dashboard.sizing_page import SizingPage

Reader: TypeAlias = Callable[[Mapping[str, str]], Awaitable[Any]]
Changer: TypeAlias = Callable[[dict[str, Any]], Awaitable[Any]]
ROUNDED_S: Final = 0.05
MOST_POD_NAME: Final = 320
REMEMBERED: Final = 256
"""Number of latest decisions to request when a workload is explained."""


def number(query: Mapping[str, str], key: str, default: float, least: float, most: float) -> float:
    """A number from the query. Raises PerphError if it is not a number from ``least`` to ``most``."""
    text = query.get(key, str(default))
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value <= most:
        raise PerphError(f"{key}={text[:80]}: must be a number from {least:g} to {most:g}")
    return value


class Api:
    """Answers requests with data from the daemon and the store."""

    def __init__(self, daemon: DaemonSide, store: StoreSide, fleet: FleetPage) -> None:
        self._daemon, self._store, self._fleet = daemon, store, fleet
        self._sizes: SizingPage | None = None

    def readers(self) -> dict[str, Reader]:
        """Read requests, by path, for every session."""
        return {
            "explain": self._explain,
            "fleet": self._read_fleet,
            "placement": self._placement,
            "history": self._history,
            "model": self._model,
            "past": self._past,
            "sizing": self._sizing,
            "whatif": self._whatif,
        }

    def changers(self) -> dict[str, Changer]:
        """Changing requests, by path, which require ``--admin``."""
        return {"pause": self._pause, "resume": self._resume, "mode": self._mode}

    async def _explain(self, query: Mapping[str, str]) -> Any:
        """Explain a workload now, or the decision in force at a moment, from the daemon or the store."""
        name = query.get("workload", "")
        # The time of a decision is rounded: search slightly later; otherwise an earlier decision is found.
        at_s = number(query, "at", 0.0, 1.0, 1e12) + ROUNDED_S if "at" in query else None
        at = None if at_s is None else f"{at_s:.3f}"
        data = await self._daemon.get("explain", workload=name, at=at, limit=REMEMBERED)
        decisions = decode(tuple[Decision, ...], data["decisions"], "decisions")
        after = decode(tuple[Consequences, ...], data.get("aftermath", []), "aftermath")
        status = decode(WorkloadStatus, data["workload"], "workload")
        offset_s = data["clock"]["unix_s"] - data["clock"]["monotonic_s"]
        if status.spec.kind is Kind.BATCH:
            parts = batch_parts(status, decisions[:1], offset_s)
        elif at_s is not None and not decisions:
            parts = await self._stored(name, at_s)
        else:
            parts = summary_parts(decisions, offset_s, verbose=True, after=after)
        return {"title": name, "parts": shown(parts, "Considered")}

    async def _stored(self, name: str, at_s: float) -> list[Part]:
        """The stored explanation of the decision in force at a moment."""
        status, _, offset_s = await self._then(at_s)
        found = [item.decision for item in status.workloads if item.spec.name == name]
        return explain_parts([item for item in found if item is not None], offset_s, verbose=True)

    async def _then(self, at_s: float) -> tuple[AgentStatus, float, float]:
        """The stored status at a moment, the daemon's clock at that moment, and its offset to the epoch in seconds."""
        data = await self._daemon.get("past", at=f"{at_s:.3f}")
        clock = data["clock"]
        return (
            decode(AgentStatus, data["status"]),
            float(clock["monotonic_s"]),
            float(clock["unix_s"]) - float(clock["monotonic_s"]),
        )

    async def _past(self, query: Mapping[str, str]) -> Any:
        at_s = number(query, "at", 0.0, 1.0, 1e12)
        status, now_s, offset_s = await self._then(at_s)
        made = picture(status, await self._daemon.topology(), now_s, offset_s)
        return made | {"headline": {"text": "as it was", "tone": ""}}

    async def _model(self, query: Mapping[str, str]) -> Any:
        from perphd.commands.curves import of_view  # loads numpy

        view = decode(ModelView, await self._daemon.get(f"models/{quote(query.get('lra', ''), safe='')}"))
        charts = [
            {
                "title": chart.title,
                "x_label": chart.x_label,
                "y_label": chart.y_label,
                "lines": [encode(line) for line in chart.lines],
            }
            for chart in of_view(view)
        ]
        return {"charts": charts, "parts": shown(model_parts(view), "Predictions")}

    async def _whatif(self, query: Mapping[str, str]) -> Any:
        cores = number(query, "cpu", 1.0, 0.001, 1e5)
        memory_gib = number(query, "mem", 0.0, 0.0, 1e6)
        work = f"batch:cpu={cores:g}" + (f",mem={round(memory_gib * 1024)}M" if memory_gib else "")
        data = await self._daemon.get("whatif", add=work)
        return {
            "accepted": data["accepted"],
            "parts": shown(whatif_parts(data), "Predicted effect on the applications"),
        }

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

    async def _read_fleet(self, query: Mapping[str, str]) -> Any:
        return await self._fleet.read()

    async def _placement(self, query: Mapping[str, str]) -> Any:
        pod = query.get("pod", "")
        if not 0 < len(pod) <= MOST_POD_NAME:
            raise PerphError(f"pod: must be NAMESPACE/NAME of at most {MOST_POD_NAME} characters")
        return await self._fleet.explain(pod)

    async def _sizing(self, query: Mapping[str, str]) -> Any:
        if self._sizes is None:
            from perphd.commands.dashboard.sizing_page import SizingPage  # loads numpy

            self._sizes = SizingPage(self._daemon.client.path)
        return await self._sizes.read()

    async def _pause(self, body: dict[str, Any]) -> Any:
        wanted = {key: body[key] for key in ("workload", "for_s", "reason") if body.get(key) is not None}
        return await self._daemon.send("POST", "pause", wanted)

    async def _resume(self, body: dict[str, Any]) -> Any:
        wanted = {key: body[key] for key in ("workload",) if body.get(key) is not None}
        return await self._daemon.send("POST", "resume", wanted)

    async def _mode(self, body: dict[str, Any]) -> Any:
        wanted = {key: body[key] for key in ("mode", "workload") if body.get(key) is not None}
        return await self._daemon.send("PUT", "mode", wanted)
