"""The bounds of what resctrl can set here, as the policies want to know them."""

from __future__ import annotations

from dataclasses import dataclass

from perphd.host.throttle import Throttle
from rdt import BandwidthUnit, Info


@dataclass(frozen=True, slots=True)
class Actuators:
    """``llc_ways`` 0 or ``mba_levels_pct`` empty: that actuator is absent. Levels ascend; 100 is unthrottled.

    ``llc_classes``: CLOSIDs there are, the default group's with them; 0: not known. ``throttle``: what is known of
    the levels. ``llc_shareable``: mask of the ways that devices fill, too.
    """

    llc_ways: int = 0
    min_cbm_bits: int = 1
    mba_levels_pct: tuple[int, ...] = ()
    llc_classes: int = 0
    throttle: Throttle = Throttle()
    llc_shareable: int = 0


def actuators(info: Info, throttle: Throttle | None = None) -> Actuators:
    """What a mounted resctrl offers for the last-level cache and for bandwidth in per cent.

    Bandwidth in absolute units (AMD, or ``mba_MBps``) is no lattice of per cents and counts as absent; with CDP, the
    ways of data stand for those of code as well. ``throttle``: the levels that make a difference; None: all there are.
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
