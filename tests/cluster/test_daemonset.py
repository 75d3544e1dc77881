"""The pod of the shipped DaemonSet on a real node: the image's daemon and publisher manage that node's pods."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from perphd.host.kubelet import STATE
from tests.cluster.conftest import MANIFESTS
from tests.cluster.test_kubelet import (
    BURSTS,
    NODE,
    PATIENCE_S,
    SPACE,
    SPIN,
    World,
    node,
    pytestmark,
    settings_of,
    until,
    world,
)
from tests.cluster.test_webhook import documents_of
from tools.cluster.control_plane import ControlPlane

FIXTURES = (node, world, pytestmark)
IMAGE = "PERPHD_IMAGE"
CONFIG = f"""
[daemon]
period_s = 0.25
[tuning.policy]
confirm_ticks = 1
settle_s = 0.0
evaluate_ticks = 1
shrink_after_s = 3600.0
[[lra]]
name = "db"
match = "pod:{SPACE}/db"
[[batch]]
name = "copper"
match = "label:perphd.io/band=copper"
"""
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


@pytest.fixture(scope="module")
def image() -> Path:
    """What packaging/build-oci wrote."""
    named = os.environ.get(IMAGE)
    if not named:
        pytest.skip(f"no image: packaging/build-oci makes one, name it in {IMAGE}")
    return Path(named).resolve()


def pod_of(template: dict[str, Any], plane: ControlPlane) -> dict[str, Any]:
    """A pod of the DaemonSet's template, as its controller and the admission plugin ServiceAccount make it.

    This test's node has neither a network of its own for pods nor a proxy for Services: the pod is in the
    host's network, and its variables name the API server's port on loopback.
    """
    spec = json.loads(json.dumps(template["spec"]))
    spec |= {"nodeName": NODE, "hostNetwork": True, "enableServiceLinks": False}
    token = {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}}
    authority = {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}}
    spec["volumes"].append({"name": "account", "projected": {"sources": [token, authority]}})
    for container in spec["containers"]:
        container["volumeMounts"].append({"name": "account", "mountPath": ACCOUNT, "readOnly": True})
        container.setdefault("env", []).extend(
            [
                {"name": "KUBERNETES_SERVICE_HOST", "value": "127.0.0.1"},
                {"name": "KUBERNETES_SERVICE_PORT", "value": str(plane.api_port)},
            ]
        )
    metadata = {"name": "perphd-node", "namespace": "perphd", "labels": template["metadata"]["labels"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


class DaemonPod:
    """The pod, and what its containers say."""

    def __init__(self, world: World) -> None:
        self._plane, self._node = world.plane, world.node

    def kubectl(self, *arguments: str, given: str = "") -> str:
        return self._plane.kubectl("--namespace", "perphd", *arguments, given=given)

    def start(self) -> None:
        text = (MANIFESTS / "daemon.yaml").read_text()
        made = documents_of(
            self._plane.kubectl(
                "create", "--dry-run=client", "--validate=false", "-o", "json", "-f", "-", given=text
            )
        )
        (daemon_set,) = [each for each in made if each["kind"] == "DaemonSet"]
        for name, data in (
            ("perphd-config", {"perphd.toml": CONFIG}),
            ("kube-root-ca.crt", {"ca.crt": self._plane.ca_file.read_text()}),
        ):
            wanted = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}
            self.kubectl("apply", "-f", "-", given=json.dumps(wanted))
        pod = pod_of(daemon_set["spec"]["template"], self._plane)
        self.kubectl("apply", "-f", "-", given=json.dumps(pod))
        try:
            self.kubectl("wait", "--for=condition=Ready", "pod/perphd-node", "--timeout=120s")
        except Exception:
            pytest.fail(self.kubectl("describe", "pod", "perphd-node") + self.logs())

    def stop(self) -> None:
        """Delete it and wait until kubelet has ended both containers."""
        self.kubectl("delete", "pod", "perphd-node", "--ignore-not-found", "--timeout=120s")

    def container(self, name: str) -> dict[str, Any]:
        statuses = json.loads(self.kubectl("get", "pod", "perphd-node", "-o", "json"))["status"][
            "containerStatuses"
        ]
        return next(each for each in statuses if each["name"] == name)

    def inside(self, *command: str) -> str:
        """Output of a command in the daemon's container."""
        return self._node.execute(self.container("perphd")["containerID"].rpartition("/")[2], *command)

    def perphctl(self, *arguments: str) -> str:
        return self.inside("perphctl", *arguments)

    def workloads(self) -> dict[str, str]:
        """Kind by the name in the configuration.

        A pod that is found, or labelled, after the daemon's start has its own name behind that one.
        """
        found = json.loads(self.perphctl("status", "--json"))["workloads"]
        return {each["spec"]["name"].partition(".")[0]: each["spec"]["kind"] for each in found}

    def kill(self) -> None:
        """SIGKILL for the daemon."""
        group = next(each.cgroup for each in self._node.lookup.pods() if each.name == "perphd/perphd-node")
        (pid,) = [
            each for each in self._node.processes(group) if psutil.Process(each).cmdline()[-1:] == ["run"]
        ]
        os.kill(pid, signal.SIGKILL)

    def logs(self) -> str:
        found = self._node.inside("/var/log/pods").glob("perphd_*/*/*.log")
        return "\n".join(f"{each}\n{each.read_text()[-4000:]}" for each in found)


@pytest.fixture
def daemon(world: World, image: Path) -> Iterator[DaemonPod]:
    world.node.import_image(image)
    world.plane.kubectl("apply", "-f", str(MANIFESTS / "own-node.yaml"))
    made = DaemonPod(world)
    try:
        yield made
    finally:
        made.stop()
        world.plane.kubectl("delete", "-f", str(MANIFESTS / "own-node.yaml"))


def test_the_daemonset_s_pod_manages_its_node(world: World, daemon: DaemonPod) -> None:
    lra = world.pod("db", BURSTS, {"requests": {"cpu": "500m"}})
    batch = world.pod("crunch", SPIN, {"requests": {"cpu": "100m"}}, labels={"perphd.io/band": "copper"})
    before = settings_of(lra, batch)
    daemon.start()

    named = {"db": "lra", "copper": "batch"}
    until(lambda: daemon.workloads() == named, "the daemon does not find the node's pods")
    assert daemon.inside("cat", STATE) == world.node.inside(STATE).read_text()
    assert settings_of(lra, batch) == before, "it changes something while it observes"

    def published() -> bool:
        offered = json.loads(world.plane.kubectl("get", "node", NODE, "-o", "json"))["status"]["allocatable"]
        return int(offered.get("perphd.io/copper-memory", 0)) > 0

    until(published, "nothing is published")
    profile = json.loads(world.plane.kubectl("get", "nodeprofile", NODE, "-o", "json"))
    assert (profile["status"]["mode"], profile["status"]["lras"]) == ("observe", 1)

    def protected() -> bool:
        return settings_of(batch) != {path: before[path] for path in settings_of(batch)}

    daemon.perphctl("mode", "enforce")
    until(protected, "nothing protects the LRA")
    daemon.kill()
    until(lambda: daemon.container("perphd")["restartCount"] == 1, "kubelet does not restart the daemon")
    until(lambda: settings_of(lra, batch) == before, "the next start does not give back")

    until(lambda: daemon.container("perphd")["ready"], "the daemon is not ready again", 2 * PATIENCE_S)
    daemon.perphctl("mode", "enforce")
    until(protected, "nothing protects the LRA after the restart")
    daemon.stop()
    assert settings_of(lra, batch) == before
