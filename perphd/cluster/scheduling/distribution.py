"""Ranks nodes by overload risk, and values placements, from distributions of use (DistSched, 5.2 and 5.3).

    P(over on m) = P(n * task + running on m > capacity of m)           n tasks of one job share one draw      (5.1)
    candidates   : P(memory over) and P(CPU over) within the accepted limits (optimistic over-packing)
    order        : ascending by (P(memory over), P(CPU over), expected free memory, expected free CPU, random)
    E[utility]   = P(no eviction) * E[U(T)]                                                                    (5.3)

Risk comes first, best fit second. Each node's distribution lies on a grid over its own capacity, so that P(over) of all
nodes of one capacity is one matrix-vector product: row i holds P(running > (G - k) w), the vector P(task = k w). Grids
round up, so P(over) errs on the safe side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from perphd.batch.admission import EPSILON_HARD, EPSILON_SOFT, expected_utility
from perphd.cluster.scheduling.fleet import BaseColumns, Fleet, Rows, Scores, node_names
from perphd.cluster.scheduling.profile import NodeProfile, Pod
from perphd.forecast.grid import GridDistribution, added, multiplied, of_outcomes
from perphd.forecast.histogram import Floats

FLEET_CELLS: Final = 512
"""Cells of a node's grid: 4 KiB per node and resource. 1024 cells would halve the rounding error at twice the memory.
"""


@dataclass(frozen=True, slots=True)
class RiskSettings:
    """The accepted P(over) of memory and CPU, and the seed of the order among equals."""

    memory: float = EPSILON_HARD
    cores: float = EPSILON_SOFT
    seed: int = 0


def running_laws(profile: NodeProfile) -> tuple[GridDistribution, GridDistribution]:
    """Distributions of CPU and memory use on a node; if it published none, its total requests with certainty."""
    cores = profile.running_cores
    if cores is None:
        cores = of_outcomes({profile.requested_cores: 1.0}, profile.cores, FLEET_CELLS)
    memory = profile.running_memory
    if memory is None:
        memory = of_outcomes({profile.requested_bytes: 1.0}, profile.memory_bytes, FLEET_CELLS)
    return cores, memory


class _Resource:
    """Distributions of one resource: row i of ``beyond`` holds P(running > (G - k) cells) for k = 0 .. G."""

    def __init__(self, n: int) -> None:
        self.capacity = np.zeros(n)
        self.beyond = np.zeros((n, FLEET_CELLS + 1))
        self.free = np.zeros(n)

    def put(self, row: int, law: GridDistribution) -> None:
        if law.cells != FLEET_CELLS:
            raise ValueError(f"distributions of a fleet have {FLEET_CELLS} cells, this one has {law.cells}")
        self.capacity[row] = law.capacity
        self.beyond[row] = np.clip(1.0 - np.cumsum(law.shares), 0.0, 1.0)[::-1]
        mean = float(law.shares @ np.arange(law.cells + 1)) * law.cell + law.over * law.capacity
        self.free[row] = law.capacity - mean

    def over(self, law: Mapping[float, float], tasks: int, rows: Rows) -> Floats:
        """P(over) for each row; one product for each distinct capacity."""
        capacity = self.capacity[rows]
        found = np.empty(len(rows))
        for each in np.unique(capacity).tolist():
            task = multiplied(of_outcomes(law, each, FLEET_CELLS), tasks)
            same = np.nonzero(capacity == each)[0]
            chosen = rows[same]
            beyond = self.beyond if len(chosen) == len(self.beyond) else self.beyond[chosen]
            used = np.nonzero(task.shares)[0]
            if len(used) * 8 < len(task.shares):  # for few outcomes, use only their columns
                found[same] = beyond[:, used] @ task.shares[used] + task.over
            else:
                found[same] = beyond @ task.shares + task.over
        result: Floats = np.clip(found, 0.0, 1.0)
        return result


class DistributionColumns:
    """The distributions of all nodes."""

    def __init__(self, fleet: Fleet) -> None:
        self.cores, self.memory = _Resource(len(fleet)), _Resource(len(fleet))
        for row, profile in enumerate(fleet.profiles):
            self.put(row, profile)

    def put(self, row: int, profile: NodeProfile) -> None:
        """Replace a row."""
        cores, memory = running_laws(profile)
        self.cores.put(row, cores)
        self.memory.put(row, memory)


DEFAULT_RISK: Final = RiskSettings()


def by_risk(
    fleet: Fleet, pod: Pod, rows: Rows, settings: RiskSettings = DEFAULT_RISK, tasks: int = 1
) -> Scores:
    """All candidates in DistSched's order. The score is minus the rank; the terms are the sort keys."""
    columns = fleet.columns(DistributionColumns)
    cores_law, memory_law = pod.laws()
    memory_over = columns.memory.over(memory_law, tasks, rows)
    cores_over = columns.cores.over(cores_law, tasks, rows)
    free_memory, free_cores = columns.memory.free[rows], columns.cores.free[rows]
    chance = np.random.default_rng(settings.seed).random(len(rows))
    order = np.lexsort((chance, free_cores, free_memory, cores_over, memory_over))
    place = np.empty(len(rows))
    place[order] = np.arange(len(rows))
    return Scores(
        "distribution",
        node_names(fleet),
        rows,
        -place,
        {
            "P(memory over)": memory_over,
            "P(CPU over)": cores_over,
            "expected free memory": free_memory,
            "expected free CPUs": free_cores,
        },
        {
            f"P(memory over) exceeds {settings.memory:g}": memory_over > settings.memory,
            f"P(CPU over) exceeds {settings.cores:g}": cores_over > settings.cores,
        },
        additive=False,
    )


@dataclass(frozen=True, slots=True)
class GangPlacement:
    """The nodes of a job's tasks (one entry per task), P(no eviction), and E[utility]."""

    nodes: tuple[str, ...]
    no_eviction: float
    utility: float


def gang_placement(
    fleet: Fleet,
    pod: Pod,
    tasks: int,
    utility: Callable[[float], float],
    settings: RiskSettings = DEFAULT_RISK,
) -> GangPlacement | None:
    """Place all ``tasks`` tasks, one after the other on the best machine; None if no machine is found for one of them.

    Tasks of one job share one draw: a machine with k of them is evaluated for k + 1. ``utility`` takes the job's run
    time. With several machines, E[U] is the least of the machines' values: an upper bound of the published expectation
    over the slowest task, whose cost grows with the product of all machines' outcomes.
    """
    rows = fleet.rows
    placed: dict[int, int] = {}
    base = by_risk(fleet, pod, rows, settings)
    keys = np.stack(list(base.terms.values()))
    feasible = base.feasible
    chance = np.random.default_rng(settings.seed).random(len(rows))
    order = np.lexsort((chance, *keys[::-1]))
    chosen: list[str] = []
    for _ in range(tasks):
        head = next((int(place) for place in order if feasible[place]), None)
        if head is None:
            return None
        placed[head] = placed.get(head, 0) + 1
        chosen.append(fleet.profiles[head].node)
        again = by_risk(fleet, pod, rows[head : head + 1], settings, placed[head] + 1)
        keys[:, head] = [values[0] for values in again.terms.values()]
        law = pod.laws()
        mean = [sum(value * p for value, p in each.items()) / sum(each.values()) for each in law]
        keys[2, head] -= mean[1] * placed[head]
        keys[3, head] -= mean[0] * placed[head]
        feasible[head] = again.feasible[0]
        order = np.lexsort((chance, *keys[::-1]))
    return _valued(fleet, pod, placed, tuple(chosen), utility)


def _valued(
    fleet: Fleet,
    pod: Pod,
    placed: Mapping[int, int],
    chosen: tuple[str, ...],
    utility: Callable[[float], float],
) -> GangPlacement:
    columns, base = fleet.columns(DistributionColumns), fleet.columns(BaseColumns)
    cores_law, memory_law = pod.laws()
    stays, worth = 1.0, 1.0 if pod.work_cpu_s == np.inf else np.inf
    for row, tasks in placed.items():
        at = np.array([row])
        stays *= 1.0 - float(columns.memory.over(memory_law, tasks, at)[0])
        if pod.work_cpu_s == np.inf:
            continue
        running, _ = running_laws(fleet.profiles[row])
        here = expected_utility(
            pod.work_cpu_s * tasks,
            {value * tasks: p for value, p in cores_law.items()},
            coarse(running),
            float(base.of("cores", at)[0]),
            (pod.cores * tasks, max(float(base.of("requested_cores", at)[0]), 1e-9)),
            utility,
        )
        worth = min(worth, here)
    return GangPlacement(chosen, stays, stays * worth)


COARSE_OUTCOMES: Final = 16


def coarse(law: GridDistribution, outcomes: int = COARSE_OUTCOMES) -> dict[float, float]:
    """A distribution reduced to at most ``outcomes`` equally likely values: the upper ends of its quantile ranges."""
    levels = np.cumsum(law.shares)
    wanted = (np.arange(outcomes) + 1) / outcomes
    places = np.searchsorted(levels, wanted - 1e-12)
    values = np.minimum(places, law.cells) * law.cell
    found: dict[float, float] = {}
    for value in values.tolist():
        found[value] = found.get(value, 0.0) + 1.0 / outcomes
    return found


def with_pod(profile: NodeProfile, pod: Pod, tasks: int = 1) -> tuple[GridDistribution, GridDistribution]:
    """Distributions of CPU and memory on a node after ``tasks`` tasks of ``pod`` have started there."""
    cores, memory = running_laws(profile)
    laws = pod.laws()
    return (
        added(cores, multiplied(of_outcomes(laws[0], cores.capacity, cores.cells), tasks)),
        added(memory, multiplied(of_outcomes(laws[1], memory.capacity, memory.cells), tasks)),
    )


@dataclass(frozen=True, slots=True, eq=False)
class GangJob:
    """A waiting job of ``tasks`` equal pods that start together, and its worth as a function of its run time."""

    pod: Pod
    tasks: int
    utility: Callable[[float], float]


def most_valuable(
    fleet: Fleet, waiting: Sequence[GangJob], settings: RiskSettings = DEFAULT_RISK
) -> tuple[GangJob, GangPlacement] | None:
    """The waiting job to place next: the schedulable job with the highest E[utility]; None if no job can be placed."""
    best: tuple[GangJob, GangPlacement] | None = None
    for job in waiting:
        found = gang_placement(fleet, job.pod, job.tasks, job.utility, settings)
        if found is not None and (best is None or found.utility > best[1].utility):
            best = job, found
    return best
