"""Back-off from a real disk: an LRA beside a hog gets its bandwidth back within three rounds."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from perphd.control.client import Client, Unreachable
from perphd.host.fs import RealFs
from perphd.qos.contention import SAMPLES
from tests.kernel.backoff_groups import best_round, make_groups, remove_groups

BLKIO = Path("/sys/fs/cgroup/blkio")
pytestmark = [
    pytest.mark.requires_root,
    pytest.mark.flaky(reruns=2, reruns_delay=5),  # others use this disk as well
    pytest.mark.skipif(
        not (BLKIO / "blkio.throttle.read_bps_device").exists(), reason="no blkio throttling of cgroup v1"
    ),
]
ROOT = Path(__file__).parents[2]
LOAD = Path(__file__).with_name("disk_load.py")
SOLO_S, TOGETHER_S, READY_S = 10.0, 24.0, 120.0
FILE_BYTES = 256 << 20
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
[contention]
devices = "disks"
[[lra]]
name = "victim"
cgroup = "/{group}/victim"
[[batch]]
name = "hog"
cgroup = "/{group}/hog"
"""


@dataclass
class Bench:
    """Two groups in every v1 hierarchy, and a file on the disk of /var/tmp."""

    folder: Path
    group: str

    def folders(self, name: str) -> list[str]:
        return [
            f"/sys/fs/cgroup/{each}/{self.group}/{name}" for each in ("blkio", "cpu", "cpuacct", "freezer")
        ]

    def make(self) -> None:
        make_groups(self.folders)
        self.let_count()
        with (self.folder / "data").open("wb") as file:
            for _ in range(FILE_BYTES >> 20):
                file.write(os.urandom(1 << 20))
            os.fsync(file.fileno())

    def let_count(self) -> None:
        """Let cgroup v1 count bytes: since Linux 6.10 it does so only once a group has had a limit on the disk."""
        device = os.stat(self.folder).st_dev
        file = BLKIO / self.group / "hog" / "blkio.throttle.read_bps_device"
        for limit in (1 << 60, 0):
            file.write_text(f"{os.major(device)}:{os.minor(device)} {limit}")

    def remove(self) -> None:
        remove_groups(self.folders)

    def load(
        self, name: str, block: int, threads: int, pattern: str, seconds: float
    ) -> subprocess.Popen[str]:
        words = [
            str(self.folder / "data"),
            str(block),
            str(threads),
            pattern,
            str(seconds),
            *self.folders(name),
        ]
        return subprocess.Popen([sys.executable, str(LOAD), *words], stdout=subprocess.PIPE, text=True)


@pytest.fixture
def bench() -> Iterator[Bench]:
    folder = Path("/var/tmp", f"perphd-disk-{os.getpid()}")
    folder.mkdir()
    made = Bench(folder, f"perphd-disk-{os.getpid()}")
    try:
        made.make()
        yield made
    finally:
        made.remove()
        for path in folder.rglob("*"):
            if not path.is_dir():
                path.unlink()
        subprocess.run(["rm", "-rf", str(folder)], check=True)


def measured(bench: Bench, mode: str) -> tuple[float, float, float, list[str], list[str]]:
    """The victim's bytes/s alone, beside the hog at first, and from the third round on; throttles seen; events."""
    config = bench.folder / "perphd.toml"
    state = bench.folder / "state"
    state.mkdir(exist_ok=True)
    config.write_text(CONFIG.format(mode=mode, state=state, group=bench.group))
    throttle = BLKIO / bench.group / "hog" / "blkio.throttle.read_bps_device"
    with (bench.folder / "log").open("ab") as log:
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
            stderr=log,
        )
    client = Client(f"{state}/perphd.sock")
    victim = hog = None
    try:
        ready_s = time.monotonic() + READY_S
        while True:
            try:
                if client.get("status")["tick"] >= 2:
                    break
            except Unreachable:
                assert time.monotonic() < ready_s, (bench.folder / "log").read_text()
            time.sleep(0.5)
        victim = bench.load("victim", 256 << 10, 1, "sequential", TOGETHER_S + 2 * SOLO_S)
        time.sleep(SOLO_S)
        began_s = time.monotonic()
        hog = bench.load("hog", 1 << 20, 8, "random", TOGETHER_S)
        throttles = []
        while victim.poll() is None:
            throttles.append(throttle.read_text().strip())
            time.sleep(0.5)
        out = victim.communicate(timeout=30)[0]
        hog.communicate(timeout=30)
        events = [line for line in (bench.folder / "log").read_text().splitlines() if "disk " in line]
    finally:
        for each in (victim, hog):
            if each is not None and each.poll() is None:
                each.kill()
        daemon.terminate()
        daemon.wait(60)
    rates = [(float(at), float(rate)) for at, rate in (line.split() for line in out.splitlines())]
    before = [rate for at, rate in rates if at <= began_s][2:]
    after = [rate for at, rate in rates if at > began_s + TOGETHER_S + 2.0]
    first = [rate for at, rate in rates if began_s + 1.0 < at <= began_s + 1.0 + SAMPLES]
    held = best_round(rates, began_s)
    solo = min(statistics.median(before), statistics.median(after))  # others use this disk as well
    return solo, statistics.median(first), held, throttles, events


def test_the_victim_has_its_bandwidth_back_within_three_rounds_and_all_is_given_back(bench: Bench) -> None:
    solo, first, held, throttles, _ = measured(bench, "enforce")
    if first > 0.6 * solo:
        pytest.skip(
            f"the hog leaves the victim {first / solo:.0%} of what it moves alone: nothing to relieve"
        )
    assert any(throttles), "nothing was restricted"
    figures = f"{solo / 1e6:.0f} MB/s alone, {first / 1e6:.0f} beside the hog, {held / 1e6:.0f} held"
    print(figures)
    assert held >= 0.9 * solo, figures
    left = BLKIO / bench.group / "hog" / "blkio.throttle.read_bps_device"
    assert left.read_text().strip() == ""
    assert RealFs().read(str(left)) == b""


def test_in_observe_nothing_is_restricted(bench: Bench) -> None:
    *_, throttles, _ = measured(bench, "observe")
    assert not any(throttles)
