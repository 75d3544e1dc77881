"""Replicas that a declaration finds by label on many hosts: they learn from each other under the declaration's name."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from perphd.agent.contribution_folder import ContributionFolder
from perphd.agent.federated import ON_TRIAL, Federated, Membership
from perphd.agent.models import Models
from perphd.agent.records import Records
from perphd.agent.workload_list import WorkloadList
from perphd.commands.render_model import origin_parts
from perphd.config.discovery import Discovery
from perphd.config.opt_in import DECLARATION
from perphd.control.table import plain
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.federated.contribution import Statistic, Topic, spoken
from perphd.federated.replicas import ABSENT_S
from perphd.host.cgroup.hierarchy import discover
from perphd.host.lookup import Lookup
from perphd.predictor import Registry
from perphd.predictor.federated import KIND
from perphd.predictor.files import ModelFiles
from tests.unit.host_tree import write_tree
from tests.unit.inline import inline
from tools.bench.federated.hosts import days, fleet

HOSTS = fleet(3, applications=1)[:5]
SAMPLES = 120
NOW = 1.8e9
WEB = WorkloadSpec("web", Kind.LRA, "", match="label:app=web")


def pod_of(number: int, name: str) -> tuple[str, str]:
    """Cgroup and UID of a pod."""
    digits = hashlib.sha256(f"{number} {name}".encode()).hexdigest()
    uid = f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:32]}"
    return f"/kubepods.slice/kubepods-pod{uid.replace('-', '_')}.slice", uid


class Node:
    """A node with a tree of the kubelet's pods, and the models of its daemon."""

    def __init__(self, base: Path, number: int, folder: Path, pods: Sequence[str]) -> None:
        self.number, self.root = number, base / f"root-{number}"
        self.host, self.now_s, self.wall_s = HOSTS[number], 0.0, float(NOW)
        self.records = Records(None, lambda: NOW)
        self.folder = ContributionFolder(folder)
        here = Membership(self.host.name, self.host.hardware, 30 * 86400.0, contribute=True)
        state = base / self.host.name
        federated = Federated(
            self.folder, state / "origins", here, self.records, lambda: self.wall_s, inline=True
        )
        self.models = Models(
            Registry("ogbrt"), ModelFiles(state), self.records, lambda: NOW, self.host.name,
            self.host.hardware.cores, federated=federated, in_thread=False,
        )  # fmt: skip
        self.specs: tuple[WorkloadSpec, ...] = ()
        self.declared_as: dict[str, str] = {}
        self.run(*pods)

    def run(self, *pods: str) -> Node:
        """Let exactly these pods run from now on, beside one without the label."""
        files = {
            "/proc/self/mounts": "cgroup2 /cg cgroup2 rw 0 0\n",
            "/proc/self/cgroup": "0::/system.slice/perphd.service\n",
            "/cg/cgroup.controllers": "cpu memory\n",
        }
        published = {}
        for name in (*pods, "other-1"):
            cgroup, uid = pod_of(self.number, name)
            app = name.rpartition("-")[0]
            files[f"/cg{cgroup}/cri-containerd-{hashlib.sha256(name.encode()).hexdigest()}.scope/"] = ""
            published[uid] = {"namespace": "shop", "name": name, "labels": {"app": app}}
        files["/run/perphd-pods/pods.json"] = json.dumps({"pods": published})
        root = self.root / hashlib.sha256(repr(pods).encode()).hexdigest()[:8]
        fs = write_tree(root, files)
        found = Discovery(fs, Lookup(fs, discover(fs))).look([WEB], [])
        assert len(found.specs) == len(pods), found.problems
        for gone in {spec.name for spec in self.specs} - found.specs.keys():
            self.models.forget(gone, self.now_s)
        self.specs, self.declared_as = tuple(found.specs.values()), dict(found.declared_as)
        return self.tick()

    def tick(self) -> Node:
        inline(self.models.follow(self.specs, self.now_s, self.declared_as.__getitem__))
        return self

    def spec(self, pod: str) -> WorkloadSpec:
        (found,) = [spec for spec in self.specs if spec.cgroup == pod_of(self.number, pod)[0]]
        return found

    def live(self, pod: str, samples: int = SAMPLES) -> Node:
        model = self.models.model(self.spec(pod).name)
        for seen in days(self.host, 0, 3, SAMPLES).observations[: 30 + samples]:
            model.observe(seen)
            self.now_s = seen.sample.at_s
        return self

    def save(self) -> Node:
        self.models.save_when_due(self.specs, self.now_s, 1.0)
        self.now_s += 2.0
        self.models.save_when_due(self.specs, self.now_s, 1.0)
        self.models._wait(self.now_s)
        return self

    @property
    def said(self) -> dict[str, Statistic]:
        """Statements of this host's document about work, by application."""
        own = self.folder.own(self.host.name)
        assert own is not None
        return {
            s.topic.application: s
            for s in own.statistics
            if s.topic.kind == KIND and s.topic.aspect == "work"
        }


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the contributions of four nodes, with a pod each, of other names."""
    folder = tmp_path_factory.mktemp("fleet")
    for number in range(1, 5):
        node = Node(tmp_path_factory.mktemp("state"), number, folder, [f"web-{number}"])
        node.live(f"web-{number}").save()
    return folder


@pytest.fixture
def folder(told: Path, tmp_path: Path) -> Path:
    return shutil.copytree(told, tmp_path / "copied")


def test_a_new_replica_starts_from_those_on_other_hosts_whatever_their_names(
    folder: Path, tmp_path: Path
) -> None:
    names = {
        each.topic.application
        for doc in ContributionFolder(folder).read()[0].counting()
        for each in doc.statistics
    }
    assert names == {"web"}
    node = Node(tmp_path, 0, folder, ["web-x", "web-y"])
    for pod in ("web-x", "web-y"):
        spec = node.spec(pod)
        assert spec.name.startswith(f"web.shop-{pod}-")
        assert node.models.summary(spec).origin == "began from 4 other hosts"
        origin = node.models.origin(spec, node.declared_as[spec.name])
        assert (origin.application, origin.outcome) == ("web", ON_TRIAL)
        assert sorted(h.contributor for h in origin.hosts) == [f"host-0{n}" for n in range(1, 5)]
        assert f"{spec.name}, which other hosts know as web: began from 4 other hosts" in plain(
            origin_parts(origin)
        )


def test_of_several_replicas_the_one_with_the_most_evidence_speaks(tmp_path: Path) -> None:
    node = Node(tmp_path, 0, tmp_path / "fleet", ["web-a", "web-b"])
    node.live("web-a", 60).save()
    alone = node.said["web"]
    node.live("web-b").save()
    both = node.said["web"]
    assert sum(both.evidence) > sum(alone.evidence)
    only = Node(tmp_path / "only", 0, tmp_path / "other", ["web-b"]).live("web-b").save()
    assert both.values == only.said["web"].values


def test_what_a_replaced_pod_said_stays_until_its_successor_speaks(tmp_path: Path) -> None:
    node = Node(tmp_path, 0, tmp_path / "fleet", ["web-a"])
    node.live("web-a").save()
    before = node.said["web"]
    node.run("web-b").live("web-b", 5).save()  # too few samples to contribute
    assert node.said["web"] == before
    again = Node(tmp_path, 0, tmp_path / "fleet", ["web-b"])  # and over a restart of perphd
    again.live("web-b", 6).save()
    assert again.said["web"] == before
    again.live("web-b", 60).save()
    assert again.said["web"] != before
    assert sum(again.said["web"].evidence) < sum(before.evidence)
    again.run().save()
    again.models.close((), again.now_s, save=True)
    assert again.said.keys() == {"web"}, "a pod may be back soon"
    again.wall_s += ABSENT_S + 1.0
    again.models.close((), again.now_s, save=True)
    assert again.said == {}, "no replica has been here for an hour"


def test_a_pod_that_replaces_another_one_hears_what_that_said(folder: Path, tmp_path: Path) -> None:
    node = Node(tmp_path, 0, folder, ["web-a"])
    node.live("web-a").save()
    node.run("web-b")
    spec = node.spec("web-b")
    assert node.models.summary(spec).origin == "began from 4 other hosts and a replica on this one"
    hosts = {h.contributor: h.distance for h in node.models.origin(spec, "web").hosts}
    assert hosts.keys() == {f"host-0{n}" for n in range(5)}
    assert hosts["host-00"] == 0.0


def test_a_reset_replica_does_not_hear_itself_and_is_no_longer_spoken_of(
    folder: Path, tmp_path: Path
) -> None:
    node = Node(tmp_path, 0, folder, ["web-a"])
    node.live("web-a").save()
    spec = node.spec("web-a")
    node = Node(tmp_path, 0, folder, ["web-a"])  # a restart: the document is all that is left
    node.models.reset(spec, node.now_s)
    node.tick()
    assert node.models.summary(spec).origin == "began from 4 other hosts"
    node.live("web-a", 5).save()
    assert node.said == {}


def test_the_name_that_others_know_is_that_of_the_declaration() -> None:
    workloads = WorkloadList()
    for name, declaration in (("web.a", "web"), ("db", "db"), ("by-itself", DECLARATION)):
        workloads.note_found(name, declaration, 0.0)
    names = [workloads.application(name) for name in ("web.a", "db", "by-itself", "configured")]
    assert names == ["web", "db", "by-itself", "configured"]


def test_the_first_of_equals_speaks() -> None:
    topic = Topic("correction", "web", "work", "p")
    a, b, c = (Statistic(topic, (v,), (e,)) for v, e in ((1.0, 5.0), (2.0, 9.0), (3.0, 9.0)))
    assert spoken([a, b, c]) == (b,)
    assert spoken([]) == ()
