"""Shape and capacity of the simulated machine: processors, caches, memory channels, disk, network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from perphd.domain.cpuset import CpuSet
from perphd.domain.topology import Core, L3Domain, NumaNode, Topology
from perphd.sim.node.physics import PRESENT, Physics

# Memory bandwidth that one core can draw under a throttle level (%): measured at the low end (six cores asked for
# 4 GB/s drew 13.6 GB/s: intel-cmt-cat issue 277) and where the steps bend (issues 69 and 115: 65-94 act like 90);
# a straight line between these points is assumed.
_MBA_BEND_PCT: Final = 60.0
_MBA_FLOOR_SHARE: Final = 0.2  # share of a core's full bandwidth at a throttle level of 10 %


@dataclass(frozen=True, slots=True)
class Machine:
    """The host's components: per socket one L3 cache and one memory node with its channels; one disk, one link.

    CPUs are numbered as x86 firmware does: first one thread of every core, then the others.
    ``l3_bytes``, ``llc_ways``, ``memory_bytes_per_s``: values of one socket. ``core_bytes_per_s``: bandwidth
    that a single core can draw. ``mba_levels_pct``: throttle levels of the hardware, which rounds a request up to
    the next level. ``physics``: the laws of this machine.
    """

    sockets: int = 1
    cores_per_socket: int = 8
    threads_per_core: int = 1
    memory_bytes: int = 16 << 30
    l3_bytes: int = 16 << 20
    llc_ways: int = 16
    ghz: float = 2.5
    memory_bytes_per_s: float = 60e9
    core_bytes_per_s: float = 11e9
    mba_levels_pct: tuple[int, ...] = (10, 20, 30, 40, 50, 60, 90, 100)
    disk_ops_per_s: float = 60_000.0
    disk_bytes_per_s: float = 1.0e9
    disk_ms: float = 0.12
    net_bytes_per_s: float = 1.25e9
    physics: Physics = PRESENT

    @property
    def cores(self) -> int:
        """Physical cores of the whole host."""
        return self.sockets * self.cores_per_socket

    @property
    def cpus(self) -> int:
        """Logical CPUs of the whole host."""
        return self.cores * self.threads_per_core

    def siblings(self, core: int) -> CpuSet:
        """The CPUs of the n-th physical core of the host."""
        return CpuSet.of(core + thread * self.cores for thread in range(self.threads_per_core))

    def first_cores(self, count: int, start: int = 0) -> CpuSet:
        """All CPUs of ``count`` physical cores from core ``start`` on."""
        cpus = CpuSet()
        for core in range(start, start + count):
            cpus = cpus | self.siblings(core)
        return cpus

    def socket_cpus(self, socket: int) -> CpuSet:
        """The CPUs of one socket, which has one L3 cache and one memory node."""
        return self.first_cores(self.cores_per_socket, socket * self.cores_per_socket)

    @property
    def online(self) -> CpuSet:
        """Every CPU."""
        return CpuSet((1 << self.cpus) - 1)

    @property
    def nodes(self) -> CpuSet:
        """Every memory node."""
        return CpuSet((1 << self.sockets) - 1)

    @property
    def way_bytes(self) -> float:
        """Size of one way of an L3 cache."""
        return self.l3_bytes / self.llc_ways

    @property
    def full_mask(self) -> int:
        """The capacity bit mask with all ways."""
        return (1 << self.llc_ways) - 1

    def mba_level(self, requested_pct: int) -> int:
        """The hardware's throttle level for a request: the next supported one."""
        return min((level for level in self.mba_levels_pct if level >= requested_pct), default=100)

    def core_limit_bytes_per_s(self, requested_pct: int) -> float:
        """Bandwidth of one core at a requested throttle level: steep up to 60 %, flat above."""
        level = self.mba_level(requested_pct)
        rise = min(1.0, (level - 10) / (_MBA_BEND_PCT - 10))
        return self.core_bytes_per_s * (_MBA_FLOOR_SHARE + (1.0 - _MBA_FLOOR_SHARE) * rise)

    def topology(self) -> Topology:
        """The topology that would be read from the kernel's files."""
        per_socket = self.memory_bytes // self.sockets
        sockets = range(self.sockets)
        return Topology(
            cores=tuple(
                Core(core // self.cores_per_socket, core % self.cores_per_socket, self.siblings(core))
                for core in range(self.cores)
            ),
            l3_domains=tuple(L3Domain(s, self.socket_cpus(s), self.l3_bytes) for s in sockets),
            nodes=tuple(NumaNode(s, self.socket_cpus(s), per_socket // 1024 * 1024) for s in sockets),
            online=self.online,
            memory_bytes=self.memory_bytes // 1024 * 1024,
        )


SILVER_4110: Final = Machine(
    sockets=2,
    cores_per_socket=8,
    threads_per_core=2,
    memory_bytes=187 << 30,
    l3_bytes=11 << 20,
    llc_ways=11,
    ghz=2.1,
    memory_bytes_per_s=80e9,
)
"""The Perph paper's node: 2 x Xeon Silver 4110, 187 GB. Six DDR4-2400 channels per socket (115 GB/s nominal)."""

SILVER_4114: Final = Machine(
    sockets=1,
    cores_per_socket=10,
    threads_per_core=2,
    memory_bytes=46 << 30,
    l3_bytes=14_080 << 10,
    llc_ways=11,
    ghz=2.2,
    memory_bytes_per_s=40e9,
)
"""CLITE's node: one socket of a Xeon Silver 4114 with 46 GB; 40 GB/s as intel-cmt-cat issue 185 measured on it."""

BIG_128: Final = Machine(
    sockets=2,
    cores_per_socket=64,
    threads_per_core=2,
    memory_bytes=512 << 30,
    l3_bytes=96 << 20,
    llc_ways=12,
    ghz=2.4,
    memory_bytes_per_s=200e9,
    disk_ops_per_s=600_000.0,
    disk_bytes_per_s=6e9,
    net_bytes_per_s=12.5e9,
)
"""A large two-socket server: 128 cores, 256 CPUs."""
