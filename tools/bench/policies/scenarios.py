"""The catalogue of scenarios with which perph was developed. `harder` and `worlds` have later ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from perphd.sim.node.archetypes import archetype
from perphd.sim.node.load import Bursts, Diurnal, Steps
from perphd.sim.node.machine import BIG_128, SILVER_4110, SILVER_4114
from tools.bench.policies import harder, worlds
from tools.bench.policies.builders import BATCH_COMES_S, alone, batch, closed, closed_goal, service
from tools.bench.policies.scene import Actor, Goal, Scenario

__all__ = ["BATCH_COMES_S", "alone", "batch", "closed", "closed_goal", "service"]

# -- the paper's experiments ----------------------------------------------------------------------------

_PAPER: Final = (
    ("tpcc", "mysql-oltp", "MySQL under TPC-C beside MapReduce PI"),
    ("mysqlslap", "mysql-short", "MySQL under mysqlslap beside MapReduce PI"),
    ("tpch", "mysql-olap", "MySQL under TPC-H beside MapReduce PI"),
    ("kafka", "kafka-stream", "Kafka beside MapReduce PI"),
)


def paper(length_s: float = 240.0) -> list[Scenario]:
    """The four experiments: half a minute undisturbed, then the batch job comes."""
    found = []
    for name, kind, about in _PAPER:
        pi = archetype("batch-pi").workload
        job = 0.45 * (length_s - BATCH_COMES_S) * alone(SILVER_4110, pi).work_per_s
        actors = (closed(SILVER_4110, kind), batch("batch-pi", starts_s=BATCH_COMES_S, job=job))
        found.append(
            Scenario(
                f"paper-{name}", "paper", about, SILVER_4110, actors, length_s, count_from_s=BATCH_COMES_S
            )
        )
    return found


def scalability() -> list[Scenario]:
    """Concurrency from 100 to 450 (TPC-C) and from 25 to 200 (mysqlslap)."""
    sweep = [("mysql-oltp", n) for n in (100, 200, 300, 450)] + [
        ("mysql-short", n) for n in (25, 50, 100, 200)
    ]
    return [
        Scenario(
            f"scale-{kind}-{clients}", "scalability", f"{kind} with {clients} clients beside PI", SILVER_4110,
            (closed(SILVER_4110, kind, clients), batch("batch-pi", starts_s=BATCH_COMES_S)),
            150.0, count_from_s=BATCH_COMES_S,
        )
        for kind, clients in sweep
    ]  # fmt: skip


# -- one to three LRAs with up to three batch jobs ---------------------------------------------------------

_SERVICES: Final = ("memcached", "img-dnn", "xapian")
_JOBS: Final = ("batch-stream", "batch-thrash", "batch-compress")


def mixes(levels: Sequence[float] = (0.1, 0.3, 0.5, 0.7, 0.9)) -> list[Scenario]:
    """Services at a share of their full load beside batch jobs, on CLITE's machine; all run from the start."""
    found = []
    for services in (1, 2, 3):
        for jobs in (0, 1, 2, 3):
            for level in levels:
                if jobs == 0 and level != levels[len(levels) // 2]:
                    continue
                if jobs > 1 and level not in levels[::2]:
                    continue
                actors = [service(SILVER_4114, name, level) for name in _SERVICES[:services]]
                actors += [batch(name) for name in _JOBS[:jobs]]
                found.append(
                    Scenario(
                        f"mix-{services}lra-{jobs}batch-{round(100 * level):02}", "mixes",
                        f"{services} services at {level:.0%} of their full load beside {jobs} batch jobs",
                        SILVER_4114, tuple(actors), 120.0,
                        partition=services + jobs > 2 and services + jobs <= 4, step_s=0.5,
                    )
                )  # fmt: skip
    return found


# -- what changes --------------------------------------------------------------------------------------------


def changes() -> list[Scenario]:
    """Load steps, bursts, antagonists that change, drift of the application."""
    machine = SILVER_4114
    steps = Steps(((60.0, 2.0), (120.0, 1.0), (180.0, 2.5), (240.0, 0.5)))
    bursts = Bursts(1.0, 2.2, every_s=45.0, length_s=6.0, seed=5, until_s=400.0)
    oltp = archetype("mysql-oltp").workload
    goal = closed_goal(SILVER_4110, oltp)
    grown = replace(oltp, code=replace(oltp.code, mpki_swing=oltp.code.mpki_swing * 1.8,
                                       mpki_scale_bytes=oltp.code.mpki_scale_bytes * 1.5))  # fmt: skip
    grown_goal = closed_goal(SILVER_4110, grown)
    lower = Goal(
        max(goal.max_p95_ms or 0.0, grown_goal.max_p95_ms or 0.0),
        min(goal.min_work_per_s or 0.0, grown_goal.min_work_per_s or 0.0),
    )
    return [
        Scenario(
            "load-steps", "changes", "xapian's load doubles, halves, ... beside a cache thrasher", machine,
            (service(machine, "xapian", 0.3, load=steps), batch("batch-thrash", threads=20, starts_s=20.0)),
            300.0, count_from_s=20.0,
        ),
        Scenario(
            "bursts", "changes", "img-dnn's load doubles for seconds at random beside a streamer", machine,
            (service(machine, "img-dnn", 0.35, load=bursts), batch("batch-stream", threads=20, starts_s=20.0)),
            300.0, count_from_s=20.0,
        ),
        Scenario(
            "antagonists", "changes", "xapian beside compute, then a streamer, then a thrasher, then nobody", machine,
            (
                service(machine, "xapian", 0.5),
                batch("batch-pi", threads=20, starts_s=30.0, ends_s=110.0),
                batch("batch-stream", threads=20, starts_s=110.0, ends_s=190.0),
                batch("batch-thrash", threads=20, starts_s=190.0, ends_s=270.0),
            ),
            320.0, count_from_s=30.0,
        ),
        Scenario(
            "drift", "changes", "MySQL's data set outgrows the cache half way through", SILVER_4110,
            (
                Actor(oltp, lower, becomes=((150.0, grown),)),
                batch("batch-thrash", threads=32, starts_s=BATCH_COMES_S),
            ),
            300.0, count_from_s=BATCH_COMES_S,
        ),
    ]  # fmt: skip


def quiet_day(length_s: float = 86_400.0, short_s: float = 7_200.0) -> list[Scenario]:
    """Varying load without disturbance, so every action is false.

    The load lasts a whole day for perph, and is compressed to two hours for all policies.
    """
    machine = SILVER_4114
    idle = replace(archetype("batch-pi").named("batch-idle"), threads=1)
    # An idle job: it occupies a group and uses almost nothing.
    waiting = Actor(idle, load=Steps(((0.0, 0.01),)))
    kinds = (("quiet-day", length_s, ("perph",)), ("quiet-hours", short_s, ()))
    return [
        Scenario(
            name, "quiet", "diurnal load without an antagonist", machine,
            (service(machine, "xapian", 0.8, load=Diurnal(0.25, 1.0, seconds)), waiting), seconds, oracle=False,
            step_s=0.5, only=only, most_seeds=1,
        )
        for name, seconds, only in kinds
    ]  # fmt: skip


def infeasible() -> list[Scenario]:
    """Targets that no setting can meet, to measure harm and restlessness."""
    machine = SILVER_4114
    tight = closed(SILVER_4110, "mysql-oltp")
    assert tight.goal is not None
    more = Goal((tight.goal.max_p95_ms or 0.0) * 0.5, (tight.goal.min_work_per_s or 0.0) * 1.25)
    crowd = tuple(service(machine, name, 0.9) for name in ("img-dnn", "xapian", "specjbb"))
    return [
        Scenario(
            "infeasible-target", "infeasible", "a target above what the machine can do", SILVER_4110,
            (replace(tight, goal=more), batch("batch-pi", starts_s=BATCH_COMES_S)), 180.0,
            count_from_s=BATCH_COMES_S,
        ),
        Scenario(
            "infeasible-crowd", "infeasible", "three services at 90 % of their full load on one machine", machine,
            (*crowd, batch("batch-stream")), 150.0, partition=True,
        ),
    ]  # fmt: skip


def big(lras: int = 20) -> list[Scenario]:
    """128 cores on two sockets, 20 services of five kinds, three batch jobs."""
    machine = BIG_128
    kinds = ("memcached", "img-dnn", "xapian", "specjbb", "masstree")
    actors: list[Actor] = []
    for number in range(lras):
        kind = kinds[number % len(kinds)]
        actors.append(service(machine, kind, 0.5, f"{kind}-{number:02}"))
    jobs = [
        batch("batch-pi", threads=128, starts_s=20.0),
        batch("batch-stream", threads=96, starts_s=40.0),
        batch("batch-thrash", threads=96, starts_s=60.0),
    ]
    return [
        Scenario(
            "big-128", "big", f"{lras} services and three batch jobs on 2 x 64 cores", machine,
            (*actors, *jobs), 180.0, count_from_s=20.0, step_s=0.5, most_seeds=1,
        )
    ]  # fmt: skip


CLASSIC: Final[dict[str, Callable[[], list[Scenario]]]] = {
    "paper": paper,
    "scalability": scalability,
    "mixes": mixes,
    "changes": changes,
    "quiet": quiet_day,
    "infeasible": infeasible,
    "big": big,
}
"""The families of the headline."""
LATER: Final[dict[str, Callable[[], list[Scenario]]]] = harder.FAMILIES | worlds.FAMILIES
"""Scenarios with which perph was not developed; they have a separate table."""
FAMILIES: Final[dict[str, Callable[[], list[Scenario]]]] = CLASSIC | LATER
_QUICK_MIXES: Final = ("mix-1lra-1batch-50", "mix-2lra-1batch-30", "mix-3lra-1batch-30")


def standard() -> list[Scenario]:
    """Every scenario."""
    return [scenario for make in FAMILIES.values() for scenario in make()]


def quick() -> list[Scenario]:
    """A few short scenarios, for a functional check."""
    short = [replace(s, duration_s=120.0) for s in paper(120.0) if s.name in ("paper-tpcc", "paper-kafka")]
    some = [s for s in mixes((0.3, 0.5)) if s.name in _QUICK_MIXES]
    return short + some + quiet_day(short_s=1200.0)[1:]
