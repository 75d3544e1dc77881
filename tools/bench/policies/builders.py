"""Building blocks of scenarios: batch jobs, and LRAs with goals derived from their performance alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from perphd.sim.node.archetypes import archetype
from perphd.sim.node.grant import Grant
from perphd.sim.node.load import LoadTrace, Steps
from perphd.sim.node.machine import Machine
from perphd.sim.node.model import Node
from perphd.sim.node.outcome import Outcome
from perphd.sim.node.workload import NodeWorkload
from tools.bench.policies.scene import Actor, Goal

WORK_SHARE: Final = 0.90
"""Share of its rate alone that a closed loop must keep."""
LATENCY_GROWTH: Final = 1.5
"""Accepted growth of its p95."""
BATCH_COMES_S: Final = 30.0
_NOW: Final = Steps(())


def alone(machine: Machine, work: NodeWorkload, load: float = 1.0) -> Outcome:
    """The outcome of a workload alone on the machine."""
    return Node(machine, [work]).solve([[Grant()]], [load]).of(0)


def closed_goal(machine: Machine, work: NodeWorkload) -> Goal:
    """The goal of a closed loop, from its performance alone."""
    told = alone(machine, work)
    return Goal(max_p95_ms=told.p95_ms * LATENCY_GROWTH, min_work_per_s=told.work_per_s * WORK_SHARE)


KNEE_TOLERANCE: Final = 1.25
"""The goal of a service: its latency at 100 % load plus a quarter, because a knee is not sharp."""


def service(
    machine: Machine,
    name: str,
    share: float,
    label: str | None = None,
    load: LoadTrace = _NOW,
    *,
    tolerance: float = KNEE_TOLERANCE,
) -> Actor:
    """An open-loop service at a share of its full load: the archetype's rate, where its measured curve bends."""
    base = archetype(name).workload
    rate = base.requests.rate_per_s if base.requests is not None else None
    if rate is None:
        raise ValueError(f"{name} is not an open loop, so it has no full load")
    goal = Goal(max_p95_ms=alone(machine, base).p95_ms * tolerance)
    work = replace(base, name=label or name).asked(rate_per_s=rate * share)
    return Actor(work, goal, load, peak_load_per_s=rate)


def batch(name: str, label: str | None = None, *, starts_s: float = 0.0, ends_s: float = float("inf"),
          threads: int | None = None, job: float | None = None) -> Actor:  # fmt: skip
    """A batch archetype under another name."""
    work = archetype(name).named(label or name)
    if threads is not None:
        work = replace(work, threads=threads)
    return Actor(work, starts_s=starts_s, ends_s=ends_s, job=job)


def closed(machine: Machine, name: str, clients: int | None = None) -> Actor:
    """A closed-loop service with this number of clients."""
    work = archetype(name).workload
    work = work.asked(clients=clients) if clients is not None else work
    return Actor(work, closed_goal(machine, work))
