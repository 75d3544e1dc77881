"""From a snapshot to what a model needs to know around an allocation: who wants how much CPU."""

from __future__ import annotations

from collections.abc import Iterable

from perphd.domain.policy import ModelContext, ResPerfModel, Snapshot, WorkloadView
from perphd.domain.reading import Reading, Unavailable, available, value_or
from perphd.domain.sample import Quality
from perphd.domain.workload import Kind

STARVED_PCT = 20.0
"""CPU pressure of a batch workload above which its use says nothing about what it would like to use."""


def lras(snapshot: Snapshot) -> tuple[WorkloadView, ...]:
    """The LRAs of a snapshot, most important first (then by name)."""
    views = (v for v in snapshot.workloads if v.spec.kind is Kind.LRA)
    return tuple(sorted(views, key=lambda v: (-v.spec.priority, v.spec.name)))


def batches(snapshot: Snapshot) -> tuple[WorkloadView, ...]:
    """The batch workloads of a snapshot, by name."""
    views = (v for v in snapshot.workloads if v.spec.kind is Kind.BATCH)
    return tuple(sorted(views, key=lambda v: v.spec.name))


def total_cores(snapshot: Snapshot) -> int:
    """Usable physical cores, at least 1."""
    return max(1, len(snapshot.host.topology.usable_cores))


def batch_demand_cores(views: Iterable[WorkloadView], total: float) -> float:
    """CPU that batch would use if nobody stopped it, capped at the host.

    A batch workload that waits for CPU wants at least one core a thread; one that does not wait wants what it uses.
    """
    demand = 0.0
    for view in views:
        sample = view.sample
        if sample is None or sample.has(Quality.GONE):
            continue
        usage = value_or(sample.cpu_usage_cores, 0.0)
        if value_or(sample.cpu_some_pct, 0.0) >= STARVED_PCT and available(sample.threads):
            usage = max(usage, sample.threads)
        demand += usage
    return min(demand, total)


def batch_use_cores(views: Iterable[WorkloadView]) -> Reading:
    """CPU that batch used, in cores; Unavailable if any present batch workload's use is."""
    used = 0.0
    for view in views:
        if view.sample is None or view.sample.has(Quality.GONE):
            continue
        usage = view.sample.cpu_usage_cores
        if isinstance(usage, Unavailable):
            return usage
        used += usage
    return used


def other_cores(snapshot: Snapshot) -> float:
    """CPU used by everything that is no workload of perphd's, in cores; 0 where it cannot be told."""
    busy = snapshot.host.busy_cores
    if isinstance(busy, Unavailable):
        return 0.0
    for view in snapshot.workloads:
        if view.sample is not None:
            busy -= value_or(view.sample.cpu_usage_cores, 0.0)
    return min(max(busy, 0.0), 0.9 * total_cores(snapshot))


def model_context(snapshot: Snapshot, lra: WorkloadView, model: ResPerfModel | None) -> ModelContext:
    """The covariates for predictions about one LRA."""
    total = float(total_cores(snapshot))
    sample = lra.sample
    usage = value_or(sample.cpu_usage_cores, 0.0) if sample is not None else 0.0
    if model is not None and sample is not None:
        reference = model.reference("cpu_usage_cores", sample.load_per_s)
        if reference is not None:
            usage = max(usage, reference.value)
    return ModelContext(
        lra_demand_cores=min(usage, total),
        batch_demand_cores=batch_demand_cores(batches(snapshot), total),
        total_cores=total,
        other_cores=other_cores(snapshot),
    )
