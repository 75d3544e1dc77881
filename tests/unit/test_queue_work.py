"""Run times by work: how much is left, at which rate, and when the clock is the better predictor."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from perphd.agent.queue.given import GivenCpus, QueueGiven
from perphd.agent.queue.planning import CYCLE_S, PlannedUse, QueuePlanner
from perphd.batch.job import JobState, QueuedJob
from perphd.batch.job_worth import (
    UNMEASURED,
    both_ends,
    left_of,
    left_with_basis,
    run_time_of,
    run_time_with_basis,
)
from perphd.batch.look import CPU, INSTRUCTIONS, ActiveJob, JobOutlook
from perphd.batch.observations import Observations
from perphd.batch.work import (
    FIRST_LOOK_S,
    RunTimeBasis,
    WorkDone,
    WorkKind,
    WorkOutlook,
    by_work,
    error_share,
    stretched,
    work_left,
)
from perphd.commands.render_jobs import _basis
from perphd.config.tables import QueueConfig
from perphd.domain.allocation import Settings
from perphd.domain.cpuset import CpuSet
from perphd.domain.job import HISTORY_FILE
from perphd.forecast.histogram import Histogram, of_values
from perphd.forecast.history.store import JobHistory
from tests.unit.queue_world import spec
from tests.unit.test_queue_scheduling import NOW_S, running, view, waiting

STEADY = of_values([1150.0, 1200.0, 1250.0] * 5)
"""CPU seconds of jobs that do the same, at two CPUs for ten minutes."""
CLOCK = of_values([500.0, 600.0, 700.0] * 5)


def outlook(share: float | None = None, law: Histogram = STEADY, cpus: float = 2.0) -> JobOutlook:
    work = WorkOutlook(WorkKind.CPU_TIME, law, cpus, cpus, 2.0 * cpus, share)
    return JobOutlook(CLOCK, works=(work,))


def active(ran_s: float, cpus: float, given: float = math.inf, **changes: object) -> ActiveJob:
    """A running job that has had ``cpus`` all the time."""
    done = WorkDone().with_use(ran_s, cpus, None)
    each = replace(running(1, ran_s), outlook=outlook(), done=done, given=given)
    return replace(each, **changes)  # type: ignore[arg-type]


def test_a_job_that_gets_half_of_what_others_got_takes_as_long_again() -> None:
    slow = active(400.0, 1.0)
    law, basis = left_with_basis(slow, NOW_S)
    assert law.median_s == pytest.approx(800.0, rel=0.05), "800 of 1200 CPU seconds, at one CPU"
    assert (basis.by, basis.done, basis.rate) == (WorkKind.CPU_TIME, 400.0, 1.0)
    assert basis.usual == pytest.approx(1200.0, rel=0.02)
    by_clock = left_of(replace(slow, outlook=replace(slow.outlook, works=())), NOW_S)
    assert by_clock.median_s == pytest.approx(200.0, rel=0.1)


def test_the_law_of_what_is_left_is_that_of_more_work_than_was_done() -> None:
    law = of_values([float(n) for n in range(1, 101)])
    left = work_left(law, 50.0, 2.0)
    for t in (0.0, 5.0, 12.5, 20.0):
        expected = (1.0 - (50.0 + 2.0 * t) / 100.0) / 0.5
        assert left.survival(t) == pytest.approx(expected, abs=0.03)
    assert left.longest_s == pytest.approx(25.0)
    beyond = work_left(law, 120.0, 2.0)
    assert (beyond.survival(59.0), beyond.survival(60.0)) == (1.0, 0.0), "as much again as was done"


def test_fewer_cpus_stretch_only_the_time_on_the_cpu() -> None:
    assert stretched(2.0, 4.0, 4.0) == 2.0
    assert stretched(2.0, 2.0, 1.0) == pytest.approx(1.0)
    # 100 CPU seconds: 25 s at 4 CPUs and 25 s off the CPU; at one CPU 125 s in all.
    assert 100.0 / stretched(2.0, 4.0, 1.0) == pytest.approx(125.0)
    assert stretched(2.0, 4.0, 0.0) > 0.0
    assert run_time_of(outlook(), 1.0).median_s == pytest.approx(1200.0 + 300.0, rel=0.05)
    assert run_time_of(outlook()).median_s == pytest.approx(600.0, rel=0.05)


def test_a_ceiling_in_force_counts_before_it_is_measured() -> None:
    assert left_of(active(400.0, 2.0), NOW_S).median_s == pytest.approx(200.0, rel=0.1)
    assert left_of(active(400.0, 2.0, given=0.5), NOW_S).median_s == pytest.approx(800.0, rel=0.1)
    starved = active(400.0, 0.0)
    assert left_of(starved, NOW_S).longest_s < math.inf


def test_the_rate_follows_what_a_job_gets_now() -> None:
    done = WorkDone()
    for cpus in [4.0] * 60 + [1.0] * 120:
        done = done.with_use(5.0, cpus, None)
    assert done.cpu_s == 60 * 20.0 + 120 * 5.0
    assert done.cpus == pytest.approx(1.0, abs=0.3)
    short = WorkDone().with_use(5.0, 4.0, None).with_use(5.0, 2.0, None)
    assert short.cpus == pytest.approx(3.0), "a mean, at first"


def test_what_was_not_measured_is_left_to_the_clock() -> None:
    unseen = active(400.0, 1.0, done=WorkDone().with_use(100.0, 1.0, None))
    law, basis = left_with_basis(unseen, NOW_S)
    assert (basis.by, basis.why) == (WorkKind.RUN_TIME, UNMEASURED)
    assert law.median_s == pytest.approx(200.0, rel=0.1)
    nearly = WorkDone().with_use(380.0, 1.0, None).of(WorkKind.CPU_TIME, 400.0)
    assert nearly == (400.0, 1.0), "the rest did as much"


def test_instructions_count_before_cpu_time_where_this_run_is_counted() -> None:
    counted = WorkOutlook(WorkKind.INSTRUCTIONS, of_values([1e12] * 9), 2e9, 2.0, 2.0)
    works = (counted, *outlook().works)
    each = active(100.0, 1.0)
    assert (
        left_with_basis(replace(each, outlook=JobOutlook(CLOCK, works=works)), NOW_S)[1].by
        is WorkKind.CPU_TIME
    )
    done = WorkDone().with_use(100.0, 1.0, 5e8)
    law, basis = left_with_basis(replace(each, outlook=JobOutlook(CLOCK, works=works), done=done), NOW_S)
    assert (basis.by, basis.done, basis.rate) == (WorkKind.INSTRUCTIONS, 5e10, 5e8)
    assert law.median_s == pytest.approx(0.95e12 / 5e8, rel=0.02)


def test_what_varies_less_is_used_until_errors_are_known() -> None:
    wide = of_values([100.0, 1000.0, 4000.0] * 5)
    assert by_work(outlook().works[0], CLOCK)[0]
    better, why = by_work(outlook(law=wide).works[0], CLOCK)
    assert not better
    assert why.startswith("spread among similar jobs: CPU time")
    assert by_work(outlook(0.2, wide).works[0], CLOCK) == (
        True,
        "shares of past errors: CPU time 20%, run time 80%",
    )
    assert not by_work(outlook(0.7).works[0], CLOCK)[0]
    asleep = WorkOutlook(WorkKind.CPU_TIME, STEADY, 0.01, 0.01, 0.02)
    assert "wait for other resources" in by_work(asleep, CLOCK)[1]
    assert run_time_with_basis(JobOutlook())[1].by is WorkKind.NOTHING
    assert run_time_with_basis(outlook(0.7))[1].by is WorkKind.RUN_TIME


def test_the_errors_of_both_are_divided() -> None:
    assert error_share([], 600.0) is None
    assert error_share([(600.0, 600.0)], 600.0) == 0.5
    assert error_share([(550.0, 400.0), (600.0, 650.0)], 600.0) == pytest.approx(50 / 300)


def test_both_predict_at_one_two_and_four_minutes() -> None:
    observed, job = Observations(), running(1, 600.0).job
    each = observed.active(job, outlook(), NOW_S - 600.0, CYCLE_S)
    for n in range(1, 121):
        now_s = NOW_S - 600.0 + 5.0 * n
        observed.see(job, 5.0, {CPU: 1.0}, outlook())
        each = observed.active(job, outlook(), now_s, CYCLE_S)
        assert len(observed.of(job).predicted) == (
            0 if n < 12 else 1 + int(math.log2(5.0 * n / FIRST_LOOK_S))
        )
    work, clock = observed.of(job).predicted[-1]
    assert work == pytest.approx(1200.0, rel=0.05)
    assert clock == pytest.approx(600.0, rel=0.1)
    assert both_ends(replace(each, outlook=JobOutlook()), NOW_S) is None


# --- in the queue ------------------------------------------------------------------------------------------------


def planner(folder: Path) -> QueuePlanner:
    return QueuePlanner(QueueConfig(enabled=True), folder, folder)


def ran(
    plan: QueuePlanner, number: int, cpus: Iterator[float], work: float, until_s: float = math.inf
) -> QueuedJob:
    """A job runs until it has used ``work`` CPU seconds; returned as it ended, or as it runs after ``until_s``."""
    started = QueuedJob(
        number, spec("sleep", cpus=2.0), NOW_S, JobState.RUNNING, NOW_S, attempt=1, confirmed=True
    )
    done = seconds = 0.0
    while done < work and seconds < until_s:
        rate = next(cpus)
        done, seconds = done + 5.0 * rate, seconds + 5.0
        use = PlannedUse(5.0, {CPU: 0.0}, {number: {CPU: rate, INSTRUCTIONS: 1e9 * rate}})
        plan.take([use], {number: started}, (8.0, 16e9))
        plan.view(None, NOW_S + seconds, (8.0, 16e9), [], [started], 1.0)
    if done < work:
        return replace(started, ran_s=seconds, since_s=NOW_S + seconds)
    ended = replace(started, state=JobState.DONE, ran_s=seconds, since_s=NOW_S + seconds)
    plan.ended(ended, NOW_S + seconds)
    return ended


def always(cpus: float) -> Iterator[float]:
    while True:
        yield cpus


def test_the_history_of_jobs_says_when_a_slow_one_ends(tmp_path: Path) -> None:
    plan, random = planner(tmp_path), Random(3)
    for number in range(1, 7):
        ran(plan, number, always(random.choice([1.0, 2.0])), 900.0 * random.uniform(0.98, 1.02))
    job = ran(plan, 9, always(0.5), 900.0, 300.0)
    (each,) = plan.view(None, job.since_s, (8.0, 16e9), [], [job], 1.0).active
    law, basis = left_with_basis(each, job.since_s)
    assert basis.by is WorkKind.INSTRUCTIONS
    assert law.median_s == pytest.approx((900.0 - 150.0) / 0.5, rel=0.05)
    assert "shares of past errors" in basis.why


def test_jobs_that_wait_for_a_timer_teach_the_queue_to_look_at_the_clock(tmp_path: Path) -> None:
    """They always run five minutes, and use a CPU in bursts that differ tenfold."""
    plan, random = planner(tmp_path), Random(4)
    for number in range(1, 9):
        rate = random.uniform(0.1, 1.0)
        ran(plan, number, always(rate), rate * 299.0)
    job = ran(plan, 9, always(0.3), 1e9, 120.0)
    (each,) = plan.view(None, job.since_s, (8.0, 16e9), [], [job], 1.0).active
    law, basis = left_with_basis(each, job.since_s)
    assert basis.by is WorkKind.RUN_TIME
    assert law.median_s == pytest.approx(180.0, rel=0.05)


def complete(plan: QueuePlanner, number: int) -> None:
    """A job with a name of its own is done."""
    job = QueuedJob(
        number, spec(name=f"run-{number}"), NOW_S, JobState.DONE, NOW_S, attempt=1, ran_s=60.0 + number
    )
    plan.ended(job, NOW_S + number)


def test_the_history_keeps_as_many_rows_as_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without forecasts, no other process prunes it."""
    monkeypatch.setattr("perphd.agent.queue.planning.PRUNED_EVERY", 2)
    plan = QueuePlanner(QueueConfig(enabled=True), tmp_path, tmp_path, 25)
    for number in range(1, 8):
        complete(plan, number)
    assert plan.problem == ""
    with JobHistory(tmp_path / HISTORY_FILE) as history:
        assert len(history) == 25
    complete(QueuePlanner(QueueConfig(enabled=True), tmp_path, tmp_path, 10), 8)
    with JobHistory(tmp_path / HISTORY_FILE) as history:
        assert len(history) == 10, "after a restart with a lower number as well"


def test_no_job_is_recorded_where_no_rows_are_configured(tmp_path: Path) -> None:
    plan = QueuePlanner(QueueConfig(enabled=True), tmp_path, tmp_path, 0)
    complete(plan, 1)
    assert plan.problem == ""
    assert not (tmp_path / HISTORY_FILE).exists()


def test_the_cpus_in_force_are_those_of_the_last_round() -> None:
    given, job = QueueGiven(), running(7, cpus=2.0).job
    given.over(job, Settings(cpus=CpuSet.of([0, 1, 2])), 1.0)
    given.over(running(8).job, Settings(cpu_max_cores=0.5), 1.0)
    assert given.cpus == GivenCpus({}), "this round is not over"
    given.round_over()
    assert (given.cpus.of(7), given.cpus.of(8), given.cpus.of(9), given.cpus.batch) == (
        3.0,
        0.5,
        math.inf,
        3.0,
    )
    event = given.over(job, Settings(), 0.25)
    assert event.cpu_max_cores == 0.5
    assert given.over(job, Settings(), 0.0).frozen is True
    given.round_over()
    given.round_over()
    assert given.cpus.of(7) == math.inf


def test_a_waiting_job_counts_with_the_cpus_that_batch_has() -> None:
    job = waiting(1, cpus=2.0)
    assert view(job).given(job) == 8.0
    assert view(job, batch_cpus=3.0).given(job) == 3.0
    assert view(job, others_cpus=of_values([6.0] * 9)).given(job) == pytest.approx(2.0)
    assert view(job, copper_share=0.25).given(job) == 0.5


def test_a_basis_in_words() -> None:
    assert _basis(RunTimeBasis(WorkKind.NOTHING)) == []
    assert _basis(RunTimeBasis(WorkKind.CPU_TIME, "it varies less", 400.0, 1200.0, 1.0)) == [
        "run time  by CPU time: 6 min of 20 min done, at 1 CPUs (it varies less)"
    ]
    assert _basis(RunTimeBasis(WorkKind.INSTRUCTIONS, "", 5e10, 1e12, 5e8)) == [
        "run time  by instructions: 5e+10 of 1e+12 done, at 5e+08 per second"
    ]
    assert _basis(RunTimeBasis(WorkKind.RUN_TIME, "", 60.0, 600.0)) == [
        "run time  by run time: 60 s of 10 min done"
    ]
