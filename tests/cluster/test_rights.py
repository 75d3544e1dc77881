"""What the shipped accounts may and may not do, tried with their own tokens."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from perphd.adapters.kubernetes.client import (
    JSON_PATCH,
    MERGE,
    ApiAccess,
    ApiClient,
    Forbidden,
    KubernetesError,
    Rejected,
)
from perphd.adapters.kubernetes.objects import NODES, PODS, PROFILES
from perphd.adapters.kubernetes.own_pods import OwnPods
from perphd.adapters.kubernetes.publisher import EVENTS, Publisher
from perphd.adapters.node_socket import NodeSocket
from tests.cluster.conftest import MANIFESTS
from tests.cluster.world import Daemon, make_node, plain_pod, publish, remove_node, token_of, until
from tests.unit.test_cluster_extender import document
from tools.cluster.control_plane import ControlPlane

SECRETS = "/api/v1/namespaces/kube-system/secrets"
ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
ATTEMPTS: list[tuple[str, str, Any]] = [
    ("GET", SECRETS, None),
    ("GET", "/api/v1/namespaces/default/configmaps", None),
    ("DELETE", f"{NODES}/rights", None),
    ("POST", NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "invented"}}),
    ("DELETE", f"{PROFILES}/rights", None),
    ("POST", "/api/v1/namespaces/default/pods", plain_pod("intruder")),
    ("DELETE", "/api/v1/namespaces/default/pods/anything", None),
    ("POST", f"{EVENTS.replace('default', 'kube-system')}", {"metadata": {"name": "x"}}),
    ("POST", f"{PODS.replace('pods', 'namespaces/default/pods/x/eviction')}", {}),
    ("GET", ROLES, None),
    ("PATCH", f"{ROLES}/perphd-publish", {"rules": []}),
]
OF_EXTENDER: list[tuple[str, str, Any]] = [
    ("PATCH", f"{NODES}/rights", {"metadata": {"labels": {"x": "y"}}}),
    ("PATCH", f"{NODES}/rights/status", {"status": {"allocatable": {"perphd.io/copper-cpu": "1"}}}),
    ("PATCH", f"{PROFILES}/rights/status", {"status": {"mode": "enforce"}}),
    ("GET", f"{NODES}/rights", None),
]
OF_PUBLISHER: list[tuple[str, str, Any]] = [
    ("POST", "/api/v1/namespaces/default/pods/x/binding", {}),
    ("PATCH", "/api/v1/namespaces/default/pods/x", {"metadata": {"labels": {"x": "y"}}}),
]


@pytest.mark.parametrize(
    ("account", "attempts"),
    [("perphd-publish", ATTEMPTS + OF_PUBLISHER), ("perphd-extender", ATTEMPTS + OF_EXTENDER)],
)
async def test_accounts_may_nothing_else(
    admin: ApiAccess, tmp_path: Path, account: str, attempts: list[tuple[str, str, Any]]
) -> None:
    async with ApiClient(admin) as api:
        await make_node(api, "rights")
        await publish(api, "rights", document())
        token = await token_of(api, account, tmp_path)
        async with ApiClient(ApiAccess(admin.url, str(token), admin.ca_file)) as own:
            for method, path, body in attempts:
                with pytest.raises(Forbidden):
                    await own.request(method, path, body, MERGE if method == "PATCH" else "application/json")
            assert (await own.list_all(PODS))[1]
        token.write_text("forged")
        async with ApiClient(ApiAccess(admin.url, str(token), admin.ca_file)) as own:
            with pytest.raises(Forbidden):
                await own.get(PODS)
        await remove_node(api, "rights")


async def test_the_publisher_works_with_its_own_token(admin: ApiAccess, tmp_path: Path) -> None:
    async with ApiClient(admin) as api:
        await make_node(api, "rights")
        token = await token_of(api, "perphd-publish", tmp_path)
        daemon = Daemon(tmp_path / "perphd.sock", document(free=0.0))
        async with daemon.running(), ApiClient(ApiAccess(admin.url, str(token), admin.ca_file)) as own:
            publisher = Publisher(own, "rights", NodeSocket(str(daemon.path)).document, OwnPods(), 1.0)
            await publisher.round()
            await publisher.round()  # the second look without room: the taint as well
            assert (await own.get(f"{NODES}/rights"))["spec"]["taints"][0]["key"] == "perphd.io/no-copper"
            assert (await own.get(f"{PROFILES}/rights"))["status"]["mode"] == "observe"
        await remove_node(api, "rights")


async def test_a_publisher_may_change_its_own_node_only(
    admin: ApiAccess, plane: ControlPlane, tmp_path: Path
) -> None:
    async with ApiClient(admin) as api:
        for name in ("rights", "another"):
            await make_node(api, name)
            await publish(api, name, document())
        pods = "/api/v1/namespaces/perphd/pods"
        pod = plain_pod("publisher", nodeName="rights", serviceAccountName="perphd-publish")
        made = await api.post(pods, pod)
        await asyncio.to_thread(plane.kubectl, "apply", "-f", str(MANIFESTS / "own-node.yaml"))
        bound = {"kind": "Pod", "apiVersion": "v1", "name": "publisher", "uid": made["metadata"]["uid"]}
        token = await token_of(api, "perphd-publish", tmp_path, bound)
        try:
            async with ApiClient(ApiAccess(admin.url, str(token), admin.ca_file)) as own:

                async def refused(path: str, body: Any, kind: str = MERGE) -> str:
                    try:
                        await own.patch(path, body, kind)
                    except (KubernetesError, Rejected) as exc:
                        return str(exc)
                    return ""

                status = {"status": {"allocatable": {"perphd.io/copper-cpu": "1"}}}
                # A new policy takes effect within seconds.
                await until(lambda: refused(f"{NODES}/another/status", status))
                assert "may not change another" in await refused(f"{NODES}/another/status", status)
                assert "may not change another" in await refused(
                    f"{PROFILES}/another", {"spec": {"reservations": []}}
                )
                assert "no labels" in await refused(f"{NODES}/rights", {"metadata": {"labels": {"x": "y"}}})
                foreign = {"spec": {"taints": [{"key": "mine", "effect": "NoExecute"}]}}
                assert "no labels" in await refused(f"{NODES}/rights", foreign)
                assert await refused(f"{NODES}/rights/status", status) == ""
                taint = [{"key": "perphd.io/no-copper", "effect": "NoSchedule"}]
                patch = [{"op": "add", "path": "/spec/taints", "value": taint}]
                assert await refused(f"{NODES}/rights", patch, JSON_PATCH) == ""
        finally:
            await asyncio.to_thread(plane.kubectl, "delete", "-f", str(MANIFESTS / "own-node.yaml"))
            await api.request("DELETE", f"{pods}/publisher", query={"gracePeriodSeconds": "0"})
            for name in ("rights", "another"):
                await remove_node(api, name)


@pytest.mark.parametrize(
    "name",
    [
        "crd",
        "rbac",
        "rbac-bind",
        "rbac-evict",
        "rbac-models",
        "own-node",
        "publisher",
        "daemon",
        "extender",
        "webhook",
    ],
)
def test_manifests_are_accepted_by_the_api_server(plane: ControlPlane, name: str) -> None:
    file = str(MANIFESTS / f"{name}.yaml")
    told = plane.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", file)
    assert len(told.splitlines()) == (MANIFESTS / f"{name}.yaml").read_text().count("\nkind: ")


async def test_what_is_no_profile_is_refused_by_its_schema(admin: ApiAccess) -> None:
    async with ApiClient(admin) as api:
        for spec in ({"reservations": [{"pod": "x"}]}, {"reservations": "none"}, None):
            profile = {
                "apiVersion": "perphd.io/v1alpha1",
                "kind": "NodeProfile",
                "metadata": {"name": "wrong"},
            }
            with pytest.raises(KubernetesError) as refused:
                await api.post(PROFILES, profile if spec is None else {**profile, "spec": spec})
            assert refused.value.status == 422
