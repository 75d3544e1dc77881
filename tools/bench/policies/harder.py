"""Scenarios of at least ten minutes with features of real hosts: undeclared work, a hypervisor that takes time,
unreachable targets, LRAs without indicators, programs with phases. Noise is counting noise; no event lies on a grid of
ticks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from perphd.sim.node.archetypes import archetype
from perphd.sim.node.load import Diurnal, Steps
from perphd.sim.node.machine import SILVER_4110, SILVER_4114, Machine
from tools.bench.policies.builders import LATENCY_GROWTH, WORK_SHARE, alone, batch, closed, service
from tools.bench.policies.hostkind import HostKind
from tools.bench.policies.scene import Actor, Goal, Noise, Phases, Scenario

LENGTH_S: Final = 600.0
MEDIAN: Final = Phases(0.19)
WILD: Final = Phases(0.40)
_OFF_GRID_S: Final = 1.0


def _scenario(
    name: str, family: str, about: str, machine: Machine, actors: tuple[Actor, ...], length_s: float = LENGTH_S,
) -> Scenario:  # fmt: skip
    return Scenario(
        name, family, about, machine, actors, length_s, count_from_s=30.0, noise=Noise.COUNTED,
        off_grid_s=_OFF_GRID_S,
    )  # fmt: skip


def _hidden(actor: Actor, name: str) -> Actor:
    """The same workload undeclared, under another name."""
    return replace(actor, work=replace(actor.work, name=name), declared=False)


def _mute(machine: Machine, actor: Actor, phases: Phases | None = None) -> Actor:
    """An LRA without indicators: its goal is the default for undeclared objectives.

    The goal is nine tenths of a closed loop's undisturbed work (MIPS cannot show more), or 1.5 times the latency of an
    open loop.
    """
    told, requests = alone(machine, actor.work), actor.work.requests
    is_closed = requests is not None and requests.closed
    goal = (
        Goal(min_work_per_s=told.work_per_s * WORK_SHARE)
        if is_closed
        else Goal(max_p95_ms=told.p95_ms * LATENCY_GROWTH)
    )
    return replace(actor, sli=False, goal=goal, phases=phases)


def _telling(scenario: Scenario) -> Scenario:
    """The twin of a scenario in which every LRA has an indicator and the same goal as its objective."""
    return replace(
        scenario,
        name=f"told-{scenario.name.removeprefix('mute-')}",
        family="told",
        about=f"{scenario.about}; with indicators",
        luck=scenario.name,
        actors=tuple(replace(a, sli=True) for a in scenario.actors),
    )


def long() -> list[Scenario]:
    """Ten minutes to half an hour: searches end, cooldowns pass, and learned knowledge becomes useful again."""
    machine = SILVER_4114
    pair = (service(machine, "memcached", 0.4), service(machine, "img-dnn", 0.4))
    return [
        _scenario(
            "long-pair", "long", "two services beside a streamer that comes and goes, and compression", machine,
            (
                *pair, batch("batch-stream", starts_s=40.0, ends_s=250.0),
                batch("batch-stream", "batch-again", starts_s=340.0, ends_s=560.0),
                batch("batch-compress", starts_s=150.0),
            ),
        ),
        _scenario(
            "long-load", "long", "xapian's load goes round six levels, twice, beside a thrasher", machine,
            (
                service(machine, "xapian", 0.5, load=Steps(tuple(
                    (100.0 * n, level) for n, level in enumerate((1.0, 1.4, 0.6, 1.2, 0.4, 0.8) * 2)
                ))),
                batch("batch-thrash", starts_s=40.0),
            ),
            1200.0,
        ),
        _scenario(
            "long-day", "long", "a day in twenty minutes for img-dnn, beside compression and a streamer", machine,
            (
                service(machine, "img-dnn", 0.8, load=Diurnal(0.25, 1.0, 1200.0)),
                batch("batch-compress", starts_s=40.0), batch("batch-stream", starts_s=400.0, ends_s=900.0),
            ),
            1200.0,
        ),
        _scenario(
            "long-oltp", "long", "MySQL beside PI, a thrasher and nobody in turn", SILVER_4110,
            (
                closed(SILVER_4110, "mysql-oltp"), batch("batch-pi", starts_s=40.0, ends_s=260.0),
                batch("batch-thrash", threads=32, starts_s=260.0, ends_s=480.0),
            ),
        ),
    ]  # fmt: skip


def undeclared() -> list[Scenario]:
    """Undeclared work shares the host for a while; ORACLE knows it, policies see the host account."""
    machine = SILVER_4114
    return [
        _scenario(
            "undeclared-part", "undeclared", "six threads of compression nobody declared, beside a streamer", machine,
            (
                service(machine, "xapian", 0.4), batch("batch-stream", starts_s=40.0),
                _hidden(batch("batch-compress", threads=6, starts_s=150.0, ends_s=420.0), "backup"),
            ),
        ),
        _scenario(
            "undeclared-full", "undeclared", "as many undeclared threads as there are CPUs, beside PI", machine,
            (
                service(machine, "img-dnn", 0.3), batch("batch-pi", starts_s=40.0),
                _hidden(batch("batch-pi", threads=20, starts_s=150.0, ends_s=420.0), "stranger"),
            ),
        ),
        _scenario(
            "undeclared-cache", "undeclared", "an undeclared thrasher beside MySQL and PI", SILVER_4110,
            (
                closed(SILVER_4110, "mysql-oltp"), batch("batch-pi", starts_s=40.0),
                _hidden(batch("batch-thrash", threads=12, starts_s=150.0, ends_s=420.0), "analytics"),
            ),
        ),
    ]  # fmt: skip


def steal() -> list[Scenario]:
    """Virtual machines without counters and cache control, whose hypervisor takes a share of every CPU."""
    machine = SILVER_4114
    levels = Steps(((0.0, 0.0), (120.0, 0.1), (240.0, 0.25), (360.0, 0.1), (480.0, 0.0)))
    bursts = Steps(
        tuple((40.0 * n + off, share) for n in range(15) for off, share in ((0.0, 0.0), (30.0, 0.3)))
    )
    found = [
        _scenario(
            "steal-levels", "steal", "xapian beside a thrasher while steal rises to a quarter and falls", machine,
            (service(machine, "xapian", 0.4), batch("batch-thrash", starts_s=40.0)),
        ),
        _scenario(
            "steal-bursts", "steal", "MySQL beside PI; ten seconds in forty the hypervisor takes .3", SILVER_4110,
            (closed(SILVER_4110, "mysql-oltp"), batch("batch-pi", starts_s=40.0)),
        ),
    ]  # fmt: skip
    return [
        replace(s, steal=trace, kind=HostKind.VM) for s, trace in zip(found, (levels, bursts), strict=True)
    ]


def unreachable() -> list[Scenario]:
    """Targets that no setting meets, always or for a while: shortfall, cost to batch, number of changes."""
    machine = SILVER_4114
    tight = closed(SILVER_4110, "mysql-oltp")
    assert tight.goal is not None
    more = Goal((tight.goal.max_p95_ms or 0.0) * 0.6, (tight.goal.min_work_per_s or 0.0) * 1.2)
    return [
        _scenario(
            "unreachable-target", "unreachable", "MySQL's target is above what the machine can do", SILVER_4110,
            (replace(tight, goal=more), batch("batch-pi", starts_s=40.0)),
        ),
        _scenario(
            "unreachable-load", "unreachable", "for three minutes more is asked of xapian than the machine carries",
            machine,
            (
                service(machine, "xapian", 0.6, load=Steps(((150.0, 2.2), (330.0, 1.0)))),
                batch("batch-compress", starts_s=40.0),
            ),
        ),
        _scenario(
            "unreachable-stranger", "unreachable", "undeclared work fills the host beside a tight target", machine,
            (
                service(machine, "img-dnn", 0.6, tolerance=1.05), batch("batch-stream", starts_s=40.0),
                _hidden(batch("batch-compress", threads=40), "stranger"),
            ),
        ),
    ]  # fmt: skip


def mute() -> list[Scenario]:
    """LRAs without indicators: only MIPS, misses and waiting are measured. Phases belong to the program."""
    machine = SILVER_4114
    waiting = Actor(replace(archetype("batch-pi").named("batch-idle"), threads=1), load=Steps(((0.0, 0.01),)))
    return [
        _scenario(
            "mute-oltp", "mute", "MySQL without indicators beside a thrasher, then a streamer", SILVER_4110,
            (
                _mute(SILVER_4110, closed(SILVER_4110, "mysql-oltp"), MEDIAN),
                batch("batch-thrash", threads=32, starts_s=120.0, ends_s=340.0),
                batch("batch-stream", threads=32, starts_s=340.0),
            ),
        ),
        _scenario(
            "mute-wild", "mute", "the same with phases of CoV .4", SILVER_4110,
            (
                _mute(SILVER_4110, closed(SILVER_4110, "mysql-oltp"), WILD),
                batch("batch-thrash", threads=32, starts_s=120.0, ends_s=340.0),
                batch("batch-stream", threads=32, starts_s=340.0),
            ),
        ),
        _scenario(
            "mute-service", "mute", "xapian without indicators beside a streamer", machine,
            (_mute(machine, service(machine, "xapian", 0.5), MEDIAN), batch("batch-stream", starts_s=120.0)),
        ),
        _scenario(
            "mute-among", "mute", "one of three services tells nothing, beside a streamer and compression", machine,
            (
                service(machine, "memcached", 0.3), service(machine, "img-dnn", 0.3),
                _mute(machine, service(machine, "xapian", 0.3), MEDIAN), batch("batch-stream", starts_s=120.0),
                batch("batch-compress", starts_s=240.0),
            ),
        ),
        replace(
            _scenario(
                "mute-quiet", "quiet", "MySQL without indicators and phases of CoV .4, with nobody to disturb it",
                SILVER_4110, (_mute(SILVER_4110, closed(SILVER_4110, "mysql-oltp"), WILD), waiting), 3600.0,
            ),
            oracle=False, step_s=0.5,
        ),
    ]  # fmt: skip


def told() -> list[Scenario]:
    """The scenarios of ``mute`` with indicators, identical seed by seed: they show the cost of missing indicators."""
    return [_telling(scenario) for scenario in mute() if scenario.family == "mute"]


FAMILIES: Final[dict[str, Callable[[], list[Scenario]]]] = {
    "long": long,
    "undeclared": undeclared,
    "steal": steal,
    "unreachable": unreachable,
    "mute": mute,
    "told": told,
}
