"""Reads kernel facts for sizing: OOM kills, unreclaimable memory, and the capacity for a set of groups.

Readings are kept for ``KEPT_S`` seconds unless a workload's memory use changed, because most groups are stable for
minutes. Each pass reads at most ``READ_AT_ONCE`` known groups, the most overdue first. 100 workloads thus take 50
passes.

Kills are detected sooner. While the host's own kill count (/proc/vmstat) is unchanged, no group had a kill.
When it changes, every group's count is read again, ``KILLS_READ_AT_ONCE`` groups per pass.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from posixpath import dirname
from typing import Final

from perphd.domain.errors import KernelError
from perphd.domain.reading import NOT_MEASURED, Reading, Unavailable
from perphd.host.cgroup.hierarchy import Hierarchies
from perphd.host.fs import KernelFs, read_text, text_or_empty

KEPT_S: Final = 5.0
MOVED_SHARE: Final = 0.05
MOVED_WEIGHT: Final = 4.0
"""Factor on the age of readings of a workload whose use changed, when overdue readings are ranked."""
READ_AT_ONCE: Final = 2
"""Number of known groups that one pass reads again. Reading one takes 40 us."""
KILLS_READ_AT_ONCE: Final = 25
RESERVE_SHARE: Final = 0.02
"""Share of a host's memory, or of a group's limit, that is left free for page tables and per-CPU caches."""
_NO_V1_LIMIT: Final = 1 << 60
_STAT: Final = re.compile(
    r"(?m)^(anon|shmem|unevictable|slab_unreclaimable|pagetables|kernel_stack|inactive_file"
    r"|total_rss|total_shmem|total_unevictable|total_inactive_file) (\d+)$"
)
"""The needed lines of memory.stat; parsing all lines would take four times as long."""
_HOST_KILLS: Final = b"\noom_kill "
_MEMINFO: Final = re.compile(r"(?m)^(MemTotal|MemAvailable|SwapFree): +(\d+) kB$")


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about one group.

    ``kills``: number of processes that the OOM killer has killed so far. ``unreclaimable_bytes``: see ``Demand``.
    """

    kills: Reading = NOT_MEASURED
    unreclaimable_bytes: Reading = NOT_MEASURED


_NOTHING: Final = Facts()


@dataclass(slots=True)
class _Kept:
    facts: Facts
    at_s: float
    used_bytes: float


class MemoryFacts:
    """Reads facts about groups on a v1, v2 or hybrid host."""

    def __init__(self, fs: KernelFs, hierarchies: Hierarchies) -> None:
        self._fs, self._tree = fs, hierarchies.of("memory")
        self._kept: dict[str, _Kept] = {}
        self._host_kills: float | None = None
        self._doubtful: dict[str, None] = {}
        self._capacity: tuple[float, Reading] = (-math.inf, NOT_MEASURED)
        self._meminfo: dict[str, float] | str | None = None

    def look(self, used: Mapping[str, Reading], now_s: float) -> list[str]:
        """Read the facts that are due. ``used``: bytes in use now, by group path. Returns the groups with new kills."""
        self._meminfo = None
        before, self._host_kills = self._host_kills, self._killed_on_host()
        if self._host_kills != before:
            self._doubtful = dict.fromkeys(self._kept)
        overdue = []
        for cgroup, reading in used.items():
            amount = 0.0 if isinstance(reading, Unavailable) else reading
            kept = self._kept.get(cgroup)
            if kept is None:
                self._read(cgroup, self._kills(cgroup), amount, now_s)
                continue
            age_s = now_s - kept.at_s
            moved = abs(amount - kept.used_bytes) > MOVED_SHARE * kept.used_bytes
            if moved or age_s >= KEPT_S:
                overdue.append((-age_s * (MOVED_WEIGHT if moved else 1.0), cgroup, amount))
        for _, cgroup, amount in sorted(overdue)[:READ_AT_ONCE]:
            known = self._kept[cgroup].facts.kills
            self._read(cgroup, self._kills(cgroup) if self._host_kills is None else known, amount, now_s)
        return self._killed(used) if self._doubtful else []

    def forget(self, cgroup: str) -> None:
        """Forget a group."""
        self._kept.pop(cgroup, None)
        self._doubtful.pop(cgroup, None)

    def of(self, cgroup: str) -> Facts:
        """Facts of one group from the last call of ``look``."""
        kept = self._kept.get(cgroup)
        return _NOTHING if kept is None else kept.facts

    def _read(self, cgroup: str, kills: Reading, used_bytes: float, now_s: float) -> None:
        self._kept[cgroup] = _Kept(Facts(kills, self._unreclaimable(cgroup)), now_s, used_bytes)

    def _killed_on_host(self) -> float | None:
        """Number of processes killed by the OOM killer on this host; None if the kernel does not count them."""
        try:
            text = self._fs.read("/proc/vmstat")
        except KernelError:
            return None
        number = text.partition(_HOST_KILLS)[2].partition(b"\n")[0]
        return float(number) if number.isdigit() else None

    def _killed(self, used: Mapping[str, Reading]) -> list[str]:
        """Read the kill counts that may have changed, those of the groups in ``used`` first.

        Returns the groups with new kills.
        """
        found = []
        for cgroup in sorted(self._doubtful, key=lambda each: each not in used)[:KILLS_READ_AT_ONCE]:
            del self._doubtful[cgroup]
            kept, kills = self._kept[cgroup], self._kills(cgroup)
            if kills != kept.facts.kills:
                kept.facts = Facts(kills, kept.facts.unreclaimable_bytes)
                found.append(cgroup)
        return found

    def capacity(self, used: Callable[[], Mapping[str, float]], now_s: float) -> Reading:
        """Memory in bytes available to these groups together.

        ``used``: returns the bytes used by group path; called only when the capacity is computed again.
        """
        at_s, found = self._capacity
        if now_s - at_s >= KEPT_S:
            found = self._room(used())
            self._capacity = (now_s, found)
        return found

    def _room(self, used: Mapping[str, float]) -> Reading:
        total = sum(used.values())
        host = self._host()
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
        file = "memory.max" if tree.version == 2 else "memory.limit_in_bytes"
        text = text_or_empty(self._fs, tree.path(cgroup, file))
        limit = float(text) if text.isdecimal() else math.inf
        return limit if limit < _NO_V1_LIMIT else None

    def _working_set(self, cgroup: str) -> float:
        assert self._tree is not None
        v2 = self._tree.version == 2
        file = "memory.current" if v2 else "memory.usage_in_bytes"
        text = text_or_empty(self._fs, self._tree.path(cgroup, file))
        idle = self._stat(cgroup).get("inactive_file" if v2 else "total_inactive_file", 0.0)
        return max(0.0, (float(text) if text.isdecimal() else 0.0) - idle)

    def _kills(self, cgroup: str) -> Reading:
        tree = self._tree
        if tree is None:
            return Unavailable("no memory controller")
        path = tree.path(cgroup, "memory.events" if tree.version == 2 else "memory.oom_control")
        found = _pairs(text_or_empty(self._fs, path)).get("oom_kill")
        return Unavailable(f"{path} reports no kill count") if found is None else found

    def _unreclaimable(self, cgroup: str) -> Reading:
        """Unreclaimable bytes: anonymous memory beyond free swap, locked memory, and kernel memory."""
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
        host = self._host()
        swap = 0.0 if isinstance(host, str) else host.get("SwapFree", 0.0)
        return fixed + max(0.0, swappable - swap)

    def _host(self) -> dict[str, float] | str:
        """The host's memory figures in bytes, read once per pass; or why they cannot be read."""
        if self._meminfo is None:
            self._meminfo = _meminfo(self._fs)
        return self._meminfo

    def _stat(self, cgroup: str) -> dict[str, float]:
        """The needed values of memory.stat; empty if it cannot be read."""
        if self._tree is None:
            return {}
        text = text_or_empty(self._fs, self._tree.path(cgroup, "memory.stat"))
        return {name: float(number) for name, number in _STAT.findall(text)}


def _common(cgroups: Sequence[str]) -> list[str]:
    """The common ancestors of all groups, without the root."""
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
    """The needed values of /proc/meminfo in bytes, or the error text if it cannot be read."""
    try:
        text = read_text(fs, "/proc/meminfo")
    except KernelError as exc:
        return str(exc)
    return {name: float(number) * 1024 for name, number in _MEMINFO.findall(text)}
