"""Control and monitor groups, and the hardware's identifiers for them."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from enum import Enum
from typing import Final

from perphd.sim.kernel.vfs import Directory, refuse

MAX_CLOSIDS: Final = 32
"""The kernel keeps its free CLOSIDs in one integer."""


class Kind(Enum):
    """The kind of a group."""

    CONTROL = "control"
    MONITOR = "monitor"


class Mode(Enum):
    """Whether a control group's cache may be shared; the text of its ``mode`` file."""

    SHAREABLE = "shareable"
    EXCLUSIVE = "exclusive"


class Group:
    """One group: a directory, its CLOSID and RMID, and the CPUs that it owns (a bit mask).

    ``parent`` is the control group above a monitor group, None for a control group. ``mon_data`` is None where
    the machine cannot monitor.
    """

    __slots__ = (
        "closid",
        "cpus",
        "directory",
        "kind",
        "mode",
        "mon_data",
        "monitors",
        "name",
        "parent",
        "rmid",
    )

    def __init__(self, name: str, kind: Kind, directory: Directory, parent: Group | None = None) -> None:
        self.name, self.kind, self.directory, self.parent = name, kind, directory, parent
        self.closid: int = 0 if parent is None else parent.closid
        self.rmid = 0
        self.cpus = 0
        self.mode = Mode.SHAREABLE
        self.monitors: list[Group] = []
        self.mon_data: Directory | None = None

    @property
    def is_root(self) -> bool:
        """True for the default group."""
        return self.kind is Kind.CONTROL and self.name == ""

    @property
    def path(self) -> str:
        """The group's path below the mount point; empty for the root."""
        if self.kind is Kind.CONTROL or self.parent is None:
            return self.name
        above = self.parent.path
        return f"{above}/mon_groups/{self.name}" if above else f"mon_groups/{self.name}"

    def family(self) -> Iterator[Group]:
        """This group and its monitor groups."""
        yield self
        yield from self.monitors


class Registry:
    """Every group of the tree: control groups in the order of creation, the root first."""

    def __init__(self, root: Group) -> None:
        self.root = root
        self.controls: list[Group] = [root]

    def walk(self) -> Iterator[Group]:
        """Control groups, each before its monitor groups."""
        for control in list(self.controls):
            yield control
            yield from list(control.monitors)

    def find(self, path: str) -> Group:
        """The group at a path below the mount point (``""`` is the root); KeyError if there is none."""
        wanted = path.strip("/")
        for group in self.walk():
            if group.path == wanted:
                return group
        raise KeyError(path)

    def modes(self) -> dict[int, Mode]:
        """The mode of every CLOSID in use."""
        return {group.closid: group.mode for group in self.controls}

    def owner(self, cpu: int) -> Group:
        """The group that a CPU belongs to, down to the monitor group."""
        control = next((c for c in self.controls if c.cpus >> cpu & 1), self.root)
        return next((m for m in control.monitors if m.cpus >> cpu & 1), control)

    def with_monitors_in(self, place: Directory) -> Group | None:
        """The control group with this ``mon_groups`` directory."""
        return next((g for g in self.controls if g.directory.children.get("mon_groups") is place), None)


class Closids:
    """Classes of service for control groups: the lowest free one first; 0 is the root's."""

    def __init__(self, count: int) -> None:
        self.count = min(count, MAX_CLOSIDS)
        self._used = {0}

    def take(self) -> int | None:
        """A free CLOSID, or None."""
        free = next((closid for closid in range(self.count) if closid not in self._used), None)
        if free is not None:
            self._used.add(free)
        return free

    def give_back(self, closid: int) -> None:
        """Free a CLOSID."""
        self._used.discard(closid)

    def used(self) -> list[int]:
        """CLOSIDs in use, in order."""
        return sorted(self._used)


class Rmids:
    """Free RMIDs, reused in the order in which they were freed. An RMID that still owns cache lines waits in limbo.

    The kernel checks limbo every ``look_s`` seconds from the moment when the first RMID enters it. The caller decides
    at each check which RMIDs own few enough lines (``release``).
    """

    look_s: Final = 1.0

    def __init__(self, count: int) -> None:
        self._free = list(range(1, count))
        self.limbo: list[int] = []
        self._next_look_s: float | None = None

    def take(self) -> int:
        """A clean RMID; OSError: EBUSY while some are in limbo, ENOSPC if all are in use."""
        if not self._free:
            raise refuse(errno.EBUSY if self.limbo else errno.ENOSPC)
        return self._free.pop(0)

    def give_back(self, rmid: int, now_s: float, *, dirty: bool) -> None:
        """Free an RMID; a ``dirty`` one enters limbo."""
        if not dirty:
            self._free.append(rmid)
            return
        if not self.limbo:
            self._next_look_s = now_s + self.look_s
        self.limbo.append(rmid)

    def due(self, now_s: float) -> list[float]:
        """Times up to now at which the kernel checked limbo, each returned once."""
        looks: list[float] = []
        while self._next_look_s is not None and self._next_look_s <= now_s:
            looks.append(self._next_look_s)
            self._next_look_s += self.look_s
        return looks

    def release(self, clean: list[int]) -> None:
        """Let these RMIDs leave limbo."""
        for rmid in clean:
            self.limbo.remove(rmid)
            self._free.append(rmid)
        if not self.limbo:
            self._next_look_s = None
