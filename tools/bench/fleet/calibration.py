"""Compares the fleet's node model with the detailed node, on random co-locations.

A co-location has two to six workloads of the shipped archetypes with random load, on a two-socket host whose CPUs all
share. Degradation: 1 - performance over performance alone; performance is the rate of batch and closed loops, and one
over the median latency of open loops. Rank correlation: Spearman's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from perphd.sim.cluster.contention import Conditions, NodeModel
from perphd.sim.cluster.division import Floats, Places
from perphd.sim.node.archetypes import archetype, names
from perphd.sim.node.grant import Grant
from perphd.sim.node.machine import SILVER_4110, Machine
from perphd.sim.node.model import Node
from perphd.sim.node.outcome import Outcome
from perphd.sim.node.population import Population, population
from perphd.sim.node.workload import NodeWorkload

LEAST, MOST = 2, 6
LEAST_LOAD = 0.2
ROUNDS = 25


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """Degradation of every workload by both models; ``co_location`` numbers the groups."""

    co_location: Places
    kind: Places
    detailed: Floats
    cheap: Floats
    types: tuple[str, ...]

    @property
    def median_error(self) -> float:
        """Median of the absolute differences of degradation."""
        return float(np.median(np.abs(self.detailed - self.cheap)))

    @property
    def p90_error(self) -> float:
        """Their 90th percentile."""
        return float(np.quantile(np.abs(self.detailed - self.cheap), 0.9))

    @property
    def rank_correlation(self) -> float:
        """Spearman's rank correlation."""
        return float(np.corrcoef(_ranks(self.detailed), _ranks(self.cheap))[0, 1])


@dataclass(frozen=True, slots=True)
class CalibrationFigures:
    """The error of the fleet's node model for one seed."""

    workloads: int
    rank_correlation: float
    median_error: float
    p90_error: float


def calibration_of(count: int, seed: int) -> CalibrationFigures:
    """Both models on ``count`` random co-locations, and their differences."""
    found = calibrated(count, seed)
    return CalibrationFigures(len(found.kind), found.rank_correlation, found.median_error, found.p90_error)


def calibrated(count: int, seed: int, machine: Machine = SILVER_4110) -> Calibration:
    """Both models on ``count`` random co-locations."""
    rng = np.random.default_rng(seed)
    types = [archetype(name).workload for name in names()]
    drawn = []
    for _ in range(count):
        size = int(rng.integers(LEAST, MOST + 1))
        drawn.append((rng.integers(0, len(types), size), rng.uniform(LEAST_LOAD, 1.0, size)))
    kind = np.concatenate([each for each, _ in drawn])
    load = np.concatenate([each for _, each in drawn])
    place = np.repeat(np.arange(count), [len(each) for each, _ in drawn])
    detailed = np.concatenate([_detailed(machine, types, each, factor) for each, factor in drawn])
    people = population(types)
    alone = _cheap(machine, people, np.arange(len(kind)), kind, load)
    together = _cheap(machine, people, place, kind, load)
    return Calibration(place, kind, detailed, 1.0 - together / alone, tuple(each.name for each in types))


def _detailed(machine: Machine, types: Sequence[NodeWorkload], kinds: Places, loads: Floats) -> Floats:
    here = [replace(types[kind], name=f"w{n}") for n, kind in enumerate(kinds.tolist())]
    together = Node(machine, here).solve([Grant()] * len(here), loads).all()
    found = []
    for workload, outcome, load in zip(here, together, loads.tolist(), strict=True):
        alone = Node(machine, [workload]).solve([Grant()], [load]).of(0)
        found.append(1.0 - _performance(workload, outcome) / _performance(workload, alone))
    return np.array(found)


def _performance(workload: NodeWorkload, outcome: Outcome) -> float:
    is_open = workload.requests is not None and not workload.requests.closed
    return 1.0 / outcome.p50_ms if is_open else outcome.work_per_s


def _cheap(machine: Machine, people: Population, node: Places, kind: Places, load: Floats) -> Floats:
    model = NodeModel(machine, people, int(node.max()) + 1)
    conditions: Conditions = model.evaluate(
        node, kind, load, np.full(len(kind), 100.0), model.started(kind, load), rounds=ROUNDS
    )
    is_open = (people.lra[kind] > 0) & (people.closed[kind] < 1)
    return np.where(is_open, 1.0 / np.maximum(conditions.p50_s, 1e-12), conditions.rate)


def _ranks(values: Floats) -> Floats:
    ranks = np.empty(len(values))
    ranks[np.argsort(values, kind="stable")] = np.arange(len(values))
    return ranks
