"""Real servers: as many requests as the clients made, and the percentiles of the wire, alone and beside batch."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pymysql
import pytest

from perphd.domain.reading import available
from perphd.host.cgroup import discover
from perphd.host.fs import RealFs
from perphd.host.tcp_latency import LatencyCounter, TcpProbe, percentile_ms
from tests.kernel.tcp_wire import Asker, Wire, enable, load, path_ms

# The whole host is measured with it: other work on a shared machine may spoil one look, and does not spoil three.
pytestmark = [
    pytest.mark.requires_root,
    pytest.mark.requires_cgroup_v2,
    pytest.mark.flaky(reruns=2, reruns_delay=5),
]

PATIENCE_S = 60.0
_FOLDER = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
_POSTGRES = "/usr/lib/postgresql/15/bin"
LOADS = {"closed": 0.0, "open": 500.0}
SECONDS = float(os.environ.get("PERPHD_TCP_SECONDS", "1"))
HTTP = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(bytes(1000))
        self.wfile.flush()
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.fixture
def group() -> Iterator[str]:
    unified = discover(RealFs()).unified
    assert unified is not None
    path = f"{unified.mount}/perphd-test-servers-{os.getpid()}"
    os.mkdir(path)
    try:
        yield path
    finally:
        os.rmdir(path)


@pytest.fixture
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="perphd-test-tcp-", dir=_FOLDER) as folder:
        yield Path(folder)


@dataclass(frozen=True)
class Server:
    """How to start it (home, port -> command line and account), and one request over a new connection."""

    needs: str
    package: str
    start: Callable[[Path, int], tuple[list[str], str | None]]
    request: bytes
    log_in: Callable[[int], socket.socket]


def plain(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)


def redis(home: Path, port: int) -> tuple[list[str], str | None]:
    return [
        "redis-server",
        "--port",
        str(port),
        "--save",
        "",
        "--dir",
        str(home),
        "--bind",
        "127.0.0.1",
    ], None


def memcached(home: Path, port: int) -> tuple[list[str], str | None]:
    return ["memcached", "-l", "127.0.0.1", "-p", str(port), "-t", "2", "-m", "16"], "nobody"


def http(home: Path, port: int) -> tuple[list[str], str | None]:
    return [sys.executable, "-c", HTTP, str(port)], None


def mariadb(home: Path, port: int) -> tuple[list[str], str | None]:
    user = pwd.getpwuid(os.geteuid()).pw_name
    common = ["--no-defaults", f"--datadir={home}/data", f"--user={user}"]
    install = ["mariadb-install-db", *common, "--auth-root-authentication-method=normal", "--skip-test-db"]
    subprocess.run(install, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    small = ["--innodb-buffer-pool-size=16M", "--innodb-log-file-size=8M", "--skip-log-bin"]
    where = ["--bind-address=127.0.0.1", f"--port={port}", f"--socket={home}/s", f"--pid-file={home}/pid"]
    return ["mariadbd", *common, *small, *where], None


def mariadb_log_in(port: int) -> socket.socket:
    connection = pymysql.connect(host="127.0.0.1", port=port, user="root")
    taken: socket.socket = connection._sock.dup()
    connection._force_close()
    return taken


def postgresql(home: Path, port: int) -> tuple[list[str], str | None]:
    shutil.chown(home, "nobody")
    argv = [f"{_POSTGRES}/initdb", "-D", f"{home}/data", "-A", "trust", "-U", "perphd", "--no-sync"]
    subprocess.run(argv, user="nobody", cwd=home, check=True, stdout=subprocess.DEVNULL)
    options = [
        "-k",
        str(home),
        "-h",
        "127.0.0.1",
        "-p",
        str(port),
        "-c",
        "shared_buffers=8MB",
        "-c",
        "fsync=off",
    ]
    return [f"{_POSTGRES}/postgres", "-D", f"{home}/data", *options], "nobody"


def postgresql_log_in(port: int) -> socket.socket:
    connection = plain(port)
    body = struct.pack("!I", 196608) + b"user\0perphd\0database\0postgres\0\0"
    connection.sendall(struct.pack("!I", len(body) + 4) + body)
    said = b""
    while not said.endswith(b"Z\0\0\0\5I"):
        piece = connection.recv(4096)
        assert piece, said
        said += piece
    return connection


def _mysql_query(text: bytes) -> bytes:
    return struct.pack("<I", 1 + len(text)) + b"\3" + text


def _postgresql_query(text: bytes) -> bytes:
    return b"Q" + struct.pack("!I", len(text) + 5) + text + b"\0"


SERVERS = {
    "redis": Server("redis-server", "redis-server", redis, b"PING\r\n", plain),
    "memcached": Server("memcached", "memcached", memcached, b"get x\r\n", plain),
    "http": Server(sys.executable, "python3", http, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", plain),
    "mariadb": Server("mariadbd", "mariadb-server", mariadb, _mysql_query(b"SELECT 1"), mariadb_log_in),
    "postgresql": Server(
        f"{_POSTGRES}/initdb", "postgresql-15", postgresql, _postgresql_query(b"SELECT 1"), postgresql_log_in
    ),
}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@contextmanager
def running(server: Server, home: Path, group: str, port: int) -> Iterator[None]:
    """The server in the group, ready for connections."""
    argv, user = server.start(home, port)

    # It enters the group before another account's rights are all that it has.
    words = ["setpriv", "--reuid", user, "--clear-groups", *argv] if user else argv
    shell = ["sh", "-c", 'echo $$ > "$0"; exec "$@"', f"{group}/cgroup.procs", *words]
    with open(home / "log", "ab") as log:
        process = subprocess.Popen(shell, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        give_up = time.monotonic() + PATIENCE_S
        while True:
            assert process.poll() is None, (home / "log").read_text()
            try:
                server.log_in(port).close()
                break
            except (OSError, AssertionError, pymysql.Error):
                assert time.monotonic() < give_up, "the server does not come up"
                time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


@contextmanager
def batch(processes: int) -> Iterator[None]:
    spinners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


def asker(server: Server, port: int) -> Asker:
    """A connection that has learned how long an answer is."""
    connection = server.log_in(port)
    connection.settimeout(PATIENCE_S)
    connection.sendall(server.request)
    said = connection.recv(1 << 16)
    connection.settimeout(0.2)
    try:
        while piece := connection.recv(1 << 16):
            said += piece
    except TimeoutError:
        pass
    enable(connection)
    return Asker(connection, server.request, len(said))


def is_close(found_ms: float, wire: Wire, share: float, path: float) -> bool:
    """At most the wire's percentile, and shorter by at most 5 % or the way of two packets over loopback.

    Two requests, or a tenth of those beyond the percentile, may lie elsewhere: a full host delays some packets between
    the client's side and the server's, and in a steep tail a few such requests move a percentile.
    """
    ranks = max(min(0.1 * (1.0 - share), 0.005), 2.0 / len(wire.times_ns))
    low, high = wire.percentile_ms(share - ranks), wire.percentile_ms(min(1.0, share + ranks))
    return low - max(0.05 * low, 0.010, path) <= found_ms <= high + max(0.05 * high, 0.002)


@pytest.mark.parametrize("name", sorted(SERVERS))
def test_counts_and_percentiles_are_those_of_the_wire(name: str, group: str, home: Path) -> None:
    server, port = SERVERS[name], free_port()
    if shutil.which(server.needs) is None:
        pytest.skip(f"needs {server.needs} (Debian package {server.package})")
    with running(server, home, group, port):
        probe = TcpProbe(group)
        askers = [asker(server, port) for _ in range(4)]
        try:
            for spinners in (0, 3):
                with batch(spinners):
                    for loop, rate in LOADS.items():
                        path = path_ms(rate)
                        load(askers[:2], 0.2, rate)  # the kernel takes a moment to stamp all packets
                        before = probe.read()
                        wire = load(askers[:2] if loop == "closed" else askers, SECONDS, rate)
                        seen = probe.read().since(before)
                        what = f"{name} {loop} loop, {spinners} spinners"
                        assert (
                            seen[LatencyCounter.ANSWERED] == seen[LatencyCounter.STARTED] == wire.answered
                        ), what
                        assert len(wire.times_ns) >= 0.99 * wire.answered, f"{what}: stamps are missing"
                        for share in (0.50, 0.95, 0.99):
                            found, truth = percentile_ms(seen.from_last, share), wire.percentile_ms(share)
                            assert available(found)
                            seen_text = (
                                f"p{100 * share:g} wire {truth:.4f} seen {found:.4f} path {path:.4f} ms"
                            )
                            print(f"{what}: {wire.answered} {seen_text}")
                            assert is_close(found, wire, share, path), f"{what}: {seen_text}"
        finally:
            probe.close()
            for one in askers:
                one.connection.close()
