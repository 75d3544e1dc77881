"""CLITE (Patel, Tiwari, HPCA 2020): Bayesian optimisation of disjoint parts for every job, two seconds a sample.

Bootstrap: for every job, the extreme point in which it has all units except one for each other job; and the equal
split. Then a Gaussian process (Matern 3/2, normalised scores) over the parts of all jobs but the last, and the point of
most expected improvement (zeta = 0.01), found by SLSQP under the sums and rounded down. With a probability of one in
four, one job is left out of the search ("dropout-copy"): the best job keeps its part of the best sample. A point that
was already sampled is perturbed: units from jobs that meet their target go to others. Score: half the geometric mean of
min(1, target / latency) while some target is missed, else one half plus half the geometric mean of performance over
performance with everything, of batch (of the LRAs if there is none). It ends when the expected improvement falls below
one per cent over the number of jobs ("about 1 %, scaled down with the number of jobs"; the code variant's 0.01 ^ N
never fires within a hundred samples) or after a maximum number of samples. It then keeps the best point, and restarts
when jobs come or go or the load moves by a fifth, as published.

Unpublished additions in its favour: it also restarts when the kept point misses a target five times in a row
(``as_published`` omits that). It also keeps its samples in case the same jobs return at nearly the same loads: it then
samples the best point again first, and continues from there with half as many samples (``forgets`` omits that).
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from perphd.admission.context import batches, lras
from perphd.domain.policy import Snapshot, TargetState, WorkloadView
from perphd.domain.reading import available, value_or
from tools.bench.policies.peers.units import RESOURCES, Units, capacity, equal_parts, settings_of

Point = tuple[tuple[int, ...], ...]
"""Units of every job, one tuple per job, in the order of ``RESOURCES``."""
PERIOD_S: Final = 1.0
"""A sample takes two periods: one to settle, one that counts."""
ZETA: Final = 0.01
STOP_EI: Final = 0.01
"""Threshold of the expected improvement, to be divided by the number of jobs."""
MOST_KEPT: Final = 8
"""Number of searches whose samples are kept."""
MOST_SAMPLES: Final = 100
DROPOUT: Final = 0.25
LOAD_CHANGE: Final = 0.20
MISSES: Final = 5
_STARTS: Final = 3
_LOOKS: Final = 300
"""Number of random points, from which the starting points of the climbs are chosen by expected improvement."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One sample: the parts, the score, and by job target / latency (LRAs) or work rate (batch)."""

    point: Point
    score: float
    by_job: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Past:
    """Samples of an earlier search for these jobs at these loads."""

    jobs: tuple[str, ...]
    loads: tuple[float, ...]
    seen: tuple[Seen, ...]


@dataclass(frozen=True, slots=True)
class CliteMemory:
    """``asked``: the point now in force; ``todo``: remaining points of the bootstrap; ``kept``: the point that is kept
    after the search; ``settling``: the point was only just set. ``left``: samples until the search ends in any case;
    ``past``: earlier searches, the latest last.
    """

    jobs: tuple[str, ...] = ()
    services: int = 0
    seen: tuple[Seen, ...] = ()
    todo: tuple[Point, ...] = ()
    asked: Point | None = None
    kept: bool = False
    loads: tuple[float, ...] = ()
    misses: int = 0
    round: int = 0
    settling: bool = False
    left: int = 0
    past: tuple[Past, ...] = ()

    @property
    def searching(self) -> bool:
        """True while the point in force is only a sample."""
        return bool(self.jobs) and not self.kept


class ClitePolicy:
    """The policy of the module. ``most_samples``: number of samples after which the best point is kept."""

    def __init__(
        self,
        seed: int = 0,
        most_samples: int = MOST_SAMPLES,
        *,
        as_published: bool = False,
        forgets: bool = False,
    ) -> None:
        self._seed, self._most_samples, self._as_published = seed, most_samples, as_published
        self._forgets = forgets or as_published

    @property
    def name(self) -> str:
        """``clite``."""
        return "clite"

    def decide(self, snapshot: Snapshot) -> TargetState:
        """Take the sample of the point in force, then choose the next."""
        views = [v for v in (*lras(snapshot), *batches(snapshot)) if v.sample is not None]
        jobs = tuple(v.spec.name for v in views)
        services = sum(v.spec.name in {w.spec.name for w in lras(snapshot)} for v in views)
        total = capacity(snapshot)
        if len(jobs) < 2 or min(total.get(r) or len(jobs) for r in RESOURCES) < len(jobs):
            return TargetState({}, memory=CliteMemory(past=_filed(_memory(snapshot))))
        memory = _memory(snapshot)
        loads = tuple(_load(v) for v in views[:services])
        if memory.jobs != jobs or _moved(memory.loads, loads):
            memory = self._begun(memory, jobs, services, total, loads)
        elif not memory.settling:
            memory = self._sampled(memory, views, total, loads)
        if memory.settling:
            memory = replace(memory, settling=False)
        elif not memory.kept:
            memory = replace(self._next(memory, total), settling=True)
        assert memory.asked is not None
        parts = [((job,), _units(part)) for job, part in zip(jobs, memory.asked, strict=True)]
        return TargetState(settings_of(snapshot.host, parts), memory=memory)

    def _sampled(
        self, memory: CliteMemory, views: list[WorkloadView], total: Units, loads: tuple[float, ...]
    ) -> CliteMemory:
        assert memory.asked is not None
        by_job = tuple(
            ratio(view) if index < memory.services else _rate(view) for index, view in enumerate(views)
        )
        if memory.kept:
            missed = any(value < 1.0 for value in by_job[: memory.services])
            misses = memory.misses + 1 if missed else 0
            if misses < MISSES or self._as_published:
                return replace(memory, misses=misses)
            if self._forgets:
                again = begun(memory.jobs, memory.services, total, loads, memory.round + 1)
                return replace(again, left=self._most_samples)
            # The point in force is worse than expected: its new sample counts, and the search continues.
            more = self._most_samples // 2
            memory = replace(memory, kept=False, misses=0, round=memory.round + 1, left=more, loads=loads)
        iso = isolated(memory, by_job)
        assert memory.asked is not None
        seen = Seen(memory.asked, score(by_job, memory.services, iso), by_job)
        others = tuple(s for s in memory.seen if s.point != seen.point)
        left = max(memory.left - 1, 0)
        return replace(memory, seen=rescored((*others, seen), memory.services, iso), left=left)

    def _begun(
        self,
        before: CliteMemory,
        jobs: tuple[str, ...],
        services: int,
        total: Units,
        loads: tuple[float, ...],
    ) -> CliteMemory:
        """A search for other jobs or loads: it starts from earlier samples of them, else from the bootstrap."""
        past = _filed(before)
        known = next(
            (p.seen for p in reversed(past) if p.jobs == jobs and p.seen and not _moved(p.loads, loads)), ()
        )
        fresh = replace(begun(jobs, services, total, loads), left=self._most_samples, past=past)
        if not known or self._forgets:
            return fresh
        best = max(known, key=lambda s: s.score)
        return replace(fresh, seen=known, todo=(best.point,), left=self._most_samples // 2)

    def _next(self, memory: CliteMemory, total: Units) -> CliteMemory:
        if memory.todo:
            return replace(memory, asked=memory.todo[0], todo=memory.todo[1:])
        best = max(memory.seen, key=lambda s: s.score)
        if memory.left <= 0:
            return replace(memory, asked=best.point, kept=True)
        random = Random(f"{self._seed}:{memory.round}:{len(memory.seen)}")
        point, gain = propose(memory, total, random)
        if gain < STOP_EI / len(memory.jobs):
            return replace(memory, asked=best.point, kept=True)
        return replace(memory, asked=point)


def _memory(snapshot: Snapshot) -> CliteMemory:
    return snapshot.memory if isinstance(snapshot.memory, CliteMemory) else CliteMemory()


def _filed(memory: CliteMemory) -> tuple[Past, ...]:
    """The earlier searches, and the present or last one."""
    if not memory.seen:
        return memory.past
    others = [p for p in memory.past if p.jobs != memory.jobs or _moved(p.loads, memory.loads)]
    return (*others, Past(memory.jobs, memory.loads, memory.seen))[-MOST_KEPT:]


# -- the search ------------------------------------------------------------------------------------------


def begun(
    jobs: tuple[str, ...], services: int, total: Units, loads: tuple[float, ...], turn: int = 0
) -> CliteMemory:
    """The bootstrap: every job's extreme, and the equal split."""
    count = len(jobs)

    def extreme(rich: int) -> Point:
        return tuple(
            tuple((total.get(r) - count + 1 if job == rich else 1) if total.get(r) else 0 for r in RESOURCES)
            for job in range(count)
        )

    equal: Point = tuple(tuple(u.get(r) for r in RESOURCES) for u in equal_parts(total, count))
    todo = (*(extreme(job) for job in range(count)), equal)
    return CliteMemory(jobs, services, (), todo, None, loads=loads, round=turn)


def isolated(memory: CliteMemory, by_job: tuple[float, ...]) -> tuple[float, ...]:
    """Performance of each job with all units: at its own extreme point or, before that is sampled, the best so far."""
    rows = [*(s.by_job for s in memory.seen), by_job]
    return tuple(max(row[job] for row in rows) for job in range(len(by_job)))


def score(by_job: tuple[float, ...], services: int, iso: tuple[float, ...]) -> float:
    """CLITE's objective."""
    if any(value < 1.0 for value in by_job[:services]):
        return 0.5 * _geometric([min(1.0, value) for value in by_job[:services]])
    judged = range(services, len(by_job)) if len(by_job) > services else range(services)
    return 0.5 + 0.5 * _geometric([min(1.0, by_job[j] / max(iso[j], 1e-12)) for j in judged])


def rescored(seen: tuple[Seen, ...], services: int, iso: tuple[float, ...]) -> tuple[Seen, ...]:
    """The sample's score with the present knowledge of performance in isolation."""
    return tuple(replace(s, score=score(s.by_job, services, iso)) for s in seen)


def propose(memory: CliteMemory, total: Units, random: Random) -> tuple[Point, float]:
    """The next point, and its expected improvement."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import Matern

    count = len(memory.jobs)
    axes = [r for r, name in enumerate(RESOURCES) if total.get(name)]
    x = np.array([[s.point[j][r] for j in range(count - 1) for r in axes] for s in memory.seen], dtype=float)
    y = np.array([s.score for s in memory.seen])
    process = GaussianProcessRegressor(
        Matern(length_scale=1.0, length_scale_bounds=(1.0, 20.0), nu=1.5),
        alpha=1e-5,
        normalize_y=True,
        random_state=0,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        process.fit(x, y)
    top = float(y.max())
    held: int | None = None
    best = memory.seen[int(y.argmax())]
    if random.random() < DROPOUT and count > 2:
        held = max(range(count - 1), key=lambda j: best.by_job[j] if j < memory.services else 0.0)
    found = _climb(process, top, best.point, held, total, axes, count, random)
    point, gain = found
    if any(s.point == point for s in memory.seen):
        point = perturbed(best, memory.services, total, random, {s.point for s in memory.seen})
        gain = max(gain, float(_gain(process, _flat(point, axes), top)[0]))
    return point, gain


def _climb(
    process: Any, top: float, best: Point, held: int | None,
    total: Units, axes: list[int], count: int, random: Random,
) -> tuple[Point, float]:  # fmt: skip
    """SLSQP from a few starts; the rounded point with the most expected improvement."""
    from scipy.optimize import minimize  # type: ignore[import-untyped]

    width = len(axes)
    units = np.array([total.get(RESOURCES[r]) for r in axes], dtype=float)
    bounds = []
    for job in range(count - 1):
        for place, r in enumerate(axes):
            part = best[job][r]
            bounds.append((part, part) if job == held else (1.0, units[place] - count + 1))
    places = np.arange(len(bounds)) % width
    limits = [
        {
            "type": "ineq",
            "fun": lambda v, p=place: units[p] - 1.0 - v[p::width].sum(),
            "jac": lambda v, p=place: np.where(places == p, -1.0, 0.0),
        }
        for place in range(width)
    ]
    field = np.vstack([_flat(_anywhere(total, count, random, best, held), axes) for _ in range(_LOOKS)])
    promising = np.argsort(-_gain(process, field, top), kind="stable")[: _STARTS - 1]
    starts = [_flat(best, axes)[0], *field[promising]]
    champion: tuple[Point, float] | None = None
    nudge = 0.05 * np.eye(len(bounds))

    def cost(v: npt.NDArray[np.float64]) -> tuple[float, npt.NDArray[np.float64]]:
        """The negative expected improvement and its gradient, from one prediction."""
        gains = _gain(process, np.vstack([v[None, :], v[None, :] + nudge]), top)
        return -float(gains[0]), -(gains[1:] - gains[0]) / 0.05

    for start in starts:
        done = minimize(
            cost, start, jac=True, method="SLSQP", bounds=bounds, constraints=limits, options={"maxiter": 15}
        )
        point = _whole(done.x, total, axes, count)
        gain = float(_gain(process, _flat(point, axes), top)[0])
        if champion is None or gain > champion[1]:
            champion = point, gain
    assert champion is not None
    return champion


def predicted(
    process: Any, x: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Mean and standard deviation at ``x``, as from ``process.predict`` but without its checks of every input.

    A search predicts some hundred points a few thousand times, and the checks cost more than the predictions.
    """
    known = process.X_train_ / process.kernel_.length_scale
    asked = x / process.kernel_.length_scale
    squares = (asked * asked).sum(1)[:, None] + (known * known).sum(1)[None, :] - 2.0 * asked @ known.T
    reach = math.sqrt(3.0) * np.sqrt(np.maximum(squares, 0.0))
    alike = (1.0 + reach) * np.exp(-reach)
    mean = process._y_train_std * (alike @ process.alpha_) + process._y_train_mean
    within = np.linalg.solve(process.L_, alike.T)
    variance = np.maximum(1.0 - (within * within).sum(0), 0.0)
    return mean, np.sqrt(variance) * process._y_train_std


def _gain(process: Any, x: npt.NDArray[np.float64], top: float) -> npt.NDArray[np.float64]:
    """Expected improvement over the best score by more than zeta."""
    mean, sd = predicted(process, x)
    sd = np.maximum(sd, 1e-9)
    z = (mean - top - ZETA) / sd
    density = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    below = 0.5 * (1.0 + np.array([math.erf(v / math.sqrt(2.0)) for v in z]))
    return np.asarray((mean - top - ZETA) * below + sd * density, dtype=float)


def perturbed(best: Seen, services: int, total: Units, random: Random, known: set[Point]) -> Point:
    """Move units from a job that meets its target (or from batch) to another one until the point is new."""
    point = best.point
    givers = [j for j in range(len(point)) if j >= services or best.by_job[j] >= 1.0] or list(
        range(len(point))
    )
    for _ in range(200):
        giver = random.choice(givers)
        taker = random.choice([j for j in range(len(point)) if j != giver])
        r = random.choice([i for i, name in enumerate(RESOURCES) if total.get(name)])
        if point[giver][r] <= 1:
            continue
        rows = [list(part) for part in point]
        rows[giver][r] -= 1
        rows[taker][r] += 1
        point = tuple(tuple(row) for row in rows)
        if point not in known:
            return point
    return point


def _anywhere(total: Units, count: int, random: Random, best: Point, held: int | None) -> Point:
    columns = []
    for r, name in enumerate(RESOURCES):
        units = total.get(name)
        if not units:
            columns.append([0] * count)
            continue
        fixed = best[held][r] if held is not None else 0
        free = [j for j in range(count) if j != held]
        cuts = sorted(random.sample(range(1, units - fixed), len(free) - 1))
        sizes = [b - a for a, b in zip((0, *cuts), (*cuts, units - fixed), strict=True)]
        column = [fixed] * count
        for j, size in zip(free, sizes, strict=True):
            column[j] = size
        columns.append(column)
    return tuple(tuple(column[j] for column in columns) for j in range(count))


def _whole(x: npt.NDArray[np.float64], total: Units, axes: list[int], count: int) -> Point:
    """The point rounded down; the last job gets the rest."""
    rows = [[0] * len(RESOURCES) for _ in range(count)]
    for place, r in enumerate(axes):
        left = total.get(RESOURCES[r])
        for job in range(count - 1):
            part = max(1, math.floor(float(x[job * len(axes) + place]) + 1e-6))
            part = min(part, left - (count - 1 - job))
            rows[job][r] = part
            left -= part
        rows[count - 1][r] = left
    return tuple(tuple(row) for row in rows)


def _flat(point: Point, axes: list[int]) -> npt.NDArray[np.float64]:
    return np.array([[point[j][r] for j in range(len(point) - 1) for r in axes]], dtype=float)


# -- what is seen ----------------------------------------------------------------------------------------


def ratio(view: WorkloadView) -> float:
    """Target over latency (or work over its target, if that is worse); 0 if no request was answered."""
    sample, objective = view.sample, view.spec.objective
    assert sample is not None
    found = []
    latency = sample.reading(f"latency_{objective.latency_percentile}_ms")
    if objective.max_latency_ms is not None:
        found.append(objective.max_latency_ms / latency if available(latency) and latency > 0 else 0.0)
    if objective.min_work_rate_per_s is not None:
        found.append(value_or(sample.work_rate_per_s, 0.0) / objective.min_work_rate_per_s)
    return min(found, default=1.0)


def _rate(view: WorkloadView) -> float:
    """Performance of batch: instructions per second."""
    return value_or(view.sample.mips, 0.0) if view.sample is not None else 0.0


def _load(view: WorkloadView) -> float:
    return value_or(view.sample.load_per_s, 0.0) if view.sample is not None else 0.0


def _moved(before: tuple[float, ...], now: tuple[float, ...]) -> bool:
    return len(before) != len(now) or any(
        abs(b - a) > LOAD_CHANGE * max(a, 1e-9) for a, b in zip(before, now, strict=True)
    )


def _units(part: tuple[int, ...]) -> Units:
    return Units(*part)


def _geometric(values: list[float]) -> float:
    return math.exp(sum(math.log(max(v, 1e-6)) for v in values) / len(values)) if values else 1.0
