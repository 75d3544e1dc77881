"""The memory controller: limits and protections, statistics, reclaim on request."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from perphd.domain.cpuset import CpuSet
from perphd.sim.counters import MemoryCounters
from perphd.sim.kernel import formats
from perphd.sim.kernel.cgroup2.rules import FileSpec
from perphd.sim.kernel.formats import COUNTER_MAX_PAGES, PAGE
from perphd.sim.kernel.vfs import Writer, refuse

if TYPE_CHECKING:
    from perphd.sim.kernel.cgroup2.group import SimCgroup

MEMORY_STAT: Final = (
    "anon file kernel kernel_stack pagetables sec_pagetables percpu sock vmalloc shmem zswap zswapped "
    "file_mapped file_dirty file_writeback swapcached anon_thp file_thp shmem_thp inactive_anon active_anon "
    "inactive_file active_file unevictable slab_reclaimable slab_unreclaimable slab "
    "workingset_refault_anon workingset_refault_file workingset_activate_anon workingset_activate_file "
    "workingset_restore_anon workingset_restore_file workingset_nodereclaim "
    "pgscan pgsteal pgscan_kswapd pgscan_direct pgsteal_kswapd pgsteal_direct pgfault pgmajfault pgrefill "
    "pgactivate pgdeactivate pglazyfree pglazyfreed zswpin zswpout thp_fault_alloc thp_collapse_alloc"
).split()
"""The lines of memory.stat, in the kernel's order; values that are not modelled are 0."""
_NUMA_STAT: Final = (
    "anon file kernel_stack pagetables sec_pagetables shmem file_mapped file_dirty file_writeback swapcached "
    "anon_thp file_thp shmem_thp inactive_anon active_anon inactive_file active_file unevictable "
    "slab_reclaimable slab_unreclaimable workingset_refault_anon workingset_refault_file "
    "workingset_activate_anon workingset_activate_file workingset_restore_anon workingset_restore_file "
    "workingset_nodereclaim"
).split()
_LIMITS: Final = ("min", "low", "high", "max", "swap.high", "swap.max", "zswap.max")


class PeakCounters(MemoryCounters):
    """Counters that also record the peak of the charged memory."""

    __slots__ = ("peak_bytes",)

    def __init__(self) -> None:
        self.peak_bytes: float = 0.0
        super().__init__()

    def __setattr__(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)
        if name == "file_bytes" or (name == "anon_bytes" and hasattr(self, "file_bytes")):
            self.peak_bytes = max(self.peak_bytes, self.current_bytes)


class Memory:
    """State and files of one group's memory controller. ``pages``: limits by name, in pages."""

    def __init__(self, group: SimCgroup) -> None:
        self._group = group
        self.pages = {knob: 0 if knob in ("min", "low") else COUNTER_MAX_PAGES for knob in _LIMITS}
        self.oom_group = False

    def files(self) -> list[FileSpec]:
        """The controller's files."""
        files = [
            FileSpec("memory.current", lambda: f"{self._current()}\n"),
            FileSpec("memory.peak", self._read_peak, self._reset_peak if self._resettable else None),
            FileSpec("memory.stat", lambda: stat_text(self._group.memory)),
            FileSpec("memory.numa_stat", self._read_numa_stat),
            FileSpec("memory.events", lambda: _events_text(self._events())),
            FileSpec("memory.events.local", lambda: _events_text(self._group.memory.events)),
            FileSpec("memory.oom.group", lambda: f"{int(self.oom_group)}\n", self._write_oom_group),
            FileSpec("memory.reclaim", None, lambda data: reclaim_file(self._group, data)),
            FileSpec("memory.swap.current", lambda: "0\n"),
            FileSpec("memory.swap.events", lambda: "high 0\nmax 0\nfail 0\n"),
            FileSpec("memory.zswap.current", lambda: "0\n"),
        ]
        return files + [
            FileSpec(f"memory.{knob}", self._limit_reader(knob), self._limit_writer(knob)) for knob in _LIMITS
        ]

    def _limit_reader(self, knob: str) -> Callable[[], str]:
        return lambda: formats.pages_text(self.pages[knob])

    def _limit_writer(self, knob: str) -> Writer:
        def write(data: bytes) -> None:
            self.pages[knob] = formats.parse_memory_pages(data)
            if knob == "max":
                self._group.tree.on_memory_max(self._group)

        return write

    @property
    def _resettable(self) -> bool:
        return self._group.tree.kernel.is_6_12

    def _current(self) -> int:
        return int(self._group.memory.current_bytes) // PAGE * PAGE

    def _read_peak(self) -> str:
        counters = self._group.memory
        assert isinstance(counters, PeakCounters)
        return f"{int(counters.peak_bytes) // PAGE * PAGE}\n"

    def _reset_peak(self, data: bytes) -> None:
        counters = self._group.memory
        assert isinstance(counters, PeakCounters)
        counters.peak_bytes = counters.current_bytes

    def _write_oom_group(self, data: bytes) -> None:
        self.oom_group = formats.parse_switch(data, errno.EINVAL)

    def _events(self) -> dict[str, int]:
        total = dict(self._group.memory.events)
        for past in self._group.past_events:
            _add(total, past)
        for below in self._group.walk():
            if below is not self._group:
                _add(total, below.memory.events)
                for past in below.past_events:
                    _add(total, past)
        return total

    def _read_numa_stat(self) -> str:
        return numa_stat_text(self._group.memory, self._group.effective_mems)


_ZERO_LINES = tuple((key, f"{key} 0\n") for key in MEMORY_STAT)


def stat_text(stat: MemoryCounters) -> str:
    """memory.stat."""
    known = _stat(stat)
    return "".join([f"{key} {known[key]}\n" if key in known else zero for key, zero in _ZERO_LINES])


def numa_stat_text(stat: MemoryCounters, nodes: CpuSet) -> str:
    """memory.numa_stat; memory is spread evenly over the nodes that the group may use."""
    known = _stat(stat)
    spread = list(nodes)
    lines = []
    for key in _NUMA_STAT:
        total = known.get(key, 0)
        even = total // len(spread) // PAGE * PAGE if total >= PAGE else 0
        shares = [total - even * (len(spread) - 1), *(even for _ in spread[1:])]
        lines.append(
            key + "".join(f" N{node}={share}" for node, share in zip(spread, shares, strict=True)) + "\n"
        )
    return "".join(lines)


def _stat(stat: MemoryCounters) -> dict[str, int]:
    anon, file = int(stat.anon_bytes) // PAGE * PAGE, int(stat.file_bytes) // PAGE * PAGE
    inactive_anon, inactive_file = anon // 10 // PAGE * PAGE, file // 2 // PAGE * PAGE
    return {
        "anon": anon,
        "file": file,
        "inactive_anon": inactive_anon,
        "active_anon": anon - inactive_anon,
        "inactive_file": inactive_file,
        "active_file": file - inactive_file,
        "workingset_refault_file": int(stat.refaults),
        "workingset_activate_file": int(stat.refaults / 2),
        "pgscan": int(stat.scanned),
        "pgsteal": int(stat.stolen),
        "pgscan_direct": int(stat.scanned),
        "pgsteal_direct": int(stat.stolen),
        "pgfault": int(stat.faults),
        "pgmajfault": int(stat.major_faults),
    }


def _events_text(events: dict[str, int]) -> str:
    return "".join(f"{key} {value}\n" for key, value in events.items())


def _add(total: dict[str, int], more: dict[str, int]) -> None:
    for key, value in more.items():
        total[key] = total.get(key, 0) + value


def past_events_of(group: SimCgroup) -> Iterable[dict[str, int]]:
    """Events that a removed group leaves to its parent, where they stay counted."""
    return (group.memory.events, *group.past_events)


def enforce_max(group: SimCgroup) -> None:
    """Apply memory.max at once: reclaim, then let the OOM killer take the newest process."""
    over = group.memory.current_bytes - group.memory_control.pages["max"] * PAGE
    if over <= 0 or over - reclaim_cache(group, over) < PAGE:
        return
    for leaf in reversed(list(group.walk())):
        if not leaf.processes:
            continue
        group.memory.events["oom"] += 1
        group.memory.events["oom_kill"] += 1
        group.tree.on_kill(leaf, leaf.processes[-1])
        anon_bytes = leaf.memory.anon_bytes
        for above in leaf.ancestry():
            above.memory.anon_bytes -= anon_bytes
        return


def reclaim_file(group: SimCgroup, data: bytes) -> None:
    """Write memory.reclaim: EAGAIN if less than requested could be reclaimed (an empty line requests all)."""
    wanted = formats.parse_memory_pages(data, infinite="") * PAGE
    taken = reclaim_cache(group, wanted)
    if taken < wanted:
        raise refuse(errno.EAGAIN)


def reclaim_cache(group: SimCgroup, count_bytes: float) -> float:
    """Reclaim up to this much page cache from this group and its descendants; returns the amount."""
    taken = 0.0
    for leaf in group.walk():
        if leaf.children:
            continue
        amount = min(leaf.memory.file_bytes, count_bytes - taken)
        for above in leaf.ancestry():
            above.memory.file_bytes -= amount
            above.memory.scanned += 1.5 * amount / PAGE
            above.memory.stolen += amount / PAGE
        taken += amount
    return taken
