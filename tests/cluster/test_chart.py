"""The Helm chart: it renders what the plain manifests say, and a real API server accepts it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from perphd import __version__
from perphd.commands.daemon import main
from tests.cluster.conftest import MANIFESTS
from tests.cluster.test_webhook import documents_of
from tools.cluster.control_plane import ControlPlane

CHART = MANIFESTS / "helm" / "perphd"
EVERYTHING = (
    "webhook.enabled=true",
    "extender.bind=true",
    "publisher.evict=true",
    "publisher.shareModels=true",
)
PLAIN = ("rbac", "rbac-bind", "rbac-evict", "rbac-models", "own-node", "extender", "webhook")
FLEET = "/var/lib/perphd/fleet"
MODELS = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default-models"}}


@pytest.fixture(scope="module")
def helm() -> str:
    """Helm, named in PERPHD_HELM or found in PATH (go install helm.sh/helm/v3/cmd/helm)."""
    found = os.environ.get("PERPHD_HELM") or shutil.which("helm")
    if found is None:
        pytest.skip("no helm: name it in PERPHD_HELM")
    return found


def rendered(helm: str, *values: str, namespace: str = "perphd") -> str:
    command = [helm, "template", "perphd", str(CHART), "--namespace", namespace, "--kube-version", "1.36.0"]
    for each in values:
        command += ["--set", each]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def objects(plane: ControlPlane, text: str) -> dict[tuple[str, str], Any]:
    """The objects of manifests by kind and name."""
    told = plane.kubectl(
        "create", "--dry-run=client", "--validate=false", "-o", "json", "-f", "-", given=text
    )
    found = {}
    for each in documents_of(told):
        for one in each["items"] if each["kind"] == "List" else [each]:
            found[one["kind"], one["metadata"]["name"]] = one
    return found


def test_lint(helm: str) -> None:
    told = subprocess.run([helm, "lint", "--strict", str(CHART)], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout


@pytest.mark.parametrize(("daemon", "manifest"), [("package", "publisher"), ("container", "daemon")])
def test_the_chart_renders_the_plain_manifests(
    helm: str, plane: ControlPlane, daemon: str, manifest: str
) -> None:
    text = "\n---\n".join((MANIFESTS / f"{name}.yaml").read_text() for name in (*PLAIN, manifest))
    plain = objects(plane, text)
    del plain["Namespace", "perphd"]  # helm install --create-namespace
    chart = objects(plane, rendered(helm, f"daemon={daemon}", *EVERYTHING))
    if daemon == "container":
        template = chart["DaemonSet", "perphd"]["spec"]["template"]["metadata"]
        assert list(template.pop("annotations")) == [
            "checksum/config"
        ]  # a new configuration restarts the pods
    for found, is_plain in ((plain, True), (chart, False)):
        arguments = found["Deployment", "perphd-extender"]["spec"]["template"]["spec"]["containers"][0][
            "command"
        ]
        if not is_plain:
            arguments.remove("--bind")
            publisher(found)["command"].remove("--evict")
            publisher(found)["command"].remove(f"--share-models={FLEET}")
            publisher(found)["volumeMounts"].remove({"name": "fleet", "mountPath": FLEET})
            volumes = pod(found)["volumes"]
            volumes.remove(next(each for each in volumes if each["name"] == "fleet"))
    assert chart.keys() == plain.keys()
    for name, each in plain.items():
        assert chart[name] == each, name


def test_the_chart_carries_the_crd_that_is_shipped() -> None:
    assert (CHART / "crds/nodeprofiles.yaml").read_text() == (MANIFESTS / "crd.yaml").read_text()


def pod(found: dict[tuple[str, str], Any]) -> dict[str, Any]:
    """The pod of the DaemonSet."""
    made = next(each for (kind, _), each in found.items() if kind == "DaemonSet")
    spec: dict[str, Any] = made["spec"]["template"]["spec"]
    return spec


def publisher(found: dict[tuple[str, str], Any]) -> dict[str, Any]:
    """The publisher's container."""
    container: dict[str, Any] = pod(found)["containers"][-1]
    return container


@pytest.mark.parametrize("daemon", ["package", "container"])
def test_the_right_to_evict_comes_with_the_option_alone(helm: str, plane: ControlPlane, daemon: str) -> None:
    without = objects(plane, rendered(helm, f"daemon={daemon}"))
    assert ("ClusterRole", "perphd-evict") not in without
    assert "--evict" not in publisher(without)["command"]
    given = objects(
        plane, rendered(helm, f"daemon={daemon}", "publisher.evict=true", "publisher.evictAfter=60")
    )
    assert {("ClusterRole", "perphd-evict"), ("ClusterRoleBinding", "perphd-evict")} == given.keys() - without
    assert publisher(given)["command"][-2:] == ["--evict", "--evict-after=60"]


@pytest.mark.parametrize("daemon", ["package", "container"])
def test_models_are_shared_on_request_alone(helm: str, plane: ControlPlane, daemon: str) -> None:
    without = objects(plane, rendered(helm, f"daemon={daemon}"))
    assert ("Namespace", "perphd-models") not in without
    assert "--share-models" not in str(without)
    values = (f"daemon={daemon}", "publisher.shareModels=true")
    given = objects(plane, rendered(helm, *values))
    kinds = ("Namespace", "Role", "RoleBinding")
    assert {(kind, "perphd-models") for kind in kinds} == given.keys() - without
    assert publisher(given)["command"][-1] == f"--share-models={FLEET}"
    (volume,) = (each for each in pod(given)["volumes"] if each["name"] == "fleet")
    assert volume["hostPath"]["path"] == FLEET
    moved = objects(plane, rendered(helm, *values, namespace="other"))
    assert publisher(moved)["command"][-1] == "--models-namespace=other-models"


def test_manifests_and_chart_name_the_image_of_this_version() -> None:
    named = re.findall(r"image: (\S+)", "\n".join(file.read_text() for file in MANIFESTS.glob("*.yaml")))
    assert set(named) == {f"perphd:{__version__}"}
    assert f"  tag: {__version__}\n" in (CHART / "values.yaml").read_text()


@pytest.mark.parametrize("daemon", ["package", "container"])
def test_the_api_server_accepts_what_the_chart_renders(
    helm: str, plane: ControlPlane, daemon: str, tmp_path: Path
) -> None:
    values = (
        f"daemon={daemon}", *EVERYTHING, "publisher.taint=none", "publisher.period=5", "extender.policy=borg",
        "image.pullPolicy=Never", "webhook.caBundle=bm8=", "webhook.annotations.a=b",
    )  # fmt: skip
    text = rendered(helm, *values, namespace="default")
    assert "namespace: perphd" not in text
    file = tmp_path / "rendered.yaml"
    file.write_text(text)
    # Into namespaces that exist, because a dry run creates none for the objects that follow.
    plane.kubectl("apply", "-f", "-", given=json.dumps(MODELS))
    try:
        told = plane.kubectl("apply", "--dry-run=server", "--validate=strict", "-o", "name", "-f", str(file))
    except subprocess.CalledProcessError as exc:
        pytest.fail(exc.stderr)
    assert len(told.splitlines()) == text.count("\nkind: ")
    assert publisher(objects(plane, text))["command"][-5:-2] == ["--taint=none", "--period=5", "--evict"]


def test_the_daemons_configuration_is_one(plane: ControlPlane, tmp_path: Path) -> None:
    made = objects(plane, (MANIFESTS / "daemon.yaml").read_text())
    file = tmp_path / "perphd.toml"
    file.write_text(made["ConfigMap", "perphd-config"]["data"]["perphd.toml"])
    told = CliRunner().invoke(main, ["config", "check", str(file)])
    assert told.exit_code == 0, told.output
