"""Estimates perphd's effect on batch on every node of a simulated fleet, by a cheap model of the state on which its
controller settles.

Problem. The controller (``perphd.admission``) takes seconds of CPU time for minutes of one detailed node. A
fleet simulation needs its effect: which targets are kept, and how much batch work remains possible.

Approach. The controller leaves a node alone while all LRAs keep their targets. Otherwise it gives each LRA
the fewest exclusive whole cores that suffice, and batch all others (``perphd.admission.arbiter``). If
that is not enough it takes cache and memory bandwidth from batch. This model therefore searches for the
settled state on all nodes at once:

    target    p95 <= (1 + delay tolerance) p95',   rate >= (1 - tolerance) rate'      ': same node and load, no batch
    cores     of each LRA: CPU use' / u, in whole cores, with the greatest u of ``UTILISATIONS`` at which the LRA
              keeps its target; the smallest u if there is none
    memory    the first of ``MEMORY`` with which all LRAs keep their targets; otherwise the one whose worst
              score is best

The real controller needs time to find these settings, and makes errors. ``tools.bench.fleet.agents`` compares
this model with the controller on the detailed node, states the errors, and gives ``MISSED_RATIO`` and
``GIVEN_RATIO``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from perphd.cluster.scheduling.fleet import Mask
from perphd.domain.workload import Objective
from perphd.sim.cluster.contention import Balance, Conditions, Control, NodeModel, no_control
from perphd.sim.cluster.division import Floats, Places

UTILISATIONS: Final = (0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6, 0.5, 0.4, 0.3)
MEMORY: Final = ((1.0, 1.0), (0.5, 1.0), (0.25, 0.7), (0.17, 0.4))
"""Shares of the cache that batch may fill, and of a core's bandwidth that it may draw."""
GRACE: Final = 1.02
"""A target counts as missed when it is missed by more than 2 %."""
MISSED_RATIO: Final = 0.015
"""Share of the time in which an LRA misses its target on a node where the controller has to act."""
GIVEN_RATIO: Final = 0.96
"""Batch work on such a node, relative to the settled state: the controller loses some while it searches and waits."""
_ROUNDS: Final = 16


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """``control``: settings of every node; ``needed``: nodes on which a service would miss its target without
    them.
    """

    control: Control
    needed: Floats


def scores(told: Conditions, undisturbed: Conditions, objective: Objective) -> Floats:
    """Performance of each service relative to its target: the worse of the scores for latency and rate. A score of 1
    or more meets the target.
    """
    most = undisturbed.p95_s * (1.0 + objective.delay_tolerance_pct / 100.0)
    least = undisturbed.rate * (1.0 - objective.tolerance_pct / 100.0)
    result: Floats = np.minimum(most / np.maximum(told.p95_s, 1e-12), told.rate / np.maximum(least, 1e-12))
    return result


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """All pods' conditions, with masks of the services that miss their target, and that would miss it without
    agents.
    """

    told: Conditions
    late: Mask
    held: Mask


class NodeAgents:
    """Agents on all nodes of one model.

    ``objective``: the objective of every service. ``active``: the agents choose and apply settings; inactive agents
    only judge whether the services meet the objective.
    """

    def __init__(self, objective: Objective, *, active: bool = True) -> None:
        self.objective, self._active = objective, active

    def judged(
        self, model: NodeModel, node: Places, kind: Places, load: Floats, weight: Floats, balance: Balance,
        rounds: int,
    ) -> Judged:  # fmt: skip
        """Move ``balance`` to the steady state under the agents' settings, as ``NodeModel.evaluate`` does."""
        service = model.types.lra[kind] > 0
        s = (node[service], kind[service], load[service], weight[service])
        undisturbed = self.undisturbed(model, *s)
        control, acts = None, np.zeros(len(node), dtype=bool)
        if self._active:
            found = self.held(model, node, kind, load, weight, balance, undisturbed)
            control, acts = found.control, found.needed[node] > 0
        told = model.evaluate(node, kind, load, weight, balance, control, rounds)
        told.rate = np.where(acts & ~service, GIVEN_RATIO * told.rate, told.rate)
        late = np.zeros(len(node), dtype=bool)
        late[service] = scores(_those(told, service), undisturbed, self.objective) < 1.0 / GRACE
        return Judged(told, late, acts & service)

    def undisturbed(
        self, model: NodeModel, node: Places, kind: Places, load: Floats, weight: Floats
    ) -> Conditions:
        """Conditions of these services without batch, in the given order."""
        return model.evaluate(node, kind, load, weight, model.started(kind, load), rounds=2 * _ROUNDS)

    def held(
        self, model: NodeModel, node: Places, kind: Places, load: Floats, weight: Floats, balance: Balance,
        undisturbed: Conditions,
    ) -> Held:  # fmt: skip
        """The settings on which each node's agent settles.

        Args:
            model: the model of the nodes.
            node: node of each pod.
            kind: type of each pod.
            load: as in ``NodeModel.evaluate``.
            weight: as in ``NodeModel.evaluate``.
            balance: the present state, which is not changed.
            undisturbed: conditions of the services among the pods, in their order.
        """
        service = model.types.lra[kind] > 0
        free = _Trial(model, node, kind, load, weight, balance).of([no_control(model.nodes)])[0]
        worst = self._worst(
            node[service], scores(_those(free, service), undisturbed, self.objective), model.nodes
        )
        needed = worst < 1.0 / GRACE
        control = no_control(model.nodes)
        control.own_cpus = np.zeros(len(node))
        if needed.any():
            nodes, pods = np.nonzero(needed)[0], needed[node]
            number = np.cumsum(needed) - 1
            part = NodeModel(model.machine, model.types, len(nodes))
            mine = Balance(
                **{
                    name: getattr(balance, name)[nodes if name in Balance.NODES else pods]
                    for name in Balance.__slots__
                }
            )
            found = self._settings(
                _Trial(part, number[node[pods]], kind[pods], load[pods], weight[pods], mine),
                service[pods],
                _those(undisturbed, pods[service]),
            )
            for name in Control.NODES:
                getattr(control, name)[nodes] = getattr(found, name)
            control.own_cpus[pods] = found.own_cpus
        return Held(control, needed.astype(np.float64))

    def _settings(self, trial: _Trial, service: Mask, undisturbed: Conditions) -> Control:
        """Settings for the nodes that need them."""
        model, node = trial.model, trial.node
        used = np.zeros(len(node))
        used[service] = undisturbed.cores
        divisions = [self._division(model, node, used, np.full(len(node), u)) for u in UTILISATIONS]
        found = [scores(_those(each, service), undisturbed, self.objective) for each in trial.of(divisions)]
        enough = np.stack(found) >= 1.0
        place = np.where(enough.any(0), enough.argmax(0), len(UTILISATIONS) - 1)
        chosen = np.ones(len(node))
        chosen[service] = np.array(UTILISATIONS)[place]
        own = self._division(model, node, used, chosen)
        ways = []
        for cache_ratio, bandwidth_ratio in MEMORY:
            cache, bandwidth = np.full(model.nodes, cache_ratio), np.full(model.nodes, bandwidth_ratio)
            ways.append(Control(own.confined_cores, own.idle, cache, bandwidth, own.own_cpus))
        kept = [scores(_those(each, service), undisturbed, self.objective) for each in trial.of(ways)]
        worst = np.stack([self._worst(node[service], each, model.nodes) for each in kept])
        best = np.where((worst >= 1.0).any(0), (worst >= 1.0).argmax(0), worst.argmax(0))
        memory = np.array(MEMORY)[best]
        return Control(own.confined_cores, own.idle, memory[:, 0], memory[:, 1], own.own_cpus)

    @staticmethod
    def _worst(node: Places, found: Floats, nodes: int) -> Floats:
        worst = np.full(nodes, np.inf)
        np.minimum.at(worst, node, found)
        return worst

    @staticmethod
    def _division(model: NodeModel, node: Places, used: Floats, utilisation: Floats) -> Control:
        """Whole cores for each service at this utilisation, and the remaining cores for batch; scaled down if
        there are too few.
        """
        step, cpus = float(model.machine.threads_per_core), float(model.machine.cpus)
        own = np.where(used > 0, np.maximum(np.ceil(used / utilisation / step), 1.0) * step, 0.0)
        asked = np.bincount(node, own, model.nodes)
        own *= np.minimum((cpus - step) / np.maximum(asked, 1.0), 1.0)[node]
        batch: Floats = cpus - np.bincount(node, own, model.nodes).astype(np.float64)
        control = no_control(model.nodes)
        return Control(batch, control.idle, control.cache_ratio, control.bandwidth_ratio, own)


class _Trial:
    """Evaluates several settings of all nodes at once, each from the same state."""

    def __init__(
        self, model: NodeModel, node: Places, kind: Places, load: Floats, weight: Floats, balance: Balance
    ) -> None:
        self.model, self.node, self._balance = model, node, balance
        self._columns = kind, load, weight

    def of(self, controls: list[Control]) -> list[Conditions]:
        """Conditions under each setting."""
        many, node, (kind, load, weight) = len(controls), self.node, self._columns
        pods, nodes = len(node), self.model.nodes
        whole = NodeModel(self.model.machine, self.model.types, many * nodes)
        balance = Balance(*(np.tile(getattr(self._balance, name), many) for name in Balance.__slots__))
        own = [np.zeros(pods) if each.own_cpus is None else each.own_cpus for each in controls]
        by_node = {name: np.concatenate([getattr(each, name) for each in controls]) for name in Control.NODES}
        told = whole.evaluate(
            np.tile(node, many) + np.repeat(np.arange(many) * nodes, pods),
            np.tile(kind, many), np.tile(load, many), np.tile(weight, many), balance,
            Control(**by_node, own_cpus=np.concatenate(own)), _ROUNDS,
        )  # fmt: skip
        return [
            Conditions(*(getattr(told, name)[n * pods : (n + 1) * pods] for name in Conditions.__slots__))
            for n in range(many)
        ]


def _those(told: Conditions, chosen: Mask) -> Conditions:
    return Conditions(*(getattr(told, name)[chosen] for name in Conditions.__slots__))
