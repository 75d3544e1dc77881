"""The effect of sharing processors on an LRA: the prior mean of the Res-Perf model.

A fluid model of weighted fair scheduling. Batch occupies up to ``k`` of ``N`` cores at weight ratio ``w`` (batch :
LRA). The LRA wants ``D`` cores; it gets all of the cores without batch, and its weighted part of the others.
The use by the rest of the host is subtracted first. It takes up to half of the cores that batch uses (greedy work
yields to the fair shares of others) and the remainder from the free cores.

Two effects that a fluid model lacks are added: the loss on a shared core even with a demoted neighbour
(preemption, migration, cold private caches), and the wait when a thread wakes on an occupied core. Their size
is a prior from a 2-core host with a database, corrected by measurements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perphd.domain.allocation import Allocation
from perphd.domain.policy import ModelContext
from perphd.domain.smt import SIBLING_SPEED

SHARING_LOSS = 0.2
"""Share of capacity lost if an LRA spends all its time on cores shared with demoted batch."""
WAKEUP_DELAY_IDLE = 0.3
"""Growth of delay, as a ratio, if every wake-up meets a core that runs idle-class batch."""
WAKEUP_DELAY_EQUAL = 1.0
"""Further growth of delay, as a ratio, if batch on that core has the same weight as the LRA."""
CROWDING, MOST_CROWDING = 0.35, 1.0
"""Share of the waiting on batch-free cores that occurs although the LRA could use other cores as well.

The waiting is computed as if there were no other cores. The scheduler keeps an LRA's threads on batch-free cores, where
they delay each other, rather than beside demoted batch.
Measured on 2 CPUs: 1.4 times the delay with batch demoted on both. The second value bounds the added delay.
"""
OWN_CORES_GAIN = 1.08
"""Work per CPU second on exclusive cores: no migration, no preemption, warm private caches."""
_PREFERENCE = 0.85
MAX_QUEUEING = 2.0
"""Largest factor on delay by queueing alone."""
_MIN_DEMAND_CORES = 0.05
_MAX_LOAD = 0.97
_TAIL = 2.0
"""Growth of a high percentile of delay per growth of the mean wait."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class CpuGrants:
    """CPU grants as columns of shape (n,): total and batch cores, weight ratio, exclusive flag."""

    total: Floats
    batch: Floats
    weight: Floats
    exclusive: NDArray[np.bool_]

    @classmethod
    def of(cls, allocations: Sequence[Allocation]) -> CpuGrants:
        """The CPU columns of these allocations."""
        grants = [a.cpu for a in allocations]
        return cls(
            np.array([g.total_cores for g in grants], dtype=np.float64),
            np.array([g.batch_cores for g in grants], dtype=np.float64),
            np.array([g.weight_ratio for g in grants], dtype=np.float64),
            np.array([g.exclusive for g in grants], dtype=np.bool_),
        )


@dataclass(frozen=True, slots=True)
class ExpectedPerformance:
    """Prior expectations of shape (n,): work ratio, delay ratio, and the cores that batch gets."""

    work: Floats
    delay: Floats
    batch_cores: Floats


def expect(grants: CpuGrants, context: ModelContext) -> ExpectedPerformance:
    """The prior for every grant under one context. Pure, vectorised; never raises for finite input."""
    demand = max(context.lra_demand_cores, _MIN_DEMAND_CORES)
    shared, free = _without_others(grants, context.other_cores)
    total = shared + free
    batch_demand = np.minimum(max(context.batch_demand_cores, 0.0), shared)
    per_core = batch_demand / np.maximum(shared, 1e-9)
    guaranteed = np.maximum(1.0 / (1.0 + grants.weight), 1.0 - per_core)
    available = np.where(grants.exclusive, free, free + shared * guaranteed)
    available = np.maximum(available, _MIN_DEMAND_CORES)
    got = np.minimum(demand, available)
    on_shared = np.where(grants.exclusive, 0.0, np.maximum(0.0, got - free)) / got
    occupied = per_core * on_shared
    available = np.where(grants.exclusive, OWN_CORES_GAIN * available, available)
    effective = available * (1.0 - SHARING_LOSS * occupied * occupied)
    work = np.minimum(demand, effective) / demand
    speed, enough, beside = _siblings(grants, free, per_core, demand, context)
    work = work * enough * np.sqrt(speed)

    occupancy = np.where(grants.exclusive, 0.0, batch_demand / total)
    impolite = grants.weight / (0.3 + grants.weight)
    servers = context.threads_per_core
    few = _waiting(demand / np.maximum(free, 1e-9), servers * np.maximum(free, 0.1))
    crowded = np.where(
        grants.exclusive | (free <= 0.0), 0.0, np.minimum(CROWDING * _TAIL * few, MOST_CROWDING)
    )
    waking = 1.0 + occupancy * (WAKEUP_DELAY_IDLE + WAKEUP_DELAY_EQUAL * impolite) + crowded
    alone = 1.0 + _TAIL * _waiting(demand / total, servers * total)
    now = 1.0 + _TAIL * _waiting(demand / (available * speed * enough), servers * available)
    queueing = np.maximum(now / alone, 1.0)
    # Whether load is open (waiting grows without bound) or closed (it grows as work falls, Little's law) is
    # unknown here. Therefore growth by queueing is bounded, and excess demand is added as in a closed loop.
    delay = waking * np.minimum(queueing, MAX_QUEUEING) / (work * np.sqrt(speed))

    used_free = np.minimum(demand * work, free)
    taken = np.maximum(demand * work - used_free, demand * beside)
    left = shared - np.where(grants.exclusive, 0.0, np.minimum(taken, shared / (1.0 + grants.weight)))
    return ExpectedPerformance(work, np.maximum(delay, 1.0), _within(left, 0.0, batch_demand))


def _siblings(
    grants: CpuGrants, free: Floats, per_core: Floats, demand: float, context: ModelContext
) -> tuple[Floats, Floats, Floats]:
    """SMT effects: speed of the LRA's threads, feasible part of its work, and share of its time on batch's cores.

    The first two are relative to the undisturbed host; 1, 1 and 0 without SMT. Undisturbed threads spread over the
    cores. Beside batch, the sibling runs batch, and no weight prevents that. On exclusive cores, the LRA's own
    threads share cores more often, the fewer cores there are. Each result has the shape (n,).
    """
    ones = np.ones_like(free)
    if context.threads_per_core <= 1.0:
        return ones, ones, 0.0 * ones
    threads = demand * context.threads_per_core
    alone = _speed(threads * ones, 2.0 * context.total_cores * ones)
    wanted = threads * alone
    own_cpus = 2.0 * np.maximum(free, 0.5)
    running = np.minimum(threads, own_cpus)
    for _ in range(4):
        running = np.minimum(wanted / _speed(running, own_cpus), own_cpus)
    split = _speed(running, own_cpus)
    beside = 1.0 - np.minimum(_PREFERENCE * free, threads) / threads
    together = alone * (1.0 - (1.0 - SIBLING_SPEED) * _within(beside * per_core, 0.0, 1.0))
    speed = np.where(grants.exclusive, split, together) / alone
    enough = np.where(grants.exclusive, np.minimum(1.0, running * split / wanted), 1.0)
    return _within(speed, 0.3, 1.0), _within(enough, 0.02, 1.0), beside


def _speed(threads: Floats, cpus: Floats) -> Floats:
    """Mean speed of running threads on the CPUs of two-way SMT cores; interference grows with the square of
    utilisation.
    """
    full = np.minimum(threads / cpus, 1.0)
    speed: Floats = 1.0 - (1.0 - SIBLING_SPEED) * full * full
    return speed


def _waiting(used: Floats, servers: Floats) -> Floats:
    """Mean wait over service time in an M/M/c queue (Sakasegawa 1977); ``used``: share of busy servers."""
    busy = _within(used, 0.0, _MAX_LOAD)
    wait: Floats = busy ** (np.sqrt(2.0 * (servers + 1.0)) - 1.0) / (servers * (1.0 - busy))
    return wait


def _within(values: Floats, low: float, high: float | Floats) -> Floats:
    """``numpy.clip``, which takes several times as long for a few rows."""
    inside: Floats = np.minimum(np.maximum(values, low), high)
    return inside


def _without_others(grants: CpuGrants, other_cores: float) -> tuple[Floats, Floats]:
    """Cores with batch, and cores without batch, that the rest of the host leaves; each at least a tenth of those
    there are.
    """
    on_shared = np.minimum(other_cores, 0.5 * grants.batch)
    free = grants.total - grants.batch
    left_free = np.maximum(free - (other_cores - on_shared), 0.1 * free)
    return grants.batch - on_shared, left_free
