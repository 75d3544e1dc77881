"""A private MariaDB server: its own data folder and socket, on loopback only, gone with the lab."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from tools.lab.processes import LabError, Ledger

TABLES = 4
TABLE_ROWS = 50_000
DATA_BYTES = 1 << 30
"""Room for the data folder: tables, redo log, temporary files."""
DATABASE = "sbtest"
_CLIENT = "sysbench"
READER, READER_PASSWORD = "perphd", "perphd-lab"
"""The account from which perphd reads status counters: it may log in and nothing else."""

_OLTP = Path(__file__).parent / "native" / "oltp.lua"
_CONFIG = """\
[mariadbd]
datadir={folder}/data
socket={folder}/mariadb.sock
pid-file={folder}/mariadb.pid
log-error={folder}/error.log
tmpdir={folder}
bind-address=127.0.0.1
port={port}
skip-log-bin
skip-name-resolve
performance-schema=OFF
innodb_buffer_pool_size=512M
innodb_log_file_size=256M
# The lab measures CPU and memory: a commit does not wait for the disk.
innodb_flush_log_at_trx_commit=0
"""


class Server:
    """One server, started in the given cgroup directories."""

    def __init__(self, ledger: Ledger, folder: Path, groups: list[str]) -> None:
        for program in ("mariadbd", "mariadb-install-db", "mariadb", "sysbench"):
            if shutil.which(program) is None:
                raise LabError(
                    f"{program} is not installed: apt-get install mariadb-server mariadb-client sysbench"
                )
        self.folder = folder
        self.socket = folder / "mariadb.sock"
        self.port = _free_port()
        self._password = secrets.token_hex(16)
        self._ledger = ledger
        try:
            self._user = pwd.getpwnam("mysql").pw_name
        except KeyError as exc:
            raise LabError("there is no user mysql: is mariadb-server installed?") from exc
        config = folder / "my.cnf"
        config.write_text(_CONFIG.format(folder=folder, port=self.port))
        os.chmod(folder, 0o700)  # its socket lets everybody in
        shutil.chown(folder, self._user)
        self._run(
            "mariadb-install-db",
            f"--defaults-file={config}",
            f"--user={self._user}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
        )
        self.process = ledger.start(
            ["mariadbd", f"--defaults-file={config}"], groups=groups, user=self._user, end_signal="KILL"
        )
        self._wait()

    @property
    def pid(self) -> int:
        """The server's process."""
        return self.process.pid

    def _run(self, *command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
        if done.returncode != 0:
            raise LabError(f"{' '.join(command)} failed: {(done.stderr or done.stdout)[-2000:]}")
        return done.stdout

    def _wait(self) -> None:
        deadline = time.monotonic() + 60.0
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            if self.socket.exists():
                try:
                    self.sql("SELECT 1")
                    return
                except LabError:
                    pass
            time.sleep(0.1)
        log = self.folder / "error.log"
        tail = log.read_text(errors="replace")[-2000:] if log.exists() else "(no log)"
        raise LabError(f"mariadbd did not come up; its log ends: {tail}")

    def sql(self, statement: str) -> str:
        """Run a statement as root; the rows as tab-separated text."""
        return self._run(
            "mariadb", "--no-defaults", f"--socket={self.socket}", "-uroot", "-N", "-B", "-e", statement
        )

    def client(self, prefix: str = "") -> list[str]:
        """Options with which a load generator connects, as a remote client would: over TCP."""
        values = {"host": "127.0.0.1", "port": str(self.port), "user": _CLIENT, "password": self._password}
        return [f"--{prefix}{name}={value}" for name, value in values.items()]

    def sysbench(self, *arguments: str) -> list[str]:
        """A sysbench command line for this server's tables."""
        return [
            "sysbench", str(_OLTP), *self.client("mysql-"), f"--mysql-db={DATABASE}",
            f"--tables={TABLES}", f"--table-size={TABLE_ROWS}", *arguments,
        ]  # fmt: skip

    def load_tables(self) -> None:
        """Make the account, the database and its tables."""
        self.sql(
            # The installation's root may connect over TCP without a password: nobody else on this machine shall.
            "DELETE FROM mysql.global_priv WHERE User = 'root' AND Host != 'localhost'; FLUSH PRIVILEGES;"
            f"CREATE DATABASE {DATABASE};"
            f"CREATE USER '{READER}'@'localhost' IDENTIFIED BY '{READER_PASSWORD}';"
            f"CREATE USER '{_CLIENT}'@'127.0.0.1' IDENTIFIED BY '{self._password}';"
            f"GRANT ALL ON {DATABASE}.* TO '{_CLIENT}'@'127.0.0.1'"
        )
        self._run(*self.sysbench("--threads=2", "prepare"))

    def version(self) -> str:
        """The server's version."""
        return self.sql("SELECT VERSION()").strip()

    def stop(self) -> None:
        """End the server."""
        self._ledger.end(self.process, signal.SIGTERM, 30.0)


def _free_port() -> int:
    """A TCP port of loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
