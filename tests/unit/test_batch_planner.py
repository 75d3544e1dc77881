"""Expected utility, plans and fairness, against the published scenarios and exhaustive search."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from itertools import product
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perphd.batch.fairness import StartCandidate, longest_waiting, next_start, overdue_after
from perphd.batch.planner import (
    JobPlan,
    PlanWindow,
    RunningJob,
    WaitingJob,
    feasible,
    greedy,
    plan_of,
    program,
    solution_of,
)
from perphd.batch.solver import better, question, solved
from perphd.batch.utility import (
    RunTime,
    Utility,
    adapted,
    expected,
    of_history,
    overestimated,
    remaining,
    uniform,
)
from perphd.forecast.histogram import Histogram, of_values
from perphd.forecast.running import Overrun, moved_end, remaining_work

ONE_NODE = PlanWindow({"nodes": 1.0}, 2.5, 8)
NODE = {"nodes": 1.0}
BEST_EFFORT = Utility(0.125, patience_s=25.0)
"""Worth .1 (1 - s / 20) if started at s, for a mean run time of 5 s: the published one."""


def _scenario(run_time: RunTime, best_effort: Utility = BEST_EFFORT) -> list[WaitingJob]:
    return [
        WaitingJob("D", NODE, run_time, Utility(1.0, deadline_s=15.0)),
        WaitingJob("BE", NODE, run_time, best_effort),
    ]


def _exact(window: PlanWindow, waiting: list[WaitingJob], running: tuple[RunningJob, ...] = ()) -> JobPlan:
    """The plan of HiGHS, where it is better than greedy's."""
    stated, plan = program(window, waiting, running), greedy(window, waiting, running)
    found = better(stated, plan, solved(question(stated, plan, window.slot_s)))
    return plan if found is None else plan_of(found, stated, window.slot_s)


# --- expected utility ----------------------------------------------------------------------------------------


def test_the_published_worth_of_every_slot() -> None:
    starts = [2.5 * n for n in range(8)]
    deadline = Utility(1.0, deadline_s=15.0)
    wide, narrow = uniform(0, 10), uniform(2.5, 7.5)
    assert [expected(deadline, s, wide) for s in starts] == pytest.approx([1, 1, 1, 0.75, 0.5, 0.25, 0, 0])
    assert [expected(deadline, s, narrow) for s in starts] == pytest.approx([1, 1, 1, 1, 0.5, 0, 0, 0])
    for law in (wide, narrow):
        in_time = starts[:7]  # nothing that starts by then outlasts the patience
        assert [expected(BEST_EFFORT, s, law) for s in in_time] == pytest.approx(
            [0.1 * (1 - s / 20) for s in in_time], abs=1e-4
        )


@settings(max_examples=40, deadline=None)
@given(
    st.floats(0, 40),
    st.one_of(
        st.builds(
            Utility,
            st.just(2.0),
            deadline_s=st.floats(-5, 30),
            decay_s=st.one_of(st.just(0.0), st.floats(1, 30)),
        ),
        st.builds(Utility, st.just(2.0), patience_s=st.floats(1, 60)),
    ),
)
def test_the_expected_utility_is_the_mean_over_run_times(start_s: float, utility: Utility) -> None:
    draws = np.linspace(2, 12, 1001)
    mean = float(np.mean([utility.at(start_s + t) for t in draws]))
    assert expected(utility, start_s, uniform(2, 12)) == pytest.approx(mean, abs=0.01)


def test_the_table_of_the_adaptive_rule() -> None:
    impossible, possible = uniform(20, 30), uniform(0, 20)
    assert overestimated(impossible, 10.0, 0.05)  # P(T < 10) = 0
    assert not overestimated(possible, 10.0, 0.05)  # P(T < 10) = .5
    given_up = Utility(1.0, deadline_s=10.0)
    assert expected(given_up, 0.0, impossible) == 0.0
    tried = adapted(given_up, impossible, waited_s=0.0)
    assert 0 < expected(tried, 0.0, impossible) < 1
    assert adapted(given_up, possible, waited_s=0.0) == given_up
    assert adapted(given_up, impossible, waited_s=18.0) == given_up  # it had 28 s at its submission
    assert adapted(BEST_EFFORT, impossible, 0.0) == BEST_EFFORT


def test_a_job_that_seems_impossible_runs_on_what_others_leave() -> None:
    impossible = uniform(20, 30)
    doubtful = WaitingJob("X", NODE, impossible, adapted(Utility(1.0, deadline_s=10.0), impossible, 0.0))
    sure = WaitingJob("D", NODE, uniform(0, 5), Utility(1.0, deadline_s=5.0))
    assert greedy(ONE_NODE, [doubtful, sure]).now == ("D",)
    assert greedy(ONE_NODE, [doubtful]).now == ("X",)


# --- running jobs --------------------------------------------------------------------------------------------


def test_a_running_job_is_conditioned_on_its_elapsed_time() -> None:
    history = of_values(np.linspace(0, 10, 2001))
    left = remaining(history, 5.0, Overrun())
    assert left.survival(2.5) == pytest.approx(0.5, abs=0.01)
    assert left.longest_s == pytest.approx(5.0)
    assert of_history(history).survival(7.5) == pytest.approx(0.25, abs=0.01)


def test_an_under_estimated_job_ends_one_two_four_and_eight_cycles_later() -> None:
    history, overrun, elapsed_s = of_values([10.0] * 5), Overrun(), 10.0
    steps = []
    for _ in range(4):
        overrun = moved_end(overrun, history.most, elapsed_s, cycle_s=1.0)
        left = remaining(history, elapsed_s, overrun)
        steps.append(left.longest_s)
        assert left.survival(left.longest_s - 0.5) == 1.0
        elapsed_s = overrun.end_s
    assert steps == [1.0, 2.0, 4.0, 8.0]
    assert remaining_work(history, 30.0) == 30.0  # half complete


# --- plans ---------------------------------------------------------------------------------------------------

WIDE, NARROW = uniform(0, 10), uniform(2.5, 7.5)


@pytest.mark.parametrize(
    ("run_time", "starts_s", "worth"),
    [(WIDE, {"D": 0.0, "BE": 10.0}, 1.05), (NARROW, {"BE": 0.0, "D": 7.5}, 1.1)],
)
def test_both_published_scenarios(run_time: RunTime, starts_s: dict[str, float], worth: float) -> None:
    jobs = _scenario(run_time)
    for plan in (greedy(ONE_NODE, jobs), _exact(ONE_NODE, jobs)):
        assert plan.starts_s == starts_s
        assert plan.worth == pytest.approx(worth, abs=1e-3)


def test_best_effort_goes_first_only_if_it_is_worth_more_than_the_deadline() -> None:
    jobs = _scenario(WIDE, replace(BEST_EFFORT, greatest=1.01 * 1.25))
    plan = _exact(ONE_NODE, jobs)
    assert plan.starts_s == {"BE": 0.0, "D": 10.0}
    assert plan.worth == pytest.approx(1.51, abs=1e-3)


def test_the_published_row_of_the_program() -> None:
    stated = program(ONE_NODE, _scenario(WIDE))
    row = stated.rows[2 + 1]  # after one row for each job: slot 1, at 2.5 s
    taken = dict(zip(stated.options, row.tolist(), strict=True))
    assert {option: share for option, share in taken.items() if share} == {
        ("D", 0): 0.75,
        ("D", 1): 1.0,
        ("BE", 0): 0.75,
        ("BE", 1): 1.0,
    }


def test_best_effort_first_misses_the_deadline_as_often_as_published() -> None:
    """P(X + Y > 15) for two run times: 12.5 % in the first scenario, 0 in the second."""
    for law, misses in ((WIDE, 0.125), (NARROW, 0.0)):
        ends = np.linspace(0, 10, 100_001)
        density = -np.diff([law.survival(float(t)) for t in ends])
        middles = (ends[:-1] + ends[1:]) / 2
        missed = float(
            sum(p * law.survival(15.0 - t) for p, t in zip(density, middles, strict=True) if p > 0)
        )
        assert missed == pytest.approx(misses, abs=1e-4)


def test_a_job_is_preempted_only_if_that_is_worth_more_than_it_costs() -> None:
    urgent = WaitingJob("D", NODE, uniform(1, 2), Utility(1.0, deadline_s=5.0))
    for cost, preempted in ((0.9, ("old",)), (1.1, ())):
        running = RunningJob("old", NODE, uniform(90, 100), cost)
        for plan in (greedy(ONE_NODE, [urgent], [running]), _exact(ONE_NODE, [urgent], (running,))):
            assert plan.preempted == preempted
            assert plan.now == (("D",) if preempted else ())
    never = RunningJob("lra", NODE, uniform(90, 100))
    assert _exact(ONE_NODE, [urgent], (never,)) == JobPlan()


LAWS = st.tuples(st.floats(0.5, 6), st.floats(0.5, 8)).map(lambda each: uniform(each[0], each[0] + each[1]))
WORTHS = st.one_of(
    st.builds(Utility, st.floats(0.2, 2), deadline_s=st.floats(2, 14)),
    st.builds(Utility, st.floats(0.2, 2), patience_s=st.floats(10, 40)),
)
DEMANDS = st.fixed_dictionaries({"cpus": st.floats(0.5, 4), "memory": st.floats(0.5, 4)})
WAITING = st.lists(st.tuples(DEMANDS, LAWS, WORTHS), min_size=1, max_size=3)
WINDOW = PlanWindow({"cpus": 4.0, "memory": 5.0}, 3.0, 4)


@settings(max_examples=40, deadline=None)
@given(WAITING, st.booleans())
def test_plans_are_feasible_and_the_solver_finds_the_best_of_all(
    parts: list[tuple[dict[str, float], RunTime, Utility]], busy: bool
) -> None:
    jobs = [WaitingJob(f"j{n}", *part) for n, part in enumerate(parts)]
    running = (RunningJob("r", {"cpus": 2.0, "memory": 1.0}, uniform(2, 6), 0.3),) if busy else ()
    stated, plan = program(WINDOW, jobs, running), greedy(WINDOW, jobs, running)
    assert feasible(solution_of(plan, stated, 3.0), stated)
    assert plan.worth == pytest.approx(float(stated.worth @ solution_of(plan, stated, 3.0)))
    best = 0.0
    places = [range(-1, 4)] * len(jobs)
    for slots in product(*places, (0, 1) if busy else (0,)):
        chosen = {(job.name, slot) for job, slot in zip(jobs, slots, strict=False) if slot >= 0}
        chosen |= {("r", -1)} if slots[-1] else set()
        x = np.array([float(option in chosen) for option in stated.options])
        if feasible(x, stated):
            best = max(best, float(stated.worth @ x))
    exact = _exact(WINDOW, jobs, running)
    assert exact.worth == pytest.approx(best, abs=1e-4)
    assert plan.worth <= best + 1e-9


def test_greedy_plans_are_near_the_best_in_nearly_all_mixtures() -> None:
    """A single mixture may fare badly: that is what the solver is for."""
    random, ratios = Random(1), []
    for _ in range(200):
        jobs = [_drawn(f"j{n}", random) for n in range(random.randint(1, 3))]
        busy = random.random() < 0.5
        running = (RunningJob("r", {"cpus": 2.0, "memory": 1.0}, uniform(2, 6), 0.3),) if busy else ()
        best = _exact(WINDOW, jobs, running).worth
        ratios.append(greedy(WINDOW, jobs, running).worth / best if best > 1e-9 else 1.0)
    assert np.mean(ratios) >= 0.97
    assert np.quantile(ratios, 0.1) >= 0.95


def _drawn(name: str, random: Random) -> WaitingJob:
    first_s = random.uniform(0.5, 6)
    worth = random.uniform(0.2, 2)
    if random.random() < 0.5:
        utility = Utility(worth, deadline_s=random.uniform(2, 14))
    else:
        utility = Utility(worth, patience_s=random.uniform(10, 40))
    demand = {"cpus": random.uniform(0.5, 4), "memory": random.uniform(0.5, 4)}
    return WaitingJob(name, demand, uniform(first_s, first_s + random.uniform(0.5, 8)), utility)


def test_the_solver_is_a_process_whose_answers_are_checked() -> None:
    jobs = _scenario(NARROW)
    stated, poor = program(ONE_NODE, jobs), JobPlan({"D": 0.0}, (), 1.0)
    answer = subprocess.run(
        [sys.executable, "-m", "perphd.batch.solver"],
        input=json.dumps(question(stated, poor, 2.5)),
        capture_output=True,
        text=True,
        check=True,
    )
    found = better(stated, poor, json.loads(answer.stdout))
    assert found is not None
    assert plan_of(found, stated, 2.5).starts_s == {"BE": 0.0, "D": 7.5}
    everything = [1.0] * len(stated.options)
    for wrong in (None, [], everything, [0.5] * len(stated.options), [0.0] * len(stated.options)):
        assert better(stated, poor, wrong) is None
    assert solved(question(program(ONE_NODE, []), JobPlan(), 2.5)) is None


def test_an_empty_history_is_no_law() -> None:
    with pytest.raises(ValueError, match="empty histogram"):
        of_history(Histogram()).survival(1.0)


# --- fairness ------------------------------------------------------------------------------------------------


def _waits(name: str, arrived_s: float, **facts: float | bool) -> StartCandidate:
    return replace(StartCandidate(name, arrived_s, 1e9, True), **facts)  # type: ignore[arg-type]


def test_the_choice_is_among_the_longest_waiting_half() -> None:
    waiting = [
        _waits("new", 40, distance=0.0),
        _waits("old", 10, distance=3.0),
        _waits("older", 5, distance=4.0),
    ]
    assert [job.name for job in longest_waiting(waiting)] == ["older", "old"]
    chosen = next_start(waiting, 50.0)
    assert chosen is not None
    assert chosen.name == "old"


def test_an_overdue_job_goes_first_whatever_it_over_allocates() -> None:
    waiting = [_waits("suited", 10), _waits("overdue", 20, overdue_s=60.0, over_ratio=0.5, distance=9.0)]
    before, later = next_start(waiting, 60.0), next_start(waiting, 61.0)
    assert before is not None
    assert later is not None
    assert (before.name, later.name) == ("suited", "overdue")
    assert next_start([_waits("large", 10, fits=False, overdue_s=0.0)], 61.0) is None
    assert next_start([_waits("greedy", 10, over_ratio=0.16)], 61.0) is None
    assert next_start([], 61.0) is None
    assert overdue_after(100.0, 20.0) == 160.0
