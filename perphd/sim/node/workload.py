"""Workloads of a simulated node: the needs of one operation, from which the model computes performance.

An operation is a request of an LRA or a unit of work of a batch job.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from perphd.domain.workload import Kind


@dataclass(frozen=True, slots=True)
class Code:
    """The program's use of a processor and its caches.

    ``instructions``: instructions of one operation. ``cpi``: cycles per instruction without last-level-cache
    misses. ``miss_cycles``: cycles that each miss adds on an idle memory bus (the part that other work does not
    hide). Misses per kilo-instruction with ``x`` bytes of last-level cache are ``mpki_floor + mpki_swing *
    exp(-x / mpki_scale_bytes)``: the form that fits measured programs best.
    ``refs_pki``: requests that leave the private caches; ``writeback``: bytes written per byte missed.
    ``footprint_bytes``: the most cache that the program can fill. ``smt_speed``: speed of one hardware thread
    while its sibling is busy too, relative to its speed alone on the core.
    """

    instructions: float
    cpi: float = 0.8
    miss_cycles: float = 0.0
    mpki_floor: float = 0.0
    mpki_swing: float = 0.0
    mpki_scale_bytes: float = float(2 << 20)
    refs_pki: float = 0.0
    writeback: float = 0.3
    footprint_bytes: float = math.inf
    smt_speed: float = 0.62

    def mpki(self, cache_bytes: float) -> float:
        """Misses per kilo-instruction with this much last-level cache."""
        return self.mpki_floor + self.mpki_swing * math.exp(-cache_bytes / self.mpki_scale_bytes)

    def cycles_per_instruction(self, cache_bytes: float) -> float:
        """CPI with this much cache, alone on its core and on the memory bus."""
        return self.cpi + self.miss_cycles * self.mpki(cache_bytes) / 1000.0


@dataclass(frozen=True, slots=True)
class Requests:
    """The load of an LRA, and the costs of a request apart from those in ``Code``.

    Exactly one of ``clients`` (closed loop: this many clients send the next request ``think_ms`` after each answer)
    and ``rate_per_s`` (open loop: requests arrive at a fixed rate) is set. ``serial_ms``: time in a section that admits
    one request at a time (locks, the log); ``wait_ms``: waiting that does not depend on this host. ``crosstalk``: CPU
    time that every further core in use adds to a request (cache lines that travel: Gunther's kappa); ``switch_cost``:
    CPU time lost if many more threads want to run than there are CPUs. ``mix_cost``: CPU time added by neighbours that
    run on the same CPUs between its own bursts (private caches), ``mix_relief`` of it saved when they are
    equals with long slices; ``neighbour_cost``: CPU time added by neighbours on other CPUs of the same
    last-level cache, in addition to the cache model. These five costs are relative to a request's undisturbed
    CPU time. ``spread``: standard deviation of the logarithm of undisturbed latencies. ``bursts``: (1 + cv^2) / 2
    of arrivals and service. ``queue_limit``: requests of an open loop that may wait; its clients send no more
    until some are answered (0: as many as arrive in two seconds).
    """

    clients: int | None = None
    rate_per_s: float | None = None
    serial_ms: float = 0.0
    wait_ms: float = 0.0
    think_ms: float = 0.0
    crosstalk: float = 0.0
    switch_cost: float = 0.0
    mix_cost: float = 0.52
    mix_relief: float = 0.20
    neighbour_cost: float = 0.0
    spread: float = 0.5
    bursts: float = 3.3
    queue_limit: float = 0.0

    def __post_init__(self) -> None:
        if (self.clients is None) == (self.rate_per_s is None):
            raise ValueError("give either clients (closed loop) or rate_per_s (open loop)")

    @property
    def closed(self) -> bool:
        """True for a closed loop."""
        return self.clients is not None


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Memory use. There is no swap: ``anon_bytes`` cannot be reclaimed, ``cache_bytes`` (page cache) can.

    ``pages_per_op`` of the page cache are touched by one operation; a share ``hot_hits`` of them falls into
    the first ``hot_share`` of the cache, and the rest is spread evenly, so the working set has a knee.
    """

    anon_bytes: float = float(256 << 20)
    cache_bytes: float = 0.0
    pages_per_op: float = 0.0
    hot_share: float = 1.0
    hot_hits: float = 1.0


@dataclass(frozen=True, slots=True)
class IoUse:
    """Disk and network use of one operation. ``disk_ops``: disk operations that it waits for, one after another."""

    disk_ops: float = 0.0
    disk_read_bytes: float = 0.0
    disk_write_bytes: float = 0.0
    net_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeWorkload:
    """One workload. ``requests``: None for batch. ``threads``: CPUs that it can use, or operations in flight.

    ``pollution``: its effect on neighbours' private caches, relative to an ordinary compute job.
    """

    name: str
    code: Code
    threads: int = 1
    requests: Requests | None = None
    memory: MemoryUse = field(default_factory=MemoryUse)
    io: IoUse = field(default_factory=IoUse)
    pollution: float = 1.0

    @property
    def kind(self) -> Kind:
        """LRA or batch."""
        return Kind.BATCH if self.requests is None else Kind.LRA

    def asked(self, *, clients: int | None = None, rate_per_s: float | None = None) -> NodeWorkload:
        """The same LRA in a closed loop of ``clients`` or an open one of ``rate_per_s``."""
        if self.requests is None:
            raise ValueError(f"{self.name} is a batch job and has no requests")
        return replace(self, requests=replace(self.requests, clients=clients, rate_per_s=rate_per_s))
