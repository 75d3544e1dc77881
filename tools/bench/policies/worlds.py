"""Hosts with randomly drawn laws that perphd's authors did not choose: forms of queues, caches and sibling threads,
programs, and the order in which instruments protect, drawn by a seed. The seeds are 0 to 7, fixed before any policy had
run there.

None of the forms is the one with which the archetypes were calibrated and which perph's prior shares. Programs'
parameters are fitted to published measurements: IPC and misses at 1 to 11 ways of 2.5 MB (pbbcache/cachesim,
metrics.csv @666c8ae7; of the programs that lose a tenth or more with one way, those with a fit inside its bounds;
median error of IPC .7 % with HILL, 1.3 % with PARETO), and how p95 rises with load (CLITE, HPCA 2020, figure 6; RMSE of
its logarithm below). The cost of a busy sibling, the wake-up time of halted CPUs and the cooling of caches are assumed
and drawn from a range.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from perphd.sim.node.archetypes import archetype
from perphd.sim.node.machine import SILVER_4110, SILVER_4114, Machine
from perphd.sim.node.physics import ChannelQueue, MissCurve, Physics, Waiting
from perphd.sim.node.workload import Code, NodeWorkload
from tools.bench.policies.builders import KNEE_TOLERANCE, alone, closed_goal
from tools.bench.policies.scene import Actor, Goal, Noise, Scenario

SEEDS: Final = range(8)
_MIB: Final = float(1 << 20)
_CALM: Final = ("plain", "halt", "warm", "both")
"""Effectiveness of the instruments: as calibrated; halted CPUs wake slowly; only own cores stay warm; both."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Base cycles per instruction, cycles a miss, misses per kilo-instruction: floor, swing, scale in MiB."""

    cpi: float
    miss_cycles: float
    floor: float
    swing: float
    scale_mib: float


PROGRAMS: Final[dict[str, tuple[float, Curve, Curve]]] = {
    # references per kilo-instruction, PARETO, HILL
    "astar": (13.9, Curve(0.926, 20.0, 0.0, 31.7, 2.847), Curve(0.909, 24.1, 0.0, 10.4, 10.954)),
    "cactus": (5.4, Curve(0.480, 65.9, 2.72, 11.5, 0.778), Curve(0.478, 66.3, 2.769, 2.02, 3.975)),
    "gcc": (19.1, Curve(0.560, 15.9, 0.0, 24.5, 5.461), Curve(0.558, 16.1, 1.471, 12.2, 9.992)),
    "libquantum": (23.8, Curve(0.330, 2.44, 0.0, 32.0, 14.862), Curve(0.327, 2.61, 0.0, 22.5, 20.840)),
    "mcf": (69.4, Curve(1.123, 30.4, 15.963, 75.1, 3.035), Curve(1.129, 30.1, 18.934, 35.0, 6.203)),
    "omnetpp": (33.1, Curve(0.825, 33.7, 0.0, 30.9, 10.611), Curve(0.832, 33.0, 3.999, 17.6, 13.006)),
    "soplex": (36.9, Curve(0.746, 10.5, 0.0, 81.6, 2.333), Curve(0.727, 12.7, 0.0, 23.4, 10.176)),
    "vpr": (11.3, Curve(0.900, 33.5, 0.0, 12.7, 3.711), Curve(0.894, 36.2, 0.399, 5.28, 9.104)),
    "xalancbmk": (46.3, Curve(0.723, 19.1, 0.0, 117.8, 1.877), Curve(0.710, 18.8, 0.003, 32.8, 8.767)),
}
SERVICES: Final[dict[str, tuple[float, float]]] = {
    # (1 + cv^2) / 2 of arrivals and service, spread of undisturbed latencies, fitted under HALFIN_WHITT
    "img-dnn": (3.3, 0.15),  # RMSE .065
    "masstree": (5.0, 0.25),  # .042
    "memcached": (1.0, 0.65),  # .026; neither form fits xapian's curve (.31)
}


def drawn_physics(random: Random) -> Physics:
    """One set of laws, none of them the present one."""
    order = random.choice(_CALM)
    return Physics(
        misses=random.choice((MissCurve.PARETO, MissCurve.HILL)),
        channels=random.choice((ChannelQueue.FIXED, ChannelQueue.WALL)),
        waiting=Waiting.HALFIN_WHITT,
        overlap_power=random.choice((1.0, 3.0)),
        pace_power=random.choice((1.0, 3.0)),
        mix_half=0.005 if order in ("warm", "both") else 0.10,
        mix_scale=random.uniform(1.0, 1.8) if order in ("warm", "both") else random.uniform(0.5, 1.2),
        halt_ms=random.uniform(0.1, 0.5) if order in ("halt", "both") else 0.0,
    )


def _code(base: Code, program: str, physics: Physics, random: Random) -> Code:
    refs, pareto, hill = PROGRAMS[program]
    curve = pareto if physics.misses is MissCurve.PARETO else hill
    return replace(
        base, cpi=curve.cpi, miss_cycles=curve.miss_cycles, mpki_floor=curve.floor, mpki_swing=curve.swing,
        mpki_scale_bytes=curve.scale_mib * _MIB, refs_pki=refs, smt_speed=random.uniform(0.52, 0.75),
    )  # fmt: skip


def _as_fast(work: NodeWorkload, code: Code, machine: Machine, calibrated: Machine) -> NodeWorkload:
    """The service with this code, with the number of instructions that takes the same CPU time as before."""
    before = alone(calibrated, work, 0.2).service_s
    found = replace(work, code=code)
    after = alone(machine, found, 0.2).service_s
    return replace(found, code=replace(code, instructions=code.instructions * before / after))


def world(seed: int) -> Scenario:
    """The host of this seed: one or two LRAs, then one or two batch jobs."""
    random = Random(f"a world that nobody chose: {seed}")
    physics = drawn_physics(random)
    calibrated = random.choice((SILVER_4110, SILVER_4114))
    machine = replace(calibrated, physics=physics)
    actors: list[Actor] = []
    for number in range(random.choice((1, 1, 2))):
        kind = random.choice((*SERVICES, "mysql-oltp"))
        base = archetype(kind).workload
        work = _as_fast(
            base, _code(base.code, random.choice(list(PROGRAMS)), physics, random), machine, calibrated
        )
        work = replace(work, name=f"{kind}-{number}")
        assert work.requests is not None
        if work.requests.closed:
            actors.append(Actor(work, closed_goal(machine, work)))
            continue
        bursts, spread = SERVICES[kind]
        work = replace(work, requests=replace(work.requests, bursts=bursts, spread=spread))
        goal = Goal(max_p95_ms=alone(machine, work).p95_ms * KNEE_TOLERANCE)
        rate = base.requests.rate_per_s if base.requests is not None else None
        assert rate is not None
        asked = work.asked(rate_per_s=rate * random.uniform(0.2, 0.6))
        actors.append(Actor(asked, goal, peak_load_per_s=rate))
    for number in range(random.choice((1, 2))):
        program = random.choice(list(PROGRAMS))
        base = archetype("batch-thrash").workload
        job = replace(
            base, name=f"{program}-{number}", code=_code(base.code, program, physics, random),
            threads=random.choice((machine.cpus // 2, machine.cpus)), pollution=random.uniform(0.5, 1.5),
        )  # fmt: skip
        actors.append(Actor(job, starts_s=40.0 + 110.0 * number))
    about = (
        f"{physics.misses} caches, {physics.channels} channels, siblings to the power {physics.overlap_power:.0f}"
        + (f", {physics.halt_ms:.2f} ms to wake a CPU" if physics.halt_ms else "")
        + (", only own cores stay warm" if physics.mix_half < 0.05 else "")
    )
    return Scenario(
        f"world-{seed}", "worlds", about, machine, tuple(actors), 400.0, count_from_s=30.0, noise=Noise.COUNTED,
        off_grid_s=1.0,
    )  # fmt: skip


def worlds() -> list[Scenario]:
    """All of them."""
    return [world(seed) for seed in SEEDS]


FAMILIES: Final[dict[str, Callable[[], list[Scenario]]]] = {"worlds": worlds}
