"""Fifty simulated hosts of three kinds with the same ten applications, and the samples of a host's first days.

An application is a world drawn from public data (``tools.bench.predictor.worlds``). Each kind of hardware changes it:
its cache, bus and cores. Each host differs from its kind by ``HOST_SD`` in every loss. The policy is the sticky one of
the predictor bench: one or two knobs move every ``HOLD`` samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from perphd.domain.allocation import Allocation, CpuGrant
from perphd.domain.policy import ModelContext
from perphd.domain.sample import Sample
from perphd.federated.hardware import Hardware
from perphd.predictor import Observation
from tools.bench.predictor.worlds import NOISE, QUIET, THROTTLES, WAYS, WEIGHTS, DrawnWorld

Floats = NDArray[np.float64]

HOSTS: Final = 50
APPLICATIONS: Final = 10
LENGTH: Final = 400
"""Number of samples beside batch of one host and application."""
HOLD: Final = 20
PROBING: Final = 0.1
HOST_SD: Final = 0.05
ASKED: Final = (0, 1, 2, 3, 4, 6, 8, 10, 15, 20, 30, 40, 60, 80, 100, 140, 180, 240, 280, 320, 360)
"""Numbers of samples beside batch after which predictions are compared with the truth."""
NEAR: Final = 24
"""Number of allocations in one comparison, at most two units of every knob away."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Hardware and its effect on an application: factors on losses, and on the ways over which cache fades."""

    hardware: Hardware
    share: float
    cache_loss: float = 1.0
    cache_ways: float = 1.0
    bandwidth_loss: float = 1.0
    beside_loss: float = 1.0
    fairness: float = 1.0


MB: Final = 2**20
KINDS: Final = (
    Kind(Hardware("Intel Xeon Gold 6226R", 16, 1.0, 22 * MB), 0.6),
    Kind(Hardware("Intel Xeon Gold 6248R", 24, 1.0, 36 * MB), 0.24, 0.9, 0.9, 1.1, 0.95, 1.0),
    Kind(Hardware("AMD EPYC 7543", 32, 1.0, 256 * MB), 0.16, 0.35, 0.4, 2.2, 1.8, 0.7),
)
"""Three kinds of hardware; the third follows another law than the others."""


@dataclass(frozen=True, slots=True)
class Place:
    """The present allocation of a policy on a host of ``total`` cores."""

    total: int
    exclusive: bool
    batch_cores: int
    weight: int
    ways: int
    throttle: int

    def moved(self, knob: int, units: int) -> Place:
        """Move one knob by some units, within bounds: batch's cores, its weight, protected ways, its bandwidth."""
        step = max(self.total // 16, 1)
        most = self.total - 1 if self.exclusive else self.total
        return replace(
            self,
            batch_cores=min(max(self.batch_cores + step * units * (knob == 0), 1), most),
            weight=min(max(self.weight + units * (knob == 1), 0), len(WEIGHTS) - 1),
            ways=min(max(self.ways + units * (knob == 2), 0), WAYS - 1),
            throttle=min(max(self.throttle + units * (knob == 3), 0), len(THROTTLES) - 1),
        )

    def allocation(self) -> Allocation:
        """The same as perphd's allocation."""
        weight = 100 if self.exclusive else WEIGHTS[self.weight]
        grant = CpuGrant(self.total, self.batch_cores, weight, self.exclusive)
        return Allocation(grant, llc_ways=self.ways, mbw_pct=THROTTLES[self.throttle])


@dataclass(frozen=True, slots=True)
class Host:
    """One host: its kind, and its worlds by application."""

    name: str
    kind: int
    worlds: tuple[DrawnWorld, ...]

    @property
    def hardware(self) -> Hardware:
        """Its hardware."""
        return KINDS[self.kind].hardware


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """After ``samples`` beside batch: ``NEAR`` nearby allocations, as many anywhere, and true log ratios (2 NEAR,)."""

    samples: int
    context: ModelContext
    allocations: list[Allocation]
    truth: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Days:
    """Observations of a host's first days with an application, and the questions during that time."""

    observations: list[Observation]
    questions: dict[int, Question]


def fleet(seed: int, hosts: int = HOSTS, applications: int = APPLICATIONS) -> list[Host]:
    """The hosts, kinds in blocks."""
    rng = np.random.default_rng([seed, 26])
    worlds = [DrawnWorld.drawn(rng) for _ in range(applications)]
    ends = np.rint(np.cumsum([kind.share for kind in KINDS]) * hosts)
    return [_host(n, int(np.searchsorted(ends, n, side="right")), worlds, rng) for n in range(hosts)]


def _host(number: int, kind: int, worlds: list[DrawnWorld], rng: np.random.Generator) -> Host:
    made, total = KINDS[kind], KINDS[kind].hardware.cores

    def own(factor: float) -> float:
        return factor * math.exp(HOST_SD * float(rng.standard_normal()))

    return Host(
        f"host-{number:02d}",
        kind,
        tuple(
            replace(
                world,
                total=total,
                cache_loss=world.cache_loss * own(made.cache_loss),
                cache_ways=world.cache_ways * own(made.cache_ways),
                bandwidth_loss=world.bandwidth_loss * own(made.bandwidth_loss),
                beside_loss=world.beside_loss * own(made.beside_loss),
                fairness=min(world.fairness * own(made.fairness), 1.2),
            )
            for world in worlds
        ),
    )


def days(host: Host, application: int, seed: int, length: int = LENGTH) -> Days:
    """``QUIET`` undisturbed samples, then ``length`` beside batch."""
    rng = np.random.default_rng([seed, application, int(host.name.rpartition("-")[2])])
    world, total = host.worlds[application], host.hardware.cores
    place = Place(
        total,
        bool(rng.random() < 0.3),
        int(rng.integers(total // 4, total // 2 + 1)),
        int(rng.integers(0, len(WEIGHTS))),
        int(rng.integers(0, 7)),
        int(rng.integers(3, 10)),
    )
    phase = rng.uniform(0, 2 * math.pi)
    seen, questions = [], {}
    for i in range(QUIET + length):
        load = 0.45 + 0.25 * math.sin(2 * math.pi * i / 600 + phase) + 0.02 * float(rng.normal())
        demand = min(max(load, 0.05), 1.0) * total
        if i < QUIET:
            quiet = ModelContext(demand, 0.0, float(total))
            seen.append(
                _observation(i, Allocation(CpuGrant(total, total)), quiet, NOISE * rng.normal(), True)
            )
            continue
        context = ModelContext(demand, float(total), float(total))
        if (i - QUIET) % HOLD == 0 and i > QUIET:
            place = _elsewhere(place, load, rng)
        if i - QUIET in ASKED:
            places = [_near(place, rng) for _ in range(NEAR)] + [_anywhere(total, rng) for _ in range(NEAR)]
            asked = [each.allocation() for each in places]
            questions[i - QUIET] = Question(i - QUIET, context, asked, world.log_ratio(asked, context))
        here = (
            place.moved(int(rng.integers(0, 4)), int(rng.choice([-1, 1])))
            if rng.random() < PROBING
            else place
        )
        truth = float(world.log_ratio([here.allocation()], context)[0])
        seen.append(_observation(i, here.allocation(), context, truth + NOISE * rng.normal(), False))
    return Days(seen, questions)


def _near(place: Place, rng: np.random.Generator) -> Place:
    for knob in range(4):
        place = place.moved(knob, int(rng.integers(-2, 3)))
    return place


def _anywhere(total: int, rng: np.random.Generator) -> Place:
    """An allocation under which physics predicts little loss for the LRA."""
    exclusive = bool(rng.random() < 0.4)
    batch = int(rng.integers(total // 8, total // 2 + 1 if exclusive else total + 1))
    weight, ways, throttle = int(rng.integers(0, 6)), int(rng.integers(0, WAYS)), int(rng.integers(0, 10))
    return Place(total, exclusive, batch, weight, ways, throttle)


def _elsewhere(place: Place, load: float, rng: np.random.Generator) -> Place:
    if rng.random() < 1 / 6:
        place = replace(place, exclusive=not place.exclusive).moved(0, 0)
    else:
        for knob in rng.choice(4, size=int(rng.integers(1, 3)), replace=False):
            place = place.moved(int(knob), int(rng.choice([-2, -1, 1, 2])))
    starved = place.exclusive and place.total - place.batch_cores < 0.5 * load * place.total
    return replace(place, batch_cores=place.total // 2) if starved else place


def _observation(
    i: int, allocation: Allocation, context: ModelContext, log_ratio: float, quiet: bool
) -> Observation:
    sample = Sample(
        "lra", float(i), 1.0, cpu_usage_cores=context.lra_demand_cores, load_per_s=900.0,
        work_rate_per_s=1000.0 * math.exp(log_ratio),
    )  # fmt: skip
    return Observation(sample, allocation, context, quiet)
