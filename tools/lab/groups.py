"""The lab's own control groups, ``/perphd-lab/{lra,batch,native,client,daemon}``, on v1, hybrid and v2 hosts."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from perphd.host.cgroup.hierarchy import Hierarchies, Hierarchy, discover
from perphd.host.fs import RealFs
from tools.lab.processes import LabError

PARENT = "/perphd-lab"
LRA, BATCH, NATIVE, CLIENT, DAEMON = (
    f"{PARENT}/{name}" for name in ("lra", "batch", "native", "client", "daemon")
)
CHILDREN = (LRA, BATCH, NATIVE, CLIENT, DAEMON)

DEFAULT_SHARES = 1024
PERIOD_US = 100_000
"""The kernel's default period of CPU limits."""
PARENT_SHARES = 64 * DEFAULT_SHARES
"""Weight of the lab as a whole, so that other processes of the machine disturb the measurement less."""
CLIENT_SHARES = 64 * DEFAULT_SHARES
"""Weight of the load generator, and of the daemon unless its own effect is studied. They represent a remote client, so
neither LRA nor batch may delay them.
"""
DAEMON_SHARES = 10 * DEFAULT_SHARES
"""``CPUWeight=1000`` of perphd.slice."""

_NEEDED = ("cpu", "cpuset")
_WANTED = ("cpu", "cpuset", "cpuacct", "memory", "io")


def weight_of(shares: int) -> int:
    """cgroup v2's weight for v1's shares (100 for 1024), within 1..10000."""
    return min(10000, max(1, round(shares * 100 / DEFAULT_SHARES)))


class Groups:
    """Creates, sets and removes the lab's groups. Use as a context manager."""

    def __init__(self) -> None:
        self._hierarchies: Hierarchies = discover(RealFs())
        for controller in _NEEDED:
            if self._hierarchies.of(controller) is None:
                raise LabError(
                    f"no cgroup hierarchy has the {controller} controller: the lab cannot run here"
                )
        trees = {h.mount: h for name in _WANTED if (h := self._hierarchies.of(name)) is not None}
        if self._hierarchies.unified is not None:
            trees[self._hierarchies.unified.mount] = self._hierarchies.unified
        self._trees: tuple[Hierarchy, ...] = tuple(trees.values())
        self._enabled: list[tuple[Path, str]] = []
        self._home = {tree.mount: _home(tree) for tree in self._trees}

    @property
    def layout(self) -> str:
        """``v1``, ``v2`` or ``hybrid``."""
        return str(self._hierarchies.layout)

    def __enter__(self) -> Groups:
        try:
            for tree in self._trees:
                self._make(tree)
            self.reset()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def leave(self) -> None:
        """Put the lab's own process back where it was."""
        for tree in self._trees:
            try:
                Path(tree.path(self._home[tree.mount]), "cgroup.procs").write_text(str(os.getpid()))
            except OSError:  # that group is gone; the root accepts every process
                Path(tree.mount, "cgroup.procs").write_text(str(os.getpid()))

    def _make(self, tree: Hierarchy) -> None:
        if tree.version == 2:
            self._enable(Path(tree.mount))
        for group in (PARENT, *CHILDREN):
            directory = Path(tree.path(group))
            directory.mkdir(exist_ok=True)
            if tree.version == 1 and "cpuset" in tree.controllers:
                for knob in (
                    "cpuset.mems",
                    "cpuset.cpus",
                ):  # v1: empty until written, and no process may enter then
                    (directory / knob).write_text((directory.parent / knob).read_text())
            if tree.version == 2 and group == PARENT:
                self._enable(directory)

    def _enable(self, directory: Path) -> None:
        control = directory / "cgroup.subtree_control"
        on = control.read_text().split()
        for controller in (directory / "cgroup.controllers").read_text().split():
            if controller in _WANTED and controller not in on:
                control.write_text(f"+{controller}")
                self._enabled.append((control, controller))

    def directories(self, group: str) -> list[str]:
        """The group's directory in every hierarchy that is used."""
        return [tree.path(group) for tree in self._trees]

    def shelter(self) -> None:
        """Move this process to the client's group, so that it reads records in time; ``leave`` moves it back."""
        self.enter(CLIENT, os.getpid())

    def enter(self, group: str, pid: int) -> None:
        """Move a whole process."""
        for directory in self.directories(group):
            Path(directory, "cgroup.procs").write_text(str(pid))

    def _file(self, group: str, controller: str, v1: str, v2: str) -> tuple[Path, bool]:
        tree = self._hierarchies.of(controller)
        assert tree is not None
        return Path(tree.path(group, v1 if tree.version == 1 else v2)), tree.version == 1

    def set_shares(self, group: str, shares: int) -> None:
        """The group's CPU weight, on v1's scale (1024 = default)."""
        path, v1 = self._file(group, "cpu", "cpu.shares", "cpu.weight")
        path.write_text(str(shares if v1 else weight_of(shares)))

    def set_idle(self, group: str, idle: bool) -> None:
        """Set or clear SCHED_IDLE for the group."""
        path, _ = self._file(group, "cpu", "cpu.idle", "cpu.idle")
        path.write_text("1" if idle else "0")

    def set_cpus(self, group: str, cpus: str) -> None:
        """The CPUs that the group may use, in the kernel's list format."""
        path, _ = self._file(group, "cpuset", "cpuset.cpus", "cpuset.cpus")
        path.write_text(cpus)

    def set_quota(self, group: str, cores: float | None) -> None:
        """Set the CPU limit of the group, in CPUs; None: no limit."""
        path, v1 = self._file(group, "cpu", "cpu.cfs_quota_us", "cpu.max")
        none = "-1" if v1 else "max"
        path.write_text(none if cores is None else str(round(cores * PERIOD_US)))

    def all_cpus(self) -> str:
        """The CPUs that the lab may use."""
        path, _ = self._file(PARENT, "cpuset", "cpuset.cpus", "cpuset.cpus.effective")
        return path.read_text().strip()

    def reset(self) -> None:
        """Reset every group: equal shares, not idle, all CPUs; the client protected."""
        for group in CHILDREN:
            self.set_idle(group, False)
            self.set_shares(group, {CLIENT: CLIENT_SHARES, DAEMON: DAEMON_SHARES}.get(group, DEFAULT_SHARES))
            self.set_cpus(group, self.all_cpus())
            self.set_quota(group, None)
        self.set_shares(PARENT, PARENT_SHARES)

    def knobs(self, group: str) -> dict[str, str]:
        """Settings in force on a group: shares (or weight), idle, cpus."""
        found: dict[str, str] = {}
        for name, controller, v1, v2 in (
            ("shares", "cpu", "cpu.shares", "cpu.weight"),
            ("idle", "cpu", "cpu.idle", "cpu.idle"),
            ("cpus", "cpuset", "cpuset.cpus", "cpuset.cpus"),
        ):
            path, _ = self._file(group, controller, v1, v2)
            with contextlib.suppress(OSError):
                found[name] = path.read_text().strip()
        return found

    def cpu_seconds(self, group: str) -> float:
        """CPU time used by a group since it was made."""
        tree = self._hierarchies.of("cpuacct")
        if tree is not None:
            return int(Path(tree.path(group, "cpuacct.usage")).read_text()) / 1e9
        tree = self._hierarchies.of("cpu")
        assert tree is not None
        fields = dict(line.split() for line in Path(tree.path(group, "cpu.stat")).read_text().splitlines())
        return int(fields["usage_usec"]) / 1e6

    def stalled_seconds(self, group: str) -> float | None:
        """Time for which at least one task of the group has waited for a CPU so far (PSI); None if the kernel does not
        report it.
        """
        tree = self._hierarchies.unified
        if tree is None:
            return None
        try:
            some = Path(tree.path(group, "cpu.pressure")).read_text().splitlines()[0]
        except (OSError, IndexError):
            return None
        return int(some.rpartition("total=")[2]) / 1e6

    def remove(self) -> None:
        """Leave and remove the groups, ending all processes inside, which only the lab can have started."""
        self.leave()
        for group in (*CHILDREN, PARENT):
            for directory in self.directories(group):
                _remove(Path(directory))
        for control, controller in reversed(self._enabled):
            with contextlib.suppress(OSError):  # another program may have begun to use it
                control.write_text(f"-{controller}")
        self._enabled.clear()


def _home(tree: Hierarchy) -> str:
    """The cgroup of this process in a hierarchy."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, names, path = line.split(":", 2)
        controllers = frozenset(names.split(",")) - {""}
        if (tree.version == 2 and number == "0") or (tree.version == 1 and controllers & tree.controllers):
            return path
    return "/"


def _remove(directory: Path) -> None:
    deadline = time.monotonic() + 10.0
    while directory.exists():
        try:
            for pid in (directory / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            directory.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
