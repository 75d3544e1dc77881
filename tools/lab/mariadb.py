"""A private MariaDB server: its own data folder and socket, no network, gone with the lab."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import time
from pathlib import Path

from tools.lab.processes import LabError, Ledger

TABLES = 4
TABLE_ROWS = 50_000
DATABASE = "sbtest"
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
skip-networking
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
        self._ledger = ledger
        try:
            self._user = pwd.getpwnam("mysql").pw_name
        except KeyError as exc:
            raise LabError("there is no user mysql: is mariadb-server installed?") from exc
        config = folder / "my.cnf"
        config.write_text(_CONFIG.format(folder=folder))
        os.chmod(folder, 0o755)
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

    def sysbench(self, *arguments: str) -> list[str]:
        """A sysbench command line for this server's tables."""
        return [
            "sysbench", str(_OLTP), f"--mysql-socket={self.socket}", "--mysql-user=root",
            f"--mysql-db={DATABASE}", f"--tables={TABLES}", f"--table-size={TABLE_ROWS}", *arguments,
        ]  # fmt: skip

    def load_tables(self) -> None:
        """Make the account, the database and its tables."""
        self.sql(
            f"CREATE DATABASE {DATABASE}; CREATE USER '{READER}'@'localhost' IDENTIFIED BY '{READER_PASSWORD}'"
        )
        self._run(*self.sysbench("--threads=2", "prepare"))

    def version(self) -> str:
        """The server's version."""
        return self.sql("SELECT VERSION()").strip()

    def stop(self) -> None:
        """End the server."""
        self._ledger.end(self.process, signal.SIGTERM, 30.0)
