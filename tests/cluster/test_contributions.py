"""Models that travel as ConfigMaps, on a real API server, with the rights that are shipped."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from perphd.adapters.kubernetes.client import MERGE, ApiAccess, ApiClient, Forbidden, KubernetesError
from perphd.adapters.kubernetes.contributions import EVERY_S, Contributions, withdraw
from perphd.adapters.kubernetes.objects import config_maps_path
from perphd.agent.contribution_folder import ContributionFolder
from perphd.cluster.contribution_objects import KEY, LABEL, NAMESPACE, WITHDRAWN, config_map
from perphd.federated.contribution import MAX_BYTES, Contribution, Statistic, Topic, fitting
from tests.cluster.conftest import MANIFESTS
from tests.cluster.world import make_node, plain_pod, remove_node, token_of, until
from tests.unit.test_federated import XEON, contribution
from tools.cluster.control_plane import ControlPlane

NODES = ("m1", "m2", "m3", "m4")
MAPS = config_maps_path(NAMESPACE)


class Node:
    """One node's folder and its carrier."""

    def __init__(self, client: ApiClient, name: str, base: Path) -> None:
        self.name, self.late_s = name, 0.0
        self.folder = ContributionFolder(base / name)
        self.carrier = Contributions(client, name, self.folder, clock=lambda: time.time() + self.late_s)

    def learn(self, *values: float, generation: int = 1) -> None:
        self.folder.write(contribution(self.name, *values, generation=generation, made=time.time()))

    async def later(self) -> None:
        self.late_s += 2 * EVERY_S
        await self.carrier.round()

    async def hears(self, *names: str) -> None:
        """Wait until exactly these others are in the folder: an API server may answer lists from a cache."""

        async def look() -> bool:
            await self.later()
            ledger, _ = self.folder.read()
            return {f"{name}@kubernetes" for name in names} == ledger.contributions.keys() - {self.name}

        await until(look)


@pytest.fixture
async def nodes(admin: ApiAccess, tmp_path: Path) -> AsyncIterator[list[Node]]:
    """Four nodes whose carriers use the token of the publisher's account."""
    async with ApiClient(admin) as api:
        for name in NODES:
            await make_node(api, name)
        token = await token_of(api, "perphd-publish", tmp_path)
        async with ApiClient(ApiAccess(admin.url, str(token), admin.ca_file)) as own:
            found = [Node(own, name, tmp_path) for name in NODES]
            for number, node in enumerate(found):
                node.learn(float(number), 1.0, 2.0)
                await node.carrier.round()
            yield found
        for name in NODES:
            await withdraw(api, name)
            await remove_node(api, name)


async def test_models_travel_and_are_taken_back(
    admin: ApiAccess, nodes: list[Node], caplog: pytest.LogCaptureFixture
) -> None:
    first = nodes[0]
    await first.hears("m2", "m3", "m4")
    ledger, problems = first.folder.read()
    assert not problems
    assert ledger.contributions["m3@kubernetes"].statistics[0].values == (2.0, 1.0, 2.0)
    async with ApiClient(admin) as api:
        metadata = (await api.get(f"{MAPS}/m2"))["metadata"]
        assert metadata["ownerReferences"][0]["name"] == "m2"
        assert [each["manager"] for each in metadata["managedFields"]] == ["perphd-publish"]
        await api.patch(f"{MAPS}/m2", {"metadata": {"labels": {WITHDRAWN: "true"}}}, MERGE)
        await withdraw(api, "m3")
        await first.hears("m4")
        nodes[1].learn(3.0, 1.0, 2.0, generation=2)
        await nodes[1].later()
        assert WITHDRAWN in (await api.get(f"{MAPS}/m2"))["metadata"]["labels"]
        await first.hears("m4")
        await api.patch(f"{MAPS}/m2", {"metadata": {"labels": {WITHDRAWN: None}}}, MERGE)
        await nodes[2].later()  # its own is missing: the next round writes it again
        await until(lambda: _is_again(nodes[2], api))
        await first.hears("m2", "m3", "m4")

        caplog.set_level(logging.WARNING, "perphd.publish")
        foreign = {"metadata": {"name": "mine", "labels": {LABEL: "true"}}, "data": {"a": "b"}}
        await api.post(MAPS, foreign)  # first: a list may lag, but shows changes in their order
        await api.patch(f"{MAPS}/m4", {"data": {KEY: "{}"}}, MERGE)
        await first.hears("m2", "m3")
        await api.request("DELETE", f"{MAPS}/mine")
    said = "\n".join(caplog.messages)
    assert "ConfigMap perphd-models/m4: not used: it is not a contribution" in said
    assert "ConfigMap perphd-models/mine: not used: its owner must be the Node 'mine'" in said


async def _is_again(node: Node, api: ApiClient) -> bool:
    await node.later()
    return any(each["metadata"]["name"] == node.name for each in (await api.list_all(MAPS))[0])


async def test_the_largest_document_travels(admin: ApiAccess, nodes: list[Node]) -> None:
    topics = [Topic("correction", f"{i}", "work", "p") for i in range(480)]
    said = fitting(Statistic(each, (1.23456,) * 192, (1.5,) * 192) for each in topics)
    nodes[1].folder.write(Contribution("m2", 2, time.time(), XEON, said))
    await nodes[1].later()
    await nodes[0].hears("m2", "m3", "m4")
    async with ApiClient(admin) as api:
        assert len((await api.get(f"{MAPS}/m2"))["data"][KEY]) > 0.99 * MAX_BYTES
    found = nodes[0].folder.own("m2@kubernetes")
    assert found is not None
    assert found.statistics == said


async def test_a_publisher_speaks_for_its_own_node_only(
    admin: ApiAccess, plane: ControlPlane, nodes: list[Node], tmp_path: Path
) -> None:
    async with ApiClient(admin) as api:
        pods = "/api/v1/namespaces/perphd/pods"
        made = await api.post(pods, plain_pod("speaker", nodeName="m1", serviceAccountName="perphd-publish"))
        await asyncio.to_thread(plane.kubectl, "apply", "-f", str(MANIFESTS / "own-node.yaml"))
        bound = {"kind": "Pod", "apiVersion": "v1", "name": "speaker", "uid": made["metadata"]["uid"]}
        token = await token_of(api, "perphd-publish", tmp_path, bound)
        try:
            async with ApiClient(ApiAccess(admin.url, str(token), admin.ca_file)) as own:

                async def refused(work: Any) -> str:
                    try:
                        await work
                    except KubernetesError as exc:
                        return str(exc)
                    return ""

                def said(node: str, value: float) -> Any:
                    return config_map(node, "uid", contribution(node, value, 1.0, 2.0))

                # A new policy takes effect within seconds.
                await until(lambda: refused(own.apply(f"{MAPS}/m2", said("m2", 9.0))))
                assert "may not change m2" in await refused(own.apply(f"{MAPS}/m2", said("m2", 9.0)))
                assert "may not change m9" in await refused(own.apply(f"{MAPS}/m9", said("m9", 9.0)))
                assert "may not change m2" in await refused(own.request("DELETE", f"{MAPS}/m2"))
                assert await refused(own.apply(f"{MAPS}/m1", said("m1", 8.0))) == ""
                await api.patch(f"{MAPS}/m1", {"metadata": {"labels": {WITHDRAWN: "true"}}}, MERGE)
                assert await refused(own.apply(f"{MAPS}/m1", said("m1", 7.0))) == ""
                back = {"metadata": {"labels": {WITHDRAWN: None}}}
                assert "withdrawn" in await refused(own.patch(f"{MAPS}/m1", back))
                assert "withdrawn" in await refused(own.request("DELETE", f"{MAPS}/m1"))
                with pytest.raises(Forbidden):
                    await own.apply(f"{config_maps_path('perphd')}/m1", said("m1", 8.0))
                with pytest.raises(Forbidden):
                    await own.list_all(config_maps_path("perphd"))
        finally:
            await asyncio.to_thread(plane.kubectl, "delete", "-f", str(MANIFESTS / "own-node.yaml"))
            await api.request("DELETE", f"{pods}/speaker", query={"gracePeriodSeconds": "0"})
