"""Makes the observations for the models: each LRA's sample with the conditions under which it was taken."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from perphd.admission.arbiter.arbitration import strictest
from perphd.admission.context import (
    batch_is_quiet,
    batch_is_there,
    batch_use_cores,
    cores_per_cpu,
    giving_now,
    lras,
    model_context,
    total_cores,
)
from perphd.admission.detector.gathering import LONGEST_S, merged
from perphd.admission.detector.origin import is_contended
from perphd.admission.inference.domains import protections_beside
from perphd.admission.inference.inferer import untouched
from perphd.admission.inference.ladder import cache_knobs, shields, strictest_cache
from perphd.domain.allocation import Allocation
from perphd.domain.policy import Snapshot, WorkloadView
from perphd.domain.reading import NOT_MEASURED, Reading, available, value_or
from perphd.domain.sample import Sample, is_short, reach_s
from perphd.predictor import Observation

STALLED_PCT = 5.0
"""Percentage points above an LRA's usual memory stalls from which even sleeping batch may be the cause."""


START_S: Final = 3.0
"""Seconds that the start of perphd takes; see ``ObservationMerger``."""
LEARNED_EVENTS: Final = 25.0
"""Minimum number of events per observation. The mean logarithm of a rate from n events is too low by 1 / (2 n), and is
undefined for n = 0.
"""


class ObservationMerger:
    """Makes observations from samples with enough events; samples with few events are merged first.

    If an application answers one request per second, every other sample has none. If samples were learned
    separately, only those with requests would count, and the learned rate would be twice the true rate.

    ``start_s``: seconds after the first tick in which a full host gives no reference performance, because the
    start of perphd fills it. On two CPUs, PostgreSQL answers a third fewer requests during that time.
    """

    def __init__(self, start_s: float = 0.0) -> None:
        self._open: dict[str, Observation] = {}
        self._start_s, self._until_s = start_s, -math.inf

    def of(
        self, snapshot: Snapshot, protections: Sequence[Allocation], batch_idle_cores: float
    ) -> Iterator[tuple[str, Observation]]:
        """The observations of this tick; see ``observations``."""
        if self._start_s > 0.0 and self._until_s == -math.inf:
            self._until_s = snapshot.at_s + self._start_s
        for name, seen in observations(snapshot, protections, batch_idle_cores):
            if (
                seen.contended
                and seen.undisturbed
                and seen.sample.at_s - reach_s(seen.sample) < self._until_s
            ):
                continue
            before = self._open.pop(name, None)
            if not available(seen.sample.work_events):
                yield name, seen
                continue
            whole = seen if before is None else _both(before, seen)
            if (
                value_or(whole.sample.work_events, 0.0) >= LEARNED_EVENTS
                or whole.sample.interval_s >= LONGEST_S
            ):
                yield name, whole
            else:
                self._open[name] = whole


def _both(before: Observation, seen: Observation) -> Observation:
    """Two observations merged; only the later one if conditions changed between them."""
    if _circumstances(before) != _circumstances(seen):
        return seen
    sample, shielded = merged(before.sample, seen.sample), before.shielded and seen.shielded
    return replace(seen, sample=sample, shielded=shielded, count=before.count + 1)


def _circumstances(seen: Observation) -> tuple[object, ...]:
    return (
        seen.allocation,
        seen.undisturbed,
        seen.contended,
        seen.cache_knobs,
        seen.latency_percentile,
        frozenset(seen.sample.quality),
    )


def observations(
    snapshot: Snapshot, protections: Sequence[Allocation], batch_idle_cores: float
) -> Iterator[tuple[str, Observation]]:
    """Name and observation of every LRA with a sample. ``protections``: the allocations in force for all LRAs."""
    nothing = untouched(total_cores(snapshot))
    use = batch_use_cores(snapshot)
    held = any(protection != nothing for protection in protections)
    quiet = available(use) and batch_is_quiet(snapshot, batch_idle_cores, held)
    in_force = strictest([protection.cpu for protection in protections])
    samples = [view.sample for view in lras(snapshot) if view.sample is not None]
    bandwidth, used = _Sums(samples, "mbw_bytes_per_s"), _Sums(samples, "cpu_usage_cores")
    per_cpu, contended = cores_per_cpu(snapshot), is_contended(snapshot.host.account)
    giving = giving_now(snapshot)
    settable_caches = cache_knobs(snapshot.host, giving) if giving else None
    for view in lras(snapshot):
        if view.sample is None or is_short(view.sample, snapshot.period_s):
            continue
        allocation = replace(view.protection, own_ways=0) if view.protection is not None else nothing
        apart = False
        if in_force is not None:
            # Batch is restricted by the most demanding LRA, but its ways and bandwidth only by LRAs that
            # share a cache with this one. The sample was taken under these restrictions.
            own = allocation.cpu.own_cores
            cpu = replace(in_force, exclusive=allocation.cpu.exclusive, own_cores=own)
            apart = own is not None
            ways, pct = strictest_cache(protections_beside(snapshot, view))
            allocation = replace(allocation, cpu=cpu.without_own_cores(), llc_ways=ways, mbw_pct=pct)
        yield (
            view.spec.name,
            Observation(
                view.sample,
                allocation,
                model_context(snapshot, view, view.model),
                shielded=_is_met(view) or shields(allocation, snapshot.host, giving),
                undisturbed=quiet and not allocation.cpu.exclusive and not _is_squeezed(snapshot, view),
                # If every LRA has exclusive cores, batch's remaining cores depend on all of them.
                batch_cores=NOT_MEASURED if apart else use,
                latency_percentile=view.spec.objective.latency_percentile,
                neighbours_bytes_per_s=bandwidth.but(view.spec.name),
                contended=contended,
                cache_knobs=settable_caches,
                neighbours_cores=cpus * per_cpu if available(cpus := used.but(view.spec.name)) else cpus,
            ),
        )


def _is_met(view: WorkloadView) -> bool:
    """True if the LRA meets its absolute objective, so that the cost of batch is acceptable."""
    sample, objective = view.sample, view.spec.objective
    if sample is None:
        return False
    latency = sample.reading(f"latency_{objective.latency_percentile}_ms")
    return objective.is_met(sample.work_rate_per_s, latency)


class _Sums:
    """The sum of a reading over all present LRAs, and over all LRAs except one.

    Batch is excluded, since perphd controls it.
    """

    def __init__(self, samples: Sequence[Sample], reading: str) -> None:
        self._values = {sample.workload: sample.reading(reading) for sample in samples}
        self._lacking = {name: value for name, value in self._values.items() if not available(value)}
        self._total = math.fsum(value for value in self._values.values() if available(value))

    def but(self, workload: str) -> Reading:
        """The sum without this LRA.

        Unavailable if the reading is missing for one of the other LRAs or, without others, for this one.
        """
        own = self._values.get(workload, NOT_MEASURED)
        for name, value in self._lacking.items():
            if name != workload or len(self._values) == 1:
                return value
        return max(self._total - own, 0.0) if available(own) else self._total


def _is_squeezed(snapshot: Snapshot, view: WorkloadView) -> bool:
    """True if the LRA stalls for memory more than usual while batch holds some memory.

    The sample is then not undisturbed.
    """
    if view.sample is None or not batch_is_there(snapshot):
        return False
    stalls = view.sample.memory_some_pct
    if not available(stalls):
        return False
    band = view.model.reference("memory_some_pct", view.sample.load_per_s) if view.model is not None else None
    return stalls >= STALLED_PCT + (band.value - 1.0 if band is not None else 0.0)
