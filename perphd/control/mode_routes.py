"""Routes of the control API for modes, pauses and trials."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import web

from perphd.agent.trials import request_of
from perphd.config.schema import show
from perphd.control.access import Peer
from perphd.control.errors import ApiError, Code
from perphd.control.limits import MAX_PAUSE_S, MAX_REASON
from perphd.control.port import AgentPort
from perphd.control.request import done, reading
from perphd.control.workload_routes import WorkloadRoutes
from perphd.domain.wire import encode
from perphd.domain.workload import Mode

TRIAL_KEYS: Final = ("hours", "block_s", "washout_s", "bound_pct", "seed")
"""Keys of a request that starts a trial; only ``hours`` is required."""


class ModeRoutes:
    """Handlers of ``/v1/mode``, ``/v1/pause``, ``/v1/resume`` and ``/v1/trial``. ``body``: reads a request's body."""

    def __init__(
        self, agent: AgentPort, workloads: WorkloadRoutes, body: Callable[..., Awaitable[dict[str, Any]]]
    ) -> None:
        self._agent, self._workloads, self._body = agent, workloads, body

    async def mode(self, request: web.Request, peer: Peer) -> Any:
        """PUT /v1/mode: observe or enforce one workload or all."""
        body = await self._body(request, ("mode", "workload"))
        allowed = ", ".join(Mode)
        mode, name = body.get("mode"), body.get("workload")
        if mode not in tuple(Mode):
            raise ApiError(Code.REFUSED, f"{show(mode)} is not a mode", "mode", allowed)
        if name is not None and self._workloads.declared(name) is None:
            self._workloads.find(name)
        await done(self._agent.set_mode(Mode(mode), name, peer.actor()))
        status = self._agent.status()
        paused = any(pause.workload in ("", name) for pause in status.pauses)
        return {
            "mode": mode,
            "workload": name,
            "configured_mode": status.configured_mode.value,
            "paused": paused,
        }

    async def pause(self, request: web.Request, peer: Peer) -> Any:
        """POST /v1/pause: restore one workload or all, and write nothing until the pause ends."""
        body = await self._body(request, ("workload", "for_s", "reason"))
        name, for_s, reason = body.get("workload"), body.get("for_s"), body.get("reason", "")
        if name is not None and self._workloads.declared(name) is None:
            self._workloads.find(name)
        if for_s is not None:
            for_s = reading("for_s", for_s)
            if not 0 < for_s <= MAX_PAUSE_S:
                allowed = f"more than 0 seconds, at most {MAX_PAUSE_S:.0f} (366 days)"
                raise ApiError(Code.REFUSED, f"{for_s:g} s is not accepted", "for_s", allowed)
        if not isinstance(reason, str) or len(reason) > MAX_REASON:
            raise ApiError(
                Code.REFUSED, "is not accepted", "reason", f"text of at most {MAX_REASON} characters"
            )
        pause, report = await self._agent.pause(name, for_s, reason, peer.actor())
        return {"pause": encode(pause), "restored": encode(report)}

    async def resume(self, request: web.Request, peer: Peer) -> Any:
        """POST /v1/resume: end the pause of one workload, or every manual pause."""
        body = await self._body(request, ("workload",))
        name = body.get("workload")
        if name is not None and self._workloads.declared(name) is None:
            self._workloads.find(name)
        ended = await self._agent.resume(name, peer.actor())
        return {"ended": encode(ended), "still": encode(self._agent.status().pauses)}

    async def trial(self, request: web.Request, peer: Peer) -> Any:
        """GET /v1/trial: the record of the running or last trial, and the state of the running one."""
        record, status = self._agent.trial(), self._agent.status().trial
        return {"record": encode(record), "running": encode(status)}

    async def start_trial(self, request: web.Request, peer: Peer) -> Any:
        """POST /v1/trial: start a trial."""
        body = await self._body(request, TRIAL_KEYS)
        if body.get("hours") is None:
            raise ApiError(Code.REFUSED, "the length is missing", "hours", "a number of hours")
        for key, value in body.items():
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise ApiError(Code.REFUSED, f"{show(value)} is not a number", key, "a number")
        return {"record": encode(await self._agent.start_trial(request_of(body), peer.actor()))}

    async def stop_trial(self, request: web.Request, peer: Peer) -> Any:
        """DELETE /v1/trial: end the running trial."""
        return {"record": encode(self._agent.stop_trial(peer.actor()))}
