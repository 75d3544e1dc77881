"""Predicts when a job will start and end: a simulation of the queue with run times drawn from their distributions.

One draw gives every job that runs a remaining time and every job ahead a run time. Jobs then start in order, each at
the first time at which its CPUs and memory are free. Other use of the host counts at a high quantile.

    start ~ quantiles over draws,   end = start + run time,   P(deadline) = share of draws with end <= deadline

The draws are equally spaced quantiles in random order, with a seed derived from the job, so the answer does not change
from one request to the next.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Final

import numpy as np

from perphd.batch.choice import candidates
from perphd.batch.job import QueuedJob
from perphd.batch.job_worth import (
    demand_of,
    left_of,
    left_with_basis,
    planned_use,
    run_time_of,
    run_time_with_basis,
)
from perphd.batch.look import CPU, MEMORY, JobOutlook, QueueView
from perphd.batch.utility import RunTime
from perphd.batch.view import JobForecast, Times
from perphd.domain.reading import NOT_MEASURED, Unavailable
from perphd.forecast.histogram import Floats

DRAWS: Final = 64
LEAST_DRAWS: Final = 8
MOST_STARTS: Final = 20_000
"""Maximum number of simulated starts per answer, over all draws. They take about 0.1 s."""
_GRID: Final = 256


def forecast_of(
    view: QueueView, number: int, outlook: Callable[[QueuedJob], JobOutlook]
) -> JobForecast | Unavailable:
    """Predict the start and the end of job ``number``.

    ``view``: holds all jobs that may start now; ``outlook``: history of a waiting job.
    """
    running = next((each for each in view.active if each.job.id == number), None)
    if running is not None:
        ran_s = running.job.has_run_s(view.now_s)
        if not running.outlook.run_time_s.count:
            return Unavailable("no similar job has completed yet")
        left, basis = left_with_basis(running, view.now_s)
        ends = view.now_s + _quantiles(left)
        began_s = view.now_s - ran_s
        return JobForecast(
            Times(began_s, began_s, began_s), _times(ends), _met(ends, running.job.spec.deadline_s), basis
        )
    ahead = _ahead(view, number)
    job = next((each for each in view.waiting if each.id == number), None)
    if job is None:
        return Unavailable("the job waits until other jobs have ended")
    if len(ahead) * LEAST_DRAWS > MOST_STARTS:
        return Unavailable(
            f"{len(ahead)} jobs come first; at most {MOST_STARTS // LEAST_DRAWS} can be simulated"
        )
    if not outlook(job).run_time_s.count:
        return Unavailable("no similar job has completed yet")
    starts, ends = _played(view, job, ahead, outlook)
    basis = run_time_with_basis(outlook(job), view.given(job))[1]
    return JobForecast(_times(starts), _times(ends), _met(ends, job.spec.deadline_s), basis)


def _ahead(view: QueueView, number: int) -> list[QueuedJob]:
    """The jobs that the scheduler considers before job ``number``."""
    first = candidates(view)
    named = {job.id for job in first}
    order = [*first, *(job for job in view.waiting if job.id not in named)]
    places = [job.id for job in order]
    return order[: places.index(number)] if number in places else order


def _played(
    view: QueueView, job: QueuedJob, ahead: list[QueuedJob], outlook: Callable[[QueuedJob], JobOutlook]
) -> tuple[Floats, Floats]:
    draws = int(min(DRAWS, max(LEAST_DRAWS, MOST_STARTS // (len(ahead) + 1))))
    chosen = random.Random(job.id)
    laws: dict[tuple[int, float], list[float]] = {}

    def law(each: QueuedJob) -> tuple[list[float], dict[str, float]]:
        known, given = outlook(each), view.given(each)
        key = id(known), given
        if key not in laws:
            laws[key] = _quantiles(run_time_of(known, given)).tolist()
        return laws[key], demand_of(each, known)

    queue = [law(each) for each in (*ahead, job)]
    active = [
        (_quantiles(left_of(each, view.now_s)).tolist(), demand_of(each.job, each.outlook))
        for each in view.active
    ]
    others = (
        planned_use(view.others_cpus),
        planned_use(view.others_memory),
    )
    room = (
        max(0.0, view.cpus - others[0]) * view.copper_share,
        max(0.0, view.memory_bytes - others[1]) * view.copper_share,
    )
    starts, ends = np.empty(draws), np.empty(draws)
    for n in range(draws):
        busy = [(chosen.choice(times), demand[CPU], demand[MEMORY]) for times, demand in active]
        waiting = [(chosen.choice(times), demand[CPU], demand[MEMORY]) for times, demand in queue]
        starts[n] = _start(room, busy, waiting)
        ends[n] = starts[n] + waiting[-1][0]
    return view.now_s + starts, view.now_s + ends


def _start(
    room: tuple[float, float],
    busy: list[tuple[float, float, float]],
    waiting: list[tuple[float, float, float]],
) -> float:
    """Seconds until the last of ``waiting`` starts. Each job is a tuple of seconds, CPUs and bytes.

    A job too large for the host runs alone.
    """
    cpus = room[0] - sum(each[1] for each in busy)
    memory = room[1] - sum(each[2] for each in busy)
    heap = list(busy)
    heapq.heapify(heap)
    now_s = 0.0
    for seconds, needs_cpus, needs_memory in waiting:
        while heap and (needs_cpus > cpus or needs_memory > memory):
            end_s, freed_cpus, freed_memory = heapq.heappop(heap)
            now_s = max(now_s, end_s)
            cpus, memory = cpus + freed_cpus, memory + freed_memory
        heapq.heappush(heap, (now_s + seconds, needs_cpus, needs_memory))
        cpus, memory = cpus - needs_cpus, memory - needs_memory
    return now_s


def _quantiles(run_time: RunTime) -> Floats:
    """Equally likely values of a run time."""
    if run_time.longest_s <= 0.0:
        return np.zeros(DRAWS)
    points = np.linspace(0.0, run_time.longest_s, _GRID)
    up_to = 1.0 - run_time.survivals(points)
    return np.interp((np.arange(DRAWS) + 0.5) / DRAWS, up_to, points)


def _times(values: Floats) -> Times:
    p10, p50, p90 = np.quantile(values, (0.1, 0.5, 0.9))
    return Times(float(p10), float(p50), float(p90))


def _met(ends: Floats, deadline_s: float | None) -> float | Unavailable:
    return NOT_MEASURED if deadline_s is None else float(np.mean(ends <= deadline_s))
