"""Division of a host's CPUs and cache ways among declared bands. Pure.

A ledger (``qos.ledger``) of what is declared now says who gets what:

    system   at least one core's worth of the shared CPUs, and as much as the largest ``min_cores`` of batch
    gold     ``reserved_cpus``, rounded up to whole physical cores, which nobody else may use: SMT siblings included
    silver   ``reserved_cpus`` of the cores that gold leaves, by weight: 100, the kernel's default, for each CPU
    copper   the cores that gold leaves

Gold that may not be narrowed (``touch = "batch"``, or no cpuset controller) has cores that batch keeps off, and a
weight as silver has. The ledger grants in order of priority. If a workload does not fit, it has a weight alone.

Cache ways follow the cores: in each L3 domain the others keep off gold's share of the ways, and copper also off
silver's. Nobody's ways are guaranteed by narrowing its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import ceil, floor
from typing import Final

from perphd.domain.allocation import DEFAULT_WEIGHT, KEEP, Settings
from perphd.domain.cpuset import CpuSet
from perphd.domain.topology import Topology
from perphd.domain.workload import Kind, Touch, WorkloadSpec
from perphd.qos.band_settings import weight_for
from perphd.qos.bands import QosBand
from perphd.qos.ledger import (
    Amounts,
    CapacityRequest,
    HostLedger,
    Refusal,
    capacity_of,
    grant,
)

SYSTEM: Final = "the host's own daemons"
"""Holder of the system's share; no workload has a name with blanks."""


@dataclass(frozen=True, slots=True)
class Masks:
    """Cache masks of one L3 domain: of silver, and of copper."""

    silver: int
    copper: int


@dataclass(frozen=True, slots=True)
class WayShares:
    """Number of ways of one L3 domain that silver, and that copper, may use at most."""

    silver: int
    copper: int


@dataclass(frozen=True, slots=True)
class Division:
    """Who holds what.

    - ``ledger``: all grants. ``shared``: CPUs that gold leaves.
    - ``cores``: CPUs kept for each gold workload; ``own``: those of them that are confined to their cores.
    - ``refused``: why a workload has no share, by name.
    """

    ledger: HostLedger
    shared: CpuSet
    cores: Mapping[str, CpuSet]
    own: frozenset[str]
    refused: Mapping[str, str]


def takes_part(spec: WorkloadSpec) -> bool:
    """True if its band gives it CPUs."""
    return spec.band in (QosBand.GOLD, QosBand.SILVER) and spec.reserved_cpus > 0.0


def divided(
    topology: Topology, specs: Iterable[WorkloadSpec], knobs: Mapping[str, frozenset[str]]
) -> Division:
    """The division of this host among these workloads. ``knobs``: settings that each of them has here."""
    everybody = tuple(specs)
    ledger = HostLedger(capacity_of(topology))
    least = max((ceil(s.least_cores) for s in everybody if s.kind is Kind.BATCH), default=1)
    per_core = max((len(core.cpus) for core in topology.usable_cores), default=1)
    kept = min(float(max(1, least) * per_core), ledger.capacity.amounts.cpus)
    asked = [CapacityRequest(SYSTEM, QosBand.SYSTEM, Amounts(kept))]
    declared = sorted(filter(takes_part, everybody), key=_order)
    asked += [CapacityRequest(s.name, QosBand(s.band or ""), Amounts(s.reserved_cpus)) for s in declared]
    refused: dict[str, str] = {}
    for request in asked:
        result = grant(ledger, request)
        if isinstance(result, Refusal):
            refused[request.holder] = result.reason
        else:
            ledger = result
    cores = {held.holder: held.cores for held in ledger.grants if held.band is QosBand.GOLD}
    own = frozenset(
        s.name
        for s in declared
        if s.name in cores and s.touch is Touch.ALL and "cpus" in knobs.get(s.name, frozenset())
    )
    return Division(ledger, ledger.shared_cores, cores, own, refused)


def _order(spec: WorkloadSpec) -> tuple[int, bool, str]:
    return -spec.priority, spec.band != QosBand.GOLD, spec.name


def way_shares(division: Division, topology: Topology, ways: int) -> dict[int, WayShares]:
    """Ways of each L3 domain that silver and copper may use; domains in which they may use all are left out."""
    held = division.ledger.grants
    silver = sum(each.amounts.cpus for each in held if each.band is QosBand.SILVER)
    gold = topology.usable - division.shared
    found = {}
    for l3 in topology.l3_domains:
        cpus = l3.cpus & topology.usable
        if not cpus:
            continue
        golden = floor(ways * len(cpus & gold) / len(cpus))
        rest = max(1, ways - golden)
        share = silver / max(1, len(division.shared))
        left = max(1, rest - floor(rest * min(1.0, share)))
        if left < ways:
            found[l3.domain] = WayShares(rest, left)
    return found


def over(
    spec: WorkloadSpec,
    wanted: Settings,
    division: Division,
    masks: Mapping[int, Masks],
    knobs: frozenset[str],
    least_bits: int = 1,
) -> Settings:
    """``wanted`` within the division.

    What the policy wants of batch stays in force as far as it lies within batch's share, since it can only be
    stricter. An LRA with ``touch = "batch"`` is never narrowed. ``least_bits``: of a cache mask.
    """
    if spec.name in division.own:
        return replace(wanted, cpus=division.cores[spec.name])
    if takes_part(spec) and "cpu_weight" in knobs and wanted.cpu_weight is KEEP:
        weight = weight_for(spec.reserved_cpus)
        wanted = wanted if weight == DEFAULT_WEIGHT else replace(wanted, cpu_weight=weight)
    if (spec.kind is Kind.LRA and spec.touch is not Touch.ALL) or spec.band == QosBand.GOLD:
        return wanted
    if division.cores and "cpus" in knobs:
        cpus = division.shared if wanted.cpus is KEEP else wanted.cpus & division.shared
        wanted = replace(wanted, cpus=cpus or division.shared)
    if "llc_masks" not in knobs or not masks:
        return wanted
    return _within_ways(wanted, masks, spec.gives_way, least_bits)


def _within_ways(wanted: Settings, masks: Mapping[int, Masks], copper: bool, least_bits: int) -> Settings:
    """``wanted`` with a band's masks: of a policy's mask for copper, the part that lies within."""
    had = {} if wanted.llc_masks is KEEP else dict(wanted.llc_masks)
    if had and not copper:
        return wanted  # the policy has separated this LRA's ways from others'
    limits = {domain: each.copper if copper else each.silver for domain, each in masks.items()}
    for domain, mask in had.items():
        common = mask & limits.get(domain, mask)
        limits[domain] = common if common.bit_count() >= least_bits else mask
    return replace(wanted, llc_masks=tuple(sorted(limits.items())))
