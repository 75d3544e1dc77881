"""Effect of load forecasts on LRAs and batch, for load in waves beside batch that leaves resources idle."""

from __future__ import annotations

from dataclasses import dataclass, replace

from perphd.admission.perph import PerphPolicy
from perphd.admission.settings import PolicySettings
from perphd.domain.decision import Action
from perphd.sim.node.archetypes import archetype
from perphd.sim.node.load import Diurnal, LoadTrace, Steps
from tools.bench.detector.injected import MACHINE
from tools.bench.policies.driver import run
from tools.bench.policies.scenarios import service
from tools.bench.policies.scene import GRACE, Actor, Scenario

LENGTH_S = 1200.0
COUNTED_FROM_S = 600.0


@dataclass(frozen=True, slots=True)
class Waves:
    """Share of the counted time with a missed target, batch's work per second, number of steps taken because of a
    forecast.
    """

    missed: float
    batch: float
    prepared: int


def traces() -> dict[str, LoadTrace]:
    """Spikes every two minutes, and a day compressed to five minutes."""
    spikes = [(0.0, 1.0)]
    for n in range(int(LENGTH_S / 120)):
        spikes += [(120.0 * n + 70.0, 1.9), (120.0 * n + 110.0, 1.0)]
    return {"spikes": Steps(tuple(spikes)), "short days": Diurnal(0.5, 1.9, 300.0)}


def waves(trace: LoadTrace, seed: int, forecast: bool, threads: int = 12) -> Waves:
    """Run perph with a service under such a load beside a compute job."""
    lra = service(MACHINE, "xapian", 0.45, load=trace)
    job = Actor(replace(archetype("batch-pi").workload, threads=threads), starts_s=30.0)
    scenario = Scenario("waves", "detector", "", MACHINE, (lra, job), LENGTH_S, step_s=0.5)
    settings = PolicySettings(forecast=forecast)
    prepared = 0

    def watch(_: object, target: object) -> None:
        nonlocal prepared
        for decision in target.decisions:  # type: ignore[attr-defined]
            prepared += decision.action is Action.GROW and "spike is expected" in decision.reason

    result = run(scenario, PerphPolicy(settings), 1.0, seed, models=True, watch=watch)
    counted = [r.interval.outcomes for r in result.rounds if r.interval.at_s > COUNTED_FROM_S]
    assert lra.goal is not None
    missed = sum(
        lra.goal.score(o[lra.name].work_per_s, o[lra.name].p95_ms) * GRACE < 1.0 for o in counted
    ) / len(counted)
    return Waves(missed, sum(o[job.name].work_per_s for o in counted) / len(counted), prepared)
