"""Cost of measuring cache and bandwidth: 50 workloads on two cache domains, read at every tick.

    python -m tools.bench.monitoring

The files lie in memory and have the layout of resctrl and of control groups; system calls are the same. The kernel's
own time for reading a counter (on a CPU of the domain) and listing threads depends on the machine. Times are CPU time
of the process.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from perphd.domain.workload import Kind, WorkloadSpec
from perphd.host.cgroup import discover
from perphd.host.fs import RealFs
from perphd.isolation.journal import Journal
from perphd.isolation.monitor_groups import FOLLOW_BATCH_S, FOLLOW_LRA_S, Asked, MonitorGroups
from perphd.monitor.cache_use import CacheUse
from rdt.monitor import EVENTS

WORKLOADS: Final = 50
LRAS: Final = 10
THREADS: Final = 40
DOMAINS: Final = (0, 1)
CPU_BUDGET_PCT: Final = 1.0
_RESCTRL: Final = "sys/fs/resctrl"
_CGROUPS: Final = "sys/fs/cgroup"


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU time of one reading of all groups, of one look at all of them, and their sum at 1 Hz."""

    workloads: int
    domains: int
    read_ms: float
    look_ms: float
    core_pct: float
    rss_bytes: int
    descriptors: int

    def as_dict(self) -> dict[str, Any]:
        """For the report."""
        return asdict(self)


class _Tree:
    """A root directory with 50 control groups and a resctrl in which each has its monitor group."""

    def __init__(self) -> None:
        above = "/dev/shm" if Path("/dev/shm").is_dir() else None
        self.root = Path(tempfile.mkdtemp(prefix="perphd-monitoring-", dir=above))
        self.specs = [
            WorkloadSpec(f"w{n:02}", Kind.LRA if n < LRAS else Kind.BATCH, f"/bench/w{n:02}")
            for n in range(WORKLOADS)
        ]
        mounts = f"cgroup2 /{_CGROUPS} cgroup2 rw 0 0\nresctrl /{_RESCTRL} resctrl rw 0 0\n"
        self._put("proc/self/mounts", mounts)
        self._put("proc/mounts", mounts)
        self._put("proc/filesystems", "nodev\tresctrl\n")
        self._put(f"{_CGROUPS}/cgroup.controllers", "cpu memory\n")
        self._put(f"{_RESCTRL}/info/L3/cbm_mask", "7ff\n")
        for name, text in (("num_closids", "16"), ("min_cbm_bits", "1"), ("shareable_bits", "0")):
            self._put(f"{_RESCTRL}/info/L3/{name}", f"{text}\n")
        self._put(f"{_RESCTRL}/info/L3/bit_usage", "0=SSSSSSSSSSS;1=SSSSSSSSSSS\n")
        self._put(f"{_RESCTRL}/info/L3_MON/mon_features", "\n".join(EVENTS) + "\n")
        self._put(f"{_RESCTRL}/info/L3_MON/num_rmids", "256\n")
        self._put(f"{_RESCTRL}/info/L3_MON/max_threshold_occupancy", "65536\n")
        self._put(f"{_RESCTRL}/info/last_cmd_status", "ok\n")
        self._put(f"{_RESCTRL}/schemata", "L3:0=7ff;1=7ff\n")
        self._counters(_RESCTRL)
        self._put(f"{_RESCTRL}/tasks", "")
        for number, spec in enumerate(self.specs):
            first = 10_000 + number * THREADS
            threads = "".join(f"{tid}\n" for tid in range(first, first + THREADS))
            self._put(f"{_CGROUPS}{spec.cgroup}/cgroup.threads", threads)
            group = f"{_RESCTRL}/mon_groups/perphd.{spec.name}"
            self._put(f"{group}/tasks", threads)
            self._counters(group)

    def _counters(self, group: str) -> None:
        for domain in DOMAINS:
            for event in EVENTS:
                self._put(f"{group}/mon_data/mon_L3_{domain:02}/{event}", "123456789012\n")

    def _put(self, path: str, text: str) -> None:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def close(self) -> None:
        shutil.rmtree(self.root)


def measure(ticks: int = 200, looks: int = 20) -> Cost:
    """Read ``ticks`` times and look ``looks`` times.

    Raises:
        RuntimeError: not every workload was measured, so that the figures would be wrong.
    """
    tree = _Tree()
    use = CacheUse(time.monotonic)
    try:
        with tempfile.TemporaryDirectory(prefix="perphd-bench-") as state, Journal(state) as journal:
            fs = RealFs(str(tree.root))
            groups = MonitorGroups(fs, discover(fs), journal)
            asked = [Asked(spec, 1.0) for spec in tree.specs]
            before = psutil.Process().memory_info().rss
            counted = groups.look(asked, {}, 0.0)
            if len(counted.counters) != WORKLOADS:
                raise RuntimeError(f"{len(counted.counters)} of {WORKLOADS} are counted: {counted.otherwise}")
            use.read(0.0, counted)
            if len(use.read(1.0, counted)) != WORKLOADS:
                raise RuntimeError("not every workload was read")
            # The most expensive looks: each lists every workload.
            times = iter(range(1, looks + 1))
            look_s = _mean(lambda: groups.look(asked, {}, next(times) * 2 * FOLLOW_BATCH_S), looks)
            read_s = _mean(lambda: use.read(1.0, counted), ticks)
            rss = psutil.Process().memory_info().rss - before
            per_s = read_s + look_s * (LRAS / FOLLOW_LRA_S + (WORKLOADS - LRAS) / FOLLOW_BATCH_S) / WORKLOADS
            return Cost(
                WORKLOADS,
                len(DOMAINS),
                read_s * 1e3,
                look_s * 1e3,
                per_s * 100.0,
                max(0, rss),
                use.open_fds,
            )
    finally:
        use.close()
        tree.close()


def _mean(work: Callable[[], object], times: int) -> float:
    began = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - began) / times


def table(cost: dict[str, Any] | None) -> list[str]:
    """The part of the report about monitoring."""
    if cost is None:
        return []
    verdict = "within" if cost["core_pct"] <= CPU_BUDGET_PCT else "over"
    return [
        "## Cache occupancy and memory bandwidth",
        "",
        f"{cost['workloads']} workloads on {cost['domains']} cache domains, files in memory: "
        f"{cost['read_ms']:.2f} ms a tick to read all groups, {cost['look_ms']:.2f} ms to list the threads of all "
        f"({FOLLOW_LRA_S:g} s apart for LRAs, {FOLLOW_BATCH_S:g} s for batch): {cost['core_pct']:.2f} % of a core at "
        f"1 Hz, {verdict} {CPU_BUDGET_PCT:g} %; {cost['rss_bytes'] / (1 << 20):.1f} MiB, "
        f"{cost['descriptors']} descriptors.",
        "",
    ]


if __name__ == "__main__":
    sys.stdout.write("\n".join(table(measure().as_dict())))
