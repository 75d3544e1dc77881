"""What the control API answers: one method a path, each from JSON to JSON. Rights and errors are the server's."""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from aiohttp import web

from perphd.agent.config import TABLES, Config
from perphd.agent.config_host import check_workloads_on_host
from perphd.agent.config_schema import file_value, keys_of, show, unknown_key
from perphd.agent.config_workloads import (
    Declared,
    check_workloads,
    forget_runtime,
    read_runtime,
    read_workload,
    remember_runtime,
    to_table,
)
from perphd.agent.match import is_lasting
from perphd.control import metrics
from perphd.control.access import Access, Peer, Right
from perphd.control.errors import ApiError, Code
from perphd.control.limits import MAX_PAUSE_S, MAX_REASON, Limits
from perphd.control.model_routes import ModelRoutes
from perphd.control.owner_only import check_harmless
from perphd.control.past_routes import PastRoutes
from perphd.control.port import AgentPort, Done
from perphd.control.render import declared_lines, limitations
from perphd.control.replay_routes import Recordings
from perphd.control.sizing_routes import SizingRoutes
from perphd.control.sql import Queries
from perphd.control.stream import Streams
from perphd.control.trial_routes import KEYS as TRIAL_KEYS
from perphd.control.trial_routes import start_trial, stop_trial, trial_answer
from perphd.control.wire import encode
from perphd.domain.control import Actor
from perphd.domain.errors import ConfigError
from perphd.domain.masking import status_without_secrets, without_secrets
from perphd.domain.reading import Unavailable
from perphd.domain.status import WorkloadStatus
from perphd.domain.whatif import Arrival
from perphd.domain.workload import Kind, Mode, WorkloadSpec
from perphd.host.cgroup.hierarchy import discover
from perphd.host.fs import RealFs
from perphd.monitor.sli import PUSHED_FIELDS, SLI_FIELDS, told

if TYPE_CHECKING:
    from perphd.control.node_routes import NodeRoutes
    from perphd.control.queue_routes import QueueRoutes

_BODY = "the request"
_MAX_LIMIT = 1000
Handler: TypeAlias = Callable[[web.Request, Peer], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Hooks:
    """What the API needs beside the agent.

    ``check_host``: raises ConfigError for workloads that this host cannot take (perphd's own cgroup), returns
    warnings. ``monotonic`` and ``wall``: the agent's clock and the time of day, in s.
    """

    check_host: Callable[[Sequence[WorkloadSpec]], Sequence[str]]
    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time

    @classmethod
    def of_host(cls, root: str = "", *, simulated: bool = False) -> Hooks:
        """The real ones, for the host whose files lie below ``root`` (empty: this machine), or a simulated one."""
        if simulated:
            return cls(check_host=lambda specs: ())
        fs = RealFs(root)
        hierarchies = discover(fs)
        return cls(
            check_host=lambda specs: check_workloads_on_host(specs, fs, hierarchies, _BODY),
        )


@dataclass(frozen=True, slots=True)
class Route:
    """One path. The handler answers a JSON value (sent with ``status``) or a whole response.

    ``waits``: it takes long, and hardly any of that on the loop.
    """

    method: str
    path: str
    right: Right
    handler: Handler
    status: int = 200
    waits: bool = False


class Routes:
    """All paths of version 1."""

    def __init__(
        self,
        agent: AgentPort,
        reload: Callable[[Actor], Awaitable[Config]],
        hooks: Hooks,
        limits: Limits,
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
        self._past = PastRoutes(agent, self._queries, self._clock, self._workload)
        self._sizing = SizingRoutes(agent, self._workload, self._body)
        self._models = ModelRoutes(agent, limits, lambda name: self._check_lra(self._workload(name)))

    # Who has no queue, and whom no scheduler asks, does not carry their modules.

    @cached_property
    def _jobs(self) -> QueueRoutes:
        from perphd.control.queue_routes import QueueRoutes

        return QueueRoutes(self._agent, self._access, self._body)

    @cached_property
    def _node(self) -> NodeRoutes:
        from perphd.control.node_routes import NodeRoutes

        return NodeRoutes(self._agent, self._body, self._clock)

    def table(self) -> tuple[Route, ...]:
        """Every route with the right that it takes."""
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
            Route("GET", "/v1/workloads", read, self._workloads),
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
            Route("GET", "/v1/forecasts", read, self._forecasts),
            Route("GET", "/v1/trial", read, self._trial),
            Route("GET", "/v1/jobs", read, jobs(lambda of: of.listed), waits=True),
            Route("POST", "/v1/jobs", submit, jobs(lambda of: of.submit), 201, waits=True),
            Route("GET", "/v1/jobs/{name}", read, jobs(lambda of: of.show), waits=True),
            Route("DELETE", "/v1/jobs/{name}", submit, jobs(lambda of: of.cancel), waits=True),
            Route("GET", "/v1/jobs/{name}/log", read, jobs(lambda of: of.log), waits=True),
            Route("GET", "/v1/jobs/{name}/slots", read, jobs(lambda of: of.slots), waits=True),
            Route("GET", "/v1/event", read, jobs(lambda of: of.event)),
            Route("POST", "/v1/event", change, jobs(lambda of: of.begin_event), 201),
            Route("DELETE", "/v1/event", change, jobs(lambda of: of.end_event)),
            Route("GET", "/v1/config", read, self._config),
            Route("GET", "/v1/metrics", read, self._exposition),
            Route("GET", "/metrics", read, self._exposition),
            Route("GET", "/v1/events", read, self._events, waits=True),
            Route("GET", "/v1/recording", read, self._recording, waits=True),
            Route("GET", "/v1/history", read, self._history, waits=True),
            Route("GET", "/v1/past", read, self._moment, waits=True),
            Route("GET", "/v1/openapi.json", read, self._openapi),
            Route("POST", "/v1/query", read, self._query, waits=True),
            Route("PUT", "/v1/mode", change, self._mode),
            Route("POST", "/v1/pause", change, self._pause),
            Route("POST", "/v1/resume", change, self._resume),
            Route("POST", "/v1/trial", change, self._start_trial, 201),
            Route("DELETE", "/v1/trial", change, self._stop_trial),
            Route("POST", "/v1/workloads", change, self._add, 201),
            Route("DELETE", "/v1/workloads/{name}", change, self._remove),
            Route("POST", "/v1/workloads/{name}/sli", change, self._push),
            Route("PUT", "/v1/models/{name}", change, self._models.take),
            Route("DELETE", "/v1/models/{name}", change, self._models.reset),
            Route("POST", "/v1/reserve", change, node(lambda of: of.reserve), 201, waits=True),
            Route("POST", "/v1/reserve/{name}/commit", change, node(lambda of: of.commit)),
            Route("DELETE", "/v1/reserve/{name}", change, node(lambda of: of.release)),
            Route("POST", "/v1/restore", change, self._restore),
            Route("POST", "/v1/reload", change, self._reload),
        )

    def end(self) -> None:
        """Let everything end that would go on by itself: the daemon stops."""
        self._streams.end()
        self._recordings.end()
        self._queries.end()

    # --- reading -----------------------------------------------------------------------------------------------

    async def _status(self, request: web.Request, peer: Peer) -> Any:
        return {**encode(status_without_secrets(self._agent.status())), "clock": self._clock()}

    async def _workloads(self, request: web.Request, peer: Peer) -> Any:
        runtime = {item.spec.name for item in read_runtime(self._agent.config.daemon.state_dir)}
        return {
            "workloads": [
                {
                    "kind": item.spec.kind.value,
                    **_table(item.spec),
                    "present": item.present,
                    "effective_mode": item.mode.value,
                    "added_at_run_time": item.spec.name in runtime or not _may_stand_in_a_file(item.spec),
                    "declared_by": item.spec.declared_by,
                }
                for item in self._agent.status().workloads
            ]
        }

    async def _doctor(self, request: web.Request, peer: Peer) -> Any:
        return {
            "capabilities": encode(self._agent.capabilities.items),
            "topology": encode(self._agent.topology),
            "limitations": list(limitations(self._agent.status())),
            "by_themselves": list(declared_lines(self._agent.status().workloads)),
        }

    async def _explain(self, request: web.Request, peer: Peer) -> Any:
        _only(request.query, ("workload", "at", "limit"))
        name = request.query.get("workload", "")
        status = self._workload(name)
        limit = _whole(request.query.get("limit", "20"), "limit", _MAX_LIMIT)
        at_s = self._monotonic(request.query["at"]) if "at" in request.query else None
        decisions = self._agent.decisions(name, at_s=at_s, limit=limit)
        return {
            "decisions": encode(decisions),
            "aftermath": encode(tuple(self._agent.aftermath(decision) for decision in decisions)),
            "mode": status.mode.value,
            "kind": status.spec.kind.value,
            "in_force": encode(status.in_force),
            "workload": encode(status),
            "host": encode(self._agent.status().host),
            "clock": self._clock(),
        }

    async def _whatif(self, request: web.Request, peer: Peer) -> Any:
        _only(request.query, ("add",))
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

    async def _suggest(self, request: web.Request, peer: Peer) -> Any:
        return {"suggestions": encode(self._agent.suggestions())}

    async def _config(self, request: web.Request, peer: Peer) -> Any:
        config = self._agent.config
        tables = {name: _keys(table, getattr(config, name)) for name, table in TABLES.items()}
        lists: dict[str, list[Any]] = {kind.value: [] for kind in Kind}
        for spec in (*config.workloads, *config.matches):
            lists[spec.kind.value].append(_table(spec))
        return {
            **tables,
            **lists,
            "sources": list(config.sources),
            "warnings": list(config.warnings),
            "store_path": config.store_path,
        }

    async def _exposition(self, request: web.Request, peer: Peer) -> web.Response:
        return web.Response(body=self._metrics.text(), headers={"Content-Type": metrics.CONTENT_TYPE})

    async def _openapi(self, request: web.Request, peer: Peer) -> web.Response:
        if self._description is None:
            from perphd.control import openapi  # seldom asked for, and it looks through many types

            self._description = openapi.text().encode()
        return web.Response(body=self._description, content_type="application/json", charset="utf-8")

    async def _events(self, request: web.Request, peer: Peer) -> web.StreamResponse:
        _only(request.query, ("kind", "workload"))
        return await self._streams.serve(request, self._access.allows(peer, Right.CHANGE))

    async def _recording(self, request: web.Request, peer: Peer) -> web.StreamResponse:
        _only(request.query, ("rounds",))
        return await self._recordings.serve(request)

    async def _query(self, request: web.Request, peer: Peer) -> Any:
        body = await self._body(request, ("sql", "limit"))
        sql = body.get("sql")
        if not isinstance(sql, str) or not sql.strip():
            raise ApiError(Code.REFUSED, f"{show(sql)} is no SQL", "sql", "one SELECT statement as text")
        limit = _whole(body.get("limit", self._limits.query_rows), "limit", self._limits.query_rows)
        answer = await self._queries.answer(sql, limit, self._access.allows(peer, Right.CHANGE))
        return web.Response(body=answer, content_type="application/json")

    async def _history(self, request: web.Request, peer: Peer) -> Any:
        _only(request.query, ("workload", "until", "last_s", "slots"))
        answer = await self._past.history(request.query, self._access.allows(peer, Right.CHANGE))
        return web.Response(body=answer, content_type="application/json")

    async def _moment(self, request: web.Request, peer: Peer) -> Any:
        _only(request.query, ("at",))
        answer = await self._past.past(request.query, self._access.allows(peer, Right.CHANGE))
        return web.Response(body=answer, content_type="application/json")

    # --- changing ----------------------------------------------------------------------------------------------

    async def _mode(self, request: web.Request, peer: Peer) -> Any:
        body = await self._body(request, ("mode", "workload"))
        allowed = ", ".join(Mode)
        mode, name = body.get("mode"), body.get("workload")
        if mode not in tuple(Mode):
            raise ApiError(Code.REFUSED, f"{show(mode)} is not a mode", "mode", allowed)
        if name is not None and self._declared(name) is None:
            self._workload(name)
        await _done(self._agent.set_mode(Mode(mode), name, peer.actor()))
        status = self._agent.status()
        paused = any(pause.workload in ("", name) for pause in status.pauses)
        return {
            "mode": mode,
            "workload": name,
            "configured_mode": status.configured_mode.value,
            "paused": paused,
        }

    async def _pause(self, request: web.Request, peer: Peer) -> Any:
        body = await self._body(request, ("workload", "for_s", "reason"))
        name, for_s, reason = body.get("workload"), body.get("for_s"), body.get("reason", "")
        if name is not None and self._declared(name) is None:
            self._workload(name)
        if for_s is not None:
            for_s = _reading("for_s", for_s)
            if not 0 < for_s <= MAX_PAUSE_S:
                raise ApiError(Code.REFUSED, f"{for_s:g} is not accepted", "for_s", f"1 to {MAX_PAUSE_S:g} s")
        if not isinstance(reason, str) or len(reason) > MAX_REASON:
            raise ApiError(
                Code.REFUSED, "is not accepted", "reason", f"text of at most {MAX_REASON} characters"
            )
        pause, report = await self._agent.pause(name, for_s, reason, peer.actor())
        return {"pause": encode(pause), "restored": encode(report)}

    async def _resume(self, request: web.Request, peer: Peer) -> Any:
        body = await self._body(request, ("workload",))
        name = body.get("workload")
        if name is not None and self._declared(name) is None:
            self._workload(name)
        ended = self._agent.resume(name, peer.actor())
        return {"ended": encode(ended), "still": encode(self._agent.status().pauses)}

    async def _trial(self, request: web.Request, peer: Peer) -> Any:
        return trial_answer(self._agent)

    async def _start_trial(self, request: web.Request, peer: Peer) -> Any:
        return start_trial(self._agent, await self._body(request, TRIAL_KEYS), peer)

    async def _stop_trial(self, request: web.Request, peer: Peer) -> Any:
        return stop_trial(self._agent, peer)

    async def _add(self, request: web.Request, peer: Peer) -> Any:
        body = await self._body(request)
        raw_kind = body.pop("kind", None)
        if raw_kind not in tuple(Kind):
            why = "it is missing" if raw_kind is None else f"{show(raw_kind)} is not accepted"
            raise ApiError(Code.REFUSED, why, "kind", ", ".join(Kind))
        kind = Kind(raw_kind)
        spec = read_workload(kind, body, _BODY, kind.value)
        if not self._access.is_owner(peer):
            check_harmless(spec)
        here = {item.spec.name: item.spec for item in self._agent.status().workloads}
        # A declaration has its name also when what was found for it has names of its own.
        here = {item.name: item for item in self._agent.declared} | here
        # One that declared itself gives way to what an operator says.
        existing = [
            Declared(item, "the running daemon", item.name) for item in here.values() if not item.declared_by
        ]
        try:
            check_workloads([*existing, Declared(spec, _BODY, kind.value)])
        except ConfigError as exc:
            raise ApiError(Code.CONFLICT, str(exc), exc.key, exc.allowed) from exc
        warnings = list(self._hooks.check_host([spec]))
        if not _may_stand_in_a_file(spec):
            warnings.append(f"{spec.match} is not remembered over a restart of perphd")
        # Remembered first: what the agent takes is then still there after a crash in between.
        state_dir = self._agent.config.daemon.state_dir
        remember_runtime(state_dir, spec)
        try:
            await _done(self._agent.add_workload(spec, peer.actor()))
        except BaseException:
            forget_runtime(state_dir, spec.name)
            raise
        return {"added": {"kind": kind.value, **_table(spec)}, "warnings": warnings}

    async def _remove(self, request: web.Request, peer: Peer) -> Any:
        _only(request.query, ("kind",))
        name, kind = request.match_info["name"], request.query.get("kind")
        if kind is not None and kind not in tuple(Kind):
            raise ApiError(Code.REFUSED, f"{show(kind)} is not accepted", "kind", ", ".join(Kind))
        spec = self._declared(name) or self._workload(name).spec
        if kind not in (None, spec.kind):
            raise ApiError(
                Code.NOT_FOUND, f"{show(name)} is {spec.kind}: perphctl {spec.kind} rm {name}", "kind"
            )
        if spec.match and self._declared(name) is None:
            self._refuse_to_remove(spec)
        await _done(self._agent.remove_workload(name, peer.actor()))
        remembered = forget_runtime(self._agent.config.daemon.state_dir, name)
        warnings = []
        if not remembered and _may_stand_in_a_file(spec):
            warnings.append(
                f"{name!r} is declared in a configuration file: it comes back with the next reload"
            )
        return {"removed": name, "kind": spec.kind.value, "warnings": warnings}

    async def _push(self, request: web.Request, peer: Peer) -> Any:
        name = request.match_info["name"]
        spec = self._workload(name).spec
        if spec.sli is None or spec.sli.source != "push":
            have = (
                f"its SLI source is {spec.sli.source!r}" if spec.sli is not None else "it has no SLI source"
            )
            raise ApiError(
                Code.CONFLICT, f"{name!r} takes no pushed readings: {have}", "lra.sli.source", '"push"'
            )
        body = await self._body(request, PUSHED_FIELDS)
        values = {key: _reading(key, value) for key, value in body.items()}
        if not values.keys() & set(SLI_FIELDS):
            raise ApiError(Code.REFUSED, "no reading was given", "", ", ".join(SLI_FIELDS))
        await _done(self._agent.push_sli(name, told(values)))
        return {"workload": name, **values}

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

    def _names(self, kind: Kind | None = None) -> list[str]:
        return [item.spec.name for item in self._agent.status().workloads if kind in (None, item.spec.kind)]

    def _declared(self, name: object) -> WorkloadSpec | None:
        """What is looked for by this name."""
        return next((spec for spec in self._agent.declared if spec.name == name), None)

    def _refuse_to_remove(self, found: WorkloadSpec) -> None:
        """One of many that were found would be found again: only their declaration can be removed."""
        for spec in self._agent.declared:
            if spec.match == found.match and found.name.startswith(f"{spec.name}."):
                text = (
                    f"{found.name!r} was found for {spec.name!r} ({spec.match}) and would be found again: remove "
                    f"{spec.name!r}, or let {found.name!r} be only observed (its mode)"
                )
                raise ApiError(Code.CONFLICT, text, "workload", spec.name)

    def _workload(self, name: object) -> WorkloadStatus:
        for item in self._agent.status().workloads:
            if item.spec.name == name:
                return item
        names = self._names()
        shown = ", ".join(names) if names else "none is declared"
        if not name:
            raise ApiError(Code.REFUSED, "a workload must be named", "workload", shown)
        raise ApiError(Code.NOT_FOUND, f"there is no workload {show(name)}", "workload", shown)

    def _check_lra(self, status: WorkloadStatus) -> None:
        if status.spec.kind is not Kind.LRA:
            raise ApiError(
                Code.REFUSED,
                f"{status.spec.name!r} is batch: models and decisions are of LRAs",
                "workload",
                ", ".join(self._names(Kind.LRA)),
            )

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
        """The body as an object; with ``known``, one that has no other keys."""
        async with asyncio.timeout(self._limits.body_s):
            raw = await request.read()
        try:
            body = json.loads(raw.decode(), parse_constant=_no_constant)
        except (ValueError, RecursionError) as exc:
            reason = "nested too deeply" if isinstance(exc, RecursionError) else str(exc)
            raise ApiError(Code.REFUSED, f"the body is not JSON: {reason}", "", "a JSON object") from exc
        if not isinstance(body, dict):
            raise ApiError(Code.REFUSED, f"the body is {show(body)}", "", "a JSON object")
        if known:
            _only(body, known)
        return body


async def _done(result: Done) -> None:
    if inspect.isawaitable(result):
        await result


def _may_stand_in_a_file(spec: WorkloadSpec) -> bool:
    return not spec.match or is_lasting(spec.match)


def _only(given: Mapping[str, Any], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            raise unknown_key(_BODY, name, name, known)


def _whole(value: object, key: str, highest: int) -> int:
    allowed = f"a whole number from 1 to {highest}"
    try:
        number = int(value) if isinstance(value, str | int) and not isinstance(value, bool) else 0
    except ValueError:
        number = 0
    if not 1 <= number <= highest:
        raise ApiError(Code.REFUSED, f"{show(value)} is not {allowed}", key, allowed)
    return number


def _reading(key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e18:
        raise ApiError(Code.REFUSED, f"{show(value)} is not a reading", key, "a number from 0 to 1e18")
    return float(value)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _keys(table: type, values: object) -> dict[str, Any]:
    """A table as it would stand in a file."""
    return {key.name: file_value(key, getattr(values, key.field)) for key in keys_of(table)}


def _table(spec: WorkloadSpec) -> dict[str, Any]:
    return to_table(without_secrets(spec))
