"""Mutating admission webhook: the API server calls it for every new pod labelled copper (admission.k8s.io/v1).

It answers with a JSON patch and keeps no state, so any number of replicas agree. It never denies a pod: an
unreadable one is admitted unchanged, with a warning for its owner.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, generate_latest

from perphd.adapters.kubernetes.metrics import TEXT
from perphd.cluster.asking import ExtenderError, member, optional
from perphd.cluster.copper_requests import Rewriting, rewriting

MOST_BODY: Final = 8 << 20
"""Maximum size of a review in bytes: etcd refuses objects over 1.5 MiB, and a review may hold two."""
_REVIEW: Final = "admission.k8s.io/v1"
_log: Final = logging.getLogger("perphd.extender")


def reviewed(review: Any) -> tuple[dict[str, Any], str]:
    """The answer to an AdmissionReview, and the action: rewritten, left or unreadable.

    Raises:
        ExtenderError: the call is not an AdmissionReview of this version.
    """
    version = review.get("apiVersion") if isinstance(review, Mapping) else None
    if version != _REVIEW:
        raise ExtenderError(f"apiVersion is {version!r}; only {_REVIEW} is supported")
    request = member(review, "request")
    uid = request.get("uid")
    if not isinstance(uid, str) or not uid:
        raise ExtenderError("request.uid is missing")
    try:
        found = _rewriting(request)
        result = "rewritten" if found.patch else "left"
    except ExtenderError as exc:
        found, result = Rewriting(warnings=(f"perphd: the pod is left as it is: {exc}",)), "unreadable"
    response: dict[str, Any] = {"uid": uid, "allowed": True}
    if found.patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(json.dumps(found.patch).encode()).decode()
    if found.warnings:
        response["warnings"] = list(found.warnings)
    return {"apiVersion": _REVIEW, "kind": "AdmissionReview", "response": response}, result


def _rewriting(request: Mapping[str, Any]) -> Rewriting:
    is_new_pod = optional(request, "resource").get("resource") == "pods" and not request.get("subResource")
    if not is_new_pod or request.get("operation") != "CREATE":
        return Rewriting()
    return rewriting(request.get("object"), str(request.get("namespace", "")))


class WebhookServer:
    """Handlers of all routes."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._reviews = Counter(
            "perphd_webhook_reviews",
            "Calls; result: rewritten, left, unreadable (a pod), or invalid (a call that is not a review).",
            ("result",),
            registry=self._registry,
        )

    def app(self) -> web.Application:
        """The application with all routes."""
        app = web.Application(client_max_size=MOST_BODY)
        app.add_routes(
            [
                web.post("/mutate", self._mutate),
                web.get("/metrics", self._metrics),
                web.get("/healthz", self._healthy),
            ]
        )
        return app

    async def _mutate(self, request: web.Request) -> web.Response:
        try:
            answer, result = reviewed(json.loads(await request.read()))
        except (ExtenderError, ValueError, RecursionError, web.RequestPayloadError) as exc:
            self._reviews.labels("invalid").inc()
            return web.json_response({"error": f"perphd: {exc}"}, status=400)
        self._reviews.labels(result).inc()
        return web.json_response(answer)

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers=TEXT)

    async def _healthy(self, _: web.Request) -> web.Response:
        return web.Response(text="ok")
