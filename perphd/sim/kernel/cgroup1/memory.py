"""v1's memory, blkio, freezer and pids controllers."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from typing import Final

from perphd.sim.counters import IoCounters, MemoryCounters
from perphd.sim.kernel import formats
from perphd.sim.kernel.cgroup1.hierarchy import Controller, V1Group
from perphd.sim.kernel.cgroup2.memory import PeakCounters, reclaim_cache
from perphd.sim.kernel.cgroup2.pids import Pids
from perphd.sim.kernel.cgroup2.rules import DISK, FileSpec
from perphd.sim.kernel.formats import COUNTER_MAX_PAGES, PAGE
from perphd.sim.kernel.vfs import Writer, refuse

_STAT: Final = (
    "cache rss rss_huge shmem mapped_file dirty writeback workingset_refault_anon workingset_refault_file swap "
    "swapcached pgpgin pgpgout pgfault pgmajfault inactive_anon active_anon inactive_file active_file unevictable"
).split()
_UNLIMITED: Final = COUNTER_MAX_PAGES * PAGE
_THROTTLE: Final = {
    "blkio.throttle.read_bps_device": "rbps",
    "blkio.throttle.write_bps_device": "wbps",
    "blkio.throttle.read_iops_device": "riops",
    "blkio.throttle.write_iops_device": "wiops",
}


class V1Memory:
    """The memory controller: a limit that kills, a soft limit, usage and statistics."""

    def __init__(self, group: V1Group, parent: Controller | None) -> None:
        self._group = group
        self._pages = {"limit": COUNTER_MAX_PAGES, "soft": COUNTER_MAX_PAGES}

    def files(self) -> list[FileSpec]:
        """The controller's files."""
        return [
            FileSpec("memory.limit_in_bytes", lambda: self._show("limit"), self._write_limit),
            FileSpec("memory.soft_limit_in_bytes", lambda: self._show("soft"), self._write_soft),
            FileSpec(
                "memory.usage_in_bytes", lambda: f"{int(self._counters.current_bytes) // PAGE * PAGE}\n"
            ),
            FileSpec("memory.max_usage_in_bytes", self._read_peak, self._reset_peak),
            FileSpec("memory.failcnt", lambda: "0\n", lambda data: None),
            FileSpec("memory.stat", self._read_stat),
            FileSpec("memory.force_empty", None, self._force_empty),
            FileSpec("memory.use_hierarchy", lambda: "1\n", self._write_hierarchy),
        ]

    def check_tasks(self) -> None:
        """Never refuses."""

    @property
    def _counters(self) -> MemoryCounters:
        bound = self._group.bound
        return MemoryCounters() if bound is None else bound.memory

    def _show(self, knob: str) -> str:
        return f"{self._pages[knob] * PAGE}\n"

    def _parse(self, data: bytes) -> int:
        text = formats.text_of(data)
        return COUNTER_MAX_PAGES if text == "-1" else formats.parse_memory_pages(data, infinite="-1")

    def _write_limit(self, data: bytes) -> None:
        pages = self._parse(data)
        if self._group.parent is None:
            raise refuse(errno.EINVAL)
        bound = self._group.bound
        if bound is not None:
            over = bound.memory.current_bytes - pages * PAGE
            if over > 0 and over - reclaim_cache(bound, over) >= PAGE:
                raise refuse(errno.EBUSY)  # unlike v2's memory.max, it fails instead of killing
            bound.memory_control.pages["max"] = pages
        self._pages["limit"] = pages

    def _write_soft(self, data: bytes) -> None:
        self._pages["soft"] = self._parse(data)

    def _read_peak(self) -> str:
        counters = self._counters
        peak = counters.peak_bytes if isinstance(counters, PeakCounters) else counters.current_bytes
        return f"{int(peak) // PAGE * PAGE}\n"

    def _reset_peak(self, data: bytes) -> None:
        counters = self._counters
        if isinstance(counters, PeakCounters):
            counters.peak_bytes = counters.current_bytes

    def _force_empty(self, data: bytes) -> None:
        if self._group.bound is not None:
            reclaim_cache(self._group.bound, float("inf"))

    @staticmethod
    def _write_hierarchy(data: bytes) -> None:
        if formats.parse_u64(data) != 1:
            raise refuse(errno.EINVAL)

    def _read_stat(self) -> str:
        total = _stat(self._counters)
        bound = self._group.bound
        below = [] if bound is None else [_stat(child.memory) for child in bound.children.values()]
        own = {key: max(0, value - sum(b[key] for b in below)) for key, value in total.items()}
        limit = _UNLIMITED if self._group.parent is None else self._pages["limit"] * PAGE
        return (
            "".join(f"{key} {own.get(key, 0)}\n" for key in _STAT)
            + f"hierarchical_memory_limit {limit}\nhierarchical_memsw_limit {_UNLIMITED}\n"
            + "".join(f"total_{key} {total.get(key, 0)}\n" for key in _STAT)
        )


def _stat(counters: MemoryCounters) -> dict[str, int]:
    anon, file = (int(n) // PAGE * PAGE for n in (counters.anon_bytes, counters.file_bytes))
    return {
        "cache": file,
        "rss": anon,
        "workingset_refault_file": int(counters.refaults),
        "pgfault": int(counters.faults),
        "pgmajfault": int(counters.major_faults),
        "active_anon": anon,
        "inactive_file": file // 2 // PAGE * PAGE,
        "active_file": file - file // 2 // PAGE * PAGE,
    }


class V1Blkio:
    """The blkio controller: throttling of the one disk, weights of the BFQ scheduler, counters."""

    def __init__(self, group: V1Group, parent: Controller | None) -> None:
        self._group, self._root = group, parent is None
        self._own: dict[str, int | None] = dict.fromkeys(_THROTTLE.values())
        self._weight = 100
        self._has_disk = False  # the kernel counts for a disk only after it was used or configured

    def files(self) -> list[FileSpec]:
        """The controller's files."""
        files = [
            FileSpec(name, self._limit_reader(limit), self._limit_writer(limit))
            for name, limit in _THROTTLE.items()
        ]
        for end in ("", "_recursive"):
            files += [
                FileSpec(f"blkio.throttle.io_service_bytes{end}", lambda: self._counts(_bytes)),
                FileSpec(f"blkio.throttle.io_serviced{end}", lambda: self._counts(_operations)),
            ]
        if not self._root:
            files.append(FileSpec("blkio.bfq.weight", lambda: f"{self._weight}\n", self._write_weight))
        return files

    def check_tasks(self) -> None:
        """Never refuses."""

    @property
    def _limits(self) -> dict[str, int | None]:
        bound = self._group.bound
        return self._own if bound is None or bound.parent is None else bound.io_control.limits

    def _limit_reader(self, limit: str) -> Callable[[], str]:
        return lambda: "" if self._limits[limit] is None else f"{DISK} {self._limits[limit]}\n"

    def _limit_writer(self, limit: str) -> Writer:
        def write(data: bytes) -> None:
            found = re.fullmatch(r"([0-9]+:[0-9]+)(?:\s+(\S*).*)?", formats.text_of(data))
            if found is None:
                raise refuse(errno.EINVAL)
            if found[1] != DISK:
                raise refuse(errno.ENODEV)
            if not found[2] or not found[2].isdecimal():
                raise refuse(errno.EINVAL)
            self._has_disk = True
            self._limits[limit] = int(found[2]) or None  # 0 removes the limit

        return write

    def _write_weight(self, data: bytes) -> None:
        weight = formats.parse_u64(data)
        if not 1 <= weight <= 1000:
            raise refuse(errno.ERANGE)
        self._weight = weight

    def _counts(self, pick: Callable[[IoCounters], tuple[int, int]]) -> str:
        bound = self._group.bound
        read, written = (0, 0) if bound is None else pick(bound.io)
        if not read and not written and not self._has_disk:
            return "Total 0\n"
        total = read + written
        values = {"Read": read, "Write": written, "Sync": total, "Async": 0, "Discard": 0, "Total": total}
        return "".join(f"{DISK} {name} {value}\n" for name, value in values.items()) + f"Total {total}\n"


def _bytes(io: IoCounters) -> tuple[int, int]:
    return int(io.read_bytes), int(io.written_bytes)


def _operations(io: IoCounters) -> tuple[int, int]:
    return int(io.reads), int(io.writes)


class V1Freezer:
    """The freezer: FROZEN or THAWED. A group is frozen with its parent."""

    def __init__(self, group: V1Group, parent: Controller | None) -> None:
        self._group = group
        self._parent = parent if isinstance(parent, V1Freezer) else None
        self.own = False

    def files(self) -> list[FileSpec]:
        """The controller's files; the root has none."""
        if self._parent is None and self._group.parent is None:
            return []
        return [
            FileSpec("freezer.state", lambda: "FROZEN\n" if self._frozen else "THAWED\n", self._write_state),
            FileSpec("freezer.self_freezing", lambda: f"{int(self.own)}\n"),
            FileSpec("freezer.parent_freezing", lambda: f"{int(self._above)}\n"),
        ]

    def check_tasks(self) -> None:
        """Never refuses."""

    @property
    def _above(self) -> bool:
        return self._parent is not None and self._parent._frozen

    @property
    def _frozen(self) -> bool:
        return self.own or self._above

    def _write_state(self, data: bytes) -> None:
        state = formats.text_of(data)
        if state not in ("FROZEN", "THAWED"):
            raise refuse(errno.EINVAL)
        self.own = state == "FROZEN"
        if self._group.bound is not None:
            self._group.bound.freeze = self.own


class V1Pids:
    """The pids controller: as on v2; the root has no limit."""

    def __init__(self, group: V1Group, parent: Controller | None) -> None:
        self._root = parent is None
        self._pids = Pids(lambda: sum(len(p.tids) for below in group.walk() for p in below.processes()))

    def files(self) -> list[FileSpec]:
        """The controller's files; the root has none."""
        return [] if self._root else self._pids.files()

    def check_tasks(self) -> None:
        """Never refuses: the limit applies to forks."""
