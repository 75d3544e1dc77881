"""SLI sources against real servers, each private to its test: own folder, unix socket only, ended by its pid."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pymysql
import pytest

from perphd.domain.reading import Reading, Unavailable, available
from perphd.monitor.sli import SliSource, open_source, validate_options

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


async def test_postgresql_transactions(postgres: tuple[Path, list[str], str]):
    import pg8000.native

    socket, argv, user = postgres
    with running(argv, socket, user):
        everything = source("postgresql", socket=str(socket))
        missing = source("postgresql", socket=str(socket), database="nowhere")
        one = source("postgresql", socket=str(socket), database="template1")
        for asked in (everything, one):
            first = (await asked.read(0.0)).work_rate_per_s
            assert "first reading" in reason(first)
        assert "no database 'nowhere'" in reason((await missing.read(0.0)).work_rate_per_s)
        client = pg8000.native.Connection("perphd", unix_sock=str(socket), database="template1")
        for _ in range(100):
            client.run("SELECT 1")
        client.close()  # the end of a connection reports its counts at once
        seen, last_s = 0.0, 0.0
        for n in range(100):  # its counts may come in parts, the last when the server's process has ended
            now_s = 1000.0 + n
            done = (await one.read(now_s)).work_rate_per_s
            assert available(done)
            seen, last_s = seen + done * (now_s - last_s), now_s
            if seen > 99.5:
                break
            await asyncio.sleep(0.05)
        total = (await everything.read(1100.0)).work_rate_per_s
        assert available(total)
        assert 100 <= total * 1100.0 < 250
        for asked in (everything, one, missing):
            await asked.close()
