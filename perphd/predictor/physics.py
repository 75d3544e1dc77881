"""What sharing processors does to an LRA, before anything was learned: the prior mean of the Res-Perf model.

A fluid model of weighted fair scheduling. Batch occupies up to ``k`` of ``N`` cores at weight ratio ``w``
(batch : LRA); the LRA wants ``D`` cores and gets the cores without batch whole and its weighted part of the
others. What the rest of the host uses comes off first: it can run anywhere, takes up to half of the cores that
batch is on (greedy work yields to everybody's fair share), and what remains off the free ones.

Two effects that a fluid does not have are added: what is lost on a shared core even to a demoted neighbour
(preemption, migration, cold private caches), and waiting when a thread wakes on an occupied core. Their size
is a prior from a 2-core host with a database and is corrected by what is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perphd.domain.allocation import Allocation
from perphd.domain.policy import ModelContext

SHARING_LOSS = 0.2
"""Share of capacity lost when all of an LRA's time is spent on cores that it shares with demoted batch."""
WAKEUP_DELAY_IDLE = 0.3
"""Growth of delay when every wake-up meets a core that runs idle-class batch ..."""
WAKEUP_DELAY_EQUAL = 1.0
"""... and what is added to it towards equal weights."""
SMT_SPEED = 0.63
"""Speed of a hardware thread whose sibling is busy: two together do 1.26 times what one does alone."""
MAX_QUEUEING = 2.0
"""Most by which queueing alone is expected to multiply delay."""
_MIN_DEMAND_CORES = 0.05
_MAX_LOAD = 0.97

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class CpuGrants:
    """CPU grants as columns: ``free``/``shared`` cores, weight ratio, exclusive flag; all of shape (n,)."""

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
class Expected:
    """Prior expectations, each of shape (n,): work ratio, delay ratio, and the cores that batch gets."""

    work: Floats
    delay: Floats
    batch_cores: Floats


def expect(grants: CpuGrants, context: ModelContext) -> Expected:
    """The prior for every grant under one context. Pure and vectorised; never raises for finite input."""
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
    effective = available * (1.0 - SHARING_LOSS * occupied * occupied)
    speed = _speed(grants, free, per_core * on_shared, demand, context)
    work = np.minimum(demand, effective) / demand * speed

    occupancy = np.where(grants.exclusive, 0.0, batch_demand / total)
    impolite = grants.weight / (0.3 + grants.weight)
    waking = 1.0 + occupancy * (WAKEUP_DELAY_IDLE + WAKEUP_DELAY_EQUAL * impolite)
    load_alone = np.minimum(demand / total, _MAX_LOAD)
    load_now = np.minimum(demand / available, _MAX_LOAD)
    queueing = (1.0 - load_alone) / (1.0 - load_now)
    # Whether load is open (waiting grows without bound) or closed (it grows as work falls, Little's law) is not
    # known here: growth by queueing is bounded, and what demand exceeds supply by is added as a closed loop would.
    delay = waking * np.minimum(queueing, MAX_QUEUEING) / work

    used_free = np.minimum(demand * work, free)
    left = shared - np.where(grants.exclusive, 0.0, demand * work - used_free)
    return Expected(work, np.maximum(delay, 1.0), np.clip(left, 0.0, batch_demand))


def _speed(grants: CpuGrants, free: Floats, shared: Floats, demand: float, context: ModelContext) -> Floats:
    """Speed of the LRA's threads relative to the undisturbed host, where cores have sibling threads; else 1.

    Undisturbed, threads spread over the cores. ``shared``: part of its time that batch is at hand on the same cores: no
    weight keeps it off a sibling. On cores of its own its threads only meet each other, the more the fewer cores.
    """
    if context.threads_per_core <= 1.0:
        return np.ones_like(free)
    slow = 1.0 - SMT_SPEED
    threads = demand * context.threads_per_core
    alone = 1.0 - slow * min(1.0, 2.0 * max(0.0, threads - context.total_cores) / threads)
    wanted = threads * alone
    crowd = np.maximum(wanted, free + (wanted - free) / (2.0 * SMT_SPEED - 1.0))
    running = np.minimum(np.where(wanted > free, crowd, wanted), 2.0 * free)
    split = np.minimum(wanted, 2.0 * SMT_SPEED * free) / np.maximum(running, 1e-9)
    together = alone * (1.0 - slow * np.clip(shared, 0.0, 1.0) * alone)
    return np.clip(np.where(grants.exclusive, split, together) / alone, 0.05, 1.0)


def _without_others(grants: CpuGrants, other_cores: float) -> tuple[Floats, Floats]:
    """Cores with and without batch that are left when the rest of the host has had its part; at least a tenth."""
    on_shared = np.minimum(other_cores, 0.5 * grants.batch)
    free = grants.total - grants.batch
    left_free = np.maximum(free - (other_cores - on_shared), 0.1 * free)
    return grants.batch - on_shared, left_free
