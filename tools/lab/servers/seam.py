"""The interface of a server in the experiment, and code shared by the implementations."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil

from tools.lab.load import Load, Running
from tools.lab.processes import LabError, Ledger

NATIVE = Path(__file__).parents[1] / "native"


class Unavailable(LabError):
    """The server cannot run on this machine; the text names the missing part."""


@dataclass(frozen=True, slots=True)
class Place:
    """The environment of a server.

    ``groups``: its cgroup directories; ``scale``: factor on clients and rates. ``folder``: for programs and logs;
    ``data``: for the server's data, in memory if possible. Both are empty.
    """

    ledger: Ledger
    folder: Path
    data: Path
    groups: list[str]
    scale: int


class Server(Protocol):
    """A private server on loopback. The constructor sets it up; ``stop`` ends it."""

    @property
    def pids(self) -> Sequence[int]:
        """All its processes."""

    def version(self) -> str:
        """Its name and version, for the report."""

    def sli(self) -> str:
        """The table ``[lra.sli]`` of perphd's configuration, or nothing."""

    def prepare(self, load: Load) -> None:
        """Create the data of a load, unless they exist."""

    def start(self, load: Load, groups: list[str]) -> Running:
        """Start a load, its generator in these cgroup directories."""

    def stop(self) -> None:
        """End the server."""


def need(programs: Sequence[str], packages: str) -> None:
    """Check that these programs are installed.

    Raises:
        Unavailable: one is missing.
    """
    for program in programs:
        if shutil.which(program) is None:
            raise Unavailable(f"{program} is not installed: apt-get install {packages}")


def family(pid: int) -> list[int]:
    """A process and its descendants."""
    try:
        root = psutil.Process(pid)
        return [pid, *(child.pid for child in root.children(recursive=True))]
    except psutil.NoSuchProcess:
        return [pid]


def free_port() -> int:
    """A free TCP port of loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run(*command: str, wait_s: float = 300.0, env: dict[str, str] | None = None) -> str:
    """Run a command to its end; returns its output.

    Raises:
        LabError: it failed.
    """
    done = subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False, timeout=wait_s,
        env={**os.environ, **(env or {})},
    )  # fmt: skip
    if done.returncode != 0:
        raise LabError(f"{command[0]} failed: {(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout


def listens(port: int) -> bool:
    """True if this port of loopback accepts connections."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_until(
    ready: Callable[[], bool], process: subprocess.Popen[bytes], log: Path, what: str, wait_s: float = 60.0
) -> None:
    """Wait until a server answers.

    Raises:
        LabError: it ended, or took too long; the text contains the end of its log.
    """
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline and process.poll() is None:
        if ready():
            return
        time.sleep(0.1)
    tail = log.read_text(errors="replace")[-2000:] if log.exists() else "(no log)"
    raise LabError(f"{what} did not start; its log ends: {tail}")


def compiled(name: str, folder: Path) -> str:
    """Compile a program of native/ into a folder; returns its path.

    Raises:
        Unavailable: there is no compiler, or it fails.
    """
    target = folder / name
    if not target.exists():
        compiler = shutil.which("gcc") or shutil.which("cc")
        if compiler is None:
            raise Unavailable(f"native/{name}.c needs a compiler: apt-get install gcc libc6-dev")
        run(compiler, "-O2", "-o", str(target), str(NATIVE / f"{name}.c"), "-lm")
    return str(target)
