"""Labels of pods joined with kubelet's control groups by UID: trees as kubelet 1.36 and containerd make them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perphd.adapters.kubernetes.publisher import OwnPods
from perphd.host.cgroup.hierarchy import discover
from perphd.host.containers import PUBLISHED_PODS, parse_path
from perphd.host.kubelet import STATE, Kubelet
from perphd.host.lookup import Lookup
from tests.unit.host_tree import write_tree

UIDS = {
    "guaranteed": "6f1c1f0a-94c1-4d21-8a6d-5f3b0a1f7c01",
    "burstable": "c0a7b5de-0d7e-47a9-b3ea-2f60c9d3b102",
    "besteffort": "17d92c3e-5a68-4f0e-9d52-8be1f4a6e203",
}
MAIN = {qos: f"{n}a" * 32 for n, qos in enumerate(UIDS, 1)}
PAUSE = {qos: f"{n}b" * 32 for n, qos in enumerate(UIDS, 1)}


def v1_cgroupfs(qos: str, container: str) -> str:
    parent = "/kubepods" if qos == "guaranteed" else f"/kubepods/{qos}"
    return f"{parent}/pod{UIDS[qos]}/{container}"


def v2_cgroupfs(qos: str, container: str) -> str:
    return v1_cgroupfs(qos, container)


def v2_systemd(qos: str, container: str) -> str:
    middle = "" if qos == "guaranteed" else f"/kubepods-{qos}.slice"
    part = "" if qos == "guaranteed" else f"-{qos}"
    uid = UIDS[qos].replace("-", "_")
    return f"/kubepods.slice{middle}/kubepods{part}-pod{uid}.slice/cri-containerd-{container}.scope"


def pods() -> OwnPods:
    own = OwnPods()
    own.replaced(
        [
            {
                "metadata": {
                    "uid": uid,
                    "namespace": "shop",
                    "name": f"pod-{qos}",
                    "labels": {"app": "db" if qos == "guaranteed" else "crunch"},
                    "annotations": {"perphd.io/band": "gold", "other.example/secret": "x"},
                },
                "status": {"phase": "Running"},
            }
            for qos, uid in UIDS.items()
        ]
    )
    return own


@pytest.fixture(params=[(1, v1_cgroupfs), (2, v2_cgroupfs), (2, v2_systemd)], ids=["v1", "v2", "v2-systemd"])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    version, path = request.param
    root = "/sys/fs/cgroup/cpu" if version == 1 else "/sys/fs/cgroup"
    mount = f"cgroup {root} cgroup rw,cpu 0 0\n" if version == 1 else f"cgroup2 {root} cgroup2 rw 0 0\n"
    files: dict[str, str] = {"/proc/self/mounts": mount}
    if version == 2:
        files[f"{root}/cgroup.controllers"] = "cpuset cpu io memory pids\n"
    for qos, uid in UIDS.items():
        for container, kind in ((MAIN[qos], "container"), (PAUSE[qos], "sandbox")):
            files[f"{root}{path(qos, container)}/cgroup.procs"] = ""
            notes = {
                "io.kubernetes.cri.container-type": kind,
                "io.kubernetes.cri.sandbox-name": f"pod-{qos}",
                "io.kubernetes.cri.sandbox-namespace": "shop",
            } | ({"io.kubernetes.cri.container-name": "main"} if kind == "container" else {})
            config = f"/run/containerd/io.containerd.runtime.v2.task/k8s.io/{container}/config.json"
            files[config] = json.dumps({"annotations": notes})
        files[f"/var/log/pods/shop_pod-{qos}_{uid}/main/0.log"] = ""
    files[PUBLISHED_PODS] = json.dumps(pods().described())
    files[STATE] = json.dumps(
        {
            "policyName": "static", "defaultCpuSet": "0,3", "checksum": 1,
            "entries": {UIDS["guaranteed"]: {"main": "1-2"}},
        }
    )  # fmt: skip
    fs = write_tree(tmp_path, files)
    return fs, path, Lookup(fs, discover(fs))


def test_containers_have_the_labels_of_their_pods(host: Any) -> None:
    _, path, lookup = host
    found = {each.cgroup: each for each in lookup.containers()}
    for qos in UIDS:
        main = found[path(qos, MAIN[qos])]
        assert main.name == f"shop/pod-{qos}/main"
        assert main.labels["app"] == ("db" if qos == "guaranteed" else "crunch")
        assert main.labels["perphd.io/band"] == "gold"
        assert main.labels["io.kubernetes.container.name"] == "main"
        assert "other.example/secret" not in main.labels
        assert parse_path(main.cgroup).qos == qos
    assert len(found) == 2 * len(UIDS)


def test_the_static_cpu_manager_keeps_its_cpusets(host: Any) -> None:
    fs, path, _ = host
    kubelet = Kubelet(fs)
    assert str(kubelet.cpu_manager(0.0).exclusive) == "1-2"
    assert "static CPU manager" in kubelet.refusal(path("guaranteed", MAIN["guaranteed"]), 0.0)
    assert kubelet.refusal("/system.slice/db.service", 0.0) == ""


def test_labels_that_come_late_or_change_are_seen(host: Any, tmp_path: Path) -> None:
    _, path, lookup = host
    cgroup = path("burstable", MAIN["burstable"])

    def labels() -> Any:
        lookup.look_anew()
        return next(each.labels for each in lookup.containers() if each.cgroup == cgroup)

    file = tmp_path / PUBLISHED_PODS.lstrip("/")
    assert labels()["app"] == "crunch"
    file.unlink()
    assert "app" not in labels()
    file.write_text("{ broken")
    assert "app" not in labels()
    own = pods()
    uid = UIDS["burstable"]
    own.changed("MODIFIED", {"metadata": {"uid": uid, "labels": {"app": "new"}}})
    file.write_text(json.dumps(own.described()))
    assert labels()["app"] == "new"
    own.changed("DELETED", own.pods[uid])
    assert uid not in own.described()["pods"]
