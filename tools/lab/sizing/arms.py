"""One arm of an experiment: a memory-limited group with subgroups and processes, and its own daemon."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from perphd.control.client import Client, Refused, Unreachable
from perphd.host.cgroup.hierarchy import Hierarchy, discover
from perphd.host.fs import RealFs
from tools.lab.processes import LabError

ROOT: Final = Path(__file__).parents[3]
START_S: Final = 300.0
_WANTED: Final = ("memory", "freezer", "cpu")
_PERPHD: Final = (sys.executable, "-c", "from perphd.commands.daemon import main; main()")
_CONFIG: Final = """
[daemon]
mode = "enforce"
period_s = {period_s}
state_dir = "{state}"
socket = "{state}/perphd.sock"
read_group = "root"
admin_group = "root"
[tuning.daemon]
attentive_period_s = {period_s}
pause_file = "{state}/pause"
policy = "none"
[tuning.isolation]
deadline_s = 20.0
"""


class Tree:
    """``/NAME`` and groups below it, in all needed hierarchies; the memory limit is the parent's."""

    def __init__(self, name: str, below: tuple[str, ...], limit_bytes: int | None) -> None:
        hierarchies = discover(RealFs())
        memory = hierarchies.of("memory")
        if memory is None or os.geteuid() != 0:
            raise LabError("needs root and a memory controller")
        trees = {tree.mount: tree for each in _WANTED if (tree := hierarchies.of(each)) is not None}
        if hierarchies.unified is not None:
            trees[hierarchies.unified.mount] = hierarchies.unified
        self.memory, self._trees = memory, tuple(trees.values())
        self.top, self._below, self._limit_bytes = f"/{name}", below, limit_bytes
        self._enabled: list[Path] = []

    def __enter__(self) -> Tree:
        for tree in self._trees:
            v2 = tree.version == 2 and "memory" in tree.controllers
            if v2:
                self._enable(Path(tree.mount))
            Path(tree.path(self.top)).mkdir()
            if v2:
                self._enable(Path(tree.path(self.top)))
            for name in self._below:
                Path(tree.path(f"{self.top}/{name}")).mkdir()
        if self._limit_bytes is not None:
            v2 = self.memory.version == 2
            file = "memory.max" if v2 else "memory.limit_in_bytes"
            Path(self.memory.path(self.top, file)).write_text(str(self._limit_bytes))
        return self

    def _enable(self, directory: Path) -> None:
        control = directory / "cgroup.subtree_control"
        for name in ("memory", "cpu"):
            if name not in control.read_text().split():
                control.write_text(f"+{name}")

    def __exit__(self, *_: object) -> None:
        for name in (*(f"{self.top}/{each}" for each in self._below), self.top):
            for tree in self._trees:
                with contextlib.suppress(FileNotFoundError):
                    _remove(Path(tree.path(name)))

    def start(self, name: str, command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        """A process that is in this group, in every hierarchy, before its program begins."""
        places = [tree.path(f"{self.top}/{name}", "cgroup.procs") for tree in self._trees]
        enter = "".join(f"open({place!r}, 'w').write('0');" for place in places)
        code = f"import os, sys;{enter}os.execvp(sys.argv[1], sys.argv[1:])"
        return subprocess.Popen(
            [sys.executable, "-S", "-c", code, *command], start_new_session=True, **options
        )

    def used_bytes(self, name: str) -> int:
        """Memory that the group uses."""
        file = "memory.current" if self.memory.version == 2 else "memory.usage_in_bytes"
        return int(Path(self.memory.path(f"{self.top}/{name}", file)).read_text())

    def kills(self, name: str) -> int:
        """Processes of the group that the kernel killed for lack of memory."""
        file = "memory.events" if self.memory.version == 2 else "memory.oom_control"
        text = Path(self.memory.path(f"{self.top}/{name}", file)).read_text()
        return int(dict(line.split() for line in text.splitlines())["oom_kill"])

    def settable(self) -> dict[str, bytes]:
        """Every settable file of the groups below, except their lists of processes."""
        found: dict[str, bytes] = {}
        for tree in self._trees:
            for name in self._below:
                for path in sorted(Path(tree.path(f"{self.top}/{name}")).iterdir()):
                    writable = path.is_file() and path.stat().st_mode & 0o200
                    if not writable or path.name.endswith(("procs", "threads", "tasks", "pressure", "peak")):
                        continue
                    if _measures(tree, path.name):
                        continue
                    with contextlib.suppress(OSError):
                        found[str(path)] = path.read_bytes()
        return found


def _measures(tree: Hierarchy, name: str) -> bool:
    """v1 has counters that can be reset by writing."""
    return tree.version == 1 and any(
        word in name for word in ("usage", "failcnt", "stat", "oom_control", "force_empty", "event_control")
    )


def _remove(directory: Path) -> None:
    deadline = time.monotonic() + 30.0
    while directory.exists():
        try:
            for pid in (directory / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            for file, text in (("cgroup.freeze", "0"), ("freezer.state", "THAWED")):
                if (directory / file).exists():
                    (directory / file).write_text(text)
            directory.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


class Daemon:
    """perphd on the groups of one arm, as a process."""

    def __init__(self, state: Path, period_s: float, text: str) -> None:
        self.state = state
        state.mkdir(parents=True)
        self.config = state / "perphd.toml"
        self.config.write_text(_CONFIG.format(state=state, period_s=period_s) + text)
        self.client = Client(f"{state}/perphd.sock")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it answers.

        Raises:
            LabError: it ends, or does not answer.
        """
        log = (self.state / "log").open("ab")
        self._process = subprocess.Popen(
            [*_PERPHD, "run", "--config", str(self.config)],
            stdout=log, stderr=log, cwd=ROOT, env={**os.environ, "PYTHONPATH": _path()},
        )  # fmt: skip
        deadline = time.monotonic() + START_S
        while self.ask("status") is None:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise LabError(f"the daemon does not answer: {(self.state / 'log').read_text()[-800:]}")
            time.sleep(0.2)

    def ask(self, route: str) -> Any:
        """The answer to a GET; None if the daemon does not answer."""
        try:
            return self.client.get(route)
        except (Unreachable, Refused, OSError):
            return None

    def writes(self) -> Mapping[str, int]:
        """Numbers of kernel writes in the store, by outcome."""
        answer = self.client.send(
            "POST", "query", {"sql": "SELECT result, count(*) FROM writes GROUP BY result"}
        )
        return {str(row[0]): int(row[1]) for row in answer["rows"]}

    def cpu_s(self) -> float:
        """CPU time that it has used so far."""
        assert self._process is not None
        words = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def rss_bytes(self) -> int:
        """Memory that it holds."""
        assert self._process is not None
        text = Path(f"/proc/{self._process.pid}/statm").read_text()
        return int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def stop(self) -> None:
        """End it as an operator does."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as kill -9 does."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)
            self._process.wait(START_S)

    def restore(self) -> str:
        """Run ``perphd restore`` without a daemon; returns its output."""
        done = subprocess.run(
            [*_PERPHD, "restore", "--config", str(self.config)],
            capture_output=True, text=True, check=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": _path()},
        )  # fmt: skip
        return done.stdout


def _path() -> str:
    return os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])


def save(path: Path, result: object) -> None:
    """Write a result as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
