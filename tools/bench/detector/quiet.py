"""Days without an antagonist, and dropping loads: every action and every DEGRADED verdict is wrong.

A day takes the node model long to compute, so its steady states are computed once over all loads and looked up. Load
and cost of a request drift as in the policy bench, and readings have the same noise.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

import numpy as np

from perphd.admission.perph import PerphPolicy
from perphd.domain.allocation import Settings
from perphd.domain.decision import Action, Health
from perphd.sim.node.archetypes import archetype
from perphd.sim.node.grant import Grant
from perphd.sim.node.load import Diurnal, Steps
from perphd.sim.node.model import Node
from perphd.sim.node.outcome import Outcome
from tools.bench.detector.injected import MACHINE, play
from tools.bench.policies.driver import Seat
from tools.bench.policies.scene import Actor, Scenario
from tools.bench.policies.world import World

_NAMES: Final = tuple(Outcome.__slots__)
_LOADS: Final = np.geomspace(0.05, 1.6, 96)


class LookedUp(World):
    """A world of one LRA and one idle job with precomputed steady states."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        lra, job = (a.work for a in scenario.actors)
        told = Node(scenario.machine, [lra, job]).solve(
            [[Grant(), Grant()]] * len(_LOADS), np.stack([_LOADS, np.full(len(_LOADS), 0.01)], 1)
        )
        self._table = np.array(
            [[[getattr(told.of(w, i), name) for name in _NAMES] for w in (0, 1)] for i in range(len(_LOADS))]
        )
        super().__init__(scenario, seed)

    def _step(self, dt_s: float) -> dict[str, tuple[Outcome, float]]:
        found = {}
        lra = self._lives[self.scenario.actors[0].name]
        load = lra.actor.load.at(self.now_s) * lra.asked.step(self._random, dt_s)
        need = lra.needed.step(self._random, dt_s)
        at = float(np.interp(load * need, _LOADS, np.arange(len(_LOADS))))
        low = min(int(at), len(_LOADS) - 2)
        rows = (self._table[low] + (at - low) * (self._table[low + 1] - self._table[low])).tolist()
        for index, actor in enumerate(self.scenario.actors):
            outcome = Outcome(*rows[index])
            if index == 0:
                # The table is indexed by CPU demand: a lower cost per request means proportionally more requests.
                rate = outcome.work_per_s / need
                outcome = replace(
                    outcome,
                    work_per_s=rate,
                    offered_per_s=outcome.offered_per_s / need,
                    service_s=outcome.service_s * need,
                    cpi=outcome.cpi * need,
                )
            found[actor.name] = outcome, load
        return found


@dataclass(slots=True)
class Quiet:
    """Counts over ``days``: actions other than HOLD, changes of settings, samples by health."""

    days: float
    actions: int = 0
    moves: int = 0
    health: Counter[Health] = field(default_factory=Counter)
    seconds: float = 0.0
    first: list[str] = field(default_factory=list)


def days(
    count: float, seed: int, day_s: float = 86_400.0, tell: Callable[[Quiet, float], None] = lambda *_: None
) -> Quiet:
    """Diurnal load for a number of days beside an idle job; perph enforces. ``tell``: called after every day."""
    work = archetype("xapian").workload
    full = work.requests.rate_per_s if work.requests is not None else None
    lra = Actor(work.asked(rate_per_s=(full or 1.0) * 0.8), load=Diurnal(0.25, 1.0, day_s))
    idle = Actor(replace(archetype("batch-pi").named("idle"), threads=1), load=Steps(((0.0, 0.01),)))
    scenario = Scenario("quiet", "detector", "", MACHINE, (lra, idle), count * day_s, step_s=1.0)
    world, seat, result = (
        LookedUp(scenario, seed),
        Seat(scenario, PerphPolicy(), 1.0, models=True, attentive=True),
        Quiet(count),
    )
    began = time.perf_counter()
    while world.now_s < scenario.duration_s - 1e-9:
        interval = world.advance(seat.next_in_s(world.now_s))
        snapshot = seat.snapshot(world.samples(interval), world.busy_cores(interval), world.now_s)
        target = seat.decide(snapshot)
        moved = world.apply(target.settings)
        seat.note(target, world.now_s, moved > 0)
        result.moves += moved
        for decision in target.decisions:
            result.health[decision.verdict.health] += 1
            if decision.action is not Action.HOLD:
                result.actions += 1
                result.first += [f"{world.now_s:.0f} s: {decision.action}, {decision.reason}"][
                    : 5 - len(result.first)
                ]
        if world.now_s % day_s == 0.0:
            tell(result, world.now_s / day_s)
    result.seconds = time.perf_counter() - began
    return result


def drops(seed: int) -> tuple[int, int, int]:
    """An open loop whose load drops to a half, a fifth and a twentieth beside a job on its own cores.

    Returns (number of drops, drops judged degraded within 40 s, actions that protect more).
    """
    random = Random(f"drops:{seed}")
    work = archetype(random.choice(("xapian", "img-dnn", "specjbb", "memcached"))).workload
    full = work.requests.rate_per_s if work.requests is not None else None
    falls = (60.0, 160.0, 260.0)
    steps = [(0.0, 1.0)]
    for at_s, share in zip(falls, (0.5, 0.2, 0.05), strict=True):
        steps += [(at_s, share), (at_s + 50.0, 1.0)]
    lra = Actor(work.asked(rate_per_s=(full or 1.0) * random.uniform(0.3, 0.5)), load=Steps(tuple(steps)))
    job = Actor(replace(archetype("batch-pi").workload, threads=4), starts_s=40.0)
    called: set[float] = set()
    grown = 0

    def see(snapshot, decision, outcomes) -> None:  # type: ignore[no-untyped-def]
        nonlocal grown
        for at_s in falls:
            if at_s < snapshot.at_s <= at_s + 40.0:
                grown += decision.action in (Action.GROW, Action.EXPLORE)
                if decision.verdict.health is Health.DEGRADED:
                    called.add(at_s)

    apart = {
        lra.name: Settings(cpus=MACHINE.first_cores(8)),
        job.name: Settings(cpus=MACHINE.first_cores(2, 8)),
    }
    play((lra, job), seed, 320.0, before=apart, see=see)
    return len(falls), len(called), grown
