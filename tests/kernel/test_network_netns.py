"""Egress ceilings on real devices of a network namespace: set, in effect, read back, taken away, after kill -9 too."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from perphd.domain.allocation import Settings
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.host.cgroup import discover
from perphd.host.cgroup.hierarchy import Hierarchies
from perphd.host.egress_bpf import PINS, BpfPrograms
from perphd.host.egress_fs import EgressFs, with_egress
from perphd.host.fs import RealFs
from perphd.host.tc import MAJOR, Tc, TcCommand
from perphd.host.tc_netlink import NetlinkTc
from perphd.isolation import Executor, Journal, restore
from tests.kernel.network_namespace import inside, send, shell, why_not

pytestmark = [pytest.mark.requires_root, pytest.mark.requires_cgroup_v2()]

TOP = f"/perphd-test-net-{os.getpid()}"
SPECS = [WorkloadSpec(name, Kind.BATCH, f"{TOP}/{name}") for name in ("a", "b")]
FS = RealFs()
MAKERS = [TcCommand, NetlinkTc]


@dataclass
class Host:
    hierarchies: Hierarchies
    directory: Path

    def procs(self, name: str) -> str:
        return str(self.directory / name / "cgroup.procs")


@pytest.fixture(scope="module")
def possible() -> None:
    if reason := why_not():
        pytest.skip(reason)


@pytest.fixture
def host(possible: None) -> Iterator[Host]:
    """Two control groups on the cgroup v2 hierarchy."""
    hierarchies = discover(FS)
    assert hierarchies.unified is not None
    directory = Path(hierarchies.unified.mount + TOP)
    for name in ("a", "b"):
        (directory / name).mkdir(parents=True)
    yield Host(hierarchies, directory)
    for path in (*directory.iterdir(), directory):
        if path.is_dir():
            path.rmdir()


class Applying:
    """An executor on the devices of this namespace, and the file system beneath it."""

    def __init__(
        self, host: Host, state: Path, make: Callable[[], Tc] = TcCommand, devices: str = "v0"
    ) -> None:
        self.fs = EgressFs(FS, host.hierarchies, tuple(devices.split(",")), tc=make)
        self.journal = Journal(state)
        self.executor = Executor(self.fs, with_egress(host.hierarchies), self.journal, in_thread=False)

    def want(self, **ceilings: int) -> bool:
        """Ceilings on v0 by workload; False if a change was refused."""
        targets = {name: Settings(egress_max=(("v0", rate),)) for name, rate in ceilings.items()}
        changes = self.executor.plan(targets, SPECS, 0.0)
        return asyncio.run(self.executor.apply(changes)).ok

    def close(self) -> None:
        self.executor.close()
        self.journal.close()
        self.fs.close()


def classes() -> dict[str, str]:
    """Class -> its rate and ceiling, as tc(8) shows them."""
    found = re.finditer(r"class htb (\S+) .*?(rate \S+ ceil \S+)", shell("tc class show dev v0"))
    return {match[1]: match[2] for match in found}


def sent(minor: int) -> int:
    """Packets that went through this class."""
    text = shell("tc -s class show dev v0")
    found = re.search(rf"class htb {MAJOR:x}:{minor:x} .*?\n Sent \d+ bytes (\d+) pkt", text)
    assert found is not None, text
    return int(found[1])


def direct() -> int:
    """Packets that no class was named for."""
    found = re.search(r"direct_packets_stat (\d+)", shell("tc -s qdisc show dev v0"))
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize("make", MAKERS)
def test_ceilings_are_set_changed_and_taken_away_exactly(
    host: Host, tmp_path: Path, make: Callable[[], Tc]
) -> None:
    def work() -> None:
        before = shell("tc qdisc show")
        run = Applying(host, tmp_path, make)
        assert run.want(a=1_000_000)
        assert run.executor.in_force("a").egress_max == (("v0", 1_000_000),)
        assert classes() == {"7e50:1": "rate 8Mbit ceil 8Mbit", "7e50:10": "rate 125Kbit ceil 8Mbit"}
        assert run.want(a=1_000_000, b=3_000_000)
        assert classes()["7e50:1"] == "rate 24Mbit ceil 24Mbit"
        assert classes()["7e50:20"].endswith("ceil 24Mbit")
        assert not run.executor.plan(
            {"a": Settings(egress_max=(("v0", 1_000_000),)), "b": Settings(egress_max=(("v0", 3_000_000),))},
            SPECS,
        ), "read back as written: nothing to do"
        assert run.want(a=9_000_000_000, b=3_000_000), "more than 32 bits of bytes"
        assert classes()["7e50:10"].endswith("ceil 72Gbit")
        assert run.want(b=3_000_000), "a is given back"
        assert set(classes()) == {"7e50:1", "7e50:20"}
        assert classes()["7e50:1"] == "rate 24Mbit ceil 24Mbit"
        assert run.want()
        assert shell("tc qdisc show") == before
        assert not BpfPrograms().pins()
        assert run.executor.journal_entries == 0
        run.close()

    inside(work)


@pytest.mark.parametrize("make", MAKERS)
def test_packets_of_the_group_alone_go_through_its_class(
    host: Host, tmp_path: Path, make: Callable[[], Tc]
) -> None:
    def work() -> None:
        run = Applying(host, tmp_path, make)
        assert run.want(a=50_000_000)
        send(50, host.procs("a"))
        assert sent(0x10) == 50
        outside = direct()
        send(70)
        send(30, host.procs("b"))
        assert sent(0x10) == 50
        assert direct() == outside + 100, "everybody else is not shaped"
        assert run.want()
        run.close()

    inside(work)


def test_a_ceiling_holds_back_what_exceeds_it(host: Host, tmp_path: Path) -> None:
    def work() -> None:
        run = Applying(host, tmp_path)
        assert run.want(a=100_000)
        send(120, host.procs("a"))  # 125 kB at once, of which a burst of 64 KiB may pass
        held = re.search(
            rf"class htb {MAJOR:x}:10 .*? overlimits (\d+)", shell("tc -s class show dev v0"), re.S
        )
        assert held is not None
        assert int(held[1]) > 0
        assert run.want()
        run.close()

    inside(work)


def test_what_a_killed_process_left_is_given_back(host: Host, tmp_path: Path) -> None:
    code = (
        f"import sys, time; sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
        "import tests.kernel.test_network_netns as t\n"
        f"t.TOP = {TOP!r}; t.SPECS = [t.WorkloadSpec(n, t.Kind.BATCH, t.TOP + '/' + n) for n in 'ab']\n"
        "from pathlib import Path\n"
        f"run = t.Applying(t.Host(t.discover(t.FS), Path()), Path({str(tmp_path)!r}))\n"
        "assert run.want(a=1000000, b=2000000)\n"
        "print('ready', flush=True); time.sleep(600)\n"
    )

    def work() -> None:
        before = shell("tc qdisc show")
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        assert len(classes()) == 3
        (host.directory / "b").rmdir()  # one group ends before anybody looks
        report = restore(FS, tmp_path)
        assert report.complete, report
        assert [file.workload for file in report.restored] == ["a"]
        assert [file.workload for file in report.gone] == ["b"]
        assert shell("tc qdisc show") == before
        assert not BpfPrograms().pins()
        (host.directory / "b").mkdir()

    inside(work)


def test_what_is_on_nobodys_record_is_swept_away(host: Host, tmp_path: Path) -> None:
    def work() -> None:
        before = shell("tc qdisc show")
        run = Applying(host, tmp_path / "lost")
        assert run.want(a=1_000_000)
        run.close()
        report = restore(FS, tmp_path / "none")
        assert "no journal" in str(report)
        assert shell("tc qdisc show") == before
        assert not BpfPrograms().pins()

    inside(work)


def test_a_group_that_is_made_again_gets_its_class_again(host: Host, tmp_path: Path) -> None:
    def work() -> None:
        run = Applying(host, tmp_path)
        assert run.want(a=1_000_000)
        (host.directory / "a").rmdir()
        (host.directory / "a").mkdir()
        assert run.want(a=1_000_000)
        assert not run.executor.conflicts(), "a restart is nobody's interference"
        send(5, host.procs("a"))
        assert sent(0x10) == 5
        assert run.want()
        assert classes() == {}
        run.close()

    inside(work)


def test_somebody_elses_qdisc_stays(host: Host, tmp_path: Path) -> None:
    def work() -> None:
        shell("tc qdisc add dev v0 root handle 5: tbf rate 1mbit burst 10k latency 10ms")
        before = shell("tc qdisc show")
        run = Applying(host, tmp_path)
        assert run.want(a=1_000_000)
        assert shell("tc qdisc show") == before
        assert "v0 has a qdisc tbf that somebody has chosen (handle 5:)" in str(
            run.executor.not_enforceable("a")
        )
        run.close()

    inside(work)


def test_somebody_who_takes_the_qdisc_away_is_yielded_to(host: Host, tmp_path: Path) -> None:
    def work() -> None:
        run = Applying(host, tmp_path)
        for _ in range(2):
            assert run.want(a=1_000_000)
            shell("tc qdisc del dev v0 root")
        assert run.want(a=1_000_000)
        assert classes() == {}
        assert "left alone" in str(run.executor.not_enforceable("a"))
        report = asyncio.run(run.executor.restore())
        assert report.complete, report
        assert not BpfPrograms().pins()
        run.close()

    inside(work)


def test_a_container_with_a_network_of_its_own_is_refused(host: Host, tmp_path: Path) -> None:
    def work() -> None:
        command = f"echo $$ > {host.procs('a')}; exec unshare -n sh -c 'echo in; exec sleep 600'"
        process = subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "in\n"
        run = Applying(host, tmp_path)
        assert run.want(a=1_000_000)
        assert "has a network namespace of its own" in str(run.executor.not_enforceable("a"))
        assert classes() == {}
        process.kill()
        process.wait()
        process.stdout.close()
        run.close()

    inside(work)


def test_a_person_can_undo_it_with_two_commands(host: Host, tmp_path: Path) -> None:
    def work() -> None:
        before = shell("tc qdisc show")
        run = Applying(host, tmp_path)
        assert run.want(a=1_000_000)
        shell(f"rm -r {PINS}; tc qdisc del dev v0 root")
        assert shell("tc qdisc show") == before
        assert asyncio.run(run.executor.restore()).complete
        run.close()

    inside(work)
