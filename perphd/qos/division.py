"""Division of a host's CPUs and cache ways among declared bands. Pure.

A ledger (``qos.ledger``) of the present declarations assigns the shares:

    system   at least one core's worth of the shared CPUs, and as much as the largest ``min_cores`` of batch
    gold     ``reserved_cpus``, rounded up to whole physical cores with their SMT siblings, for this workload alone
    silver   ``reserved_cpus`` of the cores that gold leaves, by weight: 100, the kernel's default, for each CPU
    copper   the cores that gold leaves

Memory that gold and silver reserve is in the ledger as well, beside 5 % for the system. Gold whose memory does not fit
has ``memory.low`` instead of ``memory.min``, because the kernel would otherwise guarantee more memory than the host
has.

Gold that may not be narrowed (``touch = "batch"``, or no cpuset controller) has cores that batch does not use, and a
weight like silver. The ledger grants in order of priority. A workload that does not fit gets only a weight.

Cache ways follow the cores: in each L3 domain, other workloads do not use gold's share of the ways, and copper does not
use silver's either. A workload's ways are guaranteed by narrowing others, never itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import ceil, floor
from typing import Final

from perphd.domain.allocation import DEFAULT_WEIGHT, KEEP, Settings
from perphd.domain.cpuset import CpuSet
from perphd.domain.topology import Topology
from perphd.domain.workload import Kind, Touch, WorkloadSpec
from perphd.qos.band_settings import reserves_memory, weight_for
from perphd.qos.bands import QosBand
from perphd.qos.ledger import (
    Amounts,
    CapacityRequest,
    HostLedger,
    LedgerRefusal,
    capacity_of,
    grant,
)

SYSTEM_MEMORY_SHARE: Final = 0.05
"""Share of the host's memory that is never reserved for gold and silver."""
SYSTEM: Final = "the host's own daemons"
"""Holder of the system's share; names of workloads contain no blanks."""


@dataclass(frozen=True, slots=True)
class Masks:
    """Cache masks of one L3 domain: one for silver, and one for copper."""

    silver: int
    copper: int


@dataclass(frozen=True, slots=True)
class WayShares:
    """Maximum number of ways of one L3 domain that silver may use, and the same for copper."""

    silver: int
    copper: int


@dataclass(frozen=True, slots=True)
class Division:
    """The grants of all workloads.

    - ``ledger``: all grants. ``shared``: CPUs that gold leaves.
    - ``cores``: CPUs kept for each gold workload; ``own``: names of the gold workloads that are confined to theirs.
    - ``refused``: why a workload has no share of the CPUs, by name; ``without_memory``: why its memory does not fit.
    """

    ledger: HostLedger
    shared: CpuSet
    cores: Mapping[str, CpuSet]
    own: frozenset[str]
    refused: Mapping[str, str]
    without_memory: Mapping[str, str] = field(default_factory=dict)


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
    memory_bytes = ledger.capacity.memory_bytes
    system = Amounts(kept, int(SYSTEM_MEMORY_SHARE * memory_bytes))
    ledger, refused, without_memory = _granted(ledger, SYSTEM, QosBand.SYSTEM, system)
    declared = sorted((s for s in everybody if takes_part(s) or reserves_memory(s)), key=_order)
    for spec in declared:
        # On a host of unknown memory size, no reservation can be granted or refused.
        asked_bytes = spec.reserved_memory_bytes if memory_bytes and reserves_memory(spec) else 0
        asked = Amounts(spec.reserved_cpus if takes_part(spec) else 0.0, asked_bytes)
        ledger, no_cpus, no_memory = _granted(ledger, spec.name, QosBand(spec.band or ""), asked)
        refused |= no_cpus
        without_memory |= no_memory
    cores = {held.holder: held.cores for held in ledger.grants if held.band is QosBand.GOLD}
    own = frozenset(
        s.name
        for s in declared
        if s.name in cores and s.touch is Touch.ALL and "cpus" in knobs.get(s.name, frozenset())
    )
    return Division(ledger, ledger.shared_cores, cores, own, refused, without_memory)


def _granted(
    ledger: HostLedger, holder: str, band: QosBand, asked: Amounts
) -> tuple[HostLedger, dict[str, str], dict[str, str]]:
    """Grant as much of ``asked`` as fits: everything, only the CPUs, or only the memory.

    Returns the ledger, and by holder why no CPUs and why no memory were granted.
    """
    cpus, memory, held = Amounts(asked.cpus), Amounts(0.0, asked.memory_bytes), Amounts()
    reasons: dict[Amounts, str] = {}
    for part in (asked, cpus, memory):
        if part == Amounts():
            continue
        result = grant(ledger, CapacityRequest(holder, band, part))
        if not isinstance(result, LedgerRefusal):
            ledger, held = result, part
            break
        reasons[part] = result.reason
    no_cpus = {holder: reasons[cpus]} if asked.cpus and not held.cpus else {}
    lacks_memory = asked.memory_bytes and not held.memory_bytes
    no_memory = {holder: reasons.get(memory) or reasons[asked]} if lacks_memory else {}
    return ledger, no_cpus, no_memory


def _order(spec: WorkloadSpec) -> tuple[int, bool, str]:
    return -spec.priority, spec.band != QosBand.GOLD, spec.name


def way_shares(division: Division, topology: Topology, ways: int) -> dict[int, WayShares]:
    """Ways of each L3 domain that silver and copper may use at most; domains without a restriction are omitted."""
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
    """``wanted``, restricted to the workload's share of the division.

    The policy's settings for batch stay in force within batch's share, since they can only be stricter. If all of the
    policy's CPUs belong to gold, batch gets the same number of CPUs elsewhere. An LRA with ``touch = "batch"`` is never
    narrowed. ``least_bits``: minimum number of bits of a cache mask.
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
        if not cpus and wanted.cpus is not KEEP:
            cpus = _as_many(division, len(wanted.cpus))
        wanted = replace(wanted, cpus=cpus)
    if "llc_masks" not in knobs or not masks:
        return wanted
    return _within_ways(wanted, masks, spec.gives_way, least_bits)


def beside_gold(spec: WorkloadSpec, wanted: Settings, division: Division, knobs: frozenset[str]) -> str:
    """The consequence for an LRA if its CPUs may overlap with gold's; empty if there is none.

    ``wanted``: the policy's settings for it.
    """
    gold = CpuSet.of(cpu for cores in division.cores.values() for cpu in cores)
    if not gold or spec.kind is not Kind.LRA or spec.name in division.cores:
        return ""
    why = (
        'touch = "batch" leaves its CPUs as they are'
        if spec.touch is not Touch.ALL
        else ""
        if "cpus" in knobs
        else "no cpuset can be set here"
    )
    if why:
        return f"it may also run on gold's CPUs {gold}, because {why}"
    if wanted.cpus is KEEP or not (both := wanted.cpus & gold):
        return ""
    kept = over(spec, wanted, division, {}, knobs).cpus
    return f"it has CPUs {kept} instead of the policy's {wanted.cpus}, because {both} are gold's"


def _as_many(division: Division, cpus: int) -> CpuSet:
    """Whole shared cores with at least this many CPUs, the last ones first; all if there are too few."""
    found = CpuSet()
    for core in reversed([core for domain in division.ledger.capacity.domains for core in domain]):
        if len(found) >= cpus:
            break
        if core <= division.shared:
            found = found | core
    return found


def _within_ways(wanted: Settings, masks: Mapping[int, Masks], copper: bool, least_bits: int) -> Settings:
    """``wanted`` with the band's cache masks. A policy's mask for copper is reduced to its part within the band's."""
    had = {} if wanted.llc_masks is KEEP else dict(wanted.llc_masks)
    if had and not copper:
        return wanted  # the policy has separated this LRA's ways from others'
    limits = {domain: each.copper if copper else each.silver for domain, each in masks.items()}
    for domain, mask in had.items():
        common = mask & limits.get(domain, mask)
        limits[domain] = common if common.bit_count() >= least_bits else mask
    return replace(wanted, llc_masks=tuple(sorted(limits.items())))
