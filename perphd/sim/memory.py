"""Memory of the simulated host: resident memory under limits and protections.

There is no swap: anonymous memory stays, and reclaim takes only page cache. ``memory.low`` and ``memory.min`` apply
while the host is short of memory; ``memory.high`` throttles what cannot be reclaimed; ``memory.max`` kills.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from perphd.sim.kernel.cgroup2 import SimCgroup
from perphd.sim.kernel.formats import COUNTER_MAX_PAGES, PAGE
from perphd.sim.node.workload import MemoryUse, NodeWorkload

_FILL_BYTES_PER_S: Final = 400e6  # speed of a disk from which the page cache fills
_ALLOCATE_BYTES_PER_S: Final = 2e9
_RESERVE: Final = 0.03  # share of the host's memory that the kernel uses
_UNLIMITED: Final = float(COUNTER_MAX_PAGES * PAGE)


def settle(dt_s: float, total_bytes: int, residents: Sequence[tuple[SimCgroup, NodeWorkload, float]]) -> None:
    """Advance memory by ``dt_s`` seconds. ``residents``: leaf group, workload, its refaults (pages) per second."""
    for group, work, _ in residents:
        _grow(dt_s, group, work.memory)
    _reclaim_globally(total_bytes * (1 - _RESERVE), [group for group, _, _ in residents])
    for group, _, refaults_per_s in residents:
        over_high = _over(group, "high")
        if over_high > 0:
            reclaim(group, over_high)
            group.memory.events["high"] += 1
        if refaults_per_s > 0:
            _count_refaults(group, refaults_per_s * dt_s)


def limit(group: SimCgroup) -> float:
    """Memory that this leaf may have under memory.high and memory.max, its own and its ancestors'."""
    return min(_limit(group, "high"), _limit(group, "max"))


def reclaim(group: SimCgroup, count_bytes: float) -> float:
    """Reclaim up to this much page cache from a leaf group; returns the amount."""
    taken = min(count_bytes, group.memory.file_bytes)
    pages = taken / PAGE
    for above in group.ancestry():
        above.memory.file_bytes -= taken
        above.memory.scanned += 1.5 * pages
        above.memory.stolen += pages
    return taken


def release(group: SimCgroup) -> None:
    """Release all memory of a leaf group whose processes have ended."""
    anon, file = group.memory.anon_bytes, group.memory.file_bytes
    for above in group.ancestry():
        above.memory.anon_bytes -= anon
        above.memory.file_bytes -= file


def enforce_max(group: SimCgroup) -> bool:
    """Apply memory.max at once by reclaim. Returns True if the rest still exceeds it, so the OOM killer must act."""
    over = _over(group, "max")
    if over <= 0:
        return False
    group.memory.events["max"] += 1
    return over - sum(reclaim(leaf, over) for leaf in group.walk() if not leaf.children) > PAGE


def _limit(group: SimCgroup, knob: str) -> float:
    """Memory that this leaf may have under its own and its ancestors' limits, given the use by others."""
    mine, least = group.memory.current_bytes, _UNLIMITED
    for above in group.ancestry():
        pages = above.memory_pages[knob]
        if pages < COUNTER_MAX_PAGES:
            least = min(least, pages * PAGE - (above.memory.current_bytes - mine))
    return least


def _over(group: SimCgroup, knob: str) -> float:
    return group.memory.current_bytes - _limit(group, knob)


def _grow(dt_s: float, group: SimCgroup, work: MemoryUse) -> None:
    memory = group.memory
    if memory.anon_bytes == work.anon_bytes and memory.file_bytes == work.cache_bytes:
        return
    anon = min(work.anon_bytes - memory.anon_bytes, _ALLOCATE_BYTES_PER_S * dt_s)
    room = max(0.0, min(_limit(group, "high"), _limit(group, "max")) - memory.current_bytes - anon)
    file = max(0.0, min(work.cache_bytes - memory.file_bytes, _FILL_BYTES_PER_S * dt_s, room))
    for above in group.ancestry():
        above.memory.anon_bytes += anon
        above.memory.file_bytes += file
        above.memory.faults += (anon + file) / PAGE
        above.io.read_bytes += file
        above.io.reads += file / (128 << 10)


def _reclaim_globally(capacity_bytes: float, groups: Sequence[SimCgroup]) -> None:
    over = sum(group.memory.current_bytes for group in groups) - capacity_bytes
    # First unprotected memory, then memory protected only by memory.low.
    for knobs in (("min", "low"), ("min",)):
        if over <= 0:
            return
        spare = []
        for group in groups:
            protected = max(group.memory_pages[knob] * PAGE for knob in knobs)
            unprotected = max(0.0, group.memory.current_bytes - protected)
            spare.append(min(group.memory.file_bytes, unprotected))
        total = sum(spare)
        share = min(1.0, over / total) if total > 0 else 0.0
        for group, amount in zip(groups, spare, strict=True):
            if amount > 0:
                over -= reclaim(group, amount * share)


def _count_refaults(group: SimCgroup, pages: float) -> None:
    for above in group.ancestry():
        above.memory.refaults += pages
        above.memory.major_faults += pages / 8
        above.io.read_bytes += pages * PAGE
        above.io.reads += pages / 8
