"""Results for every workload: arrays over alternatives and workloads, and single cells as values."""

from __future__ import annotations

from dataclasses import dataclass, fields

from perphd.domain.quick import maker
from perphd.sim.node.grant import Array


@dataclass(frozen=True, slots=True)
class Outcome:
    """Performance of one workload. Rates are per second of wall time; latencies are 0 for batch.

    ``offered_per_s``: requests that arrive (in a closed loop: requests answered). ``runnable``: threads that
    run or wait for a CPU; ``run_delay_cores``: those that wait. ``service_s``: CPU time of one operation;
    ``speed``: instructions per CPU second relative to an idle node with the whole cache.
    ``mips``: million instructions per second; ``cpi``: cycles per instruction; ``occupancy_bytes``,
    ``bandwidth_bytes_per_s``: last-level cache held and memory traffic, over all domains.
    ``*_some``, ``*_full``: shares of the time, as PSI defines them. ``oom``: its memory does not fit its limit.
    ``throttled``: share of the time in which cpu.max throttles it.
    """

    usage_cores: float
    run_delay_cores: float
    runnable: float
    throttled: float
    work_per_s: float
    offered_per_s: float
    service_s: float
    speed: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    mips: float
    cpi: float
    mpki: float
    occupancy_bytes: float
    bandwidth_bytes_per_s: float
    llc_refs_per_s: float
    refaults_per_s: float
    resident_bytes: float
    disk_bytes_per_s: float
    disk_ops_per_s: float
    net_bytes_per_s: float
    cpu_some: float
    cpu_full: float
    memory_some: float
    memory_full: float
    io_some: float
    io_full: float
    oom: float


@dataclass(slots=True)
class Outcomes:
    """The same for B alternatives of W workloads: [B,W] each. See ``Outcome``.

    ``domain_occupancy``, ``domain_bandwidth``: [B,W,D], for resctrl's monitors.
    """

    usage_cores: Array
    run_delay_cores: Array
    runnable: Array
    throttled: Array
    work_per_s: Array
    offered_per_s: Array
    service_s: Array
    speed: Array
    p50_ms: Array
    p95_ms: Array
    p99_ms: Array
    mips: Array
    cpi: Array
    mpki: Array
    occupancy_bytes: Array
    bandwidth_bytes_per_s: Array
    llc_refs_per_s: Array
    refaults_per_s: Array
    resident_bytes: Array
    disk_bytes_per_s: Array
    disk_ops_per_s: Array
    net_bytes_per_s: Array
    cpu_some: Array
    cpu_full: Array
    memory_some: Array
    memory_full: Array
    io_some: Array
    io_full: Array
    oom: Array
    domain_occupancy: Array
    domain_bandwidth: Array

    def of(self, workload: int, alternative: int = 0) -> Outcome:
        """One cell as a value."""
        return Outcome(*(float(getattr(self, name)[alternative, workload]) for name in _CELL))

    def all(self, alternative: int = 0) -> tuple[Outcome, ...]:
        """Every workload of one alternative."""
        columns = [getattr(self, name)[alternative].tolist() for name in _CELL]
        return tuple([_make(*cells) for cells in zip(*columns, strict=True)])


_CELL = tuple(f.name for f in fields(Outcome))
_make = maker(Outcome)

NOTHING = Outcome(**dict.fromkeys(_CELL, 0.0))
"""The outcome of a workload that is not running."""
