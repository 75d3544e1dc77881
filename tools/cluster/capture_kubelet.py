"""Captures the files of a real node as fixtures: ``python -m tools.cluster.capture_kubelet``.

One pod of each QoS class runs on a node of a cluster of its own, with the default CPU manager and with the static one.
What is captured is written to tests/fixtures/kubelet: a JSON object of each file's text by path.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from perphd.host.cgroup import discover
from perphd.host.containers import CONTAINERD, PUBLISHED_PODS
from perphd.host.fs import RealFs
from perphd.host.kubelet import STATE
from tools.cluster.control_plane import ControlPlane
from tools.cluster.kubelet_node import KubeletNode

TARGET = Path(__file__).parents[2] / "tests" / "fixtures" / "kubelet"
NODE = "captured"
SIZES: dict[str, dict[str, Any]] = {
    "guaranteed": {"limits": {"cpu": "1", "memory": "32Mi"}},
    "burstable": {"requests": {"memory": "16Mi"}},
    "besteffort": {},
}
"""Name of the pod, which is its QoS class, and the resources of its container."""
_SETTINGS = (
    "cgroup.procs", "cpu.shares", "cpu.idle", "cpu.cfs_quota_us", "cpu.cfs_period_us", "cpuset.cpus", "cpuset.mems",
    "memory.limit_in_bytes",
)  # fmt: skip


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
    """What matters of a pod's API object."""
    metadata, status = found["metadata"], found["status"]
    metadata.pop("managedFields", None)
    metadata["annotations"].pop("kubectl.kubernetes.io/last-applied-configuration", None)
    return {"metadata": metadata, "status": {key: status[key] for key in ("phase", "qosClass")}}


def main() -> int:
    """Capture both nodes."""
    TARGET.mkdir(exist_ok=True)
    for name, options in (
        ("v1-cgroupfs", {}),
        ("v1-cgroupfs-static", {"cpuManagerPolicy": "static", "reservedSystemCPUs": "0"}),
    ):
        with tempfile.TemporaryDirectory() as folder:
            plane = ControlPlane(Path(folder, "plane"))
            node = KubeletNode(plane, Path(folder, "node"), NODE, options)
            try:
                plane.start_etcd()
                plane.start_api()
                node.start()
                for each in SIZES:
                    plane.kubectl("apply", "-f", "-", given=json.dumps(pod(each)))
                for each in SIZES:
                    plane.kubectl("wait", "--for=condition=Ready", f"pod/{each}", "--timeout=120s")
                pods = json.loads(plane.kubectl("get", "pods", "-o", "json"))["items"]
                kept = [reduced(found) for found in pods]
                (TARGET / f"{name}.json").write_text(
                    json.dumps(captured(node, kept), indent=1, sort_keys=True) + "\n"
                )
            finally:
                node.stop()
                plane.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
