"""A private MariaDB server: its own data folder and socket, on loopback only, removed with the lab."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

from tools.lab.latency import Histogram
from tools.lab.load import Load, Reporting, Running, Second
from tools.lab.processes import LabError, Ledger
from tools.lab.servers import tpch
from tools.lab.servers.seam import NATIVE, Place, Unavailable, free_port, need, run, wait_until

TABLES = 4
TABLE_ROWS = 50_000
CLOSED_THREADS = 4
OPEN_RATE, OPEN_THREADS = 500, 16
SLAP_CLIENTS, SLAP_CHUNK = 4, 25_000
WAREHOUSES, TPCC_CLIENTS = 2, 4
TPCC_OPEN_RATE, TPCC_OPEN_THREADS = 60, 16
TPCH_STREAMS = 2
DATABASE = "sbtest"
_CLIENT = "sysbench"
READER, READER_PASSWORD = "perphd", "perphd-lab"
"""The account from which perphd reads status counters: it may log in and nothing else."""

LOADS = (
    Load("closed", "mariadb", "transactions",
         f"sysbench oltp_read_write, closed loop, {CLOSED_THREADS} clients as fast as they can"),
    Load("open", "mariadb", "transactions",
         f"sysbench oltp_read_write, open loop, {OPEN_RATE} transactions/s arrive whatever happens "
         f"({OPEN_THREADS} connections); latency counts from arrival", open_loop=True),
    Load("slap", "mariadb", "queries",
         f"mysqlslap, {SLAP_CLIENTS} clients, {SLAP_CHUNK} range queries at a time, over and over "
         "(it reports no latencies)"),
    Load("tpcc", "mariadb", "transactions",
         f"TPC-C's five transactions, {WAREHOUSES} warehouses, closed loop, {TPCC_CLIENTS} clients that do not think"),
    Load("tpcc-open", "mariadb", "transactions",
         f"TPC-C's five transactions, {WAREHOUSES} warehouses, open loop, {TPCC_OPEN_RATE} transactions/s "
         f"({TPCC_OPEN_THREADS} connections); latency counts from arrival", open_loop=True),
    Load("tpch", "mariadb", "queries",
         f"TPC-H's 22 queries at scale factor {tpch.SCALE_FACTOR:g}, closed loop, {TPCH_STREAMS} streams; "
         "rates from whole passes of all queries", slow=True, cycle=tpch.QUERIES),
)  # fmt: skip
_CONFIG = """\
[mariadbd]
datadir={folder}/data
socket={folder}/mariadb.sock
pid-file={folder}/mariadb.pid
log-error={folder}/error.log
tmpdir={folder}
local-infile=1
bind-address=127.0.0.1
port={port}
skip-log-bin
skip-name-resolve
performance-schema=OFF
innodb_buffer_pool_size=1G
innodb_log_file_size=256M
# The lab measures CPU and memory: a commit does not wait for the disk.
innodb_flush_log_at_trx_commit=0
"""


class MariaDb:
    """One server, started in the given cgroup directories."""

    def __init__(self, place: Place) -> None:
        need(
            ("mariadbd", "mariadb-install-db", "mariadb", "mysqlslap", "sysbench"),
            "mariadb-server mariadb-client sysbench",
        )
        self.folder = folder = place.data
        self.socket = folder / "mariadb.sock"
        self.port = free_port()
        self._place, self._ledger = place, place.ledger
        self._password = secrets.token_hex(16)
        self._loaded: set[str] = set()
        try:
            self._user = pwd.getpwnam("mysql").pw_name
        except KeyError as exc:
            raise Unavailable("there is no user mysql: is mariadb-server installed?") from exc
        config = folder / "my.cnf"
        config.write_text(_CONFIG.format(folder=folder, port=self.port))
        os.chmod(folder, 0o700)  # its socket is accessible to all users
        shutil.chown(folder, self._user)
        run(
            "mariadb-install-db",
            f"--defaults-file={config}",
            f"--user={self._user}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
        )
        self.process = self._ledger.start(
            ["mariadbd", f"--defaults-file={config}"], groups=place.groups, user=self._user, end_signal="KILL"
        )
        wait_until(self._answers, self.process, folder / "error.log", "mariadbd")
        self.sql(
            # Remove root's accounts for other hosts, which every user of this machine could use over TCP.
            "DELETE FROM mysql.global_priv WHERE User = 'root' AND Host != 'localhost'; FLUSH PRIVILEGES;"
            f"CREATE USER '{READER}'@'localhost' IDENTIFIED BY '{READER_PASSWORD}';"
            f"CREATE USER '{_CLIENT}'@'127.0.0.1' IDENTIFIED BY '{self._password}'"
        )

    def _answers(self) -> bool:
        if not self.socket.exists():
            return False
        try:
            self.sql("SELECT 1")
        except LabError:
            return False
        return True

    @property
    def pids(self) -> Sequence[int]:
        """The server's process."""
        return (self.process.pid,)

    def sql(self, statement: str) -> str:
        """Run a statement as root; the rows as tab-separated text."""
        return run(
            "mariadb", "--no-defaults", f"--socket={self.socket}", "-uroot", "-N", "-B", "-e", statement
        )

    def client(self, prefix: str = "") -> list[str]:
        """Options with which a load generator connects, as a remote client would: over TCP."""
        values = {"host": "127.0.0.1", "port": str(self.port), "user": _CLIENT, "password": self._password}
        return [f"--{prefix}{name}={value}" for name, value in values.items()]

    def _sysbench(self, script: str, database: str, *arguments: str) -> list[str]:
        return [
            "sysbench", str(NATIVE / script), *self.client("mysql-"), f"--mysql-db={database}", *arguments
        ]  # fmt: skip

    def _oltp(self, *arguments: str) -> list[str]:
        return self._sysbench(
            "oltp.lua", DATABASE, f"--tables={TABLES}", f"--table-size={TABLE_ROWS}", *arguments
        )

    def _tpcc(self, *arguments: str) -> list[str]:
        warehouses = WAREHOUSES * self._place.scale
        return self._sysbench("tpcc.lua", "tpcc", f"--warehouses={warehouses}", *arguments)

    def prepare(self, load: Load) -> None:
        """Create the database of a load and its tables."""
        database = load.name.partition("-")[0] if load.name.startswith("tpc") else DATABASE
        if database in self._loaded:
            return
        self.sql(f"CREATE DATABASE {database}; GRANT ALL ON {database}.* TO '{_CLIENT}'@'127.0.0.1'")
        if database == DATABASE:
            run(*self._oltp("--threads=2", "prepare"))
        elif database == "tpcc":
            run(*self._tpcc(f"--threads={os.cpu_count() or 1}", "prepare"), wait_s=1800.0)
        else:
            tpch.fill(self._place.folder, self._tpch(), self.environment(), wait_s=1800.0)
        self._loaded.add(database)

    def _tpch(self) -> list[str]:
        return [sys.executable, "-m", "tools.lab.servers.tpch", str(self.port), _CLIENT]

    def version(self) -> str:
        """The server's version."""
        return f"MariaDB {self.sql('SELECT VERSION()').strip().partition('-')[0]}"

    def sli(self) -> str:
        """Statements per second."""
        password = self._place.folder / "password"
        password.touch(mode=0o600)
        password.write_text(READER_PASSWORD + "\n")
        return (
            f'source = "mysql"\nsocket = "{self.socket}"\nuser = "{READER}"\npassword_file = "{password}"\n'
        )

    def start(self, load: Load, groups: list[str]) -> Running:
        """Start one of its loads."""
        scale = self._place.scale
        forever = ("--time=0", "--report-interval=1", "run")
        if load.name == "slap":
            return Mysqlslap(self._ledger, self, scale, groups)
        if load.name == "tpch":
            return Reporting(
                self._ledger, [*self._tpch(), "run", str(TPCH_STREAMS * scale)], groups, self.environment()
            )
        loops = {
            "closed": self._oltp(f"--threads={CLOSED_THREADS * scale}", *forever),
            "open": self._oltp(f"--threads={OPEN_THREADS * scale}", f"--rate={OPEN_RATE * scale}", *forever),
            "tpcc": self._tpcc(f"--threads={TPCC_CLIENTS * scale}", *forever),
            "tpcc-open": self._tpcc(
                f"--threads={TPCC_OPEN_THREADS * scale}", f"--rate={TPCC_OPEN_RATE * scale}", *forever
            ),
        }
        return Reporting(self._ledger, loops[load.name], groups)

    def environment(self) -> dict[str, str]:
        """Environment variables for the clients written in Python."""
        return {"PYTHONPATH": str(NATIVE.parents[2]), "LAB_PASSWORD": self._password}

    def stop(self) -> None:
        """End the server."""
        self._ledger.end(self.process, signal.SIGTERM, 30.0)


class Mysqlslap:
    """Consecutive mysqlslap runs of a fixed number of queries, until stopped; each run is a record."""

    def __init__(self, ledger: Ledger, server: MariaDb, scale: int, groups: list[str]) -> None:
        self._ledger, self._groups, self._queries = ledger, groups, SLAP_CHUNK * scale
        self._command = [
            "mysqlslap", "--no-defaults", *server.client(), f"--create-schema={DATABASE}",
            f"--concurrency={SLAP_CLIENTS * scale}", f"--number-of-queries={self._queries}", "--query",
            f"SELECT SUM(k) FROM sbtest1 WHERE id BETWEEN {TABLE_ROWS // 2} AND {TABLE_ROWS // 2 + 99}",
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    def __iter__(self) -> Iterator[Second]:
        while True:
            began_s = time.monotonic()
            self._process = self._ledger.start(
                self._command, groups=self._groups, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
            assert self._process.stdout is not None
            output = self._process.stdout.read().decode(errors="replace")
            process, self._process = self._process, None
            status = self._ledger.end(process)
            if status != 0:
                raise LabError(f"mysqlslap ended with status {status}: {output[-2000:]}")
            now_s = time.monotonic()
            yield Second(now_s, now_s - began_s, self._queries, 0, Histogram())

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            self._ledger.end(self._process)
