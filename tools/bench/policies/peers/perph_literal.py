"""Resource inference as the Perph paper prints it (Algorithm 2, equation 14): kept for comparison, never used to act.

    while |V_R - MIPS| > epsilon:
        for i in CPU, MEM, LLC, MBW:  dV/dr_i = (V(r_i + delta) - V(r_i)) / delta
        theta = theta + t0 / (t1 + iter) dV/dr;   R = R + (theta beta) R;   iter = iter + 1

As printed, the direction is never cleared, the step is multiplicative, R has no bounds, the stop criterion is two-sided
and only the first crossing ends the loop, and nothing is ever given back. Details that the paper does not specify are
chosen as follows: degradation is two consecutive samples below target; R starts at the LRA's use; V is the same
Res-Perf model that perph queries (which favours it: the paper's own update of the model diverges); t0 = t1 = 10, beta =
0.1, a delta of one unit, epsilon 2 % of the target; performance is relative to the target, because otherwise the units
of beta would dominate. ``MAX_ITERATIONS`` limits loops that would not end. Only values that cannot be written are cut
to the host's size; cores are rounded up. As in the paper, the LRA itself gets a cpuset, a memory limit, ways and a
throttle, and batch gets the rest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from perphd.admission.context import batches, lras, model_context, total_cores
from perphd.admission.detector.judge import Target, target_of
from perphd.admission.inference.inferer import untouched
from perphd.admission.settings import PolicySettings
from perphd.domain.allocation import Allocation, CpuGrant, Settings
from perphd.domain.decision import Action, Cause, Decision, Health, Verdict
from perphd.domain.policy import HostView, ModelContext, ResPerfModel, Snapshot, TargetState, WorkloadView
from perphd.domain.reading import NOT_MEASURED, available, value_or
from perphd.domain.signals import Performance, performance
from tools.bench.policies.peers.units import level_of

T0: Final = 10.0
T1: Final = 10.0
BETA: Final = 0.1
EPSILON: Final = 0.02
MAX_ITERATIONS: Final = 200
CONFIRM: Final = 2
MEMORY_UNIT: Final = float(64 << 20)
LEAST_BYTES: Final = float(64 << 20)


@dataclass(frozen=True, slots=True)
class Quota:
    """R: cores, bytes of memory, ways and per cent of bandwidth, as real numbers."""

    cpu: float
    memory_bytes: float
    ways: float
    mbw_pct: float

    def as_tuple(self) -> tuple[float, float, float, float]:
        """The resources in the paper's order."""
        return self.cpu, self.memory_bytes, self.ways, self.mbw_pct


DELTAS: Final = (1.0, MEMORY_UNIT, 1.0, 10.0)


@dataclass(frozen=True, slots=True)
class LiteralMemory:
    """``below``: consecutive samples below target, by LRA; ``quotas``: granted resources; ``iterations``: number in the
    last run.
    """

    below: Mapping[str, int] = field(default_factory=dict)
    quotas: Mapping[str, Quota] = field(default_factory=dict)
    iterations: Mapping[str, int] = field(default_factory=dict)


class PerphLiteralPolicy:
    """See the module."""

    def __init__(self, settings: PolicySettings | None = None) -> None:
        self._settings = settings if settings is not None else PolicySettings()

    @property
    def name(self) -> str:
        """``perph-literal``."""
        return "perph-literal"

    def decide(self, snapshot: Snapshot) -> TargetState:
        """Algorithm 2 for every LRA that is degraded."""
        memory = snapshot.memory if isinstance(snapshot.memory, LiteralMemory) else LiteralMemory()
        below, quotas = dict(memory.below), dict(memory.quotas)
        iterations = dict(memory.iterations)
        decisions: list[Decision] = []
        for view in lras(snapshot):
            name = view.spec.name
            if view.sample is None or view.model is None:
                continue
            perf = performance(view.sample, view.spec.objective.latency_percentile)
            target = target_of(view.spec.objective, view.model, perf, self._settings)
            below[name] = below.get(name, 0) + 1 if _short(target, perf) else 0
            action, reason = Action.HOLD, "on target"
            if below[name] >= CONFIRM:
                start = quotas.get(name) or _start(snapshot.host, view)
                context = model_context(snapshot, view, view.model)
                total = total_cores(snapshot)
                found, count = infer(start, target, view.model, context, total)
                quotas[name], iterations[name] = _bounded(found, snapshot), count
                below[name] = 0
                action, reason = Action.GROW, f"algorithm 2 stopped after {count} iterations"
            decisions.append(_decision(snapshot, view, target, quotas.get(name), action, reason))
        settings = _settings(snapshot, quotas)
        return TargetState(settings, tuple(decisions), memory=LiteralMemory(below, quotas, iterations))


def infer(
    quota: Quota, target: Target, model: ResPerfModel, context: ModelContext, total: int
) -> tuple[Quota, int]:
    """Lines 1-8 of Algorithm 2; the result is not bounded. Returns it with the number of iterations."""
    r = list(quota.as_tuple())
    theta = [0.0, 0.0, 0.0, 0.0]
    for iteration in range(MAX_ITERATIONS):
        points = [tuple(r)] + [
            tuple(value + (DELTAS[j] if i == j else 0.0) for j, value in enumerate(r)) for i in range(4)
        ]
        here, *raised = values([Quota(*point) for point in points], target, model, context, total)
        if abs(here - 1.0) <= EPSILON:
            return Quota(*r), iteration
        for i in range(4):
            gradient = raised[i] - here  # per unit: every delta is one unit
            theta[i] += T0 / (T1 + iteration) * gradient
            r[i] = min(max(r[i] + theta[i] * BETA * r[i], 0.0), 1e15)
    return Quota(*r), MAX_ITERATIONS


def values(
    quotas: list[Quota], target: Target, model: ResPerfModel, context: ModelContext, total: int
) -> list[float]:
    """V divided by the target, for each R."""
    allocations = [_allocation(q, total) for q in quotas]
    if target.work_band is not None and available(target.work) and target.work > 0:
        factor = target.work_band.value / target.work
        return [factor * band.value for band in model.predict_work(allocations, context)]
    if target.delay_band is not None and available(target.delay):
        factor = target.delay / target.delay_band.value
        return [factor / band.value for band in model.predict_delay(allocations, context)]
    return [1.0 for _ in quotas]


def _allocation(quota: Quota, total: int) -> Allocation:
    """The closest allocation that the model knows: an exclusive part for the LRA, and the rest for batch."""
    cores = min(max(1, math.ceil(quota.cpu)), total)
    return Allocation(
        CpuGrant(total, max(1, total - cores), 100, exclusive=cores < total),
        memory_bytes=int(min(quota.memory_bytes, 1e15)),
        llc_ways=int(min(quota.ways, 32.0)),
        mbw_pct=int(min(max(100.0 - quota.mbw_pct, 10.0), 100.0)),
    )


def _short(target: Target, perf: Performance) -> bool:
    work_short = available(target.work) and available(perf.work) and perf.work < target.work
    delay_short = available(target.delay) and available(perf.delay) and perf.delay > target.delay
    return work_short or delay_short


def _start(host: HostView, view: WorkloadView) -> Quota:
    """The LRA's use; half of a resource whose use cannot be read."""
    assert view.sample is not None
    used = value_or(
        view.sample.memory_working_set_bytes, value_or(view.sample.memory_current_bytes, LEAST_BYTES)
    )
    per_core = len(host.topology.usable) / max(1, len(host.topology.usable_cores))
    cpu = max(1.0, value_or(view.sample.cpu_usage_cores, 1.0) / per_core)
    return Quota(cpu, max(used, LEAST_BYTES), max(1.0, host.llc_ways / 2), 50.0)


def _bounded(quota: Quota, snapshot: Snapshot) -> Quota:
    host, total = snapshot.host, total_cores(snapshot)
    return Quota(
        min(max(quota.cpu, 1.0), float(max(1, total - 1))),
        min(max(quota.memory_bytes, LEAST_BYTES), float(host.topology.memory_bytes)),
        min(max(quota.ways, 1.0), float(max(1, host.llc_ways - 1))),
        min(max(quota.mbw_pct, 10.0), 90.0),
    )


def _settings(snapshot: Snapshot, quotas: Mapping[str, Quota]) -> dict[str, Settings]:
    if not quotas:
        return {}
    host, total = snapshot.host, total_cores(snapshot)
    cores, domains = host.topology.usable_cores, [d.domain for d in host.topology.l3_domains]
    result: dict[str, Settings] = {}
    core = way = 0
    bandwidth = 0.0
    for name, quota in quotas.items():
        count = min(math.ceil(quota.cpu), max(1, total - 1 - core))
        mine = Settings(
            cpus=host.topology.cpus_of(cores[core : core + count]), memory_high_bytes=int(quota.memory_bytes)
        )
        core = min(core + count, total - 1)
        if host.llc_ways:
            ways = max(1, min(round(quota.ways), host.llc_ways - 1 - way))
            mask = ((1 << ways) - 1) << min(way, host.llc_ways - ways)
            way = min(way + ways, host.llc_ways - 1)
            mine = replace(mine, llc_masks=tuple((d, mask) for d in domains))
        if host.mba_levels_pct:
            level = level_of(host, round(quota.mbw_pct))
            mine = replace(mine, mba_pct=tuple((d, level) for d in domains))
        bandwidth += quota.mbw_pct
        result[name] = mine
    rest = Settings(cpus=host.topology.cpus_of(cores[core:]))
    if host.llc_ways:
        mask = ((1 << (host.llc_ways - way)) - 1) << way
        rest = replace(rest, llc_masks=tuple((d, mask) for d in domains))
    if host.mba_levels_pct:
        level = level_of(host, round(max(10.0, 100.0 - bandwidth)))
        rest = replace(rest, mba_pct=tuple((d, level) for d in domains))
    result.update({v.spec.name: rest for v in batches(snapshot)})
    return result


def _decision(
    snapshot: Snapshot, view: WorkloadView, target: Target, quota: Quota | None, action: Action, reason: str
) -> Decision:
    total = total_cores(snapshot)
    current = view.protection if view.protection is not None else untouched(total)
    chosen = _allocation(quota, total) if quota is not None else untouched(total)
    verdict = Verdict(
        Health.HEALTHY if action is Action.HOLD else Health.DEGRADED, Cause.UNKNOWN, snapshot.at_s, ()
    )
    known = target if target.known else Target(NOT_MEASURED, NOT_MEASURED)
    return Decision(
        at_s=snapshot.at_s, workload=view.spec.name, verdict=verdict, action=action, target_work=known.work,
        target_delay=known.delay, current=current, chosen=chosen, candidates=(), reason=reason,
        policy="perph-literal",
    )  # fmt: skip
