"""A model as in a running daemon, with the daemon's operations on it, for cost measurements."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from perphd.agent.rebuilds import Rebuilds
from perphd.agent.records import Records
from perphd.domain.allocation import IDLE, Allocation, CpuGrant, Weight
from perphd.domain.policy import ModelContext
from perphd.domain.sample import Sample
from perphd.predictor import LraModel, Observation, Registry, features
from perphd.predictor.boosted import Boosted
from perphd.predictor.features import cell_key
from perphd.predictor.ogbrt.rebuild import RebuildJob, Rebuilt
from perphd.predictor.physics import CpuGrants, expect

Floats = NDArray[np.float64]

CORES: Final = 16
CONTEXT: Final = ModelContext(6.0, 16.0, float(CORES))
_WEIGHTS: Final[tuple[Weight, ...]] = (IDLE, 6, 12, 25, 50, 100)
CANDIDATES: Final = tuple(
    Allocation(CpuGrant(CORES, cores, weight), llc_ways=ways)
    for cores in range(1, CORES + 1)
    for weight in _WEIGHTS
    for ways in (0, 4)
)[:100]
"""A hundred allocations that inference might evaluate."""
LEARNED: Final = 1500
"""Samples after which cells, reservoir and trees are full."""


@dataclass(frozen=True, slots=True)
class Learnable:
    """One sample in the form for a correction."""

    key: Hashable
    x: Floats
    residual: float
    at_s: float


def observation(i: int) -> Observation:
    """The i-th sample of an LRA beside batch whose allocation moves every 40 samples; the first 20 are undisturbed."""
    rng = np.random.default_rng([7, i])
    held = np.random.default_rng([8, i // 40])
    disturbed = i >= 20
    stall, demand = float(rng.random()), 3.0 + 5.0 * float(rng.random())
    cores = int(held.integers(1, CORES + 1)) if disturbed else CORES
    ways = int(held.integers(0, 8)) if disturbed else 0
    allocation = Allocation(CpuGrant(CORES, cores), llc_ways=ways)
    context = ModelContext(demand, 16.0 if disturbed else 0.0, float(CORES))
    slower = (
        float(expect(CpuGrants.of([allocation]), context).work[0]) * math.exp(-0.8 * stall)
        if disturbed
        else 1.0
    )
    sample = Sample(
        "db", float(i), 1.0,
        cpu_usage_cores=demand, run_delay_cores=0.5, io_some_pct=30.0 * stall, mips=5000.0, cpi=1.2, load_per_s=900.0,
        work_rate_per_s=1000.0 * slower * float(np.exp(0.03 * rng.standard_normal())),
        latency_p95_ms=10.0 / slower * float(np.exp(0.1 * rng.standard_normal())),
    )  # fmt: skip
    return Observation(sample, allocation, context, not disturbed, float(cores) / 2.0)


def taught() -> LraModel:
    """A model with full memories and trusted trees."""
    registry = Registry("ogbrt")
    model = registry.model("db")
    for i in range(LEARNED):
        model.observe(observation(i))
        registry.rebuild_here()
    assert boosted(model).trusted, "the trees do not take part in its answers: they would be measured without"
    return model


def samples(count: int) -> list[Learnable]:
    """The work channel's input of ``count`` consecutive samples."""
    found = []
    for i in range(count):
        seen = observation(LEARNED + i)
        x = features.features([seen.allocation], seen.context)[0]
        key = cell_key(seen.allocation, seen.context)
        found.append(Learnable(key, x, -0.2 + 0.03 * np.sin(i), float(LEARNED + i)))
    return found


def learn(model: LraModel, one: Learnable) -> None:
    """Let one channel learn one sample."""
    boosted(model).update(one.key, one.x, one.residual, one.at_s)


def boosted(model: LraModel) -> Boosted:
    """The correction of the work channel."""
    correction = model.work_correction
    assert isinstance(correction, Boosted)
    return correction


def on_trial(model: LraModel) -> Callable[[int], object]:
    """Learning while a challenger is on trial beside the trees."""
    job = boosted(model).rebuild_job()
    boosted(model).offer(job.run())
    return lambda i: model.observe(observation(LEARNED + i))


def rebuild_steps(count: int) -> tuple[Floats, Floats, Floats]:
    """Cost of rebuilds by the worker to the daemon's loop.

    Returns:
        Wall and CPU seconds for starting them, the same for taking them, (count, 2) each; and the total CPU seconds of
        each thread, an upper bound of the time for which it can keep the interpreter from the loop, (count,). Wall time
        cannot distinguish a blocked loop from a busy machine: beside a single busy process, a thread that only computes
        stood still for 5 to 8 ms, which no account of the kernel explains.
    """
    registry = Registry("ogbrt")
    registry.put("db", taught())
    records = Records(None, lambda: 0.0)
    started, taken, held = [], [], []
    for k in range(count):
        if k:
            registry.put("db", LraModel.from_state(registry.model("db").to_state(), learner="ogbrt"))
        boosted(registry.model("db")).ask_for_rebuild()
        rebuilds = _Watched(registry, records)
        started.append(_spent(rebuilds))
        while not rebuilds.ready:
            time.sleep(0.01)
        taken.append(_spent(rebuilds))
        while not rebuilds.held_s:
            time.sleep(0.001)
        held.append(rebuilds.held_s)
        rebuilds.close()
    return np.array(started), np.array(taken), np.array(held)


class _Watched(Rebuilds):
    """Records the CPU time of its thread, which holds the interpreter only while it computes, never while it waits."""

    held_s = 0.0

    def _answer(self, future: Future[Rebuilt], job: RebuildJob) -> None:
        super()._answer(future, job)
        self.held_s = time.thread_time()


def _spent(rebuilds: Rebuilds) -> tuple[float, float]:
    began, cpu = time.perf_counter(), time.thread_time()
    rebuilds.step(1.0)
    return time.perf_counter() - began, time.thread_time() - cpu
