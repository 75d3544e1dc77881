"""What is given to whom: the abstract allocation that inference searches, and the settings that isolation writes."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import Enum, StrEnum
from typing import Final, Literal, TypeAlias

from perphd.domain.cpuset import CpuSet


class Resource(StrEnum):
    """The four dimensions of an allocation."""

    CPU = "cpu"
    MEMORY = "memory"
    LLC = "llc"
    MBW = "mbw"


class _Keep(Enum):
    KEEP = "keep"


class _Idle(Enum):
    IDLE = "idle"


class _NoLimit(Enum):
    NO_LIMIT = "max"


KEEP: Final = _Keep.KEEP
"""Leave this knob as perphd found it (and give it back if perphd had changed it)."""
IDLE: Final = _Idle.IDLE
"""SCHED_IDLE for the whole group (cpu.idle = 1): runs when nobody else wants the CPU."""
NO_LIMIT: Final = _NoLimit.NO_LIMIT
"""No upper limit (the kernel's ``max``)."""

Keep: TypeAlias = Literal[_Keep.KEEP]
Weight: TypeAlias = int | Literal[_Idle.IDLE]
"""A CPU weight on cgroup v2's scale, 1..10000, 100 being everybody's default, or IDLE."""
DEFAULT_WEIGHT: Final = 100
"""Everybody's weight. More is asked only for a floor of CPU time that the operator has declared."""
Limit: TypeAlias = int | Literal[_NoLimit.NO_LIMIT]


class CpuInstrument(StrEnum):
    """How an LRA's CPU is protected."""

    NONE = "none"  # batch competes freely
    DEMOTED = "demoted"  # batch at low weight or idle, on every CPU
    CONFINED = "confined"  # batch kept to some cores, at some weight; the LRA may use them too
    EXCLUSIVE = "exclusive"  # batch and LRA on disjoint cores


@dataclass(frozen=True, slots=True)
class CpuGrant:
    """The CPU part of an allocation: how batch is kept out of an LRA's way.

    ``batch_cores``: whole physical cores that batch may run on; ``batch_weight``: its weight there;
    ``exclusive``: the LRA is kept off batch's cores (it then owns all the others).
    ``total_cores``: the usable cores of the host, so that a grant can be read on its own.
    ``own_cores``: with ``exclusive``, how many cores are the LRA's alone, no other LRA's either; None: it has all
    that batch has not, together with whatever other LRAs there are. Where the LRAs have all cores between them, batch
    is an idle guest on some of them.
    """

    total_cores: int
    batch_cores: int
    batch_weight: Weight = 100
    exclusive: bool = False
    own_cores: int | None = None

    @property
    def instrument(self) -> CpuInstrument:
        """Which instrument this grant uses."""
        if self.exclusive:
            return CpuInstrument.EXCLUSIVE
        if self.batch_cores < self.total_cores:
            return CpuInstrument.CONFINED
        if self.batch_weight is IDLE or self.batch_weight < 100:
            return CpuInstrument.DEMOTED
        return CpuInstrument.NONE

    @property
    def weight_ratio(self) -> float:
        """Batch's weight divided by an LRA's default of 100; IDLE counts as the kernel does: 3/1024."""
        return 3 / 1024 if self.batch_weight is IDLE else self.batch_weight / 100

    @property
    def lra_cores(self) -> int:
        """Cores that the LRA may run on."""
        if self.own_cores is not None:
            return self.own_cores
        return self.total_cores - self.batch_cores if self.exclusive else self.total_cores

    def as_its_lra_sees_it(self) -> CpuGrant:
        """The same for the LRA without ``own_cores``: whose the cores are that it may not use is nothing to it."""
        if self.own_cores is None:
            return self
        others = self.total_cores - self.own_cores
        return CpuGrant(self.total_cores, others, self.batch_weight, exclusive=True)

    def __str__(self) -> str:
        weight = "idle" if self.batch_weight is IDLE else f"weight {self.batch_weight}"
        if self.own_cores is not None:
            where = (
                f"{self.batch_cores}, as an idle guest"
                if self.batch_weight is IDLE
                else f"{self.batch_cores}"
            )
            return f"{self.own_cores} of {self.total_cores} cores of its own (batch on {where})"
        where = f"{self.batch_cores}/{self.total_cores} cores"
        return f"{self.instrument}(batch on {where}, {weight})"


@dataclass(frozen=True, slots=True)
class Allocation:
    """What is protected for one LRA, on the actuators' own lattice.

    ``memory_bytes``: protected memory (memory.low), 0 = none; ``llc_ways``: ways of its L3 domain that
    batch may not use, 0 = shares all; ``mbw_pct``: MBA throttle of its *neighbours* (100 = not throttled):
    an LRA itself is never throttled.
    ``own_ways``: ways that are this LRA's alone, by a mask of its own; 0: it may use the whole cache.
    ``mbw_bytes_per_s``: what that throttle lets through, where it was measured; ``mbw_source``: what is known of the
    level (``domain.throttle``). Both are for people: allocations that differ in them alone are the same.
    """

    cpu: CpuGrant
    memory_bytes: int = 0
    llc_ways: int = 0
    mbw_pct: int = 100
    own_ways: int = 0
    mbw_bytes_per_s: float | None = field(default=None, compare=False)
    mbw_source: str = field(default="", compare=False)

    def __str__(self) -> str:
        parts = [str(self.cpu)]
        if self.memory_bytes:
            parts.append(f"{self.memory_bytes >> 20} MiB protected")
        if self.llc_ways:
            parts.append(f"{self.llc_ways} LLC ways")
        if self.own_ways:
            parts.append(f"{self.own_ways} LLC ways apart from other LRAs")
        if self.mbw_pct < 100:
            parts.append(self._bandwidth())
        return ", ".join(parts)

    def _bandwidth(self) -> str:
        if self.mbw_bytes_per_s is not None:
            return f"batch at most {self.mbw_bytes_per_s / 1e9:.1f} GB/s (MBA {self.mbw_pct} %, {self.mbw_source})"
        source = f" ({self.mbw_source})" if self.mbw_source else ""
        return f"neighbours' bandwidth {self.mbw_pct} %{source}"


@dataclass(frozen=True, slots=True)
class IoLimit:
    """Ceilings of one disk, each per second; None: no ceiling. ``device``: ``MAJOR:MINOR`` of the whole disk."""

    device: str
    read_bytes: int | None = None
    write_bytes: int | None = None
    read_ops: int | None = None
    write_ops: int | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """What is to be in force on one workload's cgroup. KEEP gives the knob back as it was found.

    What the operator had set is a bound: ceilings are never raised above it, protections never lowered below it.
    docs/knobs.md says what each means, where it is written and how it is given back.

    - ``cpus``, ``mems``: the logical CPUs, and the memory nodes, that the group may use.
    - ``cpu_weight``: its share where CPUs are contended; ``cpu_max_cores``: CPU time per time, never more.
    - ``memory_low_bytes``: not reclaimed while others have something to give; ``memory_min_bytes``: never reclaimed.
    - ``memory_high_bytes``: above it the group is slowed down and reclaimed; reached in steps.
    - ``memory_max_bytes``: above it the kernel kills; only ever set above use and above ``memory.high``.
    - ``io_weight``: share of contended disks, 1..10000, 100 being everybody's default.
    - ``io_max``: ceilings by disk; ``io_latency_us``: pairs (device, target): others are throttled above it.
    - ``egress_max``: pairs (network device, bytes per second) that the group may send, and together with the other
      groups that have such a ceiling no more than the largest of them.
    - ``frozen``: True stops every process of the group where it is, until it is given back.
    - ``llc_masks``, ``mba_pct``: pairs (domain id, value).
    """

    cpus: CpuSet | Keep = KEEP
    cpu_weight: Weight | Keep = KEEP
    cpu_max_cores: float | Keep = KEEP
    memory_low_bytes: int | Keep = KEEP
    memory_high_bytes: Limit | Keep = KEEP
    llc_masks: tuple[tuple[int, int], ...] | Keep = KEEP
    mba_pct: tuple[tuple[int, int], ...] | Keep = KEEP
    mems: CpuSet | Keep = KEEP
    memory_min_bytes: int | Keep = KEEP
    memory_max_bytes: Limit | Keep = KEEP
    io_weight: int | Keep = KEEP
    io_max: tuple[IoLimit, ...] | Keep = KEEP
    io_latency_us: tuple[tuple[str, int], ...] | Keep = KEEP
    frozen: bool | Keep = KEEP
    egress_max: tuple[tuple[str, int], ...] | Keep = KEEP

    def is_untouched(self) -> bool:
        """True if every knob is KEEP."""
        return all(getattr(self, f.name) is KEEP for f in fields(self))


UNTOUCHED: Final = Settings()
