"""Turns the protections of all LRAs into settings for every workload.

All batch is treated alike: the strictest protection of any LRA applies to it, as far as its CPU floor allows. Batch
gets the highest-numbered cores, so that a small change moves few cores.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from perphd.admission.arbiter.placement import Cores, cpus_of
from perphd.admission.inference import ladder
from perphd.admission.settings import PolicySettings
from perphd.domain.allocation import (
    IDLE,
    UNTOUCHED,
    Allocation,
    CpuGrant,
    CpuInstrument,
    Settings,
)
from perphd.domain.cpuset import CpuSet
from perphd.domain.policy import HostView, WorkloadView
from perphd.domain.reading import Unavailable, available, value_or
from perphd.domain.topology import Topology
from perphd.domain.units import page_floor_bytes
from perphd.domain.workload import Kind, Touch, WorkloadSpec

LEAST_BATCH_BYTES = 64 << 20
"""Lowest memory.high for batch, whatever the configuration says."""

NEWCOMER = WorkloadView(WorkloadSpec("", Kind.BATCH, ""), None)
"""Placeholder for a batch workload that starts before the next tick. No declared workload has this name."""


def batch_cpus(topology: Topology, cores: int) -> CpuSet:
    """The CPUs of the last ``cores`` usable cores (all hardware threads of each)."""
    return topology.cpus_of(topology.usable_cores[-cores:]) if cores > 0 else CpuSet()


def strictest(grants: Sequence[CpuGrant]) -> CpuGrant | None:
    """The grant that satisfies all of these: fewest batch cores, lowest weight, and exclusive if one of them is.

    None if ``grants`` is empty.
    """
    if not grants:
        return None
    return CpuGrant(
        total_cores=grants[0].total_cores,
        batch_cores=min(g.batch_cores for g in grants),
        batch_weight=min(grants, key=lambda g: g.weight_ratio).batch_weight,
        exclusive=any(g.exclusive for g in grants),
    )


def arbitrate(
    host: HostView,
    lras: Sequence[WorkloadView],
    batch: Sequence[WorkloadView],
    protections: Mapping[str, Allocation],
    settings: PolicySettings,
    placed: Mapping[str, Cores] | None = None,
    lent: Cores = (),
) -> dict[str, Settings]:
    """Settings for every workload; unrestricted workloads get KEEP everywhere. Pure.

    ``placed``: cores of LRAs with exclusive cores; batch gets all other cores. ``lent``: exclusive cores on which
    batch may run in the idle class.
    """
    topology = host.topology
    result = dict.fromkeys([view.spec.name for view in (*lras, *batch)], UNTOUCHED)
    grant = strictest([a.cpu for a in protections.values() if a.cpu.instrument is not CpuInstrument.NONE])
    if placed:
        whole = {view.spec.name for view in lras if view.spec.touch is not Touch.ALL}
        _set_apart(topology, batch, placed, lent, result, whole)
    elif grant is not None:
        _divide_cpus(topology, lras, batch, protections, grant, result)
    _divide_memory(topology, lras, batch, protections, settings, result)
    ladder.divide(host, lras, batch, protections, result)
    return result


def _set_apart(
    topology: Topology,
    batch: Sequence[WorkloadView],
    placed: Mapping[str, Cores],
    lent: Cores,
    result: dict[str, Settings],
    whole: Collection[str],
) -> None:
    """Put every LRA on its own cores, and batch on the remaining and the lent ones.

    ``whole``: LRAs whose CPUs perphd must not set; batch leaves their cores free nevertheless.
    """
    rest = topology.usable
    for name, cores in placed.items():
        cpus = cpus_of(topology, cores)
        rest = rest - cpus
        if name not in whole:
            result[name] = replace(result[name], cpus=cpus)
    for view in batch:
        if lent:
            guest = replace(result[view.spec.name], cpus=rest | cpus_of(topology, lent), cpu_weight=IDLE)
            result[view.spec.name] = guest
        elif rest:
            result[view.spec.name] = replace(result[view.spec.name], cpus=rest)


def _divide_cpus(
    topology: Topology,
    lras: Sequence[WorkloadView],
    batch: Sequence[WorkloadView],
    protections: Mapping[str, Allocation],
    grant: CpuGrant,
    result: dict[str, Settings],
) -> None:
    confined = batch_cpus(topology, grant.batch_cores)
    for view in batch:
        name = view.spec.name
        if grant.batch_cores < grant.total_cores:
            result[name] = replace(result[name], cpus=confined)
        if grant.batch_weight != 100:
            result[name] = replace(result[name], cpu_weight=grant.batch_weight)
    rest = topology.usable - confined
    for view in lras:
        allocation = protections.get(view.spec.name)
        if view.spec.touch is not Touch.ALL:
            continue  # the CPUs in force may be older than the owner's restriction
        if allocation is not None and allocation.cpu.exclusive and rest:
            result[view.spec.name] = replace(result[view.spec.name], cpus=rest)


def _divide_memory(
    topology: Topology,
    lras: Sequence[WorkloadView],
    batch: Sequence[WorkloadView],
    protections: Mapping[str, Allocation],
    settings: PolicySettings,
    result: dict[str, Settings],
) -> None:
    protected = 0
    for view in lras:
        allocation = protections.get(view.spec.name)
        if allocation is not None and allocation.memory_bytes > 0:
            name = view.spec.name
            result[name] = replace(result[name], memory_low_bytes=page_floor_bytes(allocation.memory_bytes))
            protected += allocation.memory_bytes
    if protected == 0 or topology.memory_bytes <= 0:
        return
    reserve = topology.memory_bytes * settings.memory_reserve_pct / 100.0
    rest = max(0.0, topology.memory_bytes - protected - reserve)
    # Leave batch alone if its memory use is unknown: any limit could kill it.
    uses = {v.spec.name: used for v in batch if (used := _used_bytes(v)) is not None}
    total_use = sum(uses.values())
    room = max(0.0, rest - total_use) / max(1, len(uses))
    quantum = max(LEAST_BATCH_BYTES, topology.memory_bytes // 64)
    for view in batch:
        name = view.spec.name
        if name not in uses:
            continue
        # Lower the limit in steps, and never below the working set, to avoid an out-of-memory kill.
        step = uses[name] * (1.0 - settings.memory_step_pct / 100.0)
        floor = max(float(view.spec.min_memory_bytes), float(LEAST_BATCH_BYTES), _working_set_bytes(view))
        fair = uses[name] + room if rest >= total_use else rest * uses[name] / total_use
        wanted = max(fair, step, floor)
        # Round up to coarse quanta, because use fluctuates and the limit should not be rewritten at every tick.
        high = math.ceil(wanted / quantum) * quantum
        result[name] = replace(result[name], memory_high_bytes=page_floor_bytes(high))


def _used_bytes(view: WorkloadView) -> float | None:
    if view.sample is None or isinstance(view.sample.memory_current_bytes, Unavailable):
        return None
    return view.sample.memory_current_bytes


def _working_set_bytes(view: WorkloadView) -> float:
    if view.sample is None:
        return 0.0
    reading = view.sample.memory_working_set_bytes
    return reading if available(reading) else value_or(view.sample.memory_current_bytes, 0.0)
