"""Allocations that inference searches, and the settings that isolation writes."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import Enum, StrEnum
from typing import Final, Literal, TypeAlias

from perphd.domain.cpuset import CpuSet


class _Keep(Enum):
    KEEP = "keep"


class _Idle(Enum):
    IDLE = "idle"


class _NoLimit(Enum):
    NO_LIMIT = "max"


KEEP: Final = _Keep.KEEP
"""Leave this knob at its original value; if perphd has changed it, restore the original."""
IDLE: Final = _Idle.IDLE
"""SCHED_IDLE for the whole group (cpu.idle = 1): runs only when no other task wants the CPU."""
NO_LIMIT: Final = _NoLimit.NO_LIMIT
"""No upper limit (the kernel's ``max``)."""

Keep: TypeAlias = Literal[_Keep.KEEP]
Weight: TypeAlias = int | Literal[_Idle.IDLE]
"""A CPU weight on cgroup v2's scale (1..10000, default 100), or IDLE."""
DEFAULT_WEIGHT: Final = 100
"""The kernel's default CPU weight. perphd sets a higher one only for a guaranteed floor of CPU time
(``min_cores``)."""
Limit: TypeAlias = int | Literal[_NoLimit.NO_LIMIT]


class CpuInstrument(StrEnum):
    """Instruments that protect an LRA's CPU."""

    NONE = "none"  # batch competes freely
    DEMOTED = "demoted"  # batch at low weight or idle, on every CPU
    CONFINED = "confined"  # batch confined to some cores, at some weight; the LRA may use them too
    EXCLUSIVE = "exclusive"  # batch and LRA on disjoint cores


@dataclass(frozen=True, slots=True)
class CpuGrant:
    """The CPU part of an allocation: where batch may run, and at which weight.

    - ``total_cores``: usable physical cores of the host.
    - ``batch_cores``: physical cores that batch may run on; ``batch_weight``: its CPU weight there.
    - ``exclusive``: the LRA does not run on batch's cores.
    - ``own_cores``: with ``exclusive``, number of cores that this LRA shares with no other LRA. None: all
      LRAs share the cores that batch does not have. If the LRAs' own cores cover the whole host, batch runs
      on some of them with an idle weight.
    """

    total_cores: int
    batch_cores: int
    batch_weight: Weight = 100
    exclusive: bool = False
    own_cores: int | None = None

    @property
    def instrument(self) -> CpuInstrument:
        """The instrument that this grant uses."""
        if self.exclusive:
            return CpuInstrument.EXCLUSIVE
        if self.batch_cores < self.total_cores:
            return CpuInstrument.CONFINED
        if self.batch_weight is IDLE or self.batch_weight < 100:
            return CpuInstrument.DEMOTED
        return CpuInstrument.NONE

    @property
    def weight_ratio(self) -> float:
        """Batch's weight divided by an LRA's default of 100. IDLE counts as 3/1024, as in the kernel."""
        return 3 / 1024 if self.batch_weight is IDLE else self.batch_weight / 100

    @property
    def lra_cores(self) -> int:
        """Cores that the LRA may run on."""
        if self.own_cores is not None:
            return self.own_cores
        return self.total_cores - self.batch_cores if self.exclusive else self.total_cores

    def without_own_cores(self) -> CpuGrant:
        """This grant without ``own_cores``: the cores of other LRAs count as batch's cores."""
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
    """Resources protected for one LRA, in steps of the actuators.

    - ``memory_bytes``: protected memory (memory.low); 0: none.
    - ``llc_ways``: ways of its L3 domain that batch may not use; 0: batch may use all.
    - ``own_ways``: ways that no other LRA may use, given by a mask; 0: the LRA may use the whole cache.
    - ``mbw_pct``: MBA throttle of its *neighbours* (100: not throttled). An LRA itself is never throttled.
    - ``mbw_bytes_per_s``: measured bandwidth at that throttle, None if unmeasured; ``mbw_source``: origin of
      the throttle level (``domain.throttle``). Both are for display and do not count in comparisons.
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
    """Limits of one disk, in bytes or operations per second. None: no limit. ``device``: ``MAJOR:MINOR`` of the
    disk.
    """

    device: str
    read_bytes: int | None = None
    write_bytes: int | None = None
    read_ops: int | None = None
    write_ops: int | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings for one workload's cgroup. KEEP restores the original value.

    The operator's own settings are bounds. perphd never raises an upper limit above them and never lowers a
    protection below them. docs/knobs.md explains each knob, where it is written and how it is restored.

    - ``cpus``, ``mems``: the logical CPUs and the memory nodes that the group may use.
    - ``cpu_weight``: share of contended CPUs; ``cpu_max_cores``: upper limit of CPU use, in CPUs.
    - ``memory_low_bytes``: not reclaimed while other groups have reclaimable memory; ``memory_min_bytes``:
      never reclaimed.
    - ``memory_high_bytes``: above it the kernel throttles the group and reclaims; perphd lowers it in steps.
    - ``memory_max_bytes``: above it the kernel kills processes of the group. perphd always sets it above current
      use and ``memory.high``.
    - ``io_weight``: share of contended disks, 1..10000, default 100.
    - ``io_max``: limits by disk; ``io_latency_us``: pairs (device, latency target); above the target the
      kernel throttles other groups.
    - ``egress_max``: pairs (network device, bytes per second) of send rate. All groups with such a limit
      together send at most the largest of their limits.
    - ``frozen``: True stops every process of the group until the knob is restored.
    - ``llc_masks``, ``mba_pct``: pairs of an L3 domain's id and its way mask, or its MBA throttle in %.
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
        return all(getattr(self, name) is KEEP for name in _KNOBS)


_KNOBS: Final = tuple(field.name for field in fields(Settings))
UNTOUCHED: Final = Settings()
