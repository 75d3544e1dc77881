"""The lab's own processes and folders: started by this module, recorded on disk, ended by pid and start time."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

REMEMBERED = Path("/run/perphd-lab.json")
"""File with a lab's processes and folders, so that ``--cleanup`` can undo a killed lab."""

_END_WAIT_S = 10.0


class LabError(Exception):
    """The lab cannot continue; the text states the reason and the remedy."""


def start_time(pid: int) -> int | None:
    """The process's start time in clock ticks since boot; None: no such process. With the pid it is an identity."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19])


class Ledger:
    """All processes and folders that a lab has to remove. Each entry is on disk before its object is used."""

    def __init__(self, path: Path = REMEMBERED) -> None:
        self._path = path
        self._pids: dict[int, int] = {}
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._folders: list[str] = []
        self._save()

    def _save(self) -> None:
        content = {
            "lab": [os.getpid(), start_time(os.getpid())],
            "pids": self._pids,
            "folders": self._folders,
        }
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(content))
        new.replace(self._path)

    def folder(self, path: Path) -> Path:
        """Remember a folder for removal."""
        self._folders.append(str(path))
        self._save()
        return path

    def start(
        self,
        command: Sequence[str],
        *,
        groups: Sequence[str] = (),
        user: str | None = None,
        stdout: int | IO[bytes] = subprocess.DEVNULL,
        stderr: int | IO[bytes] = subprocess.DEVNULL,
        env: Mapping[str, str] | None = None,
        end_signal: str = "KILL",
    ) -> subprocess.Popen[bytes]:
        """Start a command inside the cgroup directories ``groups``; it gets ``end_signal`` if the lab dies.

        The process puts itself into the groups before it executes the command: nothing runs outside.
        """
        enter = 'for g in $GROUPS_TO_ENTER; do echo $$ > "$g/cgroup.procs" || exit 126; done; exec "$@"'
        guard = ["setpriv", "--pdeathsig", end_signal]
        if user is not None:
            guard += ["--reuid", user, "--regid", user, "--init-groups"]
        process = subprocess.Popen(
            ["sh", "-c", enter, "sh", *guard, *command],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env={**os.environ, **(env or {}), "GROUPS_TO_ENTER": " ".join(groups)},
        )
        self._pids[process.pid] = start_time(process.pid) or 0
        self._running[process.pid] = process
        self._save()
        return process

    def end(
        self, process: subprocess.Popen[bytes], how: int = signal.SIGKILL, wait_s: float = _END_WAIT_S
    ) -> int:
        """End one of the lab's processes and wait for it; SIGKILL if ``how`` does not end it in time. Returns its
        status.
        """
        if process.poll() is None:
            process.send_signal(how)
            try:
                process.wait(wait_s)
            except subprocess.TimeoutExpired:
                process.kill()
        status = process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        self._pids.pop(process.pid, None)
        self._running.pop(process.pid, None)
        self._save()
        return status

    def end_all(self) -> None:
        """End every process that still runs."""
        for process in reversed(list(self._running.values())):
            self.end(process)

    def close(self) -> None:
        """End remaining processes, remove the folders, and delete the record."""
        self.end_all()
        undo(self._path)


def running(path: Path = REMEMBERED) -> bool:
    """True if the lab that wrote this file still runs."""
    try:
        pid, started = json.loads(path.read_text())["lab"]
    except (OSError, ValueError, KeyError):
        return False
    return started is not None and start_time(pid) == started


def undo(path: Path = REMEMBERED) -> list[str]:
    """End the remembered processes that still live and remove the folders. Returns sentences about them."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return []
    done: list[str] = []
    for text, started in content["pids"].items():
        pid = int(text)
        if start_time(pid) != started:
            continue
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + _END_WAIT_S
        while start_time(pid) == started and time.monotonic() < deadline:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
            time.sleep(0.05)
        with contextlib.suppress(ProcessLookupError):
            if start_time(pid) == started:
                os.kill(pid, signal.SIGKILL)
        done.append(f"ended process {pid}")
    for folder in content["folders"]:
        if os.path.exists(folder):
            shutil.rmtree(folder, ignore_errors=True)
            done.append(f"removed {folder}")
    path.unlink(missing_ok=True)
    return done
