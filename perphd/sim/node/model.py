"""The node: from grants and loads to usage, performance and pressure of every workload.

All parts meet in one balance: the CPU time of an operation depends on cache, memory channels, neighbours and
hyperthreads; the neighbours' use of these depends on their operations per second, which in turn depends on
all of these. ``Node.solve`` iterates to the balance of a steady state, for one moment or for thousands of
alternatives at once; ``Node.step`` advances a state by a short time, in which caches fill, backlogs grow and
memory follows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Final

import numpy as np

from perphd.sim.node.balance import Balance, Flow
from perphd.sim.node.division import Cpu, Division
from perphd.sim.node.grant import Array, Grant, Grants, grants
from perphd.sim.node.machine import Machine
from perphd.sim.node.outcome import Outcomes
from perphd.sim.node.population import Population, population
from perphd.sim.node.state import State, carried, started
from perphd.sim.node.telling import outcomes
from perphd.sim.node.workload import NodeWorkload

_RESERVE: Final = 0.03  # share of the host's memory that the kernel uses
_SETTLE_S: Final = 0.4  # private caches and load balancing follow a change within this time constant
_ROUNDS: Final = 40  # maximum number of rounds; few alternatives need more than six
_INNER: Final = 3
_LEAP: Final = 0.04  # relative change of a rate in one pass above which more passes follow
_CATCH_UP: Final = 3
_STILL: Final = 1e-3  # relative change in a round at which an alternative has settled
_TINY: Final = 1e-12


class Node:
    """A machine and its workloads. Noise-free and deterministic."""

    def __init__(self, machine: Machine, workloads: Sequence[NodeWorkload]) -> None:
        self.machine = machine
        self.people: Population = population(workloads)
        self._division = Division(machine, self.people)
        self._balance = Balance(machine, self.people)
        people, ghz = self.people, machine.ghz * 1e9
        kept = machine.physics.missing(machine.l3_bytes / people.mpki_scale)
        best = people.mpki_floor + people.mpki_swing * kept
        self._full_speed = ghz / (people.cpi + people.miss_cycles * best / 1000.0)

    # -- questions -------------------------------------------------------------------------------------

    def solve(
        self,
        alternatives: Grants | Sequence[Grant] | Sequence[Sequence[Grant]],
        loads: Sequence[float] | Array | None = None,
        *,
        chunk: int = 512,
    ) -> Outcomes:
        """The steady state under each alternative.

        Args:
            alternatives: one grant per workload; or several such rows; or arrays of them (``grant.product``).
            loads: factor on each workload's load (batch: on its threads), the same for all alternatives or one row for
                each; default 1.
            chunk: alternatives computed at once.
        """
        table = self._table(alternatives)
        factor = np.ones(self.people.count) if loads is None else np.asarray(loads, dtype=float)
        factor = np.broadcast_to(factor, (table.count, self.people.count))
        parts = []
        for start in range(0, table.count, chunk):
            rows = table.take(slice(start, start + chunk)) if table.count > chunk else table
            load = factor[start : start + chunk]
            state = self._balanced(rows, load)
            cpu = self._division.divide(state, rows, load)
            flow = self._balance.look(state, rows, cpu, load)
            parts.append(self._told(state, rows, cpu, flow, load, steady=True))
        return parts[0] if len(parts) == 1 else _joined(parts)

    def start(self, count: int = 1, *, warm: bool = False) -> State:
        """The state of a node whose workloads have just started; ``warm``: with filled caches."""
        return started(self.machine, self.people, self._full_speed, count, warm=warm)

    def carry_on(self, state: State, other: Node) -> State:
        """The state of this node after workloads arrived or left since ``state``, which belonged to ``other``."""
        return carried(self.start(state.rate.shape[0]), self.people, state, other.people)

    def step(
        self,
        state: State,
        in_force: Grants,
        dt_s: float,
        loads: Array,
        needs: Array | None = None,
        max_backlog: Array | float = 200.0,
    ) -> Outcomes:
        """Advance ``state`` by ``dt_s`` seconds and return the outcomes of that time.

        The caller maintains ``state.resident`` (page cache in memory), because it knows limits and reclaim.

        Args:
            state: state of one alternative, changed in place.
            in_force: the grants in force.
            dt_s: time to advance, in seconds.
            loads: factor on each load, [W].
            needs: factor on the CPU time of an operation, [W].
            max_backlog: maximum number of requests that wait; an application refuses further ones.
        """
        load = loads[None, :]
        cpu = self._division.divide(state, in_force, load)
        before = state.rate
        flow = self._balance.look(state, in_force, cpu, load, needs)
        # In steady conditions one pass per step suffices; after a change, several are run at once.
        if (np.abs(flow.rate - before) > _LEAP * before).any():
            for _ in range(_CATCH_UP):
                self._balance.follow(state, in_force, flow, 0.7, dt_s / 100.0)
                flow = self._balance.look(state, in_force, cpu, load, needs)
        self._balance.follow(state, in_force, flow, 0.7, dt_s)
        settled = 1.0 - math.exp(-dt_s / _SETTLE_S)
        state.mix_cost += (self._division.mix_cost(cpu) - state.mix_cost) * settled
        told = self._told(state, in_force, cpu, flow, load, steady=False)
        people = self.people
        is_open = people.lra * (1.0 - people.closed)
        lacking = people.rate * load - flow.loop.rate
        state.backlog = np.minimum(np.maximum(state.backlog + lacking * dt_s, 0.0), max_backlog) * is_open
        return told

    def _balanced(self, rows: Grants, load: Array) -> State:
        """The steady state; alternatives that have reached it are left unchanged."""
        state = self.start(rows.count, warm=True)
        self._remember(state, rows)
        whole, todo = state, np.arange(rows.count)
        for turn in range(_ROUNDS):
            before = np.concatenate([state.rate, state.service, state.occupancy.sum(2)], axis=1)
            cpu = self._division.divide(state, rows, load)
            for _ in range(_INNER):
                self._balance.follow(state, rows, self._balance.look(state, rows, cpu, load), 0.6)
            state.mix_cost += 0.7 * (self._division.mix_cost(cpu) - state.mix_cost)
            if turn < 2:
                continue
            after = np.concatenate([state.rate, state.service, state.occupancy.sum(2)], axis=1)
            moving = (np.abs(after - before) > _STILL * (np.abs(after) + _TINY)).any(1)
            if not moving.any():
                break
            if 5 * np.count_nonzero(moving) < 4 * len(todo):
                whole.put(todo, state)
                todo, rows, load = todo[moving], rows.take(moving), load[moving]
                state = state.take(moving)
        whole.put(todo, state)
        return whole

    def _told(
        self, state: State, rows: Grants, cpu: Cpu, flow: Flow, load: Array, *, steady: bool
    ) -> Outcomes:
        """Outcomes, limited to the available CPUs."""
        used = self._division.share_out(state, rows, cpu, flow.usage)
        flow.hold_to(used, self.people.lra > 0)
        cycles = self.machine.ghz * 1e9
        return outcomes(
            self.people, cycles, self._full_speed, state, rows, cpu, flow, load, steady=steady,
            physics=self.machine.physics,
        )  # fmt: skip

    # -- details -----------------------------------------------------------------------------------------

    def _table(self, alternatives: Grants | Sequence[Grant] | Sequence[Sequence[Grant]]) -> Grants:
        if isinstance(alternatives, Grants):
            return alternatives
        rows = [[row] if isinstance(row, Grant) else list(row) for row in alternatives]
        if isinstance(alternatives[0], Grant):
            rows = [[grant for row in rows for grant in row]]
        if any(len(row) != self.people.count for row in rows):
            raise ValueError(f"give one grant for each of the {self.people.count} workloads")
        return grants(self.machine, rows)

    def _remember(self, state: State, rows: Grants) -> None:
        """Set the page cache held in a steady state, under the workload's own limits and the host's size."""
        people = self.people
        wanted = np.clip(rows.memory_bytes - people.anon, 0.0, people.cache)
        room = self.machine.memory_bytes * (1.0 - _RESERVE)
        over = (wanted + people.anon).sum(1, keepdims=True) - room
        kept = np.clip(rows.protected_bytes - people.anon, 0.0, wanted)
        spare = wanted - kept
        share = np.clip(over / np.maximum(spare.sum(1, keepdims=True), 1.0), 0.0, 1.0)
        rest = over - spare.sum(1, keepdims=True)
        further = np.clip(rest / np.maximum(kept.sum(1, keepdims=True), 1.0), 0.0, 1.0)
        state.resident = wanted - spare * share - kept * further


def _joined(parts: Sequence[Outcomes]) -> Outcomes:
    return Outcomes(*(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(Outcomes)))
