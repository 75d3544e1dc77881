"""Measures the CPU use of undeclared control groups, at bounded cost for any number of groups.

Problem. A host has hundreds of groups, most of them idle. Reading all of them every second would cost more than the
rest of a tick.

Approach. /proc/stat gives the total use, so only busy groups are read at every tick. The others are read in rotation.
When the busy groups do not account for the total, all groups are read at once; the pause between such searches doubles
while they find nothing. The tree is followed from its top, and deeper only below groups that use
much CPU or contain a declared workload.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from perphd.domain.errors import KernelError
from perphd.domain.reading import Reading, Unavailable, available
from perphd.host.cgroup.hierarchy import Hierarchies, Hierarchy
from perphd.host.fs import KernelFile, KernelFs
from perphd.monitor.host_cpu import own_use
from perphd.monitor.parse import line_needle, values_of, whole_number
from perphd.monitor.rates import Rate

MOST_GROUPS: Final = 256
"""Maximum number of followed groups; the use of the others counts as the group ``/``."""
MOST_BUSY: Final = 32
"""Maximum number of groups read at every tick, their files kept open."""
IN_TURN: Final = 4
"""Number of groups that are not busy and are read per tick, in rotation."""
BUSY_CORES: Final = 0.02
"""CPU use, in cores, from which a group is read at every tick."""
MUCH_CORES: Final = 0.1
"""CPU use, in cores, from which a group's children are listed separately."""
MOST_DEPTH: Final = 6
LOOK_S: Final = 30.0
"""Seconds between two walks of the whole tree."""
SOON_S: Final = 3.0
"""Seconds until the next walk if a group uses much CPU and its children are not listed yet."""
MISSED_SHARE: Final = 0.03
"""Share of the host's CPUs that may be unaccounted for before all groups are read."""
LONGEST_BACKOFF_TICKS: Final = 32
_USAGE: Final = (line_needle("usage_usec"),)


@dataclass(slots=True)
class _Group:
    """One followed group.

    ``file``: the file of its CPU time, open while the group is busy. ``inner``: its children are followed as well.
    ``is_leaf``: at the last walk, it had no children that may be followed.
    """

    path: str
    rate: Rate
    cores: float = 0.0
    file: KernelFile | None = None
    inner: bool = False
    is_leaf: bool = False

    @property
    def is_busy(self) -> bool:
        return self.inner or self.cores >= BUSY_CORES


class UndeclaredGroups:
    """Follows the groups that are neither declared nor inside a declared one."""

    def __init__(self, fs: KernelFs, hierarchies: Hierarchies) -> None:
        self._fs = fs
        self._tree, self._name = _usage_file(hierarchies)
        self._groups: dict[str, _Group] = {}
        self._declared: frozenset[str] = frozenset()
        self._looked_s: float | None = None
        self._turn: list[str] = []
        self._opened: set[str] = set()
        self._fresh: list[str] = []
        self._wait_ticks = self._backoff_ticks = 0

    def read(
        self, now_s: float, declared: Mapping[str, float], used: float, capacity: float
    ) -> dict[str, float]:
        """CPUs used by every followed group that is not idle, without its followed descendants.

        Args:
            now_s: monotonic seconds.
            declared: CPUs used by every declared workload, by control group.
            used: CPUs used by all tasks except those of declared workloads.
            capacity: number of the host's CPUs.
        """
        if self._tree is None:
            return {}
        known = frozenset(declared)
        fresh, self._fresh = self._fresh, []
        every_s = SOON_S if any(self._is_unresolved(group) for group in self._groups.values()) else LOOK_S
        if self._looked_s is None or known != self._declared or not 0 <= now_s - self._looked_s < every_s:
            self._declared, self._looked_s = known, now_s
            self._follow(now_s)
        busy = sorted((g for g in self._groups.values() if g.is_busy), key=lambda g: (not g.inner, -g.cores))
        watched = {group.path for group in busy[:MOST_BUSY]}
        for path in self._opened - watched:
            self._close(path)
        for group in busy[:MOST_BUSY]:
            self._take(group, now_s, keep_open=True)
        others = [path for path in (*fresh, *self._next_in_turn()) if path not in watched]
        others = [path for path in dict.fromkeys(others) if path in self._groups]
        for path in others:
            self._take(self._groups[path], now_s)
        own = self._own(declared)
        if self._is_missed(used - sum(own.values()), capacity):
            for path in self._groups.keys() - watched - set(others):
                self._take(self._groups[path], now_s)
            own = self._own(declared)
        return own

    def _own(self, declared: Mapping[str, float]) -> dict[str, float]:
        total = {path: group.cores for path, group in self._groups.items() if group.cores > 0.0}
        return own_use(total, declared)

    def _is_missed(self, missing: float, capacity: float) -> bool:
        """True if all groups should be read to find unaccounted CPU use.

        The wait until the next search doubles after each one.
        """
        self._wait_ticks -= 1
        if missing < MISSED_SHARE * capacity:
            self._backoff_ticks = self._wait_ticks = 0
            return False
        if self._wait_ticks > 0:
            return False
        self._backoff_ticks = min(max(1, 2 * self._backoff_ticks), LONGEST_BACKOFF_TICKS)
        self._wait_ticks = self._backoff_ticks
        return True

    def _next_in_turn(self) -> list[str]:
        if not self._turn:
            self._turn = list(self._groups)
        now, self._turn = self._turn[:IN_TURN], self._turn[IN_TURN:]
        return [path for path in now if path in self._groups]

    def _take(self, group: _Group, now_s: float, *, keep_open: bool = False) -> None:
        assert self._tree is not None
        path = self._tree.path(group.path, self._name)
        try:
            if keep_open and group.file is None:
                group.file = self._fs.open(path)
                self._opened.add(group.path)
            data = self._fs.read(path) if group.file is None else group.file.read()
        except KernelError:
            self._forget(group.path)
            return
        used_s = self._seconds(data)
        if not available(used_s):
            return
        cores = group.rate.update(used_s, now_s)
        group.cores = cores if available(cores) else 0.0

    def _seconds(self, data: bytes) -> Reading:
        if self._name == "cpu.stat":
            used_us = values_of(data, _USAGE)[0]
            return Unavailable("cpu.stat has no usage_usec") if used_us is None else used_us / 1e6
        used_ns = whole_number(data)
        return Unavailable("cpuacct.usage contains no number") if used_ns is None else used_ns / 1e9

    def _follow(self, now_s: float) -> None:
        """Walk the tree from the top, and below groups that are busy or contain a workload."""
        above = {ancestor for group in self._declared for ancestor in _ancestors(group)}
        found: dict[str, bool] = {}
        level = [""]
        for _ in range(MOST_DEPTH):
            level = [child for parent in level for child in self._below(parent, above, found)]
        for path in self._groups.keys() - found.keys():
            self._forget(path)
        for known in self._groups.values():
            known.is_leaf = known.cores >= MUCH_CORES
        for path, inner in found.items():
            group = self._groups.get(path)
            if group is None:
                group = self._groups[path] = _Group(path, Rate())
                self._fresh.append(path)
            group.inner = inner
        for path in tuple(self._fresh):
            self._take(
                self._groups[path], now_s
            )  # a rate needs two readings: the second comes with the next tick
        self._turn = []

    def _below(self, parent: str, above: frozenset[str] | set[str], found: dict[str, bool]) -> Iterable[str]:
        """Add the followed children of a group to ``found``. Returns the children whose own children are followed
        too.
        """
        assert self._tree is not None
        try:
            names = self._fs.subdirectories(self._tree.path(parent or "/"))
        except KernelError:
            return ()
        children = [path for path in (f"{parent}/{name}" for name in names) if path not in self._declared]
        # Ancestors of a workload are always followed, because their own use is not the workload's.
        children.sort(key=lambda path: path not in above)
        children = children[: max(0, MOST_GROUPS - len(found))]
        if parent and children:
            found[parent] = True
        for path in children:
            found.setdefault(path, False)
        return [path for path in children if path in above or self._uses_much(path)]

    def _uses_much(self, path: str) -> bool:
        group = self._groups.get(path)
        return group is not None and group.cores >= (MUCH_CORES / 2 if group.inner else MUCH_CORES)

    def _is_unresolved(self, group: _Group) -> bool:
        return group.cores >= MUCH_CORES and not group.inner and not group.is_leaf

    def _forget(self, path: str) -> None:
        self._close(path)
        self._groups.pop(path, None)

    def _close(self, path: str) -> None:
        self._opened.discard(path)
        group = self._groups.get(path)
        if group is not None and group.file is not None:
            group.file.close()
            group.file = None

    @property
    def open_fds(self) -> int:
        """Number of open descriptors."""
        return len(self._opened)

    def close(self) -> None:
        """Close all descriptors."""
        for path in tuple(self._groups):
            self._forget(path)
        self._looked_s = None


def _usage_file(hierarchies: Hierarchies) -> tuple[Hierarchy | None, str]:
    """The hierarchy and file of CPU time per group: v1's cpuacct, else the unified tree."""
    accounting = hierarchies.of("cpuacct")
    if accounting is not None:
        return accounting, "cpuacct.usage"
    return hierarchies.unified, "cpu.stat"


def _ancestors(group: str) -> list[str]:
    found = []
    while group := group.rpartition("/")[0]:
        found.append(group)
    return found
