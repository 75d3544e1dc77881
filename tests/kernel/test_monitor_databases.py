"""SLI sources against real servers, each private to its test: own folder, unix socket only, ended by its pid."""

from __future__ import annotations

import asyncio
import math
import os
import pwd
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pymysql
import pytest

from perphd.domain.reading import Reading, Unavailable, available
from perphd.monitor.sli import SliSource, open_source, postgresql, validate_options
from tests.kernel.monitor_truth import Clients, Told, Truth, pgbench_log, watch, windows

_POSTGRES = "/usr/lib/postgresql/15/bin"
_STARTING_S = 60.0
_FOLDER = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""Memory, where there is some: setting up an empty MariaDB on a busy disk takes half a minute."""


def source(name: str, **options: str) -> SliSource:
    return open_source(validate_options(name, {"timeout_s": "20", **options}))


def reason(reading: Reading) -> str:
    assert isinstance(reading, Unavailable)
    return reading.reason


@contextmanager
def running(argv: list[str], socket: Path, user: str | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A server until the end of the block; it is ready once its socket is there."""
    with open(socket.parent / "log", "ab") as log:
        server = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, user=user)
    try:
        give_up = time.monotonic() + _STARTING_S
        while not socket.exists():
            assert server.poll() is None, (socket.parent / "log").read_text()
            assert time.monotonic() < give_up, "the server does not come up"
            time.sleep(0.05)
        yield server
    finally:
        server.terminate()
        try:
            server.wait(timeout=_STARTING_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


# -- MariaDB ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mariadb() -> Iterator[tuple[Path, list[str]]]:
    """(socket, command line) of an empty server with the account perphd, which has no privileges."""
    if shutil.which("mariadbd") is None or shutil.which("mariadb-install-db") is None:
        pytest.skip("needs mariadbd and mariadb-install-db (Debian package mariadb-server)")
    user = pwd.getpwuid(os.geteuid()).pw_name
    # A socket's path is limited to 107 characters: no room for pytest's folders.
    with tempfile.TemporaryDirectory(prefix="perphd-test-monitor-", dir=_FOLDER) as folder:
        home = Path(folder)
        common = ["--no-defaults", f"--datadir={home}/data", f"--user={user}"]
        made = subprocess.run(
            ["mariadb-install-db", *common, "--auth-root-authentication-method=normal", "--skip-test-db"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert made.returncode == 0, made.stdout + made.stderr
        small = ["--innodb-buffer-pool-size=16M", "--innodb-log-file-size=8M", "--skip-log-bin"]
        argv = [
            "mariadbd",
            *common,
            *small,
            "--skip-networking",
            f"--socket={home}/my.sock",
            f"--pid-file={home}/pid",
        ]
        (home / "password").write_text("secret\nsecond line\n")
        yield home / "my.sock", argv


def connect(socket: Path) -> Any:
    return pymysql.connect(unix_socket=str(socket), user="root", autocommit=True)


async def test_mariadb_queries_transactions_and_restart(mariadb: tuple[Path, list[str]]):
    socket, argv = mariadb
    queries = source("mysql", socket=str(socket), password_file=str(socket.parent / "password"))
    transactions = source(
        "mysql", socket=str(socket), password_file=str(socket.parent / "password"), metric="transactions"
    )
    with running(argv, socket), connect(socket) as root, root.cursor() as cursor:
        refused = await queries.read(-1000.0)
        assert "Access denied" in reason(refused.work_rate_per_s)
        cursor.execute("CREATE USER perphd@localhost IDENTIFIED BY 'secret'")
        for asked in (queries, transactions):
            assert "first reading" in reason((await asked.read(0.0)).work_rate_per_s)
        for _ in range(50):
            for statement in ("BEGIN", "SELECT 1", "COMMIT"):
                cursor.execute(statement)
        # The transaction source asked once and connected once in between, beside the 150 statements.
        reading = await queries.read(1000.0)
        assert available(reading.work_rate_per_s)
        assert 150 <= reading.work_rate_per_s * 1000.0 <= 155
        assert not available(reading.load_per_s)
        done = (await transactions.read(1000.0)).work_rate_per_s
        assert available(done)
        assert done * 1000.0 == pytest.approx(50, rel=0.02)
        cursor.execute("FLUSH STATUS")
    assert (await queries.read(2000.0)).is_missing()
    with running(argv, socket):
        after = [await queries.read(3000.0 + 1000.0 * n) for n in range(3)]
        assert "restarted" in reason(after[0].work_rate_per_s)
        assert available(after[1].work_rate_per_s)
        quiet = after[2].work_rate_per_s
        assert available(quiet)
        assert quiet == 0.0  # its own questions are not work
    await queries.close()
    await transactions.close()


def timed(ask: Any, times: int) -> float:
    """The median of the asker's own milliseconds."""
    spans = []
    for _ in range(times):
        began_s = time.monotonic()
        ask()
        spans.append(1000.0 * (time.monotonic() - began_s))
    return statistics.median(spans)


async def test_mariadb_tells_the_latency_of_its_statements(mariadb: tuple[Path, list[str]]):
    socket, argv = mariadb
    options = {"socket": str(socket), "user": "timed", "latency": "server"}
    with running(argv, socket), connect(socket) as root, root.cursor() as cursor:
        cursor.execute("CREATE USER timed@localhost")
        asked = source("mysql", **options)
        without = await asked.read(0.0)
        await asked.close()
        assert "query_response_time" in reason(without.latency_p95_ms)
    with (
        running([*argv, "--plugin-load-add=query_response_time"], socket),
        connect(socket) as root,
        root.cursor() as cursor,
    ):
        asked = source("mysql", **options)
        cursor.execute("GRANT PROCESS ON *.* TO timed@localhost")
        assert "is off" in reason((await asked.read(0.0)).latency_p95_ms)
        cursor.execute("SET GLOBAL query_response_time_stats = 1")
        assert "too far apart" in reason((await asked.read(5.0)).latency_p95_ms)
        cursor.execute("SET GLOBAL query_response_time_range_base = 2")
        cursor.execute("SET GLOBAL query_response_time_flush = 1")
        await asked.read(10.0)
        told_ms = timed(lambda: cursor.execute("SELECT SLEEP(0.005)"), 150)
        reading = await asked.read(20.0)
        for latency in (reading.latency_p50_ms, reading.latency_p95_ms):
            assert available(latency)
            assert latency >= 2.5  # buckets double
        assert available(reading.latency_p50_ms)
        assert reading.latency_p50_ms <= 2.0 * told_ms
        assert reading.work.events == 150  # its own questions are not work
        assert not available(reading.latency_p99_ms)  # of 150
        await asked.close()


# -- PostgreSQL ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def postgres() -> Iterator[tuple[Path, list[str], str]]:
    """(socket, command line, account to run as) of an empty server with the role perphd."""
    if not os.path.exists(f"{_POSTGRES}/initdb"):
        pytest.skip("needs PostgreSQL 15 (Debian package postgresql-15)")
    if os.geteuid() != 0:
        pytest.skip("needs root to start PostgreSQL as the account nobody")
    with tempfile.TemporaryDirectory(prefix="perphd-test-monitor-", dir=_FOLDER) as folder:
        home = Path(folder)
        shutil.chown(home, "nobody")
        subprocess.run(
            [f"{_POSTGRES}/initdb", "-D", f"{home}/data", "-A", "trust", "-U", "perphd", "--no-sync"],
            user="nobody",
            cwd=home,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        options = [
            "-k",
            str(home),
            "-h",
            "",
            "-c",
            "shared_buffers=8MB",
            "-c",
            "fsync=off",
            "-c",
            "autovacuum=off",
        ]
        yield home / ".s.PGSQL.5432", [f"{_POSTGRES}/postgres", "-D", f"{home}/data", *options], "nobody"


@contextmanager
def postgres_running(argv: list[str], socket: Path, user: str) -> Iterator[None]:
    """The server until the end of the block; it has its socket before it takes connections."""
    import pg8000.native

    with running(argv, socket, user):
        give_up = time.monotonic() + _STARTING_S
        while True:
            try:
                pg8000.native.Connection("perphd", unix_sock=str(socket), database="template1").close()
                break
            except (pg8000.native.Error, pg8000.native.InterfaceError):
                assert time.monotonic() < give_up, (socket.parent / "log").read_text()
                time.sleep(0.05)
        yield


async def counted(asked: SliSource, least: float) -> float:
    """Transactions in this source's readings, from now until there are so many."""
    seen = 0.0
    give_up = time.monotonic() + _STARTING_S
    while seen < least:
        reading = await asked.read(time.monotonic())
        if available(reading.work_rate_per_s) and available(reading.work.window_s):
            seen += reading.work_rate_per_s * reading.work.window_s
        assert time.monotonic() < give_up, f"{seen} of {least}: {reading.work_rate_per_s}"
        await asyncio.sleep(0.1)
    return seen


async def test_postgresql_transactions(postgres: tuple[Path, list[str], str]):
    import pg8000.native

    socket, argv, user = postgres
    with postgres_running(argv, socket, user):
        everything = source("postgresql", socket=str(socket))
        missing = source("postgresql", socket=str(socket), database="nowhere")
        one = source("postgresql", socket=str(socket), database="template1")
        for asked in (everything, one):
            first = (await asked.read(0.0)).work_rate_per_s
            assert "first reading" in reason(first)
        assert "no database 'nowhere'" in reason((await missing.read(0.0)).work_rate_per_s)
        await asyncio.sleep(1.5)  # what is reported at first was done before the first reading
        client = pg8000.native.Connection("perphd", unix_sock=str(socket), database="template1")
        for _ in range(100):
            client.run("SELECT 1")
        client.close()  # the end of a connection reports its counts at once
        for asked in (one, everything):
            assert 99.5 < await counted(asked, 99.5) < 150
        quiet: list[float] = []
        while len(quiet) < 3:
            await asyncio.sleep(0.3)
            rate = (await everything.read(time.monotonic())).work_rate_per_s
            quiet += [rate] if available(rate) else []
        assert quiet[-1] == 0.0, "its own looks are not work"
        for asked in (everything, one, missing):
            await asked.close()


async def test_postgresql_counts_a_database_that_came_later(postgres: tuple[Path, list[str], str]):
    import pg8000.native

    socket, argv, user = postgres
    with postgres_running(argv, socket, user), patch.object(postgresql, "NEW_DATABASES_S", 0.0):
        everything = source("postgresql", socket=str(socket))
        await everything.read(0.0)
        with closing(
            pg8000.native.Connection("perphd", unix_sock=str(socket), database="template1")
        ) as client:
            client.run("CREATE DATABASE later TEMPLATE template0")
        with closing(pg8000.native.Connection("perphd", unix_sock=str(socket), database="later")) as client:
            begun = asyncio.create_task(counted(everything, 150))
            while not begun.done():
                client.run("SELECT count(*) FROM pg_class")
                await asyncio.sleep(0.01)
            assert begun.result() >= 150
        await everything.close()


# -- no reading is an artefact of a source's resolution -------------------------------------------------------

_PACES_S = (0.1, 0.25, 0.5, 1.0)
_WATCHED_S = float(os.environ.get("PERPHD_TEST_WATCH_S", "6"))
_UNTIL_STEADY_S = 3.0
"""Every backend has reported by then."""


async def watched(name: str, **options: str) -> dict[float, list[Told]]:
    """A source of this kind at every pace at once, each with a connection of its own."""
    until_s = time.time() + _WATCHED_S
    found = await asyncio.gather(*(watch(source(name, **options), pace_s, until_s) for pace_s in _PACES_S))
    return dict(zip(_PACES_S, found, strict=True))


def told_figures(name: str, pace_s: float, found: list[Told], truth: Truth) -> None:
    """For longer runs (PERPHD_TEST_WATCH_S, -s): what was read, beside what the clients counted."""
    off = [
        (one.events - truth.between(one.at_s - one.window_s, one.at_s)) / one.sigma
        for one in found
        if one.events is not None
    ]
    rates = [one.events / one.window_s for one in found if one.events is not None]
    began_s, ended_s = found[0].at_s - found[0].window_s, found[-1].at_s
    rms = math.sqrt(sum(o * o for o in off) / len(off))
    print(
        f"{name} every {pace_s:g} s: {len(found)} readings, {min(rates):.0f} to {max(rates):.0f}/s, "
        f"true {truth.between(began_s, ended_s) / (ended_s - began_s):.0f}/s, "
        f"off by {min(off):+.1f} to {max(off):+.1f} sigma, rms {rms:.2f}"
    )


FARTHEST = 6.0
"""Sigmas. What is done between two reports is as uneven as the host is full: the tail is no Gaussian's."""
_LOADS = [(8, 400), (4, 0), (1, 0), *([(2, 0), (8, 0)] if _WATCHED_S > 10.0 else [])]


@pytest.mark.flaky(reruns=2, reruns_delay=5)  # the host is measured with it
@pytest.mark.parametrize(("clients", "rate"), _LOADS)
async def test_postgresql_readings_cover_its_reports(
    postgres: tuple[Path, list[str], str], clients: int, rate: int
):
    socket, argv, user = postgres
    with postgres_running(argv, socket, user), tempfile.TemporaryDirectory(dir=_FOLDER) as folder:
        script = Path(folder) / "script"
        # Transactions that touch no table are not reported until another one does.
        work = "SELECT relname FROM pg_class WHERE oid = 1259"
        script.write_text(f"{work};\n" if rate else f"{work} AND pg_sleep(0.002) IS NOT NULL;\n")
        load = await asyncio.create_subprocess_exec(
            *[
                *(f"{_POSTGRES}/pgbench", "-h", str(socket.parent), "-U", "perphd", "-n", "-c", str(clients)),
                *("-T", f"{_WATCHED_S + _UNTIL_STEADY_S + 2:.0f}", "-f", str(script), "--log"),
                *(("-R", str(rate)) if rate else ()),
                "postgres",
            ],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        try:
            await asyncio.sleep(_UNTIL_STEADY_S)
            readings = await watched(
                "postgresql", socket=str(socket), database="postgres", connect_database="template1"
            )
        finally:
            assert await asyncio.wait_for(load.wait(), 60.0) == 0
        truth = pgbench_log(Path(folder))
    assert len(truth.clients) == clients
    off: list[float] = []
    late_s = 1.0 + truth.longest_gap_s  # a backend reports at the end of its first transaction after a second
    for pace_s, told in readings.items():
        found = [one for one in told if one.events is not None]
        assert found, "there are readings"
        told_figures(f"PostgreSQL, {clients} clients", pace_s, found, truth)
        for before, one in pairwise(found):
            assert one.at_s - one.window_s == pytest.approx(before.at_s, abs=0.01), "no gap, nothing twice"
        for one in found:
            assert one.events is not None
            assert one.window_s >= 0.9, "nothing is told of less than its resolution"
            done = truth.between(one.at_s - one.window_s, one.at_s)
            off.append((one.events - done) / one.sigma)
            assert abs(off[-1]) <= FARTHEST, (one, done)
        began_s, ended_s = found[0].at_s - found[0].window_s, found[-1].at_s
        total = sum(one.events for one in found if one.events is not None)
        most = truth.between(began_s - late_s, found[-1].answered_s) + 2 * clients
        assert total <= most, "none is counted twice"
        assert total >= truth.between(began_s, ended_s - late_s), "none is lost"
    assert math.sqrt(sum(o * o for o in off) / len(off)) <= 2.5, "sigma is what it says"


def assert_exact(
    name: str, readings: dict[float, list[Told]], truth: Truth, clients: int, per_ask: float
) -> None:
    """A counter that is exact at any moment was read between the question and the answer."""
    for pace_s, told in readings.items():
        pairs = windows(told)
        assert len(pairs) == len(told) - 1, "every reading but the first is due"
        told_figures(name, pace_s, [one for _, one in pairs], truth)
        for first, one in pairs:
            assert one.events is not None
            asked = sum(
                len([t for t in other if first.asked_s <= t.answered_s and t.asked_s <= one.answered_s])
                for other in readings.values()
            )
            doubt = 2 * clients + per_ask * asked + 4 * len(readings)
            assert one.events <= truth.between(first.asked_s, one.answered_s) + doubt
            assert one.events >= truth.between(first.answered_s, one.asked_s) - doubt


async def test_mariadb_readings_are_exact_at_any_pace(mariadb: tuple[Path, list[str]]):
    socket, argv = mariadb

    def ask() -> Any:
        cursor = connect(socket).cursor()
        return lambda: cursor.execute("SELECT 1")

    with running(argv, socket):
        with connect(socket) as root, root.cursor() as cursor:
            cursor.execute("CREATE USER IF NOT EXISTS perphd@localhost")
            cursor.execute("ALTER USER perphd@localhost IDENTIFIED BY 'secret'")
        password = str(socket.parent / "password")
        with Clients(ask, 4, 0.002) as load:
            await asyncio.sleep(0.5)
            readings = await watched("mysql", socket=str(socket), password_file=password)
        assert_exact("MariaDB", readings, load.truth, 4, per_ask=1.0)


async def test_redis_readings_are_exact_at_any_pace():
    import redis

    if shutil.which("redis-server") is None:
        pytest.skip("needs redis-server (Debian package redis-server)")
    with tempfile.TemporaryDirectory(prefix="perphd-test-monitor-", dir=_FOLDER) as folder:
        socket = Path(folder) / "redis.sock"
        argv = ["redis-server", "--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", folder]

        def ask() -> Any:
            client = redis.Redis(unix_socket_path=str(socket))
            return lambda: client.set("key", "value")

        with running(argv, socket):
            with Clients(ask, 4, 0.002) as load:
                await asyncio.sleep(0.5)
                readings = await watched("redis", socket=str(socket))
            assert_exact("Redis", readings, load.truth, 4, per_ask=1.0)


async def test_an_account_that_may_only_ask_info_suffices_for_redis():
    import redis

    if shutil.which("redis-server") is None:
        pytest.skip("needs redis-server (Debian package redis-server)")
    with tempfile.TemporaryDirectory(prefix="perphd-test-monitor-", dir=_FOLDER) as folder:
        socket, password = Path(folder) / "redis.sock", Path(folder) / "password"
        password.write_text("secret\n")
        argv = ["redis-server", "--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", folder]
        with running(argv, socket):
            client = redis.Redis(unix_socket_path=str(socket))
            client.execute_command("ACL", "SETUSER", "perphd", "on", ">secret", "+info")
            asked = source("redis", socket=str(socket), user="perphd", password_file=str(password))
            assert reason((await asked.read(0.0)).work_rate_per_s) == "first reading: a rate needs two"
            for _ in range(5):
                client.get("key")
            client.slowlog_get()
            await asked.close()  # it connects again
            assert (await asked.read(10.0)).work.events == 5
            await asked.close()
            client.close()


async def test_redis_tells_the_latency_of_its_commands():
    import redis

    if shutil.which("redis-server") is None:
        pytest.skip("needs redis-server (Debian package redis-server)")
    with tempfile.TemporaryDirectory(prefix="perphd-test-monitor-", dir=_FOLDER) as folder:
        socket = Path(folder) / "redis.sock"
        argv = ["redis-server", "--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", folder]
        with running(argv, socket):
            client = redis.Redis(unix_socket_path=str(socket))
            version = client.info("server")["redis_version"]
            if int(version.split(".")[0]) < 7:
                pytest.skip(f"Redis {version} has no LATENCY HISTOGRAM")
            asked = source("redis", socket=str(socket), latency="server")
            empty = await asked.read(0.0)
            assert "latency-tracking" in reason(empty.latency_p95_ms)
            slow = "for i = 1, 200000 do end return 1"
            client.eval(slow, 0)
            await asked.read(10.0)
            client.config_set("slowlog-log-slower-than", 0)
            client.config_set("slowlog-max-len", 1000)
            for _ in range(120):
                client.eval(slow, 0)
            spans = [e["duration"] for e in client.slowlog_get(1000) if e["command"].startswith(b"EVAL")]
            told_ms = statistics.median(spans) / 1000.0
            client.blpop("nobody", timeout=0.5)
            reading = await asked.read(20.0)
            assert available(reading.latency_p50_ms)
            assert len(spans) == 120
            assert 0.48 * told_ms <= reading.latency_p50_ms <= 2.05 * told_ms  # buckets double
            events = reading.work.events
            assert available(events)
            assert (
                events == 121
            )  # the scripts and BLPOP: its own questions and the test's own settings are no work
            client.execute_command("ACL", "SETUSER", "default", "-latency")
            refused = await asked.read(30.0)
            assert "LATENCY HISTOGRAM" in reason(refused.latency_p95_ms)
            assert available(refused.work_rate_per_s)
            await asked.close()
            client.close()
