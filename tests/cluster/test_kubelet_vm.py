"""Pods of a real kubelet with its systemd driver on cgroup v2, in a booted machine.

What perphd has set on a pod survives systemd and kubelet, and what kubelet sets survives perphd.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.vm import bytecode
from tests.vm.guest import booted
from tools.cluster.control_plane import ControlPlane
from tools.cluster.engines import NoProgram
from tools.cluster.kubelet_node import kubelet_program
from tools.cluster.kubelet_vm import PACKAGE, KubeletVm
from tools.vm.machine import Machine

pytestmark = pytest.mark.requires_root

NODE, SPACE = "kubelet-vm", "perphd-kubelet-vm"
PATIENCE_S = 300.0
ROOT = Path(__file__).parents[2]
FOLDER = "/root/perphd-pod"
PARTS = (
    "perphd/__init__.py",
    "perphd/domain",
    "perphd/host",
    "perphd/isolation",
    "rdt",
    "tests/cluster/guest_pod.py",
)
LEAST = "1"
"""The least weight; ``cpu.idle`` is never used within pods."""


def until(holds: Callable[[], Any], what: str) -> Any:
    ends = time.monotonic() + PATIENCE_S
    while not (answer := holds()):
        assert time.monotonic() < ends, what
        time.sleep(2.0)
    return answer


class Guest:
    """The program in the guest that sets a pod's slice."""

    def __init__(self, machine: Machine) -> None:
        minor = machine.run("python3 -c 'import sys; print(sys.version_info.minor)'").stdout.decode().strip()
        with tempfile.TemporaryDirectory() as folder:
            bytecode.stage(ROOT, PARTS, Path(folder))
            machine.unpack(bytecode.packed(Path(folder), minor, FOLDER), FOLDER)
        command = f"cd {FOLDER} && PYTHONPATH=. exec python3 tests/cluster/guest_pod.py"
        self._program = subprocess.Popen(
            ["ssh", *machine.ssh, command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __call__(self, do: str, **arguments: Any) -> dict[str, Any]:
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        self._program.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._program.stdin.flush()
        line = self._program.stdout.readline()
        assert line, f"{do}: the program in the guest has ended"
        return dict(json.loads(line))

    def end(self) -> None:
        self._program.communicate(timeout=PATIENCE_S)


class World:
    """The node, one pod on it at a time, and the program beside it."""

    def __init__(self, plane: ControlPlane, node: KubeletVm) -> None:
        self.plane, self.node = plane, node

    def kubectl(self, *arguments: str, given: Any = None) -> str:
        text = json.dumps(given) if given is not None else ""
        return self.plane.kubectl("--namespace", SPACE, *arguments, given=text)

    def pod(self, name: str, resources: dict[str, Any]) -> None:
        container = {
            "name": "main", "image": "localhost/busybox:1", "imagePullPolicy": "Never",
            "command": ["/bin/sleep", "100000"], "resources": resources,
        }  # fmt: skip
        pod = {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {
                "nodeName": NODE, "hostNetwork": True, "automountServiceAccountToken": False,
                "enableServiceLinks": False, "terminationGracePeriodSeconds": 1, "containers": [container],
            },
        }  # fmt: skip
        self.kubectl("apply", "-f", "-", given=pod)
        self.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=600s")

    def resize(self, name: str, resources: dict[str, Any]) -> None:
        patch = {"spec": {"containers": [{"name": "main", "resources": resources}]}}
        self.kubectl("patch", "pod", name, "--subresource", "resize", "--patch", json.dumps(patch))

    def events(self, name: str) -> list[str]:
        found = json.loads(self.kubectl("get", "events", "-o", "json"))["items"]
        return [each["reason"] for each in found if each["involvedObject"]["name"] == name]

    def remove_pods(self) -> None:
        self.kubectl("delete", "pods", "--all", "--grace-period=1", "--timeout=300s")


@pytest.fixture(scope="module")
def world(plane: ControlPlane) -> Iterator[World]:
    try:
        kubelet_program()
    except NoProgram as exc:
        pytest.skip(str(exc))
    with booted("run-kubelet", PACKAGE, memory_mb=2048) as machine:
        node = KubeletVm(plane, machine, NODE, "systemd")
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}}
        plane.kubectl("apply", "-f", "-", given=json.dumps(space))
        try:
            node.start()
            yield World(plane, node)
        finally:
            node.stop()
            plane.kubectl("delete", "node", NODE, "--ignore-not-found")
            plane.kubectl("--namespace", SPACE, "delete", "pods", "--all", "--force", "--grace-period=0")


@pytest.fixture
def guest(world: World) -> Iterator[Guest]:
    made = Guest(world.node.machine)
    try:
        yield made
    finally:
        made.end()
        world.remove_pods()


def kubelet_goes_round(guest: Guest) -> None:
    """Wait until kubelet has repaired its class's weight."""
    before = guest("class_weight")["weight"]
    assert guest("class_weight", weight=77)["weight"] == "77"
    until(lambda: guest("class_weight")["weight"] == before, "kubelet does not reconcile")


def test_a_pods_settings_survive_reload_and_kubelet_and_its_resize_survives_perphd(
    world: World, guest: Guest
) -> None:
    world.pod("sized", {"requests": {"cpu": "100m", "memory": "16Mi"}})
    uid = world.kubectl("get", "pod", "sized", "-o", "jsonpath={.metadata.uid}")
    pod = guest("find", name=f"{SPACE}/sized")
    assert (pod["qos"], pod["uid"], pod["in_kubernetes"], pod["files"]) == ("burstable", uid, True, "UnitFs")
    found = guest("look")
    assert (found["texts"]["cpu.max"], found["texts"]["memory.high"]) == ("max 100000", "max")

    applied = guest("apply")
    assert (applied["ok"], applied["conflicts"]) == (True, []), applied
    in_force = guest("look")["texts"]
    assert {name: in_force[name] for name in ("cpu.weight", "cpu.max", "memory.high", "cpuset.cpus.effective")} == {
        "cpu.weight": LEAST, "cpu.max": "50000 100000", "memory.high": str(48 << 20), "cpuset.cpus.effective": "1",
    }  # fmt: skip
    guest("reload")
    kubelet_goes_round(guest)
    assert guest("look")["texts"] == in_force
    assert guest("apply")["written"] == []

    # The pod had no limit, so that the drop-in into which kubelet writes its limit is perphd's.
    world.resize("sized", {"requests": {"cpu": "200m"}, "limits": {"cpu": "1500m"}})
    until(lambda: guest("look")["texts"]["cpu.max"] == "150000 100000", "kubelet does not resize the pod")
    until(lambda: "ResizeCompleted" in world.events("sized"), "kubelet does not call it complete")
    assert "ResizeError" not in world.events("sized")
    resized = guest("look")["texts"]
    assert resized["cpu.weight"] not in (LEAST, found["texts"]["cpu.weight"])
    again = guest("apply")
    assert (again["ok"], again["conflicts"]) == (True, []), again
    assert guest("look")["texts"] == in_force, "batch stays confined"
    guest("reload")
    kubelet_goes_round(guest)
    assert guest("look")["texts"] == in_force

    report = guest("restore")
    assert report["complete"], report["report"]
    given_back = guest("look")
    assert given_back["marks"] == []
    kept = found["texts"] | {name: resized[name] for name in ("cpu.weight", "cpu.max")}
    assert given_back["texts"] == kept
    assert given_back["drop_ins"]["CPUQuota"] == "150%"
    assert "MemoryHigh" not in given_back["drop_ins"]
    guest("reload")
    assert guest("look")["texts"] == kept, "systemd forgets kubelet's limit"
    kubelet_goes_round(guest)
    assert guest("look")["texts"] == kept
