"""What a Slurm job declares, and where its control group is: pure decisions on an environment and small trees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perphd.adapters.slurm.jobs import Declarations, JobError, JobWatch, group_of, hand_over, job_of
from perphd.control.client import Refused, Unreachable
from perphd.domain.workload import Kind

ENVIRONMENT = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_UID": "1000",
    "SLURMD_NODENAME": "n1",
    "SLURM_JOB_PARTITION": "night",
}


@pytest.mark.parametrize(
    ("comment", "partition", "kind"),
    [
        ("", "day", None),
        ("", "night", Kind.BATCH),
        ("", "web", Kind.LRA),
        ("perphd=none", "night", None),
        ("a, perphd=batch;b", "web", Kind.BATCH),
        ("xperphd=lra", "day", None),
        ("perphd=batchy!", "day", None),
    ],
)
def test_the_comment_counts_before_the_partition(comment: str, partition: str, kind: Kind | None) -> None:
    declarations = Declarations(frozenset({"night"}), frozenset({"web"}))
    assert declarations.kind_of(comment, partition) is kind


@pytest.mark.parametrize("word", ["lra", "other"])
def test_a_job_cannot_declare_what_the_operator_does_not_allow(word: str) -> None:
    with pytest.raises(JobError, match=rf"perphd={word} .* \(allowed: batch, none\)"):
        Declarations().kind_of(f"perphd={word}", "")
    assert Declarations(by_comment=frozenset({Kind.LRA})).kind_of("perphd=lra", "") is Kind.LRA


@pytest.mark.parametrize(
    ("folders", "group"),
    [
        (["freezer/slurm_n1"], "/slurm_n1/uid_1000/job_7"),
        (["cpuset/slurm", "freezer/slurm"], "/slurm/uid_1000/job_7"),
        (["system.slice/slurmstepd.scope"], "/system.slice/slurmstepd.scope/job_7"),
        (
            ["system.slice/slurmstepd.scope", "system.slice/n1_slurmstepd.scope"],
            "/system.slice/n1_slurmstepd.scope/job_7",
        ),
    ],
)  # fmt: skip
def test_the_group_of_a_job(tmp_path: Path, folders: list[str], group: str) -> None:
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
    if folders[0].startswith("system.slice"):
        (tmp_path / "cgroup.controllers").write_text("cpu\n")
    assert group_of(ENVIRONMENT, tmp_path) == group


@pytest.mark.parametrize(
    "changed", [{"SLURM_JOB_ID": ""}, {"SLURM_JOB_UID": "../1"}, {"SLURMD_NODENAME": "a/b"}]
)
def test_an_incomplete_environment_is_refused(changed: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "freezer" / "slurm").mkdir(parents=True)
    with pytest.raises(JobError):
        group_of(ENVIRONMENT | changed, tmp_path)


def test_a_node_without_control_groups_is_named(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="proctrack/cgroup"):
        group_of(ENVIRONMENT, tmp_path)
    with pytest.raises(JobError, match="from Slurm's prolog"):
        job_of({})


class FakeClient:
    def __init__(self, *names: str) -> None:
        self.workloads = {
            name: {"name": name, "cgroup": f"/x/job_{name[6:]}", "added_at_run_time": True} for name in names
        }
        self.is_away = False

    def get(self, _: str) -> Any:
        if self.is_away:
            raise Unreachable("away")
        return {"workloads": list(self.workloads.values())}

    def send(self, method: str, route: str, body: Any = None) -> Any:
        assert method == "DELETE"
        if self.workloads.pop(route.removeprefix("workloads/"), None) is None:
            raise Refused(404, {})


def test_an_undeclared_job_is_left_alone_without_asking_the_daemon() -> None:
    client: Any = FakeClient()
    client.is_away = True
    assert hand_over(client, ENVIRONMENT, Declarations()) == "job 7 is not declared"


async def test_a_job_is_removed_at_the_second_look_without_it() -> None:
    client: Any = FakeClient("slurm-7", "slurm-8", "slurm-x")
    del client.workloads["slurm-x"]["cgroup"]  # found by a match, and awaited
    there = frozenset({"7", "8"})

    async def jobs() -> frozenset[str]:
        return there

    watch = JobWatch(client, jobs)
    await watch.round()
    there = frozenset({"8"})
    await watch.round()
    client.is_away = True
    await watch.round()
    client.is_away = False
    assert set(client.workloads) == {"slurm-7", "slurm-8", "slurm-x"}
    await watch.round()
    await watch.round()
    assert set(client.workloads) == {"slurm-8", "slurm-x"}
