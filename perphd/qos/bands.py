"""Bands: gold, silver and copper, and their meaning for every knob of the kernel.

    band     CPU                                 memory                    under contention
    gold     whole cores of its own              protected without limit   never restricted for other workloads
    silver   a guaranteed share                  protected while others    never restricted for other workloads
                                                 can be reclaimed
    copper   the rest, at the lowest priority    reclaimed and killed      throttled, frozen, requeued
                                                 first
    system   like silver: the host's own daemons

One configuration key thus selects a set of mechanisms. For each aspect, a band has a ladder of mechanisms,
best first. ``chosen`` takes the first one that the host supports, and reports the better ones that it lacks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final, TypeAlias


class QosBand(StrEnum):
    """The class of service of a workload."""

    GOLD = "gold"
    SILVER = "silver"
    COPPER = "copper"
    SYSTEM = "system"

    @property
    def protected(self) -> bool:
        """True if no other workload's demand may take resources from a workload of this band."""
        return self is not QosBand.COPPER


class Aspect(StrEnum):
    """An aspect of a workload that its band decides."""

    CORES = "cores"
    SIBLINGS = "siblings"
    CPU_PRIORITY = "cpu priority"
    CPU_CEILING = "cpu ceiling"
    MEMORY_PROTECTION = "memory protection"
    MEMORY_CEILING = "memory ceiling"
    OOM_ORDER = "oom order"
    OOM_SCOPE = "oom scope"
    IO_SHARE = "io share"
    IO_LATENCY = "io latency"
    IO_CEILING = "io ceiling"
    CACHE = "cache"
    BANDWIDTH = "bandwidth"
    EGRESS = "egress"


class Size(StrEnum):
    """A value of a setting that depends on the workload's grant or on the host, in words."""

    OWN_CORES = "cores of its own"
    SHARED_CORES = "all cores that no gold workload owns"
    RESERVED_CPUS = "in proportion to its reserved CPUs"
    COPPER_CPUS = "the CPUs that copper may use"
    RESERVED_MEMORY = "its reserved memory"
    COPPER_MEMORY = "the memory that copper may use"
    LATENCY_TARGET = "the latency target"
    CONTENTION = "lowered while a device is contended"
    OWN_WAYS = "ways of its own"
    SHARED_WAYS = "ways shared by its band"
    LEAST_WAYS = "the fewest ways that the processor allows"
    COPPER_EGRESS = "the bandwidth that copper may use"


@dataclass(frozen=True, slots=True)
class Mechanism:
    """One way to implement an aspect of a band: the kernel's knob, its value, and the capability that it needs."""

    knob: str
    value: int | Size
    needs: str


Ladder: TypeAlias = tuple[Mechanism, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """The mechanism in force for one aspect, or None; ``missing`` are better ones that the host lacks."""

    aspect: Aspect
    mechanism: Mechanism | None
    missing: tuple[Mechanism, ...] = ()

    def __str__(self) -> str:
        lacks = ", ".join(m.knob for m in self.missing)
        if self.mechanism is None:
            return f"{self.aspect}: none (this host lacks {lacks})"
        text = f"{self.aspect}: {self.mechanism.knob} = {self.mechanism.value}"
        return f"{text} (this host lacks {lacks})" if lacks else text


MEMORY_LIMIT_RATIO: Final = 0.8
"""Share of the host's memory that protected use and copper together may fill. Copper gets no memory beyond it."""
OOM_SCORE_GOLD: Final = -997
OOM_SCORE_SYSTEM: Final = -900
OOM_SCORE_SILVER: Final = 0
OOM_SCORE_COPPER: Final = 1000
IO_WEIGHT_GOLD: Final = 1000
IO_WEIGHT_SILVER: Final = 500
IO_WEIGHT_COPPER: Final = 1


def _at(knob: str, value: int | Size, needs: str = "") -> Mechanism:
    return Mechanism(knob, value, needs or knob)


_SHARED: Final[dict[Aspect, Ladder]] = {
    Aspect.CORES: (_at("cpuset.cpus", Size.SHARED_CORES),),
    Aspect.CPU_PRIORITY: (
        _at("cpu.weight", Size.RESERVED_CPUS),
        _at("cpu.shares", Size.RESERVED_CPUS),
    ),
    Aspect.MEMORY_PROTECTION: (_at("memory.low", Size.RESERVED_MEMORY),),
    Aspect.IO_SHARE: (
        _at("io.weight", IO_WEIGHT_SILVER),
        _at("io.bfq.weight", IO_WEIGHT_SILVER),
    ),
    Aspect.CACHE: (_at("resctrl schemata L3", Size.SHARED_WAYS, "resctrl.l3_cat"),),
}

MEANINGS: Final[Mapping[QosBand, Mapping[Aspect, Ladder]]] = MappingProxyType(
    {
        QosBand.GOLD: {
            Aspect.CORES: (
                _at("cpuset.cpus", Size.OWN_CORES),
                _at("cpu.weight", Size.RESERVED_CPUS),
                _at("cpu.shares", Size.RESERVED_CPUS),
            ),
            Aspect.SIBLINGS: (
                _at("cpuset.cpus", Size.OWN_CORES),  # whole cores: no sibling is left to other workloads
            ),
            Aspect.CPU_PRIORITY: _SHARED[Aspect.CPU_PRIORITY],
            Aspect.MEMORY_PROTECTION: (
                _at("memory.min", Size.RESERVED_MEMORY),
                _at("memory.low", Size.RESERVED_MEMORY),
            ),
            Aspect.OOM_ORDER: (_at("oom_score_adj", OOM_SCORE_GOLD),),
            Aspect.IO_SHARE: (
                _at("io.weight", IO_WEIGHT_GOLD),
                _at("io.bfq.weight", IO_WEIGHT_GOLD),
            ),
            Aspect.IO_LATENCY: (_at("io.latency", Size.LATENCY_TARGET),),
            Aspect.CACHE: (_at("resctrl schemata L3", Size.OWN_WAYS, "resctrl.l3_cat"),),
        },
        QosBand.SILVER: {**_SHARED, Aspect.OOM_ORDER: (_at("oom_score_adj", OOM_SCORE_SILVER),)},
        QosBand.SYSTEM: {**_SHARED, Aspect.OOM_ORDER: (_at("oom_score_adj", OOM_SCORE_SYSTEM),)},
        QosBand.COPPER: {
            Aspect.CORES: (_at("cpuset.cpus", Size.SHARED_CORES),),
            Aspect.CPU_PRIORITY: (
                _at("cpu.idle", 1),
                _at("cpu.weight", 1),
                _at("cpu.shares", 2),
            ),
            Aspect.CPU_CEILING: (
                _at("cpu.max", Size.COPPER_CPUS),
                _at("cpu.cfs_quota_us", Size.COPPER_CPUS),
            ),
            Aspect.MEMORY_CEILING: (_at("memory.high", Size.COPPER_MEMORY),),
            Aspect.OOM_ORDER: (_at("oom_score_adj", OOM_SCORE_COPPER),),
            Aspect.OOM_SCOPE: (_at("memory.oom.group", 1),),
            Aspect.IO_SHARE: (
                _at("io.weight", IO_WEIGHT_COPPER),
                _at("io.bfq.weight", IO_WEIGHT_COPPER),
            ),
            Aspect.IO_CEILING: (_at("io.max", Size.CONTENTION),),
            Aspect.CACHE: (_at("resctrl schemata L3", Size.LEAST_WAYS, "resctrl.l3_cat"),),
            Aspect.BANDWIDTH: (_at("resctrl schemata MB", Size.CONTENTION, "resctrl.mba"),),
            Aspect.EGRESS: (_at("HTB class", Size.COPPER_EGRESS, "network.egress"),),
        },
    }
)
"""Mechanisms for every aspect of every band, best first. Absent aspects are left unchanged."""


def chosen(band: QosBand, present: Collection[str]) -> tuple[Choice, ...]:
    """The best mechanism for each aspect of ``band`` among those whose capability is ``present``."""
    return tuple(_choice(aspect, ladder, present) for aspect, ladder in MEANINGS[band].items())


def _choice(aspect: Aspect, ladder: Ladder, present: Collection[str]) -> Choice:
    for place, mechanism in enumerate(ladder):
        if mechanism.needs in present:
            return Choice(aspect, mechanism, ladder[:place])
    return Choice(aspect, None, ladder)
