"""The daemon with source = "tcp": readings reach its status, and its programs end with it, however it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from perphd.control.client import Client
from perphd.host.bpf import syscall
from perphd.host.bpf.syscall import Attach
from perphd.host.cgroup import discover
from perphd.host.fs import RealFs

pytestmark = [pytest.mark.requires_root, pytest.mark.requires_cgroup_v2]

SERVER = str(Path(__file__).with_name("tcp_server.py"))
PERPHD = [sys.executable, "-c", "from perphd.commands.daemon import main; main()"]
PATIENCE_S = 40.0
CONFIG = """
[daemon]
period_s = 0.2
state_dir = "{state}"
socket = "{state}/perphd.sock"
read_group = "root"
admin_group = "root"
[[lra]]
name = "shop"
cgroup = "{cgroup}"
max_latency_ms = 1000
[lra.sli]
source = "tcp"
"""


@pytest.fixture
def directory() -> Iterator[str]:
    unified = discover(RealFs()).unified
    assert unified is not None
    path = f"{unified.mount}/perphd-test-tcpd-{os.getpid()}"
    os.mkdir(path)
    try:
        yield path
    finally:
        os.rmdir(path)


@pytest.fixture
def port(directory: str) -> Iterator[int]:
    server = subprocess.Popen([sys.executable, SERVER, directory, "ipv4"], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        yield int(server.stdout.readline())
    finally:
        server.kill()
        server.communicate()


@pytest.fixture
def requests(port: int) -> Iterator[None]:
    """One request after the other, each of which takes 2 ms."""
    done = threading.Event()

    def ask() -> None:
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while not done.is_set():
                client.sendall(b"sleep 0.002\n")
                client.recv(1 << 16)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def attached(directory: str) -> int:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return sum(len(syscall.attached(fd, direction).programs) for direction in Attach)
    finally:
        os.close(fd)


def wait_for(what: str, look: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    found: Any = None
    while time.monotonic() < deadline:
        try:
            if found := look():
                return found
        except Exception as exc:  # the daemon is not up yet
            found = exc
        time.sleep(0.05)
    raise AssertionError(f"no {what}: {found!r}")


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.usefixtures("requests")
def test_latency_reaches_the_status_and_nothing_is_left(
    directory: str, tmp_path: Path, end: signal.Signals
) -> None:
    config = tmp_path / "perphd.toml"
    config.write_text(CONFIG.format(state=tmp_path, cgroup="/" + os.path.basename(directory)))
    with open(tmp_path / "log", "wb") as log:
        daemon = subprocess.Popen([*PERPHD, "run", "--config", str(config)], stderr=log)
    client = Client(str(tmp_path / "perphd.sock"))
    try:

        def sample() -> Any:
            assert daemon.poll() is None, (tmp_path / "log").read_text()
            (shop,) = client.get("status")["workloads"]
            return shop["sample"] if isinstance(shop["sample"]["latency_p95_ms"], float) else None

        seen = wait_for("latency", sample)
        assert seen["latency_p95_ms"] >= seen["latency_p50_ms"] >= 2.0
        assert 0 < seen["work_rate_per_s"] < 500, "each request takes 2 ms at least"
        assert attached(directory) == 2
    finally:
        daemon.send_signal(end)
        daemon.wait(PATIENCE_S)
    # The kernel frees a killed process's descriptors before it can be waited for, and detaches right after.
    wait_for("end of the programs", lambda: attached(directory) == 0)
