"""Failures between perphd and a real API server: expired watches, conflicts, lost answers, stale profiles, clocks."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perphd.adapters.kubernetes.binding import MOST_TRIES, Binder
from perphd.adapters.kubernetes.client import (
    JSON,
    JSON_PATCH,
    MERGE,
    ApiAccess,
    ApiClient,
    ApiConflict,
    ApiUnreachable,
    Expired,
    KubernetesError,
    follow,
)
from perphd.adapters.kubernetes.documents import DocumentCache, follow_profiles
from perphd.adapters.kubernetes.objects import NODES, PROFILES
from perphd.adapters.kubernetes.own_pods import OwnPods
from perphd.adapters.kubernetes.publisher import TAINT, Publisher, withdraw
from perphd.cluster.document import NodeDocument
from perphd.cluster.slots import slots_of
from tests.cluster.test_scheduling import Extender, scheduling
from tests.cluster.world import (
    PODS,
    background,
    copper_pod,
    make_node,
    placed,
    plain_pod,
    publish,
    remove_node,
    remove_pods,
    token_of,
    until,
)
from tests.unit.test_cluster_extender import document
from tools.cluster.control_plane import ControlPlane

NODE = "faulty"


@pytest.fixture
async def api(admin: ApiAccess) -> AsyncIterator[ApiClient]:
    async with ApiClient(admin) as client:
        await make_node(client, NODE)
        yield client
        await remove_pods(client)
        for name in (NODE, "another"):
            await remove_node(client, name)


class Link:
    """A TCP proxy in front of the API server that can be cut."""

    def __init__(self, port: int) -> None:
        self._port, self._is_cut = port, False
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Link]:
        server = await asyncio.start_server(self._joined, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            self.cut()
            server.close()

    def cut(self) -> None:
        """End every connection, and refuse new ones."""
        self._is_cut = True
        for each in list(self._writers):
            each.close()

    def mend(self) -> None:
        self._is_cut = False

    async def _joined(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.close()
            return
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers |= {writer, back}
        await asyncio.gather(_copied(reader, back), _copied(there, writer), return_exceptions=True)
        self._writers -= {writer, back}


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


class Watching(ApiClient):
    """Counts what its watches end with."""

    expired = 0

    async def watch(self, path: str, version: str, **query: str) -> AsyncIterator[tuple[str, Any]]:
        try:
            async for each in super().watch(path, version, **query):
                yield each
        except Expired:
            self.expired += 1
            raise


def compact(plane: ControlPlane, version: int) -> None:
    """Make etcd forget all versions before this one."""
    body = json.dumps({"revision": version, "physical": True}).encode()
    with urllib.request.urlopen(f"{plane.etcd_url}/v3/kv/compaction", body, timeout=20) as answer:
        assert answer.status == 200


async def test_a_watch_whose_version_expired_lists_again_and_loses_nothing(
    api: ApiClient, admin: ApiAccess, plane: ControlPlane
) -> None:
    await publish(api, NODE, document(free=4.0))
    cache = DocumentCache()
    async with Link(plane.api_port).open() as link:
        through = ApiAccess(f"https://127.0.0.1:{link.port}", admin.token_file, admin.ca_file)
        async with Watching(through, timeout_s=3.0) as client, background(follow_profiles(client, cache)):
            await until(lambda: _true(list(cache.known.documents) == [NODE]))
            link.cut()
            await make_node(api, "another")
            await publish(api, "another", document(free=2.0))
            await api.request("DELETE", f"{PROFILES}/{NODE}")
            _, version = await api.list_all(PROFILES)
            # A restarted API server has no earlier changes in its cache, and etcd has none before the compaction.
            await asyncio.to_thread(plane.stop, "kube-apiserver")
            await asyncio.to_thread(compact, plane, int(version))
            await asyncio.to_thread(plane.start_api)
            link.mend()
            await until(lambda: _true(list(cache.known.documents) == ["another"]), 60.0)
            assert client.expired >= 1
            # From then on it watches: no further list is needed.
            seen = client.expired
            await api.request("DELETE", f"{PROFILES}/another")
            await until(lambda: _true(not cache.known.documents))
            assert client.expired == seen


async def _true(value: bool) -> bool:
    return value


async def test_an_ancient_version_is_answered_with_410(api: ApiClient, plane: ControlPlane) -> None:
    _, version = await api.list_all(PROFILES)
    await asyncio.to_thread(compact, plane, int(version))
    lists: list[int] = []

    async def paused(_: float) -> None:
        await asyncio.sleep(0.05)

    first = True

    class Late(Watching):
        """Its first watch asks from a version that etcd has forgotten."""

        async def watch(self, path: str, version: str, **query: str) -> AsyncIterator[tuple[str, Any]]:
            nonlocal first
            start, first = ("1" if first else version), False
            async for each in super().watch(path, start, **query):
                yield each

    async with Late(api._access, timeout_s=3.0) as late:
        troubles: list[KubernetesError] = []
        following = follow(
            late,
            PROFILES,
            lambda items: lists.append(len(items)),
            lambda *_: None,
            lambda error, _: troubles.append(error),
            paused,
        )
        async with background(following):
            await until(lambda: _true(len(lists) >= 2))
        assert late.expired == 1
        assert troubles == []  # an expired version is no failure


class Raced(ApiClient):
    """Before each of its first ``races`` patches of ``path``, somebody else writes to that object."""

    def __init__(
        self, access: ApiAccess, path: str, other: Callable[[int], Awaitable[Any]], races: int
    ) -> None:
        super().__init__(access)
        self._path, self._other, self.races = path, other, races
        self.conflicts = 0

    async def patch(self, path: str, body: Any, kind: str = MERGE) -> Any:
        if path == self._path and kind == JSON_PATCH and self.races > 0:
            self.races -= 1
            await self._other(self.races)
        try:
            return await super().patch(path, body, kind)
        except ApiConflict:
            self.conflicts += 1
            raise


@pytest.mark.parametrize(("races", "rounds"), [(2, 1), (3, 2)])
async def test_a_taint_written_by_somebody_else_meanwhile_stays(
    api: ApiClient, admin: ApiAccess, races: int, rounds: int
) -> None:
    path = f"{NODES}/{NODE}"

    async def taint(number: int) -> None:
        mine = [{"key": f"mine-{number}", "effect": "NoSchedule"}]
        await api.patch(path, {"spec": {"taints": mine}}, MERGE)

    async def look() -> NodeDocument:
        return document(free=0.0)

    async with Raced(admin, path, taint, races) as raced:
        publisher = Publisher(raced, NODE, look, OwnPods(), 1.0)
        for _ in range(1 + rounds):  # the second look without room is the first that taints
            await publisher.round()
        assert raced.conflicts == races
    keys = [each["key"] for each in (await api.get(path))["spec"]["taints"]]
    assert sorted(keys) == ["mine-0", TAINT]


async def test_a_taint_written_while_perphd_withdraws_stays(api: ApiClient, admin: ApiAccess) -> None:
    path = f"{NODES}/{NODE}"
    await api.patch(path, {"spec": {"taints": [{"key": TAINT, "effect": "NoSchedule"}]}}, MERGE)

    async def taint(number: int) -> None:
        taints = (await api.get(path))["spec"]["taints"]
        await api.patch(
            path, {"spec": {"taints": [*taints, {"key": f"mine-{number}", "effect": "NoSchedule"}]}}
        )

    async with Raced(admin, path, taint, 3) as raced:
        await withdraw(raced, NODE)
        assert raced.conflicts == 3
    keys = [each["key"] for each in (await api.get(path))["spec"]["taints"]]
    assert sorted(keys) == ["mine-0", "mine-1", "mine-2"]


def bind_call(pod: Any) -> dict[str, str]:
    metadata = pod["metadata"]
    return {
        "PodName": metadata["name"], "PodNamespace": "default", "PodUID": metadata["uid"], "Node": NODE,
    }  # fmt: skip


@pytest.mark.parametrize("races", [MOST_TRIES - 1, MOST_TRIES])
async def test_a_slot_is_tried_again_while_others_write_and_given_up_unbound(
    api: ApiClient, admin: ApiAccess, races: int
) -> None:
    await publish(api, NODE, document(free=4.0))
    path = f"{PROFILES}/{NODE}"
    pod = await api.post(PODS, copper_pod("wanting", 1000, schedulerName="nobody"))

    async def take(number: int) -> None:
        slot = {"pod": f"x/{number}", "uid": f"{number}", "cpuMilli": 1, "memoryBytes": 0, "sinceUnix": 1.0}
        await api.patch(path, {"spec": {"reservations": [slot]}}, MERGE)

    async with Raced(admin, path, take, races) as raced:
        refusal = await Binder(raced, lambda node: True).bind(bind_call(pod))
        assert raced.conflicts == races
    held = [slot.pod for slot in slots_of(await api.get(path))]
    if races < MOST_TRIES:
        assert refusal == ""
        assert held == ["x/0", "default/wanting"]
        assert await placed(api) == {"wanting": NODE}
    else:
        assert f"no slot within {MOST_TRIES} tries" in refusal
        assert held == ["x/0"]
        assert await placed(api) == {"wanting": None}


class Lossy(ApiClient):
    """Its requests whose path contains ``lost`` arrive, and the first of their answers does not."""

    def __init__(self, access: ApiAccess, method: str, lost: str) -> None:
        super().__init__(access)
        self._lost = (method, lost)

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        kind: str = JSON,
        query: Any = None,
        accept: str = JSON,
    ) -> Any:
        answer = await super().request(method, path, body, kind, query, accept)
        if method == self._lost[0] and self._lost[1] in path:
            self._lost = ("", "")
            raise ApiUnreachable(f"{method} {path}", 0, "the answer was lost")
        return answer


@pytest.mark.parametrize(("method", "lost"), [("PATCH", "nodeprofiles"), ("POST", "binding")])
async def test_a_lost_answer_costs_a_try_and_neither_a_slot_nor_a_pod(
    api: ApiClient, admin: ApiAccess, method: str, lost: str
) -> None:
    await publish(api, NODE, document(free=1.0))
    pod = await api.post(PODS, copper_pod("unlucky", 1000, schedulerName="nobody"))
    async with Lossy(admin, method, lost) as lossy:
        binder = Binder(lossy, lambda node: True)
        assert "the answer was lost" in await binder.bind(bind_call(pod))
        # Whether the pod is bound is unknown to the extender, so its room must stay taken.
        assert [slot.pod for slot in slots_of(await api.get(f"{PROFILES}/{NODE}"))] == ["default/unlucky"]
        assert await binder.bind(bind_call(pod)) == ""
    assert await placed(api) == {"unlucky": NODE}
    assert [slot.pod for slot in slots_of(await api.get(f"{PROFILES}/{NODE}"))] == ["default/unlucky"]


async def test_two_publishers_that_begin_at_once_make_one_profile(api: ApiClient, admin: ApiAccess) -> None:
    async def look() -> NodeDocument:
        return replace(document(free=4.0), made_unix_s=time.time())

    async with ApiClient(admin) as another:
        both = [Publisher(client, NODE, look, OwnPods(), 1.0) for client in (api, another)]
        for _ in range(3):
            await asyncio.gather(*(each.round() for each in both))
    items, _ = await api.list_all(PROFILES)
    assert [each["metadata"]["name"] for each in items if each["metadata"]["name"] == NODE] == [NODE]


async def test_a_stale_profile_takes_no_reservation_and_stops_no_scheduling(
    api: ApiClient, admin: ApiAccess, plane: ControlPlane, tmp_path: Path
) -> None:
    given = replace(document(free=4.0), ttl_s=1.0)
    token = await token_of(api, "perphd-extender", tmp_path)
    extender = Extender(admin, token, tmp_path, "--bind")
    try:
        await extender.ready()
        await publish(api, NODE, given, ttl_s=1.0)

        async def stale() -> bool:
            nodes = (await extender.get("/fleet"))["nodes"]
            return [each["node"] for each in nodes if each["stale"]] == [NODE]

        await until(stale)
        pod = await api.post(PODS, copper_pod("early", 1000, schedulerName="nobody"))
        assert "its profile is stale" in (await extender.post("/bind", bind_call(pod)))["Error"]
        assert slots_of(await api.get(f"{PROFILES}/{NODE}")) == ()
        async with scheduling(plane, "scheduler", extender.port):
            await api.post(PODS, plain_pod("plain"))
            await until(lambda: _is_placed(api, "plain"), what="a stale profile keeps plain pods waiting")
            extender.process.send_signal(signal.SIGSTOP)  # accepts connections, answers nothing
            await api.post(PODS, plain_pod("patient"))
            await until(lambda: _is_placed(api, "patient"), 60.0, "an extender that hangs stops scheduling")
            extender.process.send_signal(signal.SIGCONT)
        await publish(api, NODE, replace(given, ttl_s=600.0))
        await until(lambda: _bound(extender, pod))
        assert (await placed(api))["early"] == NODE
    finally:
        extender.process.send_signal(signal.SIGCONT)
        extender.stop()


async def _is_placed(api: ApiClient, name: str) -> bool:
    return (await placed(api))[name] is not None


async def _bound(extender: Extender, pod: Any) -> bool:
    return bool((await extender.post("/bind", bind_call(pod)))["Error"] == "")


@pytest.mark.parametrize("ahead_s", [400 * 86400.0, -400 * 86400.0])
async def test_a_nodes_clock_does_not_decide_whether_its_profile_is_fresh(
    api: ApiClient, admin: ApiAccess, ahead_s: float
) -> None:
    now, cache = [time.time()], DocumentCache(clock=lambda: now[0])
    given = replace(document(free=4.0), ttl_s=60.0)

    async def shown(made: float) -> None:
        async def look() -> NodeDocument:
            return replace(given, made_unix_s=made)

        await Publisher(api, NODE, look, OwnPods(), 20.0).round()

    await shown(now[0] + ahead_s)
    async with ApiClient(admin) as client, background(follow_profiles(client, cache)):
        await until(lambda: _true(NODE in cache.known.documents))
        # Before the first arrival only the node's own time is known. One in the future counts as now.
        assert cache.is_fresh(NODE) is (ahead_s > 0)
        await shown(now[0] + ahead_s + 10.0)
        await until(lambda: _true(cache._made.get(NODE) == now[0] + ahead_s + 10.0))
        assert cache.is_fresh(NODE)
        now[0] += 61.0
        assert not cache.is_fresh(NODE)
