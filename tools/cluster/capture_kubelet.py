"""Captures the files of a real node as fixtures: ``python -m tools.cluster.capture_kubelet``.

One pod of each QoS class runs on a node of a separate cluster, with the default and with the static CPU manager:
on this host for cgroup v1 (``v1``), in a virtual machine for cgroup v2 (``v2``), with kubelet's systemd driver and its
cgroupfs driver. Arguments select nodes by the beginning of their names; without arguments, all nodes are captured.
The captures are written to tests/fixtures/kubelet: a JSON object of each file's text by path.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from perphd.host.cgroup import discover
from perphd.host.containers import CONTAINERD, PUBLISHED_PODS
from perphd.host.fs import RealFs
from perphd.host.kubelet import STATE
from tools.cluster.control_plane import ControlPlane
from tools.cluster.kubelet_node import KubeletNode
from tools.cluster.kubelet_vm import PACKAGE, KubeletVm
from tools.vm.image import image
from tools.vm.machine import Machine
from tools.vm.making import SUITES

VMS = Path(__file__).parents[2] / "out" / "vm"
TARGET = Path(__file__).parents[2] / "tests" / "fixtures" / "kubelet"
NODE = "captured"
SIZES: dict[str, dict[str, Any]] = {
    "guaranteed": {"limits": {"cpu": "1", "memory": "32Mi"}},
    "burstable": {"requests": {"memory": "16Mi"}},
    "besteffort": {},
}
"""QoS class, which is also the pod's name -> resources of its container."""
_SETTINGS = (
    "cgroup.procs", "cpu.shares", "cpu.idle", "cpu.cfs_quota_us", "cpu.cfs_period_us", "cpuset.cpus", "cpuset.mems",
    "memory.limit_in_bytes",
)  # fmt: skip
_V2_SETTINGS = (
    "cgroup.controllers", "cgroup.procs", "cgroup.subtree_control", "cpu.weight", "cpu.idle", "cpu.max", "cpuset.cpus",
    "cpuset.cpus.effective", "cpuset.mems", "cpuset.mems.effective", "memory.min", "memory.low", "memory.high",
    "memory.max",
)  # fmt: skip
_IN_GUEST = """\
import json, os, sys

ROOT, TASKS = "/sys/fs/cgroup", "/run/containerd/io.containerd.runtime.v2.task/k8s.io"
files = {}

def take(path):
    if os.path.exists(path):
        with open(path) as file:
            files[path] = file.read()

pods = [f"{ROOT}/{name}" for name in os.listdir(ROOT) if name.startswith("kubepods")]
for group in [ROOT, *(folder for top in pods for folder, _, _ in os.walk(top))]:
    for name in SETTINGS:
        take(f"{group}/{name}")
    files[f"{group}/cgroup.procs"] = ""
for each in os.listdir(TASKS):
    with open(f"{TASKS}/{each}/config.json") as file:
        files[file.name] = json.dumps({"annotations": json.load(file)["annotations"]})
for each in os.listdir("/var/log/pods"):
    files[f"/var/log/pods/{each}/main/0.log"] = ""
take("/var/lib/kubelet/cpu_manager_state")
with open("/proc/self/mounts") as file:
    files[file.name] = "".join(line for line in file if line.split()[2] == "cgroup2")
json.dump(files, sys.stdout)
"""
"""Finds groups without perphd's lookup, which the captures test."""


def pod(name: str) -> dict[str, Any]:
    """A pod that sleeps, with labels and annotations."""
    container = {
        "name": "main", "image": "localhost/busybox:1", "imagePullPolicy": "Never", "command": ["/bin/sleep", "600"],
        "resources": SIZES[name],
    }  # fmt: skip
    annotations = {"perphd.io/tolerance-pct": "20", "example.org/other": "x"}
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}, "annotations": annotations},
        "spec": {
            "nodeName": NODE, "hostNetwork": True, "automountServiceAccountToken": False, "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 1, "containers": [container],
        },
    }  # fmt: skip


def captured(node: KubeletNode, pods: list[Any]) -> dict[str, str]:
    """The files of a node, with its own group in place of the root group."""
    fs = RealFs(node.inside("/"))
    lookup, hierarchies = node.lookup, discover(fs)
    groups = {f"{node.group}/kubepods", *(each.cgroup for each in lookup.pods())}
    groups |= {f"{node.group}/kubepods/{qos}" for qos in ("burstable", "besteffort")}
    groups |= {each.cgroup for each in lookup.containers()}
    files = {}
    mounts = [each for each in hierarchies.all() if each.controllers & {"cpu", "cpuset", "memory"}]
    types = {1: "cgroup", 2: "cgroup2"}
    files["/proc/self/mounts"] = "".join(
        f"{types[each.version]} {each.mount} {types[each.version]} rw,{','.join(sorted(each.controllers))} 0 0\n"
        for each in mounts
    )
    for tree in mounts:
        for group in ("/", *groups):
            for name in _SETTINGS:
                path = Path(f"{tree.path(group)}/{name}")
                if path.exists():
                    text = "" if name == "cgroup.procs" else path.read_text()
                    files[str(path).replace(node.group, "")] = text
    for each in lookup.containers():
        bundle = CONTAINERD.format("k8s.io", each.cgroup.rpartition("/")[2])
        files[bundle] = json.dumps({"annotations": json.loads(fs.read(bundle))["annotations"]})
    for folder in fs.listdir("/var/log/pods"):
        files[f"/var/log/pods/{folder}/main/0.log"] = ""
    files[STATE] = fs.read(STATE).decode()
    files["api"] = json.dumps(pods)
    assert PUBLISHED_PODS not in files
    return files


def reduced(found: dict[str, Any]) -> dict[str, Any]:
    """The relevant part of a pod's API object."""
    metadata, status = found["metadata"], found["status"]
    metadata.pop("managedFields", None)
    metadata["annotations"].pop("kubectl.kubernetes.io/last-applied-configuration", None)
    return {"metadata": metadata, "status": {key: status[key] for key in ("phase", "qosClass")}}


def run_pods(plane: ControlPlane) -> list[Any]:
    """Start a pod of each class and wait for them; returns the relevant parts of their API objects."""
    for each in SIZES:
        plane.kubectl("apply", "-f", "-", given=json.dumps(pod(each)))
    for each in SIZES:
        plane.kubectl("wait", "--for=condition=Ready", f"pod/{each}", "--timeout=600s")
    return [reduced(found) for found in json.loads(plane.kubectl("get", "pods", "-o", "json"))["items"]]


def v1_files(plane: ControlPlane, folder: Path, options: dict[str, Any]) -> dict[str, str]:
    """A node on this host."""
    node = KubeletNode(plane, folder / "node", NODE, options)
    try:
        node.start()
        return captured(node, run_pods(plane))
    finally:
        node.stop()


def v2_files(plane: ControlPlane, driver: str, options: dict[str, Any]) -> dict[str, str]:
    """A node in its own virtual machine."""
    machine = Machine(image(SUITES[0], VMS, PACKAGE), VMS / "run-kubelet", memory_mb=2048)
    node = KubeletVm(plane, machine, NODE, driver, options)
    try:
        machine.boot()
        node.start()
        pods = run_pods(plane)
        if options:
            # kubelet checks the cpusets of its containers every 10 s.
            time.sleep(30.0)
        program = f"SETTINGS = {_V2_SETTINGS}\n{_IN_GUEST}"
        files: dict[str, str] = json.loads(node.sh("python3 -", program.encode()))
        return files | {"api": json.dumps(pods)}
    finally:
        node.stop()
        machine.stop()


STATIC: dict[str, Any] = {"cpuManagerPolicy": "static", "reservedSystemCPUs": "0"}
NODES: dict[str, tuple[str, dict[str, Any]]] = {
    "v1-cgroupfs": ("", {}),
    "v1-cgroupfs-static": ("", STATIC),
    "v2-cgroupfs": ("cgroupfs", {}),
    "v2-systemd": ("systemd", {}),
    "v2-systemd-static": ("systemd", STATIC),
}
"""Fixture -> kubelet's driver in a virtual machine (none: on this host), and further keys of its configuration."""


def main(beginnings: tuple[str, ...]) -> int:
    """Capture the nodes whose names begin with the arguments."""
    TARGET.mkdir(exist_ok=True)
    for name, (driver, options) in NODES.items():
        if not name.startswith(beginnings):
            continue
        with tempfile.TemporaryDirectory() as folder:
            plane = ControlPlane(Path(folder, "plane"))
            try:
                plane.start_etcd()
                plane.start_api()
                files = v2_files(plane, driver, options) if driver else v1_files(plane, Path(folder), options)
            finally:
                plane.stop()
        (TARGET / f"{name}.json").write_text(json.dumps(files, indent=1, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(tuple(sys.argv[1:]) or ("",)))
