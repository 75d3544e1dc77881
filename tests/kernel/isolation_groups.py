"""What the isolation tests on real cgroups share: contents of groups, a process killed while it writes, v2 trees."""

from __future__ import annotations

import atexit
import functools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from perphd.host.cgroup import discover
from perphd.host.cgroup.group import Cgroups, descendants
from perphd.host.fs import RealFs

CHURN = Path(__file__).with_name("isolation_churn.py")
FS = RealFs()


def contents(group: str) -> dict[str, bytes]:
    """Every settable file of the group and all below it; not what the kernel measures, which Linux 6.12 can reset."""
    found: dict[str, bytes] = {}
    for directory in Cgroups(FS, discover(FS)).group(group).directories():
        for cgroup in (directory, *descendants(FS, directory)):
            for name in FS.listdir(cgroup):
                path = Path(cgroup, name)
                if (
                    not path.is_file()
                    or not path.stat().st_mode & 0o200
                    or name.endswith(("pressure", ".peak"))
                ):
                    continue
                try:
                    found[str(path)] = path.read_bytes()
                except OSError:
                    continue  # write-only files and those that this group cannot show
    return found


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "600"])


class Writer:
    """A process that writes random settings until it is killed."""

    def __init__(self, server: subprocess.Popen[str], pid: int) -> None:
        self.server, self.pid = server, pid


@functools.cache
def _server() -> subprocess.Popen[str]:
    """Forks the writers: what they import is loaded once, not by each."""
    environment = {**os.environ, "PYTHONPATH": str(CHURN.parents[2])}
    server = subprocess.Popen(
        [sys.executable, str(CHURN)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
        env=environment,
    )
    atexit.register(_end, server)
    return server


def _end(server: subprocess.Popen[str]) -> None:
    server.communicate()


def churn(group: str, state: Path, seed: int) -> Writer:
    """A writer of random settings, when its first change is in force."""
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(f"{group}\t{state}\t{seed}\n")
    line = server.stdout.readline()
    word, _, pid = line.partition(" ")
    assert word == "ready", line
    return Writer(server, int(pid))


def kill(writer: Writer) -> str:
    """End it as kill -9 does; what it had still said."""
    assert writer.server.stdin is not None
    assert writer.server.stdout is not None
    writer.server.stdin.write("kill\n")
    said = ""
    while not (line := writer.server.stdout.readline()).startswith("ended "):
        assert line, "the process that starts writers has ended"
        said += line
    assert int(line.split()[1]) == signal.SIGKILL, f"it ended by itself: {line}{said}"
    return said


@contextmanager
def v2_tree(top: str, below: Sequence[str], controllers: Sequence[str]) -> Iterator[Path]:
    """Cgroups ``top`` and ``top/NAME``, parents first, with these controllers; then all as it was, the root included.

    Controllers are enabled in the root, in ``top`` and in every group that has groups below it.
    """
    root = discover(FS).unified
    assert root is not None
    control = Path(root.mount, "cgroup.subtree_control")
    missing = [name for name in controllers if name not in control.read_text().split()]
    made: list[Path] = []
    try:
        if missing:
            control.write_text(" ".join(f"+{name}" for name in missing))
        for path in (top, *(f"{top}/{name}" for name in below)):
            directory = Path(root.mount + path)
            directory.mkdir()
            made.append(directory)
            if any(f"{top}/{name}".startswith(f"{path}/") for name in below):
                (directory / "cgroup.subtree_control").write_text(
                    " ".join(f"+{name}" for name in controllers)
                )
        yield made[0]
    finally:
        for directory in reversed(made):
            directory.rmdir()
        for name in missing:
            control.write_text(f"-{name}")
