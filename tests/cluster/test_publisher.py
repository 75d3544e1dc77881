"""The publisher against a real API server: levels, hysteresis, what others write, and an API server that goes away."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from perphd import __version__
from perphd.adapters.kubernetes.client import MERGE, STRATEGIC, ApiAccess, ApiClient, Forbidden, follow
from perphd.adapters.kubernetes.objects import NODES, PROFILES, published_document
from perphd.adapters.kubernetes.objects import PODS as ALL_PODS
from perphd.adapters.kubernetes.own_pods import OwnPods
from perphd.adapters.kubernetes.publisher import EVENTS, TAINT, Publisher, withdraw
from perphd.adapters.node_socket import NodeSocket
from perphd.cluster.asking import quantity
from perphd.cluster.document import NodeAmounts
from perphd.domain.decision import Health
from tests.cluster.world import (
    PODS,
    Daemon,
    background,
    copper_pod,
    make_node,
    remove_node,
    remove_pods,
    until,
)
from tests.unit.test_cluster_extender import GIB, document
from tools.cluster.control_plane import ControlPlane

NODE = "published"
PERIOD_S = 0.5


class World:
    """One node, its daemon and the administrator's view."""

    def __init__(self, api: ApiClient, daemon: Daemon) -> None:
        self.api, self.daemon = api, daemon

    def offer(self, cpus: float, gib: float = 8.0, **more: Any) -> None:
        made = self.daemon.document.made_unix_s + 1
        copper = replace(self.daemon.document.copper, offered=NodeAmounts(cpus, gib * GIB))
        self.daemon.document = replace(self.daemon.document, made_unix_s=made, copper=copper, **more)

    async def node(self) -> Any:
        return await self.api.get(f"{NODES}/{NODE}")

    async def level(self) -> tuple[float, float]:
        room = (await self.node())["status"].get("allocatable", {})
        return tuple(quantity(room.get(f"perphd.io/copper-{name}", 0)) for name in ("cpu", "memory"))  # type: ignore[return-value]

    async def tainted(self) -> bool:
        return TAINT in [each["key"] for each in (await self.node())["spec"].get("taints", [])]

    async def conditions(self) -> dict[str, tuple[str, str]]:
        found = (await self.node())["status"]["conditions"]
        return {each["type"]: (each["status"], each["reason"]) for each in found if "perphd" in each["type"]}

    async def looks(self, count: int) -> None:
        wanted = self.daemon.looks + count
        await until(lambda: _done(self.daemon.looks >= wanted))


async def _done(value: bool) -> bool:
    return value


@pytest.fixture
async def world(admin: ApiAccess, tmp_path: Path) -> AsyncIterator[World]:
    async with ApiClient(admin) as api:
        await make_node(api, NODE)
        daemon = Daemon(tmp_path / "perphd.sock", document(free=4.0, made=1.0))
        world = World(api, daemon)
        world.offer(4.0)
        async with daemon.running():
            yield world
        await remove_node(api, NODE)


@contextlib.asynccontextmanager
async def publishing(admin: ApiAccess, world: World, **more: Any) -> AsyncIterator[Publisher]:
    async with ApiClient(admin, timeout_s=3.0) as client:
        pods = OwnPods()
        socket = NodeSocket(str(world.daemon.path))
        publisher = Publisher(client, NODE, socket.document, pods, PERIOD_S, **more)
        watching = follow(
            client,
            ALL_PODS,
            pods.replaced,
            pods.changed,
            lambda *_: None,
            fieldSelector=f"spec.nodeName={NODE}",
        )
        async with background(publisher.run(), watching):
            yield publisher


async def _has_profile(world: World, cpu_milli: float, memory_bytes: float) -> bool:
    profile = await world.api.get(f"{PROFILES}/{NODE}")
    return bool(profile["status"]["copper"] == {"cpuMilli": cpu_milli, "memoryBytes": memory_bytes})


async def test_resources_and_profile_follow_within_two_periods(admin: ApiAccess, world: World) -> None:
    async with publishing(admin, world):
        await until(lambda: _is(world, 4000, 8 * GIB))
        for cpus, gib in ((2.0, 6.0), (7.5, 12.0), (0.5, 2.0)):
            world.offer(cpus, gib)
            looks = world.daemon.looks
            await until(partial(_is, world, cpus * 1000, gib * GIB))
            # A round writes the node first and then the profile: asked in between, the profile is the one before.
            await until(partial(_has_profile, world, cpus * 1000, gib * GIB))
            assert world.daemon.looks - looks <= 3  # two looks, and perhaps one while we were asking
            profile = await world.api.get(f"{PROFILES}/{NODE}")
            assert published_document(profile).copper.offered.cpus == cpus
            assert profile["status"]["copper"] == {"cpuMilli": cpus * 1000, "memoryBytes": gib * GIB}
        assert (await world.conditions())["perphd.io/LrasOnTarget"] == ("True", "OnTarget")


async def _is(world: World, milli: float, memory: float) -> bool:
    return bool(await world.level() == (milli, memory))


async def test_memory_is_never_offered_beyond_80_percent_of_the_node(admin: ApiAccess, world: World) -> None:
    world.offer(4.0, 64.0)  # a daemon that offers everything: 8 GiB are used by others
    async with publishing(admin, world):
        await until(lambda: _is(world, 4000, int(0.8 * 64 * 1024 - 8 * 1024) * 2**20))


async def test_one_high_look_does_not_raise_the_offer_and_one_low_look_lowers_it(
    admin: ApiAccess, world: World
) -> None:
    async with publishing(admin, world):
        await until(lambda: _is(world, 4000, 8 * GIB))
        documents = []
        for i in range(6):  # up and down with every look
            world.offer(8.0 if i % 2 else 3.0)
            documents.append(world.daemon.document)
        world.daemon.coming = documents
        seen = []
        while world.daemon.coming:
            seen.append((await world.level())[0])
            await asyncio.sleep(0.02)
        assert min(seen) == 3000.0
        assert max(seen) <= 4000.0
        await until(lambda: _is(world, 8000, 8 * GIB))  # the last document stays: two looks


async def test_taint_and_events_wait_and_come_back_slowly(admin: ApiAccess, world: World) -> None:
    def health(of: Health) -> None:
        world.offer(4.0, lras=tuple(replace(each, health=of) for each in world.daemon.document.lras))

    await world.api.patch(
        f"{NODES}/{NODE}", {"spec": {"taints": [{"key": "mine", "effect": "NoSchedule"}]}}, MERGE
    )
    async with publishing(admin, world):
        await until(lambda: _is(world, 4000, 8 * GIB))
        assert not await world.tainted()
        health(Health.DEGRADED)
        await until(world.tainted)
        assert (await world.conditions())["perphd.io/CopperAvailable"] == ("False", "LraDegraded")
        keys = [each["key"] for each in (await world.node())["spec"]["taints"]]
        assert sorted(keys) == ["mine", TAINT]
        health(Health.HEALTHY)
        await world.looks(1)
        assert await world.tainted()  # not yet: three good looks in a row
        await until(lambda: _not(world.tainted()))

        async def told() -> list[str]:
            events, _ = await world.api.list_all(EVENTS)
            return [each["reason"] for each in events if each["involvedObject"]["name"] == NODE]

        await until(lambda: _equal(told(), ["LraDegraded", "LraRecovered"]))


async def _not(value: Any) -> bool:
    return not await value


async def _equal(value: Any, wanted: Any) -> bool:
    found = await value
    return bool(sorted(found)[: len(wanted)] == wanted)


async def test_without_a_daemon_nothing_is_offered_and_a_restart_changes_nothing(
    admin: ApiAccess, world: World, tmp_path: Path
) -> None:
    async with publishing(admin, world):
        await until(lambda: _is(world, 4000, 8 * GIB))
    before = (await world.node())["metadata"]["resourceVersion"]
    async with publishing(admin, world):
        await world.looks(2)
    assert (await world.node())["metadata"]["resourceVersion"] == before
    world.daemon.path.rename(tmp_path / "away.sock")
    async with publishing(admin, world):
        await until(lambda: _is(world, 0, 0))
        assert await world.tainted()
        assert (await world.conditions())["perphd.io/LrasOnTarget"] == ("Unknown", "NoDaemon")
        (tmp_path / "away.sock").rename(world.daemon.path)
        await until(lambda: _is(world, 4000, 8 * GIB))
        await until(lambda: _not(world.tainted()))


async def test_a_node_that_is_made_again_and_foreign_writes_are_put_right(
    admin: ApiAccess, world: World
) -> None:
    async with publishing(admin, world):
        await until(lambda: _is(world, 4000, 8 * GIB))
        await remove_node(world.api, NODE)
        await make_node(world.api, NODE)
        await until(lambda: _is(world, 4000, 8 * GIB))
        await until(lambda: _has_document(world))
        foreign = {"status": {"allocatable": {"perphd.io/copper-cpu": "99000"}}}
        await world.api.patch(f"{NODES}/{NODE}/status", foreign, STRATEGIC)
        await until(lambda: _is(world, 4000, 8 * GIB))


async def _has_document(world: World) -> bool:
    items, _ = await world.api.list_all(PROFILES)
    return any(each["metadata"]["name"] == NODE and "document" in each.get("status", {}) for each in items)


async def test_an_api_server_that_stops_hangs_and_returns_costs_nothing_but_time(
    admin: ApiAccess, world: World, plane: ControlPlane, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "perphd.publish")
    async with publishing(admin, world):
        await until(lambda: _is(world, 4000, 8 * GIB))
        degraded = tuple(replace(each, health=Health.DEGRADED) for each in world.daemon.document.lras)
        await asyncio.to_thread(plane.stop, "kube-apiserver")
        world.offer(2.0, lras=degraded)
        await asyncio.sleep(2.0)
        await asyncio.to_thread(plane.start_api)
        await until(lambda: _is(world, 2000, 8 * GIB), 60.0)
        plane.signal("kube-apiserver", signal.SIGSTOP)  # accepts connections, answers nothing
        world.offer(3.0)
        await asyncio.sleep(4.0)
        plane.signal("kube-apiserver", signal.SIGCONT)
        await until(lambda: _is(world, 3000, 8 * GIB), 60.0)

        async def told() -> bool:
            events, _ = await world.api.list_all(EVENTS)
            mine = [each["reason"] for each in events if each["involvedObject"]["name"] == NODE]
            return mine.count("LraDegraded") >= 1

        await until(told)
    lines = [each for each in caplog.messages if "a round failed" in each]
    assert 1 <= len(lines) <= 12, lines  # not one line a try


async def test_withdraw_takes_everything_back(admin: ApiAccess, world: World) -> None:
    bare = await world.node()
    async with publishing(admin, world):
        await until(lambda: _is(world, 4000, 8 * GIB))
        world.offer(0.0)
        await until(world.tainted)
    await withdraw(world.api, NODE)
    after = await world.node()
    assert after["status"]["allocatable"].keys() == bare["status"]["allocatable"].keys()
    assert not await world.tainted()
    assert await world.conditions() == {}
    assert not await _has_document(world)


async def test_the_clock_of_a_node_does_not_matter_to_what_it_publishes(
    admin: ApiAccess, world: World
) -> None:
    def wrong() -> float:
        return time.time() - 86400.0 * 400

    async with publishing(admin, world, clock=wrong):
        await until(lambda: _is(world, 4000, 8 * GIB))
        world.offer(2.0)
        await until(lambda: _is(world, 2000, 8 * GIB))


async def test_the_labels_of_this_nodes_pods_are_written_for_the_daemon(
    admin: ApiAccess, world: World, tmp_path: Path
) -> None:
    file = tmp_path / "pods.json"

    async def labels() -> dict[str, Any]:
        found = json.loads(file.read_text())["pods"] if file.exists() else {}
        return {each["name"]: each["labels"] for each in found.values()}

    async with publishing(admin, world, pods_file=file):
        pod = copper_pod("labelled", nodeName=NODE)
        await world.api.post(PODS, pod)
        await world.api.post(PODS, copper_pod("elsewhere", schedulerName="nobody"))
        await until(lambda: _same(labels(), {"labelled": {"perphd.io/band": "copper"}}))
        await world.api.patch(f"{PODS}/labelled", {"metadata": {"labels": {"app": "pi"}}})
        await until(lambda: _same(labels(), {"labelled": {"perphd.io/band": "copper", "app": "pi"}}))
        await remove_pods(world.api)
        await until(lambda: _same(labels(), {}))


async def _same(value: Any, wanted: Any) -> bool:
    return bool(await value == wanted)


async def _state(world: World) -> dict[str, Any]:
    found = await world.api.get(f"{PROFILES}/{NODE}")
    return dict(found.get("status", {}).get("publisher", {}))


async def _says(world: World, problem: str) -> bool:
    return problem in (await _state(world)).get("problem", "")


async def test_a_publisher_says_how_it_is(
    admin: ApiAccess, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with publishing(admin, world) as publisher:
        await world.looks(2)
        state = await _state(world)
        assert (state["version"], state["problem"], state["ttlSeconds"]) == (__version__, "", 3 * PERIOD_S)
        world.daemon.path.rename(tmp_path / "away.sock")
        await until(lambda: _says(world, "perphd gave no usable answer"))
        began = await _state(world)
        await until(lambda: _later(world, began["problemSeconds"]))
        assert (await _state(world))["heardUnix"] > began["heardUnix"]
        (tmp_path / "away.sock").rename(world.daemon.path)
        await until(lambda: _not(_says(world, "perphd")))

        async def refused(*_: object) -> None:
            raise Forbidden("PATCH nodes/published/status", 403, "nodes is forbidden")

        monkeypatch.setattr(publisher, "_node_status", refused)
        await until(lambda: _says(world, "nodes is forbidden"))
        monkeypatch.undo()
        await until(lambda: _not(_says(world, "forbidden")))
        assert (await _state(world))["problemSeconds"] == 0


async def _later(world: World, seconds: float) -> bool:
    return bool((await _state(world))["problemSeconds"] > seconds)
