"""Memory of the simulated host: what is resident under limits and protections, and what missing pages cost.

Without swap: anonymous memory stays, page cache is what reclaim takes. ``memory.low`` and ``memory.min``
count while the host is short; ``memory.high`` throttles what cannot be reclaimed; ``memory.max`` kills.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from perphd.sim.kernel.cgroup2 import SimCgroup
from perphd.sim.kernel.formats import PAGE
from perphd.sim.workload import Lra, Workload

_FILL_BYTES_PER_S: Final = 400e6  # a disk read at full speed
_ALLOCATE_BYTES_PER_S: Final = 2e9
_FAULT_MS: Final = 0.12  # one page from the disk
_THROTTLED_SHARE: Final = 0.85  # of the time, over memory.high with nothing to reclaim
_BATCH_PAGES_PER_S: Final = 2000.0  # of its cache that a batch job touches per second
_RESERVE: Final = 0.03  # of the host's memory, for the kernel


@dataclass(frozen=True, slots=True)
class MemoryFate:
    """What memory does to one workload now. ``stall_ms``: per request (LRA) or per ms of CPU work (batch)."""

    stall_ms: float = 0.0
    refaults_per_s: float = 0.0
    some: float = 0.0
    full: float = 0.0


def settle(
    dt_s: float, total_bytes: int, residents: Sequence[tuple[SimCgroup, Workload, float]]
) -> list[MemoryFate]:
    """Let memory move for ``dt_s`` seconds. ``residents``: leaf group, workload, its requests per second."""
    for group, work, _ in residents:
        _grow(dt_s, group, work)
    _reclaim_globally(total_bytes * (1 - _RESERVE), [group for group, _, _ in residents])
    fates = []
    for group, work, rate in residents:
        over_high = _over(group, "high")
        if over_high > 0:
            reclaim(group, over_high)
            group.memory.events["high"] += 1
        fates.append(_fate(dt_s, group, work, rate, over_high))
    return fates


def reclaim(group: SimCgroup, count_bytes: float) -> float:
    """Take up to this much page cache from a leaf group; returns what was taken."""
    taken = min(count_bytes, group.memory.file_bytes)
    pages = taken / PAGE
    for above in group.ancestry():
        above.memory.file_bytes -= taken
        above.memory.scanned += 1.5 * pages
        above.memory.stolen += pages
    return taken


def release(group: SimCgroup) -> None:
    """Give everything of a leaf group back: its processes ended."""
    anon, file = group.memory.anon_bytes, group.memory.file_bytes
    for above in group.ancestry():
        above.memory.anon_bytes -= anon
        above.memory.file_bytes -= file


def enforce_max(group: SimCgroup) -> bool:
    """What a write of memory.max does at once: reclaim. True if what remains is too much: the OOM killer's case."""
    over = _over(group, "max")
    if over <= 0:
        return False
    group.memory.events["max"] += 1
    return over - sum(reclaim(leaf, over) for leaf in group.walk() if not leaf.children) > PAGE


def _limit(group: SimCgroup, knob: str) -> float:
    """Bytes that this leaf may have under its own limit and those above it, as far as others leave room there."""
    mine = group.memory.current_bytes
    return min(
        above.memory_pages[knob] * PAGE - (above.memory.current_bytes - mine) for above in group.ancestry()
    )


def _over(group: SimCgroup, knob: str) -> float:
    return group.memory.current_bytes - _limit(group, knob)


def _grow(dt_s: float, group: SimCgroup, work: Workload) -> None:
    memory = group.memory
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
    # First what nobody protects, then what is only protected by memory.low.
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


def _fate(dt_s: float, group: SimCgroup, work: Workload, rate: float, over_high: float) -> MemoryFate:
    missing = 1.0 - group.memory.file_bytes / work.cache_bytes if work.cache_bytes else 0.0
    stuck = over_high > 0 and group.memory.file_bytes < PAGE
    if isinstance(work, Lra):
        refaults = rate * work.pages_per_request * missing
        stall_ms = work.pages_per_request * missing * _FAULT_MS
        stalled = 1.0 - 1.0 / (1.0 + refaults * _FAULT_MS / 1000.0)
    else:
        refaults = _BATCH_PAGES_PER_S * missing
        stall_ms = refaults * _FAULT_MS / 1000.0
        stalled = stall_ms / (1.0 + stall_ms)
    if stuck:
        stalled = _THROTTLED_SHARE
        stall_ms += _THROTTLED_SHARE / (1.0 - _THROTTLED_SHARE)
    for above in group.ancestry():
        above.memory.refaults += refaults * dt_s
        above.memory.major_faults += refaults * dt_s / 8
        above.io.read_bytes += refaults * dt_s * PAGE
        above.io.reads += refaults * dt_s / 8
    return MemoryFate(stall_ms, refaults, stalled, stalled * 0.8)
