"""The publisher of Slurm on a real controller with two nodes: cores follow the offer, jobs and restarts stay safe."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perphd.adapters.node_socket import NodeSocket
from perphd.adapters.slurm.publisher import SlurmError, SlurmPublisher, checked_node, cores_to_hold, node_of
from perphd.cluster.document import NodeAmounts, NodeDocument
from tests.cluster.world import Daemon, background, until
from tests.unit.test_cluster_extender import GIB, document
from tools.cluster.engines import NoProgram
from tools.cluster.slurm import CORES, Slurm

PERIOD_S = 0.5
NODE = (
    "NodeName=n1 Arch=x86_64 CoresPerSocket=4 CPUAlloc=0 CPUEfctv=8 CPUTot=8 CPULoad=0.1 NodeAddr=127.0.0.1 Sockets=1 "
    "Boards=1 State=IDLE ThreadsPerCore=2 Comment=perphd:Headroom:4000m Partitions=batch"
)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    try:
        cluster = Slurm(tmp_path_factory.mktemp("slurm"))
    except NoProgram as exc:
        pytest.skip(str(exc))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
async def daemon(slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Daemon]:
    for name in ("SLURM_CONF", "PATH"):
        monkeypatch.setenv(name, slurm.environment[name])
    daemon = Daemon(tmp_path / "perphd.sock", document(made=1.0))
    offer(daemon, 3.0)
    async with daemon.running():
        yield daemon
    await SlurmPublisher("n1", NodeSocket(str(daemon.path)).document, 1.0).withdraw()


def offer(daemon: Daemon, cpus: float) -> None:
    made = daemon.document.made_unix_s + 1
    copper = replace(daemon.document.copper, offered=NodeAmounts(cpus, 8 * GIB))
    daemon.document = replace(daemon.document, made_unix_s=made, copper=copper)


@contextlib.asynccontextmanager
async def publishing(daemon: Daemon) -> AsyncIterator[SlurmPublisher]:
    publisher = SlurmPublisher("n1", NodeSocket(str(daemon.path)).document, PERIOD_S)
    async with background(publisher.run()):
        yield publisher


async def held(publisher: SlurmPublisher, cores: int) -> bool:
    try:
        return len((await publisher.seen()).held) == cores
    except SlurmError:
        return False


async def jobs(slurm: Slurm, state: str) -> int:
    listed = await asyncio.to_thread(slurm.run, "squeue", "-h", "-t", state, "-o", "%i")
    return len(listed.split())


async def test_cores_follow_the_offer_and_jobs_stay(slurm: Slurm, daemon: Daemon) -> None:
    async def running(wanted: int) -> bool:
        return await jobs(slurm, "running") == wanted

    async with publishing(daemon) as publisher:
        await until(lambda: held(publisher, CORES - 3))
        for _ in range(4):
            await asyncio.to_thread(
                slurm.run, "sbatch", "-w", "n1", "-n1", "-o", "/dev/null", "--wrap", "sleep 120"
            )
        await until(lambda: running(3))
        assert await jobs(slurm, "pending") == 1
        offer(daemon, 1.0)
        await until(lambda: held(publisher, CORES - 1))
        assert await jobs(slurm, "running") == 3  # what runs keeps running
        offer(daemon, 4.0)
        await until(lambda: held(publisher, 0))
        await until(lambda: running(4))

        await asyncio.to_thread(slurm.stop, "controller")
        offer(daemon, 2.0)
        await asyncio.sleep(2.0)
        await asyncio.to_thread(slurm.start_controller)
        await until(lambda: held(publisher, CORES - 2), 60.0)
        assert await jobs(slurm, "running") == 4
        await asyncio.to_thread(slurm.run, "scancel", "-u", "root")
        foreign = (await publisher.seen()).held
        await asyncio.to_thread(slurm.run, "scontrol", "delete", f"reservation=perphd_n1_{min(foreign)}")
        await until(lambda: held(publisher, CORES - 2))  # somebody else deleted one

    daemon.path.unlink()
    async with publishing(daemon) as publisher:
        await until(lambda: held(publisher, CORES))  # no daemon: nothing for copper
        assert (await publisher.seen()).comment == "perphd:NoDaemon:0m"
        await publisher.withdraw()
    assert "perphd_n1" not in slurm.run("scontrol", "show", "reservation", "--oneliner")


def test_what_scontrol_says_is_read() -> None:
    reservations = "\n".join(
        f"ReservationName={name} StartTime=x Nodes=n1"
        for name in ("perphd_n1_0", "perphd_n1_7", "perphd_n10_1", "mine")
    )
    node = node_of("n1", NODE, reservations)
    assert (node.cpus, node.cores, node.comment, node.held) == (
        8,
        4,
        "perphd:Headroom:4000m",
        frozenset({0, 7}),
    )
    assert [cores_to_hold(node, milli) for milli in (0, 1999, 2000, 5000, 8000, 99000)] == [4, 4, 3, 2, 0, 0]
    with pytest.raises(SlurmError):
        node_of("n1", "No reservations in the system", "")


class Recorded:
    """A controller that answers as scontrol does, and what was written to it."""

    def __init__(self, comment: str, held: int) -> None:
        self.node = NODE.replace("perphd:Headroom:4000m", comment)
        self.held = "\n".join(f"ReservationName=perphd_n1_{number}" for number in range(held))
        self.written: list[tuple[str, ...]] = []

    async def __call__(self, *arguments: str) -> str:
        if arguments[0] == "show":
            return self.node if arguments[1] == "node" else self.held
        self.written.append(arguments)
        return ""


async def test_a_comment_of_somebody_else_stays_and_a_restart_raises_no_offer_at_its_first_look() -> None:
    made = document()
    made = replace(made, copper=replace(made.copper, offered=NodeAmounts(8.0, 8 * GIB)))

    async def look() -> NodeDocument:
        return made

    controller = Recorded("disk_is_being_replaced", 3)
    publisher = SlurmPublisher("n1", look, 1.0, controller)
    await publisher.round()
    assert controller.written == []
    await publisher.round()
    assert [each[0] for each in controller.written] == ["delete"] * 3
    await publisher.withdraw()
    assert not any("Comment" in word for each in controller.written for word in each)


@pytest.mark.parametrize("name", ["", "n1 n2", "n[1-4]", "-x", "n1;reboot", "ALL\n"])
def test_only_one_node_is_meant(name: str) -> None:
    with pytest.raises(SlurmError):
        checked_node(name)


async def test_without_slurm_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    async def look() -> Any:
        return document()

    with pytest.raises(SlurmError, match="cannot be started"):
        await SlurmPublisher("n1", look, 1.0).round()
