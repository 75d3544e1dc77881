"""Scenarios: a machine, its workloads with times and loads, and their goals."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum
from random import Random
from typing import Final

from perphd.domain.workload import Exploration, Kind, Objective, Touch, WorkloadSpec
from perphd.sim.node.load import LoadTrace, Steps
from perphd.sim.node.machine import Machine
from perphd.sim.node.workload import NodeWorkload
from tools.bench.policies.hostkind import HostKind

NO_STEAL: Final = Steps(((0.0, 0.0),))
GRACE = 1.02
"""A target counts as missed if it is missed by more than 2 %, because a knee is sharp and no policy can stay exactly on
its edge.
"""


@dataclass(frozen=True, slots=True)
class Goal:
    """An LRA's goal in absolute figures, known to every policy; either may be missing."""

    max_p95_ms: float | None = None
    min_work_per_s: float | None = None

    @property
    def objective(self) -> Objective:
        """The goal in the form of an operator's declaration."""
        return Objective(min_work_rate_per_s=self.min_work_per_s, max_latency_ms=self.max_p95_ms)

    def tightened(self, margin: float) -> Goal:
        """The goal that is met with this margin when this goal is just met."""
        delay, rate = self.max_p95_ms, self.min_work_per_s
        return Goal(
            delay / (1.0 + margin) if delay is not None else None,
            rate * (1.0 + margin) if rate is not None else None,
        )

    def scaled(self, work: float, delay: float) -> Goal:
        """The goal of an LRA that alone does ``work`` times its usual work, with ``delay`` times the latency."""
        p95_ms, rate = self.max_p95_ms, self.min_work_per_s
        return Goal(p95_ms * delay if p95_ms is not None else None, rate * work if rate is not None else None)

    def score(self, work_per_s: float, p95_ms: float) -> float:
        """Performance over target, the worse of work and latency; at least 1 meets the target."""
        score = math.inf
        if self.min_work_per_s is not None:
            score = work_per_s / self.min_work_per_s
        if self.max_p95_ms is not None:
            score = min(score, self.max_p95_ms / max(p95_ms, 1e-9))
        return score


@dataclass(frozen=True, slots=True)
class Actor:
    """One workload of a scenario.

    ``goal``: of an LRA. ``load``: factor on its load over time. ``starts_s``, ``ends_s``: time of its presence.
    ``becomes``: (time, workload) pairs into which it turns. ``job``: operations after which a batch job ends.
    ``peak_load_per_s``: the greatest load that the whole machine can carry, if known (some peers need it).
    ``declared``: False hides it from policies: it is neither sampled nor set, and only the host's account shows it.
    ``sli``: False for an LRA without work rate, latency and objective, whose goal only the bench knows. ``phases``: of
    an LRA's program.
    """

    work: NodeWorkload
    goal: Goal | None = None
    load: LoadTrace = field(default_factory=lambda: Steps(()))
    starts_s: float = 0.0
    ends_s: float = math.inf
    becomes: tuple[tuple[float, NodeWorkload], ...] = ()
    job: float | None = None
    priority: int = 100
    peak_load_per_s: float | None = None
    touch: Touch = Touch.ALL
    declared: bool = True
    sli: bool = True
    phases: Phases | None = None

    @property
    def name(self) -> str:
        """The workload's name."""
        return self.work.name

    @property
    def is_lra(self) -> bool:
        """True for an LRA."""
        return self.work.kind is Kind.LRA

    def at(self, now_s: float) -> NodeWorkload:
        """The workload as it is at this time."""
        work = self.work
        for at_s, other in self.becomes:
            if now_s >= at_s - 1e-9:
                work = other
        return work

    def present(self, now_s: float) -> bool:
        """True while it runs, according to the clock."""
        return self.starts_s - 1e-9 <= now_s < self.ends_s - 1e-9

    @property
    def spec(self) -> WorkloadSpec:
        """The workload in the form of an operator's declaration."""
        objective = self.goal.objective if self.goal is not None and self.sli else Objective()
        trials = Exploration.ALL if self.touch is Touch.ALL else Exploration.BATCH
        return WorkloadSpec(
            self.name, self.work.kind, f"/bench/{self.name}", priority=self.priority, objective=objective,
            touch=self.touch, exploration=trials,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Phases:
    """Variation of a program's own cycles per instruction: ``cov`` and autocorrelation ``rho`` of means over a second.

    Over phases of programs (10^9 instructions) a CoV of .19 is the median and .61 the 90th percentile of 36 SPEC
    programs, and rho .74 the median.
    """

    cov: float
    rho: float = 0.74

    def step(self, level: float, random: Random, dt_s: float) -> float:
        """The state ``dt_s`` seconds after ``level`` (standard normal)."""
        keep = math.exp(dt_s * math.log(self.rho))
        return keep * level + math.sqrt(1.0 - keep * keep) * random.gauss(0.0, 1.0)

    def factor(self, level: float) -> float:
        """The factor on cycles in this state; 1 on average."""
        variance = math.log(1.0 + self.cov * self.cov)
        return math.exp(math.sqrt(variance) * level - variance / 2.0)


class Noise(StrEnum):
    """Kinds of measurement noise."""

    PLAIN = "plain"  # 6 % on a quarter of a second's latencies, little on the processor's counters, none on the rest
    COUNTED = (
        "counted"  # counting noise: the uncertainty of a rate or percentile from n events, on every channel
    )


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario. ``family`` groups scenarios in the report; ``about`` is one sentence.

    ``patience_s``: time after which clients of an open loop abandon waiting requests. ``count_from_s``: start of the
    count of violations and throughput, after an undisturbed warm-up without batch. ``oracle``: compute the optimum.
    ``partition``: also search disjoint parts for every workload (CLITE's space). ``step_s``: resolution of the physics.
    ``kind``: of host: its measurements and settings. ``only``: policies that run it, by name (empty: all).
    ``most_seeds``: maximum number of runs of each policy. ``off_grid_s``: arrivals, departures and changes come later
    by a random time below this, drawn by each seed, so that no policy's ticks directly follow them. ``noise``: kind of
    measurement noise. ``steal``: share of every CPU's time that the hypervisor takes. ``luck``: the scenario whose
    random numbers it shares, as its twin.
    """

    name: str
    family: str
    about: str
    machine: Machine
    actors: tuple[Actor, ...]
    duration_s: float
    patience_s: float = 0.2
    count_from_s: float = 0.0
    oracle: bool = True
    partition: bool = False
    step_s: float = 0.25
    kind: HostKind = HostKind.METAL
    only: tuple[str, ...] = ()
    most_seeds: int = 100
    off_grid_s: float = 0.0
    noise: Noise = Noise.PLAIN
    steal: LoadTrace = NO_STEAL
    luck: str = ""

    @property
    def drawn_as(self) -> str:
        """The name from which random numbers are seeded."""
        return self.luck or self.name

    def machine_at(self, now_s: float) -> Machine:
        """The machine with the speed that the hypervisor leaves at this time."""
        share = self.steal.at(now_s)
        return replace(self.machine, ghz=self.machine.ghz * (1.0 - share)) if share > 0.0 else self.machine

    @property
    def accounted(self) -> bool:
        """True if policies are given the account of the whole host."""
        strangers = self.steal is not NO_STEAL or any(not a.declared for a in self.actors)
        return strangers or self.noise is Noise.COUNTED

    def tightened(self, margin: float) -> Scenario:
        """The same with goals that are met with this margin when the present ones are just met."""
        actors = tuple(
            replace(a, goal=a.goal.tightened(margin) if a.goal is not None else None) for a in self.actors
        )
        return replace(self, actors=actors)

    def drawn(self, seed: int) -> Scenario:
        """The scenario of this seed, with every arrival, departure and change moved."""
        if not self.off_grid_s:
            return self
        random = Random(f"{self.drawn_as}:{seed}:off the grid")

        def later(actor: Actor) -> Actor:
            come_s, go_s = (random.random() * self.off_grid_s for _ in range(2))
            return replace(
                actor,
                starts_s=actor.starts_s + come_s if actor.starts_s > 0.0 else 0.0,
                ends_s=actor.ends_s + go_s,
                becomes=tuple((at_s + come_s, work) for at_s, work in actor.becomes),
            )

        return replace(self, actors=tuple(later(actor) for actor in self.actors), off_grid_s=0.0)

    def counted(self) -> Scenario:
        """The same with counting noise on every channel, and with no event on the grid of any policy's ticks."""
        return replace(self, name=f"{self.name}/counted", noise=Noise.COUNTED, off_grid_s=1.0)

    @property
    def lras(self) -> tuple[Actor, ...]:
        """The LRAs, in order."""
        return tuple(a for a in self.actors if a.is_lra)

    @property
    def batch(self) -> tuple[Actor, ...]:
        """The batch workloads that policies know, in order."""
        return tuple(a for a in self.actors if not a.is_lra and a.declared)
