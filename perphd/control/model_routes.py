"""Routes of the control API for models: list, show, origin, export, import, reset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiohttp import web

from perphd.control.access import Peer
from perphd.control.errors import ApiError, Code
from perphd.control.limits import ApiLimits
from perphd.control.port import AgentPort
from perphd.control.request import arrived
from perphd.domain.wire import encode
from perphd.predictor.persist import ModelFileError


class ModelRoutes:
    """Handlers of ``/v1/models``.

    ``check`` raises an ApiError unless its argument names a workload; ``check_lra``: unless it names an LRA.
    """

    def __init__(
        self,
        agent: AgentPort,
        limits: ApiLimits,
        check: Callable[[str], object],
        check_lra: Callable[[str], None],
    ) -> None:
        self._agent, self._limits, self._check, self._check_lra = agent, limits, check, check_lra

    async def list(self, request: web.Request, peer: Peer) -> Any:
        """GET /v1/models: a summary of each LRA's model."""
        return {"models": encode(self._agent.models())}

    async def show(self, request: web.Request, peer: Peer) -> Any:
        """GET /v1/models/NAME: the model's predictions."""
        return encode(self._agent.model_view(self._name(request)))

    async def origin(self, request: web.Request, peer: Peer) -> Any:
        """GET /v1/models/NAME/origin: where a workload's model and its forecasts came from."""
        name = request.match_info["name"]
        self._check(name)
        return encode(self._agent.model_origin(name))

    async def export(self, request: web.Request, peer: Peer) -> web.Response:
        """GET /v1/models/NAME/export: the model as a file."""
        text = self._agent.export_model(self._name(request))
        return web.Response(text=text, content_type="application/json")

    async def take(self, request: web.Request, peer: Peer) -> Any:
        """PUT /v1/models/NAME?rename=: replace the model by the file in the body."""
        name = self._name(request)
        for key in request.query:
            if key != "rename":
                raise ApiError(Code.REFUSED, f"unknown key {key!r}", key, "rename")
        rename = request.query.get("rename", "0")
        if rename not in ("0", "1"):
            raise ApiError(Code.REFUSED, f"{rename!r} is neither 0 nor 1", "rename", "0, 1")
        text = await arrived(request, self._limits.body_s)
        try:
            warnings = await self._agent.import_model(name, text, rename=rename == "1")
        except ModelFileError as exc:
            raise ApiError(Code.REFUSED, f"the model is refused: {exc}", "model") from exc
        return {"imported": name, "warnings": list(warnings)}

    async def reset(self, request: web.Request, peer: Peer) -> Any:
        """DELETE /v1/models/NAME: discard the model."""
        name = self._name(request)
        await self._agent.reset_model(name)
        return {"reset": name}

    def _name(self, request: web.Request) -> str:
        name = request.match_info["name"]
        self._check_lra(name)
        return name
