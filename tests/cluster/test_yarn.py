"""perphd-yarn on a real ResourceManager with two NodeManagers: capacity, containers, and restarts of every part."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from perphd.cluster.document import NodeAmounts, NodeDocument
from perphd.domain.workload import Mode
from perphd.host.yarn import PUBLISHED_CONTAINERS
from perphd.sim.events import Departure
from tests.cluster.node_daemon import NodeDaemon, wait
from tests.cluster.world import Daemon
from tests.unit.test_cluster_extender import GIB, document
from tools.cluster.engines import NoProgram
from tools.cluster.hosts import MACHINE, SimulatedNode
from tools.cluster.yarn import CORES, LICENCE, LICENCES, MEMORY_MB, Yarn

pytestmark = [pytest.mark.requires_root, pytest.mark.requires_cgroup_v1("cpu", "memory")]

LONG_S = 120.0
"""A NodeManager's restart, or an application's start, on a busy machine."""
CPU = Path("/sys/fs/cgroup/cpu")
SHARES = 1024
"""What YARN gives a container of one vcore."""


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yarn]:
    try:
        cluster = Yarn(tmp_path_factory.mktemp("yarn"), cgroup=f"/perphd-test-yarn-{os.getpid()}")
    except NoProgram as exc:
        pytest.skip(str(exc))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


ENDS = "import time\nend_s = time.monotonic() + 900\nwhile time.monotonic() < end_s:\n"
"""A container ends by itself, should a test not end it. A process group of its own would outlive its container."""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What containers run: nothing, bursts that feel neighbours, and all the CPU time that they get."""
    folder = tmp_path_factory.mktemp("scripts")
    for name, command in (
        ("sleep", "exec sleep 900"),
        ("bursts", f"exec {sys.executable} -c '{ENDS}    sum(range(20000))\n    time.sleep(0.002)'"),
        ("spin", f"exec {sys.executable} -c '{ENDS}    pass'"),
    ):
        (folder / name).write_text(f"#!/bin/sh\n{command}\n")
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture
def labels() -> Iterator[Path]:
    """The file where the daemon looks for labels."""
    folder = Path(PUBLISHED_CONTAINERS).parent
    if folder.exists():
        pytest.skip(f"{folder} is in use on this host")
    folder.mkdir()
    try:
        yield Path(PUBLISHED_CONTAINERS)
    finally:
        shutil.rmtree(folder)


class Offers:
    """A daemon whose document this test writes, served by a thread of its own."""

    def __init__(self, path: Path) -> None:
        base = document()
        capacity = NodeAmounts(8.0, 8.0 * GIB)
        none = replace(base.used, cpus=0.0, memory_bytes=0.0)
        self.daemon = Daemon(path, replace(base, capacity=capacity, used=none))
        self.offer(0.0, 0.0)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._site: Any = None

    def offer(self, cpus: float, gib: float) -> None:
        before = self.daemon.document
        copper = replace(before.copper, offered=NodeAmounts(cpus, gib * GIB))
        # A far end: nothing here depends on the time that the test takes.
        self.daemon.document = replace(
            before, generation=before.generation + 1, copper=copper, made_unix_s=4e9
        )

    def __enter__(self) -> Offers:
        self._thread.start()
        self.come()
        return self

    def come(self) -> None:
        self._site = self.daemon.running()
        asyncio.run_coroutine_threadsafe(self._site.__aenter__(), self._loop).result(30)

    def go(self) -> None:
        asyncio.run_coroutine_threadsafe(self._site.__aexit__(None, None, None), self._loop).result(30)

    def __exit__(self, *_: object) -> None:
        self.go()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()


def program(yarn: Yarn, command: str, number: int, *options: str) -> list[str]:
    return [
        sys.executable, "-m", "perphd.adapters.yarn.program", command, "--node", yarn.node_id(number),
        "--resource-manager", "http://127.0.0.1:1", "--resource-manager", yarn.url, *options,
    ]  # fmt: skip


@contextmanager
def publishing(yarn: Yarn, socket: Path, log: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """The program beside the daemon of node 1."""
    more = ("--period", "0.5", "--socket", str(socket), "--lra", "yarn.queue=services", *options)
    with log.open("ab") as file:
        process = subprocess.Popen(program(yarn, "run", 1, *more), stderr=file)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            assert process.wait(30) == 0, log.read_text()


def node(yarn: Yarn, number: int = 1) -> dict[str, Any]:
    return dict(yarn.get(f"cluster/nodes/{yarn.node_id(number)}")["node"])


def capacity(yarn: Yarn) -> tuple[int, int]:
    try:
        total = node(yarn)["totalResource"]
    except OSError:  # the ResourceManager is away, or does not know the node yet
        return -1, -1
    return total["memory"], total["vCores"]


def has(yarn: Yarn, memory_mb: int, vcores: int) -> bool:
    return capacity(yarn) == (memory_mb, vcores)


def becomes(yarn: Yarn, memory_mb: int, vcores: int) -> None:
    wait(partial(has, yarn, memory_mb, vcores), f"not {memory_mb} MiB, {vcores} vcores", LONG_S)


def containers(yarn: Yarn, number: int = 1) -> int:
    return int(node(yarn, number)["numContainers"])


def test_capacity_follows_the_offer_and_every_part_restarts(
    yarn: Yarn, scripts: Path, tmp_path: Path
) -> None:
    log = tmp_path / "perphd-yarn.log"
    with Offers(tmp_path / "node.sock") as offers:
        # A node with a further resource type is refused, because this interface would set it to 0.
        refused = subprocess.Popen(
            program(yarn, "run", 2, "--period", "0.5", "--socket", str(offers.daemon.path)),
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert refused.stderr is not None
        said = ""
        while LICENCE not in said:
            said = refused.stderr.readline()
            assert said, "it ended without naming the resource type"
        refused.send_signal(signal.SIGTERM)
        refused.communicate(timeout=30)
        assert LICENCES in [
            each["value"]
            for each in node(yarn, 2)["totalResource"]["resourceInformations"]["resourceInformation"]
        ]
        yarn.stop("nm2")  # from here on everything runs on node 1

        offers.offer(3.0, 3.0)
        with publishing(yarn, offers.daemon.path, log) as process:
            becomes(yarn, 3072, 3)
            yarn.submit(str(scripts / "sleep"), "services", "service")
            becomes(yarn, 3072 + 256, 4)  # what the LRA holds, and copper's offer
            yarn.distributed_shell(scripts / "sleep", "batch", 2)
            wait(lambda: containers(yarn) == 4, "the batch application did not come", LONG_S)
            offers.offer(1.0, 1.0)
            becomes(yarn, 1024 + 256, 2)
            assert containers(yarn) == 4  # what runs keeps running
            assert node(yarn)["availableVirtualCores"] == -2
            offers.offer(4.0, 2.0)
            becomes(yarn, 2048 + 256, 5)
            offers.go()
            becomes(yarn, 256, 1)  # nobody protects the LRA from new copper
            offers.come()
            becomes(yarn, 2048 + 256, 5)

            process.kill()
            process.wait()
            offers.offer(2.0, 2.0)
        assert has(yarn, 2048 + 256, 5)
        with publishing(yarn, offers.daemon.path, log):
            becomes(yarn, 2048 + 256, 3)
            yarn.kill_apps()
            becomes(yarn, 2048, 2)
            yarn.stop("nm1")
            yarn.start_node(1)
            wait(
                lambda: log.read_text().count("2048 MiB, 2 vcores, was 4096 MiB, 4 vcores") == 1,
                "forgotten",
                LONG_S,
            )
            becomes(yarn, 2048, 2)
            yarn.kill("rm")
            offers.offer(1.0, 1.0)
            yarn.start_resource_manager()
            becomes(yarn, 1024, 1)
        done = subprocess.run(program(yarn, "withdraw", 1), capture_output=True, text=True, check=True)
        assert f"{MEMORY_MB} MiB, {CORES} vcores" in done.stdout
        assert has(yarn, MEMORY_MB, CORES)


def test_capacity_follows_the_headroom_that_the_daemon_itself_measures(yarn: Yarn, tmp_path: Path) -> None:
    """The agent on a simulated host of 16 cores: nobody but it decides what copper is offered."""
    place, log = "lra-kafka-stream", tmp_path / "perphd-yarn.log"
    yarn.stop("nm2")
    host, loop = SimulatedNode("yarn-1", Mode.ENFORCE, 1, tmp_path / "state"), asyncio.new_event_loop()
    seconds = count(1)

    async def passed(ticks: int) -> NodeDocument:
        for _ in range(ticks):
            await host.tick(float(next(seconds)))
        return replace(await host.document(), made_unix_s=4e9)

    with Offers(tmp_path / "node.sock") as offers:

        def lives(ticks: int = 10) -> int:
            """Time passes on the host, and YARN's virtual cores on it come to what the agent offers now.

            Changes of less than 2 % of the host wait, which may be one core after rounding.
            """
            document = offers.daemon.document = loop.run_until_complete(passed(ticks))
            offered = document.copper.offered.cpus
            assert isinstance(offered, float)
            wait(
                lambda: abs(capacity(yarn)[1] - int(offered)) <= 1,
                f"not {offered:.2f} vcores: {capacity(yarn)}, {log.read_text()}", LONG_S,
            )  # fmt: skip
            return capacity(yarn)[1]

        try:
            with publishing(yarn, offers.daemon.path, log):
                assert lives() >= MACHINE.cpus - 1
                loop.run_until_complete(host.start_lra("service", "kafka-stream", 0.4))
                quiet = lives(20)
                host.set_load(place, 1.2)
                busy = lives()
                assert busy <= quiet - 2
                assert busy <= MACHINE.cpus - host.host.outcome(place).usage_cores + 1
                host.start_copper("crunch", "batch-stream", 8, 1e6)  # it disturbs the service
                confined = min(lives(5) for _ in range(6))
                assert confined <= busy - 2, "the agent confines copper, and offers no more than that"
                host.set_load(place, 0.2)
                host.host.happen(Departure(0.0, host.pods["crunch"]))
                assert any(lives() >= confined + 2 for _ in range(30)), "capacity does not grow again"
        finally:
            loop.run_until_complete(host.stop())
            loop.close()
    subprocess.run(program(yarn, "withdraw", 1), capture_output=True, check=True)


def test_containers_are_confined_and_released(
    yarn: Yarn, scripts: Path, tmp_path: Path, labels: Path
) -> None:
    yarn.stop("nm2")
    daemon = NodeDaemon(tmp_path / "perphd", """
[[lra]]
name = "service"
match = "label:yarn.queue=services"
[[batch]]
name = "crunch"
match = "label:yarn.queue=batch"
""")  # fmt: skip
    group = CPU / yarn.hierarchy(1).lstrip("/")
    log = tmp_path / "perphd-yarn.log"

    def shares() -> dict[str, int]:
        found = {}
        for path in group.glob("container_*"):
            if (path / "cgroup.procs").read_text().strip():
                found[path.name] = int((path / "cpu.shares").read_text())
        return found

    def confined(apps: tuple[str, ...]) -> dict[str, int]:
        """Groups of these applications whose weight perphd has lowered."""
        marks = tuple(app.replace("application", "container") for app in apps)
        return {name: value for name, value in shares().items() if name.startswith(marks) and value < SHARES}

    def workloads() -> set[str]:
        client = daemon.client()
        return {each["name"] for each in client.get("workloads")["workloads"]} if client else set()

    try:
        with Offers(tmp_path / "node.sock") as offers:
            offers.offer(4.0, 4.0)
            options = ("--containers", str(labels), "--hierarchy", yarn.hierarchy(1))
            with publishing(yarn, offers.daemon.path, log, *options) as process:
                service = yarn.submit(str(scripts / "bursts"), "services", "service")
                yarn.distributed_shell(scripts / "spin", "batch", 1)
                wait(lambda: len(shares()) == 3, "the containers did not come", LONG_S)
                batch = service[:-4] + f"{int(service[-4:]) + 1:04}"
                daemon.start()
                wait(lambda: len(confined((batch,))) == 2, "batch is not confined")
                assert shares().keys() - confined((batch,)).keys() == {
                    f"{service.replace('application', 'container')}_01_000001"
                }
                assert sum(name.startswith("crunch.") for name in workloads()) == 2
                process.kill()
                process.wait()
            with publishing(yarn, offers.daemon.path, log, *options):
                assert len(confined((batch,))) == 2  # labels stay while their publisher is away
                daemon.kill()
                assert len(confined((batch,))) == 2
                daemon.start()
                wait(lambda: len(confined((batch,))) == 2, "batch is not confined after a restart")
                daemon.stop()
                assert set(shares().values()) == {SHARES}  # released
                daemon.start()
                wait(lambda: len(confined((batch,))) == 2, "batch is not confined again")

                yarn.stop("nm1")  # ends its containers
                wait(lambda: not shares(), "containers outlived their node")
                wait(
                    lambda: not any(name.startswith("crunch.") for name in workloads()),
                    "ended containers stay",
                )
                yarn.start_node(1)
                yarn.kill("rm")
                yarn.start_resource_manager()
                yarn.wait_for_nodes(1)
                again = yarn.submit(str(scripts / "spin"), "batch", "batch")
                wait(lambda: len(shares()) == 1, "the new container did not come", LONG_S)
                yarn.submit(
                    str(scripts / "bursts"), "services", "service"
                )  # alone, batch may do what it likes
                wait(lambda: len(confined((again,))) == 1, "a new container is not confined", LONG_S)
        # The daemon itself offers: the capacity is what its document says.
        subprocess.run(program(yarn, "withdraw", 1), capture_output=True, check=True)
        with publishing(yarn, daemon.socket, log, *options):
            client = daemon.client()
            assert client is not None
            wait(
                lambda: capacity(yarn) != (MEMORY_MB, CORES), "the daemon's document is not published", LONG_S
            )
            assert capacity(yarn)[0] <= 0.8 * client.get("node")["capacity"]["memory_bytes"] / 2**20
        daemon.stop()
        assert set(shares().values()) == {SHARES}
    finally:
        daemon.end()
        yarn.kill_apps()
