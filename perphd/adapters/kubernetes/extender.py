"""HTTP server of the scheduler extender: filter, prioritize, preempt, bind and explain.

Its only state, the nodes' documents and the last explanations, can be rebuilt by any replica.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import msgspec
import numpy as np
from aiohttp import web
from prometheus_client import generate_latest

from perphd import __version__
from perphd.adapters.kubernetes.binding import Binder
from perphd.adapters.kubernetes.documents import DocumentCache
from perphd.adapters.kubernetes.metrics import TEXT, VERBS, ExtenderMetrics, FleetCollector
from perphd.adapters.kubernetes.recording import Recorder
from perphd.cluster.asking import ExtenderError
from perphd.cluster.calls import SchedulerCall, filter_call, json_value, prioritize_call
from perphd.cluster.document import NodeDocument, is_current
from perphd.cluster.extender import (
    Explanation,
    Judged,
    explanation,
    filter_answer,
    judged,
    preempted,
    priority_answer,
)
from perphd.cluster.publisher_state import PublisherState
from perphd.domain.decision import Health
from perphd.domain.wire import encode, json_of

MOST_BODY: Final = 256 << 20
"""Maximum size of a call in bytes, after decompression; 5,000 whole nodes take about 25 MB."""
MOST_PODS: Final = 10_000
"""Maximum number of pods whose last explanations are kept."""
MOST_TIMES: Final = 1000
_log: Final = logging.getLogger("perphd.extender")


@dataclass(slots=True)
class Counts:
    """Calls of one verb: number, number of invalid ones, and durations of the last ones."""

    calls: int = 0
    errors: int = 0
    last_s: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_TIMES))

    def took(self, seconds: float) -> None:
        """Record the duration of one call."""
        self.calls += 1
        self.last_s.append(seconds)

    def quantile_s(self, share: float) -> float:
        """Quantile of the last thousand calls' durations."""
        return float(np.quantile(np.array(self.last_s), share)) if self.last_s else 0.0


class ExtenderServer:
    """Handlers of all routes.

    Args:
        cache: the nodes' documents.
        policy: name of the placement policy.
        binder: binds pods; None: bind is not configured.
        is_copper: True if the pod with this UID is known to be copper.
        recorder: records calls and answers; None: no recording.
        clock: seconds since 1970.
        most_body: size limit of a call in bytes, after decompression.
    """

    def __init__(
        self,
        cache: DocumentCache,
        policy: str,
        binder: Binder | None = None,
        is_copper: Callable[[str], bool] = lambda uid: False,
        recorder: Recorder | None = None,
        clock: Callable[[], float] = time.time,
        most_body: int = MOST_BODY,
    ) -> None:
        self._most_body = most_body
        self._cache, self._policy, self._binder = cache, policy, binder
        self._is_copper, self._recorder, self._clock = is_copper, recorder, clock
        self._explained: OrderedDict[str, dict[str, Explanation]] = OrderedDict()
        self.counts = {verb: Counts() for verb in VERBS}
        self._metrics = ExtenderMetrics(FleetCollector(cache.known.documents, cache.refused, clock))

    def app(self) -> web.Application:
        """The application with all routes."""
        app = web.Application(client_max_size=self._most_body)
        app.add_routes(
            [
                web.post("/filter", self._timed("filter", self._filter)),
                web.post("/prioritize", self._timed("prioritize", self._prioritize)),
                web.post("/preempt", self._timed("preempt", self._preempt)),
                web.post("/bind", self._timed("bind", self._bind)),
                web.get("/explain", self._explain),
                web.get("/fleet", self._fleet),
                web.get("/metrics", self._metrics_page),
                web.get("/healthz", self._healthy),
                web.get("/readyz", self._ready),
            ]
        )
        return app

    def _timed(
        self, verb: str, handler: Callable[[bytes], Awaitable[Any]]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        counts = self.counts[verb]

        async def handle(request: web.Request) -> web.Response:
            try:
                body = await request.read()
                start = time.perf_counter()
                answer = await handler(body)
            except (ExtenderError, ValueError, web.RequestPayloadError) as exc:
                counts.errors += 1
                self._metrics.errors.labels(verb).inc()
                return web.json_response({"Error": f"perphd: {exc}"}, status=400)
            response = web.Response(body=msgspec.json.encode(answer), content_type="application/json")
            seconds = time.perf_counter() - start
            counts.took(seconds)
            self._metrics.seconds.labels(verb).observe(seconds)
            return response

        return handle

    async def _filter(self, data: bytes) -> Any:
        call = filter_call(data)
        verdict = self._judged("filter", call)
        answer = filter_answer(verdict, call)
        is_placeable = len(answer["FailedNodes"]) < len(verdict.names)
        result = "placeable" if is_placeable else "refused"
        self._metrics.decisions.labels(verdict.asked.band.value, result).inc()
        return answer

    async def _prioritize(self, data: bytes) -> Any:
        return priority_answer(self._judged("prioritize", prioritize_call(data)))

    def _judged(self, verb: str, call: SchedulerCall) -> Judged:
        now_s = self._clock()
        verdict = judged(self._cache.known, call, self._policy, now_s)
        pod = verdict.asked.pod.name
        known = self._explained.setdefault(pod, {})
        known[verb] = explanation(verdict, verb, self._policy, now_s)
        self._explained.move_to_end(pod)
        if len(self._explained) > MOST_PODS:
            self._explained.popitem(last=False)
        if self._recorder is not None:
            self._recorder.call(now_s, verb, self._policy, call.pod, verdict)
        return verdict

    async def _preempt(self, data: bytes) -> Any:
        return preempted(json_value(data), self._is_copper)

    async def _bind(self, data: bytes) -> Any:
        if self._binder is None:
            raise ExtenderError(
                "bind is not configured here (--bind): remove bindVerb from the scheduler's configuration"
            )
        refusal = await self._binder.bind(json_value(data))
        self._metrics.binds.labels("refused" if refusal else "bound").inc()
        return {"Error": refusal}

    async def _explain(self, request: web.Request) -> web.Response:
        pod = request.query.get("pod", "")
        pod = pod if "/" in pod else f"default/{pod}"
        known = self._explained.get(pod)
        if known is None:
            return web.json_response({"error": f"no recent call about {pod}"}, status=404)
        return web.json_response({verb: asdict(each) for verb, each in known.items()})

    async def _fleet(self, _: web.Request) -> web.Response:
        now_s = self._clock()
        documents = self._cache.known.documents
        nodes = [_row(name, each, now_s) for name, each in sorted(documents.items())]
        calls = {
            verb: {
                "calls": counts.calls,
                "errors": counts.errors,
                "p50_s": counts.quantile_s(0.5),
                "p99_s": counts.quantile_s(0.99),
            }
            for verb, counts in self.counts.items()
        }
        answer = {
            "version": __version__,
            "policy": self._policy,
            "binds": self._binder is not None,
            "synced": self._cache.is_synced,
            "calls": calls,
            "nodes": nodes,
            "publishers": [
                _publisher(name, each, now_s) for name, each in sorted(self._cache.publishers.items())
            ],
            "refused": self._cache.refused,
            "problems": [self._recorder.problem]
            if self._recorder is not None and self._recorder.problem
            else [],
        }
        return web.Response(text=json_of(answer), content_type="application/json")

    async def _metrics_page(self, _: web.Request) -> web.Response:
        # A fleet of thousands has many series: writing them must not delay the scheduler's calls.
        text = await asyncio.to_thread(generate_latest, self._metrics.registry)
        return web.Response(body=text, headers=TEXT)

    async def _healthy(self, _: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _ready(self, _: web.Request) -> web.Response:
        if self._cache.is_synced:
            return web.Response(text="ok")
        return web.Response(text="the nodes' documents have not been read yet", status=503)


def _publisher(name: str, state: PublisherState | None, now_s: float) -> Mapping[str, Any]:
    """A publisher's row in the fleet view."""
    if state is None:
        return {"node": name, "version": "", "age_s": None, "silent": False, "problem": "", "problem_s": None}
    return {
        "node": name,
        "version": state.version,
        "age_s": now_s - state.heard_unix_s,
        "silent": state.is_silent(now_s),
        "problem": state.problem,
        "problem_s": state.problem_s + now_s - state.heard_unix_s if state.problem else None,
    }


def _row(name: str, document: NodeDocument, now_s: float) -> Mapping[str, Any]:
    """A node's row in the fleet view."""
    worst = [each for each in document.lras if each.health is Health.DEGRADED]
    age_s = now_s - document.made_unix_s
    return {
        "node": name,
        "mode": document.mode.value,
        "age_s": age_s,
        "stale": not is_current(document.made_unix_s, document.ttl_s, now_s),
        "lras": len(document.lras),
        "degraded": [each.name for each in worst],
        "confidence": document.confidence,
        "copper_allocatable": encode(document.copper.allocatable),
        "copper_used": encode(document.copper.used),
        "capacity": encode(document.capacity),
        "used": encode(document.used),
    }
