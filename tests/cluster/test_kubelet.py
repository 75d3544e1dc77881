"""Pods of a real kubelet with containerd: found, protected and given back by the daemon, whatever kubelet does."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from perphd.control.client import Client
from perphd.domain.allocation import IDLE, Settings
from perphd.domain.cpuset import CpuSet
from perphd.domain.errors import PerphError
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.host.cgroup import discover
from perphd.host.containers import PUBLISHED_PODS, parse_path
from perphd.host.fs import RealFs
from perphd.host.kubelet import STATE, Kubelet
from perphd.isolation.executor import Executor
from perphd.isolation.journal import Journal
from tests.kernel.isolation_groups import contents
from tools.cluster.control_plane import ControlPlane
from tools.cluster.engines import NoProgram
from tools.cluster.kubelet_node import KubeletNode, kubelet_program

pytestmark = [pytest.mark.requires_root, pytest.mark.requires_cgroup_v1("cpu", "cpuset", "memory")]

NODE, SPACE = "kubelet-1", "perphd-kubelet"
PATIENCE_S = 120.0
FS = RealFs()
PROGRAM = [sys.executable, "-c"]
DAEMON = [*PROGRAM, "from perphd.commands.daemon import main; main()"]
PUBLISHER = [*PROGRAM, "from perphd.adapters.kubernetes.publish_program import main; main()"]
SPIN = "for i in 1 2 3; do (while :; do :; done) & done; wait"
# An application that works in bursts: it feels neighbours, and leaves them something.
BURSTS = "while :; do i=0; while [ $i -lt 3000 ]; do i=$((i+1)); done; sleep 0.01; done"
CONFIG = """
[daemon]
mode = "enforce"
period_s = 0.25
state_dir = "{state}"
socket = "{state}/perphd.sock"
read_group = "root"
admin_group = "root"
[tuning.policy]
confirm_ticks = 1
settle_s = 0.0
evaluate_ticks = 1
shrink_after_s = 3600.0
[opt_in]
containers = "lra"
[[batch]]
name = "crunch"
match = "label:app=crunch"
"""


def until(holds: Callable[[], Any], what: str, seconds: float = PATIENCE_S) -> Any:
    ends = time.monotonic() + seconds
    while not (answer := holds()):
        assert time.monotonic() < ends, what
        time.sleep(0.1)
    return answer


class World:
    """The node, and pods on it."""

    def __init__(self, plane: ControlPlane, node: KubeletNode) -> None:
        self.plane, self.node = plane, node

    def kubectl(self, *arguments: str, given: Any = None) -> str:
        text = json.dumps(given) if given is not None else ""
        return self.plane.kubectl("--namespace", SPACE, *arguments, given=text)

    def pod(self, name: str, script: str, resources: dict[str, Any], **metadata: dict[str, str]) -> str:
        """Run a pod; returns its control group."""
        container = {
            "name": "main", "image": "localhost/busybox:1", "imagePullPolicy": "Never",
            "command": ["/bin/sh", "-c", script], "resources": resources,
        }  # fmt: skip
        pod = {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **metadata},
            "spec": {
                "nodeName": NODE, "hostNetwork": True, "automountServiceAccountToken": False,
                "enableServiceLinks": False, "terminationGracePeriodSeconds": 1, "containers": [container],
            },
        }  # fmt: skip
        self.kubectl("apply", "-f", "-", given=pod)
        self.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=120s")
        return self.group(name)

    def group(self, name: str) -> str:
        return next(each.cgroup for each in self.node.lookup.pods() if each.name == f"{SPACE}/{name}")

    def resize(self, name: str, resources: dict[str, Any]) -> None:
        patch = {"spec": {"containers": [{"name": "main", "resources": resources}]}}
        self.kubectl("patch", "pod", name, "--subresource", "resize", "--patch", json.dumps(patch))

    def events(self, name: str) -> list[str]:
        found = json.loads(self.kubectl("get", "events", "-o", "json"))["items"]
        return [each["reason"] for each in found if each["involvedObject"]["name"] == name]

    def remove_pods(self) -> None:
        self.kubectl("delete", "pods", "--all", "--grace-period=1", "--timeout=120s")


@pytest.fixture(scope="module")
def node(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeletNode]:
    try:
        kubelet_program()
    except NoProgram as exc:
        pytest.skip(str(exc))
    made = KubeletNode(plane, tmp_path_factory.mktemp("node"), NODE)
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}}
    plane.kubectl("apply", "-f", "-", given=json.dumps(space))
    try:
        made.start()
        yield made
    finally:
        made.stop()
        plane.kubectl("delete", "node", NODE, "--ignore-not-found")
        plane.kubectl("--namespace", SPACE, "delete", "pods", "--all", "--force", "--grace-period=0")


@pytest.fixture
def world(plane: ControlPlane, node: KubeletNode) -> Iterator[World]:
    made = World(plane, node)
    try:
        yield made
    finally:
        for name in ("perphd", "publish"):
            node.end(name)
        made.remove_pods()


def text(cgroup: str, controller: str, file: str) -> str:
    tree = discover(FS).of(controller)
    assert tree is not None
    return Path(f"{tree.path(cgroup)}/{file}").read_text().strip()


def settings_of(*groups: str) -> dict[str, bytes]:
    """The settable files of pods and their containers, without what a load changes by itself."""
    names = (
        "cpu.shares",
        "cpu.idle",
        "cpu.cfs_quota_us",
        "cpuset.cpus",
        "cpuset.mems",
        "memory.limit_in_bytes",
    )
    found = {path: data for group in groups for path, data in contents(group).items()}
    return {path: data for path, data in found.items() if path.endswith(names)}


class Daemon:
    """The real daemon and the publisher of labels, in the node's namespace."""

    def __init__(self, world: World, state: Path, config: str = CONFIG) -> None:
        self.world, self.state = world, state
        self.config = state / "perphd.toml"
        self.config.write_text(config.format(state=state))
        self.client = Client(str(state / "perphd.sock"))

    def publish(self) -> None:
        plane, file = self.world.plane, self.world.node.inside(PUBLISHED_PODS)
        file.parent.mkdir(exist_ok=True)
        self.world.node.run_inside(
            "publish", *PUBLISHER, "run", "--node", NODE, "--socket", str(self.state / "perphd.sock"),
            "--period", "0.5", "--pods", PUBLISHED_PODS, "--api-server", plane.url,
            "--token-file", str(plane.token_file), "--ca-file", str(plane.ca_file),
        )  # fmt: skip

    def start(self) -> subprocess.Popen[bytes]:
        return self.world.node.run_inside("perphd", *DAEMON, "run", "--config", str(self.config))

    def status(self) -> dict[str, Any]:
        try:
            return dict(self.client.get("status"))
        except (PerphError, OSError):
            return {}

    def workloads(self) -> dict[str, dict[str, Any]]:
        return {each["spec"]["name"]: each["spec"] for each in self.status().get("workloads", ())}

    def go_on(self, ticks: int) -> None:
        wanted = self.status()["tick"] + ticks
        until(lambda: self.status().get("tick", 0) >= wanted, "the daemon does not go on")

    def log(self) -> str:
        return (self.world.node.folder / "perphd.log").read_text()

    def restore(self) -> None:
        process = self.world.node.run_inside("restore", *DAEMON, "restore", "--config", str(self.config))
        assert process.wait(PATIENCE_S) == 0


def test_an_lra_pod_is_protected_and_given_back_whatever_restarts(world: World, tmp_path: Path) -> None:
    said = {"perphd.io/tolerance-pct": "12", "perphd.io/band": "silver"}
    # kubelet's weights favour the batch pod: an LRA that is on target without protection would give it back
    lra = world.pod("db", BURSTS, {"requests": {"cpu": "20m"}}, annotations=said)
    batch = world.pod("crunch", SPIN, {"requests": {"cpu": "1"}}, labels={"app": "crunch"})
    before = settings_of(lra, batch)
    daemon = Daemon(world, tmp_path)
    daemon.publish()
    process = daemon.start()

    def protected() -> bool:
        assert process.poll() is None, daemon.log()
        return settings_of(batch) != {path: before[path] for path in settings_of(batch)}

    until(protected, "nothing protects the LRA")
    named = daemon.workloads()
    assert len(named) == 2, named
    (own,) = [each for name, each in named.items() if name.startswith(f"pod.{SPACE}-db-")]
    assert own["declared_by"] == f"labels or annotations of pod '{SPACE}/db'"
    assert (own["objective"]["tolerance_pct"], own["band"]) == (12, "silver")
    for restarted in ("kubelet", "containerd"):
        world.node.end(restarted)
        {"kubelet": world.node.start_kubelet, "containerd": world.node.start_containerd}[restarted]()
        daemon.go_on(30)
        assert daemon.workloads() == named
    assert protected(), daemon.log()
    assert "another program" not in daemon.log()
    world.node.end("perphd")
    assert settings_of(lra, batch) == before

    process = daemon.start()
    until(protected, "nothing protects the LRA")
    world.node.end("perphd", signal.SIGKILL)
    daemon.restore()
    assert settings_of(lra, batch) == before


def pods_of(world: World) -> dict[str, tuple[str, str]]:
    return {each.name: (parse_path(each.cgroup).qos, each.cgroup) for each in world.node.lookup.pods()}


def test_pods_have_their_names_classes_and_labels(world: World, tmp_path: Path) -> None:
    sizes = {
        "guaranteed": {"limits": {"cpu": "100m", "memory": "32Mi"}},
        "burstable": {"requests": {"cpu": "100m"}},
        "besteffort": {},
    }
    for qos, resources in sizes.items():
        world.pod(
            qos, "sleep 600", resources, labels={"app": qos}, annotations={"perphd.io/band": "gold", "x": "y"}
        )
    Daemon(world, tmp_path).publish()
    lookup = world.node.lookup

    def labelled() -> bool:
        lookup.look_anew()
        return all("app" in (each.labels or {}) for each in lookup.pods())

    until(labelled, "no labels came")
    found = {each.name: each for each in lookup.pods()}
    assert set(found) == {f"{SPACE}/{qos}" for qos in sizes}
    for qos in sizes:
        pod = found[f"{SPACE}/{qos}"]
        path = parse_path(pod.cgroup)
        uid = world.kubectl("get", "pod", qos, "-o", "jsonpath={.metadata.uid}")
        assert (path.qos, path.pod_uid) == (qos, uid)
        assert pod.labels is not None
        assert (pod.labels["app"], pod.labels["perphd.io/band"]) == (qos, "gold")
        assert "x" not in pod.labels
        inside = [each for each in lookup.containers() if each.pod == pod.cgroup]
        assert sorted(each.is_sandbox for each in inside) == [False, True]
        (main,) = [each for each in inside if not each.is_sandbox]
        assert main.name == f"{SPACE}/{qos}/main"


def _reads(cgroup: str, shares: str) -> bool:
    return text(cgroup, "cpu", "cpu.shares") == shares


async def test_a_resize_succeeds_under_perphd_and_becomes_the_original(world: World, tmp_path: Path) -> None:
    cgroup = world.pod("sized", "sleep 600", {"requests": {"cpu": "100m"}})
    (container,) = [
        each for each in world.node.lookup.containers() if each.pod == cgroup and not each.is_sandbox
    ]
    spec = WorkloadSpec("sized", Kind.BATCH, cgroup)
    with Journal(tmp_path) as journal:
        executor = Executor(FS, discover(FS), journal, in_thread=False)
        target = {"sized": Settings(cpu_weight=IDLE)}
        assert (await executor.apply(executor.plan(target, [spec], 0.0))).ok
        assert (text(cgroup, "cpu", "cpu.shares"), text(cgroup, "cpu", "cpu.idle")) == ("3", "0")
        for now_s, milli, shares in ((100.0, "200m", "204"), (200.0, "300m", "307")):
            world.resize("sized", {"requests": {"cpu": milli}})
            until(partial(_reads, container.cgroup, shares), "no resize came")
            assert text(cgroup, "cpu", "cpu.shares") == shares, (
                "perphd's value did not keep kubelet from writing"
            )
            assert (await executor.apply(executor.plan(target, [spec], now_s))).ok
            assert text(cgroup, "cpu", "cpu.shares") == "3", "batch stays demoted"
            assert executor.conflicts() == ()
        until(lambda: "ResizeCompleted" in world.events("sized"), "kubelet does not call it complete")
        assert "ResizeError" not in world.events("sized")
        assert (await executor.restore()).complete
        executor.close()
    assert text(cgroup, "cpu", "cpu.shares") == "307"


async def test_the_static_cpu_manager_keeps_cpusets_and_nothing_else(world: World, tmp_path: Path) -> None:
    node = world.node
    node.end("kubelet")
    state = node.inside(STATE)
    state.unlink()
    manager = {"cpuManagerPolicy": "static", "reservedSystemCPUs": "0"}
    node.start_kubelet(manager)
    try:
        pinned = world.pod("pinned", "sleep 600", {"limits": {"cpu": "1", "memory": "32Mi"}})
        other = world.pod("other", "sleep 600", {})
        inside = RealFs(node.inside("/"))
        assert str(Kubelet(inside).cpu_manager(0.0).exclusive) == "1"
        before = settings_of(pinned, other)
        specs = [WorkloadSpec("pinned", Kind.LRA, pinned), WorkloadSpec("other", Kind.BATCH, other)]
        targets = {
            "pinned": Settings(cpus=CpuSet.parse("0")),
            "other": Settings(cpus=CpuSet.parse("1"), cpu_max_cores=0.5),
        }
        with Journal(tmp_path) as journal:
            executor = Executor(FS, discover(FS), journal, in_thread=False, kubelet=Kubelet(inside))
            changes = executor.plan(targets, specs, 0.0)
            assert {each.workload for each in changes.skipped if "static CPU manager" in each.reason} == {
                "pinned",
                "other",
            }
            assert (await executor.apply(changes)).ok
            changed = {path for path, data in settings_of(pinned, other).items() if data != before[path]}
            assert [path.rpartition(other)[2] for path in changed] == ["/cpu.cfs_quota_us"]
            await executor.restore()
            executor.close()
        assert settings_of(pinned, other) == before
    finally:
        world.remove_pods()
        node.end("kubelet")
        state.unlink(missing_ok=True)
        node.start_kubelet(dict.fromkeys(manager))
