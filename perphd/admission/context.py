"""From a snapshot to what a model needs to know around an allocation: who wants how much CPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from perphd.domain.policy import ModelContext, ResPerfModel, Snapshot, WorkloadView
from perphd.domain.reading import Reading, Unavailable, available, value_or
from perphd.domain.sample import Quality, Sample
from perphd.domain.smt import SMT_SLOWER
from perphd.domain.workload import Kind

STARVED_PCT = 20.0
"""CPU pressure of a batch workload above which its use says nothing about what it would like to use."""


MOST_GROWTH = 4.0
"""How far beyond the loads that were seen undisturbed an LRA's use of CPU is extrapolated."""


_T = TypeVar("_T")


def once(function: Callable[[Snapshot], _T]) -> Callable[[Snapshot], _T]:
    """Remembers the answer for the last snapshot: every LRA's turn asks the same of one and the same."""
    known: tuple[Snapshot, _T] | None = None

    @wraps(function)
    def asked(snapshot: Snapshot) -> _T:
        nonlocal known
        last = known
        if last is not None and last[0] is snapshot:
            return last[1]
        answer = function(snapshot)
        known = snapshot, answer
        return answer

    return asked


@once
def lras(snapshot: Snapshot) -> tuple[WorkloadView, ...]:
    """The LRAs of a snapshot, most important first (then by name)."""
    views = (v for v in snapshot.workloads if v.spec.kind is Kind.LRA)
    return tuple(sorted(views, key=lambda v: (-v.spec.priority, v.spec.name)))


@once
def batches(snapshot: Snapshot) -> tuple[WorkloadView, ...]:
    """The batch workloads of a snapshot, by name."""
    views = (v for v in snapshot.workloads if v.spec.kind is Kind.BATCH)
    return tuple(sorted(views, key=lambda v: v.spec.name))


@once
def giving(snapshot: Snapshot) -> tuple[WorkloadView, ...]:
    """The batch workloads that are enforced, or all while everything is only observed."""
    everybody = batches(snapshot)
    return tuple(v for v in everybody if v.enforced) or everybody


@once
def giving_now(snapshot: Snapshot) -> tuple[WorkloadView, ...]:
    """Those of them that are there."""
    return tuple(v for v in giving(snapshot) if v.sample is not None)


def total_cores(snapshot: Snapshot) -> int:
    """Usable physical cores, at least 1."""
    return max(1, len(snapshot.host.topology.usable_cores))


def work_of(cores: float, on_cores: float, threads_per_core: float, beside: float = 0.0) -> float:
    """Work of threads that use so much CPU on so many cores, in cores whose hardware threads are all busy.

    ``cores``: CPU time a second in physical cores (of two hardware threads, half a core each); ``beside``: the same of
    others on those cores. Work for a CPU second falls with the square of how busy the hardware threads are, as siblings
    meet: on idle cores it is ``SMT_SLOWER`` times what it is on full ones.
    """
    if threads_per_core <= 1.0 or cores <= 0.0:
        return cores
    full = min((cores + beside) / max(on_cores, 1e-9), 1.0)
    return cores * (SMT_SLOWER - (SMT_SLOWER - 1.0) * full * full)


def cores_per_cpu(snapshot: Snapshot) -> float:
    """Physical cores per logical CPU: readings count CPU seconds of hardware threads, allocations whole cores."""
    return total_cores(snapshot) / max(1, len(snapshot.host.topology.usable))


@once
def batch_is_there(snapshot: Snapshot) -> bool:
    """True if some batch workload exists and has processes, as far as one can tell."""
    samples = (view.sample for view in batches(snapshot))
    return any(s is not None and not s.has(Quality.GONE) and value_or(s.threads, 1.0) > 0 for s in samples)


@once
def batch_demand_cores(snapshot: Snapshot) -> float:
    """CPU that batch would use if nobody stopped it, in physical cores, capped at the host.

    A batch workload that waits for CPU wants at least one CPU a thread; one that does not wait wants what it
    uses; one whose use cannot be read is taken to want a CPU a thread.
    """
    demand = 0.0
    for view in batches(snapshot):
        sample = view.sample
        if sample is None or sample.has(Quality.GONE):
            continue
        threads = value_or(sample.threads, 0.0)
        usage = value_or(sample.cpu_usage_cores, threads)
        if value_or(sample.cpu_some_pct, 0.0) >= STARVED_PCT:
            usage = max(usage, threads)
        demand += usage
    return min(demand * cores_per_cpu(snapshot), float(total_cores(snapshot)))


def batch_is_quiet(snapshot: Snapshot, idle_cores: float, protected: bool) -> bool:
    """True if batch neither uses nor wants CPU.

    Args:
        snapshot: the host now.
        idle_cores: demand below which batch counts as idle.
        protected: batch is held back at present; where stall times cannot be read (no PSI), starved and idle
            look alike, and batch that has threads then counts as not quiet.
    """
    if batch_demand_cores(snapshot) >= idle_cores:
        return False
    return not (protected and _some_batch_is_opaque(snapshot))


@once
def _some_batch_is_opaque(snapshot: Snapshot) -> bool:
    """True if of some batch workload with threads it cannot be told whether it waits for CPU."""
    for view in batches(snapshot):
        sample = view.sample
        if sample is None or sample.has(Quality.GONE):
            continue
        blind = not available(sample.cpu_some_pct) and not sample.has(Quality.FIRST)
        if blind and value_or(sample.threads, 1.0) > 0:
            return True
    return False


@once
def batch_samples(snapshot: Snapshot) -> tuple[Sample, ...]:
    """The samples of all batch workloads that have one, by name."""
    return tuple(v.sample for v in batches(snapshot) if v.sample is not None)


@once
def batch_use_cores(snapshot: Snapshot) -> Reading:
    """CPU that batch used, in physical cores; Unavailable if any present batch workload's use is."""
    used = 0.0
    for view in batches(snapshot):
        if view.sample is None or view.sample.has(Quality.GONE):
            continue
        usage = view.sample.cpu_usage_cores
        if isinstance(usage, Unavailable):
            return usage
        used += usage
    return used * cores_per_cpu(snapshot)


@once
def other_cores(snapshot: Snapshot) -> float:
    """CPU used by everything that is no workload of perphd's, in physical cores; 0 where it cannot be told."""
    busy = snapshot.host.busy_cores
    if isinstance(busy, Unavailable):
        return 0.0
    for view in snapshot.workloads:
        if view.sample is not None:
            busy -= value_or(view.sample.cpu_usage_cores, 0.0)
    return min(max(busy, 0.0) * cores_per_cpu(snapshot), 0.9 * total_cores(snapshot))


@once
def beside_batch_cores(snapshot: Snapshot) -> float:
    """CPU used by all but batch, in physical cores, as far as it is known."""
    used = sum(value_or(v.sample.cpu_usage_cores, 0.0) for v in lras(snapshot) if v.sample is not None)
    return used * cores_per_cpu(snapshot) + other_cores(snapshot)


def _wanted_cores(sample: Sample, usage_cores: float, model: ResPerfModel, siblings: bool) -> float:
    """CPU that an LRA would use undisturbed, in CPU seconds per second: its reference, grown as its load has grown.

    What it uses beside batch is no measure: it is less where it must wait, and more where its threads are slower.
    """
    reference = model.reference("cpu_usage_cores", sample.load_per_s)
    if reference is None:
        return usage_cores
    wanted = reference.value
    work = model.reference("work:sli", sample.load_per_s)
    if work is not None:
        asked = max(value_or(sample.load_per_s, 0.0), value_or(sample.work_rate_per_s, 0.0))
        wanted *= min(max(asked / work.value, 1.0), MOST_GROWTH)
    return max(wanted, usage_cores / (SMT_SLOWER if siblings else 1.0))


def model_context(snapshot: Snapshot, lra: WorkloadView, model: ResPerfModel | None) -> ModelContext:
    """The covariates for predictions about one LRA."""
    total = float(total_cores(snapshot))
    sample = lra.sample
    usage = value_or(sample.cpu_usage_cores, 0.0) if sample is not None else 0.0
    if model is not None and sample is not None:
        usage = _wanted_cores(sample, usage, model, siblings=cores_per_cpu(snapshot) < 1.0)
    return ModelContext(
        lra_demand_cores=min(usage * cores_per_cpu(snapshot), total),
        batch_demand_cores=batch_demand_cores(snapshot),
        total_cores=total,
        other_cores=other_cores(snapshot),
        threads_per_core=1.0 / cores_per_cpu(snapshot),
    )
