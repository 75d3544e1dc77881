"""Whole units of the host's resources, as counted by the published controllers, and the resulting settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from perphd.admission.context import total_cores
from perphd.domain.allocation import Settings
from perphd.domain.cpuset import CpuSet
from perphd.domain.policy import HostView, Snapshot, WorkloadView
from perphd.domain.reading import available

MBA_UNITS: Final = 10
"""Bandwidth is counted in tenths, as CLITE and OLPart do; a unit is 10 % of the throttle's scale."""
RESOURCES: Final = ("cores", "ways", "mba")


@dataclass(frozen=True, slots=True)
class Units:
    """Numbers of physical cores, cache ways (of every L3 domain) and tenths of bandwidth."""

    cores: int
    ways: int
    mba: int

    def get(self, resource: str) -> int:
        """The count of one of ``RESOURCES``."""
        value: int = getattr(self, resource)
        return value

    def plus(self, resource: str, count: int) -> Units:
        """The same with ``count`` more of one resource."""
        return replace(self, **{resource: self.get(resource) + count})


def capacity(snapshot: Snapshot) -> Units:
    """All units of the host. Without cache or bandwidth control their counts are 0 and never divided."""
    host = snapshot.host
    return Units(total_cores(snapshot), host.llc_ways, MBA_UNITS if host.mba_levels_pct else 0)


def equal_parts(total: Units, count: int) -> tuple[Units, ...]:
    """Divide as evenly as whole units allow; the first ones get the remainder."""

    def part(units: int, index: int) -> int:
        return units // count + (1 if index < units % count else 0)

    return tuple(Units(part(total.cores, i), part(total.ways, i), part(total.mba, i)) for i in range(count))


def settings_of(host: HostView, parts: Sequence[tuple[Sequence[str], Units]]) -> dict[str, Settings]:
    """Disjoint settings: groups of workloads side by side on cores and ways, in this order, each under its throttle.

    A part without its own cores or ways keeps its original ones.
    """
    cores, domains = host.topology.usable_cores, [d.domain for d in host.topology.l3_domains]
    result: dict[str, Settings] = {}
    core = way = 0
    for names, units in parts:
        cpus = host.topology.cpus_of(cores[core : core + units.cores])
        core += units.cores
        settings = Settings(cpus=cpus) if cpus != CpuSet() else Settings()
        if units.ways and host.llc_ways:
            count = max(units.ways, host.min_cbm_bits)
            first = min(way, host.llc_ways - count)
            mask = ((1 << count) - 1) << first
            way += units.ways
            settings = replace(settings, llc_masks=tuple((d, mask) for d in domains))
        if units.mba and host.mba_levels_pct:
            level = level_of(host, 10 * units.mba)
            settings = replace(settings, mba_pct=tuple((d, level) for d in domains))
        result.update(dict.fromkeys(names, settings))
    return result


def level_of(host: HostView, wanted_pct: int) -> int:
    """The throttle level that is closest from above among those the host offers."""
    return min((level for level in host.mba_levels_pct if level >= wanted_pct), default=100)


def slack(view: WorkloadView) -> float | None:
    """(target - latency) / target of an LRA with absolute objectives; None if it is unknown.

    A target of work counts the same way, with the time per unit of work in place of the latency. It counts always if
    there is no latency, else only while it is missed. A closed loop never does more work than alone, so its slack in
    work is small at best and does not show how much it could give up.
    """
    sample, objective = view.sample, view.spec.objective
    if sample is None:
        return None
    by_latency = by_work = None
    latency = sample.reading(f"latency_{objective.latency_percentile}_ms")
    if objective.max_latency_ms is not None and available(latency):
        by_latency = 1.0 - latency / objective.max_latency_ms
    work = sample.work_rate_per_s
    if objective.min_work_rate_per_s is not None and available(work) and work > 0:
        by_work = 1.0 - objective.min_work_rate_per_s / work
    if by_latency is None or by_work is None:
        return by_work if by_latency is None else by_latency
    return min(by_latency, by_work) if by_work < 0.0 else by_latency
