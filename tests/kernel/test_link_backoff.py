"""Back-off from a real link: an LRA beside a hog gets its bandwidth back within three rounds, in namespaces of its own.

v0 of the LRA's and the hog's namespace -> a router that lets 80 Mbit/s pass -> the receiver's
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from perphd.agent.devices.hints import hints_file
from perphd.control.client import Client, Unreachable
from perphd.qos.contention import SAMPLES
from tests.kernel.backoff_groups import best_round, make_groups, remove_groups
from tests.kernel.network_namespace import inside, shell, why_not

pytestmark = [
    pytest.mark.requires_root,
    pytest.mark.requires_cgroup_v2(),
    pytest.mark.flaky(reruns=2, reruns_delay=5),  # others use this machine's CPUs
]
ROOT = Path(__file__).parents[2]
LOAD = str(Path(__file__).with_name("link_load.py"))
HOST, VICTIM_PORT, HOG_PORT = "10.9.1.2", 7001, 7002
LINK_MBIT = 80
SOLO_S, TOGETHER_S, READY_S = 8.0, 24.0, 120.0
CONFIG = """
[daemon]
mode = "{mode}"
period_s = 0.5
state_dir = "{state}"
socket = "{state}/perphd.sock"
[tuning.daemon]
policy = "none"
[store]
enabled = false
[network]
devices = "v0"
[contention]
devices = "links"
[[lra]]
name = "victim"
cgroup = "/{group}/victim"
[[batch]]
name = "hog"
cgroup = "/{group}/hog"
takes_hints = {hints}
"""


@dataclass
class Found:
    """The victim's bytes/s alone, beside the hog at first, and in its best five seconds of the first three rounds.

    ``classes``: of tc, that were seen; ``rungs``: how ``GET /v1/contention`` said that the hog was restricted.
    """

    solo: float
    first: float
    held: float
    classes: set[str]
    rungs: set[str]


@dataclass
class Bench:
    """Two groups in every hierarchy that counts, and a folder."""

    folder: Path
    group: str

    def folders(self, name: str) -> list[str]:
        top = Path("/sys/fs/cgroup")
        parents = [top / each for each in ("unified", "cpu", "cpuacct", "freezer") if (top / each).is_dir()]
        return [f"{parent}/{self.group}/{name}" for parent in parents or [top]]

    def make(self) -> None:
        make_groups(self.folders)

    def remove(self) -> None:
        remove_groups(self.folders)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    if reason := why_not():
        pytest.skip(reason)
    made = Bench(tmp_path, f"perphd-link-{os.getpid()}")
    try:
        made.make()
        yield made
    finally:
        made.remove()


def started(stack: ExitStack, *words: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT)

    def end() -> None:
        if process.poll() is None:
            process.kill()
        process.wait()

    stack.callback(end)
    return process


def wired(stack: ExitStack) -> int:
    """Make the router and the receiver. The receiver's process."""
    router, receiver = (started(stack, "unshare", "-n", "sh", "-c", "echo; exec sleep 600") for _ in range(2))
    for each in (router, receiver):
        assert each.stdout is not None
        each.stdout.readline()
    there, far = f"nsenter -t {router.pid} -n", f"nsenter -t {receiver.pid} -n"
    shell(
        "ip neigh flush dev v0; ip neigh del 10.9.0.2 dev v0 2>/dev/null; true;"
        f"ip link set v1 netns {router.pid}; ip link add m1 type veth peer name w0;"
        f"ip link set m1 netns {router.pid}; ip link set w0 netns {receiver.pid};"
        f"{there} sh -c 'echo 1 > /proc/sys/net/ipv4/ip_forward; ip link set v1 up; ip link set m1 up;"
        "ip addr add 10.9.0.2/24 dev v1; ip addr add 10.9.1.1/24 dev m1;"
        f"tc qdisc add dev m1 root tbf rate {LINK_MBIT}mbit burst 32k limit 150k';"
        f"{far} sh -c 'ip link set w0 up; ip link set lo up; ip addr add 10.9.1.2/24 dev w0;"
        "ip route add default via 10.9.1.1'; ip route add 10.9.1.0/24 via 10.9.0.2"
    )
    return receiver.pid


def measured(bench: Bench, mode: str, hints: bool = False) -> Found:
    return inside(lambda: _measured(bench, mode, hints))


def _measured(bench: Bench, mode: str, hints: bool) -> Found:
    state = bench.folder / "state"
    state.mkdir(exist_ok=True)
    config, log = bench.folder / "perphd.toml", bench.folder / "log"
    config.write_text(CONFIG.format(mode=mode, state=state, group=bench.group, hints=str(hints).lower()))
    before = shell("tc qdisc show dev v0")
    classes, rungs = set[str](), set[str]()
    with ExitStack() as stack:
        far = ("nsenter", "-t", str(wired(stack)), "-n", sys.executable, LOAD, "serve")
        servers = [started(stack, *far, str(port)) for port in (VICTIM_PORT, HOG_PORT)]
        with log.open("ab") as file:
            daemon = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    "from perphd.commands.daemon import main; main()",
                    "run",
                    "--config",
                    str(config),
                ],
                cwd=ROOT,
                stderr=file,
            )
        client, ready_s = Client(f"{state}/perphd.sock"), time.monotonic() + READY_S
        try:
            while True:
                try:
                    if client.get("status")["tick"] >= 2:
                        break
                except Unreachable:
                    assert time.monotonic() < ready_s, log.read_text()
                time.sleep(0.5)
            seconds = str(TOGETHER_S + SOLO_S)
            started(
                stack, sys.executable, LOAD, "send", HOST, str(VICTIM_PORT), "1", seconds,
                *bench.folders("victim"),
            )  # fmt: skip
            time.sleep(SOLO_S)
            began_s = time.monotonic()
            obeys = (
                "obey",
                HOST,
                str(HOG_PORT),
                "16",
                str(TOGETHER_S),
                str(hints_file(state / "hints", "hog")),
            )
            sends = ("send", HOST, str(HOG_PORT), "16", str(TOGETHER_S))
            hog = started(stack, sys.executable, LOAD, *(obeys if hints else sends), *bench.folders("hog"))
            while hog.poll() is None:
                classes |= {line for line in shell("tc class show dev v0").splitlines() if ":10 " in line}
                for device in client.get("contention", workload="hog")["devices"]:
                    assert (device["kind"], device["device"]) == ("link", "v0")
                    rungs |= {each["rung"] for each in device["restrictions"]}
                time.sleep(0.5)
        finally:
            daemon.terminate()
            daemon.wait(60)
        assert shell("tc qdisc show dev v0") == before, "everything is given back"
        assert not list(state.glob("hints/*")), "hints are taken back"
        for each in servers:
            each.kill()
        victim = _rates(servers[0].communicate()[0])
    solo = statistics.median(rate for at, rate in victim if began_s - SOLO_S + 2.0 < at <= began_s)
    first = statistics.median(rate for at, rate in victim if began_s + 1.0 < at <= began_s + 1.0 + SAMPLES)
    held = best_round(victim, began_s)
    return Found(solo, first, held, classes, rungs)


def _rates(text: str) -> list[tuple[float, float]]:
    pairs = (line.split() for line in text.splitlines())
    return [(float(words[0]), float(words[1])) for words in pairs if len(words) == 2]


def _shown(found: Found) -> str:
    figures = (found.solo / 1e6, found.first / 1e6, found.held / 1e6)
    return "{:.1f} MB/s alone, {:.1f} beside the hog, {:.1f} held; ".format(*figures) + str(found.rungs)


def test_the_victim_has_its_link_back_within_three_rounds_and_all_is_given_back(bench: Bench) -> None:
    found = measured(bench, "enforce")
    print(_shown(found))
    assert found.first <= 0.6 * found.solo, _shown(found)
    assert found.classes, "nothing was restricted"
    assert found.held >= 0.9 * found.solo, _shown(found)


def test_in_observe_it_says_what_it_would_do_and_restricts_nothing(bench: Bench) -> None:
    found = measured(bench, "observe")
    assert not found.classes
    assert "device ceiling" in found.rungs, _shown(found)


def test_a_job_that_obeys_its_hint_gets_no_ceiling(bench: Bench) -> None:
    found = measured(bench, "enforce", hints=True)
    assert found.rungs == {"hint"}, _shown(found)
    assert not found.classes
    assert found.held >= 0.9 * found.solo, _shown(found)
