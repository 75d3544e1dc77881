"""Last-level cache and memory bandwidth: a ladder of steps that needs no model, and the masks that follow from it.

An LRA is protected by what batch may *not* use: ways that batch's mask leaves out, and a throttle on batch's
bandwidth. The LRA itself keeps the whole cache and is never throttled. Growing halves what batch has at each step
(relief at once); shrinking gives back one unit (just enough). Bandwidth counts by what a level really delivers where
this host was calibrated (``bandwidth``), else by its per cents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from perphd.admission import way_layout
from perphd.admission.bandwidth import delivered_pct
from perphd.admission.domains import domains_of
from perphd.domain.allocation import Allocation, Settings
from perphd.domain.decision import Cause
from perphd.domain.policy import HostView, WorkloadView

LLC_COST = 0.3
"""Share of batch's work that is taken to be lost when it has next to no cache; the prior of the published programs."""
MBW_COST = 0.5
"""The same for its strongest throttle."""


def can_protect_llc(host: HostView, batch: Sequence[WorkloadView]) -> bool:
    """True if batch's cache ways can be set here."""
    return host.llc_ways > host.min_cbm_bits and _all_can(batch, "llc_masks")


def can_protect_mbw(host: HostView, batch: Sequence[WorkloadView]) -> bool:
    """True if batch's bandwidth can be throttled here."""
    return len(host.mba_levels_pct) > 1 and _all_can(batch, "mba_pct")


def cache_knobs(host: HostView, batch: Sequence[WorkloadView]) -> int:
    """Of cache and bandwidth, how many batch can be kept from here and now: 0 to 2."""
    return can_protect_llc(host, batch) + can_protect_mbw(host, batch)


def _all_can(batch: Sequence[WorkloadView], setting: str) -> bool:
    return bool(batch) and all(setting in view.enforceable for view in batch)


def strongest(current: Allocation, host: HostView, batch: Sequence[WorkloadView]) -> Allocation:
    """The same with all of the cache and the bandwidth that batch can be made to leave."""
    if can_protect_llc(host, batch):
        current = replace(current, llc_ways=host.llc_ways - host.min_cbm_bits)
    if can_protect_mbw(host, batch):
        current = replace(current, mbw_pct=min(*host.mba_levels_pct, current.mbw_pct))
    return current


def shields(allocation: Allocation, host: HostView, batch: Sequence[WorkloadView]) -> bool:
    """True if batch has no more of cache and bandwidth than it can be kept to here."""
    return strongest(allocation, host, batch) == allocation


def stronger(
    current: Allocation, cause: Cause, host: HostView, batch: Sequence[WorkloadView]
) -> tuple[Allocation, ...]:
    """Allocations that protect more of cache and bandwidth, the one to try first in front.

    Cache trouble is answered with ways first and bandwidth next, bandwidth trouble the other way round; anything else
    is not answered here.
    """
    if cause not in (Cause.LLC, Cause.MBW):
        return ()
    found: list[Allocation] = []
    if can_protect_llc(host, batch):
        has = host.llc_ways - current.llc_ways
        left = max(host.min_cbm_bits, has // 2)
        if left < has:
            found.append(replace(current, llc_ways=host.llc_ways - left))
    if can_protect_mbw(host, batch):
        lower = sorted(level for level in host.mba_levels_pct if level < current.mbw_pct)
        if lower:
            half = [
                level
                for level in lower
                if _delivered(level, current, host) <= _delivered_now(current, host) / 2
            ]
            found.append(replace(current, mbw_pct=half[-1] if half else lower[0]))
    if can_protect_llc(host, batch):  # further rungs, for when the first was not enough to be felt
        left = max(host.min_cbm_bits, (host.llc_ways - current.llc_ways) // 2)
        while (fewer := max(host.min_cbm_bits, left // 2)) < left:
            left = fewer
            found.append(replace(current, llc_ways=host.llc_ways - left))
    if cause is Cause.MBW:
        found.sort(key=lambda a: a.mbw_pct == current.mbw_pct)
    return tuple(found)


def weaker(current: Allocation, host: HostView, units: int = 1) -> tuple[Allocation, ...]:
    """Allocations that give so many units back to batch (or what is left of them), the dearest resource first.

    Of several units, those that give back of cache and bandwidth at once come before those.
    """
    found: list[Allocation] = []
    higher = sorted({level for level in (*host.mba_levels_pct, 100) if level > current.mbw_pct})
    if higher:
        found.append(replace(current, mbw_pct=higher[min(units, len(higher)) - 1]))
    if current.llc_ways > 0:
        found.append(replace(current, llc_ways=max(0, current.llc_ways - units)))
    if units > 1 and len(found) > 1:
        found.insert(0, replace(found[0], llc_ways=found[1].llc_ways))
    return tuple(found)


_LLC_RELIEF = (1.0, 0.4, 0.7)
_MBW_RELIEF = (0.3, 1.0, 0.8)


def relief(before: Allocation, after: Allocation, cause: Cause, host: HostView) -> float:
    """The part of what cache or bandwidth trouble costs that ``after`` is expected to win back; negative: adds to it.

    What batch loses of its ways, of its bandwidth and of its cores each weigh by what the trouble is; cores, because
    fewer of them also miss less. 0 where neither cache nor bandwidth is the cause.
    """
    if cause not in (Cause.LLC, Cause.MBW):
        return 0.0
    by_ways, by_bandwidth, by_cores = _LLC_RELIEF if cause is Cause.LLC else _MBW_RELIEF
    left = 1.0
    if host.llc_ways:
        had, has = host.llc_ways - before.llc_ways, host.llc_ways - after.llc_ways
        left *= 1.0 - by_ways * (1.0 - has / max(had, 1))
    left *= 1.0 - by_bandwidth * (1.0 - _delivered_now(after, host) / _delivered_now(before, host))
    left *= 1.0 - by_cores * (1.0 - after.cpu.batch_cores / max(before.cpu.batch_cores, 1))
    return max(1.0 - left, -1.0)


def batch_value(allocation: Allocation, batch_cores: float, host: HostView) -> float:
    """What batch is taken to get done, in cores of undisturbed work, under this cache and bandwidth protection."""
    lost = 0.0
    if host.llc_ways:
        lost += LLC_COST * allocation.llc_ways / host.llc_ways
    return batch_cores * (1.0 - lost) * (1.0 - MBW_COST * (1.0 - _delivered_now(allocation, host) / 100.0))


def _delivered_now(allocation: Allocation, host: HostView) -> float:
    return _delivered(allocation.mbw_pct, allocation, host)


def _delivered(level: int, allocation: Allocation, host: HostView) -> float:
    """Share (%) of its bandwidth that batch keeps at a level, on the cores that it has."""
    return delivered_pct(host, level, allocation.cpu.batch_cores)


def batch_mask(ways: int, total_ways: int) -> int:
    """Batch's capacity bit mask: its ``ways`` highest ways (those that devices share on most machines)."""
    return ((1 << ways) - 1) << (total_ways - ways)


def strictest_cache(protections: Sequence[Allocation]) -> tuple[int, int]:
    """Protected ways, and batch's throttle (%), that satisfy all of these protections."""
    return max((a.llc_ways for a in protections), default=0), min(
        (a.mbw_pct for a in protections), default=100
    )


def divide(
    host: HostView,
    lras: Sequence[WorkloadView],
    batch: Sequence[WorkloadView],
    protections: Mapping[str, Allocation],
    result: dict[str, Settings],
) -> None:
    """Put batch's masks and throttles into ``result``: in each L3 domain the strictest protection of an LRA there.

    In a domain without such an LRA batch keeps all ways and its bandwidth. ``result`` already has everybody's CPUs.
    """
    homes = {
        view.spec.name: domains_of(host.topology, view, result[view.spec.name].cpus)
        for view in lras
        if view.spec.name in protections
    }
    masks: list[tuple[int, int]] = []
    levels: list[tuple[int, int]] = []
    for domain in (each.domain for each in host.topology.l3_domains):
        here = [protections[name] for name, domains in homes.items() if domain in domains]
        protected, throttle = strictest_cache(here)
        if protected and host.llc_ways:
            left = max(host.min_cbm_bits, host.llc_ways - protected)
            masks.append((domain, way_layout.batch_mask(host, left)))
        if throttle < 100 and host.mba_levels_pct:
            levels.append((domain, throttle))
    for view in batch:
        settings = result[view.spec.name]
        if masks:
            settings = replace(settings, llc_masks=tuple(masks))
        if levels:
            settings = replace(settings, mba_pct=tuple(levels))
        result[view.spec.name] = settings
