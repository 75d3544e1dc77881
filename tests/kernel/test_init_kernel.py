"""perphctl init on this machine: a real Redis and a niced job in groups of their own are recognised and measured."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from perphd.agent.proposal import config_text, propose
from perphd.commands.init_check import answers, measure
from perphd.domain.workload import Kind
from perphd.host.cgroup import discover
from perphd.host.cgroup.group import Cgroups
from perphd.host.fs import RealFs
from perphd.host.survey import survey

pytestmark = pytest.mark.requires_root
NAME = "perphd-test-init"


@pytest.fixture
def groups() -> Iterator[dict[str, list[Path]]]:
    """Two groups in every hierarchy, and what lies in them is killed at the end."""
    fs = RealFs()
    trees = discover(fs).all()
    if not trees:
        pytest.skip("needs a writable control group hierarchy")
    made: dict[str, list[Path]] = {"redis": [], "job": []}
    try:
        for tree in trees:
            for name, paths in made.items():
                path = Path(tree.mount, f"{NAME}-{name}")
                try:
                    path.mkdir()
                except OSError as exc:
                    pytest.skip(f"{path}: {exc.strerror}")
                paths.append(path)
                for knob in ("cpuset.mems", "cpuset.cpus"):
                    if tree.version == 1 and (path / knob).exists():
                        (path / knob).write_text(Path(tree.mount, knob).read_text())
        yield made
    finally:
        for path in [path for paths in made.values() for path in paths]:
            for _ in range(100):
                try:
                    path.rmdir()
                    break
                except OSError:
                    time.sleep(0.05)


def started(argv: list[str], paths: list[Path]) -> subprocess.Popen[bytes]:
    """The program in these groups from its beginning."""
    moves = "; ".join(f"echo $$ > {path}/cgroup.procs" for path in paths)
    return subprocess.Popen(
        ["/bin/sh", "-c", f'{moves}; exec "$@"', "sh", *argv],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def test_a_redis_and_a_job_are_proposed_and_measured(groups: dict[str, list[Path]], tmp_path: Path):
    if shutil.which("redis-server") is None:
        pytest.skip("needs redis-server (Debian package redis-server)")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    redis = ["redis-server", "--port", str(port), "--save", "", "--dir", str(tmp_path)]
    job = ["nice", "-n", "19", sys.executable, "-c", "while True: pass"]
    running = [started(redis, groups["redis"]), started(job, groups["job"])]
    try:
        for _ in range(200):
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        fs = RealFs()
        hierarchies = discover(fs)
        facts = survey(fs, hierarchies, frozenset(), tcp_latency=False, over_s=2.0)
        proposal = propose(facts)
        found = {item.cgroup: item for item in proposal.workloads}
        server = found[f"/{NAME}-redis"]
        assert (server.spec.kind, server.sure, server.spec.app_class) == (Kind.LRA, True, "cache")
        assert server.spec.sli is not None
        assert server.spec.sli.get("port") == str(port)
        measured = {item.name: item for item in asyncio.run(measure([server], hierarchies))}
        assert answers(measured[server.spec.name]), measured
        group = next(group for group in facts.groups if group.cgroup == f"/{NAME}-job")
        assert group.main is not None
        assert group.main.nice == 19
        assert group.cpu_cores > 0  # how much is the host's to say
        if group.cpu_cores >= 0.2:
            assert (found[group.cgroup].spec.kind, found[group.cgroup].sure) == (Kind.BATCH, True)
        assert f"/{NAME}-redis" in config_text(proposal)
        assert Cgroups(fs, hierarchies).group(f"/{NAME}-redis").directories()
    finally:
        for process in running:
            process.kill()
            process.wait()
