"""State of a node between steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from perphd.sim.node.grant import Array
from perphd.sim.node.machine import Machine
from perphd.sim.node.population import Population

ARRAYS = (
    *("rate", "free_rate", "occupancy", "channels", "disk", "link", "mix_cost", "runnable"),
    *("backlog", "resident", "service", "stalled"),
)
DRAIN_S = 0.25
"""Seconds within which waiting requests are processed, if there is capacity."""
_SHARED = frozenset({"channels", "disk", "link"})  # fields of the node, not of a workload


@dataclass(slots=True)
class State:
    """State for B alternatives of W workloads in D domains: [B,W] unless stated otherwise.

    ``rate``: operations per second; ``free_rate``: that rate if the workload had all CPUs that it may use;
    ``occupancy``: bytes of cache [B,W,D]; ``channels`` [B,D], ``disk``, ``link`` [B,1]: congestion;
    ``mix_cost``: settled ratio of a request's CPU time to that of an undisturbed one; ``runnable``:
    threads that run or wait for a CPU; ``backlog``: requests still waiting; ``resident``: page cache in
    memory (bytes); ``service``: CPU time of an operation (s); ``stalled``: time per operation spent waiting for disk,
    link and memory (s). ``last``: the grants of the last step and the resulting division of the CPUs, from which the
    next step starts; None before the first step.
    """

    rate: Array
    free_rate: Array
    occupancy: Array
    channels: Array
    disk: Array
    link: Array
    mix_cost: Array
    runnable: Array
    backlog: Array
    resident: Array
    service: Array
    stalled: Array
    last: tuple[object, Array] | None = None

    def take(self, rows: npt.NDArray[np.bool_]) -> State:
        """A copy of these alternatives."""
        return State(*(getattr(self, name)[rows] for name in ARRAYS))

    def put(self, rows: npt.NDArray[np.int64], other: State) -> None:
        """Overwrite these alternatives with those of ``other``."""
        for name in ARRAYS:
            getattr(self, name)[rows] = getattr(other, name)


def started(machine: Machine, people: Population, full_speed: Array, count: int, *, warm: bool) -> State:
    """The initial state; ``warm``: with filled caches."""
    shape = (count, people.count)
    service = people.instructions / full_speed
    alone = people.clients / (service + people.wait_s + people.think_s + people.serial_s)
    share = machine.l3_bytes / people.count if warm else 0.0
    resident = people.cache if warm else np.zeros(people.count)
    return State(
        rate=np.tile(np.where(people.closed > 0, alone, people.rate), (count, 1)),
        free_rate=np.tile(alone, (count, 1)),
        occupancy=np.full((*shape, machine.sockets), share),
        channels=np.full((count, machine.sockets), 0.05),
        disk=np.full((count, 1), 0.01),
        link=np.full((count, 1), 0.01),
        mix_cost=np.ones(shape),
        runnable=np.ones(shape),
        backlog=np.zeros(shape),
        resident=np.tile(resident, (count, 1)),
        service=np.tile(service, (count, 1)),
        stalled=np.zeros(shape),
    )


def carried(new: State, people: Population, old: State, before: Population) -> State:
    """``new``, with the values from ``old`` for workloads that are in both populations."""
    place = {work.name: index for index, work in enumerate(before.workloads)}
    stay = [(i, place[w.name]) for i, w in enumerate(people.workloads) if w.name in place]
    for name in ARRAYS:
        to, what = getattr(new, name), getattr(old, name)
        if name in _SHARED:
            to[:] = what
            continue
        for index, was in stay:
            to[:, index] = what[:, was]
    return new
