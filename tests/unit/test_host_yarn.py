"""YARN's containers in control groups, joined with the labels that perphd-yarn publishes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perphd.config.discovery import Discovery
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.host.cgroup.hierarchy import discover
from perphd.host.containers import ContainerNames, parse_path
from perphd.host.lookup import Lookup
from perphd.host.yarn import HIERARCHY, PUBLISHED_CONTAINERS, checked_hierarchy
from tests.unit.host_tree import write_tree

ROOT = "/sys/fs/cgroup/cpu"
BATCH, SERVICE, ENDED, NEW = (f"container_e02_1795466587039_0001_01_00000{n}" for n in range(1, 5))


def tree(tmp_path: Path, hierarchy: str, published: str) -> Discovery:
    files = {"/proc/self/mounts": f"cgroup {ROOT} cgroup rw,cpu 0 0\n", PUBLISHED_CONTAINERS: published}
    for name, pids in ((BATCH, "100"), (SERVICE, "101"), (ENDED, ""), (NEW, "102")):
        files[f"{ROOT}{hierarchy}/{name}/cgroup.procs"] = pids
    files[f"{ROOT}{hierarchy}/other/cgroup.procs"] = "103"
    fs = write_tree(tmp_path, files)
    return Discovery(fs, Lookup(fs, discover(fs)))


def published(hierarchy: str) -> str:
    labels = {
        BATCH: {"yarn.queue": "batch"},
        SERVICE: {"yarn.queue": "services"},
        ENDED: {"yarn.queue": "batch"},
    }
    return json.dumps({"hierarchy": hierarchy, "containers": labels})


@pytest.mark.parametrize("hierarchy", [HIERARCHY, "/apps/containers"])
def test_containers_are_found_by_queue_and_empty_groups_have_ended(tmp_path: Path, hierarchy: str) -> None:
    discovery = tree(tmp_path, hierarchy, published(hierarchy))
    batch = WorkloadSpec("batch", Kind.BATCH, "", match="label:yarn.queue=batch")
    found = discovery.look([batch], [])
    assert {name: spec.cgroup for name, spec in found.specs.items()} == {
        f"batch.{BATCH}": f"{hierarchy}/{BATCH}",
    }
    assert found.problems == {}


def test_without_labels_the_default_group_is_searched_and_names_the_problem(tmp_path: Path) -> None:
    discovery = tree(tmp_path, HIERARCHY, "{ broken")
    batch = WorkloadSpec("batch", Kind.BATCH, "", match="label:yarn.queue=batch")
    everything = WorkloadSpec("all", Kind.BATCH, "", match="container:container_*")
    found = discovery.look([batch, everything], [])
    assert len(found.specs) == 3
    assert "labels of 3 containers" in found.problems["batch"]


def test_a_container_of_yarn_has_no_image_and_is_shown_by_its_id(tmp_path: Path) -> None:
    path = parse_path(f"/hadoop-yarn/{BATCH}")
    assert (path.runtime, path.container_id, path.has_image) == ("yarn", BATCH, False)
    assert not parse_path("/hadoop-yarn/container_1")
    fs = write_tree(tmp_path, {})
    assert ContainerNames(fs).label(f"/hadoop-yarn/{BATCH}") == BATCH


@pytest.mark.parametrize("path", ["", "hadoop-yarn", "/", "/a/../b", "/a//b", None, 7])
def test_a_wrong_group_in_the_file_is_the_default(path: object) -> None:
    assert checked_hierarchy(path) == HIERARCHY
