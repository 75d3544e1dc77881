"""Steps of last-level cache and memory bandwidth that need no model, and the resulting masks.

An LRA is protected by ways that batch's mask excludes, and by a throttle on batch's bandwidth. The LRA itself keeps the
whole cache and is never throttled. Growing halves batch's part at each step (fast relief); shrinking gives back one
unit (just enough). On a calibrated host, a throttle level counts by the bandwidth that it delivers (``bandwidth``),
else by its percentage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from perphd.admission.inference import way_layout
from perphd.admission.inference.bandwidth import delivered_pct
from perphd.admission.inference.domains import domains_of
from perphd.domain.allocation import Allocation, Settings
from perphd.domain.decision import Cause
from perphd.domain.policy import HostView, WorkloadView

LLC_COST = 0.3
"""Assumed share of batch's work that is lost with almost no cache, from published benchmarks."""
MBW_COST = 0.5
"""Assumed share of batch's work lost under the strongest throttle."""


def can_protect_llc(host: HostView, batch: Sequence[WorkloadView]) -> bool:
    """True if batch's cache ways can be set here."""
    return host.llc_ways > host.min_cbm_bits and _all_can(batch, "llc_masks")


def can_protect_mbw(host: HostView, batch: Sequence[WorkloadView]) -> bool:
    """True if batch's bandwidth can be throttled here."""
    return len(host.mba_levels_pct) > 1 and _all_can(batch, "mba_pct")


def cache_knobs(host: HostView, batch: Sequence[WorkloadView]) -> int:
    """In how many of the two resources cache and bandwidth batch can be restricted now: 0 to 2."""
    return can_protect_llc(host, batch) + can_protect_mbw(host, batch)


def _all_can(batch: Sequence[WorkloadView], setting: str) -> bool:
    return bool(batch) and all(setting in view.enforceable for view in batch)


def strongest(current: Allocation, host: HostView, batch: Sequence[WorkloadView]) -> Allocation:
    """The allocation with the strongest restriction of batch's cache and bandwidth possible here."""
    if can_protect_llc(host, batch):
        current = replace(current, llc_ways=host.llc_ways - host.min_cbm_bits)
    if can_protect_mbw(host, batch):
        current = replace(current, mbw_pct=min(*host.mba_levels_pct, current.mbw_pct))
    return current


def shields(allocation: Allocation, host: HostView, batch: Sequence[WorkloadView]) -> bool:
    """True if batch's cache and bandwidth are restricted as far as possible here."""
    return strongest(allocation, host, batch) == allocation


def stronger(
    current: Allocation, cause: Cause, host: HostView, batch: Sequence[WorkloadView]
) -> tuple[Allocation, ...]:
    """Allocations that protect more cache and bandwidth, in the order to try.

    For the cause LLC, ways come before bandwidth; for MBW, bandwidth comes before ways. Empty for other causes.
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
    if can_protect_llc(host, batch):  # further rungs, in case the first has no noticeable effect
        left = max(host.min_cbm_bits, (host.llc_ways - current.llc_ways) // 2)
        while (fewer := max(host.min_cbm_bits, left // 2)) < left:
            left = fewer
            found.append(replace(current, llc_ways=host.llc_ways - left))
    if cause is Cause.MBW:
        found.sort(key=lambda a: a.mbw_pct == current.mbw_pct)
    return tuple(found)


def weaker(current: Allocation, host: HostView, units: int = 1) -> tuple[Allocation, ...]:
    """Allocations that give back ``units`` units (or all that is left), the most valuable resource first.

    With several units, an allocation that gives back both cache and bandwidth comes first.
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
    """Expected share of the loss by cache or bandwidth contention that ``after`` recovers; negative if
    ``after`` increases the loss.

    The cause gives the weights of batch's losses of ways, bandwidth and cores; fewer cores also cause fewer
    misses. 0 for other causes.
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
    """Assumed batch work under this cache and bandwidth protection, in cores of undisturbed work."""
    lost = 0.0
    if host.llc_ways:
        lost += LLC_COST * allocation.llc_ways / host.llc_ways
    return batch_cores * (1.0 - lost) * (1.0 - MBW_COST * (1.0 - _delivered_now(allocation, host) / 100.0))


def _delivered_now(allocation: Allocation, host: HostView) -> float:
    return _delivered(allocation.mbw_pct, allocation, host)


def _delivered(level: int, allocation: Allocation, host: HostView) -> float:
    """Share (%) of its bandwidth that batch keeps at a level, on its cores."""
    return delivered_pct(host, level, allocation.cpu.batch_cores)


def batch_mask(ways: int, total_ways: int) -> int:
    """Batch's capacity bit mask: its ``ways`` highest ways (which most machines share with devices)."""
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
    """Add batch's masks and throttles to ``result``: in each L3 domain the strictest protection of its LRAs.

    In a domain without a protected LRA, batch keeps all ways and its bandwidth. ``result`` must already hold
    the CPUs of all workloads.
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
