"""Compares the fleet's model of perphd on a node with perphd's controller on the detailed node.

python -m tools.bench.fleet.agents --out out/bench/agents [--seeds 48] [--processes 2]

A co-location has two to five services of the fleet's workload on a node of 128 CPUs. They request 8 to 45 % of it. Two
to six batch pods arrive at random times within 90 s and together have 0.2 to 1 threads per CPU. The controller (policy
``perph`` with its models, counting noise on every channel) judges each service by its performance at that load without
batch, with the default tolerances. The comparison covers, over the 180 s from the first possible arrival:

    missed    share of (service, time) in which a target is missed
    given     batch work over that without control

Each seed has one file; existing files are not computed again.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from perphd.admission.perph import PerphPolicy
from perphd.domain.workload import Objective
from perphd.sim.cluster.contention import Conditions, NodeModel
from perphd.sim.cluster.division import Floats
from perphd.sim.cluster.fleet_workload import FLEET_NODE, batch_type, service_type
from perphd.sim.cluster.node_agents import GIVEN_RATIO, GRACE, MISSED_RATIO, NodeAgents, scores
from perphd.sim.node.grant import Grant
from perphd.sim.node.model import Node
from perphd.sim.node.population import population
from perphd.sim.node.workload import NodeWorkload
from tools.bench.policies.driver import run
from tools.bench.policies.scene import Actor, Goal, Noise, Scenario

FROM_S: Final = 30.0
ARRIVALS_S: Final = 90.0
LENGTH_S: Final = 210.0
PERIOD_S: Final = 5.0
STEP_S: Final = 1.0
ROUNDS: Final = 40


@dataclass(frozen=True, slots=True)
class Colocation:
    """The workloads: programs with their full load, and the arrival times of batch (services: 0)."""

    services: tuple[NodeWorkload, ...]
    batch: tuple[NodeWorkload, ...]
    starts_s: tuple[float, ...]

    def segments(self) -> list[tuple[float, float, int]]:
        """(from, to, number of batch pods present) over the counted time; batch is in order of arrival."""
        bounds = [FROM_S, *self.starts_s, LENGTH_S]
        return [
            (begin, end, there)
            for there, (begin, end) in enumerate(itertools.pairwise(bounds))
            if end > begin
        ]


@dataclass(frozen=True, slots=True)
class Fared:
    """One co-location by one model. ``missed_free``: without control. ``needed``: share of (service, time) on a node
    where some service would miss its target without control.
    """

    missed: float
    given: float
    missed_free: float
    needed: float = 0.0


def colocation(seed: int) -> Colocation:
    """The co-location of a seed."""
    rng = np.random.default_rng([seed, 41])
    count, jobs = int(rng.integers(2, 6)), int(rng.integers(2, 7))
    asked = np.maximum(rng.dirichlet(np.ones(count)) * rng.uniform(0.08, 0.45) * FLEET_NODE.cpus, 0.5)
    threads = np.round(rng.dirichlet(np.ones(jobs)) * rng.uniform(0.2, 1.0) * FLEET_NODE.cpus)
    services = []
    for n, cores in enumerate(asked.tolist()):
        work = service_type(rng, f"s{n}", FLEET_NODE)
        assert work.requests is not None
        assert work.requests.rate_per_s is not None
        services.append(work.asked(rate_per_s=work.requests.rate_per_s * cores))
    batch = [
        replace(batch_type(rng, f"b{n}", FLEET_NODE), threads=max(1, int(t)))
        for n, t in enumerate(threads.tolist())
    ]
    return Colocation(
        tuple(services), tuple(batch), tuple(sorted(rng.uniform(FROM_S, FROM_S + ARRIVALS_S, jobs)))
    )


def detailed(seed: int) -> Fared:
    """The controller on the detailed node."""
    here = colocation(seed)
    objective = Objective()
    alone = Node(FLEET_NODE, here.services).solve([Grant()] * len(here.services)).all()
    goals = [
        Goal(
            told.p95_ms * (1.0 + objective.delay_tolerance_pct / 100.0),
            told.work_per_s * (1.0 - objective.tolerance_pct / 100.0),
        )
        for told in alone
    ]
    lras = [Actor(work, goal) for work, goal in zip(here.services, goals, strict=True)]
    jobs = [Actor(work, starts_s=at_s) for work, at_s in zip(here.batch, here.starts_s, strict=True)]
    scenario = Scenario(
        f"agents-{seed}", "agents", "a random co-location", FLEET_NODE, (*lras, *jobs), LENGTH_S,
        count_from_s=FROM_S, step_s=STEP_S, oracle=False, noise=Noise.COUNTED,
    )  # fmt: skip
    result = run(scenario, PerphPolicy(), PERIOD_S, seed, models=True, attentive=True)
    alone_s = dict(zip((w.name for w in here.batch), _alone_s(here.batch), strict=True))
    missed = seconds = work = 0.0
    for item in result.rounds:
        interval = item.interval
        if interval.at_s <= FROM_S:
            continue
        seconds += interval.seconds
        for actor, goal in zip(lras, goals, strict=True):
            told = interval.outcomes[actor.name]
            missed += interval.seconds * (goal.score(told.work_per_s, told.p95_ms) < 1.0 / GRACE)
        for name, each_s in alone_s.items():
            if name in interval.outcomes:
                work += interval.outcomes[name].work_per_s * each_s * interval.seconds
    free = missed_free = 0.0
    for begin, end, there in here.segments():
        people = [*here.services, *here.batch[:there]]
        told_all = Node(FLEET_NODE, people).solve([Grant()] * len(people)).all()
        for told, goal in zip(told_all, goals, strict=False):
            missed_free += (end - begin) * (goal.score(told.work_per_s, told.p95_ms) < 1.0 / GRACE)
        for told, job in zip(told_all[len(goals) :], here.batch, strict=False):
            free += told.work_per_s * alone_s[job.name] * (end - begin)
    return Fared(missed / seconds / len(lras), work / free, missed_free / (LENGTH_S - FROM_S) / len(lras))


def cheap(seed: int) -> Fared:
    """The fleet's model of the same."""
    here = colocation(seed)
    people = population([*here.services, *here.batch])
    agents = NodeAgents(Objective())
    count = len(here.services)
    missed = given = free = missed_free = needed = 0.0
    for begin, end, there in here.segments():
        model = NodeModel(FLEET_NODE, people, 1)
        kind = np.arange(count + there)
        node, load, weight = np.zeros_like(kind), np.ones(len(kind)), np.full(len(kind), 100.0)
        s = slice(0, count)
        undisturbed = agents.undisturbed(model, node[s], kind[s], load[s], weight[s])
        balance = model.started(kind, load)
        told_free = model.evaluate(node, kind, load, weight, balance, rounds=ROUNDS)
        held = agents.held(model, node, kind, load, weight, balance, undisturbed)
        told = model.evaluate(node, kind, load, weight, balance, held.control, rounds=ROUNDS)
        length = end - begin
        settled = _missed(told, undisturbed, count)
        missed += length * (max(settled, MISSED_RATIO) if held.needed[0] > 0 else settled)
        missed_free += length * _missed(told_free, undisturbed, count)
        needed += length * float(held.needed[0])
        alone_s = model.alone_s[count : count + there]
        ratio = GIVEN_RATIO if held.needed[0] > 0 else 1.0
        given += length * ratio * float(told.rate[count:] @ alone_s)
        free += length * float(told_free.rate[count:] @ alone_s)
    total = LENGTH_S - FROM_S
    return Fared(missed / total, given / free, missed_free / total, needed / total)


def _missed(told: Conditions, undisturbed: Conditions, count: int) -> float:
    mine = Conditions(*(getattr(told, name)[:count] for name in Conditions.__slots__))
    return float((scores(mine, undisturbed, Objective()) < 1.0 / GRACE).mean())


def _alone_s(batch: Sequence[NodeWorkload]) -> list[float]:
    model = NodeModel(FLEET_NODE, population(list(batch)), 1)
    result: list[float] = model.alone_s.tolist()
    return result


def main() -> None:
    """Run missing seeds, then print."""
    parser = argparse.ArgumentParser(prog="tools.bench.fleet.agents", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/bench/agents"))
    parser.add_argument("--seeds", type=int, default=48)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    paths = [options.out / f"{seed}.json" for seed in range(options.seeds)]
    with ProcessPoolExecutor(options.processes) as pool:
        asked = {n: pool.submit(detailed, n) for n, path in enumerate(paths) if not path.exists()}
        for seed, each in asked.items():
            paths[seed].write_text(json.dumps(asdict(each.result())))
    told = [Fared(**json.loads(path.read_text())) for path in paths]
    modelled = [cheap(seed) for seed in range(options.seeds)]
    for about, first in (("even seeds, which set the two constants", 0), ("odd seeds", 1)):
        print(f"{about}, {len(told[first::2])} co-locations")
        _print(told[first::2], modelled[first::2])


def _print(told: Sequence[Fared], modelled: Sequence[Fared]) -> None:
    print(f"{'':16}{'controller':>12}{'model':>12}")
    for name in ("missed_free", "missed", "given"):
        one, other = (np.array([getattr(each, name) for each in side]) for side in (told, modelled))
        errors = np.abs(one - other)
        print(
            f"{name:16}{one.mean():>12.3f}{other.mean():>12.3f}  "
            f"rank correlation {rank_correlation(one, other):.3f}, median error {np.median(errors):.3f}, "
            f"90th percentile {np.quantile(errors, 0.9):.3f}"
        )
    acts = [pair for pair in zip(told, modelled, strict=True) if pair[1].needed > 0]
    missed = sum(one.missed for one, _ in acts) / max(sum(other.needed for _, other in acts), 1e-9)
    print(f"missed while it acts: {missed:.4f} of the time (MISSED_RATIO)")
    given = sum(one.given for one, _ in acts) / max(sum(other.given for _, other in acts), 1e-9)
    print(f"given, controller over model: {given * GIVEN_RATIO:.4f} (GIVEN_RATIO)")
    idle = [one.missed for one, other in zip(told, modelled, strict=True) if other.needed == 0]
    print(f"missed where it need not act: {np.mean(idle) if idle else 0.0:.4f}, {len(idle)} co-locations\n")


def rank_correlation(first: Floats, second: Floats) -> float:
    """Spearman's, with the mean rank for equal values."""
    ranks = [_ranks(np.round(each, 6)) for each in (first, second)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _ranks(values: Floats) -> Floats:
    below = (values[:, None] > values[None, :]).sum(1)
    same = (values[:, None] == values[None, :]).sum(1)
    result: Floats = below + (same - 1) / 2.0
    return result


if __name__ == "__main__":
    main()
