"""Workloads of the simulated host: their cgroups and demands, from which the physics derives performance.

``Placed`` puts any workload of the node model into a cgroup, archetypes by name through ``placed``; ``Lra`` and
``Batch`` describe simple ones in a few numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from perphd.sim.node.archetypes import archetype
from perphd.sim.node.workload import Code, IoUse, MemoryUse, NodeWorkload, Requests

# Simple workloads have no cache curve: a fixed miss rate, and a fixed cost of neighbours.
_MPKI: Final = 2.0
_REFS_PKI: Final = 10.0
_NEIGHBOUR_COST: Final = 0.34
_SPREAD_OPEN: Final = 0.50
_SPREAD_CLOSED: Final = 0.34
_BATCH_PAGES_PER_S: Final = 2000.0  # pages of its cache that a batch job touches per second of work


@dataclass(frozen=True, slots=True)
class Lra:
    """A long-running application that answers requests.

    Exactly one of ``clients`` (closed loop: each client sends the next request as soon as it has an answer)
    and ``rate_per_s`` (open loop: requests arrive whatever happens) is set. An undisturbed request takes
    ``service_ms`` of CPU time, ``serial_ms`` in a section that admits one request at a time (locks, the log),
    and ``wait_ms`` of waiting that does not depend on this host. ``threads``: maximum number of CPUs that it
    can use.
    ``cache_bytes``: its hot page cache; ``pages_per_request``: pages of it that one request touches.
    """

    name: str
    cgroup: str
    clients: int | None = None
    rate_per_s: float | None = None
    service_ms: float = 0.90
    serial_ms: float = 0.35
    wait_ms: float = 0.45
    threads: int = 32
    anon_bytes: int = 512 << 20
    cache_bytes: int = 1 << 30
    pages_per_request: float = 10.0
    ipc: float = 1.0

    def __post_init__(self) -> None:
        if (self.clients is None) == (self.rate_per_s is None):
            raise ValueError(f"{self.name}: give either clients (closed loop) or rate_per_s (open loop)")

    def on(self, ghz: float) -> NodeWorkload:
        """The same workload for the node model, on CPUs of this clock rate."""
        return NodeWorkload(
            name=self.name,
            code=Code(
                instructions=self.service_ms * 1e6 * ghz * self.ipc,
                cpi=1.0 / self.ipc,
                mpki_floor=_MPKI,
                refs_pki=_REFS_PKI,
            ),
            threads=self.threads,
            requests=Requests(
                clients=self.clients,
                rate_per_s=self.rate_per_s,
                serial_ms=self.serial_ms,
                wait_ms=self.wait_ms,
                neighbour_cost=_NEIGHBOUR_COST,
                spread=_SPREAD_OPEN if self.clients is None else _SPREAD_CLOSED,
            ),
            memory=MemoryUse(float(self.anon_bytes), float(self.cache_bytes), self.pages_per_request),
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """A job of CPU-bound threads. ``work_per_core_s``: work that one undisturbed CPU does in a second.

    ``pollution``: effect on the private caches of its neighbours, relative to an ordinary compute job (1).
    """

    name: str
    cgroup: str
    threads: int = 4
    work_per_core_s: float = 1.0
    pollution: float = 1.0
    anon_bytes: int = 256 << 20
    cache_bytes: int = 0
    ipc: float = 2.0

    def on(self, ghz: float) -> NodeWorkload:
        """The same workload for the node model, on CPUs of this clock rate."""
        pages = _BATCH_PAGES_PER_S / self.work_per_core_s if self.cache_bytes else 0.0
        return NodeWorkload(
            name=self.name,
            code=Code(
                instructions=ghz * 1e9 * self.ipc / self.work_per_core_s,
                cpi=1.0 / self.ipc,
                mpki_floor=_MPKI,
                refs_pki=_REFS_PKI,
            ),
            threads=self.threads,
            memory=MemoryUse(float(self.anon_bytes), float(self.cache_bytes), pages),
            io=IoUse(),
            pollution=self.pollution,
        )


@dataclass(frozen=True, slots=True)
class Placed:
    """A workload of the node model in a cgroup."""

    node: NodeWorkload
    cgroup: str

    @property
    def name(self) -> str:
        """The workload's name."""
        return self.node.name

    @property
    def threads(self) -> int:
        """The number of threads of its process."""
        return self.node.threads

    def on(self, ghz: float) -> NodeWorkload:
        """The workload itself: it is specified in instructions, not in time."""
        del ghz
        return self.node


Workload = Lra | Batch | Placed


def placed(
    kind: str,
    cgroup: str,
    name: str | None = None,
    *,
    clients: int | None = None,
    rate_per_s: float | None = None,
) -> Placed:
    """An archetype (``"mysql-oltp"``, ``"batch-pi"`` ...) in a cgroup, under its own name unless one is given.

    ``clients`` or ``rate_per_s`` replace the archetype's load. Raises ConfigError if there is no such
    archetype.
    """
    node = archetype(kind).named(name or kind)
    if clients is not None or rate_per_s is not None:
        node = node.asked(clients=clients, rate_per_s=rate_per_s)
    return Placed(node, cgroup)
