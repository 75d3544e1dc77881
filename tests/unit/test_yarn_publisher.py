"""The publisher of YARN against a ResourceManager and a NodeManager that answer as Hadoop 3.4 does."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from click.testing import CliRunner

from perphd.adapters.yarn.capacity import YarnCapacity, as_level, wanted
from perphd.adapters.yarn.client import YarnClient, YarnError, YarnRefused, YarnUnreachable, checked_url
from perphd.adapters.yarn.containers import application_of, label_match, labels_of
from perphd.adapters.yarn.program import main
from perphd.adapters.yarn.publisher import YarnPublisher, YarnSettings
from perphd.cluster.document import NodeAmounts, NodeDocument
from perphd.cluster.publication import Level
from perphd.domain.errors import ParseError
from perphd.domain.reading import NOT_MEASURED, Unavailable
from tests.unit.test_cluster_extender import GIB, document

NOW_S = 1000.0
NODE = "n1:45001"
APP = "application_1795466587039_0001"


def container(
    number: int, app: str = APP, state: str = "RUNNING", mb: int = 512, vcores: int = 1
) -> dict[str, Any]:
    name = f"{app.replace('application', 'container')}_01_{number:06}"
    return {
        "id": name,
        "state": state,
        "user": "root",
        "totalMemoryNeededMB": mb,
        "totalVCoresNeeded": vcores,
    }


class World:
    """Both managers in one server, and the daemon's next documents."""

    def __init__(self) -> None:
        self.total = {"memory": 8192, "vCores": 8}
        self.state, self.licences, self.is_standby, self.is_deaf = "RUNNING", 0, False, False
        self.containers: list[dict[str, Any]] = []
        self.apps: dict[str, dict[str, Any]] = {}
        self.written: list[dict[str, Any]] = []
        self.configured: dict[str, str] = {"memory-mb": "8192", "cpu-vcores": "8"}
        self.url = ""
        self.looks: list[NodeDocument | Unavailable] = []
        self.last: NodeDocument | Unavailable = self.offer(4.0)

    def offer(self, cpus: float, gib: float = 4.0, generation: int = 1) -> NodeDocument:
        base = document(made=NOW_S)
        copper = replace(base.copper, offered=NodeAmounts(cpus, gib * GIB))
        self.last = replace(base, copper=copper, generation=generation)
        return self.last

    async def look(self) -> NodeDocument | Unavailable:
        if self.looks:
            self.last = self.looks.pop(0)
        return self.last

    def described(self) -> dict[str, Any]:
        informations = [{"name": "memory-mb", "value": 1}, {"name": "gpu", "value": self.licences}]
        return {
            "id": NODE, "state": self.state, "nodeHTTPAddress": self.url.removeprefix("http://"),
            "totalResource": {**self.total, "resourceInformations": {"resourceInformation": informations}},
        }  # fmt: skip

    async def serve(self, request: web.Request) -> web.Response:
        path = request.path
        if path == "/ws/v1/node/containers":
            return web.json_response(
                {"containers": {"container": self.containers} if self.containers else None}
            )
        if path == "/conf":
            name = request.query["name"].removeprefix("yarn.nodemanager.resource.")
            if name not in self.configured:
                return web.json_response(status=404)
            return web.json_response({"property": {"key": name, "value": self.configured[name]}})
        path = path.removeprefix("/ws/v1/cluster/")
        if self.is_standby:
            return web.Response(
                text="This is standby RM.", status=307, headers={"Location": "http://192.0.2.1/"}
            )
        if path == "nodes":
            return web.json_response({"nodes": {"node": [self.described()]}})
        if path == f"nodes/{NODE}":
            return web.json_response({"node": self.described()})
        if path == f"nodes/{NODE}/resource":
            body = await request.json()
            self.written.append(body)
            if not self.is_deaf:
                self.total = body["resource"]
            return web.json_response({"resourceInfo": self.total})
        if app := self.apps.get(path.removeprefix("apps/")):
            return web.json_response({"app": app})
        return web.json_response({"RemoteException": {"message": f"{path} not found"}}, status=404)

    @property
    def now(self) -> tuple[int, int]:
        return self.total["memory"], self.total["vCores"]


@contextlib.asynccontextmanager
async def serving(handler: Any) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    async with serving(world.serve) as world.url:
        yield world


@contextlib.asynccontextmanager
async def publisher(world: World, *addresses: str, **more: Any) -> AsyncIterator[YarnPublisher]:
    settings = YarnSettings(**{"node": NODE, **more})
    async with YarnClient([*addresses, world.url]) as client:
        yield YarnPublisher(client, settings, world.look, 1.0, clock=lambda: NOW_S)


async def test_less_counts_at_once_and_more_at_the_second_look(world: World) -> None:
    async with publisher(world) as one:
        await one.round()
        assert world.now == (4096, 4)
        world.offer(6.0, 6.0, 2)
        await one.round()
        assert world.now == (4096, 4)
        await one.round()
        assert world.now == (6144, 6)
        world.offer(1.0, 1.0, 3)
        await one.round()
        assert world.now == (1024, 1)
        await one.round()
    assert [each["overCommitTimeout"] for each in world.written] == [-1] * 3


async def test_containers_are_killed_on_request_and_never_while_they_are_unknown(world: World) -> None:
    async with publisher(world, overcommit_s=60.0) as one:
        await one.round()
    async with publisher(world, overcommit_s=60.0, node_manager="http://127.0.0.1:1") as one:
        world.offer(1.0, 1.0)
        await one.round()
    assert [each["overCommitTimeout"] for each in world.written] == [60_000, -1]


async def test_a_restart_of_the_publisher_changes_nothing_and_a_forgotten_capacity_is_set_again(
    world: World,
) -> None:
    async with publisher(world) as one:
        await one.round()
    writes = len(world.written)
    async with publisher(world) as one:
        await one.round()
        assert len(world.written) == writes
        world.total = {"memory": 8192, "vCores": 8}  # the NodeManager registered anew
        await one.round()
    assert world.now == (4096, 4)


async def test_a_long_list_of_containers_is_read_to_its_end(world: World) -> None:
    world.apps[APP] = {"id": APP, "name": "x", "queue": "root.services", "applicationType": "X", "user": "u"}
    world.total = {"memory": 16384, "vCores": 8}
    world.containers = [container(number, mb=1, vcores=0) for number in range(3000)]
    async with publisher(world, lras=(label_match("yarn.queue=services"),)) as publishing:
        await publishing.round()
    assert world.now == (3000 + 4096, 4)


async def test_memory_stays_within_80_percent_of_the_node_with_the_lra_part(world: World) -> None:
    world.offer(4.0, 40.0)
    async with publisher(world, lra_part=YarnCapacity(40 * 1024, 2)) as one:
        await one.round()
        await one.round()
    assert world.now == (int(0.8 * 64 * 1024), 6)


async def test_a_grant_that_a_newer_document_has_overtaken_is_cut_to_it(world: World) -> None:
    async with publisher(world) as one:
        await one.round()
        more, less = world.offer(6.0, 6.0, 2), world.offer(2.0, 2.0, 3)
        world.looks = [more, more, less]
        await one.round()  # sees more for the first time
        await one.round()  # would grant it, but the document has changed meanwhile
        assert world.now == (2048, 2)
        world.looks = [more, more, Unavailable("away")]
        await one.round()
        await one.round()
        assert world.now == (0, 0)


async def test_without_a_valid_document_copper_has_nothing_and_lras_keep_theirs(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "perphd.yarn")
    world.containers = [container(1), container(2, state="EXITED_WITH_SUCCESS")]
    world.apps[APP] = app("services")
    async with publisher(world, lras=(label_match("yarn.queue=serv*"),)) as one:
        await one.round()
        assert world.now == (4096 + 512, 5)
        world.last = replace(world.offer(4.0), made_unix_s=NOW_S - 31.0)
        await one.round()
        assert world.now == (512, 1)
        world.last = Unavailable("perphd does not answer")
        await one.round()
        world.offer(4.0)
        await one.round()
        await one.round()
    assert world.now == (4096 + 512, 5)
    assert [line for line in caplog.messages if "no capacity for copper" in line] == [
        "no capacity for copper: perphd's document is 31 s old; it is valid for 30 s"
    ]


def app(queue: str, **more: Any) -> dict[str, Any]:
    return {
        "id": APP, "name": "pi", "queue": f"root.{queue}", "applicationType": "MAPREDUCE", "user": "ann",
        "applicationTags": "", **more,
    }  # fmt: skip


async def test_labels_are_written_for_the_daemon_and_follow_the_queue(world: World, tmp_path: Path) -> None:
    file = tmp_path / "containers.json"
    world.containers = [container(1), container(2, "application_7_0001")]
    world.apps[APP] = app("batch", applicationTags="nightly,perphd.io/kind=batch")
    async with publisher(world, containers_file=file, hierarchy="/perphd-test") as one:
        await one.round()
        found = json.loads(file.read_text())
        assert found["hierarchy"] == "/perphd-test"
        assert found["containers"]["container_1795466587039_0001_01_000001"] == {
            "yarn.app": APP, "yarn.name": "pi", "yarn.queue": "batch", "yarn.type": "MAPREDUCE", "yarn.user": "ann",
            "yarn.tag.nightly": "true", "perphd.io/kind": "batch",
        }  # fmt: skip
        assert found["containers"]["container_7_0001_01_000002"] == {"yarn.app": "application_7_0001"}
        world.apps[APP] = app("services")
        for _ in range(6):
            await one.round()
        queues = [each.get("yarn.queue") for each in json.loads(file.read_text())["containers"].values()]
        assert queues == ["services", None]
        world.containers = []
        await one.round()
        assert json.loads(file.read_text())["containers"] == {}


async def test_a_standby_is_passed_over_and_no_redirect_is_followed(world: World) -> None:
    standby = World()
    standby.is_standby = True
    async with serving(standby.serve) as address, publisher(world, address, "http://127.0.0.1:1") as one:
        await one.round()
        assert world.now == (4096, 4)
        world.is_standby = True
        with pytest.raises(YarnUnreachable, match="not the active one"):
            await one.round()
    assert standby.written == []


async def test_what_goes_wrong_is_named(world: World) -> None:
    async with publisher(world, node="n2:45001") as one:
        with pytest.raises(YarnError, match=r"does not know n2:45001; it knows n1:45001"):
            await one.round()
    async with publisher(world, node="n2") as one:
        with pytest.raises(YarnError, match="0 NodeManagers of host n2"):
            await one.round()
    async with publisher(world, node="n1") as one:
        await one.round()
        world.state = "LOST"
        with pytest.raises(YarnError, match="LOST"):
            await one.round()
        world.state, world.is_deaf = "RUNNING", True
        world.offer(1.0, 1.0)
        with pytest.raises(YarnUnreachable, match=r"accepted 1024 MiB, 1 vcores .* but reports 4096 MiB"):
            await one.round()
    world.is_deaf, world.licences = False, 2
    async with publisher(world) as one:
        with pytest.raises(YarnRefused, match="gpu"):
            await one.round()
    async with serving(_text) as address, YarnClient([address]) as client:
        with pytest.raises(YarnUnreachable, match="not JSON: 'There is no active RM'"):
            await client.get("info")


@pytest.mark.parametrize(
    "text", ["", "null", "{}", "[]", '{"node": null}', '{"nodes": []}', '{"nodes": {"node": [7]}}']
)
@pytest.mark.parametrize("node", [NODE, "n1"])
async def test_an_answer_in_another_form_ends_no_publisher(world: World, text: str, node: str) -> None:
    """A proxy, or a manager that is about to stop, answers 200 with something else."""

    async def other(_: web.Request) -> web.Response:
        return web.Response(text=text, content_type="application/json")

    async with serving(other) as address:
        settings = YarnSettings(node)
        async with YarnClient([address]) as client:
            with pytest.raises(YarnUnreachable):
                await YarnPublisher(client, settings, world.look, 1.0, clock=lambda: NOW_S).round()


async def _text(_: web.Request) -> web.Response:
    return web.Response(text="There is no active RM")


async def test_withdraw_restores_the_configured_capacity(world: World) -> None:
    async with publisher(world) as one:
        await one.round()
        assert await one.withdraw() == YarnCapacity(8192, 8)
        assert world.now == (8192, 8)
    del world.configured["memory-mb"]
    async with publisher(world) as one:
        with pytest.raises(YarnRefused, match="--memory-mb and --vcores"):
            await one.withdraw()
    async with publisher(world, configured=YarnCapacity(1024, 2)) as one:
        await one.withdraw()
    assert world.now == (1024, 2)


def test_capacities_round_down_and_what_is_published_is_read_back() -> None:
    lras = YarnCapacity(1024, 2)
    assert wanted(Level(1999, int(3 * GIB) + 5), lras, NOT_MEASURED, 1.0) == YarnCapacity(4096, 3)
    assert wanted(Level(1999, 0), YarnCapacity(), 64.0 * GIB, 2.0) == YarnCapacity(0, 3)
    assert as_level(YarnCapacity(4096, 3), lras, 1.0) == Level(1000, int(3 * GIB))
    assert as_level(YarnCapacity(0, 0), lras, 1.0) == Level()


@pytest.mark.parametrize(
    "text", ["rm:8088", "ftp://rm", "http://", "http://rm:99999", "http://rm:8088/ws?x=1"]
)
def test_only_addresses_are_taken(text: str) -> None:
    with pytest.raises(YarnError):
        checked_url(text)


def test_ids_labels_and_options_are_read() -> None:
    assert application_of("container_e17_1410901177871_0001_01_000005") == "application_1410901177871_0001"
    assert application_of("../container_1_0001_01_000005") == ""
    assert labels_of(app("a.b"))["yarn.queue"] == "a.b"
    with pytest.raises(YarnUnreachable):
        labels_of({"id": APP})
    with pytest.raises(ParseError, match="KEY=GLOB"):
        label_match("services")
    done = CliRunner().invoke(
        main, ["withdraw", "--node", "n1", "--resource-manager", "http://rm", "--vcores", "2"]
    )
    assert done.exit_code == 1
    assert "--memory-mb and --vcores must be given together" in done.output
