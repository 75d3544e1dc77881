"""Worlds for the acting model: response surfaces over enforceable allocations, and streams of observations.

There are two kinds. ``SurfaceWorld`` puts the surfaces of ``streams`` under perphd's own instruments. ``DrawnWorld`` is
a random application: every parameter is drawn from the world's seed, within the range of public data. Neither uses the
queueing, sharing or cache formulas of the physics prior.

The draws rest on published facts (without data): the loss of IPC of 55 SPEC programs with 1 instead of 11 ways of a
27.5 MB cache, and the ways over which it fades (metrics.csv of pbbcache/cachesim, fitted here by a (exp(-(w-1)/b) -
..)); latency against load of img-dnn, masstree and memcached, flat to a knee at 70 to 100 % of capacity and then 1.4 to
12 times at one and a half times the load (figure 6 of CLITE, HPCA 2020), which defines how sharply work saturates here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from perphd.domain.allocation import IDLE, Allocation, CpuGrant, Weight
from perphd.domain.policy import ModelContext
from perphd.domain.sample import Sample
from perphd.predictor import Observation
from tools.bench.predictor.node import mysql
from tools.bench.predictor.streams import DRIFTS, Surface

Floats = NDArray[np.float64]

CORES: Final = 16
WAYS: Final = 11
"""Ways of the cache; batch keeps at least one."""
WEIGHTS: Final[tuple[Weight, ...]] = (IDLE, 6, 12, 25, 50, 100)
THROTTLES: Final = tuple(range(10, 101, 10))
NOISE: Final = 0.03
"""Standard deviation of one sample, log units."""
QUIET: Final = 30
"""Number of uncounted undisturbed samples at the beginning, from which the reference is learned."""
_CACHE_LOSS: Final = (0.0, 0.001, 0.008, 0.033, 0.109, 0.343, 0.662)
_CACHE_WAYS: Final = (0.6, 0.9, 1.1, 2.3, 3.3, 5.1, 12.0)
_QUANTILES: Final = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
"""For 55 programs: log of the IPC lost with one way, and, if above 5 %, the ways over which the loss fades."""


class World(Protocol):
    """The true performance of an application relative to undisturbed."""

    def log_ratio(self, allocations: list[Allocation], context: ModelContext) -> Floats:
        """Logarithm of the true work ratio for each allocation, (n,), at most 0."""


@dataclass(frozen=True, slots=True)
class Shares:
    """The LRA's share of the host, by a formula that differs from the prior's. Arrays (n,).

    Args:
        fairness: exponent on batch's weight; 1 is ideal, less favours threads that sleep. thrash: share of the common
            cache that batch takes when it fills the host.
    """

    cores: Floats
    beside: Floats
    ways: Floats
    bandwidth: Floats

    @classmethod
    def of(
        cls,
        allocations: list[Allocation],
        context: ModelContext,
        fairness: float = 1.0,
        thrash: float = 0.7,
        total: int = CORES,
    ) -> Shares:
        """The shares for these allocations on a host of ``total`` cores."""
        grants = [a.cpu for a in allocations]
        batch = np.array([g.batch_cores for g in grants], dtype=np.float64)
        weight = np.array([g.weight_ratio for g in grants]) ** fairness
        alone = np.array([g.exclusive for g in grants])
        protected = np.array([a.llc_ways for a in allocations], dtype=np.float64)
        throttle = np.array([a.mbw_pct for a in allocations]) / 100.0
        busy = np.minimum(context.batch_demand_cores / batch, 1.0)
        part = 1.0 - busy * weight / (1.0 + weight)
        cores = np.where(alone, total - batch, total - batch + batch * part)
        filled = batch * busy / total
        ways = protected + (WAYS - protected) * (1.0 - thrash * filled)
        return cls(np.maximum(cores, 0.5), np.where(alone, 0.0, filled), ways, throttle * filled)


@dataclass(frozen=True, slots=True, eq=False)
class SurfaceWorld:
    """A surface of ``streams`` (or of the simulated node) under perphd's instruments, relative to ``undisturbed``.

    ``memory``: as a share of the data set; it is constant, because perphd's models do not cover memory.
    """

    surface: Surface
    undisturbed: Surface
    memory: float = 0.5

    def log_ratio(self, allocations: list[Allocation], context: ModelContext) -> Floats:
        """See ``World``."""
        shares = Shares.of(allocations, context)
        count = len(allocations)
        load = np.full(count, min(context.lra_demand_cores / CORES, 1.0))
        memory = np.full(count, self.memory)
        rows = np.column_stack(
            [
                np.clip(shares.cores, 1, CORES),
                memory,
                np.clip(shares.ways, 1, WAYS),
                100 - 80 * shares.bandwidth,
                load,
            ]
        )
        rows[:, 0] = _whole(rows[:, 0], self.surface)
        rows[:, 2:4] = np.column_stack([_whole(rows[:, i], self.surface) for i in (2, 3)])
        full = np.array([[CORES, self.memory, WAYS, 100.0, load[0]]])
        found = self.surface.log_performance(rows) - self.undisturbed.log_performance(full)[0]
        return np.asarray(np.minimum(found, 0.0), dtype=np.float64)


def _whole(values: Floats, surface: Surface) -> Floats:
    """The simulated node accepts only whole units."""
    from tools.bench.predictor.node import NodeSurface

    return np.rint(values) if isinstance(surface, NodeSurface) else values


@dataclass(frozen=True, slots=True)
class DrawnWorld:
    """A randomly drawn application, see the module.

    Attributes:
        level: log of its work relative to the original application's.
        cache_loss, cache_ways: see ``_CACHE_LOSS``.
        bandwidth_loss, bandwidth_power: log of the loss by batch's traffic when it fills the host, and its exponent.
        beside_loss: log of the loss with batch on all of its cores (siblings, preemption, private caches). sharpness:
        how sharply work saturates where demand meets capacity. serial, crosstalk: of the universal scalability law, on
        own cores. fairness, thrash: see ``Shares``. closed: clients wait for answers, so every loss reduces work, even
        with spare capacity. total: cores of the host.
    """

    level: float
    cache_loss: float
    cache_ways: float
    bandwidth_loss: float
    bandwidth_power: float
    beside_loss: float
    sharpness: float
    serial: float
    crosstalk: float
    fairness: float
    thrash: float
    closed: bool
    total: int = CORES

    @classmethod
    def drawn(cls, rng: np.random.Generator, level: float = 0.0) -> DrawnWorld:
        """One application."""
        return cls(
            level,
            float(np.interp(rng.random(), _QUANTILES, _CACHE_LOSS)),
            float(np.interp(rng.random(), _QUANTILES, _CACHE_WAYS)),
            float(0.3 * rng.random() ** 2),
            float(rng.uniform(1.0, 3.0)),
            float(0.4 * rng.random() ** 2),
            float(rng.uniform(2.0, 8.0)),
            float(rng.uniform(0.0, 0.06)),
            float(rng.uniform(0.0, 0.003)),
            float(rng.uniform(0.4, 1.0)),
            float(rng.uniform(0.3, 0.9)),
            bool(rng.random() < 0.5),
        )

    def log_ratio(self, allocations: list[Allocation], context: ModelContext) -> Floats:
        """See ``World``."""
        shares = Shares.of(allocations, context, self.fairness, self.thrash, self.total)
        gone = np.exp(-(shares.ways - 1.0) / self.cache_ways) - math.exp(-(WAYS - 1.0) / self.cache_ways)
        loss = self.cache_loss * gone / (1.0 - math.exp(-(WAYS - 1.0) / self.cache_ways))
        loss += self.bandwidth_loss * shares.bandwidth**self.bandwidth_power
        loss += self.beside_loss * shares.beside
        demand = context.lra_demand_cores
        capacity = self._speedup(shares.cores) * np.exp(-loss)
        found = (
            self._served(demand / capacity)
            - self._served(demand / self._speedup(np.array([self.total * 1.0])))[0]
        )
        if self.closed:
            found = found - 0.7 * loss
        return np.asarray(np.minimum(found + self.level, 0.0), dtype=np.float64)

    def _speedup(self, cores: Floats) -> Floats:
        more = np.maximum(cores - 1.0, 0.0)
        return np.asarray(cores / (1 + self.serial * more + self.crosstalk * cores * more), dtype=np.float64)

    def _served(self, used: Floats) -> Floats:
        return np.asarray(-np.log1p(used**self.sharpness) / self.sharpness, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Change:
    """A kind of stream: the world before and after its change."""

    name: str
    before: World
    after: World


def surfaces(node: bool = False) -> list[Change]:
    """The streams of the predictor bench, under perphd's instruments; ``node``: the simulated one as well (slow)."""
    found = [
        Change(name, SurfaceWorld(old, old), SurfaceWorld(new, old))
        for name, (old, new) in DRIFTS.items()
        if name != "relief"  # a higher rate than undisturbed is not contention
    ]
    if node:
        found.append(
            Change("simulated MySQL", SurfaceWorld(mysql(), mysql()), SurfaceWorld(mysql(True), mysql()))
        )
    return found


def drawn(seed: int) -> list[Change]:
    """Three changes of applications drawn from this seed: level only, shape only, both."""
    rng = np.random.default_rng([seed, 1])
    found = []
    for name, level, reshaped in (
        ("level", True, False),
        ("shape", False, True),
        ("level and shape", True, True),
    ):
        before = DrawnWorld.drawn(rng)
        shift = -float(rng.uniform(0.05, 0.4)) if level else 0.0
        after = DrawnWorld.drawn(rng, shift) if reshaped else replace(before, level=shift)
        found.append(Change(f"drawn: {name}", before, after))
    return found


# -- streams --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Place:
    """The present allocation of a policy: an instrument and its units."""

    exclusive: bool
    batch_cores: int
    weight: int
    ways: int
    throttle: int

    def moved(self, knob: int, units: int) -> Place:
        """Move one knob by some units, within bounds: batch's cores, its weight, protected ways, its bandwidth."""
        most = CORES - 1 if self.exclusive else CORES
        return Place(
            self.exclusive,
            min(max(self.batch_cores + units * (knob == 0), 1), most),
            min(max(self.weight + units * (knob == 1), 0), len(WEIGHTS) - 1)
            if not self.exclusive
            else self.weight,
            min(max(self.ways + units * (knob == 2), 0), WAYS - 1),
            min(max(self.throttle + units * (knob == 3), 0), len(THROTTLES) - 1),
        )

    def allocation(self) -> Allocation:
        """The same as perphd's allocation."""
        weight = 100 if self.exclusive else WEIGHTS[self.weight]
        grant = CpuGrant(CORES, self.batch_cores, weight, self.exclusive)
        return Allocation(grant, llc_ways=self.ways, mbw_pct=THROTTLES[self.throttle])


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """Questions after one sample: near allocations with the truth (n,), and pairs (worse, better) by sign."""

    context: ModelContext
    allocations: list[Allocation]
    truth: Floats
    steps: tuple[list[Allocation], list[Allocation]]


@dataclass(frozen=True, slots=True, eq=False)
class LiveStream:
    """Observations in order, the questions after some of them, and the time of the application's change."""

    observations: list[Observation]
    asked: dict[int, Asked]
    changed_at: int


PROBING: Final = 0.1
HOLD: Final = 40
LEAST_SHARE: Final = 0.5
NEAR_UNITS: Final = 2
ASK: Final = 40
"""Number of questions at a time."""
ASK_EVERY: Final = {True: 10, False: 20}
"""Samples between questions, fewer at the beginning and right after the change."""


def live_stream(change: Change, rng: np.random.Generator, length: int) -> LiveStream:
    """One run: ``QUIET`` undisturbed samples, then ``length`` beside batch, the change in the middle.

    The policy is sticky, with exploration: one or two knobs move by one or two units every ``HOLD`` samples, and the
    instrument changes one time in six. It leaves allocations under which physics predicts a loss of more than half of
    the work.
    """
    place = Place(bool(rng.random() < 0.3), int(rng.integers(4, 9)), int(rng.integers(0, 6)), 3, 6)
    at, phase = QUIET + length // 2, rng.uniform(0, 2 * math.pi)
    seen, asked = [], {}
    for i in range(QUIET + length):
        load = float(
            np.clip(0.45 + 0.25 * math.sin(2 * math.pi * i / 600 + phase) + 0.02 * rng.normal(), 0.05, 1.0)
        )
        if i < QUIET:
            allocation, context, truth = (
                Allocation(CpuGrant(CORES, CORES)),
                ModelContext(load * CORES, 0.0, 16.0),
                0.0,
            )
        else:
            if i % HOLD == 0:
                place = _elsewhere(place, load, rng)
            here = (
                place.moved(int(rng.integers(0, 4)), int(rng.choice([-1, 1])))
                if rng.random() < PROBING
                else place
            )
            allocation, context = here.allocation(), ModelContext(load * CORES, float(CORES), float(CORES))
            world = change.before if i < at else change.after
            truth = float(world.log_ratio([allocation], context)[0])
            young = i - QUIET < 60 or 0 <= i - at < 50
            if (i - QUIET) % ASK_EVERY[young] == ASK_EVERY[young] - 1:
                asked[i] = _questions(world, place, context, rng)
        seen.append(
            _observation(i, allocation, context, truth + NOISE * float(rng.standard_normal()), i < QUIET)
        )
    return LiveStream(seen, asked, at)


def _elsewhere(place: Place, load: float, rng: np.random.Generator) -> Place:
    if rng.random() < 1 / 6:
        place = replace(place, exclusive=not place.exclusive).moved(0, 0)
    else:
        for knob in rng.choice(4, size=int(rng.integers(1, 3)), replace=False):
            place = place.moved(int(knob), int(rng.choice([-2, -1, 1, 2])))
    starved = place.exclusive and CORES - place.batch_cores < LEAST_SHARE * load * CORES
    return replace(place, batch_cores=CORES // 2) if starved else place


def _questions(world: World, place: Place, context: ModelContext, rng: np.random.Generator) -> Asked:
    near = []
    for _ in range(ASK):
        there = place
        for knob in range(4):
            there = there.moved(knob, int(rng.integers(-NEAR_UNITS, NEAR_UNITS + 1)))
        near.append(there)
    worse, better = [], []
    for there in near:
        for knob in range(4):
            if knob == 0 and not there.exclusive:
                continue  # fewer cores for batch are not always better for an LRA that may use them, too
            up = there.moved(knob, 1 if knob == 2 else -1)
            if up != there:
                worse.append(there.allocation())
                better.append(up.allocation())
    allocations = [p.allocation() for p in near]
    return Asked(context, allocations, world.log_ratio(allocations, context), (worse, better))


def _observation(
    i: int, allocation: Allocation, context: ModelContext, log_ratio: float, quiet: bool
) -> Observation:
    sample = Sample(
        "lra", float(i), 1.0, cpu_usage_cores=context.lra_demand_cores, load_per_s=900.0,
        work_rate_per_s=1000.0 * math.exp(log_ratio),
    )  # fmt: skip
    return Observation(sample, allocation, context, quiet)
