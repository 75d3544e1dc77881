"""Contributions to models as ConfigMaps, against an API server that other people write to as well."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st

from perphd.adapters.kubernetes.client import METADATA, ApiAccess, ApiClient, ApiUnreachable
from perphd.adapters.kubernetes.contributions import EVERY_S, Contributions, withdraw
from perphd.agent.contribution_folder import ContributionFolder, contributor_name, this_host
from perphd.cluster.contribution_objects import (
    APPLICATIONS,
    EXPIRE_S,
    HOSTS_PER_APPLICATION,
    KEY,
    LABEL,
    MOST_HOSTS,
    WITHDRAWN,
    ListedContributions,
    carried_name,
    chosen,
    config_map,
    document_in,
    listed,
)
from perphd.domain.errors import PerphError
from perphd.federated.contribution import (
    MAX_BYTES,
    Contribution,
    ContributionRefused,
    Statistic,
    Topic,
    fitting,
    to_text,
)
from tests.unit.test_federated import NOW, XEON, contribution

NODES = ("n1", "n2", "n3", "n4")
MAPS = "/api/v1/namespaces/perphd-models/configmaps"


class Cluster:
    """Nodes and the ConfigMaps of one namespace."""

    def __init__(self) -> None:
        self.maps: dict[str, Any] = {}
        self.version = 0
        self.calls: list[str] = []
        self.status = 200
        self.failing: set[str] = set()
        self.lists_withdrawn = False

    def put(self, name: str, item: Any) -> Any:
        self.version += 1
        kept = json.loads(json.dumps(item))
        labels = self.maps.get(name, {}).get("metadata", {}).get("labels", {})
        kept["metadata"] |= {
            "resourceVersion": str(self.version),
            "labels": labels | kept["metadata"].get("labels", {}),
        }
        self.maps[name] = kept
        return kept

    async def answer(self, request: web.Request) -> web.Response:
        self.calls.append(f"{request.method} {request.path}")
        name = request.match_info.get("name", "")
        if self.status != 200 or name in self.failing:
            return web.json_response({"message": "no"}, status=503 if name in self.failing else self.status)
        if request.path.startswith("/api/v1/nodes/"):
            return web.json_response({"metadata": {"name": name, "uid": f"uid-{name}"}})
        if not name:
            assert request.headers["Accept"] == METADATA
            assert request.query["labelSelector"] == f"{LABEL}=true,!{WITHDRAWN}"
            labels = {n: each["metadata"].get("labels", {}) for n, each in self.maps.items()}
            items = [
                {"metadata": each["metadata"]}
                for n, each in self.maps.items()
                if labels[n].get(LABEL) == "true" and (self.lists_withdrawn or WITHDRAWN not in labels[n])
            ]
            return web.json_response({"metadata": {"resourceVersion": str(self.version)}, "items": items})
        if request.method == "PATCH":
            assert request.headers["Content-Type"] == "application/apply-patch+yaml"
            assert request.query["fieldManager"] == "perphd-publish"
            return web.json_response(self.put(name, await request.json()))
        if name not in self.maps:
            return web.json_response({"message": "not found"}, status=404)
        if request.method == "DELETE":
            if WITHDRAWN in self.maps[name]["metadata"]["labels"]:  # as own-node.yaml does
                return web.json_response({"message": "denied"}, status=422)
            return web.json_response(self.maps.pop(name))
        return web.json_response(self.maps[name])


class Node:
    """One node's folder and its carrier."""

    def __init__(self, client: ApiClient, name: str, base: Path) -> None:
        self.name, self.now_s = name, NOW
        self.folder = ContributionFolder(base / name)
        self.carrier = Contributions(client, name, self.folder, clock=lambda: self.now_s)

    def learn(self, *values: float, generation: int = 1, made: float = NOW) -> None:
        self.folder.write(contribution(self.name, *values, generation=generation, made=made))

    async def later(self, seconds: float = 2 * EVERY_S) -> None:
        self.now_s += seconds
        await self.carrier.round()

    @property
    def heard(self) -> dict[str, tuple[float, ...]]:
        """Other hosts' values as the daemon reads them."""
        ledger, problems = self.folder.read()
        assert not problems
        return {
            each.contributor: each.statistics[0].values
            for each in ledger.counting()
            if each.contributor != self.name
        }


@pytest.fixture
async def api() -> AsyncIterator[tuple[Cluster, ApiClient]]:
    cluster = Cluster()
    app = web.Application()
    for path in ("/api/v1/nodes/{name}", MAPS, f"{MAPS}/{{name}}"):
        app.add_routes([web.route("*", path, cluster.answer)])
    async with (
        TestServer(app) as server,
        ApiClient(ApiAccess(str(server.make_url("/")).rstrip("/"))) as client,
    ):
        yield cluster, client


@pytest.fixture
async def nodes(api: tuple[Cluster, ApiClient], tmp_path: Path) -> list[Node]:
    """Four nodes that have learned different things, after one exchange."""
    found = [Node(api[1], name, tmp_path) for name in NODES]
    for number, node in enumerate(found):
        node.learn(0.1 * number, 1.0, 2.0)
        await node.carrier.round()
    await found[0].later()
    return found


async def test_documents_of_all_nodes_reach_the_folder(
    api: tuple[Cluster, ApiClient], nodes: list[Node]
) -> None:
    first, last = nodes[0], nodes[-1]
    assert first.heard == {f"n{i}@kubernetes": (0.1 * (i - 1), 1.0, 2.0) for i in (2, 3, 4)}
    assert last.heard.keys() == {"n1@kubernetes", "n2@kubernetes", "n3@kubernetes"}
    metadata = api[0].maps["n2"]["metadata"]
    assert metadata["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Node", "name": "n2", "uid": "uid-n2"}
    ]
    assert metadata["annotations"] == {APPLICATIONS: "mysql"}
    assert first.carrier.counts == {"shared": 1, "carried": 3, "refused": 0}
    assert first.folder.own("n1") == contribution("n1", 0.0, 1.0, 2.0)


async def test_only_what_changed_is_fetched_and_written(
    api: tuple[Cluster, ApiClient], nodes: list[Node]
) -> None:
    cluster, first = api[0], nodes[0]
    cluster.calls.clear()
    await first.later()
    assert cluster.calls == [f"GET {MAPS}"]
    nodes[1].learn(7.0, 7.0, 7.0, generation=2)
    await nodes[1].later(60.0)
    assert "PATCH" not in str(cluster.calls)  # the last one is a minute old
    await nodes[1].later()
    cluster.calls.clear()
    await first.later()
    assert cluster.calls == [f"GET {MAPS}", f"GET {MAPS}/n2"]
    assert first.heard["n2@kubernetes"] == (7.0, 7.0, 7.0)
    (first.folder.folder / "n3@kubernetes.json").unlink()
    await first.later()
    assert "n3@kubernetes" in first.heard


async def test_what_is_withdrawn_deleted_or_taken_back_goes(
    api: tuple[Cluster, ApiClient], nodes: list[Node]
) -> None:
    cluster, client = api
    first = nodes[0]
    cluster.maps["n2"]["metadata"]["labels"][WITHDRAWN] = "true"
    nodes[2].folder.remove("n3")  # contribute = false, and the file removed
    await nodes[2].later()
    assert "n3" not in cluster.maps
    await first.later()
    assert first.heard.keys() == {"n4@kubernetes"}
    await nodes[1].later()  # its own publisher does not undo an administrator's withdrawal
    nodes[1].learn(9.0, 9.0, 9.0, generation=2)
    await nodes[1].later()
    await first.later()
    assert first.heard.keys() == {"n4@kubernetes"}
    nodes[1].folder.remove("n2")
    await nodes[1].later()
    assert WITHDRAWN in cluster.maps["n2"]["metadata"]["labels"]
    await withdraw(client, "n4")
    await withdraw(client, "n4")
    await first.later()
    assert first.heard == {}
    assert first.folder.own("n1") is not None


async def test_a_model_that_was_reset_is_taken_back(
    api: tuple[Cluster, ApiClient], nodes: list[Node]
) -> None:
    nodes[1].learn(generation=2)
    await nodes[1].later()
    assert "n2" not in api[0].maps


async def test_an_own_document_that_cannot_be_read_changes_nothing(
    api: tuple[Cluster, ApiClient], nodes: list[Node]
) -> None:
    (nodes[1].folder.folder / "n2.json").write_text("{")
    await nodes[1].later()
    assert "n2" in api[0].maps


async def test_a_folder_that_may_not_be_entered_changes_nothing(
    api: tuple[Cluster, ApiClient], nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.open", refused)  # root enters every folder
    monkeypatch.setattr(Path, "stat", refused)
    with contextlib.suppress(PerphError):
        await nodes[1].later()
    assert "n2" in api[0].maps


def _edited(**change: Any) -> Any:
    item = config_map("n2", "uid", contribution("n2", 5.0, 5.0, 5.0, generation=9))
    return item | change


REFUSED = {
    "no JSON": (_edited(data={KEY: "{"}), "it is not a contribution"),
    "no Unicode": (_edited(data={KEY: "\ud800"}), "it is not a contribution"),
    "too large": (_edited(data={KEY: "x" * (MAX_BYTES + 1)}), "exceed the limit"),
    "edited": (
        _edited(data={KEY: _edited()["data"][KEY].replace("5.0", "6.0")}),
        "its checksum is wrong",
    ),
    "another host": (
        _edited(data={KEY: to_text(contribution("n3@kubernetes", 5.0)).decode()}),
        "its contributor is n3@kubernetes; the ConfigMap n2 must hold that of n2@kubernetes",
    ),
    "plain name": (_edited(data={KEY: to_text(contribution("n1", 5.0)).decode()}), "its contributor is n1"),
    "other keys": (_edited(data={"x": "y"}), "it has the keys x instead of contribution.json alone"),
    "no keys": (_edited(data={}), "it has the keys (none)"),
    "binary": (_edited(binaryData={"z": "AA=="}), "it has the keys contribution.json, z"),
    "no owner": (
        _edited(metadata={"name": "n2", "labels": {LABEL: "true"}}),
        "its owner must be the Node 'n2'",
    ),
    "expired": (
        config_map("n2", "uid", contribution("n2", 5.0, made=NOW - EXPIRE_S)),
        "it has expired",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_what_is_foreign_or_damaged_is_refused_by_name_and_harms_nobody(
    api: tuple[Cluster, ApiClient], nodes: list[Node], caplog: pytest.LogCaptureFixture, name: str
) -> None:
    item, reason = REFUSED[name]
    first = nodes[0]
    assert "n2@kubernetes" in first.heard
    caplog.set_level(logging.WARNING, "perphd.publish")
    api[0].put("n2", item)
    await first.later()
    assert first.heard.keys() == {"n3@kubernetes", "n4@kubernetes"}  # not its earlier document either
    (line,) = caplog.messages
    assert line.startswith("ConfigMap perphd-models/n2: not used: ")
    assert reason in line
    api[0].calls.clear()
    await first.later()
    assert len(caplog.messages) == 1
    assert api[0].calls == [f"GET {MAPS}"]  # refused once, until it changes
    assert first.carrier.counts == {"shared": 1, "carried": 2, "refused": 1}


async def test_the_own_config_map_is_put_right(api: tuple[Cluster, ApiClient], nodes: list[Node]) -> None:
    cluster, first = api[0], nodes[0]
    before = cluster.maps["n1"]["data"]
    cluster.put("n1", _edited(data={KEY: "{"}) | {"metadata": cluster.maps["n1"]["metadata"]})
    await first.later()
    await first.later(60.0)
    assert cluster.maps["n1"]["data"] == before
    del cluster.maps["n1"]
    await first.later()
    await first.later(60.0)
    assert cluster.maps["n1"]["data"] == before


async def test_without_an_api_server_the_folder_stays(
    api: tuple[Cluster, ApiClient], nodes: list[Node]
) -> None:
    first, before = nodes[0], nodes[0].heard
    api[0].status = 503
    with pytest.raises(ApiUnreachable):
        await first.later()
    assert first.heard == before


async def test_an_expired_document_is_removed_and_no_longer_shared(
    api: tuple[Cluster, ApiClient], nodes: list[Node]
) -> None:
    await nodes[0].later(EXPIRE_S)
    assert nodes[0].heard == {}
    assert "n1" not in api[0].maps


async def test_files_of_other_means_are_left_alone(api: tuple[Cluster, ApiClient], nodes: list[Node]) -> None:
    first = nodes[0]
    first.folder.write(contribution("elsewhere", 1.0, 1.0, 1.0))
    first.folder.withdraw("n2@kubernetes")
    await first.later()
    assert first.heard.keys() == {"elsewhere", "n3@kubernetes", "n4@kubernetes"}


async def test_a_host_with_another_name_than_its_node(api: tuple[Cluster, ApiClient], tmp_path: Path) -> None:
    cluster, client = api
    folder = ContributionFolder(tmp_path)
    folder.write(contribution("db-7.example", 1.0, 2.0, 3.0))
    await Contributions(client, "n7", folder, clock=lambda: NOW).round()
    assert cluster.maps == {}
    await Contributions(client, "n7", folder, "db-7.example", clock=lambda: NOW).round()
    assert document_in(cluster.maps["n7"]).contributor == "n7@kubernetes"


@given(st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", fullmatch=True))
def test_carried_names_are_names_of_files(node: str) -> None:
    name = carried_name(node)
    Contribution(name, 1, NOW, XEON)
    assert contributor_name(name) == name
    assert len(name) <= 63
    assert "/" not in name


def test_long_names_that_begin_alike_differ() -> None:
    assert carried_name("n" * 100 + "1") != carried_name("n" * 100 + "2")


@pytest.mark.parametrize("node", ["", "../x", "A", "a/b", ".hidden", "a\n"])
def test_other_names_are_refused(node: str) -> None:
    with pytest.raises(ContributionRefused, match="is not a valid name of a node"):
        carried_name(node)


def _fleet(count: int, applications: tuple[str, ...] = ("mysql",)) -> list[ListedContributions]:
    return [ListedContributions(f"n{i}", "1", applications) for i in range(count)]


def test_a_node_reads_a_bounded_share_of_a_large_fleet() -> None:
    fleet = _fleet(5000)
    first, second = chosen(fleet, "n1"), chosen(fleet, "n2")
    assert len(first) == len(second) == HOSTS_PER_APPLICATION
    assert first != second
    assert "n1" not in {each.node for each in first}
    assert chosen(reversed(fleet), "n1") == first
    assert chosen([], "n1") == []


def test_a_rare_application_is_heard_among_many_hosts() -> None:
    rare = [ListedContributions(f"r{i}", "1", ("rare", "mysql")) for i in range(10)]
    found = chosen([*_fleet(5000), *rare], "n1")
    assert set(rare) <= set(found)
    assert len(found) <= HOSTS_PER_APPLICATION + 10


def test_applications_without_end_do_not_widen_it() -> None:
    many = [ListedContributions(f"n{i}", "1", tuple(f"a{i}-{j}" for j in range(100))) for i in range(2000)]
    assert len(chosen(many, "x")) == MOST_HOSTS


def test_a_tenth_that_lies_stays_a_small_part_of_what_is_read() -> None:
    fleet = _fleet(1000)
    parts = [sum(int(each.node[1:]) % 10 == 0 for each in chosen(fleet, f"n{i}")) for i in range(200)]
    assert sum(parts) / len(parts) == pytest.approx(HOSTS_PER_APPLICATION / 10, rel=0.1)
    assert max(parts) <= HOSTS_PER_APPLICATION / 4


def test_who_repeats_an_application_takes_one_place() -> None:
    metadata = {"name": "liar", "resourceVersion": "1", "ownerReferences": [{"kind": "Node", "name": "liar"}]}
    named = ",".join(["mysql"] * HOSTS_PER_APPLICATION)
    liar = listed({"metadata": metadata | {"annotations": {APPLICATIONS: named}}})
    assert liar.applications == ("mysql",)
    assert all(len(chosen([*_fleet(1000), liar], f"n{i}")) == HOSTS_PER_APPLICATION for i in range(100))


def test_the_largest_document_fits() -> None:
    topics = [Topic("correction", f"{i}", "work", "p") for i in range(480)]
    said = fitting(Statistic(topic, (1.23456,) * 192, (1.5,) * 192) for topic in topics)
    item = config_map("n" * 253, "uid", Contribution("x", 1, NOW, XEON, said))
    item["metadata"]["resourceVersion"] = "1"
    assert document_in(item).statistics == said
    assert 0.99 * MAX_BYTES < len(item["data"][KEY]) <= MAX_BYTES


def test_in_a_pod_a_host_has_the_name_of_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_NAME", "n5")
    assert this_host() == "n5"
    monkeypatch.delenv("NODE_NAME")
    assert this_host()


async def test_a_withdrawn_document_goes_although_others_cannot_be_fetched(
    api: tuple[Cluster, ApiClient], nodes: list[Node]
) -> None:
    cluster, first = api[0], nodes[0]
    cluster.maps["n2"]["metadata"]["labels"][WITHDRAWN] = "true"
    nodes[2].learn(9.0, 9.0, 9.0, generation=2)
    await nodes[2].later()
    cluster.failing = {"n3"}
    with pytest.raises(ApiUnreachable):
        await first.later()
    assert first.heard.keys() == {"n3@kubernetes", "n4@kubernetes"}


async def test_a_document_that_is_withdrawn_while_others_are_fetched_is_not_used(
    api: tuple[Cluster, ApiClient], nodes: list[Node], caplog: pytest.LogCaptureFixture
) -> None:
    cluster, first = api[0], nodes[0]
    nodes[1].learn(9.0, 9.0, 9.0, generation=2)
    await nodes[1].later()
    cluster.maps["n2"]["metadata"]["labels"][WITHDRAWN] = "true"
    cluster.lists_withdrawn = True  # the list is older than the withdrawal
    await first.later()
    assert first.heard.keys() == {"n3@kubernetes", "n4@kubernetes"}
    assert caplog.messages == []


async def test_documents_return_when_a_clock_that_was_ahead_is_set_right(
    api: tuple[Cluster, ApiClient], nodes: list[Node]
) -> None:
    first, before = nodes[0], nodes[0].heard
    await first.later(EXPIRE_S)
    assert first.heard == {}
    api[0].calls.clear()
    await first.later()
    assert api[0].calls == [f"GET {MAPS}"], "expired once, until the clock changes"
    await first.later(-EXPIRE_S)
    assert first.heard == before
