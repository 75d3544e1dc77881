"""Ranks nodes by overload risk, and values placements, from distributions of use (DistSched, 5.2 and 5.3).

    P(over on m) = P(n * task + running on m > capacity of m)           n tasks of one job share one draw      (5.1)
    candidates   : P(memory over) and P(CPU over) within the accepted limits (optimistic over-packing)
    order        : ascending by (P(memory over), P(CPU over), expected free memory, expected free CPU, random)
    E[utility]   = P(no eviction) * E[U(T)]                                                                    (5.3)

Risk comes first, best fit second. Each node's distribution lies on a grid over its own capacity, so that P(over) of all
nodes of one capacity is one matrix-vector product. For a grid of G cells of width w and k = 0 .. G, row i of the matrix
holds P(running > (G - k) w), and the vector P(task = k w). Grids round up, so P(over) errs on the safe side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from perphd.batch.admission import EPSILON_HARD, EPSILON_SOFT, expected_utility
from perphd.cluster.scheduling.fleet import Fleet, Rows, Scores, node_names
from perphd.cluster.scheduling.profile import NodeProfile, Pod
from perphd.forecast.grid import GridDistribution, added, multiplied, of_outcomes
from perphd.forecast.histogram import Floats

_JOBS_KEPT: Final = 1 << 12
_VALUES_KEPT: Final = 1 << 9
"""Maximum numbers of remembered distributions (some tasks of a job on one size of node) and of remembered values (some
tasks of a job on one node).
"""
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


@dataclass(frozen=True, slots=True, eq=False)
class _Tasks:
    """Distribution of the use by some tasks of one job.

    ``shares``: probabilities of the grid's cells ``places`` (None: of all cells). ``over``: probability of more.
    """

    places: Rows | None
    shares: Floats
    over: float


def _tasks(law: Mapping[float, float], tasks: int, capacity: float) -> _Tasks:
    whole = multiplied(of_outcomes(law, capacity, FLEET_CELLS), tasks)
    used = np.nonzero(whole.shares)[0]
    if len(used) * 8 < len(whole.shares):  # for few outcomes, use only their columns
        return _Tasks(used, whole.shares[used], whole.over)
    return _Tasks(None, whole.shares, whole.over)


@lru_cache(_JOBS_KEPT)
def _tasks_of(pod: Pod, tasks: int, cores: float, memory_bytes: float) -> tuple[_Tasks, _Tasks]:
    """CPU and memory of some tasks of a pod's job on a node of this size."""
    laws = pod.laws()
    return _tasks(laws[0], tasks, cores), _tasks(laws[1], tasks, memory_bytes)


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
            task = _tasks(law, tasks, each)
            same = np.nonzero(capacity == each)[0]
            chosen = rows[same]
            beyond = self.beyond if len(chosen) == len(self.beyond) else self.beyond[chosen]
            if task.places is not None:
                beyond = beyond[:, task.places]
            found[same] = beyond @ task.shares + task.over
        result: Floats = np.clip(found, 0.0, 1.0)
        return result

    def over_at(self, task: _Tasks, row: int) -> float:
        """``over`` of one row: the same value in a tenth of the time."""
        beyond = self.beyond[row] if task.places is None else self.beyond[row, task.places]
        return min(1.0, max(0.0, float(beyond @ task.shares) + task.over))


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

    def over_at(self, pod: Pod, tasks: int, row: int) -> tuple[float, float]:
        """P(CPU over) and P(memory over) of one row with ``tasks`` tasks of a job."""
        cores, memory = _tasks_of(
            pod, tasks, float(self.cores.capacity[row]), float(self.memory.capacity[row])
        )
        return self.cores.over_at(cores, row), self.memory.over_at(memory, row)


DEFAULT_RISK: Final = RiskSettings()


@lru_cache(8)
def _chances(seed: int, count: int) -> Floats:
    """The order among equals."""
    return np.random.default_rng(seed).random(count)


def by_risk(
    fleet: Fleet, pod: Pod, rows: Rows, settings: RiskSettings = DEFAULT_RISK, tasks: int = 1
) -> Scores:
    """All candidates in DistSched's order. The score is minus the rank; the terms are the sort keys."""
    columns = fleet.columns(DistributionColumns)
    cores_law, memory_law = pod.laws()
    memory_over = columns.memory.over(memory_law, tasks, rows)
    cores_over = columns.cores.over(cores_law, tasks, rows)
    free_memory, free_cores = columns.memory.free[rows], columns.cores.free[rows]
    chance = _chances(settings.seed, len(rows))
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
    columns = fleet.columns(DistributionColumns)
    base = by_risk(fleet, pod, rows, settings)
    keys = np.stack(list(base.terms.values()))
    feasible = base.feasible
    chance = _chances(settings.seed, len(rows))
    mean_cores, mean_memory = (
        sum(value * p for value, p in law.items()) / sum(law.values()) for law in pod.laws()
    )
    placed: dict[int, int] = {}
    chosen: list[str] = []
    for _ in range(tasks):
        if not feasible.any():
            return None
        order = np.lexsort((chance, *keys[::-1]))
        head = int(order[feasible[order].argmax()])
        placed[head] = own = placed.get(head, 0) + 1
        chosen.append(fleet.profiles[head].node)
        cores_over, memory_over = columns.over_at(pod, own + 1, head)
        keys[:, head] = (
            memory_over, cores_over, columns.memory.free[head] - mean_memory * own,
            columns.cores.free[head] - mean_cores * own,
        )  # fmt: skip
        feasible[head] = memory_over <= settings.memory and cores_over <= settings.cores
    return _valued(fleet, pod, placed, tuple(chosen), utility)


def _valued(
    fleet: Fleet,
    pod: Pod,
    placed: Mapping[int, int],
    chosen: tuple[str, ...],
    utility: Callable[[float], float],
) -> GangPlacement:
    columns = fleet.columns(DistributionColumns)
    stays, worth = 1.0, 1.0 if pod.work_cpu_s == np.inf else np.inf
    for row, tasks in placed.items():
        stays *= 1.0 - columns.over_at(pod, tasks, row)[1]
        if pod.work_cpu_s != np.inf:
            worth = min(worth, _utility_at(fleet.profiles[row], pod, tasks, utility))
    return GangPlacement(chosen, stays, stays * worth)


@lru_cache(_VALUES_KEPT)
def _utility_at(profile: NodeProfile, pod: Pod, tasks: int, utility: Callable[[float], float]) -> float:
    """E[U] of some tasks of a job on one node. Cached: it is needed again until the node or the time changes."""
    cores_law, _ = pod.laws()
    running, _ = running_laws(profile)
    return expected_utility(
        pod.work_cpu_s * tasks,
        {value * tasks: p for value, p in cores_law.items()},
        coarse(running),
        profile.cores,
        (pod.cores * tasks, max(profile.requested_cores, 1e-9)),
        utility,
    )


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


def placeable(
    fleet: Fleet, waiting: Sequence[GangJob], settings: RiskSettings = DEFAULT_RISK
) -> list[tuple[GangJob, GangPlacement]]:
    """The jobs for which there is room, each with its placement beside the running jobs.

    A job without room has none after another one has started, so the next choice is among these.
    """
    found = ((job, gang_placement(fleet, job.pod, job.tasks, job.utility, settings)) for job in waiting)
    return [(job, placement) for job, placement in found if placement is not None]


def most_valuable(
    found: Sequence[tuple[GangJob, GangPlacement]],
) -> tuple[GangJob, GangPlacement]:
    """The job to place next: the one with the highest E[utility], the first among equals."""
    return max(found, key=lambda each: each[1].utility)
