"""The workload generator of the published evaluations (3Sigma, chapter 4; DistSched, chapter 5), for one node.

Jobs come from classes with heavy tails between them and log-normal scatter within. Half of the load are SLO jobs with a
deadline of 1.2 to 1.8 times their run time after submission. Requests for memory and CPUs are inflated 2 to 20 and 1 to
4 times for three of four classes. Arrivals are bursty (SCV 4). A history of earlier jobs of each class is known.

Each job follows the distribution of its class, so histories predict it correctly. On real clusters, 8 to 23 % of
estimates are far off. ``overestimated`` is the share of jobs that take a small part of the time of their class, like a
job that fails early or has little to do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from perphd.batch.job import JobSpec
from perphd.forecast.histogram import Histogram, insert

CLASSES: Final = 30
HISTORY: Final = 80
SLACKS: Final = (0.2, 0.4, 0.6, 0.8)
INFLATED: Final = 0.74
GIB: Final = float(1 << 30)
SHORTER: Final = (0.05, 0.3)
"""Share of its class's run time that an over-estimated job takes."""


@dataclass(frozen=True, slots=True)
class Work:
    """One job: its requests and its true needs. ``run_s``: run time alone, with all CPUs that it wants."""

    at_s: float
    spec: JobSpec
    kind: int
    run_s: float
    cpus: float
    memory_bytes: float


@dataclass(frozen=True, slots=True, eq=False)
class Past:
    """The history of one class."""

    run_s: Histogram
    cpus: Histogram
    memory_bytes: Histogram


@dataclass(frozen=True, slots=True, eq=False)
class Generated:
    """Jobs in order of their arrival, and the history of every class."""

    works: tuple[Work, ...]
    past: tuple[Past, ...]


def generated(
    seed: int,
    hours: float,
    load: float,
    cpus: float,
    memory_bytes: float,
    size: float = 1.0,
    overestimated: float = 0.0,
    most: int | None = None,
) -> Generated:
    """Jobs that offer ``load`` times the node over ``hours``: each job counts by its greater share, CPUs or memory.

    ``size``: jobs need this many times the CPUs and memory. ``overestimated``: share of jobs that end early.
    ``most``: maximum number of jobs.
    """
    rng = np.random.default_rng(seed)
    kinds = [_Class(rng, cpus, memory_bytes, size) for _ in range(CLASSES)]
    past = tuple(_past(rng, kind) for kind in kinds)
    works: list[Work] = []
    wanted = load * hours * 3600.0
    offered = 0.0
    while offered < wanted and (most is None or len(works) < most):
        number = int(rng.integers(CLASSES))
        kind = kinds[number]
        run_s, used, held = kind.drawn(rng)
        if overestimated and rng.random() < overestimated:
            run_s *= rng.uniform(*SHORTER)
        offered += run_s * max(used / cpus, held / memory_bytes)
        works.append(Work(0.0, kind.spec, number, run_s, used, held))
    gaps = rng.gamma(0.25, 1.0, len(works))  # squared coefficient of variation: 4
    times = np.cumsum(gaps) / gaps.sum() * hours * 3600.0
    placed = []
    for at_s, work in zip(times, works, strict=True):
        deadline_s = None
        if rng.random() < 0.5:
            deadline_s = float(at_s + work.run_s * (1.0 + rng.choice(SLACKS)))
        spec = JobSpec(
            **{name: getattr(work.spec, name) for name in ("name", "command", "uid", "gid", "directory")},
            cpus=work.spec.cpus,
            memory_bytes=work.spec.memory_bytes,
            deadline_s=deadline_s,
        )
        placed.append(Work(float(at_s), spec, work.kind, work.run_s, work.cpus, work.memory_bytes))
    return Generated(tuple(placed), past)


class _Class:
    """One class: medians from heavy-tailed laws, and its own scatter."""

    def __init__(self, rng: np.random.Generator, cpus: float, memory_bytes: float, size: float) -> None:
        self.run_s = float(np.clip(rng.lognormal(np.log(300.0), 1.0), 60.0, 3600.0))
        self.cpus = size * float(np.clip(rng.lognormal(np.log(0.06 * cpus), 0.6), 0.2, 0.3 * cpus))
        self.memory_bytes = size * float(
            np.clip(rng.lognormal(np.log(0.05 * memory_bytes), 0.8), 5e7, 0.3 * memory_bytes)
        )
        self.sigmas = rng.uniform(0.1, 0.8), rng.uniform(0.05, 0.4), rng.uniform(0.05, 0.4)
        inflated = rng.random() < INFLATED
        asked_cpus = self.cpus * (rng.uniform(1.0, 4.0) if inflated else 1.2)
        asked_bytes = self.memory_bytes * (rng.uniform(2.0, 20.0) if inflated else 1.2)
        self._limits = cpus, memory_bytes
        self.spec = JobSpec(
            name=f"class-{rng.integers(1 << 30)}",
            command=("work",),
            uid=1000,
            gid=1000,
            directory="/",
            cpus=float(min(asked_cpus, 0.9 * cpus)),
            memory_bytes=int(min(asked_bytes, 0.9 * memory_bytes)),
        )

    def drawn(self, rng: np.random.Generator) -> tuple[float, float, float]:
        """Run time, CPUs and memory of one job."""
        a, b, c = (float(np.exp(sigma * rng.standard_normal())) for sigma in self.sigmas)
        cpus, memory_bytes = self._limits
        return (
            min(self.run_s * a, 6 * 3600.0),
            min(self.cpus * b, 0.9 * cpus),
            min(self.memory_bytes * c, 0.9 * memory_bytes),
        )


def _past(rng: np.random.Generator, kind: _Class) -> Past:
    run_s, cpus, memory_bytes = Histogram(), Histogram(), Histogram()
    for _ in range(HISTORY):
        a, b, c = kind.drawn(rng)
        run_s, cpus, memory_bytes = insert(run_s, a), insert(cpus, b), insert(memory_bytes, c)
    return Past(run_s, cpus, memory_bytes)
