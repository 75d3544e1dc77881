"""Processes found on a host, from which perphd proposes a first configuration."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProcessFact:
    """One process. ``ports``: TCP ports that it listens on. ``sockets``: paths of Unix sockets that it listens on."""

    pid: int
    name: str
    argv: tuple[str, ...] = ()
    cpu_cores: float = 0.0
    memory_bytes: int = 0
    ports: tuple[int, ...] = ()
    sockets: tuple[str, ...] = ()
    nice: int = 0


@dataclass(frozen=True, slots=True)
class GroupFact:
    """One control group with processes. ``unit``, ``container``: the systemd unit or container to which it belongs;
    empty if there is none.
    """

    cgroup: str
    processes: tuple[ProcessFact, ...]
    unit: str = ""
    container: str = ""

    @property
    def cpu_cores(self) -> float:
        """CPU use of all its processes together."""
        return sum(process.cpu_cores for process in self.processes)

    @property
    def memory_bytes(self) -> int:
        """Resident memory of its processes. Shared pages count once per process."""
        return sum(process.memory_bytes for process in self.processes)

    @property
    def main(self) -> ProcessFact | None:
        """The process with the highest CPU use; among equals, the one with the most memory. None in an empty group."""
        return max(self.processes, key=lambda p: (p.cpu_cores, p.memory_bytes, -p.pid), default=None)

    @property
    def ports(self) -> tuple[int, ...]:
        """Every TCP port that one of the group's processes listens on."""
        return tuple(sorted({port for process in self.processes for port in process.ports}))


@dataclass(frozen=True, slots=True)
class HostFacts:
    """Findings about a host.

    ``timed``: names of units that a timer starts. ``slices``: paths of systemd slices. ``own``: paths of perphd's own
    groups. ``tcp_latency``: True if perphd can measure rate and latency of any TCP server here.
    """

    cpus: int
    groups: tuple[GroupFact, ...]
    timed: frozenset[str] = frozenset()
    slices: frozenset[str] = frozenset()
    own: frozenset[str] = frozenset()
    tcp_latency: bool = False
