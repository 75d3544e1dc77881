"""Passive TCP latency on this kernel: what the programs see and what they do not, in groups of their own."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from perphd.domain.errors import Denied, Gone
from perphd.domain.reading import Unavailable, available
from perphd.host.bpf import syscall
from perphd.host.bpf.assembler import Assembler, Register
from perphd.host.bpf.syscall import ALLOW_MULTI, Attach
from perphd.host.cgroup import discover
from perphd.host.fs import RealFs
from perphd.host.sock_diag import tcp_listeners
from perphd.host.tcp_latency import (
    HookPlace,
    LatencyCounter,
    TcpCounts,
    TcpProbe,
    find_place,
    percentile_ms,
    probe_refusal,
)
from perphd.monitor.sli import open_source, validate_options

pytestmark = [pytest.mark.requires_root, pytest.mark.requires_cgroup_v2]

SERVER = str(Path(__file__).with_name("tcp_server.py"))
PATIENCE_S = 20.0
N = 20


class Group:
    """A cgroup2 group with one below it, a second one beside, and what runs in them."""

    def __init__(self, mount: str) -> None:
        self.cgroup = f"/perphd-test-tcp-{os.getpid()}"
        self.mount = mount
        self.top = mount + self.cgroup
        self.app, self.other, self.below = f"{self.top}/app", f"{self.top}/other", f"{self.top}/app/below"
        self.processes: list[subprocess.Popen[str]] = []
        for path in (self.top, self.app, self.other, self.below):
            os.mkdir(path)

    def serve(self, group: str = "", family: str = "ipv4", move: str = "", **environment: str) -> int:
        """Start a server; its port."""
        argv = [sys.executable, SERVER, group or self.app, family, *([move] if move else [])]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=os.environ | environment)
        self.processes.append(process)
        assert process.stdout is not None
        return int(process.stdout.readline())

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()
        self.processes.clear()
        for path in (self.app, self.other, self.below):
            kill_all(path)

    def close(self) -> None:
        self.stop()
        for path in (self.below, self.app, self.other, self.top):
            if os.path.isdir(path):
                os.rmdir(path)


def kill_all(group: str) -> None:
    """Children that forked servers left."""
    deadline = time.monotonic() + PATIENCE_S
    while os.path.isdir(group) and (pids := Path(group, "cgroup.procs").read_text().split()):
        assert time.monotonic() < deadline, f"{group} does not empty"
        for pid in pids:
            os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.01)


@pytest.fixture
def group() -> Iterator[Group]:
    unified = discover(RealFs()).unified
    assert unified is not None
    made = Group(unified.mount)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def probing(directory: str, ports: tuple[int, ...] = ()) -> Iterator[TcpProbe]:
    probe = TcpProbe(directory, ports=ports)
    try:
        yield probe
    finally:
        probe.close()


def connect(port: int, host: str = "127.0.0.1") -> socket.socket:
    client = socket.create_connection((host, port), timeout=PATIENCE_S)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client


def ask(client: socket.socket, text: str = "echo") -> bytes:
    """One command, and its answer up to the end of the line."""
    client.sendall(f"{text}\n".encode())
    return read_line(client)


def read_line(client: socket.socket, lines: int = 1) -> bytes:
    data = b""
    while data.count(b"\n") < lines:
        piece = client.recv(1 << 16)
        assert piece, "the server closed the connection"
        data += piece
    return data


REQUESTS = (LatencyCounter.STARTED, LatencyCounter.ANSWERED, LatencyCounter.DROPPED, LatencyCounter.SPLIT)
"""A slow host sends segments again now and then: that is REPEATED on their way in, PUSHED on their way out."""


def counted(counts: TcpCounts) -> dict[str, int]:
    return {counter.name: counts[counter] for counter in REQUESTS if counts[counter]}


def settled(probe: TcpProbe, is_so: Callable[[TcpCounts], bool]) -> TcpCounts:
    """The counts once this holds of them: resets and the ends of connections take the kernel a moment."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_so(counts := probe.read()):
        assert time.monotonic() < deadline, counted(counts)
        time.sleep(0.01)
    return counts


EACH = {"STARTED": N, "ANSWERED": N}

# -- which connections are seen -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "host"), [("ipv4", "127.0.0.1"), ("ipv6", "::1"), ("dual", "127.0.0.1"), ("dual", "::1")]
)
def test_every_request_is_counted_once(group: Group, family: str, host: str) -> None:
    port = group.serve(family=family)
    with probing(group.app) as probe, connect(port, host) as client:
        for _ in range(N):
            ask(client)
        assert counted(probe.read()) == EACH
        assert probe.read().waiting == 0


def test_a_server_below_the_group_and_a_connection_from_before(group: Group) -> None:
    port = group.serve(group.below)
    with connect(port) as client:
        ask(client)
        with probing(group.app) as probe:
            for _ in range(N):
                ask(client)
            assert counted(probe.read()) == EACH


def test_a_connection_a_request(group: Group) -> None:
    port = group.serve()
    with probing(group.app) as probe:
        for _ in range(N):
            with connect(port) as client:
                ask(client)
        assert counted(probe.read()) == EACH


def test_another_network_namespace(group: Group) -> None:
    text = f"""
import ctypes, socket, subprocess, sys
assert ctypes.CDLL(None).unshare(0x40000000) == 0
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
argv = [sys.executable, {SERVER!r}, {group.app!r}, "ipv4"]
server = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
client = socket.create_connection(("127.0.0.1", int(server.stdout.readline())), timeout={PATIENCE_S})
for _ in range({N}):
    client.sendall(b"echo\\n")
    client.recv(100)
client.sendall(b"end\\n")
server.wait()
"""
    with probing(group.app) as probe:
        subprocess.run([sys.executable, "-c", text], check=True)
        counts = probe.read()
    assert counts[LatencyCounter.ANSWERED] == N


def test_connections_that_the_group_itself_opened_do_not_count(group: Group) -> None:
    port = group.serve(group.other)
    text = (
        f"import os, socket\nopen({group.app + '/cgroup.procs'!r}, 'w').write(str(os.getpid()))\n"
        f"client = socket.create_connection(('127.0.0.1', {port}))\n"
        f"for _ in range({N}):\n    client.sendall(b'echo\\n')\n    client.recv(100)\n"
    )
    with probing(group.app) as client, probing(group.other) as server:
        subprocess.run([sys.executable, "-c", text], check=True)
        assert counted(client.read()) == {}
        assert server.read()[LatencyCounter.ANSWERED] == N


def test_with_ports_other_connections_do_not_count(group: Group) -> None:
    port, other = group.serve(), group.serve()
    with probing(group.app, (port,)) as probe, connect(port) as client, connect(other) as unseen:
        for _ in range(N):
            ask(client)
            ask(unseen)
        assert counted(probe.read()) == EACH


def test_unix_sockets_are_not_seen(group: Group) -> None:
    path = f"/tmp/perphd-test-tcp-{os.getpid()}.sock"
    try:
        group.serve(family=path)
        with probing(group.app) as probe, socket.socket(socket.AF_UNIX) as client:
            client.settimeout(PATIENCE_S)
            client.connect(path)
            ask(client)
            assert counted(probe.read()) == {}
    finally:
        os.unlink(path)


# -- sockets that belong to another group -------------------------------------------------------------------


def place_of(group: Group, name: str = "app", ports: tuple[int, ...] = ()) -> HookPlace:
    place = find_place(discover(RealFs()), f"{group.cgroup}/{name}", ports)
    assert isinstance(place, HookPlace), place
    return place


def test_the_listeners_of_a_group_are_listed(group: Group) -> None:
    port = group.serve(group.below)
    ids = {one.cgroup_id for one in tcp_listeners() if one.port == port}
    assert ids == {os.stat(group.below).st_ino}
    place = place_of(group)
    assert (place.directory, place.inode, place.ports, place.why) == (
        group.app,
        os.stat(group.app).st_ino,
        (),
        "",
    )


@pytest.mark.parametrize("configured", [True, False])
def test_a_server_that_was_moved_after_it_listened_is_found_where_its_socket_is(
    group: Group, configured: bool
) -> None:
    port = group.serve(group.other, move=group.app)
    with probing(group.app) as own, connect(port) as client:
        ask(client)
        assert counted(own.read()) == {}, "the limit: accepted sockets stay in their listener's group"
        place = place_of(group, ports=(port,) if configured else ())
        assert (place.directory, place.ports) == (group.other, (port,))
        assert f"{group.cgroup}/other" in place.why
        with probing(place.directory, place.ports) as probe:
            for _ in range(N):
                ask(client)
            assert counted(probe.read()) == EACH


def test_a_server_that_began_to_listen_in_the_root_group(group: Group) -> None:
    port = group.serve(group.mount, move=group.app)
    place = place_of(group)
    assert (place.directory, place.ports) == (group.mount, (port,))
    with probing(place.directory, place.ports) as probe, connect(port) as client:
        for _ in range(N):
            ask(client)
        assert counted(probe.read()) == EACH


def test_children_elsewhere_count_where_the_listener_was_made(group: Group) -> None:
    port = group.serve(family="fork", CHILD_GROUP=group.other)
    with probing(group.app) as app, probing(group.other) as other:
        with connect(port) as client:
            for _ in range(N):
                ask(client)
        assert counted(app.read()) == EACH
        assert counted(other.read()) == {}


def test_the_group_is_removed_while_its_sockets_live(group: Group) -> None:
    port = group.serve(group.other, move=group.app)
    os.rmdir(group.other)
    place = place_of(group)
    assert (place.directory, place.ports) == (group.mount, (port,))
    with probing(place.directory, place.ports) as probe, connect(port) as client:
        for _ in range(N):
            ask(client)
        assert counted(probe.read()) == EACH


# -- what one request is ------------------------------------------------------------------------------------


def p50_ms(counts: TcpCounts, first: bool = False) -> float:
    found = percentile_ms(counts.from_first if first else counts.from_last, 0.5)
    assert available(found)
    return found


def test_a_request_in_two_writes_is_one_whose_times_differ(group: Group) -> None:
    port = group.serve()
    with probing(group.app) as probe, connect(port) as client:
        for _ in range(N):
            client.sendall(b"ech")
            time.sleep(0.02)
            client.sendall(b"o\n")
            read_line(client)
        counts = probe.read()
        assert counted(counts) == {**EACH, "SPLIT": N}
        assert p50_ms(counts, first=True) >= 19.0
        assert p50_ms(counts) < p50_ms(counts, first=True) / 2


def test_a_message_without_an_answer_counts_with_the_next_request(group: Group) -> None:
    port = group.serve()
    with probing(group.app) as probe, connect(port) as client:
        for _ in range(N):
            client.sendall(b"note\n")
            time.sleep(0.02)
            ask(client)
        counts = probe.read()
        assert counted(counts) == {**EACH, "SPLIT": N}
        assert p50_ms(counts, first=True) >= 19.0
        assert p50_ms(counts) < p50_ms(counts, first=True) / 2


def test_a_pipelined_batch_is_one(group: Group) -> None:
    port = group.serve()
    with probing(group.app) as probe, connect(port) as client:
        for _ in range(N):
            client.sendall(b"sleep 0.001\n" * 4)
            read_line(client, lines=4)
        counts = probe.read()
        assert counts[LatencyCounter.ANSWERED] == N
        assert counts[LatencyCounter.PUSHED] >= 3 * N


def test_asynchronous_pipelining_is_too_fast_from_the_last_segment(group: Group) -> None:
    port = group.serve()
    with probing(group.app) as probe, connect(port) as client:
        for _ in range(5):
            client.sendall(b"sleep 0.2\n")
            time.sleep(0.02)
            client.sendall(b"sleep 0.2\n")
            read_line(client, lines=2)
        counts = probe.read()
        assert counts[LatencyCounter.ANSWERED] == counts[LatencyCounter.SPLIT] == 5, (
            "two requests are counted as one"
        )
        assert p50_ms(counts, first=True) >= 190.0
        assert p50_ms(counts) < p50_ms(counts, first=True)


def test_what_is_pushed_does_not_count(group: Group) -> None:
    port = group.serve()
    with probing(group.app) as probe, connect(port) as client:
        ask(client, "push 5")
        settled(probe, lambda counts: counts[LatencyCounter.PUSHED] >= 5)
        assert counted(probe.read()) == {"STARTED": 1, "ANSWERED": 1}


def test_a_large_answer_is_one_to_its_first_byte(group: Group) -> None:
    port = group.serve()
    with probing(group.app) as probe, connect(port) as client:
        assert len(ask(client, "big 4000000")) == 4000001
        counts = probe.read()
        assert (counts[LatencyCounter.STARTED], counts[LatencyCounter.ANSWERED]) == (1, 1)
        assert counts[LatencyCounter.PUSHED] > 5


def test_a_blocking_call_counts_with_its_waiting(group: Group) -> None:
    port = group.serve()
    with probing(group.app) as probe, connect(port) as client:
        ask(client, "sleep 0.05")
        counts = probe.read()
        assert counted(counts) == {"STARTED": 1, "ANSWERED": 1}
        assert p50_ms(counts) >= 49.0


def test_idle_time_between_requests_does_not_count(group: Group) -> None:
    port = group.serve()
    with probing(group.app) as probe, connect(port) as client:
        for _ in range(5):
            ask(client)
            time.sleep(0.1)
        assert counted(probe.read()) == {"STARTED": 5, "ANSWERED": 5}
        assert p50_ms(probe.read()) < 90.0


@pytest.mark.parametrize("how", ["fin", "rst"])
def test_a_client_that_gives_up_drops_its_request(group: Group, how: str) -> None:
    port = group.serve()
    with probing(group.app) as probe:
        for _ in range(N):
            client = connect(port)
            client.sendall(b"hang\n")
            settled(probe, lambda counts: counts.waiting == 1)
            if how == "rst":
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
            settled(probe, lambda counts: counts.waiting == 0)
        assert counted(probe.read()) == {"STARTED": N, "DROPPED": N}


def test_a_server_that_closes_without_an_answer_drops_its_request(group: Group) -> None:
    port = group.serve()
    with probing(group.app) as probe:
        with connect(port) as client:
            client.sendall(b"close\n")
            assert client.recv(10) == b""
        assert counted(probe.read()) == {"STARTED": 1, "DROPPED": 1}


def test_a_deferred_accept_hides_the_first_request_of_each_connection(group: Group) -> None:
    port = group.serve(family="defer")
    with probing(group.app) as probe:
        for _ in range(N):
            with connect(port) as client:
                ask(client)
                ask(client)
        counts = probe.read()
    assert counts[LatencyCounter.ANSWERED] == N
    assert counts[LatencyCounter.PUSHED] >= N


def test_ten_thousand_requests_on_many_connections_lose_none(group: Group) -> None:
    port = group.serve()
    with probing(group.app) as probe, ExitStack() as clients:
        every = [clients.enter_context(connect(port)) for _ in range(100)]
        for _ in range(100):
            for client in every:
                client.sendall(b"echo\n")
            for client in every:
                read_line(client)
        counts = probe.read()
        assert counted(counts) == {"STARTED": 10_000, "ANSWERED": 10_000}
        assert int(counts.from_last.sum()) == int(counts.from_first.sum()) == 10_000


# -- attaching and letting go -------------------------------------------------------------------------------


def attached(directory: str) -> tuple[int, int]:
    """Programs that are attached to the group: for what comes in, for what goes out."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        found = [
            len(syscall.attached(fd, direction).programs) for direction in (Attach.INGRESS, Attach.EGRESS)
        ]
        return found[0], found[1]
    finally:
        os.close(fd)


@contextmanager
def others_program(directory: str, flags: int) -> Iterator[None]:
    """Somebody else's program, attached as systemd does: with BPF_PROG_ATTACH."""
    code = Assembler()
    code.move(Register.R0, 1)
    code.exit()
    program = syscall.load_program(code.encode(), Attach.EGRESS, "somebody")
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    attach, detach = 8, 9
    try:
        syscall.call(attach, struct.pack("=IIIII", fd, program, Attach.EGRESS, flags, 0))  # type: ignore[arg-type]
        yield
        assert attached(directory)[1] >= 1, "somebody else's program is gone"
        syscall.call(detach, struct.pack("=IIIII", fd, program, Attach.EGRESS, 0, 0))  # type: ignore[arg-type]
    finally:
        os.close(fd)
        os.close(program)


def test_nothing_is_attached_after_close_and_nothing_is_left_open(group: Group) -> None:
    before = len(os.listdir("/proc/self/fd"))
    probe = TcpProbe(group.app)
    assert attached(group.app) == (1, 1)
    probe.close()
    probe.close()
    assert attached(group.app) == (0, 0)
    assert len(os.listdir("/proc/self/fd")) == before


def test_beside_a_program_that_shares_both_run(group: Group) -> None:
    with others_program(group.app, ALLOW_MULTI):
        with probing(group.app):
            assert attached(group.app) == (1, 2)
        assert attached(group.app) == (0, 1)


@pytest.mark.parametrize("where", ["here", "above"])
def test_an_exclusive_program_is_left_alone_and_named(group: Group, where: str) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with others_program(group.app if where == "here" else group.top, 0):
        with pytest.raises(Denied, match="allows no other") as refused:
            TcpProbe(group.app)
        assert refused.value.errno == errno.EPERM
        assert attached(group.app) == ((0, 1) if where == "here" else (0, 0))
    assert len(os.listdir("/proc/self/fd")) == before


def test_another_group_of_the_same_path_is_not_taken(group: Group) -> None:
    with pytest.raises(Gone):
        TcpProbe(group.app, inode=1)
    with pytest.raises(Gone):
        TcpProbe(f"{group.app}/missing")
    assert attached(group.app) == (0, 0)


def test_a_refused_program_comes_with_the_verifiers_words() -> None:
    code = Assembler()
    code.exit()  # R0 was never set
    with pytest.raises(Denied, match=r"kernel says: .*R0 !read_ok"):
        syscall.load_program(code.encode(), Attach.EGRESS, "wrong")


def test_without_capabilities_the_reason_names_them() -> None:
    assert probe_refusal() == ""
    text = (
        "import os; from perphd.host.tcp_latency import probe_refusal; probe_refusal()\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "print(probe_refusal())"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert "EPERM" in done.stdout
    assert "CAP_BPF" in done.stdout


UNIT = "+dac_override,+net_admin,+perfmon,+sys_nice"
"""What perphd's unit has (and a container may lend; it has CAP_SYS_RESOURCE as well)."""


@pytest.mark.parametrize(("capabilities", "attaches"), [(UNIT, False), (f"{UNIT},+bpf", True)])
def test_the_unit_s_capabilities_are_enough_with_the_drop_in_and_only_then(
    group: Group, capabilities: str, attaches: bool
) -> None:
    text = f"from perphd.host.tcp_latency import TcpProbe; TcpProbe({group.app!r}).close(); print('attached')"
    argv = ["setpriv", f"--bounding-set=-all,{capabilities}", "--inh-caps=-all", sys.executable, "-c", text]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == attaches, done.stderr
    if not attaches:
        assert "CAP_BPF" in done.stderr


# -- the source ---------------------------------------------------------------------------------------------


async def test_the_source_gives_rate_and_latency_and_follows_its_group(group: Group) -> None:
    port = group.serve()
    source = open_source(validate_options("tcp", {}), f"{group.cgroup}/app", discover(RealFs()))
    assert "first reading" in str((await source.read(0.0)).work_rate_per_s)
    with connect(port) as client:
        for _ in range(600):
            ask(client, "sleep 0.0001")
    reading = await source.read(10.0)
    assert reading.work_rate_per_s == pytest.approx(60.0, rel=0.1), (
        "attaching took a moment of the ten seconds"
    )
    for latency in (reading.latency_p50_ms, reading.latency_p95_ms, reading.latency_p99_ms):
        assert available(latency)
        assert latency >= 0.1
    assert isinstance(reading.load_per_s, Unavailable)
    group.stop()
    os.rmdir(group.below)
    os.rmdir(group.app)
    assert "waiting for cgroup" in str((await source.read(20.0)).work_rate_per_s)
    os.mkdir(group.app)
    port = group.serve()
    await source.read(30.0)
    with connect(port) as client:
        for _ in range(150):
            ask(client)
    again = await source.read(40.0)
    assert again.work_rate_per_s == pytest.approx(15.0, rel=0.1)
    assert available(again.latency_p95_ms)
    assert isinstance(again.latency_p99_ms, Unavailable), "150 requests are too few"
    await source.close()
    assert attached(group.app) == (0, 0)
    await source.close()


async def test_requests_that_wait_for_nothing_are_no_latency(group: Group) -> None:
    port = group.serve()
    source = open_source(validate_options("tcp", {}), f"{group.cgroup}/app", discover(RealFs()))
    await source.read(0.0)
    with connect(port) as client:
        for _ in range(100):
            ask(client)
        client.sendall(b"hang\n")
        assert available((await source.read(1.0)).latency_p50_ms)
        stalled = await source.read(2.0)
        assert stalled.work_rate_per_s == 0.0
        assert "none was answered" in str(stalled.latency_p50_ms)
    await source.close()


async def test_nobody_reads_while_it_closes(group: Group) -> None:
    source = open_source(validate_options("tcp", {}), f"{group.cgroup}/app", discover(RealFs()))
    for _ in range(20):
        await asyncio.gather(source.read(0.0), source.close(), source.read(0.0))
    await source.close()
    assert attached(group.app) == (0, 0)
