"""Computes the covariates of a prediction from a snapshot: the CPU that each workload demands."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from perphd.domain.policy import ModelContext, ResPerfModel, Snapshot, WorkloadView
from perphd.domain.reading import Reading, Unavailable, available, value_or
from perphd.domain.sample import Quality, Sample
from perphd.domain.smt import SMT_SLOWER
from perphd.domain.workload import Kind

STARVED_PCT = 20.0
"""CPU pressure (%) of a batch workload above which its CPU use understates its demand."""


_CPU_KNOBS = frozenset({"cpus", "cpu_weight"})

MOST_GROWTH = 4.0
"""Largest factor by which an LRA's CPU use is extrapolated beyond loads seen undisturbed."""


_T = TypeVar("_T")


def once(function: Callable[[Snapshot], _T]) -> Callable[[Snapshot], _T]:
    """Cache the result for the last snapshot, since every LRA's controller asks for it."""
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
    """The enforced batch workloads, or all batch workloads if none is enforced."""
    everybody = batches(snapshot)
    return tuple(v for v in everybody if v.enforced) or everybody


@once
def giving_now(snapshot: Snapshot) -> tuple[WorkloadView, ...]:
    """The ``giving`` workloads that have a sample."""
    return tuple(v for v in giving(snapshot) if v.sample is not None)


@once
def settable(snapshot: Snapshot) -> frozenset[str]:
    """Those of ``cpus`` and ``cpu_weight`` that can be set on every ``giving`` workload.

    Workloads on which neither can be set (a systemd unit, a missing cgroup) are ignored, so that the others can be
    restricted.
    """
    knobs = [found for v in giving(snapshot) if (found := v.enforceable & _CPU_KNOBS)]
    return frozenset.intersection(*knobs) if knobs else frozenset()


@once
def least_batch_cores(snapshot: Snapshot) -> int:
    """Number of cores that batch always keeps if the host has them; at least 1."""
    return max((math.ceil(v.spec.least_cores) for v in batches(snapshot)), default=1)


@once
def total_cores(snapshot: Snapshot) -> int:
    """Usable physical cores, at least 1."""
    return max(1, len(snapshot.host.topology.usable_cores))


def work_of(cores: float, on_cores: float, threads_per_core: float, beside: float = 0.0) -> float:
    """Work done by threads with this CPU use, in units of a core with all hardware threads busy.

    ``cores``: CPU time per second in physical cores (one of two hardware threads counts half a core). ``on_cores``:
    cores that they run on. ``beside``: CPU use of others on these cores, in the same unit. Work per CPU
    second falls with the square of the utilisation, because SMT siblings interfere: on idle cores it is
    ``SMT_SLOWER`` times that on full cores.
    """
    if threads_per_core <= 1.0 or cores <= 0.0:
        return cores
    full = min((cores + beside) / max(on_cores, 1e-9), 1.0)
    return cores * (SMT_SLOWER - (SMT_SLOWER - 1.0) * full * full)


@once
def cores_per_cpu(snapshot: Snapshot) -> float:
    """Physical cores per logical CPU. Readings count hardware threads' CPU seconds, allocations whole cores."""
    return total_cores(snapshot) / max(1, len(snapshot.host.topology.usable))


@once
def batch_is_there(snapshot: Snapshot) -> bool:
    """True if a batch workload has processes, or may have some because that is unknown."""
    samples = (view.sample for view in batches(snapshot))
    return any(s is not None and not s.has(Quality.GONE) and value_or(s.threads, 1.0) > 0 for s in samples)


@once
def batch_demand_cores(snapshot: Snapshot) -> float:
    """CPU that batch would use if it were unrestricted, in physical cores; at most those of the host.

    A batch workload that waits for CPU demands at least one CPU per thread; otherwise it demands its use. If its use is
    unknown, it demands one CPU per thread.
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
    """True if batch neither uses nor demands CPU.

    Args:
        snapshot: the host now.
        idle_cores: demand below which batch counts as idle.
        protected: batch is restricted at present. Without PSI, starved and idle batch look alike, so batch
            with threads counts as not quiet.
    """
    if batch_demand_cores(snapshot) >= idle_cores:
        return False
    return not (protected and _some_batch_is_opaque(snapshot))


@once
def _some_batch_is_opaque(snapshot: Snapshot) -> bool:
    """True if it is unknown whether a batch workload with threads waits for CPU."""
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
    """The samples of all batch workloads that have one, by workload name."""
    return tuple(v.sample for v in batches(snapshot) if v.sample is not None)


@once
def batch_use_cores(snapshot: Snapshot) -> Reading:
    """CPU used by batch, in physical cores; Unavailable if the use of any present batch workload is unavailable."""
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
    """CPU used outside the managed workloads, in physical cores; 0 if unknown."""
    busy = snapshot.host.busy_cores
    if isinstance(busy, Unavailable):
        return 0.0
    for view in snapshot.workloads:
        if view.sample is not None:
            busy -= value_or(view.sample.cpu_usage_cores, 0.0)
    return min(max(busy, 0.0) * cores_per_cpu(snapshot), 0.9 * total_cores(snapshot))


@once
def idle_cores(snapshot: Snapshot) -> Reading:
    """CPU that nobody uses, in physical cores."""
    busy = snapshot.host.busy_cores
    if isinstance(busy, Unavailable):
        return busy
    return max(0.0, len(snapshot.host.topology.usable) - busy) * cores_per_cpu(snapshot)


@once
def beside_batch_cores(snapshot: Snapshot) -> float:
    """Known CPU use outside batch, in physical cores."""
    used = sum(value_or(v.sample.cpu_usage_cores, 0.0) for v in lras(snapshot) if v.sample is not None)
    return used * cores_per_cpu(snapshot) + other_cores(snapshot)


def _wanted_cores(sample: Sample, usage_cores: float, model: ResPerfModel, siblings: bool) -> float:
    """CPU that an LRA would use if undisturbed (CPU seconds per second): its reference, scaled with its load.

    Its use beside batch misleads: it is lower when the LRA must wait, and higher when SMT slows its threads.
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
    """The covariates of predictions about one LRA."""
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
