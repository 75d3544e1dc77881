"""Capabilities of a machine's CPUs (and its kernel) for resctrl: the shape of a simulated machine, as values.

The fields have the names of the files in ``info/`` (Documentation/arch/x86/resctrl.rst, "Info directory").
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from perphd.domain.cpuset import CpuSet

OCCUPANCY: Final = "llc_occupancy"
TOTAL: Final = "mbm_total_bytes"
LOCAL: Final = "mbm_local_bytes"
ALL_EVENTS: Final = (OCCUPANCY, TOTAL, LOCAL)


@dataclass(frozen=True, slots=True)
class Domain:
    """One instance of a resource: the cache id that names it, and the CPUs that share it.

    ``nodes`` is not empty if Sub-NUMA Clustering divides the cache; each node is then a monitoring domain.
    """

    id: int
    cpus: CpuSet
    nodes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CacheControl:
    """A cache that can be divided by capacity bit masks (``L3`` or ``L2``).

    ``cache_bytes``: size of one instance, as in sysfs; ``cdp``: separate masks for code and data are
    possible; ``sparse_masks``: masks may have holes.
    """

    name: str
    domains: tuple[Domain, ...]
    cache_bytes: int
    ways: int
    num_closids: int
    min_cbm_bits: int = 1
    shareable_bits: int = 0
    cdp: bool = False
    sparse_masks: bool = False

    @property
    def full_mask(self) -> int:
        """``cbm_mask``: every way, the default of every group."""
        return (1 << self.ways) - 1

    @property
    def width(self) -> int:
        """Columns that a value takes in ``schemata``."""
        return (self.ways + 3) // 4


@dataclass(frozen=True, slots=True)
class BandwidthControl:
    """A limit of memory bandwidth (``MB``, or ``SMBA`` for slow memory): percent on Intel, eighths of GB/s on AMD.

    ``maximum`` is the default, no limit. ``throttle_mode`` None: the machine has no such file.
    """

    name: str
    domains: tuple[Domain, ...]
    num_closids: int
    min_bandwidth: int = 10
    maximum: int = 100
    bandwidth_gran: int = 10
    delay_linear: bool = True
    throttle_mode: str | None = "max"
    width: int = 3


@dataclass(frozen=True, slots=True)
class Monitoring:
    """Occupancy and bandwidth counters of the L3 cache.

    ``unit_bytes``: bytes per count of the hardware. ``configurable``: the content of bandwidth events can be
    selected (AMD's BMEC).
    """

    domains: tuple[Domain, ...]
    cache_bytes: int
    num_rmids: int
    unit_bytes: int
    events: tuple[str, ...] = ALL_EVENTS
    configurable: bool = False

    @property
    def threshold_bytes(self) -> int:
        """``max_threshold_occupancy`` after boot: an even share of the cache, in whole units."""
        return self.rounded(self.cache_bytes // self.num_rmids)

    def rounded(self, value_bytes: int) -> int:
        """The value in whole units of the hardware, rounded down."""
        return value_bytes // self.unit_bytes * self.unit_bytes


@dataclass(frozen=True, slots=True)
class Kernel:
    """Differences between kernels in use.

    Attributes:
        release: prefix of ``uname -r``.
        task_lists: ``tasks`` accepts several TIDs, separated by commas, in one write.
        moves_monitor_groups: rename(2) of a monitor group works.
        sparse_masks_file: ``info/L3/sparse_masks`` exists.
        always_limbo: a freed RMID is checked a second later before it is reused, whatever its occupancy.
        closid_first: a new control group takes its CLOSID before its RMID.
        debug_option: ``-o debug`` is supported.
        padded_values: ``schemata`` pads values to one width.
    """

    release: str
    task_lists: bool = True
    moves_monitor_groups: bool = True
    sparse_masks_file: bool = True
    always_limbo: bool = True
    closid_first: bool = True
    debug_option: bool = True
    padded_values: bool = True


LINUX_6_1: Final = Kernel(
    release="6.1",
    task_lists=False,
    moves_monitor_groups=False,
    sparse_masks_file=False,
    always_limbo=False,
    closid_first=False,
    debug_option=False,
)
LINUX_6_12: Final = Kernel(release="6.12")
LINUX_6_15: Final = Kernel(release="6.15", padded_values=False)


@dataclass(frozen=True, slots=True)
class RdtMachine:
    """A machine as resctrl shows it. ``source``: source of these facts; ``options``: usual mount options."""

    name: str
    source: str
    cpus: CpuSet
    caches: tuple[CacheControl, ...] = ()
    bandwidths: tuple[BandwidthControl, ...] = ()
    monitoring: Monitoring | None = None
    kernel: Kernel = LINUX_6_12
    options: str = ""

    @property
    def can_allocate(self) -> bool:
        """True if any resource can be controlled; otherwise the root is the only control group."""
        return bool(self.caches or self.bandwidths)

    @property
    def supports_mba_mbps(self) -> bool:
        """True if ``-o mba_MBps`` works: the kernel's controller needs a linear MB and the local bandwidth counter."""
        linear = any(b.name == "MB" and b.delay_linear for b in self.bandwidths)
        return linear and self.monitoring is not None and LOCAL in self.monitoring.events

    def on(self, kernel: Kernel) -> RdtMachine:
        """The same hardware under another kernel."""
        return replace(self, kernel=kernel)
