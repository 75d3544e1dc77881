"""Evictions through a real API server: copper only, one at a time, budgets and rights respected, with an event."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perphd.adapters.kubernetes.client import ApiAccess, ApiClient, ApiMissing, follow
from perphd.adapters.kubernetes.evictor import Evictor
from perphd.adapters.kubernetes.objects import NODES, events_path
from perphd.adapters.kubernetes.objects import PODS as ALL_PODS
from perphd.adapters.kubernetes.own_pods import OwnPods
from perphd.adapters.kubernetes.publisher import Publisher
from perphd.cluster.document import NodeAmounts, NodeDocument
from perphd.cluster.eviction import SETTLE_S
from tests.cluster.conftest import MANIFESTS
from tests.cluster.world import (
    PODS,
    Daemon,
    background,
    copper_pod,
    make_node,
    plain_pod,
    remove_node,
    remove_pods,
    token_of,
    until,
)
from tests.unit.test_cluster_extender import GIB, document
from tools.cluster.control_plane import ControlPlane

NODE = "evicting"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"


def short() -> NodeDocument:
    made = document()
    copper = replace(made.copper, offered=NodeAmounts(4.0, 2 * GIB), used=NodeAmounts(1.0, 6 * GIB))
    return replace(made, copper=copper)


class World:
    """A node whose copper is short of memory, its pods, and a publisher with a clock that the test sets."""

    def __init__(self, api: ApiClient, publisher: Publisher, pods: OwnPods) -> None:
        self.api, self.publisher, self.pods = api, publisher, pods
        self.now_s = 0.0

    async def pod(self, name: str, body: dict[str, Any]) -> None:
        body["spec"]["nodeName"] = NODE
        await self.api.post(PODS, body)
        await until(lambda: self._runs(name), what=f"{name} does not run")

    async def _runs(self, name: str) -> bool:
        return any(
            each["metadata"]["name"] == name and each["status"].get("phase") == "Running"
            for each in self.pods.pods.values()
        )

    async def names(self) -> set[str]:
        items, _ = await self.api.list_all(PODS)
        return {each["metadata"]["name"] for each in items if not each["metadata"].get("deletionTimestamp")}

    async def after(self, seconds: float) -> None:
        self.now_s += seconds
        await self.publisher.round()

    async def told(self) -> list[tuple[str, str]]:
        events, _ = await self.api.list_all(events_path("default"))
        found = [each for each in events if each["reason"] == "CopperEvicted"]
        return [(each["involvedObject"]["name"], each["message"]) for each in found]


@pytest.fixture
async def world(admin: ApiAccess, plane: ControlPlane, tmp_path: Path) -> AsyncIterator[World]:
    """The publisher's own account, with the additional rights."""
    await asyncio.to_thread(plane.kubectl, "apply", "-f", str(MANIFESTS / "rbac-evict.yaml"))
    async with ApiClient(admin) as api:
        await make_node(api, NODE)
        token = await token_of(api, "perphd-publish", tmp_path)
        async with ApiClient(ApiAccess(admin.url, str(token), admin.ca_file)) as own:
            pods = OwnPods()

            async def look() -> NodeDocument:
                return short()

            evictor = Evictor(own, NODE, pods, 300.0, lambda: made.now_s)
            made = World(api, Publisher(own, NODE, look, pods, 1.0, evictor=evictor), pods)
            watching = follow(
                own,
                ALL_PODS,
                pods.replaced,
                pods.changed,
                lambda *_: None,
                fieldSelector=f"spec.nodeName={NODE}",
            )
            async with background(watching):
                yield made
        with contextlib.suppress(ApiMissing):
            await api.request("DELETE", f"{BUDGETS}/keep")
        await remove_pods(api)
        await remove_node(api, NODE)
        await api.request("DELETE", events_path("default"))
    await asyncio.to_thread(
        plane.kubectl, "delete", "-f", str(MANIFESTS / "rbac-evict.yaml"), "--ignore-not-found"
    )


async def test_copper_goes_one_at_a_time_and_nobody_else(world: World) -> None:
    await world.pod("service", plain_pod("service"))
    gold = copper_pod("claims-copper")
    gold["metadata"]["labels"] = {"perphd.io/band": "gold"}
    await world.pod("claims-copper", gold)
    for number in range(2):
        await world.pod(f"batch-{number}", copper_pod(f"batch-{number}", 100))
    await world.after(0.0)
    await world.after(299.0)
    assert len(await world.names()) == 4
    await world.after(1.0)
    left = await world.names()
    assert len(left) == 3
    assert {"service", "claims-copper"} < left
    gone = ({"batch-0", "batch-1"} - left).pop()
    assert [name for name, _ in await world.told()] == [gone]
    assert "and has exceeded the offer for 300 s" in (await world.told())[0][1]

    async def is_gone() -> bool:
        return len(world.pods.pods) == 3

    await until(is_gone, what="the evicted pod stays")
    await world.after(SETTLE_S - 1.0)
    assert await world.names() == left
    await world.after(1.0)
    assert await world.names() == {"service", "claims-copper"}
    await world.after(1e5)
    assert await world.names() == {"service", "claims-copper"}


async def test_the_program_evicts_only_if_asked(world: World, admin: ApiAccess, tmp_path: Path) -> None:
    await world.pod("batch-0", copper_pod("batch-0", 100))
    made = document()
    starved = replace(made, copper=replace(made.copper, starved_s=400.0))
    daemon = Daemon(tmp_path / "perphd.sock", starved)
    command = [
        sys.executable, "-c", "from perphd.adapters.kubernetes.publish_program import main; main()", "run",
        "--node", NODE, "--socket", str(daemon.path), "--period", "0.2", "--api-server", admin.url,
        "--token-file", admin.token_file, "--ca-file", admin.ca_file,
    ]  # fmt: skip
    async with daemon.running():
        for options, left in (
            ([], {"batch-0"}),
            (["--evict", "--evict-after", "401"], {"batch-0"}),
            (["--evict"], set()),
        ):
            process = await asyncio.create_subprocess_exec(*command, *options)
            try:
                looks = daemon.looks

                async def looked(wanted: int = looks + 5) -> bool:
                    return daemon.looks >= wanted

                async def gone() -> bool:
                    return not await world.names()

                await until(looked, 60.0, "the program does not look")
                if not left:
                    await until(gone, 60.0, "nothing is evicted")
                assert await world.names() == left
            finally:
                process.terminate()
                assert await process.wait() == 0


async def test_a_budget_is_respected_and_publishing_goes_on(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "perphd.publish")
    budget = {
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "keep"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"perphd.io/band": "copper"}}},
    }  # fmt: skip
    await world.api.post(BUDGETS, budget)
    await world.pod("batch-0", copper_pod("batch-0", 100))
    await world.after(0.0)
    for _ in range(3):
        await world.after(400.0)
    assert await world.names() == {"batch-0"}
    assert await world.told() == []
    refusals = [each for each in caplog.messages if "batch-0 is not evicted" in each and "429" in each]
    assert len(refusals) == 3
    node = await world.api.get(f"{NODES}/{NODE}")
    assert "perphd.io/copper-cpu" in node["status"]["allocatable"]
    await world.api.request("DELETE", f"{BUDGETS}/keep")
    await world.after(400.0)
    assert await world.names() == set()


async def test_a_pod_that_two_budgets_cover_is_left_alone_and_another_goes(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The eviction API refuses such a pod for good, as a fault of the server."""
    caplog.set_level(logging.WARNING, "perphd.publish")
    for name in ("keep", "keep-too"):
        await world.api.post(BUDGETS, {
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name},
            "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"twice": "yes"}}},
        })  # fmt: skip
    try:
        twice = copper_pod("batch-twice", 100)
        twice["metadata"]["labels"]["twice"] = "yes"
        await world.pod("batch-once", copper_pod("batch-once", 100))
        await asyncio.sleep(1.1)  # start times are whole seconds
        await world.pod("batch-twice", twice)
        await world.after(0.0)
        await world.after(400.0)
        assert await world.told() == []
        assert any("batch-twice is not evicted" in each for each in caplog.messages)
        await world.after(30.0)
        assert await world.names() == {"batch-twice"}
        assert [name for name, _ in await world.told()] == ["batch-once"]
    finally:
        await world.api.request("DELETE", f"{BUDGETS}/keep-too")


async def test_without_the_right_nothing_goes_and_publishing_goes_on(
    world: World, plane: ControlPlane, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "perphd.publish")
    await asyncio.to_thread(plane.kubectl, "delete", "-f", str(MANIFESTS / "rbac-evict.yaml"))
    await world.pod("batch-0", copper_pod("batch-0", 100))
    await world.after(0.0)

    async def refused() -> bool:
        await world.after(400.0)
        return any("403" in each for each in caplog.messages)

    await until(refused, what="the right is not missed")
    assert await world.names() == {"batch-0"}
    assert "perphd.io/copper-cpu" in (await world.api.get(f"{NODES}/{NODE}"))["status"]["allocatable"]
