"""Routes of the control API for the past: values over time, and the status at one moment, both from the store."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from typing import Final

from aiohttp import web

from perphd.config.schema import show
from perphd.control.access import Access, Peer, Right
from perphd.control.errors import ApiError, Code
from perphd.control.limits import ApiLimits
from perphd.control.past import past_status, subjects_of
from perphd.control.port import AgentPort
from perphd.control.request import only, read_body, whole
from perphd.control.sql import Queries
from perphd.domain.masking import status_without_secrets
from perphd.domain.status import WorkloadStatus
from perphd.domain.wire import encode, json_of
from perphd.monitor.past import read_history, read_moment

MOST_SLOTS: Final = 1000
DEFAULT_SLOTS: Final = 120
DEFAULT_LAST_S: Final = 3600.0
LONGEST_S: Final = 366 * 86400.0
SHORTEST_S: Final = 1.0


class PastRoutes:
    """Answers within the limits of queries: a few at a time, and a budget of CPU time.

    Args:
        agent: provides the workloads.
        queries: reads the store.
        clock: returns the agent's clock and the time of day.
        workload: returns the status of the workload with a name, or raises an ApiError.
    """

    def __init__(
        self,
        agent: AgentPort,
        queries: Queries,
        clock: Callable[[], dict[str, float]],
        workload: Callable[[object], WorkloadStatus],
        access: Access,
        limits: ApiLimits,
    ) -> None:
        self._agent, self._queries, self._clock, self._workload = agent, queries, clock, workload
        self._access, self._limits = access, limits

    async def query(self, request: web.Request, peer: Peer) -> web.Response:
        """POST /v1/query: run one SELECT statement on the store."""
        body = await read_body(request, self._limits.body_s, ("sql", "limit"))
        sql = body.get("sql")
        if not isinstance(sql, str) or not sql.strip():
            raise ApiError(Code.REFUSED, f"{show(sql)} is not SQL", "sql", "one SELECT statement as text")
        limit = whole(body.get("limit", self._limits.query_rows), "limit", self._limits.query_rows)
        answer = await self._queries.answer(sql, limit, self._access.allows(peer, Right.CHANGE))
        return web.Response(body=answer, content_type="application/json")

    async def history(self, request: web.Request, peer: Peer) -> web.Response:
        """GET /v1/history: the ``last_s`` seconds before ``until`` in ``slots`` slots, for one workload or all."""
        query = request.query
        only(query, ("workload", "until", "last_s", "slots"))
        clock = self._clock()
        last_s = _number(query, "last_s", DEFAULT_LAST_S, SHORTEST_S, LONGEST_S)
        slots = int(_number(query, "slots", DEFAULT_SLOTS, 1, MOST_SLOTS))
        until_s = self._moment(query, "until", clock)
        items = self._agent.status().workloads
        if "workload" in query:
            items = (self._workload(query["workload"]),)
        subjects = subjects_of(item.spec for item in items)
        offset_s = clock["unix_s"] - clock["monotonic_s"]

        def job(connection: sqlite3.Connection) -> bytes:
            found = read_history(connection, subjects, until_s - last_s, until_s, slots, offset_s)
            return json_of({**encode(found), "clock": clock}).encode()

        answer = await self._queries.ask(job, self._access.allows(peer, Right.CHANGE))
        return web.Response(body=answer, content_type="application/json")

    async def past(self, request: web.Request, peer: Peer) -> web.Response:
        """GET /v1/past: the status at ``at``. Its clock shows that moment, so that ages are relative to it."""
        query = request.query
        only(query, ("at",))
        clock = self._clock()
        at_s = self._moment(query, "at", clock)
        now = self._agent.status()
        offset_s = clock["unix_s"] - clock["monotonic_s"]
        subjects = subjects_of(item.spec for item in now.workloads)
        then = {"monotonic_s": at_s - offset_s, "unix_s": at_s}

        def job(connection: sqlite3.Connection) -> bytes:
            moment = read_moment(connection, subjects, at_s, offset_s)
            answer = {
                "status": encode(status_without_secrets(past_status(now, moment))),
                "events": encode(moment.events),
                "stored_since_unix_s": moment.stored_since_unix_s,
                "stored_until_unix_s": moment.stored_until_unix_s,
                "clock": then,
            }
            return json_of(answer).encode()

        answer = await self._queries.ask(job, self._access.allows(peer, Right.CHANGE))
        return web.Response(body=answer, content_type="application/json")

    def _moment(self, query: Mapping[str, str], key: str, clock: Mapping[str, float]) -> float:
        """Seconds since the epoch; a negative number is relative to now, and a missing one means now."""
        given = _number(query, key, 0.0, -LONGEST_S, 1e12)
        return clock["unix_s"] + given if given <= 0 else given


def _number(query: Mapping[str, str], key: str, default: float, low: float, high: float) -> float:
    allowed = f"a number from {low:g} to {high:g}"
    text = query.get(key)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError as exc:
        raise ApiError(Code.REFUSED, f"{text[:80]!r} is not {allowed}", key, allowed) from exc
    if not low <= value <= high:
        raise ApiError(Code.REFUSED, f"{text[:80]} is not {allowed}", key, allowed)
    return value
