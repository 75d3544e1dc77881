"""What the latency of TCP servers shows of real protocols: the rows of the table in docs/how-to/tcp-latency.md."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from perphd.domain.reading import available
from perphd.host.cgroup import discover
from perphd.host.fs import RealFs
from perphd.host.tcp_latency import LatencyCounter, TcpCounts, TcpProbe, percentile_ms
from tests.kernel.tcp_protocols import END, GET, HEADERS, PREFACE, SETTINGS, STREAM_S, frame, frames

pytestmark = [pytest.mark.requires_root, pytest.mark.requires_cgroup_v2]

SERVER = str(Path(__file__).with_name("tcp_protocols.py"))
PATIENCE_S = 60.0
N = 20
CONNECTIONS = 10_000
FASTOPEN_SYSCTL = "/proc/sys/net/ipv4/tcp_fastopen"


@pytest.fixture
def directory() -> Iterator[str]:
    unified = discover(RealFs()).unified
    assert unified is not None
    path = f"{unified.mount}/perphd-test-protocols-{os.getpid()}"
    os.mkdir(path)
    try:
        yield path
    finally:
        os.rmdir(path)


@contextmanager
def attached(directory: str) -> Iterator[TcpProbe]:
    probe = TcpProbe(directory)
    try:
        yield probe
    finally:
        probe.close()


@contextmanager
def serving(directory: str, protocol: str, file: str = "") -> Iterator[tuple[int, TcpProbe]]:
    """A server in the group, until the end of the block: its port, and the programs there."""
    server = subprocess.Popen(
        [sys.executable, SERVER, directory, protocol, file], stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    try:
        port = int(server.stdout.readline())
        with attached(directory) as probe:
            yield port, probe
    finally:
        server.kill()
        server.communicate()


def connect(port: int) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client


def settled(probe: TcpProbe, is_so: Callable[[TcpCounts], bool]) -> TcpCounts:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so(counts := probe.read()):
        assert time.monotonic() < deadline, counts
        time.sleep(0.005)
    return counts


def answered(counts: TcpCounts) -> int:
    assert counts[LatencyCounter.STARTED] == counts[LatencyCounter.ANSWERED]
    return counts[LatencyCounter.ANSWERED]


def p50_ms(counts: TcpCounts) -> float:
    found = percentile_ms(counts.from_last, 0.5)
    assert available(found)
    return found


# -- TLS ----------------------------------------------------------------------------------------------------


@pytest.fixture
def certificate(tmp_path: Path) -> str:
    """A file with a certificate and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    path = tmp_path / "server.pem"
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    where = ["-keyout", str(path), "-out", str(tmp_path / "c"), "-days", "2", "-subj", "/CN=localhost"]
    subprocess.run([*argv, *where], check=True, capture_output=True)
    with open(path, "ab") as file:
        file.write((tmp_path / "c").read_bytes())
    return str(path)


@contextmanager
def over_tls(port: int) -> Iterator[ssl.SSLSocket]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with connect(port) as plain, context.wrap_socket(plain, suppress_ragged_eofs=True) as client:
        yield client


def test_tls_counts_each_request_and_two_of_the_handshake(directory: str, certificate: str) -> None:
    with serving(directory, "tls", certificate) as (port, probe), over_tls(port) as client:
        settled(probe, lambda counts: counts[LatencyCounter.ANSWERED] == 2)
        for _ in range(N):
            client.sendall(b"echo\n")
            assert client.recv(100) == b"echo\n"
        assert answered(probe.read()) == N + 2


def test_a_tls_connection_for_each_request_counts_three(directory: str, certificate: str) -> None:
    with serving(directory, "tls", certificate) as (port, probe):
        for n in range(N):
            with over_tls(port) as client:
                settled(probe, lambda counts, n=n: counts[LatencyCounter.ANSWERED] == 3 * n + 2)  # type: ignore[misc]
                client.sendall(b"echo\n")
                assert client.recv(100) == b"echo\n"
        assert probe.read()[LatencyCounter.ANSWERED] == 3 * N


# -- HTTP ---------------------------------------------------------------------------------------------------


def test_http2_counts_each_request_of_one_stream_at_a_time(directory: str) -> None:
    with serving(directory, "http2") as (port, probe), connect(port) as client:
        client.sendall(PREFACE + frame(SETTINGS, 0, 0))
        told = frames(client)
        assert next(told)[0] == SETTINGS
        before = answered(settled(probe, lambda counts: counts[LatencyCounter.ANSWERED] > 0))
        for n in range(N):
            client.sendall(frame(HEADERS, END, 1 + 2 * n, GET))
            assert next(told) == (HEADERS, END, 1 + 2 * n)
        counts = probe.read()
        assert answered(counts) == before + N
        assert p50_ms(counts) >= 0.95 * 1000.0 * STREAM_S


def test_http2_counts_a_burst_of_streams_once_with_its_first_answer(directory: str) -> None:
    streams = 10
    with serving(directory, "http2") as (port, probe), connect(port) as client:
        client.sendall(PREFACE + frame(SETTINGS, 0, 0))
        told = frames(client)
        assert next(told)[0] == SETTINGS
        before = settled(probe, lambda counts: counts[LatencyCounter.ANSWERED] > 0)
        began_s = time.monotonic()
        for n in range(N):
            ids = [1 + 2 * (n * streams + m) for m in range(streams)]
            client.sendall(b"".join(frame(HEADERS, END, stream, GET) for stream in ids))
            assert [next(told)[2] for _ in ids] == ids
        burst_ms = 1000.0 * (time.monotonic() - began_s) / N
        counts = probe.read().since(before)
        assert answered(counts) == N
        assert counts[LatencyCounter.PUSHED] >= (streams - 1) * N, "the other answers"
        assert 0.95 * 1000.0 * STREAM_S <= p50_ms(counts) < burst_ms / 2


def test_a_body_that_waits_for_the_server_s_consent_counts_twice(directory: str) -> None:
    with serving(directory, "http") as (port, probe), connect(port) as client:
        head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n"
        for _ in range(N):
            client.sendall(head)
            assert b" 100 " in client.recv(1000)
            client.sendall(b"hello")
            assert b" 200 " in client.recv(1000)
        assert answered(probe.read()) == 2 * N


# -- connections --------------------------------------------------------------------------------------------


def test_ten_thousand_connections_that_wait_at_once_lose_none(directory: str) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < CONNECTIONS + 1000:
        pytest.skip(f"needs {CONNECTIONS + 1000} descriptors, may have {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (CONNECTIONS + 1000, hard))
    clients: list[socket.socket] = []
    try:
        with serving(directory, "many") as (port, probe):
            for _ in range(CONNECTIONS):
                clients.append(connect(port))
            for _ in range(2):
                for client in clients:
                    client.sendall(b"echo\n")
                for client in clients:
                    assert client.recv(100) == b"echo\n"
            counts = settled(probe, lambda counts: counts.waiting == 0)
            assert answered(counts) == 2 * CONNECTIONS
            assert int(counts.from_last.sum()) == int(counts.from_first.sum()) == 2 * CONNECTIONS
    finally:
        for client in clients:
            client.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_fast_open_hides_the_first_request_of_a_connection(directory: str) -> None:
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("needs unshare and ip, for a network namespace that serves TCP Fast Open")
    with attached(directory) as probe:
        words = f'ip link set lo up && echo 3 > {FASTOPEN_SYSCTL} && exec "$0" "$@"'
        argv = [sys.executable, SERVER, directory, "fastopen", str(N)]
        subprocess.run(["unshare", "--net", "sh", "-c", words, *argv], check=True, timeout=PATIENCE_S)
        counts = probe.read()
    # Of two requests each; the first connection has no cookie yet.
    assert N <= counts[LatencyCounter.ANSWERED] <= N + 1
    assert counts[LatencyCounter.PUSHED] >= N - 1
