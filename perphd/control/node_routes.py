"""The part of the control API for schedulers: the node's state, the cost of a pod, reservations."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from aiohttp import web

from perphd.cluster.document import NodeDocument, Reserved
from perphd.cluster.impact import PodQuestion, PresentScores, pod_impact
from perphd.cluster.node import NodeFacts, NodeUse, amounts, is_protected, node_document, node_use
from perphd.cluster.reservations import BANDS, NodeLedger, adjusted, closed, offered_bid, opened
from perphd.config.schema import show
from perphd.control.access import Peer
from perphd.control.errors import ApiError, Code
from perphd.control.port import AgentPort
from perphd.domain.errors import PerphError
from perphd.domain.forecast import Forecasts
from perphd.domain.policy import Snapshot
from perphd.domain.reading import Unavailable
from perphd.domain.units import parse_size_bytes
from perphd.domain.wire import decode, encode
from perphd.qos.bands import QosBand
from perphd.qos.ledger import (
    BID_WINDOW_S,
    Amounts,
    CapacityRequest,
    Holding,
    LedgerRefusal,
    RefusalCause,
    commit,
    revoke,
)

MOST_CPUS: Final = 1e5
MOST_HOLDER: Final = 253
"""Maximum length of a holder's name in characters; it equals that of names in Kubernetes."""
MOST_BIDS: Final = 200
"""Maximum number of bids in one bidding window."""
_GENERATIONS_PER_S: Final = 1000


class NodeRoutes:
    """Handlers of ``/v1/node``, ``POST /v1/whatif`` and ``/v1/reserve``.

    ``body``: reads a request's body as an object. ``clock``: returns the present time, monotonic and since 1970.
    """

    def __init__(
        self,
        agent: AgentPort,
        body: Callable[[web.Request, Sequence[str]], Awaitable[dict[str, Any]]],
        clock: Callable[[], dict[str, float]],
    ) -> None:
        self._agent, self._body, self._clock = agent, body, clock
        self._known: tuple[bytes, Forecasts] | None = None
        self._scores = PresentScores()
        self._ledger: NodeLedger | None = None
        self._waiting: dict[str, asyncio.Future[Holding | LedgerRefusal]] = {}

    async def node(self, request: web.Request, peer: Peer) -> Any:
        """GET /v1/node: the node's document for schedulers."""
        return encode(self._document())

    async def whatif(self, request: web.Request, peer: Peer) -> Any:
        """POST /v1/whatif: the cost of a pod to each LRA."""
        body = await self._body(request, ("cpu", "memory", "band", "search"))
        search = body.get("search", False)
        if not isinstance(search, bool):
            raise ApiError(Code.REFUSED, f"{show(search)} is not accepted", "search", "true, false")
        question = PodQuestion(_amounts(body), _band(body), search)
        snapshot, facts, ledger, use = self._now()
        policy = self._agent.config.policy
        return encode(pod_impact(snapshot, question, facts, ledger.ledger, policy, use, self._scores))

    async def reserve(self, request: web.Request, peer: Peer) -> Any:
        """POST /v1/reserve: bid for room; the highest score of a window wins."""
        body = await self._body(request, ("holder", "cpu", "memory", "band", "generation", "score"))
        holder = _holder(body.get("holder"))
        generation = body.get("generation")
        if isinstance(generation, bool) or not isinstance(generation, int):
            text = "the generation that the node document states"
            raise ApiError(Code.REFUSED, f"{show(generation)} is not a generation", "generation", text)
        score = _number(body.get("score", 0.0), "score", -1e18, 1e18)
        node = self._now()[2]
        if len(self._waiting) >= MOST_BIDS:
            raise ApiError(
                Code.BUSY, f"{MOST_BIDS} bids are waiting already", "holder", "a new bid after a second"
            )
        wanted = CapacityRequest(holder, _band(body), _amounts(body))
        found = offered_bid(node, wanted, score, generation, self._clock()["monotonic_s"])
        if isinstance(found, LedgerRefusal):
            raise _refused(found)
        self._ledger = found
        answer = self._waiting[holder] = asyncio.get_running_loop().create_future()
        await asyncio.sleep(BID_WINDOW_S)
        if not answer.done():
            self._close(found.ledger.window_ends_s)
        result = await answer
        if isinstance(result, LedgerRefusal):
            raise _refused(result)
        return encode(self._reserved(result))

    async def commit(self, request: web.Request, peer: Peer) -> Any:
        """POST /v1/reserve/NAME/commit: make a reservation a grant, which stays until it is released."""
        body = await self._body(request, ("token",))
        token = body.get("token")
        if isinstance(token, bool) or not isinstance(token, int):
            raise ApiError(Code.REFUSED, f"{show(token)} is not a token", "token", "the reservation's token")
        node, now_s = self._now()[2], self._clock()["monotonic_s"]
        holder = request.match_info["name"]
        found = commit(node.ledger, holder, token, now_s)
        if isinstance(found, LedgerRefusal):
            raise _refused(found)
        self._ledger = NodeLedger(found, node.adjusted_s)
        held = found.held_by(holder)
        assert held is not None
        return encode(self._reserved(held))

    async def release(self, request: web.Request, peer: Peer) -> Any:
        """DELETE /v1/reserve/NAME: release a reservation or a grant."""
        node = self._now()[2]
        holder = _holder(request.match_info["name"])
        found = revoke(node.ledger, holder)
        if isinstance(found, LedgerRefusal):
            raise _refused(found)
        self._ledger = NodeLedger(found, node.adjusted_s)
        return {"released": holder}

    def _document(self) -> NodeDocument:
        snapshot, facts, node, use = self._now()
        return node_document(snapshot, facts, node.ledger, self._clock()["monotonic_s"], use)

    def _now(self) -> tuple[Snapshot, NodeFacts, NodeLedger, NodeUse]:
        """The host's snapshot, facts that the snapshot lacks, the ledger adjusted to both, and the node's use."""
        clock, snapshot, forecasts = self._clock(), self._agent.snapshot(), self._forecasts()
        status = self._agent.status()
        decisions = {each.spec.name: each.decision for each in status.workloads if each.decision is not None}
        copper = (each.starved_s for each in status.workloads if not is_protected(each.spec))
        starved_s = max(copper, default=0.0)
        facts = NodeFacts(
            status.mode, clock["unix_s"], forecasts, decisions, status.queue, status.problems, starved_s
        )
        use = node_use(snapshot, forecasts, decisions)
        topology, now_s = snapshot.host.topology, clock["monotonic_s"]
        if self._ledger is None:
            # A first generation above those of every earlier daemon, which counted fewer than a thousand per second.
            first = int(clock["unix_s"] * _GENERATIONS_PER_S)
            self._ledger = opened(topology, first, use, now_s, status.queue)
        self._close(now_s)
        self._ledger = adjusted(self._ledger, topology, use, now_s, status.queue)
        return snapshot, facts, self._ledger, use

    def _close(self, now_s: float) -> None:
        """Drop expired reservations, and answer all bids whose window is over."""
        assert self._ledger is not None
        self._ledger, result = closed(self._ledger, now_s)
        told: dict[str, Holding | LedgerRefusal] = {each.holder: each for each in result.refused}
        if result.winner is not None:
            told[result.winner.holder] = result.winner
        for holder, outcome in told.items():
            answer = self._waiting.pop(holder, None)
            if answer is not None and not answer.done():
                answer.set_result(outcome)

    def _reserved(self, held: Holding) -> Reserved:
        assert self._ledger is not None
        left_s = None if held.expires_s is None else max(0.0, held.expires_s - self._clock()["monotonic_s"])
        generation = self._ledger.ledger.generation
        return Reserved(held.holder, held.band.value, amounts(held.amounts), generation, held.token, left_s)

    def _forecasts(self) -> Forecasts | Unavailable:
        published = self._agent.forecasts()
        if isinstance(published, Unavailable):
            return published
        if self._known is None or self._known[0] != published:
            try:
                self._known = (published, decode(Forecasts, json.loads(published)))
            except (ValueError, PerphError) as exc:
                return Unavailable(f"the published forecasts cannot be read: {exc}")
        return self._known[1]


def _refused(refusal: LedgerRefusal) -> ApiError:
    code = {RefusalCause.UNKNOWN: Code.NOT_FOUND, RefusalCause.INVALID: Code.REFUSED}
    return ApiError(code.get(refusal.cause, Code.CONFLICT), refusal.reason, refusal.cause.value)


def _amounts(body: dict[str, Any]) -> Amounts:
    cpus = _number(body.get("cpu", 0.0), "cpu", 0.0, MOST_CPUS)
    given = body.get("memory", 0)
    if isinstance(given, bool) or not isinstance(given, int | str) or (isinstance(given, int) and given < 0):
        raise ApiError(
            Code.REFUSED, f"{show(given)} is not a size", "memory", "bytes, or text such as 512M or 8Gi"
        )
    try:
        memory = parse_size_bytes(given) if isinstance(given, str) else given
    except (ValueError, PerphError) as exc:
        raise ApiError(Code.REFUSED, str(exc), "memory", "bytes, or text such as 512M or 8Gi") from exc
    if memory >= 1 << 60:
        raise ApiError(Code.REFUSED, f"{show(given)} is more than any node has", "memory", "less than 1 EiB")
    return Amounts(cpus, memory)


def _band(body: dict[str, Any]) -> QosBand:
    band = body.get("band", QosBand.COPPER.value)
    if band not in tuple(each.value for each in BANDS):
        raise ApiError(Code.REFUSED, f"{show(band)} is not accepted", "band", ", ".join(BANDS))
    return QosBand(band)


def _holder(value: object) -> str:
    allowed = f"a name of 1 to {MOST_HOLDER} printable characters, such as namespace.pod"
    if value is None:
        raise ApiError(Code.REFUSED, "it is missing", "holder", allowed)
    if not isinstance(value, str) or not 0 < len(value) <= MOST_HOLDER or not value.isprintable():
        raise ApiError(Code.REFUSED, f"{show(value)} is not a holder", "holder", allowed)
    return value


def _number(value: object, key: str, low: float, high: float) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not low <= value <= high
        or math.isnan(value)
    ):
        raise ApiError(Code.REFUSED, f"{show(value)} is not accepted", key, f"{low:g} to {high:g}")
    return float(value)
