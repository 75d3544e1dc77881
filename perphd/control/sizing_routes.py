"""Routes of the control API for sizes: the resource shaper, and memory fits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from aiohttp import web

from perphd.config.schema import show
from perphd.control.access import Peer
from perphd.control.errors import ApiError, Code
from perphd.control.port import AgentPort
from perphd.domain.errors import ConfigError
from perphd.domain.wire import encode
from perphd.sizing.memory_fit import LEAST_SAMPLES, STEP

SAMPLES: Final = (10, 3600)
STEPS: Final = (0.01, 0.2)


class SizingRoutes:
    """Handlers of ``/v1/shaper`` and ``/v1/memfit``.

    ``check`` raises an ApiError unless its argument names a workload.
    """

    def __init__(
        self,
        agent: AgentPort,
        check: Callable[[str], object],
        body: Callable[[web.Request, Sequence[str]], Awaitable[dict[str, Any]]],
    ) -> None:
        self._agent, self._check, self._body = agent, check, body

    async def shaper(self, request: web.Request, peer: Peer) -> Any:
        """GET /v1/shaper: targets, workloads that give back memory, and reclaimable memory."""
        return encode(self._agent.shaper())

    async def fits(self, request: web.Request, peer: Peer) -> Any:
        """GET /v1/memfit: all searches for memory limits."""
        return {"searches": encode(self._agent.memory_fits())}

    async def start_fit(self, request: web.Request, peer: Peer) -> Any:
        """PUT /v1/memfit/NAME: start a search."""
        name = self._name(request)
        body = await self._body(request, ("samples", "step"))
        samples = _number(body.get("samples", LEAST_SAMPLES), "samples", SAMPLES)
        step = _number(body.get("step", STEP), "step", STEPS)
        with _Conflicts():
            self._agent.start_memory_fit(name, int(samples), step, peer.actor())
        return {"started": name}

    async def apply_fit(self, request: web.Request, peer: Peer) -> Any:
        """POST /v1/memfit/NAME/apply: keep the result in force."""
        name = self._name(request)
        with _Conflicts():
            return {"applied": name, "memory_high_bytes": self._agent.apply_memory_fit(name, peer.actor())}

    async def stop_fit(self, request: web.Request, peer: Peer) -> Any:
        """DELETE /v1/memfit/NAME: end a search, or remove its applied limit."""
        name = self._name(request)
        with _Conflicts():
            self._agent.stop_memory_fit(name, peer.actor())
        return {"stopped": name}

    def _name(self, request: web.Request) -> str:
        name = request.match_info["name"]
        self._check(name)
        return name


class _Conflicts:
    """Converts the agent's refusals into conflicts (HTTP 409)."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, exc: BaseException | None, trace: object) -> None:
        if isinstance(exc, ConfigError):
            raise ApiError(Code.CONFLICT, exc.problem, exc.key, exc.allowed) from exc


def _number(value: object, key: str, bounds: tuple[float, float]) -> float:
    low, high = bounds
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ApiError(Code.REFUSED, f"{show(value)} is not accepted", key, f"{low:g} to {high:g}")
    return float(value)
