"""Pods of captured nodes: found, named, joined with their labels by UID, taken as workloads, and what is left alone.

The fixtures were captured on real nodes (kubelet 1.36, containerd 1.6, runc 1.1; cgroup v1 with the cgroupfs driver,
cgroup v2 and systemd 252 with both drivers) by ``tools.cluster.capture_kubelet``.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from perphd.adapters.kubernetes.own_pods import OwnPods
from perphd.config.discovery import Discovery, Found
from perphd.config.opt_in import DECLARATION
from perphd.config.tables import OptInConfig
from perphd.domain.allocation import IDLE, Settings
from perphd.domain.cpuset import CpuSet
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.host.cgroup.hierarchy import discover
from perphd.host.containers import PUBLISHED_PODS, parse_path
from perphd.host.fs import RealFs
from perphd.host.kubelet import STATE, Kubelet
from perphd.host.lookup import LocalPod, Lookup
from perphd.isolation.executor import Executor
from perphd.isolation.journal import Journal
from tests.unit.host_tree import write_tree

CAPTURED = Path(__file__).parents[1] / "fixtures" / "kubelet"
QOS = ("guaranteed", "burstable", "besteffort")
ANYBODY = OptInConfig(containers="lra,batch", bands="gold", least_latency_ms=5.0)
LAYOUTS = ("v1-cgroupfs", "v1-cgroupfs-static", "v2-cgroupfs", "v2-systemd", "v2-systemd-static")


def captured(name: str) -> tuple[dict[str, str], list[Any]]:
    files = json.loads((CAPTURED / f"{name}.json").read_text())
    return files, json.loads(files.pop("api"))


@dataclass
class Host:
    fs: RealFs
    root: Path
    pods: list[Any]
    is_static: bool

    @property
    def lookup(self) -> Lookup:
        return Lookup(self.fs, discover(self.fs))

    def uid(self, qos: str) -> str:
        return str(next(each["metadata"]["uid"] for each in self.pods if each["metadata"]["name"] == qos))

    def publish(self, **annotations: dict[str, str]) -> None:
        """Write the pods as ``perphd-publish run --pods`` does; with these annotations of perphd's by pod, if any."""
        own = OwnPods()
        own.replaced(self.pods)
        described = own.described()
        for uid, each in described["pods"].items():
            if annotations:
                keys = annotations.get(each["name"], {}).items()
                described["pods"][uid]["annotations"] = {f"perphd.io/{key}": value for key, value in keys}
        path = self.root / PUBLISHED_PODS.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(described))

    def look(self, *matches: str, opt_in: OptInConfig | None = None) -> Found:
        declared = [WorkloadSpec(f"m{n}", Kind.BATCH, "", match=text) for n, text in enumerate(matches)]
        return Discovery(self.fs, self.lookup).look(declared, [], opt_in or OptInConfig())

    def group(self, qos: str) -> str:
        return next(each.cgroup for each in self.lookup.pods() if each.name == f"default/{qos}")


@pytest.fixture(params=LAYOUTS)
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Host:
    layout: str = request.param
    files, pods = captured(layout)
    fs = write_tree(tmp_path, {**files, "/proc/self/cgroup": "0::/\n"})
    made = Host(fs, tmp_path, pods, layout.endswith("-static"))
    made.publish()
    return made


def test_pods_have_names_uids_classes_and_labels(host: Host) -> None:
    found = {each.name: each for each in host.lookup.pods()}
    assert set(found) == {f"default/{qos}" for qos in QOS}
    for qos in QOS:
        pod = found[f"default/{qos}"]
        path = parse_path(pod.cgroup)
        assert (path.qos, path.pod_uid, path.container_id) == (qos, host.uid(qos), "")
        assert pod.labels is not None
        assert (pod.labels["app"], pod.labels["perphd.io/tolerance-pct"]) == (qos, "20")
        assert "example.org/other" not in pod.labels
        assert "io.kubernetes.container.name" not in pod.labels
        assert pod.labels["io.kubernetes.pod.namespace"] == "default"


def test_containers_are_told_from_sandboxes_and_know_their_pods(host: Host) -> None:
    containers = host.lookup.containers()
    assert len(containers) == 6
    for qos in QOS:
        inside = [each for each in containers if each.pod == host.group(qos)]
        assert sorted(each.is_sandbox for each in inside) == [False, True]
        (main,) = [each for each in inside if not each.is_sandbox]
        assert main.name == f"default/{qos}/main"
        assert main.labels is not None
        assert main.labels["io.kubernetes.container.name"] == "main"


def test_a_pod_is_one_workload_and_a_container_only_if_it_is_meant(host: Host) -> None:
    found = host.look("label:app=burstable", "pod:default/guar*", "container:default/besteffort/main")
    assert not found.problems
    assert {spec.cgroup for spec in found.specs.values()} == {
        host.group("burstable"),
        host.group("guaranteed"),
        next(each.cgroup for each in host.lookup.containers() if each.name == "default/besteffort/main"),
    }
    by_container = host.look("label:io.kubernetes.container.name=main")
    assert len(by_container.specs) == 3, "no pod has this label: its containers have"
    assert all(parse_path(spec.cgroup).container_id for spec in by_container.specs.values())
    assert len(host.look("label:io.kubernetes.pod.namespace=default").specs) == 3


def test_pods_declare_themselves_by_their_annotations(host: Host) -> None:
    host.publish(
        guaranteed={
            "band": "gold",
            "tolerance-pct": "15",
            "max-latency-ms": "20",
            "latency-percentile": "p95",
        },
        burstable={"kind": "batch", "band": "copper"},
        besteffort={"band": "copper"},
    )
    found = host.look(opt_in=ANYBODY)
    assert not found.problems
    by_place = {spec.cgroup: spec for spec in found.specs.values()}
    assert set(by_place) == {host.group("guaranteed"), host.group("burstable")}, (
        "a band alone is for the scheduler"
    )
    lra = by_place[host.group("guaranteed")]
    assert (lra.kind, lra.band, lra.objective.tolerance_pct) == (Kind.LRA, "gold", 15.0)
    assert (lra.objective.max_latency_ms, lra.objective.latency_percentile) == (20.0, "p95")
    assert lra.sli is not None
    assert lra.sli.source == "tcp", "it names nothing that perphd would read or connect to"
    assert lra.match == "pod:default/guaranteed"
    assert lra.declared_by == "labels or annotations of pod 'default/guaranteed'"
    assert re.fullmatch(r"pod\.default-guaranteed-[0-9a-f]{6}", lra.name)
    batch = by_place[host.group("burstable")]
    assert (batch.kind, batch.band) == (Kind.BATCH, "copper")
    assert not host.look().specs, "nobody declares itself unless the operator says so"


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"kind": "lra", "mode": "enforce"}, "mode: 'enforce' is reserved for the operator"),
        (
            {"kind": "lra", "priority": "100"},
            "priority: may not be set by a pod: it belongs in the operator's",
        ),
        ({"kind": "batch", "min-cores": "2"}, "perphd.io/min-cores: may not be set by a pod"),
        ({"kind": "lra", "sli.source": "command"}, "sli.source: may not be set by a pod"),
        ({"tolerance-pct": "1"}, "perphd.io/tolerance-pct: 1 is stricter than the default"),
        (
            {"max-latency-ms": "4"},
            "max-latency-ms: 4 is less than least_latency_ms allows in [tuning.opt_in]",
        ),
        ({"tolerance-pct": "15", "tolerance_pct": "20"}, "contradicts perphd.io/tolerance-pct"),
        ({"kind": "lra", "tolerence-pct": "15"}, "did you mean 'tolerance_pct'?"),
        ({"kind": "lra", "band": "copper"}, "band: 'copper' is not an accepted value"),
    ],
)
def test_pods_are_refused_what_is_the_operators(host: Host, said: dict[str, str], why: str) -> None:
    host.publish(guaranteed=said)
    found = host.look(opt_in=ANYBODY)
    assert not found.specs
    assert "pod 'default/guaranteed'" in found.problems[DECLARATION]
    assert why in found.problems[DECLARATION]


def test_a_latency_needs_the_operators_consent(host: Host) -> None:
    host.publish(guaranteed={"max-latency-ms": "1000"})
    found = host.look(opt_in=OptInConfig(containers="lra"))
    assert not found.specs
    assert (
        "max-latency-ms: may not be set by a pod: least_latency_ms is 0 in [tuning.opt_in]"
        in found.problems[DECLARATION]
    )


async def test_what_is_kubelets_is_left_alone(host: Host, tmp_path: Path) -> None:
    assert Kubelet(host.fs).cpu_manager(0.0).is_static is host.is_static
    if host.is_static:
        assert str(Kubelet(host.fs).cpu_manager(0.0).exclusive) == "1"
    cgroup = host.group("besteffort" if host.is_static else "burstable")
    spec = WorkloadSpec("batch", Kind.BATCH, cgroup)
    (tmp_path / "state").mkdir()
    with Journal(tmp_path / "state", boot_id="x") as journal:
        executor = Executor(host.fs, discover(host.fs), journal, in_thread=False, kubelet=Kubelet(host.fs))
        changes = executor.plan({"batch": Settings(cpus=CpuSet.of([0]), cpu_weight=IDLE)}, [spec], 0.0)
        written = {write.path.rpartition("/")[2] for write in changes.writes}
        assert "cpu.idle" not in written, "kubelet could not write a weight beside it"
        assert ("cpuset.cpus" in written) is not host.is_static
        assert any("static CPU manager" in each.reason for each in changes.skipped) is host.is_static
        executor.close()


def test_labels_that_come_late_or_change_are_seen(host: Host) -> None:
    lookup, cgroup = host.lookup, host.group("burstable")

    def labels() -> Any:
        lookup.look_anew()
        return next(each.labels for each in lookup.pods() if each.cgroup == cgroup)

    file = host.root / PUBLISHED_PODS.lstrip("/")
    assert labels()["app"] == "burstable"
    file.unlink()
    assert "app" not in labels()
    file.write_text("{ broken")
    assert "app" not in labels()
    own = OwnPods()
    own.replaced(host.pods)
    uid = host.uid("burstable")
    own.changed("MODIFIED", {"metadata": {"uid": uid, "labels": {"app": "new"}}})
    file.write_text(json.dumps(own.described()))
    assert labels()["app"] == "new"
    own.changed("DELETED", own.pods[uid])
    assert uid not in own.described()["pods"]


def _pods_below(tmp_path: Path, root: str) -> list[LocalPod]:
    files, _ = captured("v1-cgroupfs")
    moved = {
        re.sub(r"^(/sys/fs/cgroup/\w+)/kubepods", rf"\1{root}/kubepods", path): text
        for path, text in files.items()
    }
    fs = write_tree(tmp_path, {**moved, STATE: "{}"})
    return list(Lookup(fs, discover(fs)).pods())


@pytest.mark.parametrize(
    "root", ["/nodes", "/nodes.slice", "/nodes/pool/a.b", "/docker/kubelet", "/nodes.slice/pool"]
)
def test_pods_below_a_cgroup_root_are_found(tmp_path: Path, root: str) -> None:
    found = _pods_below(tmp_path, root)
    assert {each.name for each in found} == {f"default/{qos}" for qos in QOS}
    assert all(each.cgroup.startswith(f"{root}/kubepods/") for each in found)


@pytest.mark.parametrize(
    "inside", [f"/docker/{'0f' * 32}", "/system.slice/k3s.service", "/lxc/node", "/lxc.payload.node"]
)
def test_pods_of_a_kubelet_in_a_container_are_not_this_hosts(tmp_path: Path, inside: str) -> None:
    assert not _pods_below(tmp_path, inside)


def test_a_foreign_tree_without_end_hides_no_pods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("MAX_GROUPS", "MOST_SEARCHED"):
        monkeypatch.setattr(f"perphd.host.lookup.{limit}", 100)
    files, _ = captured("v1-cgroupfs")
    foreign = {
        f"/sys/fs/cgroup/{controller}/zz-other/{n % 7}/{n}/cgroup.procs": ""
        for controller in {path.split("/")[4] for path in files if path.startswith("/sys/fs/cgroup/")}
        for n in range(300)
    }
    fs = write_tree(tmp_path, {**files, **foreign, STATE: "{}"})
    assert {each.name for each in Lookup(fs, discover(fs)).pods()} == {f"default/{qos}" for qos in QOS}


def _succeed(host: Host, qos: str) -> tuple[str, str]:
    """Give a captured pod a successor of the same name and labels, which is empty. Returns both groups."""
    old = host.group(qos)
    uid = host.uid(qos)
    successor = ("0" if qos == "guaranteed" else "f") * 8 + uid[8:]  # sorts before its predecessor, or after
    for path in sorted(host.root.rglob("*")):
        inside = str(path.relative_to(host.root))
        made = inside.replace(uid, successor).replace(uid.replace("-", "_"), successor.replace("-", "_"))
        if made == inside:
            continue
        if path.is_dir():
            (host.root / made).mkdir(parents=True, exist_ok=True)
        else:
            (host.root / made).parent.mkdir(parents=True, exist_ok=True)
            (host.root / made).write_text(path.read_text())
    new = old.replace(uid, successor).replace(uid.replace("-", "_"), successor.replace("-", "_"))
    described = next(each for each in host.pods if each["metadata"]["uid"] == uid)
    host.pods.append({**described, "metadata": {**described["metadata"], "uid": successor}})
    host.publish()
    return old, new


def _run_in(host: Host, pod: str) -> None:
    """Processes run in the containers of this pod."""
    for mount in discover(host.fs).all():
        for procs in (host.root / mount.path(pod).lstrip("/")).glob("*/cgroup.procs"):
            procs.write_text("4711\n")


def _inode(host: Host, cgroup: str) -> int:
    mount = next(
        each for each in discover(host.fs).all() if not each.controllers or "cpu" in each.controllers
    )
    return host.fs.identity(mount.path(cgroup))[1]


def _taken(host: Host, qos: str) -> set[str]:
    """The pod that each kind of match takes; each takes one without a problem."""
    found = set()
    for match in (
        f"pod:default/{qos}",
        f"pod:default/{qos[:4]}*",
        f"label:app={qos}",
        f"container:default/{qos}/main",
    ):
        looked = host.look(match)
        assert not looked.problems
        (spec,) = looked.specs.values()
        found.add(re.sub(r"(pod[0-9a-f_-]{36}(\.slice)?)/.*", r"\1", spec.cgroup))
    return found


@pytest.mark.parametrize("qos", QOS)
def test_a_name_belongs_to_the_pod_with_processes_then_to_the_newest(host: Host, qos: str) -> None:
    old, new = _succeed(host, qos)
    newest = max(old, new, key=lambda cgroup: _inode(host, cgroup))
    assert _taken(host, qos) == {newest}
    other = old if newest == new else new
    _run_in(host, other)
    assert _taken(host, qos) == {other}, "the newest is empty: the other one runs"
    _run_in(host, newest)
    assert _taken(host, qos) == {newest}
    assert (len(host.lookup.pods()), len(host.lookup.containers())) == (len(QOS), 2 * len(QOS))
