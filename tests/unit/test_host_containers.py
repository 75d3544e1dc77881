"""Pods and containers: what paths say with either cgroup driver and every runtime, and where names come from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.domain.cpuset import CpuSet
from perphd.host.catalogue import CgroupEntry, suggest
from perphd.host.containers import ContainerNames, ContainerPath, in_kubernetes, parse_path
from perphd.host.kubelet import LOOK_AGAIN_S, STATE, CpuManager, Kubelet, parse_state
from tests.unit.host_tree import write_tree

ID = "0f" * 32
OTHER = "1e" * 32
UID = "8d5f3c1e-0b7a-4c6e-9f2d-1a2b3c4d5e6f"
BURSTABLE = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (f"{BURSTABLE}/cri-containerd-{ID}.scope", ContainerPath("containerd", ID, UID, "burstable")),
        (f"{BURSTABLE}/crio-{ID}.scope/inner", ContainerPath("crio", ID, UID, "burstable")),
        (BURSTABLE, ContainerPath("", "", UID, "burstable")),
        (f"/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice", ContainerPath("", "", UID, "guaranteed")),
        (f"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{UID.replace('-', '_')}.slice",
         ContainerPath("", "", UID, "guaranteed")),
        # cgroupRoot: /a/b, with the systemd driver; then names that contain a class, and no more.
        (f"/a.slice/a-b.slice/a-b-kubepods.slice/a-b-kubepods-burstable.slice"
         f"/a-b-kubepods-burstable-pod{UID.replace('-', '_')}.slice/cri-containerd-{ID}.scope",
         ContainerPath("containerd", ID, UID, "burstable")),
        (f"/burstable/besteffort.slice/kubepods/pod{UID}", ContainerPath("", "", UID, "guaranteed")),
        (f"/my-kubepods.slice.d/pod{UID}", ContainerPath()),
        (f"/kubepods/besteffort/pod{UID}/{ID}", ContainerPath("", ID, UID, "besteffort")),
        (f"/kubepods/pod{UID.replace('-', '')}/{ID}", ContainerPath("", ID, UID, "guaranteed")),
        (f"/system.slice/docker-{ID}.scope", ContainerPath("docker", ID)),
        (f"/docker/{ID}", ContainerPath("docker", ID)),
        (f"/machine.slice/libpod-{ID}.scope/container", ContainerPath("libpod", ID)),
        (f"/system.slice/nerdctl-{ID}.scope", ContainerPath("nerdctl", ID)),
        ("/kubepods.slice", ContainerPath("", "", "", "")),
        ("/system.slice/docker.service", ContainerPath()),
        (f"/mine/{ID}", ContainerPath()),
        (f"/system.slice/pod{UID}", ContainerPath()),
        ("/system.slice/docker-0f.scope", ContainerPath()),
    ],
)  # fmt: skip
def test_what_a_path_says(path: str, expected: ContainerPath) -> None:
    assert parse_path(path) == expected
    assert bool(parse_path(path)) is bool(expected.container_id or expected.pod_uid)


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=200))
def test_any_path_can_be_read(text: str) -> None:
    parse_path(f"/{text}")


@pytest.fixture
def names(tmp_path: Path) -> ContainerNames:
    docker = {"Name": "/web", "Config": {"Image": "nginx", "Labels": {}}}
    task = {"annotations": {"io.kubernetes.cri.container-name": "server"}}
    files = {
        f"/var/lib/docker/containers/{ID}/config.v2.json": json.dumps(docker),
        f"/run/containerd/io.containerd.runtime.v2.task/k8s.io/{OTHER}/config.json": json.dumps(task),
        f"/var/log/pods/shop_db-0_{UID}/server/0.log": "",
        f"/var/lib/docker/containers/{'2d' * 32}/config.v2.json": "{ broken",
    }
    return ContainerNames(write_tree(tmp_path, files))


def test_names_are_those_that_people_gave(names: ContainerNames) -> None:
    assert names.label(f"/system.slice/docker-{ID}.scope") == "web"
    assert names.label(BURSTABLE) == "shop/db-0"
    assert names.label(f"{BURSTABLE}/cri-containerd-{OTHER}.scope") == "shop/db-0/server"
    assert names.label(f"{BURSTABLE}/cri-containerd-{ID[::-1]}.scope") == f"shop/db-0/{ID[::-1][:12]}"
    assert names.label(f"/docker/{'2d' * 32}") == "2d" * 6
    assert names.label("/system.slice/db.service") == ""
    assert names.label(f"/kubepods/pod{UID.replace('8', '9')}") == f"pod {UID.replace('8', '9')}"


def test_a_containers_name_leads_to_its_cgroup() -> None:
    entries = [CgroupEntry(f"/docker/{ID}", True, 1, "web"), CgroupEntry("/system.slice/webmail", True, 1)]
    assert suggest("/docker/web", entries)[0] == f"/docker/{ID}"


def state(**entries: object) -> bytes:
    return json.dumps(
        {"policyName": "static", "defaultCpuSet": "0,4-7", "entries": entries, "checksum": 1}
    ).encode()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (state(**{UID: {"server": "1-2", "side": "3"}}), CpuManager(True, CpuSet.of([1, 2, 3]))),
        (state(**{ID: "1-2"}), CpuManager(True, CpuSet.of([1, 2]))),
        (state(), CpuManager(True, CpuSet())),
        (b'{"policyName":"none","defaultCpuSet":"","checksum":1}', CpuManager()),
        (b"", CpuManager()),
        (b"[]", CpuManager()),
        (state(**{UID: {"server": "garbage"}}), CpuManager()),
    ],
)
def test_the_state_of_kubelets_cpu_manager(data: bytes, expected: CpuManager) -> None:
    assert parse_state(data) == expected


@given(st.binary(max_size=200))
def test_any_bytes_are_some_state(data: bytes) -> None:
    parse_state(data)


def test_the_state_is_read_again_now_and_then(tmp_path: Path) -> None:
    fs = write_tree(tmp_path, {STATE: state().decode()})
    kubelet = Kubelet(fs)
    assert "perphd does not change them" in kubelet.refusal(BURSTABLE, 0.0)
    assert kubelet.refusal("/system.slice/x.service", 0.0) == ""
    (tmp_path / STATE[1:]).unlink()
    assert kubelet.refusal(BURSTABLE, LOOK_AGAIN_S - 1)
    assert kubelet.refusal(BURSTABLE, LOOK_AGAIN_S + 1) == ""
    assert in_kubernetes(BURSTABLE)
