"""The bench's own control groups, ``/perphd-bench-PID/wNNN``, each with a process that sleeps or wakes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

from perphd.host.cgroup.hierarchy import Hierarchy, discover
from perphd.host.fs import RealFs

_NEEDED = ("cpu", "cpuset", "memory")
_WANTED = (*_NEEDED, "cpuacct", "io")
_REMOVE_WAIT_S = 10.0
_WAKING = """
import os, sys, time
own, pids = os.getpid(), []
for _ in range(int(sys.argv[1])):
    pid = os.fork()
    if pid == 0:
        while os.getppid() == own:
            time.sleep(0.25)
        os._exit(0)
    pids.append(pid)
print(*pids, flush=True)
sys.stdin.read()
for pid in pids:
    os.kill(pid, 9)
for pid in pids:
    os.waitpid(pid, 0)
"""
"""Program that forks processes that wake four times a second, until its input ends."""


class BenchError(Exception):
    """The bench cannot run here; the message names what is missing."""


class BenchGroups:
    """``count`` groups, the first ``occupied`` of them with one idle process. A context manager that cleans up.

    ``waking``: number of processes, the last ones, that wake four times a second, like idle services.
    """

    def __init__(self, count: int, occupied: int, waking: int = 0) -> None:
        if os.geteuid() != 0:
            raise BenchError(
                "creating control groups needs root: run `make bench` as root or with sudo at hand"
            )
        hierarchies = discover(RealFs())
        absent = [name for name in _NEEDED if hierarchies.of(name) is None]
        if absent:
            raise BenchError(
                f"no cgroup hierarchy has the controllers {', '.join(absent)}, so the bench cannot run"
            )
        self.layout = str(hierarchies.layout)
        trees = {tree.mount: tree for name in _WANTED if (tree := hierarchies.of(name)) is not None}
        if hierarchies.unified is not None:
            trees[hierarchies.unified.mount] = hierarchies.unified
        self._trees = tuple(trees.values())
        self._parent = f"/perphd-bench-{os.getpid()}"
        self.paths = tuple(f"{self._parent}/w{number:03}" for number in range(count))
        self._occupied, self._waking = occupied, waking
        self._sleepers: list[subprocess.Popen[bytes]] = []
        self._waker: subprocess.Popen[bytes] | None = None
        self._enabled: list[tuple[Path, str]] = []

    def __enter__(self) -> BenchGroups:
        try:
            for tree in self._trees:
                if tree.version == 2:
                    self._enable(Path(tree.mount))
                self._make(tree, self._parent)
                if tree.version == 2:
                    self._enable(Path(tree.path(self._parent)))
                for path in self.paths:
                    self._make(tree, path)
            for path, pid in zip(self.paths[: self._occupied], self._start(), strict=True):
                for tree in self._trees:
                    Path(tree.path(path, "cgroup.procs")).write_text(str(pid))
        except OSError as exc:
            self.remove()
            raise BenchError(f"control groups cannot be created here: {exc}") from exc
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def _make(self, tree: Hierarchy, path: str) -> None:
        directory = Path(tree.path(path))
        directory.mkdir(exist_ok=True)
        if tree.version == 1 and "cpuset" in tree.controllers:
            for knob in (
                "cpuset.mems",
                "cpuset.cpus",
            ):  # initially empty; processes can enter only after it is set
                (directory / knob).write_text((directory.parent / knob).read_text())

    def _enable(self, directory: Path) -> None:
        control = directory / "cgroup.subtree_control"
        on = control.read_text().split()
        for controller in (directory / "cgroup.controllers").read_text().split():
            if controller in _WANTED and controller not in on:
                control.write_text(f"+{controller}")
                self._enabled.append((control, controller))

    def _start(self) -> list[int]:
        """Start the processes for the groups."""
        asleep = self._occupied - self._waking
        self._sleepers = [subprocess.Popen(["sleep", "infinity"]) for _ in range(asleep)]
        pids = [sleeper.pid for sleeper in self._sleepers]
        if self._waking:
            command = [sys.executable, "-S", "-E", "-c", _WAKING, str(self._waking)]
            self._waker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            assert self._waker.stdout is not None
            pids += [int(pid) for pid in self._waker.stdout.readline().split()]
        return pids

    def remove(self) -> None:
        """End the processes and remove the groups; groups with other processes stay and are named."""
        if self._waker is not None:
            self._waker.communicate()  # the end of its input ends its children and itself
            self._waker = None
        for sleeper in self._sleepers:
            sleeper.kill()
            sleeper.wait()
        self._sleepers.clear()
        for tree in self._trees:
            for path in (*self.paths, self._parent):
                _remove(Path(tree.path(path)))
        for control, controller in reversed(self._enabled):
            with contextlib.suppress(OSError):  # another program may have begun to use it
                control.write_text(f"-{controller}")
        self._enabled.clear()


def _remove(directory: Path) -> None:
    give_up_s = time.monotonic() + _REMOVE_WAIT_S
    while directory.exists():
        try:
            directory.rmdir()
        except OSError:
            if time.monotonic() > give_up_s:
                raise
            time.sleep(0.02)
