"""Processors, caches and memory nodes of a host. Ids may be sparse: never assume 0..n-1."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from perphd.domain.cpuset import CpuSet


@dataclass(frozen=True)
class Core:
    """One physical core. Its hardware threads are assigned together."""

    socket: int
    core: int
    cpus: CpuSet


@dataclass(frozen=True)
class L3Domain:
    """CPUs that share one last-level cache. ``domain``: the cache id that resctrl uses."""

    domain: int
    cpus: CpuSet
    size_bytes: int


@dataclass(frozen=True)
class NumaNode:
    """One memory node, its CPUs (possibly none) and its size."""

    node: int
    cpus: CpuSet
    memory_bytes: int


@dataclass(frozen=True)
class Topology:
    """The host's processors. Workloads may use ``online`` minus ``isolated``."""

    cores: tuple[Core, ...]
    l3_domains: tuple[L3Domain, ...]
    nodes: tuple[NumaNode, ...]
    online: CpuSet
    offline: CpuSet = field(default_factory=CpuSet)
    isolated: CpuSet = field(default_factory=CpuSet)
    memory_bytes: int = 0

    @cached_property
    def usable(self) -> CpuSet:
        """CPUs that may be assigned to workloads."""
        return self.online - self.isolated

    @cached_property
    def usable_cores(self) -> tuple[Core, ...]:
        """Physical cores with at least one usable CPU, in (socket, core) order, reduced to usable CPUs."""
        return tuple(
            Core(core.socket, core.core, core.cpus & self.usable)
            for core in self.cores
            if core.cpus & self.usable
        )

    @cached_property
    def most(self) -> dict[str, float]:
        """The host's capacity for each reading of a sample, by the reading's name. Unknown sizes are absent."""
        found = {
            "cpu_usage_cores": float(len(self.online)),
            "memory_working_set_bytes": float(self.memory_bytes),
            "llc_occupancy_bytes": float(sum(domain.size_bytes for domain in self.l3_domains)),
        }
        return {name: amount for name, amount in found.items() if amount}

    def cpus_of(self, cores: tuple[Core, ...]) -> CpuSet:
        """All usable CPUs of these cores."""
        cpus = CpuSet()
        for core in cores:
            cpus = cpus | core.cpus
        return cpus & self.usable
