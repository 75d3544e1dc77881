"""What sizing asks of the kernel beside samples: kills, memory that only ends with its owner, and room for all.

Readings are kept for ``KEPT_S`` unless a workload's use moved: most groups are the same for minutes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from posixpath import dirname
from typing import Final

from perphd.domain.errors import KernelError
from perphd.domain.reading import NOT_MEASURED, Reading, Unavailable
from perphd.host.cgroup.hierarchy import Hierarchies
from perphd.host.fs import KernelFs, read_text

KEPT_S: Final = 5.0
MOVED_SHARE: Final = 0.05
RESERVE_SHARE: Final = 0.02
"""Share of a host's memory, or of a group's limit, that is given to nobody: page tables, stocks of the processors."""
_NO_V1_LIMIT: Final = 1 << 60


@dataclass(frozen=True, slots=True)
class Facts:
    """One group. ``kills``: processes killed for lack of memory, so far; ``unreclaimable_bytes``: see ``Demand``."""

    kills: Reading = NOT_MEASURED
    unreclaimable_bytes: Reading = NOT_MEASURED


@dataclass(slots=True)
class _Kept:
    facts: Facts
    at_s: float
    used_bytes: float


class MemoryFacts:
    """Reads them from a v1, v2 or hybrid host."""

    def __init__(self, fs: KernelFs, hierarchies: Hierarchies) -> None:
        self._fs, self._tree = fs, hierarchies.of("memory")
        self._kept: dict[str, _Kept] = {}
        self._capacity: tuple[float, Reading] = (-math.inf, NOT_MEASURED)

    def of(self, cgroup: str, used_bytes: Reading, now_s: float) -> Facts:
        """The facts about one group, which uses so much memory now."""
        used = 0.0 if isinstance(used_bytes, Unavailable) else used_bytes
        kept = self._kept.get(cgroup)
        is_fresh = kept is not None and now_s - kept.at_s < KEPT_S
        if kept is not None and is_fresh and abs(used - kept.used_bytes) <= MOVED_SHARE * kept.used_bytes:
            return kept.facts
        facts = Facts(self._kills(cgroup), self._unreclaimable(cgroup))
        self._kept[cgroup] = _Kept(facts, now_s, used)
        return facts

    def forget(self, cgroups: frozenset[str]) -> None:
        """Keep nothing of groups that are not among these."""
        for cgroup in self._kept.keys() - cgroups:
            del self._kept[cgroup]

    def capacity(self, used: Mapping[str, float], now_s: float) -> Reading:
        """Memory that these groups (path -> bytes used) may have together."""
        at_s, found = self._capacity
        if now_s - at_s >= KEPT_S:
            found = self._room(used)
            self._capacity = (now_s, found)
        return found

    def _room(self, used: Mapping[str, float]) -> Reading:
        total = sum(used.values())
        host = _meminfo(self._fs)
        if isinstance(host, str):
            return Unavailable(host)
        room = host.get("MemAvailable", 0.0) + total - RESERVE_SHARE * host.get("MemTotal", 0.0)
        for ancestor in _common(tuple(used)):
            limit = self._limit(ancestor)
            if limit is None:
                continue
            others = max(0.0, self._working_set(ancestor) - total)
            room = min(room, (1 - RESERVE_SHARE) * limit - others)
        return max(0.0, room)

    def _limit(self, cgroup: str) -> float | None:
        tree = self._tree
        if tree is None:
            return None
        text = self._text(tree.path(cgroup, "memory.max" if tree.version == 2 else "memory.limit_in_bytes"))
        limit = float(text) if text.isdecimal() else math.inf
        return limit if limit < _NO_V1_LIMIT else None

    def _working_set(self, cgroup: str) -> float:
        assert self._tree is not None
        v2 = self._tree.version == 2
        text = self._text(self._tree.path(cgroup, "memory.current" if v2 else "memory.usage_in_bytes"))
        idle = self._stat(cgroup).get("inactive_file" if v2 else "total_inactive_file", 0.0)
        return max(0.0, (float(text) if text.isdecimal() else 0.0) - idle)

    def _kills(self, cgroup: str) -> Reading:
        tree = self._tree
        if tree is None:
            return Unavailable("no memory controller")
        path = tree.path(cgroup, "memory.events" if tree.version == 2 else "memory.oom_control")
        found = _pairs(self._text(path)).get("oom_kill")
        return Unavailable(f"{path} tells of no kills") if found is None else found

    def _unreclaimable(self, cgroup: str) -> Reading:
        """Anonymous memory beyond what swap can take, and what is locked or the kernel's."""
        if self._tree is None:
            return Unavailable("no memory controller")
        stat = self._stat(cgroup)
        if self._tree.version == 2:
            swappable = stat.get("anon", 0.0) + stat.get("shmem", 0.0)
            fixed = sum(
                stat.get(name, 0.0)
                for name in ("unevictable", "slab_unreclaimable", "pagetables", "kernel_stack")
            )
        else:
            swappable = stat.get("total_rss", 0.0) + stat.get("total_shmem", 0.0)
            fixed = stat.get("total_unevictable", 0.0)
        if not stat:
            return Unavailable("memory.stat cannot be read")
        host = _meminfo(self._fs)
        swap = 0.0 if isinstance(host, str) else host.get("SwapFree", 0.0)
        return fixed + max(0.0, swappable - swap)

    def _stat(self, cgroup: str) -> dict[str, float]:
        return {} if self._tree is None else _pairs(self._text(self._tree.path(cgroup, "memory.stat")))

    def _text(self, path: str) -> str:
        try:
            return read_text(self._fs, path)
        except KernelError:
            return ""


def _common(cgroups: Sequence[str]) -> list[str]:
    """The groups that all of these lie in, the root left out."""
    if not cgroups:
        return []
    found, ancestor = [], dirname(cgroups[0])
    while ancestor != "/":
        if all(cgroup.startswith(f"{ancestor}/") for cgroup in cgroups):
            found.append(ancestor)
        ancestor = dirname(ancestor)
    return found


def _pairs(text: str) -> dict[str, float]:
    words = (line.split() for line in text.splitlines())
    return {pair[0]: float(pair[1]) for pair in words if len(pair) == 2 and pair[1].isdecimal()}


def _meminfo(fs: KernelFs) -> dict[str, float] | str:
    """The numbers of /proc/meminfo in bytes, or why not."""
    try:
        lines = read_text(fs, "/proc/meminfo").splitlines()
    except KernelError as exc:
        return str(exc)
    words = [line.replace(":", " ").split() for line in lines]
    return {pair[0]: float(pair[1]) * 1024 for pair in words if len(pair) >= 2 and pair[1].isdecimal()}
