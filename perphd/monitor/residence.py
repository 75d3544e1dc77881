"""Finds where workloads run: a cgroup's allowed CPUs, and the L3 domains where its threads use CPU time.

On a host with several L3 domains, an LRA that stays on one socket needs protection only there. The cpuset
comes from the kernel. If it spans several domains, ``/proc/PID/task/TID/stat`` shows on which CPU each thread
ran last and how much CPU time it has used. Growth since the previous reading counts for that CPU's domain.

A domain counts as used immediately, and as unused only after a while: its share of CPU time is smoothed and
starts equal for all domains. An LRA therefore loses protection in a domain only about a minute after leaving
it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from posixpath import dirname
from typing import Final

from perphd.domain.cpuset import CpuSet
from perphd.domain.errors import KernelError, ParseError
from perphd.domain.topology import Topology
from perphd.host.cgroup import Hierarchies
from perphd.host.cgroup.group import Cgroups
from perphd.host.fs import KernelFs, read_text
from perphd.host.process_stat import PROCESSOR, SYSTEM_TICKS, USER_TICKS, stat_fields

LOOK_S: Final = 5.0
"""Seconds between two readings of one workload's threads."""
MAX_THREADS: Final = 64
"""Maximum number of threads per reading, spread evenly over all threads: 64 files take about a millisecond."""
ENTERS: Final = 0.05
"""Share of CPU time since the last reading from which a domain counts as used."""
LEAVES: Final = 0.02
"""Smoothed share below which a domain counts as unused."""
SMOOTHING: Final = 0.3
"""Weight of the newest reading. With it, a share of one half falls below ``LEAVES`` after ten readings without use."""
_EFFECTIVE: Final = {1: ("cpuset.effective_cpus", "cpuset.cpus"), 2: ("cpuset.cpus.effective",)}


@dataclass(frozen=True, slots=True)
class CpuPlacement:
    """Allowed CPUs and used L3 domains of one workload. ``allowed`` is None, and ``domains`` empty, if unknown."""

    allowed: CpuSet | None = None
    domains: tuple[int, ...] = ()


NOWHERE: Final = CpuPlacement()


@dataclass(slots=True)
class _Watched:
    looked_s: float
    ticks: dict[int, int] = field(default_factory=dict)
    shares: dict[int, float] = field(default_factory=dict)
    home: CpuPlacement = NOWHERE


class Residence:
    """Examines each workload every ``LOOK_S``, spread over the ticks; keeps no descriptors."""

    def __init__(self, fs: KernelFs, hierarchies: Hierarchies) -> None:
        self._fs, self._cgroups = fs, Cgroups(fs, hierarchies)
        self._cpusets = hierarchies.of("cpuset")
        self._watched: dict[str, _Watched] = {}

    def follow(
        self, cgroups: Mapping[str, str], closely: Container[str], topology: Topology, now_s: float
    ) -> None:
        """Examine the workloads (name -> cgroup) that are due, and forget workloads that are not listed.

        Threads are read only for the workloads in ``closely``; for the others only the allowed CPUs.
        """
        for name in self._watched.keys() - cgroups.keys():
            del self._watched[name]
        for name, cgroup in cgroups.items():
            watched = self._watched.get(name)
            if watched is None:
                watched = self._watched[name] = _Watched(now_s - LOOK_S - len(self._watched) % LOOK_S)
            if now_s - watched.looked_s >= LOOK_S:
                watched.looked_s = now_s
                self._look(watched, cgroup, topology, threads=name in closely)

    def home(self, name: str) -> CpuPlacement:
        """Result of the last reading of a workload."""
        watched = self._watched.get(name)
        return NOWHERE if watched is None else watched.home

    def _look(self, watched: _Watched, cgroup: str, topology: Topology, *, threads: bool) -> None:
        allowed = self._allowed(cgroup)
        may = topology.usable if allowed is None else allowed & topology.usable
        domains = tuple(each.domain for each in topology.l3_domains if each.cpus & may)
        if len(domains) < 2 or not threads:
            watched.ticks, watched.shares = {}, {}
            watched.home = CpuPlacement(allowed, domains)
            return
        used = self._used(watched, cgroup, topology)
        total = sum(used.values())
        if watched.shares.keys() != set(domains):
            watched.shares = dict.fromkeys(domains, 1.0 / len(domains))
        if total:
            for domain in domains:
                share = used.get(domain, 0) / total
                smooth = (1.0 - SMOOTHING) * watched.shares[domain] + SMOOTHING * share
                watched.shares[domain] = max(smooth, ENTERS) if share >= ENTERS else smooth
        there = tuple(domain for domain in domains if watched.shares[domain] >= LEAVES)
        watched.home = CpuPlacement(allowed, there)

    def _allowed(self, cgroup: str) -> CpuSet | None:
        """The allowed CPUs of the group, or of its nearest ancestor that states them; None if no group does."""
        if self._cpusets is None:
            return None
        while True:
            for name in _EFFECTIVE[self._cpusets.version]:
                try:
                    found = CpuSet.parse(read_text(self._fs, self._cpusets.path(cgroup, name)).strip())
                except (KernelError, ParseError):
                    continue
                if found:
                    return found
            if cgroup in ("/", ""):
                return None
            cgroup = dirname(cgroup)

    def _used(self, watched: _Watched, cgroup: str, topology: Topology) -> dict[int, int]:
        """Clock ticks of CPU time since the previous reading, by the L3 domain where each thread ran last."""
        now: dict[int, int] = {}
        used: dict[int, int] = {}
        for pid, tid in _some(self._threads(cgroup)):
            fields = stat_fields(self._fs, pid, tid)
            try:
                ticks, cpu = int(fields[USER_TICKS]) + int(fields[SYSTEM_TICKS]), int(fields[PROCESSOR])
            except (IndexError, ValueError):
                continue  # the thread has ended
            now[tid] = ticks
            grown = ticks - watched.ticks.get(tid, ticks)
            for each in topology.l3_domains:
                if grown > 0 and cpu in each.cpus:
                    used[each.domain] = used.get(each.domain, 0) + grown
        watched.ticks = now
        return used

    def _threads(self, cgroup: str) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for pid in sorted(self._cgroups.group(cgroup).procs()):
            try:
                found += [(pid, int(tid)) for tid in self._fs.listdir(f"/proc/{pid}/task")]
            except (KernelError, ValueError):
                continue
        return sorted(found)


def _some(threads: list[tuple[int, int]]) -> Iterable[tuple[int, int]]:
    if len(threads) <= MAX_THREADS:
        return threads
    return [threads[index * len(threads) // MAX_THREADS] for index in range(MAX_THREADS)]
