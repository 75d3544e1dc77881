"""A synthetic host for trials: two LRAs and batch under a day's load, with correlated noise, carry-over and a known
effect.

Every series is generated twice from the same noise, as it would be in observe and as it would be in enforce all the
time, so the true effect of enforcing on exactly these readings is known. A trial sees a mixture of both that follows
the mode with a delay: the carry-over.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from perphd.domain.workload import Mode
from perphd.trial.analysis import Analysis, analyse
from perphd.trial.design import Metric, Plan, Request, Signal, schedule
from perphd.trial.guard import LraReading
from perphd.trial.record import TrialRecord
from perphd.trial.running import Readings, Running

Array = npt.NDArray[np.float64]
STEP_S: Final = 10.0
DAY_S: Final = 86_400.0
_LRAS: Final = ("db", "web")
METRICS: Final = (
    *(Metric(signal, lra, source) for lra in _LRAS
      for signal, source in ((Signal.DELAY, "latency_p95_ms"), (Signal.WORK, "sli"))),
    Metric(Signal.BATCH, "", "cpu"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class World:
    """The true parameters of one kind of host. Effects are those of enforcing, 0.1 being 10 % more.

    ``follows_load``: how much stronger the effect on delay is at the highest load than at the lowest.
    ``noise``: standard deviation of the correlated noise of log delay; ``noise_s``: its time constant.
    ``carry_over_s``: time constant with which a change of mode takes effect.
    ``harm``: factor on the delay of ``web`` while enforcing, for a policy that is made harmful.
    """

    name: str
    delay: float = 0.0
    work: float = 0.0
    batch: float = 0.0
    follows_load: float = 0.0
    noise: float = 0.10
    noise_s: float = 400.0
    carry_over_s: float = 15.0
    harm: float = 1.0
    hours: float = 24.0
    block_s: float = 600.0


WORLDS: Final = {
    world.name: world
    for world in (
        World("effect", delay=-0.30, work=0.05, batch=-0.15),
        World("effect-by-load", delay=-0.30, work=0.05, batch=-0.15, follows_load=2.0),
        World("short", delay=-0.20, work=0.05, batch=-0.15, hours=6.0),
        World("nothing"),
        World("nothing-noisy", noise=0.3, noise_s=1500.0),
        World("slow-carry-over", delay=-0.30, work=0.05, batch=-0.15, carry_over_s=200.0),
        World("harmful", harm=2.5),
        World("very-harmful", harm=5.0),
    )
}


@dataclass(frozen=True, slots=True)
class Made:
    """The two series of every metric [steps]; ``observe`` and ``enforce`` share their noise."""

    observe: dict[str, Array]
    enforce: dict[str, Array]


@dataclass(frozen=True, slots=True)
class Run:
    """One trial: its results, the true change of every metric in %, its ending, and the number of enforced blocks."""

    analysis: Analysis
    record: TrialRecord
    truth_pct: dict[str, float]
    enforced_blocks: int


def run(world: World, seed: int) -> Run:
    """One whole trial, through the product's own design, guard, record and analysis."""
    request = Request(world.hours, world.block_s, seed=seed)
    began_s = 1_000_000.0
    plan = Plan(
        "made", began_s, world.block_s, request.washout, seed, schedule(request.pairs, seed), METRICS, (),
        request.bound_pct, "made", "0", "bench",
    )  # fmt: skip
    steps = round((plan.blocks + 1) * plan.block_s / STEP_S)
    made = _made(world, steps, seed)
    running = Running(TrialRecord(plan), began_s)
    keep = math.exp(-STEP_S / world.carry_over_s)
    state = 0.0
    enforced: set[int] = set()
    for step in range(steps):
        now_s = began_s + (step + 1) * STEP_S
        mode = running.mode
        if mode is None:
            break
        if mode is Mode.ENFORCE:
            enforced.add(running.number)
        state = keep * state + (1.0 - keep) * (mode is Mode.ENFORCE)
        seen = {m.name: _mixed(made, m.name, step, state) for m in METRICS}
        lras = {
            lra: LraReading(
                seen[f"{lra}.delay"], seen[f"{lra}.work"], seen[f"{lra}.delay"] * seen[f"{lra}.work"]
            )
            for lra in _LRAS
        }
        running.take(now_s - 1e-6, Readings(STEP_S - 1e-3, STEP_S - 1e-3, lras, seen["batch.work"]))
        running.look(now_s)
    return Run(analyse(running.record), running.record, truth_pct(made, plan), len(enforced))


def truth_pct(made: Made, plan: Plan) -> dict[str, float]:
    """The true change of every metric, as if every used reading existed in both modes."""
    per_block = round(plan.block_s / STEP_S)
    washed = math.ceil(plan.washout_s / STEP_S)
    found = {}
    for metric in METRICS:
        means = [
            series[metric.name].reshape(-1, per_block)[1:, washed:].mean(axis=1)
            for series in (made.observe, made.enforce)
        ]
        if metric.signal is Signal.DELAY:
            found[metric.name] = 100.0 * math.expm1(float(np.mean(np.log(means[1]) - np.log(means[0]))))
        else:
            found[metric.name] = 100.0 * (float(means[1].sum() / means[0].sum()) - 1.0)
    return found


def _made(world: World, steps: int, seed: int) -> Made:
    random = np.random.default_rng([seed, sum(world.name.encode())])
    times_s = np.arange(steps) * STEP_S + random.uniform(0.0, DAY_S)
    observe: dict[str, Array] = {}
    enforce: dict[str, Array] = {}
    for lra in _LRAS:
        day = 0.5 - 0.5 * np.cos(2 * np.pi * times_s / DAY_S + random.uniform(0, 1))
        asked = (0.5 + day) * np.exp(0.15 * _correlated(random, steps, 1200.0))
        delay = 5.0 * np.exp(
            0.8 * (asked - 1.0)
            + world.noise * _correlated(random, steps, world.noise_s)
            + 0.15 * random.standard_normal(steps)
        )
        helped = 1.0 + world.follows_load * (day - 0.5)
        harm = math.log(world.harm) if lra == "web" else 0.0
        observe[f"{lra}.delay"] = delay
        enforce[f"{lra}.delay"] = delay * np.exp(math.log1p(world.delay) * helped + harm)
        work = 1000.0 * asked * np.exp(0.05 * random.standard_normal(steps))
        observe[f"{lra}.work"] = work
        enforce[f"{lra}.work"] = work * (1.0 + world.work * day)
    wanted = 6.0 + 2.0 * np.sin(2 * np.pi * times_s / DAY_S) + 1.0 * _correlated(random, steps, 900.0)
    batch = np.maximum(0.0, wanted + 0.3 * random.standard_normal(steps))
    observe["batch.work"] = batch
    enforce["batch.work"] = batch * (1.0 + world.batch)
    return Made(observe, enforce)


def _correlated(random: np.random.Generator, steps: int, time_constant_s: float) -> Array:
    """Noise of variance 1 whose correlation decays with this time constant."""
    keep = math.exp(-STEP_S / time_constant_s)
    shocks = random.standard_normal(steps) * math.sqrt(1.0 - keep * keep)
    found = np.empty(steps)
    last = random.standard_normal()
    for i in range(steps):
        last = keep * last + shocks[i]
        found[i] = last
    return found


def _mixed(made: Made, name: str, step: int, state: float) -> float:
    observe, enforce = made.observe[name][step], made.enforce[name][step]
    return float(observe + state * (enforce - observe))
