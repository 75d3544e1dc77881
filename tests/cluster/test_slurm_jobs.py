"""Jobs of a real Slurm in control groups: the shipped prolog and epilog hand them to the real daemon and back."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.cluster.node_daemon import NodeDaemon, wait
from tools.cluster.engines import NoProgram
from tools.cluster.slurm import Slurm

pytestmark = [
    pytest.mark.requires_root,
    pytest.mark.requires_cgroup_v1("cpuset", "freezer"),
    pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two CPUs to confine a job to one"),
]

SCRIPTS = Path(__file__).parents[2] / "packaging" / "slurm"
CPUSET = Path("/sys/fs/cgroup/cpuset")


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[NodeDaemon]:
    # An LRA that does not run: without any, nothing is divided.
    daemon = NodeDaemon(
        tmp_path / "perphd",
        f'[[lra]]\nname = "service"\ncgroup = "/perphd-test-none-{os.getpid()}"\n',
        "static",
    )
    try:
        yield daemon
    finally:
        daemon.end()


def scripts(folder: Path, socket: Path) -> Path:
    """The shipped scripts, which call this checkout's program and read settings of this test."""
    folder.mkdir()
    program = folder / "perphd-slurm"
    program.write_text(
        f"#!/bin/sh\ncommand=$1; shift\nexec {sys.executable} -m perphd.adapters.slurm.program "
        f'"$command" --socket {socket} "$@"\n'
    )
    (folder / "slurm.env").write_text('PERPHD_SLURM_JOBS="--batch-partition nightly --comment batch"\n')
    for name in ("prolog", "epilog"):
        text = (SCRIPTS / name).read_text()
        assert "/usr/bin/perphd-slurm" in text
        text = text.replace("/usr/bin/perphd-slurm", str(program)).replace(
            "/etc/perphd/slurm.env", str(folder / "slurm.env")
        )
        (folder / name).write_text(text)
    for path in folder.iterdir():
        path.chmod(0o755)
    return folder


@pytest.fixture
def slurm(tmp_path: Path, daemon: NodeDaemon) -> Iterator[Slurm]:
    try:
        cluster = Slurm(tmp_path / "slurm", scripts=scripts(tmp_path / "scripts", daemon.socket))
    except NoProgram as exc:
        pytest.skip(str(exc))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def submit(slurm: Slurm, comment: str = "", node: str = "n1") -> str:
    """A job of two CPUs; returns its number."""
    said = slurm.run(
        "sbatch", "-w", node, "-N1", "-n2", "-o", "/dev/null", "--comment", comment, "--wrap", "sleep 300"
    )
    assert said, "the job was not submitted"
    return said.split()[-1]


def group(job: str, node: str = "n1") -> Path:
    return CPUSET / f"slurm_{node}" / "uid_0" / f"job_{job}"


def cpus(job: str, node: str = "n1") -> str:
    try:
        return (group(job, node) / "cpuset.cpus").read_text().strip()
    except OSError:
        return ""


def is_confined(job: str, confined: str) -> bool:
    return cpus(job, "n2") == confined


def has_ended(job: str) -> bool:
    return not group(job, "n2").exists()


def jobs(daemon: NodeDaemon) -> set[str]:
    client = daemon.client()
    assert client is not None
    return {each["name"] for each in client.get("workloads")["workloads"] if each["kind"] == "batch"}


def test_jobs_are_confined_and_released_over_restarts(
    slurm: Slurm, daemon: NodeDaemon, tmp_path: Path
) -> None:
    daemon.start()
    job, second, other = (
        submit(slurm, "night perphd=batch"),
        submit(slurm, "perphd=batch", "n2"),
        submit(slurm, "", "n2"),
    )
    wait(lambda: cpus(job) and cpus(other, "n2") and cpus(second, "n2"), "the jobs do not run")
    whole, untouched = (group(job).parent / "cpuset.cpus").read_text().strip(), cpus(other, "n2")
    wait(
        lambda: cpus(job) not in ("", whole) and cpus(second, "n2") not in ("", whole),
        "jobs are not confined",
    )
    assert jobs(daemon) == {f"slurm-{job}", f"slurm-{second}"}
    confined = cpus(job)

    # Restarts of Slurm's daemons: the jobs go on, confined as before.
    slurm.stop("controller", "n1")
    slurm.start_controller()
    slurm.start_node(1)
    wait(
        lambda: slurm.run("sinfo", "-h", "-n", "n1", "-o", "%t").strip() in ("mix", "alloc"), "n1 is not back"
    )
    assert cpus(job) == confined
    daemon.kill()
    daemon.start()
    wait(lambda: cpus(job) == confined, "not confined after the daemon's crash")
    daemon.stop()
    assert cpus(job) == whole  # released
    assert cpus(other, "n2") == untouched
    daemon.start()
    wait(lambda: cpus(job) == confined, "the daemon has forgotten the job")

    # The epilog hands a job back, whose group is gone.
    slurm.run("scancel", job)
    wait(lambda: jobs(daemon) == {f"slurm-{second}"}, "the job is not handed back")

    # An epilog that finds no daemon: the publisher removes what is left, before and after its own restart.
    for each in (second, ""):
        left = each or submit(slurm, "perphd=batch", "n2")
        if not each:
            wait(partial(is_confined, left, confined), "a new job is not confined")
        daemon.stop()
        slurm.run("scancel", left)
        wait(partial(has_ended, left), "the job does not end")
        daemon.start()
        assert jobs(daemon) == {f"slurm-{left}"}
        publish = [sys.executable, "-m", "perphd.adapters.slurm.program"]
        process = subprocess.Popen(
            [*publish, "run", "--node", "n2", "--period", "0.3", "--socket", str(daemon.socket)],
            env=slurm.environment,
        )
        try:
            wait(lambda: jobs(daemon) == set(), "the job stays")
        finally:
            process.terminate()
            assert process.wait(30) == 0
        subprocess.run([*publish, "withdraw", "--node", "n2"], env=slurm.environment, check=True)
    daemon.stop()


def test_a_prolog_without_a_daemon_stops_no_job(slurm: Slurm, daemon: NodeDaemon) -> None:
    job = submit(slurm, "perphd=lra")  # nor does a kind that jobs may not have
    wait(lambda: cpus(job), "the job does not run")
    daemon.start()
    refused = submit(slurm, "perphd=lra")
    wait(lambda: cpus(refused), "the job does not run")
    assert jobs(daemon) == set()
    assert "drain" not in slurm.run("sinfo", "-h", "-N", "-o", "%T")
    slurm.run("scancel", job, refused)
    daemon.stop()
