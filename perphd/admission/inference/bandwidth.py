"""Bandwidth that batch gets under MBA throttling, from this host's calibration. Pure.

MBA percentages are nominal: on many machines 50 % takes almost nothing and 20 % almost everything. In domains with
a measured curve, a level counts by the bandwidth that it delivers to batch's number of cores there. In other
domains, it counts by its percentage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from perphd.domain.allocation import Allocation
from perphd.domain.policy import HostView
from perphd.domain.throttle import curve_for


def delivered_pct(host: HostView, level: int, batch_cores: int) -> float:
    """Share (%) of unthrottled bandwidth that a level leaves to batch on this number of cores.

    This is the mean over the measured domains, or the nominal level if no domain was measured.
    """
    domains = sorted({curve.domain for curve in host.mba_curves})
    if not domains or level >= 100:
        return float(level)
    shares = []
    for domain in domains:
        cores = batch_cores / max(1, len(host.topology.l3_domains))
        curve = curve_for(host.mba_curves, domain, cores)
        found = curve.at(level) if curve is not None else None
        top = curve.at(100) if curve is not None else None
        if found is not None and top:
            shares.append(100.0 * found / top)
    return sum(shares) / len(shares) if shares else float(level)


def with_bandwidth(host: HostView, allocation: Allocation, domains: Sequence[int]) -> Allocation:
    """The allocation with the bandwidth (bytes/s) that its throttle delivers in these domains, for display."""
    if allocation.mbw_pct >= 100:
        return allocation
    total: float | None = 0.0
    cores = host.topology.usable_cores
    for domain in domains:
        here = next(each.cpus for each in host.topology.l3_domains if each.domain == domain)
        share = sum(1 for core in cores if core.cpus & here) / max(1, len(cores))
        curve = curve_for(host.mba_curves, domain, allocation.cpu.batch_cores * share)
        found = curve.at(allocation.mbw_pct) if curve is not None else None
        total = None if found is None or total is None else total + found
    known = total if domains else None
    source = host.mba_source.value
    return replace(allocation, mbw_bytes_per_s=known, mbw_source=source)
