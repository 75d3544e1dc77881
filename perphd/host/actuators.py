"""Bounds of resctrl's settings on this host, as policies need them."""

from __future__ import annotations

from dataclasses import dataclass

from perphd.host.throttle import Throttle
from rdt import BandwidthUnit, Info


@dataclass(frozen=True, slots=True)
class Actuators:
    """Bounds of the cache and bandwidth actuators.

    ``llc_ways`` 0, ``mba_levels_pct`` empty: that actuator is absent. Levels ascend; 100 is unthrottled.
    ``llc_classes``: number of CLOSIDs, the default group's included; 0: unknown. ``throttle``: origin and
    measured bandwidth of the levels. ``llc_shareable``: mask of the ways that devices fill as well.
    """

    llc_ways: int = 0
    min_cbm_bits: int = 1
    mba_levels_pct: tuple[int, ...] = ()
    llc_classes: int = 0
    throttle: Throttle = Throttle()
    llc_shareable: int = 0


def actuators(info: Info, throttle: Throttle | None = None) -> Actuators:
    """Bounds of a mounted resctrl for the last-level cache and for bandwidth in percent.

    Bandwidth in absolute units (AMD, or ``mba_MBps``) counts as absent. With CDP, the ways of data also stand
    for those of code. ``throttle``: the levels that make a difference; None: use all levels.
    """
    cache = info.caches.get("L3") or info.caches.get("L3DATA")
    ways, least, shareable = 0, 1, 0
    if cache is not None and cache.cbm_mask & (cache.cbm_mask + 1) == 0:
        ways, least, shareable = cache.cbm_mask.bit_length(), cache.min_cbm_bits, cache.shareable_bits
    bandwidth = info.bandwidths.get("MB")
    levels: tuple[int, ...] = ()
    if throttle is not None:
        levels = throttle.levels
    elif bandwidth is not None and bandwidth.unit is BandwidthUnit.PERCENT:
        levels = tuple(bandwidth.steps())
    return Actuators(ways, least, levels, info.usable_closids, throttle or Throttle(), shareable)
