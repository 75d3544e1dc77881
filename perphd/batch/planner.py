"""Plans the start times of the queue's jobs within a plan-ahead window (3Sigma, 4.3).

Time is divided into slots. An option is a job with a start slot. Its worth is E[U(s)]. Its expected consumption t
seconds after the start is the job's demand times P(T > t). The plan maximises

    sum of E[U_jo] I_jo - sum of cost_r P_r                  I_jo: option o of job j; P_r: running job r is preempted

    for every job:                 sum over o of I_jo <= 1
    for every slot and resource:   sum of k_j S_j(t - s) I_jo <= capacity - sum of k_r S_r(t) (1 - P_r)

``greedy`` inserts jobs in the order of their best worth, each at its best feasible slot. It then moves one job at a
time to the front of that order as long as the plan becomes worth more, and preempts running jobs if, in the order
found, the gain exceeds the cost. It tries each running job alone, then together with the jobs that it tried before and
did not preempt, and leaves out those that prove unnecessary. ``program`` states the exact integer program for a solver;
``plan_of`` reads its solution. Greedy plans are the fallback, and the starting point of the solver.

Later starts may rely on expected consumption. A job that starts *now* must also pass admission.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from perphd.batch.utility import RunTime, Utility, expected_at
from perphd.forecast.histogram import Floats

_ROUNDING: Final = 1e-9
_PASSES: Final = 2
_MOVES: Final = 20
"""Maximum number of jobs that are moved to the front of the order, those of the greatest worth first. The limit keeps
the cost linear.
"""


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """A job that could start: its demand by resource, the distribution of its run time, and its worth."""

    name: str
    demand: Mapping[str, float]
    run_time: RunTime
    utility: Utility


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job that runs: its demand, the distribution of its remaining time, and the cost of its preemption (None: never
    preempted).
    """

    name: str
    demand: Mapping[str, float]
    remaining: RunTime
    preemption_cost: float | None = None


@dataclass(frozen=True, slots=True)
class PlanWindow:
    """The slots of a plan, from now on, and the capacity by resource."""

    capacity: Mapping[str, float]
    slot_s: float
    slots: int


@dataclass(frozen=True, slots=True)
class JobPlan:
    """Start in seconds from now by job, the jobs to preempt, and the worth of the plan."""

    starts_s: Mapping[str, float] = field(default_factory=dict)
    preempted: tuple[str, ...] = ()
    worth: float = 0.0

    @property
    def now(self) -> tuple[str, ...]:
        """Jobs that start at once."""
        return tuple(name for name, start_s in self.starts_s.items() if start_s == 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class IntegerProgram:
    """Maximise ``worth @ x`` for binary ``x`` with ``rows @ x <= bounds``; ``options`` states the meaning of each x.

    An option is (job, slot), or (running job, -1) for its preemption.
    """

    worth: Floats
    rows: Floats
    bounds: Floats
    options: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Tables:
    """By job name: the worth of each start slot, the consumption of a start in each slot, and that of running jobs.

    A consumption is one row: all slots of the first resource, then all slots of the next one.
    """

    worth: Mapping[str, Floats]
    taken: Mapping[str, Floats]
    holds: Mapping[str, Floats]
    capacity: Floats


def greedy(window: PlanWindow, waiting: Sequence[WaitingJob], running: Sequence[RunningJob] = ()) -> JobPlan:
    """A feasible plan by the greedy rule of this module, which is fast and not always optimal."""
    tables = _tables(window, waiting, running)
    jobs = sorted(waiting, key=lambda job: -float(np.max(tables.worth[job.name])))
    best, order = _improved(window, tables, jobs, running, ())

    def gains(victims: Sequence[str]) -> bool:
        start = _start_of(tables, running, (*best.preempted, *victims))
        return _inserted(window, tables, order, start).worth > best.worth + _ROUNDING

    passed: list[str] = []
    for victim in sorted((r for r in running if r.preemption_cost is not None), key=_cost):
        passed.append(victim.name)
        needed = [victim.name]
        if not gains(needed):
            needed = list(passed)  # a waiting job may need the room of several running jobs
            if len(passed) == 1 or not gains(needed):
                continue
            for name in passed[:-1]:
                without = [each for each in needed if each != name]
                needed = without if gains(without) else needed
        best, order = _improved(window, tables, order, running, (*best.preempted, *needed))
        passed = [name for name in passed if name not in needed]
    return best


def program(
    window: PlanWindow, waiting: Sequence[WaitingJob], running: Sequence[RunningJob] = ()
) -> IntegerProgram:
    """The exact program. Options without worth are omitted."""
    tables = _tables(window, waiting, running)
    starts = [
        (job.name, slot)
        for job in waiting
        for slot in range(window.slots)
        if tables.worth[job.name][slot] > _ROUNDING
    ]
    victims = [job for job in running if job.preemption_cost is not None]
    options = [*starts, *((each.name, -1) for each in victims)]
    names = [name for name, _ in starts]
    choices = [
        [float(name == each) for name in names] + [0.0] * len(victims) for each in dict.fromkeys(names)
    ]
    amounts = [tables.taken[name][slot] for name, slot in starts]
    amounts += [-tables.holds[each.name] for each in victims]
    used = np.array(amounts, dtype=np.float64).reshape(len(options), len(tables.capacity)).T
    return IntegerProgram(
        np.array([tables.worth[name][slot] for name, slot in starts] + [-_cost(each) for each in victims]),
        np.concatenate([np.array(choices, dtype=np.float64).reshape(len(choices), len(options)), used]),
        np.concatenate([np.ones(len(choices)), _left(tables, running, ())]),
        tuple(options),
    )


def solution_of(plan: JobPlan, stated: IntegerProgram, slot_s: float) -> Floats:
    """``plan`` as the program's variables, the starting point of a solver."""
    chosen = {(name, round(start_s / slot_s)) for name, start_s in plan.starts_s.items()}
    chosen |= {(name, -1) for name in plan.preempted}
    return np.array([float(option in chosen) for option in stated.options])


def plan_of(solution: Floats, stated: IntegerProgram, slot_s: float) -> JobPlan:
    """The plan that a solution of the program represents."""
    chosen = [option for option, x in zip(stated.options, solution, strict=True) if x > 0.5]
    return JobPlan(
        {name: slot * slot_s for name, slot in chosen if slot >= 0},
        tuple(name for name, slot in chosen if slot < 0),
        float(stated.worth @ np.round(solution)),
    )


def feasible(solution: Floats, stated: IntegerProgram) -> bool:
    """True if a solution satisfies every row."""
    return bool(np.all(stated.rows @ np.round(solution) <= stated.bounds + 1e-6))


def _improved(
    window: PlanWindow,
    tables: _Tables,
    jobs: Sequence[WaitingJob],
    running: Sequence[RunningJob],
    preempted: tuple[str, ...],
) -> tuple[JobPlan, Sequence[WaitingJob]]:
    """The best plan that moving one job at a time to the front of the order finds, and the order of that plan."""
    order, start = list(jobs), _start_of(tables, running, preempted)
    best = _inserted(window, tables, order, start)
    for _ in range(_PASSES):
        before = best.worth
        for job in jobs[:_MOVES]:
            moved = [job, *(each for each in order if each is not job)]
            tried = _inserted(window, tables, moved, start)
            if tried.worth > best.worth + _ROUNDING:
                best, order = tried, moved
        if best.worth <= before + _ROUNDING:
            break
    return best, order


@dataclass(frozen=True, slots=True, eq=False)
class _Start:
    """An empty plan: the jobs that it preempts, the cost, and the remaining capacity."""

    preempted: tuple[str, ...]
    cost: float
    left: Floats


def _start_of(tables: _Tables, running: Sequence[RunningJob], preempted: tuple[str, ...]) -> _Start:
    cost = sum(_cost(job) for job in running if job.name in preempted)
    left = _left(tables, running, preempted) + _ROUNDING * (1.0 + tables.capacity)
    return _Start(preempted, cost, left)


def _inserted(window: PlanWindow, tables: _Tables, order: Sequence[WaitingJob], start: _Start) -> JobPlan:
    """The plan of jobs in ``order``, each at the earliest of its best feasible slots."""
    left = start.left.copy()
    starts: dict[str, float] = {}
    worth = -start.cost
    for job in order:
        taken = tables.taken[job.name]
        values = np.where((taken <= left).all(axis=1), tables.worth[job.name], 0.0)
        slot = int(values.argmax())
        if values[slot] > _ROUNDING:
            left -= taken[slot]
            starts[job.name] = float(slot * window.slot_s)
            worth += float(values[slot])
    return JobPlan(starts, start.preempted, worth)


def _left(tables: _Tables, running: Sequence[RunningJob], preempted: tuple[str, ...]) -> Floats:
    """Remaining capacity beside the running jobs that are not preempted, at least 0."""
    left = tables.capacity.copy()
    for job in running:
        if job.name not in preempted:
            left -= tables.holds[job.name]
    return np.maximum(left, 0.0)


def _tables(window: PlanWindow, waiting: Sequence[WaitingJob], running: Sequence[RunningJob]) -> _Tables:
    starts_s = np.arange(window.slots, dtype=np.float64) * window.slot_s
    since = np.arange(window.slots) - np.arange(window.slots)[:, None]

    def amounts(job: WaitingJob | RunningJob, held: Floats) -> Floats:
        return np.concatenate([job.demand.get(each, 0.0) * held for each in window.capacity], axis=-1)

    def taken(job: WaitingJob) -> Floats:
        held = _survival(window, job.run_time)
        return amounts(job, np.where(since >= 0, held[np.maximum(since, 0)], 0.0))

    return _Tables(
        {job.name: expected_at(job.utility, starts_s, job.run_time) for job in waiting},
        {job.name: taken(job) for job in waiting},
        {job.name: amounts(job, _survival(window, job.remaining)) for job in running},
        np.repeat(np.array(list(window.capacity.values()), dtype=np.float64), window.slots),
    )


def _survival(window: PlanWindow, run_time: RunTime) -> Floats:
    """Expected consumption at the beginning of each slot, as a share of the demand; 1 in the first."""
    held = run_time.survivals(np.arange(window.slots, dtype=np.float64) * window.slot_s)
    held[0] = 1.0
    return held


def _cost(job: RunningJob) -> float:
    return 0.0 if job.preemption_cost is None else job.preemption_cost
