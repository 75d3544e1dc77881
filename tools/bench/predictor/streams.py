"""Streams of samples with known truth: drifting surfaces, and policies that choose allocations on them.

The analytic surface is a database-like application on one node, in the shapes that published measurements have:
cores by the universal scalability law (with its decline past an optimum), misses per kilo-instruction falling
exponentially with ways (55 programs: median fit error 1.4 %), CPI linear in misses, bandwidth as a queue with a cap,
a memory knee, and work that follows load until capacity is reached. The surface is synthetic: use it to rank learners,
and do not quote its figures as those of an application.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

FEATURES = ("cpus", "memory", "llc_ways", "mbw_pct", "load")
MONOTONE = (0, 1, 1, 1, 0)
"""Required signs: work never falls with memory, ways or bandwidth; cores and load have no sign."""
LOW = np.array([1.0, 0.1, 1.0, 10.0, 0.0])
HIGH = np.array([16.0, 1.0, 11.0, 100.0, 1.0])
STEP = np.array([1.0, 0.1, 1.0, 10.0, 0.0])
"""Bounds and actuator steps; ``memory`` as a share of the data set, ``load`` as a share of the busiest hour."""
NEAR = 0.2
"""Largest distance of queried allocations from the present one, as a share of each range."""


class Surface(Protocol):
    """A surface of the true mean of log-performance."""

    def log_performance(self, x: Floats) -> Floats:
        """Log-performance of rows (n, 5) in the order of FEATURES."""


@dataclass(frozen=True, slots=True)
class Database:
    """The analytic surface.

    Attributes:
        cpi: cycles per instruction without misses.
        knee_ways: scale of the miss curve.
        mpki_floor, mpki_height: misses per kilo-instruction with all ways, and the additional ones with the fewest.
        miss_cycles: stall cycles per miss.
        serial, crosstalk: sigma and kappa of the universal scalability law.
        memory_knee: part of the data set below which reads go to disk.
        demand: instructions per second and unit of load, relative to one core's at CPI 1.
    """

    cpi: float = 0.7
    knee_ways: float = 3.0
    mpki_floor: float = 1.0
    mpki_height: float = 22.0
    miss_cycles: float = 60.0
    serial: float = 0.05
    crosstalk: float = 0.004
    memory_knee: float = 0.25
    demand: float = 9.0

    def log_performance(self, x: Floats) -> Floats:
        """Natural logarithm of MIPS for rows (n, 5); deterministic."""
        cores, memory, ways, mbw, load = (x[:, i] for i in range(5))
        speedup = cores / (1 + self.serial * (cores - 1) + self.crosstalk * cores * (cores - 1))
        misses = self.mpki_floor + self.mpki_height * np.exp(-(ways - 1) / self.knee_ways)
        cached = 1.0 / (1.0 + 0.8 * (self.memory_knee / memory) ** 2)
        cap = (
            1.2 * cores * np.minimum(mbw, 60.0) / 60.0
        )  # GB/s: bandwidth is granted per core, constant above 60 %
        rate = speedup / (self.cpi + 0.3)
        for _ in range(12):  # fixed point: a lower rate causes less traffic and less queueing
            traffic = rate * 2.1 * misses * 64e-3 * 1.3
            queue = 1.0 + (traffic / np.maximum(cap, 1e-3)) ** 2
            now = speedup / (self.cpi + self.miss_cycles * misses / 1000.0 * queue)
            rate = 0.5 * (rate + now)
        capacity = rate * cached
        asked = self.demand * (0.25 + load)
        return np.asarray(np.log(2100.0 * (capacity**-4 + asked**-4) ** -0.25))


DRIFTS: dict[str, tuple[Database, Database]] = {
    "cache and CPI": (Database(), Database(knee_ways=7.0, cpi=0.9)),
    "base CPI": (Database(), Database(cpi=1.1)),
    "cache knee": (Database(), Database(knee_ways=7.0)),
    "memory knee": (Database(), Database(memory_knee=0.6)),
    "scalability": (Database(), Database(serial=0.12, crosstalk=0.012)),
    "relief": (Database(knee_ways=7.0, cpi=0.9), Database()),
    "none": (Database(), Database()),
}
"""Abrupt changes of the application, by name: before and after."""


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """Samples in order: ``x`` (n, 5), noisy ``y`` (n,) in log units, and which surface was true."""

    x: Floats
    y: Floats
    truth: tuple[Surface, ...]

    def near(self, i: int, rng: np.random.Generator, count: int = 300) -> Floats:
        """Points around sample ``i`` that inference might query, load included."""
        span = NEAR * (HIGH - LOW)
        return snap(self.x[i] + rng.uniform(-span, span, (count, len(span))))


def snap(x: Floats) -> Floats:
    """The nearest points of the actuators' lattice, within bounds; load is no actuator and stays."""
    x = np.clip(x, LOW, HIGH)
    on = STEP > 0
    x[:, on] = LOW[on] + np.round((x[:, on] - LOW[on]) / STEP[on]) * STEP[on]
    return x


def everywhere(rng: np.random.Generator, count: int) -> Floats:
    """Random points of the whole lattice, with random load."""
    return snap(rng.uniform(LOW, HIGH, (count, len(LOW))))


def sticky(rng: np.random.Generator, count: int, probing: float = 0.0, hold: int = 40) -> Floats:
    """Rows that a cautious policy visits: one or two knobs move by one or two steps every ``hold`` samples.

    ``probing``: share of samples at which one knob is one step off its position, for that sample only (bounded
    exploration).
    """
    at = snap(0.5 * (LOW + HIGH)[None, :])[0]
    phase = rng.uniform(0, 2 * math.pi)
    rows = np.empty((count, len(LOW)))
    for i in range(count):
        if i % hold == 0 and i:
            for knob in rng.choice(4, size=rng.integers(1, 3), replace=False):
                moved = at[knob] + rng.choice([-2, -1, 1, 2]) * STEP[knob]
                at[knob] = np.clip(moved, LOW[knob], HIGH[knob])
        rows[i] = at
        if probing and rng.random() < probing:
            knob = rng.integers(0, 4)
            rows[i, knob] = np.clip(at[knob] + rng.choice([-1, 1]) * STEP[knob], LOW[knob], HIGH[knob])
        rows[i, 4] = 0.5 + 0.35 * math.sin(2 * math.pi * i / 600 + phase) + 0.05 * rng.normal()
    rows[:, 4] = np.clip(rows[:, 4], 0, 1)
    return rows


def exploring(rng: np.random.Generator, count: int, hold: int = 5) -> Floats:
    """Rows of a policy that jumps randomly over the whole lattice."""
    return np.repeat(everywhere(rng, -(-count // hold)), hold, axis=0)[:count]


def stream(
    before: Surface,
    after: Surface,
    x: Floats,
    at: int,
    rng: np.random.Generator,
    noise: float = 0.03,
    transition: int = 0,
) -> Stream:
    """Samples at rows ``x``; the surface changes at sample ``at``, at once or evenly over ``transition`` samples."""
    old, new = before.log_performance(x), after.log_performance(x)
    part = (
        np.clip((np.arange(len(x)) - at + 1) / max(transition, 1), 0, 1) if at < len(x) else np.zeros(len(x))
    )
    y = (1 - part) * old + part * new + noise * rng.standard_normal(len(x))
    return Stream(x, y, tuple(after if i >= at else before for i in range(len(x))))
