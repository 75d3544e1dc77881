"""Nodes, pods, daemons and accounts for tests on a real API server."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from aiohttp import web

from perphd.adapters.kubernetes.client import STRATEGIC, ApiClient, ApiMissing
from perphd.adapters.kubernetes.objects import NODES, PROFILES
from perphd.adapters.kubernetes.own_pods import OwnPods
from perphd.adapters.kubernetes.publisher import Publisher
from perphd.cluster.asking import COPPER_CPU, COPPER_MEMORY
from perphd.cluster.document import NodeDocument
from perphd.domain.wire import encode

PODS = "/api/v1/namespaces/default/pods"


async def make_node(api: ApiClient, name: str, cpu: str = "16", memory: str = "64Gi") -> None:
    room = {"cpu": cpu, "memory": memory, "pods": "110"}
    await api.post(
        NODES,
        {
            "apiVersion": "v1", "kind": "Node",
            "metadata": {
                "name": name, "labels": {"type": "kwok", "kubernetes.io/hostname": name},
                "annotations": {"kwok.x-k8s.io/node": "fake"},
            },
        },
    )  # fmt: skip
    await api.patch(f"{NODES}/{name}/status", {"status": {"capacity": room, "allocatable": room}}, STRATEGIC)


async def remove_node(api: ApiClient, name: str) -> None:
    for path in (f"{NODES}/{name}", f"{PROFILES}/{name}"):
        with contextlib.suppress(ApiMissing):
            await api.request("DELETE", path)


def copper_pod(name: str, milli: int = 1000, mib: int = 0, **spec: Any) -> dict[str, Any]:
    asked = {COPPER_CPU: str(milli)} | ({COPPER_MEMORY: str(mib << 20)} if mib else {})
    container = {"name": "c", "image": "none", "resources": {"requests": asked, "limits": asked}}
    metadata = {"name": name, "labels": {"perphd.io/band": "copper"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": [container], **spec},
    }


def plain_pod(name: str, cpu: str = "1", **spec: Any) -> dict[str, Any]:
    asked = {"cpu": cpu}
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "none", "resources": {"requests": asked}}], **spec},
    }  # fmt: skip


async def remove_pods(api: ApiClient) -> None:
    items, _ = await api.list_all(PODS)
    for each in items:
        with contextlib.suppress(ApiMissing):
            await api.request(
                "DELETE", f"{PODS}/{each['metadata']['name']}", query={"gracePeriodSeconds": "0"}
            )


async def placed(api: ApiClient) -> dict[str, str | None]:
    items, _ = await api.list_all(PODS)
    return {each["metadata"]["name"]: each["spec"].get("nodeName") for each in items}


async def until(
    holds: Callable[[], Awaitable[Any]], seconds: float = 30.0, what: str = "it did not come"
) -> Any:
    """The first answer that is true. The time is generous: the machine may be busy."""
    ends = time.monotonic() + seconds
    while True:
        answer = await holds()
        if answer:
            return answer
        assert time.monotonic() < ends, what
        await asyncio.sleep(0.05)


class Daemon:
    """Answers GET /v1/node on a Unix socket with the document that it is given; None: it is away."""

    def __init__(self, path: Path, document: NodeDocument) -> None:
        self.path, self.document, self.looks = path, document, 0
        self.coming: list[NodeDocument] = []
        """What the next looks see, one each."""

    async def _node(self, _: web.Request) -> web.Response:
        self.looks += 1
        if self.coming:
            self.document = self.coming.pop(0)
        return web.json_response(encode(self.document))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Daemon]:
        app = web.Application()
        app.add_routes([web.get("/v1/node", self._node)])
        runner = web.AppRunner(app)
        await runner.setup()
        await web.UnixSite(runner, str(self.path)).start()
        try:
            yield self
        finally:
            await runner.cleanup()


@contextlib.asynccontextmanager
async def background(*work: Any) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(each) for each in work]
    try:
        yield
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def publish(api: ApiClient, name: str, given: NodeDocument, ttl_s: float = 600.0) -> None:
    """One round of a publisher that sees this document."""

    made = replace(given, made_unix_s=time.time())

    async def look() -> NodeDocument:
        return made

    await Publisher(api, name, look, OwnPods(), ttl_s / 3.0).round()


async def token_of(api: ApiClient, account: str, folder: Path, bound: dict[str, Any] | None = None) -> Path:
    """A file with a token of a service account in the namespace perphd; ``bound``: to this pod."""
    asked: dict[str, Any] = {"expirationSeconds": 3600}
    if bound is not None:
        asked["boundObjectRef"] = bound
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": asked}
    answer = await api.post(f"/api/v1/namespaces/perphd/serviceaccounts/{account}/token", request)
    path = folder / f"{account}.token"
    path.write_text(answer["status"]["token"])
    return path
