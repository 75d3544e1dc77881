"""Jobs with deadlines for a cluster, drawn from the facts of 3Sigma and DistSched (CMU-CS-19-107, chapters 3 to 5).

Published: 77 % of the jobs have one task; half of the jobs have a deadline of 1.2, 1.4, 1.6 or 1.8 times their run time
after submission; arrivals have a squared coefficient of variation of 4; the product's predictor is within twice the
true run time for 77 to 92 % of the jobs, and some estimates are far too long; a fifth of the jobs request at
most twice the CPUs that they use, and three of four request more.

Our own assumptions, since no figure is published: 30 kinds of job with log-normal medians (4 minutes, sigma
1), log-normal scatter within a kind, one job in ten ends early, one in thirty takes several times as long;
gang sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from perphd.forecast.history.features import JobDescription
from perphd.sim.cluster.fleet_workload import burst_times

KINDS: Final = 30
USERS: Final = 12
SINGLE_RATIO: Final = 0.77
GANG_MEDIAN: Final = 8.0
GANG_SIGMA: Final = 0.8
SLACKS: Final = (0.2, 0.4, 0.6, 0.8)
DEADLINE_RATIO: Final = 0.5
RUN_MEDIAN_S: Final = 240.0
RUN_BOUNDS_S: Final = (30.0, 3600.0)
SCATTER: Final = (0.1, 0.5)
EARLY_RATIO: Final = 0.1
EARLY: Final = (0.05, 0.3)
LATE_RATIO: Final = 0.03
LATE: Final = (2.0, 4.0)
INFLATED_KINDS: Final = 22
FAIR_KINDS: Final = 6
"""``INFLATED_KINDS`` kinds request far more than they use, ``FAIR_KINDS`` a little more than they use; all other
kinds request less than they use.
"""
INFLATION: Final = (2.5, 10.0)
FAIR: Final = 1.2
SHORT: Final = 0.4
PHASES: Final = 4
PHASE_SIGMAS: Final = (0.3, 0.1)
"""Spread of a task's use of CPUs and memory over its phases."""
GIB: Final = float(1 << 30)


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a task: its share of the work, and its use of CPUs and memory relative to the task's means."""

    work_ratio: float
    cores_ratio: float
    memory_ratio: float


@dataclass(frozen=True, slots=True)
class GangWork:
    """A job of ``tasks`` equal tasks that start together, with its true figures.

    ``run_s``: run time with all the CPUs that the job wants. ``cores``, ``memory_bytes``: mean use of one
    task. ``requested_cores``, ``requested_bytes``: requests of one task, as its user states them.
    ``deadline_s``: latest time of completion; None: best effort.
    """

    number: int
    kind: int
    user: int
    submitted_s: float
    tasks: int
    run_s: float
    cores: float
    memory_bytes: float
    requested_cores: float
    requested_bytes: float
    deadline_s: float | None = None
    phases: tuple[Phase, ...] = ()

    @property
    def work_cpu_s(self) -> float:
        """CPU time of one task."""
        return self.run_s * self.cores

    @property
    def facts(self) -> JobDescription:
        """The facts known at the job's submission."""
        return JobDescription(user=f"user {self.user}", name=f"kind {self.kind}")


@dataclass(frozen=True, slots=True)
class GangShape:
    """Amounts to draw. ``load``: work offered over ``hours``, as a multiple of the cluster. ``most_tasks``:
    largest gang.

    ``cores_median``, ``memory_median``: median use of one task. ``cores_most``, ``memory_most``: size of a
    machine.
    """

    hours: float
    load: float
    most_tasks: int = 32
    cores_median: float = 1.0
    memory_median: float = 2.0 * GIB
    cores_most: float = 16.0
    memory_most: float = 64.0 * GIB


@dataclass(frozen=True, slots=True, eq=False)
class DrawnGangs:
    """Jobs in order of submission, and earlier jobs of the same kinds."""

    works: tuple[GangWork, ...]
    past: tuple[GangWork, ...]


def drawn_gangs(
    shape: GangShape, seed: int, share: Callable[[GangWork], float], past: int = 80
) -> DrawnGangs:
    """Draw jobs that offer ``load``, and ``past`` earlier jobs of each kind.

    ``share``: the part of the cluster that a job takes while it runs, from 0 to 1.
    """
    rng = np.random.default_rng([seed, 3])
    kinds = [_Kind(rng, number, shape) for number in range(KINDS)]
    earlier = tuple(kind.job(rng, shape, n) for kind in kinds for n in range(past))
    order = rng.permutation(len(earlier))
    rng = np.random.default_rng([seed, 4])
    works: list[GangWork] = []
    offered, wanted = 0.0, shape.load * shape.hours * 3600.0
    while offered < wanted:
        work = kinds[int(rng.integers(KINDS))].job(rng, shape, len(works))
        offered += share(work) * work.run_s
        works.append(work)
    placed = []
    for at_s, work in zip(burst_times(rng, len(works), shape.hours * 3600.0), works, strict=True):
        limit_s = None
        if rng.random() < DEADLINE_RATIO:
            limit_s = at_s + work.run_s * (1.0 + float(rng.choice(SLACKS)))
        placed.append(replace(work, submitted_s=at_s, deadline_s=limit_s))
    return DrawnGangs(tuple(placed), tuple(earlier[place] for place in order.tolist()))


class _Kind:
    """Jobs of one name: medians from heavy-tailed laws, and their own scatter."""

    def __init__(self, rng: np.random.Generator, number: int, shape: GangShape) -> None:
        self.number = number
        self.users = rng.integers(0, USERS, int(rng.integers(1, 4)))
        self.run_s = float(np.clip(RUN_MEDIAN_S * math.exp(rng.standard_normal()), *RUN_BOUNDS_S))
        self.cores = min(shape.cores_median * math.exp(0.6 * rng.standard_normal()), shape.cores_most / 4)
        self.memory = min(shape.memory_median * math.exp(0.8 * rng.standard_normal()), shape.memory_most / 4)
        self.sigmas = rng.uniform(*SCATTER), rng.uniform(0.05, 0.4), rng.uniform(0.05, 0.4)
        factors = rng.uniform(*INFLATION, 2)
        if number >= INFLATED_KINDS:
            factors[:] = FAIR if number < INFLATED_KINDS + FAIR_KINDS else SHORT
        self.requested_cores = min(self.cores * float(factors[0]), shape.cores_most)
        self.requested_bytes = min(self.memory * float(factors[1]), shape.memory_most)

    def job(self, rng: np.random.Generator, shape: GangShape, number: int) -> GangWork:
        tasks = 1
        if rng.random() >= SINGLE_RATIO:
            tasks = int(
                np.clip(GANG_MEDIAN * math.exp(GANG_SIGMA * rng.standard_normal()), 2, shape.most_tasks)
            )
        run, cores, memory = (float(math.exp(sigma * rng.standard_normal())) for sigma in self.sigmas)
        chance = rng.random()
        if chance < EARLY_RATIO:
            run *= rng.uniform(*EARLY)
        elif chance < EARLY_RATIO + LATE_RATIO:
            run *= rng.uniform(*LATE)
        factors = np.exp(np.array(PHASE_SIGMAS)[:, None] * rng.standard_normal((2, PHASES)))
        factors /= factors.mean(axis=1, keepdims=True)
        return GangWork(
            number, self.number, int(rng.choice(self.users)), 0.0, tasks,
            float(np.clip(self.run_s * run, 5.0, 4 * RUN_BOUNDS_S[1])),
            min(self.cores * cores, 0.9 * shape.cores_most), min(self.memory * memory, 0.9 * shape.memory_most),
            self.requested_cores, self.requested_bytes, None,
            tuple(Phase(1.0 / PHASES, float(a), float(b)) for a, b in factors.T),
        )  # fmt: skip
