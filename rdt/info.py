"""What a machine offers through resctrl, as values that do not change. ``rdt.describe`` reads them.

The names follow the files of ``info/``: see Documentation/arch/x86/resctrl.rst.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from rdt.frozen import FrozenDict
from rdt.mount import Mount
from rdt.schemata import Cell, Schemata

Extra = FrozenDict[str, str]


class BandwidthUnit(Enum):
    """What the numbers of a bandwidth resource mean."""

    PERCENT = "percent"
    """Intel: a nominal share of the unthrottled bandwidth, which no machine delivers exactly (see calibration)."""
    MBPS = "MBps"
    """Mount option mba_MBps: a target that the kernel's own controller steers towards."""
    ABSOLUTE = "absolute"
    """AMD: steps of hardware bandwidth, an eighth of a GB/s on the generations documented so far."""


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """A cache whose ways can be given out: L3 or L2, or one half of it (CODE, DATA) with CDP."""

    name: str
    num_closids: int
    cbm_mask: int
    """All ways; the CBM of a group that may use the whole cache."""
    min_cbm_bits: int
    """0 where a mask may be empty (AMD): such a group fills no way of this cache at all."""
    shareable_bits: int
    """Ways that other hardware (I/O, graphics) fills as well; giving them exclusively protects from no DMA."""
    sparse_masks: bool | None
    """May a mask have holes? None: the kernel does not tell (before 6.7)."""
    bit_usage: FrozenDict[int, str]
    """Who used which way when read, a letter per way from the top: see the kernel's document. Not kept fresh."""
    domains: tuple[int, ...]
    extra: Extra = FrozenDict()

    @property
    def ways(self) -> int:
        """How many ways the mask has."""
        return self.cbm_mask.bit_count()


@dataclass(frozen=True, slots=True)
class BandwidthInfo:
    """Memory bandwidth that can be capped: MB, or SMBA for slow (CXL) memory."""

    name: str
    num_closids: int
    unit: BandwidthUnit
    minimum: int
    granularity: int
    """The kernel rounds up to a multiple of this."""
    linear: bool | None
    """``delay_linear``: whether steps are meant to be of equal effect; None: not told."""
    thread_throttle_mode: str | None
    """``max``: the lower cap of two hardware threads holds for their core; ``per-thread``: each its own."""
    unthrottled: int
    """The highest value that any group shows: a group made fresh is unthrottled. Where every group, the default
    one too, was capped before rdt looked, the true ceiling is higher (per cent: always 100)."""
    domains: tuple[int, ...]
    extra: Extra = FrozenDict()

    @property
    def is_percent(self) -> bool:
        """True if values are per cent."""
        return self.unit is BandwidthUnit.PERCENT

    def rounded(self, value: int) -> int:
        """What the kernel makes of a value: the next multiple of the granularity."""
        return -(-value // self.granularity) * self.granularity

    def steps(self) -> tuple[int, ...]:
        """All values that per-cent bandwidth can take, ascending; empty for other units (their range is open)."""
        return tuple(range(self.rounded(self.minimum), 101, self.granularity)) if self.is_percent else ()


@dataclass(frozen=True, slots=True)
class MonitoringInfo:
    """What can be counted per group and domain."""

    features: tuple[str, ...]
    """``llc_occupancy``, ``mbm_total_bytes``, ``mbm_local_bytes``, and ``..._config`` where events are configurable."""
    num_rmids: int
    max_threshold_occupancy_bytes: int | None
    """An RMID given back stays in limbo until its occupancy is below this."""
    domains: tuple[int, ...]
    sub_domains: FrozenDict[int, tuple[str, ...]]
    """With sub-NUMA clustering: the names of the directories below each domain's, whose sum the domain shows."""
    extra: Extra = FrozenDict()


@dataclass(frozen=True, slots=True)
class Info:
    """One machine's resctrl."""

    mount: Mount
    caches: FrozenDict[str, CacheInfo]
    bandwidths: FrozenDict[str, BandwidthInfo]
    monitoring: MonitoringInfo | None
    unknown: FrozenDict[str, Extra] = FrozenDict()
    """Resources that rdt does not know: their files' texts by resource."""
    extra: Extra = FrozenDict()
    """Files directly in ``info/`` other than last_cmd_status."""

    @property
    def usable_closids(self) -> int:
        """How many control groups there may be, the default group included: the minimum over all resources."""
        counts = [cache.num_closids for cache in self.caches.values()]
        counts += [bandwidth.num_closids for bandwidth in self.bandwidths.values()]
        counts += [
            int(files["num_closids"])
            for files in self.unknown.values()
            if is_number(files.get("num_closids"))
        ]
        return min(counts, default=1)

    @property
    def can_control(self) -> bool:
        """True if anything can be given out: only then can control groups be made."""
        return bool(self.caches or self.bandwidths)

    def cache(self, level: int = 3) -> tuple[CacheInfo, ...]:
        """The resources of one cache level: one, or DATA and CODE with CDP, or none."""
        return tuple(
            cache for name, cache in self.caches.items() if re.match(rf"L{level}(CODE|DATA)?\Z", name)
        )

    def domains(self, resource: str) -> tuple[int, ...]:
        """Domain ids of a resource when read; empty where there is no such resource."""
        known = self.caches.get(resource) or self.bandwidths.get(resource)
        return known.domains if known else ()

    def default(self) -> Schemata:
        """What a fresh group has: all ways, no bandwidth cap, in every domain."""
        values = {name: dict.fromkeys(cache.domains, cache.cbm_mask) for name, cache in self.caches.items()}
        for name, bandwidth in self.bandwidths.items():
            values[name] = dict.fromkeys(bandwidth.domains, bandwidth.unthrottled)
        return Schemata.of(values)

    def cells(self) -> tuple[Cell, ...]:
        """Every (resource, domain) that has a value."""
        return tuple(cell for cell, _ in self.default().cells())


def is_number(text: str | None) -> bool:
    """True for decimal digits alone."""
    return text is not None and text.isascii() and text.isdigit()
