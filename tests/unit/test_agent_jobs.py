"""Runs of batch as the daemon follows them, and what is read of a job when it begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from perphd.agent.jobs import MOST_ENDED, Jobs
from perphd.domain.job import EndedJob
from perphd.domain.reading import NOT_MEASURED, Reading
from perphd.domain.sample import Quality, Sample
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.host.cgroup import discover
from perphd.host.fs import RealFs
from perphd.host.job_facts import FirstProcess, JobFacts

FIRST, GONE, RESTARTED = (Quality.FIRST,), (Quality.GONE,), (Quality.FIRST, Quality.RESTARTED)


class Host:
    """One batch workload, sampled once a second."""

    def __init__(self, tmp_path: Path, kind: Kind = Kind.BATCH) -> None:
        for path, text in {
            "proc/self/mounts": "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n",
            "sys/fs/cgroup/cgroup.controllers": "memory cpu\n",
            "sys/fs/cgroup/system.slice/train@7.service/cgroup.procs": "11\n12\n",
            "proc/11/stat": f"11 (sh) S {' '.join(['0'] * 18)} 500 0\n",
            "proc/12/stat": f"12 (a) b) S {' '.join(['0'] * 18)} 300 0\n",
            "proc/12/status": "Name:\ta\nUid:\t1000\t1000\t1000\t1000\n",
            "proc/12/cmdline": "/opt/train.py\0--seed=4\0",
        }.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
        fs = RealFs(str(tmp_path))
        self.facts = JobFacts(fs, discover(fs))
        self.spec = WorkloadSpec(
            "train-7", kind, "/system.slice/train@7.service", reserved_memory_bytes=1 << 30
        )
        self.jobs, self.now_s = Jobs(self.facts, lambda: 0.0, way_bytes=1e6), 0.0

    def look(self, *quality: Quality, seconds: int = 1, cores: Reading = 2.0, threads: Reading = 3.0,
             mips: Reading = 100.0) -> None:  # fmt: skip
        for _ in range(seconds):
            self.now_s += 1.0
            sample = Sample(
                "train-7", self.now_s, 0.0 if quality else 1.0, cpu_usage_cores=cores, threads=threads, mips=mips,
                memory_current_bytes=1e6 * self.now_s, llc_occupancy_bytes=2.2e6, mbw_bytes_per_s=5e8,
                quality=tuple(quality),
            )  # fmt: skip
            self.jobs.follow([self.spec], {"train-7": sample}, lambda _: "train", self.now_s)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    found = Host(tmp_path)
    found.look(*GONE)
    return found


def test_a_run_from_its_begin_to_its_end(host: Host) -> None:
    host.look(*FIRST)
    host.look(seconds=10, cores=1.0)
    host.look(seconds=20, cores=2.0)
    host.look(*GONE)
    (job,) = host.jobs.take()
    assert (job.name, job.image, job.uid) == ("train", "train@7.service", 1000)
    assert (job.argv, job.requested_bytes, job.requested_cores) == (
        ("/opt/train.py", "--seed=4"),
        2.0**30,
        None,
    )
    assert job.took == pytest.approx(
        {
            "run_time_s": 30.0,
            "cpu_time_s": 50.0,
            "memory_bytes": 32e6,
            "instructions": 3e9,
            "enough_cores": 2.0,
            "enough_ways": 3.0,
            "enough_bytes_per_s": 5e8,
        }
    )
    assert host.jobs.take() == []


def test_a_run_whose_begin_nobody_saw_does_not_count(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.look(*FIRST)
    host.look(seconds=30)
    host.look(*RESTARTED)  # this one is seen whole
    assert host.jobs.take() == []
    host.look(seconds=8)
    host.look(*GONE)
    assert [job.took["run_time_s"] for job in host.jobs.take()] == [8.0]


def test_processes_that_come_and_go_in_a_group_that_stays_are_runs(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.look(*FIRST, threads=0.0)
    for seconds in (20, 30):
        host.look(seconds=seconds)
        host.look(seconds=5, threads=0.0)
    assert [job.took["run_time_s"] for job in host.jobs.take()] == [19.0, 29.0]


def test_what_was_too_short_or_ended_by_force_or_counted_in_part_is_left_out(host: Host) -> None:
    host.look(*FIRST)
    host.look(seconds=4)
    host.look(*RESTARTED)
    host.look(seconds=20)
    host.jobs.by_force(["train-7", "other"])
    host.look(*RESTARTED)
    host.look(seconds=20, mips=NOT_MEASURED)
    host.look(seconds=10)
    host.look(*GONE)
    (job,) = host.jobs.take()
    assert job.took["run_time_s"] == 30.0
    assert "instructions" not in job.took


def test_lras_have_no_runs_and_a_workload_off_the_list_is_forgotten(tmp_path: Path) -> None:
    lra = Host(tmp_path, Kind.LRA)
    lra.look(*GONE)
    lra.look(*FIRST)
    lra.look(seconds=10)
    lra.look(*GONE)
    assert lra.jobs.take() == []
    batch = Host(tmp_path)
    batch.look(*GONE)
    batch.look(*FIRST)
    batch.look(seconds=10)
    batch.jobs.follow([], {}, str, 99.0)
    batch.look(*GONE)
    assert batch.jobs.take() == []


def test_of_many_that_end_at_once_some_are_handed_over(host: Host) -> None:
    found: list[EndedJob] = []
    for _ in range(3 * MOST_ENDED):
        host.look(*FIRST)
        host.look(seconds=6)
        host.look(*GONE)
    found = host.jobs.take()
    assert len(found) == MOST_ENDED
    host.look(*FIRST)
    host.look(seconds=6)
    host.look(*GONE)
    assert len(host.jobs.take()) == 1


def test_the_first_process_is_the_oldest_that_can_be_read(host: Host, tmp_path: Path) -> None:
    assert host.facts.first_process("/system.slice/train@7.service") == FirstProcess(
        1000, ("/opt/train.py", "--seed=4")
    )
    (tmp_path / "proc/12/status").unlink()  # it ends meanwhile, and so does the other
    assert host.facts.first_process("/system.slice/train@7.service") is None
    assert host.facts.first_process("/gone.slice") is None
    assert host.facts.image("/user.slice/x") == ""
