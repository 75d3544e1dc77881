"""The paths of the control API and their handlers. The server checks rights and reports errors."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from aiohttp import web

from perphd.config.file import TABLES, Config
from perphd.config.host_check import check_workloads_on_host
from perphd.config.schema import TUNING, Key, expert_keys, file_value, show, usual_keys
from perphd.control import metrics
from perphd.control.access import Access, Peer, Right
from perphd.control.errors import ApiError, Code
from perphd.control.limits import ApiLimits
from perphd.control.mode_routes import ModeRoutes
from perphd.control.model_routes import ModelRoutes
from perphd.control.past_routes import PastRoutes
from perphd.control.port import AgentPort
from perphd.control.render import declared_lines, limitations, undeclared_lines
from perphd.control.replay_routes import Recordings
from perphd.control.request import BODY, only, read_body, whole
from perphd.control.sizing_routes import SizingRoutes
from perphd.control.sql import Queries
from perphd.control.stream import Streams
from perphd.control.workload_routes import WorkloadRoutes, table_of
from perphd.domain.control import Actor
from perphd.domain.masking import status_without_secrets, without_secrets
from perphd.domain.reading import Unavailable
from perphd.domain.whatif import Arrival
from perphd.domain.wire import encode
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.host.cgroup.hierarchy import discover
from perphd.host.fs import RealFs

if TYPE_CHECKING:
    from perphd.control.node_routes import NodeRoutes
    from perphd.control.queue_routes import QueueRoutes

_MAX_LIMIT = 1000
Handler: TypeAlias = Callable[[web.Request, Peer], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Hooks:
    """Functions that the API needs in addition to the agent.

    ``check_host``: raises ConfigError for workloads that this host cannot take (such as perphd's own cgroup), and
    returns warnings. ``monotonic``, ``wall``: return the agent's clock and the time of day, in seconds.
    """

    check_host: Callable[[Sequence[WorkloadSpec]], Sequence[str]]
    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time

    @classmethod
    def of_host(cls, root: str = "", *, simulated: bool = False) -> Hooks:
        """Hooks for a host: the one with its files below ``root`` (empty: this machine), or a simulated one."""
        if simulated:
            return cls(check_host=lambda specs: ())
        fs = RealFs(root)
        hierarchies = discover(fs)
        return cls(
            check_host=lambda specs: check_workloads_on_host(specs, fs, hierarchies, BODY),
        )


@dataclass(frozen=True, slots=True)
class Route:
    """One path and method. The handler returns a JSON value (sent with ``status``) or a complete response.

    ``waits``: True if the request takes long, but hardly occupies the event loop.
    """

    method: str
    path: str
    right: Right
    handler: Handler
    status: int = 200
    waits: bool = False


class Routes:
    """All paths of version 1 of the API."""

    def __init__(
        self,
        agent: AgentPort,
        reload: Callable[[Actor], Awaitable[Config]],
        hooks: Hooks,
        limits: ApiLimits,
        access: Access,
    ) -> None:
        self._agent, self._reload_config, self._hooks = agent, reload, hooks
        self._limits, self._access = limits, access
        self._queries = Queries(agent.config, limits)
        self._description: bytes | None = None
        self._metrics = metrics.Collector(
            agent.status,
            lambda: agent.tally,
            lambda: agent.topology,
            agent.forecasts,
            agent.shaper,
            agent.memory_fits,
        )
        self._streams = Streams(agent, limits, self._clock)
        self._recordings = Recordings(agent, limits)
        self._workloads = WorkloadRoutes(agent, access, hooks.check_host, self._body)
        self._modes = ModeRoutes(agent, self._workloads, self._body)
        self._past = PastRoutes(agent, self._queries, self._clock, self._workloads.find, access, limits)
        self._sizing = SizingRoutes(agent, self._workloads.find, self._body)
        self._models = ModelRoutes(agent, limits, self._workloads.find, self._workloads.check_lra)

    # Load the modules of the queue and the scheduler only in a daemon that uses them.

    @cached_property
    def _jobs(self) -> QueueRoutes:
        from perphd.control.queue_routes import QueueRoutes

        return QueueRoutes(self._agent, self._access, self._body)

    @cached_property
    def _node(self) -> NodeRoutes:
        from perphd.control.node_routes import NodeRoutes

        return NodeRoutes(self._agent, self._body, self._clock)

    def table(self) -> tuple[Route, ...]:
        """Every route with the right that it requires."""
        read, submit, change = Right.READ, Right.SUBMIT, Right.CHANGE

        def jobs(handler: Callable[[QueueRoutes], Handler]) -> Handler:
            async def ask(request: web.Request, peer: Peer) -> Any:
                return await handler(self._jobs)(request, peer)

            return ask

        def node(handler: Callable[[NodeRoutes], Handler]) -> Handler:
            async def ask(request: web.Request, peer: Peer) -> Any:
                return await handler(self._node)(request, peer)

            return ask

        return (
            Route("GET", "/v1/status", read, self._status),
            Route("GET", "/v1/workloads", read, self._workloads.listed),
            Route("GET", "/v1/doctor", read, self._doctor),
            Route("GET", "/v1/explain", read, self._explain),
            Route("GET", "/v1/whatif", read, self._whatif),
            Route("GET", "/v1/node", read, node(lambda of: of.node)),
            Route("POST", "/v1/whatif", read, node(lambda of: of.whatif)),
            Route("GET", "/v1/shaper", read, self._sizing.shaper),
            Route("GET", "/v1/memfit", read, self._sizing.fits),
            Route("PUT", "/v1/memfit/{name}", change, self._sizing.start_fit),
            Route("POST", "/v1/memfit/{name}/apply", change, self._sizing.apply_fit),
            Route("DELETE", "/v1/memfit/{name}", change, self._sizing.stop_fit),
            Route("GET", "/v1/suggest", read, self._suggest),
            Route("GET", "/v1/models", read, self._models.list),
            Route("GET", "/v1/models/{name}", read, self._models.show),
            Route("GET", "/v1/models/{name}/export", read, self._models.export),
            Route("GET", "/v1/models/{name}/origin", read, self._models.origin),
            Route("GET", "/v1/forecasts", read, self._forecasts),
            Route("GET", "/v1/contention", read, self._contention),
            Route("GET", "/v1/trial", read, self._modes.trial),
            Route("GET", "/v1/jobs", read, jobs(lambda of: of.listed), waits=True),
            Route("POST", "/v1/jobs", submit, jobs(lambda of: of.submit), 201, waits=True),
            Route("GET", "/v1/jobs/{name}", read, jobs(lambda of: of.show), waits=True),
            Route("DELETE", "/v1/jobs/{name}", submit, jobs(lambda of: of.cancel), waits=True),
            Route("GET", "/v1/jobs/{name}/log", read, jobs(lambda of: of.log), waits=True),
            Route("GET", "/v1/jobs/{name}/slots", read, jobs(lambda of: of.slots), waits=True),
            Route("POST", "/v1/score", read, jobs(lambda of: of.score), waits=True),
            Route("GET", "/v1/event", read, jobs(lambda of: of.event)),
            Route("POST", "/v1/event", change, jobs(lambda of: of.begin_event), 201),
            Route("DELETE", "/v1/event", change, jobs(lambda of: of.end_event)),
            Route("GET", "/v1/config", read, self._config),
            Route("GET", "/v1/metrics", read, self._exposition),
            Route("GET", "/metrics", read, self._exposition),
            Route("GET", "/v1/events", read, self._events, waits=True),
            Route("GET", "/v1/recording", read, self._recording, waits=True),
            Route("GET", "/v1/history", read, self._past.history, waits=True),
            Route("GET", "/v1/past", read, self._past.past, waits=True),
            Route("GET", "/v1/openapi.json", read, self._openapi),
            Route("POST", "/v1/query", read, self._past.query, waits=True),
            Route("PUT", "/v1/mode", change, self._modes.mode),
            Route("POST", "/v1/pause", change, self._modes.pause),
            Route("POST", "/v1/resume", change, self._modes.resume),
            Route("POST", "/v1/trial", change, self._modes.start_trial, 201),
            Route("DELETE", "/v1/trial", change, self._modes.stop_trial),
            Route("POST", "/v1/workloads", change, self._workloads.add, 201),
            Route("DELETE", "/v1/workloads/{name}", change, self._workloads.remove),
            Route("POST", "/v1/workloads/{name}/sli", change, self._workloads.push),
            Route("PUT", "/v1/models/{name}", change, self._models.take),
            Route("DELETE", "/v1/models/{name}", change, self._models.reset),
            Route("POST", "/v1/reserve", change, node(lambda of: of.reserve), 201, waits=True),
            Route("POST", "/v1/reserve/{name}/commit", change, node(lambda of: of.commit)),
            Route("DELETE", "/v1/reserve/{name}", change, node(lambda of: of.release)),
            Route("POST", "/v1/restore", change, self._restore),
            Route("POST", "/v1/reload", change, self._reload),
        )

    def end(self) -> None:
        """End streams and recordings, because the daemon stops."""
        self._streams.end()
        self._recordings.end()
        self._queries.end()

    # --- reading -----------------------------------------------------------------------------------------------

    async def _status(self, request: web.Request, peer: Peer) -> Any:
        return {**encode(status_without_secrets(self._agent.status())), "clock": self._clock()}

    async def _doctor(self, request: web.Request, peer: Peer) -> Any:
        status, topology = self._agent.status(), self._agent.topology
        groups = () if status.host is None else status.host.undeclared
        names = {item.group: item.name for item in groups}
        return {
            "capabilities": encode(self._agent.capabilities.items),
            "topology": encode(topology),
            "limitations": [*limitations(status), *await self._agent.oom_order()],
            "bands": list(self._agent.bands()),
            "by_themselves": list(declared_lines(status.workloads)),
            "undeclared": list(undeclared_lines(self._agent.suggestions(), len(topology.usable), names)),
        }

    async def _explain(self, request: web.Request, peer: Peer) -> Any:
        only(request.query, ("workload", "at", "limit"))
        name = request.query.get("workload", "")
        status = self._workloads.find(name)
        limit = whole(request.query.get("limit", "20"), "limit", _MAX_LIMIT)
        at_s = self._monotonic(request.query["at"]) if "at" in request.query else None
        decisions = self._agent.decisions(name, at_s=at_s, limit=limit)
        return {
            "decisions": encode(decisions),
            "aftermath": encode(tuple(self._agent.consequences(decision) for decision in decisions)),
            "mode": status.mode.value,
            "kind": status.spec.kind.value,
            "in_force": encode(status.in_force),
            "workload": encode(replace(status, spec=without_secrets(status.spec))),
            "host": encode(self._agent.status().host),
            "clock": self._clock(),
        }

    async def _whatif(self, request: web.Request, peer: Peer) -> Any:
        only(request.query, ("add",))
        try:
            arrival = Arrival.parse(request.query.get("add", ""))
        except ValueError as exc:  # a ParseError is one
            raise ApiError(Code.REFUSED, str(exc), "add", "batch:cpu=CORES,mem=SIZE") from exc
        return encode(self._agent.whatif(arrival))

    async def _forecasts(self, request: web.Request, peer: Peer) -> web.Response:
        found = self._agent.forecasts()
        if isinstance(found, Unavailable):
            raise ApiError(Code.NOT_FOUND, found.reason)
        return web.Response(body=found, content_type="application/json", charset="utf-8")

    async def _contention(self, request: web.Request, peer: Peer) -> Any:
        only(request.query, ("workload",))
        name, devices = request.query.get("workload"), self._agent.contended()
        if name is not None:
            self._workloads.find(name)
            devices = tuple(
                device for device in devices if name in {share.workload for share in device.restrictions}
            )
        return {"devices": encode(devices)}

    async def _suggest(self, request: web.Request, peer: Peer) -> Any:
        return {"suggestions": encode(self._agent.suggestions())}

    async def _config(self, request: web.Request, peer: Peer) -> Any:
        config = self._agent.config
        tables = {name: _values(usual_keys(table), getattr(config, name)) for name, table in TABLES.items()}
        tuning = {name: _values(expert_keys(table), getattr(config, name)) for name, table in TABLES.items()}
        lists: dict[str, list[Any]] = {kind.value: [] for kind in Kind}
        for spec in (*config.workloads, *config.matches):
            lists[spec.kind.value].append(table_of(spec))
        return {
            **{name: values for name, values in tables.items() if values},
            **lists,
            TUNING: {name: values for name, values in tuning.items() if values},
            "sources": list(config.sources),
            "warnings": list(config.warnings),
            "store_path": config.store_path,
        }

    async def _exposition(self, request: web.Request, peer: Peer) -> web.Response:
        return web.Response(body=self._metrics.text(), headers={"Content-Type": metrics.CONTENT_TYPE})

    async def _openapi(self, request: web.Request, peer: Peer) -> web.Response:
        if self._description is None:
            from perphd.control import (
                openapi,
            )  # imported here because it is rarely requested and inspects many types

            self._description = openapi.text().encode()
        return web.Response(body=self._description, content_type="application/json", charset="utf-8")

    async def _events(self, request: web.Request, peer: Peer) -> web.StreamResponse:
        only(request.query, ("kind", "workload"))
        return await self._streams.serve(request, self._access.allows(peer, Right.CHANGE))

    async def _recording(self, request: web.Request, peer: Peer) -> web.StreamResponse:
        only(request.query, ("rounds",))
        return await self._recordings.serve(request)

    # --- changing ----------------------------------------------------------------------------------------------

    async def _restore(self, request: web.Request, peer: Peer) -> Any:
        ignore_lock = request.query.get("ignore_lock") == "1"
        return encode(await self._agent.restore(peer.actor(), ignore_lock))

    async def _reload(self, request: web.Request, peer: Peer) -> Any:
        config = await self._reload_config(peer.actor())
        warnings = [*config.warnings, *self._hooks.check_host(config.workloads)]
        return {
            "sources": list(config.sources),
            "workloads": [spec.name for spec in (*config.workloads, *config.matches)],
            "warnings": warnings,
        }

    # --- helpers -----------------------------------------------------------------------------------------------

    def _clock(self) -> dict[str, float]:
        return {"monotonic_s": self._hooks.monotonic(), "unix_s": self._hooks.wall()}

    def _monotonic(self, text: str) -> float:
        allowed = "seconds since the epoch, or a negative number: seconds ago"
        try:
            value = float(text)
        except ValueError as exc:
            raise ApiError(Code.REFUSED, f"{show(text)} is not a time", "at", allowed) from exc
        if not math.isfinite(value):
            raise ApiError(Code.REFUSED, f"{show(text)} is not a time", "at", allowed)
        ago = -value if value < 0 else self._hooks.wall() - value
        return self._hooks.monotonic() - ago

    async def _body(self, request: web.Request, known: Sequence[str] = ()) -> dict[str, Any]:
        return await read_body(request, self._limits.body_s, known)


def _values(keys: Iterable[Key], table: object) -> dict[str, Any]:
    """The values of these keys of a configuration table, in the form of a configuration file."""
    return {key.name: file_value(key, getattr(table, key.field)) for key in keys}
