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
from typing import Any

import pytest

from perphd.domain.allocation import Settings
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.host.bpf import syscall
from perphd.host.bpf.syscall import Command
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
STEP = 1 if os.environ.get("PERPHD_FAULTS") == "all" else 13
"""Of all moments of a fault one in so many is tried; with PERPHD_FAULTS=all each."""


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


class Steps:
    """Counts the calls that change something in the kernel: of netlink, bpf(2) and unlink(2); strikes at one."""

    def __init__(self, strike: Callable[[int, str], None]) -> None:
        self.count, self._strike = 0, strike

    def around(self, owner: object, name: str, changes: Callable[..., bool] = lambda *_: True) -> None:
        real = getattr(owner, name)

        def call(*arguments: Any, **named: Any) -> Any:
            if not changes(*arguments):
                return real(*arguments, **named)
            number, self.count = self.count, self.count + 1
            self._strike(number, "before")
            result = real(*arguments, **named)
            self._strike(number, "after")
            return result

        setattr(owner, name, call)


def drive(host: Host, state: Path, strike: Callable[[int, str], None]) -> int:
    """In a process of its own: ceilings come, change and go, each tried twice. Its exit status: steps, or -signal."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        return os.waitstatus_to_exitcode(status)
    code = 255
    try:
        steps = Steps(strike)
        for name in ("add_root", "delete_root", "set_class", "delete_class"):
            steps.around(NetlinkTc, name)
        steps.around(syscall, "call", lambda command, _: command in (Command.OBJ_PIN, Command.LINK_CREATE))
        steps.around(os, "unlink")
        run = Applying(host, state, NetlinkTc)
        for ceilings in ({"a": 1_000_000, "b": 3_000_000}, {"a": 3_000_000}, {}):
            if not run.want(**ceilings):
                run.want(**ceilings)
        run.close()
        code = steps.count
    finally:
        os._exit(code)


def test_killed_before_and_after_every_call_everything_comes_back(host: Host, tmp_path: Path) -> None:
    def work() -> None:
        before = shell("tc qdisc show")
        count = drive(host, tmp_path / "dry", lambda number, moment: None)
        assert 12 <= count < 100
        assert shell("tc qdisc show") == before
        moments = [(number, moment) for number in range(count) for moment in ("before", "after")]
        for number, moment in moments[::STEP]:
            state = tmp_path / f"{number}-{moment}"

            def die(n: int, m: str, here: tuple[int, str] = (number, moment)) -> None:
                if (n, m) == here:
                    os.kill(os.getpid(), signal.SIGKILL)

            assert drive(host, state, die) == -signal.SIGKILL
            report = restore(FS, state)
            assert report.complete, report
            assert not report.foreign, report
            assert shell("tc qdisc show") == before, (number, moment)
            assert not BpfPrograms().pins(), (number, moment)

    inside(work)


@pytest.mark.parametrize("fate", ["goes", "goes and comes", "is taken"])
def test_a_link_that_goes_or_is_taken_before_any_call_leaves_nothing(
    host: Host, tmp_path: Path, fate: str
) -> None:
    new = "ip link add v0 type veth peer name v1; ip link set v0 up; ip link set v1 up"
    command = {
        "goes": "ip link del v0",
        "goes and comes": f"ip link del v0; {new}",
        "is taken": "tc qdisc replace dev v0 root handle 5: tbf rate 1mbit burst 10k latency 10ms",
    }[fate]

    def work() -> None:
        before = shell("tc qdisc show dev v0")
        count = drive(host, tmp_path / "dry", lambda number, moment: None)
        for number in range(0, count, STEP):
            state = tmp_path / str(number)

            def strike(n: int, moment: str, at: int = number) -> None:
                if (n, moment) == (at, "before"):
                    shell(command)

            assert 0 < drive(host, state, strike) < 100, "it went on to the end"
            report = restore(FS, state)
            assert report.complete, report
            assert not BpfPrograms().pins()
            if fate == "is taken":
                assert "tbf 5: root" in shell("tc qdisc show dev v0")
                shell("tc qdisc del dev v0 root")
            elif fate == "goes":
                shell(new)
            assert shell("tc qdisc show dev v0") == before, number

    inside(work)


UNPRIVILEGED = """
import errno, os, sys
sys.path.insert(0, sys.argv[1])
from perphd.domain.errors import Denied
from perphd.host.tc_netlink import NetlinkTc
import pyroute2
os.setgroups([])
os.setuid(65534)
tc = NetlinkTc()
for change in (
    lambda: tc.add_root("v0"),
    lambda: tc.set_class("v0", 0x10, 1000, exists=False),
    lambda: tc.delete_root("v0"),
):
    try:
        change()
    except Denied as exc:
        print(errno.errorcode[exc.errno])
tc.close()
"""


def test_without_the_right_to_change_qdiscs_nothing_changes_and_it_is_said(
    host: Host, tmp_path: Path
) -> None:
    def work() -> None:
        before = shell("tc qdisc show")
        done = subprocess.run(
            [sys.executable, "-c", UNPRIVILEGED, str(Path(__file__).parents[2])],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert done.stdout.split() == ["EPERM"] * 3, done
        assert shell("tc qdisc show") == before

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
        (host.directory / "a").rmdir()
        asyncio.run(run.executor.release_gone())
        assert classes() == {}, "nobody is in it any more"
        assert not run.journal.originals
        (host.directory / "a").mkdir()
        assert run.want(a=1_000_000)
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
        assert "v0 has a qdisc tbf that an administrator set (handle 5:)" in str(
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
