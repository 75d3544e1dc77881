"""The client of the API server against one that forgets, fails, hangs and cuts connections."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from perphd.adapters.backoff import Backoff
from perphd.adapters.kubernetes.client import (
    ApiAccess,
    ApiClient,
    ApiConflict,
    ApiMissing,
    ApiUnreachable,
    Expired,
    Forbidden,
    KubernetesError,
    Rejected,
    follow,
)
from perphd.domain.errors import PerphError


class Api:
    """Objects by name, with a history that can be compacted, and answers that can be replaced."""

    def __init__(self) -> None:
        self.version, self.oldest = 10, 0
        self.objects: dict[str, int] = {}
        self.changes: list[tuple[int, str, str]] = []
        self.status = 200
        self.is_hasty = False
        self.lists = self.watches = 0
        self.changed = asyncio.Event()
        self.cut = asyncio.Event()
        self.tokens: list[str | None] = []

    def change(self, kind: str, name: str) -> None:
        self.version += 1
        if kind == "DELETED":
            self.objects.pop(name)
        else:
            self.objects[name] = self.version
        self.changes.append((self.version, kind, name))
        self.changed.set()

    def _object(self, name: str, version: int) -> dict[str, Any]:
        return {"metadata": {"name": name, "resourceVersion": str(version)}}

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.tokens.append(request.headers.get("Authorization"))
        if self.status == 0:
            await asyncio.sleep(3600)
        if self.status != 200:
            return web.json_response({"message": "no"}, status=self.status, headers={"Retry-After": "1"})
        if "watch" in request.query:
            return await self._watch(request)
        self.lists += 1
        names = sorted(self.objects)
        start, limit = int(request.query.get("continue", 0)), 2
        metadata = {"resourceVersion": str(self.version)}
        if start + limit < len(names):
            metadata["continue"] = str(start + limit)
        items = [self._object(name, self.objects[name]) for name in names[start : start + limit]]
        return web.json_response({"metadata": metadata, "items": items})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        self.watches += 1
        response = web.StreamResponse()
        await response.prepare(request)
        if self.is_hasty:
            return response
        at = int(request.query["resourceVersion"])

        async def say(kind: str, item: dict[str, Any]) -> None:
            await response.write(json.dumps({"type": kind, "object": item}).encode() + b"\n")

        if at < self.oldest:
            await say("ERROR", {"code": 410, "message": "too old resource version"})
            return response
        while not self.cut.is_set():
            for version, kind, name in self.changes:
                if version > at:
                    at = version
                    await say(kind, self._object(name, version))
            self.changed.clear()
            waiting = [asyncio.create_task(each.wait()) for each in (self.changed, self.cut)]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for each in waiting:
                each.cancel()
        self.cut.clear()
        return response


@pytest.fixture
async def api() -> AsyncIterator[tuple[Api, str]]:
    fake = Api()
    app = web.Application()
    app.add_routes([web.route("*", path, fake.answer) for path in ("/things", "/k8s/clusters/c-1/things")])
    async with TestServer(app) as server:
        yield fake, str(server.make_url("/")).rstrip("/")


class Mirror:
    """What a follower knows, and what troubled it."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.troubles: list[KubernetesError] = []

    def replaced(self, items: list[Any]) -> None:
        self.names = {each["metadata"]["name"] for each in items}

    def changed(self, kind: str, item: Any) -> None:
        (self.names.discard if kind == "DELETED" else self.names.add)(item["metadata"]["name"])

    def troubled(self, error: KubernetesError, pause_s: float) -> None:
        self.troubles.append(error)


async def _until(holds: Any) -> None:
    for _ in range(1000):
        if holds():
            return
        await asyncio.sleep(0.01)
    pytest.fail("it did not come")


async def _soon(_: float) -> None:
    await asyncio.sleep(0.01)


async def test_a_follower_loses_nothing_whatever_ends_its_watch(api: tuple[Api, str]) -> None:
    fake, url = api
    for name in "abcde":
        fake.change("ADDED", name)
    mirror = Mirror()
    async with ApiClient(ApiAccess(url), timeout_s=0.3) as client:
        task = asyncio.create_task(
            follow(client, "/things", mirror.replaced, mirror.changed, mirror.troubled, _soon)
        )
        await _until(lambda: mirror.names == set("abcde"))
        assert fake.lists == 3  # pages of two
        fake.change("DELETED", "a")
        fake.change("ADDED", "f")
        await _until(lambda: mirror.names == set("bcdef"))

        fake.cut.set()  # the connection ends: the next watch goes on from the same place
        await _until(lambda: fake.watches >= 2)
        fake.change("ADDED", "g")
        await _until(lambda: "g" in mirror.names)
        assert fake.lists == 3

        fake.status = 503
        fake.cut.set()
        fake.change("DELETED", "b")
        await _until(lambda: len(mirror.troubles) >= 3)
        fake.status = 200
        await _until(lambda: "b" not in mirror.names)
        assert fake.lists == 3

        fake.status = 503
        fake.cut.set()
        fake.change("DELETED", "c")
        fake.changes.clear()  # compacted meanwhile: what was deleted can be seen by listing alone
        fake.oldest = fake.version
        fake.status = 200
        await _until(lambda: "c" not in mirror.names)
        assert fake.lists > 3
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_watches_that_end_at_once_are_not_repeated_without_a_pause(api: tuple[Api, str]) -> None:
    fake, url = api
    fake.change("ADDED", "a")
    fake.is_hasty = True
    pauses: list[float] = []
    mirror = Mirror()

    async def paused(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 5:
            fake.is_hasty = False
        await asyncio.sleep(0)

    async with ApiClient(ApiAccess(url)) as client:
        following = follow(
            client, "/things", mirror.replaced, mirror.changed, mirror.troubled, paused, lambda: 0.0
        )
        task = asyncio.create_task(following)
        await _until(lambda: len(pauses) == 5)
        assert fake.watches <= 6  # the last one goes on
        assert pauses[4] >= 4.0  # from 0.5 s, doubled four times, less the jitter
        fake.change("ADDED", "b")
        await _until(lambda: mirror.names == {"a", "b"})
        task.cancel()
    assert fake.lists == 1
    assert mirror.troubles == []


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, Rejected),
        (401, Forbidden),
        (403, Forbidden),
        (404, ApiMissing),
        (409, ApiConflict),
        (410, Expired),
        (422, ApiConflict),
        (429, ApiUnreachable),
        (500, ApiUnreachable),
        (503, ApiUnreachable),
    ],
)
async def test_errors_say_what_to_do(api: tuple[Api, str], status: int, error: type[KubernetesError]) -> None:
    fake, url = api
    fake.status = status
    async with ApiClient(ApiAccess(url)) as client:
        with pytest.raises(error) as raised:
            await client.get("/things")
    assert "GET /things" in str(raised.value)
    if error is ApiUnreachable:
        assert isinstance(raised.value, ApiUnreachable)
        assert raised.value.pause_s == 1.0


async def test_a_server_that_hangs_is_unreachable_in_time(api: tuple[Api, str]) -> None:
    fake, url = api
    fake.status = 0
    async with ApiClient(ApiAccess(url), timeout_s=0.1) as client:
        with pytest.raises(ApiUnreachable):
            await client.get("/things")
    async with ApiClient(ApiAccess("http://127.0.0.1:9"), timeout_s=1.0) as client:
        with pytest.raises(ApiUnreachable):
            await client.get("/things")


async def test_an_api_server_behind_a_path_is_reached(api: tuple[Api, str]) -> None:
    """Proxies in front of several clusters, and kubectl proxy --api-prefix, serve each below a path."""
    fake, url = api
    fake.change("ADDED", "a")
    mirror = Mirror()
    async with ApiClient(ApiAccess(f"{url}/k8s/clusters/c-1")) as client:
        assert await client.list_all("/things") == ([fake._object("a", 11)], "11")
        following = asyncio.create_task(
            follow(client, "/things", mirror.replaced, mirror.changed, mirror.troubled, _soon)
        )
        await _until(lambda: mirror.names == {"a"})
        fake.change("ADDED", "b")
        await _until(lambda: mirror.names == {"a", "b"})
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    assert mirror.troubles == []


async def test_a_renewed_token_is_used_at_once(api: tuple[Api, str], tmp_path: Path) -> None:
    fake, url = api
    token = tmp_path / "token"
    async with ApiClient(ApiAccess(url, str(token))) as client:
        with pytest.raises(ApiUnreachable):
            await client.get("/things")
        for text in ("first", "second"):
            token.write_text(f"{text}\n")
            await client.get("/things")
    assert fake.tokens == ["Bearer first", "Bearer second"]


def test_pauses_grow_to_half_a_minute_and_differ() -> None:
    backoff = Backoff()
    pauses = [backoff.failed() for _ in range(12)]
    assert 0.25 <= pauses[0] <= 0.5
    assert 15.0 <= pauses[-1] <= 30.0
    assert len(set(pauses)) == 12
    assert backoff.failed(at_least_s=60.0) == 60.0
    backoff.succeeded()
    assert backoff.failed() <= 0.5


def test_a_pod_knows_its_cluster(tmp_path: Path) -> None:
    found = ApiAccess.in_cluster(
        {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}, tmp_path
    )
    assert found == ApiAccess("https://[fd00::1]:443", f"{tmp_path}/token", f"{tmp_path}/ca.crt")
    with pytest.raises(PerphError, match="kubectl proxy"):
        ApiAccess.in_cluster({}, tmp_path)
