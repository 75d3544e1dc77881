"""Figures of a run: violations, time to a feasible setting, batch's work, churn, cost."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace

from tools.bench.policies import builders, oracle
from tools.bench.policies.driver import Round, Run
from tools.bench.policies.oracle import Optimum, Situation
from tools.bench.policies.scene import GRACE, Actor, Goal, Scenario

LOAD_STEP = 0.05
"""Rounding of loads for the optimum, which hardly changes between two rounded loads."""
PHASE_STEP = 0.05
"""Rounding of the log factor of a program's phase for goals."""
STEADY_SHARE = 0.5
"""Final share of the counted time, in which a policy should have settled; samples of a search are excluded."""


@dataclass(frozen=True, slots=True)
class Result:
    """One run in figures.

    ``violation_s``: seconds in which some LRA missed its target by more than the grace; ``excess_s``: those of them in
    which the optimum would have met all; ``depth``: mean shortfall (1 - score) while missed; ``first_ok_s``,
    ``first_ok_samples``: time and samples from the arrival of batch until all targets are met for three rounds (nan:
    never). ``batch``: mean batch work (see ``oracle``); ``of_oracle``: the same over the optimum's, where that is
    feasible; ``steady_of_oracle``, ``steady_violation_share``: of the last half only, without samples of a search (nan:
    it never ended); ``search_share``: share of the counted time that such samples took. ``of_best_score``: if no
    setting meets all targets, the worst LRA's score over the best reachable one (both at most 1). ``good_of_oracle``:
    batch work over the optimum's, without work done while a target was missed; ``good_of_one_class``: the
    same over the best setting that treats all batch as one class. ``makespan_s``: mean over the jobs (nan: no job
    ended). ``churn``: knobs changed per minute; ``actions``: rounds with a change. ``decide_ms``,
    ``learn_ms``: means of wall time per decision; ``decide_p99_ms``.
    """

    scenario: str
    family: str
    policy: str
    seed: int
    seconds: float
    violation_s: float
    excess_s: float
    depth: float
    first_ok_s: float
    first_ok_samples: float
    batch: float
    of_oracle: float
    good_of_oracle: float
    good_of_one_class: float
    steady_of_oracle: float
    steady_violation_share: float
    work: float
    makespan_s: float
    churn: float
    actions: int
    decide_ms: float
    decide_p99_ms: float
    learn_ms: float
    search_share: float = 0.0
    of_best_score: float = math.nan

    def as_dict(self) -> dict[str, object]:
        """For JSON; nan becomes None."""
        return {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in asdict(self).items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> Result:
        """The inverse of ``as_dict``."""
        values = {f.name: data[f.name] for f in fields(cls) if f.name in data}
        return cls(**{k: math.nan if v is None else v for k, v in values.items()})  # type: ignore[arg-type]


def situation_at(scenario: Scenario, at_s: float, gone: frozenset[str] = frozenset()) -> Situation:
    """The situation at this time, with rounded loads."""
    there = [a for a in scenario.actors if a.present(at_s) and a.name not in gone]
    return oracle.situation(
        scenario.machine_at(at_s),
        [(a, a.at(at_s), round(a.load.at(at_s) / LOAD_STEP) * LOAD_STEP or 0.01) for a in there],
    )


def situations(scenario: Scenario) -> dict[str, Situation]:
    """Every situation of a scenario that needs an optimum, by key: those with batch, after counting began.

    Jobs that end by themselves end at different times under different policies; the situation without them has no
    batch.
    """
    if not scenario.oracle:
        return {}
    found: dict[str, Situation] = {}
    at_s = scenario.count_from_s
    while at_s < scenario.duration_s:
        here = situation_at(scenario, at_s + 0.05)
        if here.lras:
            found[here.key] = here
        at_s += 1.0
    return found


def measure(run: Run, optima: Mapping[str, Optimum]) -> Result:
    """Figures of a run, beside the optima of its situations (by key)."""
    scenario = run.scenario
    counted = [r for r in run.rounds if r.interval.at_s > scenario.count_from_s + 1e-9]
    tally = _Tally(scenario, optima)
    for item in counted:
        tally.add(item, run.finished_s)
    half = [m for m in tally.moments[int(len(tally.moments) * (1.0 - STEADY_SHARE)) :] if not m.searching]
    decide = sorted(r.decide_s * 1000.0 for r in run.rounds)
    jobs = [a for a in scenario.batch if a.job is not None]
    spans = [run.finished_s[a.name] - a.starts_s for a in jobs if a.name in run.finished_s]
    seconds = sum(m.seconds for m in tally.moments)
    first = _first_ok(tally)
    shortfalls = [(m.shortfall, m.seconds) for m in tally.moments if m.missed]
    return Result(
        scenario=scenario.name,
        family=scenario.family,
        policy=run.policy,
        seed=run.seed,
        seconds=seconds,
        violation_s=sum(m.seconds for m in tally.moments if m.missed),
        excess_s=sum(m.seconds for m in tally.moments if m.missed and m.feasible),
        depth=_weighted(shortfalls),
        first_ok_s=first[0],
        first_ok_samples=first[1],
        batch=_weighted([(m.batch, m.seconds) for m in tally.moments if m.has_batch]),
        of_oracle=_share(tally.moments),
        good_of_oracle=_share(tally.moments, good_only=True),
        good_of_one_class=_share(tally.moments, good_only=True, one_class=True),
        steady_of_oracle=_share(half),
        steady_violation_share=_weighted([(float(m.missed and m.feasible), m.seconds) for m in half]),
        work=_weighted([(m.work, m.seconds) for m in tally.moments]),
        makespan_s=statistics.fmean(spans) if jobs and len(spans) == len(jobs) else math.nan,
        churn=60.0 * sum(r.moved for r in counted) / max(seconds, 1e-9),
        actions=sum(r.acted for r in counted),
        decide_ms=statistics.fmean(decide) if decide else math.nan,
        decide_p99_ms=decide[int(0.99 * (len(decide) - 1))] if decide else math.nan,
        learn_ms=statistics.fmean(r.learn_s * 1000.0 for r in run.rounds) if run.rounds else math.nan,
        search_share=_weighted([(float(m.searching), m.seconds) for m in tally.moments]),
        of_best_score=_weighted([(m.of_best_score, m.seconds) for m in tally.moments]),
    )


@dataclass(frozen=True, slots=True)
class _Moment:
    at_s: float
    seconds: float
    missed: bool
    shortfall: float
    feasible: bool
    best: float
    one_class: float
    batch: float
    has_batch: bool
    work: float
    searching: bool = False
    of_best_score: float = math.nan


class _Tally:
    """Evaluates the rounds of a run one by one."""

    def __init__(self, scenario: Scenario, optima: Mapping[str, Optimum]) -> None:
        self._scenario, self._optima = scenario, optima
        self._alone: dict[tuple[str, str, float], float] = {}
        self._phases: dict[tuple[str, float, int], tuple[float, float]] = {}
        self.moments: list[_Moment] = []

    def add(self, item: Round, finished_s: Mapping[str, float]) -> None:
        interval, scenario = item.interval, self._scenario
        middle_s = interval.at_s - interval.seconds / 2
        gone = frozenset(n for n, at_s in finished_s.items() if at_s <= middle_s)
        worst = math.inf
        works: list[float] = []
        shares: list[float] = []
        for actor in scenario.actors:
            outcome = interval.outcomes.get(actor.name)
            if outcome is None or not actor.present(middle_s) or actor.name in gone:
                continue
            load = round(actor.load.at(middle_s) / LOAD_STEP) * LOAD_STEP or 0.01
            if actor.is_lra and actor.goal is not None:
                phase = interval.phases.get(actor.name, 1.0)
                goal = self._goal_in(actor, actor.goal, middle_s, load, phase)
                score = goal.score(outcome.work_per_s, outcome.p95_ms)
                worst = min(worst, score)
            if not actor.declared:
                continue
            share = outcome.work_per_s / max(self._rate_alone(actor.name, middle_s, load), 1e-9)
            (works if actor.is_lra else shares).append(share)
        here = situation_at(scenario, middle_s, gone)
        optimum = self._optima.get(here.key)
        feasible = optimum.feasible if optimum is not None else not shares
        self.moments.append(
            _Moment(
                at_s=interval.at_s,
                seconds=interval.seconds,
                missed=worst < 1.0 / GRACE,
                shortfall=max(0.0, 1.0 - worst),
                feasible=feasible,
                best=optimum.work if optimum is not None and optimum.feasible else math.nan,
                one_class=optimum.one_class if optimum is not None and optimum.one_class > 0 else math.nan,
                batch=statistics.fmean(shares) if shares else 0.0,
                has_batch=bool(shares),
                work=statistics.fmean(works) if works else math.nan,
                searching=item.searching,
                of_best_score=min(worst, 1.0) / min(max(optimum.score, 1e-9), 1.0)
                if optimum is not None and not optimum.feasible and worst < math.inf
                else math.nan,
            )
        )

    def _goal_in(self, actor: Actor, goal: Goal, at_s: float, load: float, phase: float) -> Goal:
        """The goal adjusted to a phase that lengthens cycles by the factor ``phase``, which no policy can affect.

        Work and delay change with a phase by other factors than cycles: a loop also waits, and a queue grows faster.
        """
        step = round(math.log(phase) / PHASE_STEP)
        if step == 0:
            return goal
        key = (repr(actor.at(at_s)), load, step)
        if key not in self._phases:
            work, machine = actor.at(at_s), self._scenario.machine_at(at_s)
            longer = replace(work.code, instructions=work.code.instructions * math.exp(step * PHASE_STEP))
            usual, then = (builders.alone(machine, w, load) for w in (work, replace(work, code=longer)))
            self._phases[key] = (
                then.work_per_s / max(usual.work_per_s, 1e-9),
                then.p95_ms / max(usual.p95_ms, 1e-9),
            )
        work_ratio, delay_ratio = self._phases[key]
        return goal.scaled(work_ratio, delay_ratio)

    def _rate_alone(self, name: str, at_s: float, load: float) -> float:
        actor = next(a for a in self._scenario.actors if a.name == name)
        work = actor.at(at_s)
        machine = self._scenario.machine_at(at_s)
        key = (name, repr(work) + str(machine.ghz), load)
        if key not in self._alone:
            self._alone[key] = oracle.alone_rate(machine, work, load)
        return self._alone[key]


def _first_ok(tally: _Tally) -> tuple[float, float]:
    begin_s = tally.moments[0].at_s - tally.moments[0].seconds if tally.moments else 0.0
    good = 0
    for index, moment in enumerate(tally.moments):
        good = 0 if moment.missed else good + 1
        if good == 3:
            first = tally.moments[index - 2]
            return first.at_s - first.seconds - begin_s, float(index - 2)
    return math.nan, math.nan


def _share(moments: list[_Moment], *, good_only: bool = False, one_class: bool = False) -> float:
    """Batch's work over the optimum's, where both are defined."""
    usable = [m for m in moments if m.has_batch and not math.isnan(m.one_class if one_class else m.best)]
    best = sum((m.one_class if one_class else m.best) * m.seconds for m in usable)
    done = sum(m.batch * m.seconds for m in usable if not (good_only and m.missed))
    return done / best if best > 0 else math.nan


def _weighted(pairs: list[tuple[float, float]]) -> float:
    pairs = [(value, weight) for value, weight in pairs if not math.isnan(value)]
    total = sum(weight for _, weight in pairs)
    return sum(value * weight for value, weight in pairs) / total if total > 0 else math.nan


def tail(run: Run, seconds: float) -> tuple[float, float]:
    """Share of time with a missed target, and batch's mean work, in the last seconds of a run."""
    tally = _Tally(run.scenario, {})
    for item in run.rounds:
        if item.interval.at_s > run.scenario.duration_s - seconds:
            tally.add(item, run.finished_s)
    missed = _weighted([(float(m.missed), m.seconds) for m in tally.moments])
    return missed, _weighted([(m.batch, m.seconds) for m in tally.moments])


def score_over(run: Run, seconds: float) -> float:
    """The worst LRA's score over the last seconds of a run, by its mean p95 (weighted by work) and its rate."""
    rounds = [r for r in run.rounds if r.interval.at_s > run.scenario.duration_s - seconds]
    worst = math.inf
    for actor in run.scenario.lras:
        seen = [
            (r.interval.outcomes[actor.name], r.interval.seconds)
            for r in rounds
            if actor.name in r.interval.outcomes
        ]
        work = sum(outcome.work_per_s * length for outcome, length in seen)
        if actor.goal is None or not seen:
            continue
        if work <= 0:
            return 0.0
        p95_ms = sum(outcome.p95_ms * outcome.work_per_s * length for outcome, length in seen) / work
        worst = min(worst, actor.goal.score(work / sum(length for _, length in seen), p95_ms))
    return worst
