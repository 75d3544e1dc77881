"""A private PostgreSQL with pgbench's TPC-B-like transactions."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools.lab.latency import Histogram
from tools.lab.load import Load, Running, Second
from tools.lab.processes import LabError, Ledger
from tools.lab.servers.seam import Place, Unavailable, family, free_port, run, wait_until

CLIENTS = 4
OPEN_RATE, OPEN_CLIENTS = 400, 16
SCALE = 10
LOADS = (
    Load("pgbench", "postgresql", "transactions", f"pgbench's TPC-B-like transactions, closed loop, {CLIENTS} clients"),
    Load("pgbench-open", "postgresql", "transactions",
         f"pgbench's TPC-B-like transactions, open loop, {OPEN_RATE} transactions/s ({OPEN_CLIENTS} connections); "
         "latency counts from arrival", open_loop=True),
)  # fmt: skip
_CONFIG = """\
listen_addresses = '127.0.0.1'
port = {port}
unix_socket_directories = '{folder}'
shared_buffers = 256MB
max_connections = 512
fsync = off
synchronous_commit = off
full_page_writes = off
logging_collector = off
"""
_POLL_S = 0.2
_LATE_S = 0.6
"""pgbench buffers its log: a second is complete after a line this many seconds later was read."""


class PostgreSql:
    """One cluster in a folder of its own."""

    def __init__(self, place: Place) -> None:
        self._bin = _programs()
        self._ledger, self._scale = place.ledger, place.scale
        try:
            self._user = pwd.getpwnam("postgres").pw_name
        except KeyError as exc:
            raise Unavailable("there is no user postgres: apt-get install postgresql-15") from exc
        self.folder, self.port = place.data, free_port()
        self._logs = place.folder
        shutil.chown(self.folder, self._user)
        os.chmod(self.folder, 0o700)
        data = self.folder / "data"
        self._as_user("initdb", "-D", str(data), "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C")
        with (data / "postgresql.conf").open("a") as config:
            config.write(_CONFIG.format(port=self.port, folder=self.folder))
        # Only root and the server's account can use the socket, and only the load's role TCP.
        (data / "pg_hba.conf").write_text("local all all trust\nhost bench bench 127.0.0.1/32 trust\n")
        log = place.folder / "postgresql.log"
        with log.open("wb") as output:
            self.process = self._ledger.start(
                [f"{self._bin}/postgres", "-D", str(data)],
                groups=place.groups, user=self._user, stdout=output, stderr=output,
            )  # fmt: skip
        wait_until(self._answers, self.process, log, "postgres")
        self._is_filled = False

    def _as_user(self, program: str, *arguments: str) -> str:
        ids = ["--reuid", self._user, "--regid", self._user, "--init-groups"]
        return run("setpriv", *ids, f"{self._bin}/{program}", *arguments)

    def _answers(self) -> bool:
        try:
            self._psql("SELECT 1")
        except LabError:
            return False
        return True

    def _psql(self, statement: str, database: str = "postgres") -> str:
        return run(
            f"{self._bin}/psql", "-h", str(self.folder), "-p", str(self.port), "-U", self._user, "-d", database,
            "-Atqc", statement,
        )  # fmt: skip

    @property
    def pids(self) -> Sequence[int]:
        """The postmaster and its children."""
        return family(self.process.pid)

    def version(self) -> str:
        """The server's version."""
        return f"PostgreSQL {self._psql('SHOW server_version').split()[0]}"

    def sli(self) -> str:
        """Transactions per second."""
        socket = self.folder / f".s.PGSQL.{self.port}"
        return f'source = "postgresql"\nsocket = "{socket}"\nuser = "{self._user}"\ndatabase = "bench"\n'

    def prepare(self, load: Load) -> None:
        """Create pgbench's tables."""
        if not self._is_filled:
            self._psql("CREATE ROLE bench LOGIN")
            self._psql("CREATE DATABASE bench OWNER bench")
            run(*self._pgbench("-i", "-q", "-s", str(SCALE * self._scale)), wait_s=1800.0)
            self._is_filled = True

    def _pgbench(self, *arguments: str) -> list[str]:
        return [
            f"{self._bin}/pgbench", "-h", "127.0.0.1", "-p", str(self.port), "-U", "bench", *arguments, "bench"
        ]  # fmt: skip

    def start(self, load: Load, groups: list[str]) -> Running:
        """Start pgbench."""
        clients = (OPEN_CLIENTS if load.open_loop else CLIENTS) * self._scale
        rate = ["-R", str(OPEN_RATE * self._scale)] if load.open_loop else []
        folder = Path(tempfile.mkdtemp(prefix="pgbench-", dir=self._logs))
        command = self._pgbench(
            "-n", "-c", str(clients), "-T", "86400", *rate, "-l", f"--log-prefix={folder}/log"
        )
        return Pgbench(self._ledger, command, folder, groups)

    def stop(self) -> None:
        """End the server."""
        self._ledger.end(self.process, signal.SIGINT, 30.0)


class Pgbench:
    """A running pgbench, whose log of every transaction becomes records of one second."""

    def __init__(self, ledger: Ledger, command: Sequence[str], folder: Path, groups: list[str]) -> None:
        self._ledger, self._folder = ledger, folder
        self._output = folder / "output"
        with self._output.open("wb") as output:
            self._process = ledger.start(command, groups=groups, stdout=output, stderr=output)

    def __iter__(self) -> Iterator[Second]:
        log = self._folder / f"log.{self._process.pid}"
        monotonic_s = time.monotonic() - time.time()
        seconds = Seconds()
        while not log.exists():
            self._alive()
            time.sleep(_POLL_S)
        with log.open() as lines:
            pending = ""
            while True:
                self._alive()
                pending += lines.read()
                whole, _, pending = pending.rpartition("\n")
                for second in seconds.feed(whole.splitlines()):
                    yield Second(second.at_s + monotonic_s, 1.0, second.events, 0, second.latency)
                time.sleep(_POLL_S)

    def _alive(self) -> None:
        if self._process.poll() is not None:
            tail = self._output.read_text(errors="replace")[-2000:]
            raise LabError(f"pgbench ended with status {self._process.returncode}; its output ends: {tail}")

    def stop(self) -> None:
        """End it."""
        self._ledger.end(self._process)
        with contextlib.suppress(OSError):
            shutil.rmtree(self._folder)


class Seconds:
    """Turns lines of pgbench's log into records of whole seconds of the time of day."""

    def __init__(self) -> None:
        self._counts: dict[int, dict[float, int]] = {}
        self._next: int | None = None
        self._latest_s = 0.0

    def feed(self, lines: Sequence[str]) -> list[Second]:
        """Process lines; returns the completed seconds, without the incomplete first one."""
        for line in lines:
            fields = line.split()
            if len(fields) < 6 or not fields[2].isdigit():
                continue  # "skipped", "failed"
            at_s, latency_ms = int(fields[4]) + int(fields[5]) / 1e6, int(fields[2]) / 1e3
            self._latest_s = max(self._latest_s, at_s)
            counts = self._counts.setdefault(int(at_s), {})
            bound = _bound(latency_ms)
            counts[bound] = counts.get(bound, 0) + 1
            if self._next is None:
                self._next = int(at_s) + 1
        found = []
        while self._next is not None and self._latest_s >= self._next + 1 + _LATE_S:
            counts = self._counts.pop(self._next, {})
            found.append(Second(self._next + 1.0, 1.0, sum(counts.values()), 0, Histogram(counts)))
            self._next += 1
        return found


def _bound(latency_ms: float) -> float:
    """A bucket's upper bound: three significant digits."""
    return float(f"{latency_ms:.3g}")


def _programs() -> str:
    """The folder of the server's programs.

    Raises:
        Unavailable: there is none.
    """
    found = shutil.which("initdb")
    places = [
        *sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True),
        *([Path(found).parent] if found else []),
    ]
    for folder in places:
        if (folder / "initdb").exists() and (folder / "pgbench").exists():
            return str(folder)
    raise Unavailable("initdb and pgbench are not installed: apt-get install postgresql-15")
