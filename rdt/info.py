"""Immutable description of what a machine offers through resctrl; ``rdt.describe`` reads it.

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
    """Unit of a bandwidth resource's values."""

    PERCENT = "percent"
    """Intel: a nominal share of the unthrottled bandwidth. Real machines deliver it only roughly (see
    calibration).
    """
    MBPS = "MBps"
    """Mount option mba_MBps: a target that the kernel's own controller steers towards."""
    ABSOLUTE = "absolute"
    """AMD: steps of hardware bandwidth; 1/8 GB/s on the generations documented so far."""


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """A cache with allocatable ways: L3 or L2, or with CDP its CODE or DATA part."""

    name: str
    num_closids: int
    cbm_mask: int
    """All ways: the mask of a group that may use the whole cache."""
    min_cbm_bits: int
    """Smallest number of ways in a mask. 0 (AMD): a mask may be empty."""
    shareable_bits: int
    """Ways that other hardware (I/O, graphics) fills as well; an exclusive mask does not keep DMA out."""
    sparse_masks: bool | None
    """Whether a mask may have holes; None: the kernel does not report this (before 6.7)."""
    bit_usage: FrozenDict[int, str]
    """Use of each way at the time of reading: a letter per way, the highest first (see the kernel's
    documentation).
    """
    domains: tuple[int, ...]
    extra: Extra = FrozenDict()

    @property
    def ways(self) -> int:
        """Number of ways in ``cbm_mask``."""
        return self.cbm_mask.bit_count()


@dataclass(frozen=True, slots=True)
class BandwidthInfo:
    """A memory bandwidth resource: MB, or SMBA for slow (CXL) memory."""

    name: str
    num_closids: int
    unit: BandwidthUnit
    minimum: int
    granularity: int
    """The kernel rounds values up to a multiple of this value."""
    linear: bool | None
    """``delay_linear``: whether steps have roughly equal effect; None: not reported."""
    thread_throttle_mode: str | None
    """``max``: the lower cap of a core's two hardware threads applies to both; ``per-thread``: each has its own."""
    unthrottled: int
    """The highest value of any group, since a new group is unthrottled; always 100 for percent.

    If every group, including the default one, was already capped, the true maximum is higher.
    """
    domains: tuple[int, ...]
    extra: Extra = FrozenDict()

    @property
    def is_percent(self) -> bool:
        """True if values are percentages."""
        return self.unit is BandwidthUnit.PERCENT

    def rounded(self, value: int) -> int:
        """The value after the kernel's rounding: the next multiple of the granularity."""
        return -(-value // self.granularity) * self.granularity

    def steps(self) -> tuple[int, ...]:
        """All values that a percentage can take, ascending; empty for other units, whose range is open."""
        return tuple(range(self.rounded(self.minimum), 101, self.granularity)) if self.is_percent else ()


@dataclass(frozen=True, slots=True)
class MonitoringInfo:
    """Monitoring events that can be counted per group and domain."""

    features: tuple[str, ...]
    """``llc_occupancy``, ``mbm_total_bytes``, ``mbm_local_bytes``, and ``..._config`` where events are configurable."""
    num_rmids: int
    max_threshold_occupancy_bytes: int | None
    """Occupancy in bytes above which a released RMID stays in limbo; None: not reported."""
    domains: tuple[int, ...]
    sub_domains: FrozenDict[int, tuple[str, ...]]
    """With sub-NUMA clustering, the subdirectories of each domain, whose sum the domain shows."""
    extra: Extra = FrozenDict()


@dataclass(frozen=True, slots=True)
class Info:
    """Everything that one machine offers through resctrl."""

    mount: Mount
    caches: FrozenDict[str, CacheInfo]
    bandwidths: FrozenDict[str, BandwidthInfo]
    monitoring: MonitoringInfo | None
    unknown: FrozenDict[str, Extra] = FrozenDict()
    """Resources unknown to rdt: texts of their files by resource."""
    extra: Extra = FrozenDict()
    """Files directly in ``info/``, except last_cmd_status."""

    @property
    def usable_closids(self) -> int:
        """Number of possible control groups, including the default group: the minimum over all resources."""
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
        """True if cache or bandwidth can be allocated; only then can control groups be made."""
        return bool(self.caches or self.bandwidths)

    def cache(self, level: int = 3) -> tuple[CacheInfo, ...]:
        """The resources of one cache level: usually one, with CDP two (DATA and CODE), empty if it has none."""
        return tuple(
            cache for name, cache in self.caches.items() if re.match(rf"L{level}(CODE|DATA)?\Z", name)
        )

    def domains(self, resource: str) -> tuple[int, ...]:
        """Domain ids of a resource at the time of reading; empty if there is no such resource."""
        known = self.caches.get(resource) or self.bandwidths.get(resource)
        return known.domains if known else ()

    def default(self) -> Schemata:
        """The schemata of a new group: all ways and no bandwidth cap in every domain."""
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
