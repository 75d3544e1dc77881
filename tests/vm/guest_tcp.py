"""Passive TCP latency beside systemd's own IP filters: runs inside the virtual machine, started by test_v2_host.py.

By hand, on a machine that may be spoilt: ``python3 -m pytest tests/vm/guest_tcp.py`` as root.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from perphd.host.bpf import syscall
from perphd.host.bpf.syscall import Attach
from perphd.host.cgroup import discover
from perphd.host.fs import RealFs
from perphd.host.tcp_latency import HookPlace, LatencyCounter, TcpProbe, find_place

pytestmark = [pytest.mark.requires_root, pytest.mark.requires_cgroup_v2]

NAME = f"perphd-test-tcp-{os.getpid()}"
UNIT = f"{NAME}.service"
PORT = 7777
N = 20
PATIENCE_S = 120.0
REFUSED_S = 3.0
LISTEN = f"server = socket.create_server(('127.0.0.1', {PORT}))\n"
INHERIT = "server = socket.socket(fileno=3)\n"
SERVE = """
def serve(client):
    while data := client.recv(100):
        client.sendall(data)
while True:
    threading.Thread(target=serve, args=(server.accept()[0],)).start()
"""


def sh(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def server(begin: str) -> list[str]:
    return [sys.executable, "-c", f"import socket, threading\n{begin}{SERVE}"]


def wait_for(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


def listens() -> bool:
    try:
        socket.create_connection(("127.0.0.1", PORT), timeout=REFUSED_S).close()
    except OSError:
        return False
    return True


def ask(count: int = N) -> None:
    with socket.create_connection(("127.0.0.1", PORT), timeout=PATIENCE_S) as client:
        for _ in range(count):
            client.sendall(b"echo")
            client.recv(100)


def attached(directory: str) -> list[int]:
    """Programs at the group for what comes in and what goes out."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return [len(syscall.attached(fd, direction).programs) for direction in Attach]
    finally:
        os.close(fd)


@contextmanager
def probing() -> Iterator[tuple[TcpProbe, HookPlace]]:
    place = find_place(discover(RealFs()), f"/system.slice/{UNIT}", ())
    assert isinstance(place, HookPlace), place
    probe = TcpProbe(place.directory, place.inode, place.ports)
    try:
        yield probe, place
    finally:
        probe.close()


@pytest.fixture
def _stopped() -> Iterator[None]:
    yield
    subprocess.run(["systemctl", "stop", f"{NAME}.socket", UNIT], capture_output=True, check=False)
    subprocess.run(["systemctl", "revert", UNIT], capture_output=True, check=False)


@pytest.mark.usefixtures("_stopped")
@pytest.mark.parametrize("theirs_first", [False, True])
def test_systemds_filter_is_in_force_beside_the_programs_and_both_go_alone(theirs_first: bool) -> None:
    properties = ["-p", "IPAccounting=yes", "-p", "IPAddressDeny=10.9.9.9"] if theirs_first else []
    sh("systemd-run", f"--unit={UNIT}", *properties, *server(LISTEN))
    wait_for(listens, "the server does not listen")
    before = [int(theirs_first)] * 2
    with probing() as (probe, place):
        assert place.directory.endswith(f"/system.slice/{UNIT}")
        assert attached(place.directory) == [one + 1 for one in before]
        seen = probe.read()[LatencyCounter.ANSWERED]
        ask()
        assert probe.read()[LatencyCounter.ANSWERED] == seen + N
        sh("systemctl", "set-property", "--runtime", UNIT, "IPAddressDeny=127.0.0.1")
        assert not listens(), "systemd's filter is not in force"
        sh("systemctl", "set-property", "--runtime", UNIT, "IPAddressDeny=")
        sh("systemctl", "daemon-reload")
        ask()
        assert probe.read()[LatencyCounter.ANSWERED] == seen + 2 * N
        theirs = [one - 1 for one in attached(place.directory)]
    assert attached(place.directory) == theirs


@pytest.mark.usefixtures("_stopped")
def test_a_socket_that_systemd_opened_is_measured_at_its_own_unit() -> None:
    units = {
        Path(f"/run/systemd/system/{NAME}.socket"): f"[Socket]\nListenStream=127.0.0.1:{PORT}\n",
        Path(f"/run/systemd/system/{UNIT}"): f"[Service]\nExecStart={sys.executable} /run/{NAME}.py\n",
    }
    Path(f"/run/{NAME}.py").write_text(server(INHERIT)[-1])
    for path, text in units.items():
        path.write_text(text)
    try:
        sh("systemctl", "daemon-reload")
        sh("systemctl", "start", f"{NAME}.socket")
        ask(1)
        with probing() as (probe, place):
            assert place.directory.endswith(f"{NAME}.socket")
            assert place.ports == (PORT,)
            ask()
            assert probe.read()[LatencyCounter.ANSWERED] == N
    finally:
        sh("systemctl", "stop", f"{NAME}.socket", UNIT)
        for path in (*units, Path(f"/run/{NAME}.py")):
            path.unlink()
        sh("systemctl", "daemon-reload")
