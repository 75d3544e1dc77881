"""One look at the queue as a pure function: who starts, who waits and why, and what never happens."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perphd.agent.queue.solver import QueueSolver
from perphd.batch.choice import CONSIDERED, candidates
from perphd.batch.host_laws import HostLaws
from perphd.batch.job import JobState, QueuedJob
from perphd.batch.launching import dependencies
from perphd.batch.look import CPU, EVERY, MEMORY, ActiveJob, EarlierUse, JobOutlook, QueueView
from perphd.batch.observations import Observations
from perphd.batch.planner import JobPlan
from perphd.batch.scheduling import planned, scheduled, stated
from perphd.forecast.histogram import Histogram, of_values
from perphd.qos.bands import QosBand
from tests.unit.queue_world import GIB, spec

NOW_S = 1e6


def waiting(number: int, submitted_s: float = NOW_S, **changes: object) -> QueuedJob:
    return QueuedJob(number, spec(**changes), submitted_s, since_s=submitted_s)


def running(number: int, ran_s: float = 100.0, **changes: object) -> ActiveJob:
    job = waiting(number, NOW_S - ran_s, **changes)
    return ActiveJob(
        replace(job, state=JobState.RUNNING, attempt=1, confirmed=True), JobOutlook(run_time_s=Histogram())
    )


def view(*jobs: QueuedJob, active: tuple[ActiveJob, ...] = (), **changes: Any) -> QueueView:
    outlooks = {job.id: JobOutlook() for job in (*jobs, *(each.job for each in active))}
    values: dict[str, Any] = {
        "now_s": NOW_S,
        "cpus": 8.0,
        "memory_bytes": 16.0 * GIB,
        "waiting": jobs,
        "active": active,
        "outlooks": outlooks,
        "others_cpus": Histogram(),
        "others_memory": Histogram(),
        "average_wait_s": 600.0,
        "epsilon": {CPU: 0.1, MEMORY: 0.01},
        "most_running": 32,
    }
    return QueueView(**(values | changes))


def test_what_else_the_host_uses_is_left_to_it() -> None:
    busy = of_values([5.0] * 20)
    step = scheduled(view(waiting(1, cpus=2.0), waiting(2, cpus=2.0), others_cpus=busy))
    assert step.start == (1,)
    assert "2 CPUs would be too many with a probability of 100%" in step.reasons[2]


def test_a_history_of_small_use_lets_more_jobs_run_than_their_requests_do() -> None:
    known = JobOutlook(cpus=of_values([0.9, 1.0, 1.1] * 5), memory_bytes=of_values([GIB / 2] * 15))
    jobs = [waiting(n, cpus=4.0, memory_bytes=4 * GIB) for n in range(1, 7)]
    assert len(scheduled(view(*jobs)).start) == 2
    outlooks = {job.id: known for job in jobs}
    assert len(scheduled(view(*jobs, outlooks=outlooks)).start) == 6


def ended(number: int, state: JobState) -> QueuedJob:
    return replace(waiting(number), state=state)


def evicted(bytes_used: float, seconds: float) -> EarlierUse:
    return EarlierUse(
        {name: of_values([bytes_used]) if name == MEMORY else Histogram() for name in EVERY}, seconds
    )


@pytest.mark.parametrize("history", [Histogram(), of_values([GIB] * 50)])
def test_a_job_that_was_evicted_waits_for_what_it_used_and_not_for_what_it_was_predicted_to(
    history: Histogram,
) -> None:
    job, other = waiting(1, memory_bytes=GIB), running(8, memory_bytes=8 * GIB)
    outlooks = {1: JobOutlook(memory_bytes=history), 8: JobOutlook()}
    seen = view(job, active=(other,), outlooks=outlooks)
    assert scheduled(seen).start == (1,)
    for seconds in (12.0, 600.0):
        step = scheduled(replace(seen, earlier={1: evicted(10.0 * GIB, seconds)}))
        assert step.start == ()
        assert "memory would be too much with a probability of 100%" in step.reasons[1]
    assert scheduled(replace(seen, earlier={1: evicted(6.0 * GIB, 600.0)})).start == (1,)


def test_what_an_attempt_used_is_known_until_its_job_ends() -> None:
    observed, job = Observations(), running(1).job
    observed.see(job, 5.0, {MEMORY: 10.0 * GIB}, JobOutlook())
    observed.forget(replace(job, state=JobState.REQUEUED), False)
    assert observed.earlier == {}, "it was only preempted"
    observed.see(job, 5.0, {MEMORY: 10.0 * GIB}, JobOutlook())
    observed.forget(replace(job, state=JobState.REQUEUED, failures=1), False)
    assert observed.earlier[1].seen[MEMORY].most == 10.0 * GIB
    again = replace(job, attempt=2, failures=1)
    observed.see(again, 5.0, {MEMORY: 1.0 * GIB}, JobOutlook())
    active = observed.active(again, JobOutlook(), NOW_S, 10.0)
    assert (active.memory_bytes.most, active.observed_s) == (10.0 * GIB, 10.0)
    observed.forget(replace(again, state=JobState.FAILED), False)
    assert observed.earlier == {}


def test_alone_a_job_runs_whatever_cpus_it_asks_for_but_not_without_its_memory() -> None:
    busy = of_values([3.0] * 10)
    assert scheduled(view(waiting(1, cpus=8.0), others_cpus=busy)).start == (1,)
    full = of_values([10.0 * GIB] * 10)
    assert scheduled(view(waiting(1, cpus=8.0, memory_bytes=8 * GIB), others_memory=full)).start == ()


def test_an_overdue_job_that_does_not_fit_lets_only_deadlines_pass() -> None:
    old = waiting(1, NOW_S - 3 * 600.0 - 1.0, cpus=6.0)
    urgent = waiting(2, cpus=1.0, deadline_s=NOW_S + 7200.0)
    step = scheduled(view(old, urgent, waiting(3, cpus=1.0), active=(running(9, cpus=6.0),)))
    assert step.start == (2,)
    assert step.reasons[3] == "job 1 has waited longest and goes first"


def test_an_overdue_core_that_lacks_places_is_not_delayed_by_single_jobs() -> None:
    core = [
        replace(waiting(n, NOW_S - 5000.0, cpus=0.5, elastic=(3, 3), array=(n - 1, 3)), id=n)
        for n in (1, 2, 3)
    ]
    single = waiting(9, cpus=0.5)
    active = (running(20, cpus=0.5), running(21, cpus=0.5))
    full = view(core[0], single, active=active, together={1: (2, 3)}, most_running=4)
    step = scheduled(full)
    assert step.start == ()  # with job 9 in the fourth place, three places would never be free at once
    assert "job 1 has waited longest" in step.reasons[9]
    fresh = replace(core[0], submitted_s=NOW_S)
    assert scheduled(replace(full, waiting=(fresh, single))).start == (9,)
    urgent = waiting(10, cpus=0.5, deadline_s=NOW_S + 9000.0)
    assert 10 in scheduled(view(core[0], urgent, active=active, together={1: (2, 3)}, most_running=4)).start


def test_a_deadline_ahead_goes_before_overdue_jobs_and_one_that_has_passed_does_not() -> None:
    old = [waiting(n, NOW_S - 5000.0, cpus=8.0) for n in range(1, CONSIDERED + 1)]
    urgent = waiting(98, cpus=8.0, deadline_s=NOW_S + 3600.0)
    assert scheduled(view(*old, urgent)).start == (98,)
    missed = waiting(99, cpus=8.0, deadline_s=NOW_S - 1.0)
    assert candidates(view(*old, missed, urgent))[:2] == [urgent, old[0]]
    assert scheduled(view(old[0], missed)).start == (1,)


def test_a_history_that_rules_a_deadline_out_is_doubted_unless_that_is_switched_off() -> None:
    job = waiting(1, cpus=1.0, deadline_s=NOW_S + 300.0)
    known = {1: JobOutlook(run_time_s=of_values([900.0, 1000.0, 1100.0]))}
    for doubted, planned_now in ((0.05, ("1",)), (0.0, ())):
        seen = view(job, outlooks=known, doubted=doubted)
        plan = planned(seen, HostLaws(seen), candidates(seen))
        assert plan is not None
        assert plan.now == planned_now


def test_a_preempted_job_is_copper_that_is_worth_less_than_the_deadline() -> None:
    urgent = waiting(1, cpus=8.0, deadline_s=NOW_S + 1800.0)
    copper = running(8, 3600.0, cpus=8.0)
    assert scheduled(view(urgent, active=(copper,), preempts=True)).freeze == (8,)
    assert scheduled(view(urgent, active=(copper,), preempts=False)).freeze == ()
    silver = running(8, 3600.0, cpus=8.0, band=QosBand.SILVER)
    assert scheduled(view(urgent, active=(silver,), preempts=True)).freeze == ()
    lately = replace(copper, job=replace(copper.job, not_preempted_before_s=NOW_S + 60.0))
    assert scheduled(view(urgent, active=(lately,), preempts=True)).freeze == ()


def test_a_frozen_job_is_requeued_when_memory_is_what_is_lacking_and_thawed_when_nothing_urgent_waits() -> (
    None
):
    frozen = running(8, 3600.0, cpus=4.0, memory_bytes=12 * GIB)
    frozen = replace(frozen, job=replace(frozen.job, state=JobState.FROZEN))
    urgent = waiting(1, cpus=4.0, memory_bytes=8 * GIB, deadline_s=NOW_S + 1800.0)
    assert scheduled(view(urgent, active=(frozen,), preempts=True)).requeue == (8,)
    step = scheduled(view(active=(frozen,), preempts=True))
    assert (step.requeue, step.thaw) == ((), (8,))
    busy = of_values([7.5] * 10)
    other = running(9, cpus=0.1)
    assert scheduled(view(active=(frozen, other), preempts=True, others_cpus=busy)).thaw == ()
    assert scheduled(view(active=(frozen,), preempts=False, others_cpus=busy)).thaw == (8,)


def test_no_job_is_frozen_for_good_because_of_its_request() -> None:
    """Alone it was started whatever it asks for; alone it also goes on, and keeps no other one waiting for good."""
    frozen = running(8, 3600.0, cpus=8.0)
    frozen = replace(frozen, job=replace(frozen.job, state=JobState.FROZEN))
    busy = of_values([1.0] * 10)
    stands: dict[str, Any] = {"preempts": True, "others_cpus": busy}
    assert scheduled(view(active=(frozen,), **stands)).thaw == (8,)
    assert scheduled(view(active=(frozen, running(9)), **stands)).thaw == ()
    assert scheduled(view(active=(frozen,), **stands, copper_share=0.5)).thaw == ()
    old = waiting(1, NOW_S - 5000.0, cpus=8.0)
    worker = running(8, cpus=1.0, elastic=(1, 2), array=(1, 2))
    worker = replace(worker, job=replace(worker.job, state=JobState.FROZEN))  # its core has ended
    assert scheduled(view(old, active=(worker,), **stands)).start == (1,)


def test_a_frozen_job_needs_the_room_that_it_was_seen_to_use() -> None:
    frozen = running(8, 3600.0, cpus=6.0)
    frozen = replace(frozen, job=replace(frozen.job, state=JobState.FROZEN))
    other = running(9, cpus=4.0)
    assert scheduled(view(active=(frozen, other), preempts=True)).thaw == ()
    seen = replace(frozen, cpus=of_values([1.0] * 50), observed_s=600.0)
    assert scheduled(view(active=(seen, other), preempts=True)).thaw == (8,)


def test_frozen_jobs_continue_before_others_start_and_only_as_many_as_there_is_room_for() -> None:
    frozen = tuple(
        replace(each, job=replace(each.job, state=JobState.FROZEN))
        for each in (running(7, 3600.0, cpus=6.0), running(8, 3600.0, cpus=6.0))
    )
    small = [waiting(n, cpus=1.0) for n in range(10, 15)]
    step = scheduled(view(*small, active=frozen, preempts=True))
    assert step.thaw == (7,)
    assert step.start == (10, 11)
    assert scheduled(view(active=frozen, preempts=True)).thaw == (7,)
    urgent = waiting(1, cpus=6.0, deadline_s=NOW_S + 1800.0)
    step = scheduled(view(urgent, active=frozen, preempts=True))
    assert (step.thaw, step.start) == ((), (1,))


def test_ten_thousand_jobs_are_considered_twenty_at_a_time_and_all_have_a_reason() -> None:
    jobs = [waiting(n, NOW_S - 1.0, cpus=1.0) for n in range(1, 10_001)]
    step = scheduled(view(*jobs))
    assert len(candidates(view(*jobs))) == CONSIDERED
    assert step.start == tuple(range(1, 9))
    assert len(step.reasons) == 10_000 - 8
    assert step.reasons[9_999] == "20 jobs are ahead of it"


def test_dependencies_are_sorted_into_those_that_may_must_wait_and_never_can() -> None:
    done, failed = 1, 2
    jobs = [waiting(3, after=(1,)), waiting(4, after=(1, 3)), waiting(5, after=(2,)), waiting(6, after=(99,))]
    found = dependencies(jobs, {done: ended(done, JobState.DONE), failed: ended(failed, JobState.FAILED)})
    assert [job.id for job in found.startable] == [3]
    assert found.blocked == {4: "it follows job 3, which is queued"}
    assert found.impossible == {
        5: "job 2, on which it depends, is failed",
        6: "job 99, on which it depends, is no longer known",
    }


jobs_drawn = st.lists(
    st.tuples(
        st.floats(0.1, 8.0),
        st.integers(1, 16),
        st.one_of(st.none(), st.floats(-600.0, 7200.0)),
        st.floats(0.0, 5000.0),
    ),
    max_size=12,
)


@settings(deadline=None, max_examples=60)
@given(
    jobs_drawn,
    jobs_drawn,
    st.booleans(),
    st.sampled_from([0.0, 0.3, 1.0]),
    st.lists(st.floats(0, 8), max_size=5),
)
def test_whatever_waits_and_runs_a_look_is_consistent(
    queue: list[Any], runs: list[Any], preempts: bool, share: float, others: list[float]
) -> None:
    jobs = [
        waiting(
            n,
            NOW_S - ago,
            cpus=cpus,
            memory_bytes=gib * GIB,
            deadline_s=None if left is None else NOW_S + left,
        )
        for n, (cpus, gib, left, ago) in enumerate(queue, start=1)
    ]
    active = tuple(
        running(n, ago, cpus=cpus, memory_bytes=gib * GIB)
        for n, (cpus, gib, _, ago) in enumerate(runs, start=100)
    )
    seen = view(
        *jobs,
        active=active,
        preempts=preempts,
        copper_share=share,
        others_cpus=of_values(others),
        most_running=14,
    )
    step = scheduled(seen)
    assert len(set(step.start)) == len(step.start)
    assert set(step.start) | set(step.reasons) == {job.id for job in jobs}
    assert not set(step.start) & set(step.reasons)
    assert set(step.freeze) <= {each.job.id for each in active}
    assert preempts or not step.freeze
    assert len(step.start) + len(active) <= max(14, len(active))
    started = [job for job in jobs if job.id in step.start]
    held = sum(job.spec.memory_bytes for job in started)
    held += sum(each.job.spec.memory_bytes for each in active if each.job.id not in step.requeue)
    assert not started or held <= seen.memory_bytes * 1.01


# --- the solver ------------------------------------------------------------------------------------------------------


def crowded() -> QueueView:
    deadlines = [300.0, 600.0, 900.0, 1200.0]
    jobs = [waiting(n, cpus=3.0, deadline_s=NOW_S + left) for n, left in enumerate(deadlines, start=1)]
    return view(*jobs, waiting(5, cpus=5.0), waiting(6, cpus=2.0))


def test_highs_answers_from_a_process_and_never_makes_a_plan_worse() -> None:
    pytest.importorskip("highspy")
    seen = crowded()
    tried = candidates(seen)
    plan = planned(seen, HostLaws(seen), tried)
    assert plan is not None
    improved = QueueSolver().improved(NOW_S, *stated(seen, HostLaws(seen), tried), plan)
    assert improved.worth >= plan.worth


@pytest.mark.parametrize("answer", ["null", "[2, 0]", "not JSON", "[]"])
def test_a_solver_that_fails_or_lies_leaves_the_greedy_plan(answer: str) -> None:
    calls = []

    def run(command: Any, **options: Any) -> subprocess.CompletedProcess[str]:
        calls.append(json.loads(options["input"]))
        return subprocess.CompletedProcess(command, 0, answer, "")

    seen = crowded()
    tried = candidates(seen)
    plan = planned(seen, HostLaws(seen), tried)
    assert plan is not None
    solver = QueueSolver(run)
    solver._there = True
    assert solver.improved(NOW_S, *stated(seen, HostLaws(seen), tried), plan) is plan
    assert solver.improved(NOW_S + 1.0, *stated(seen, HostLaws(seen), tried), plan) is plan
    assert len(calls) == 1, "one process in half a minute"
    idle = JobPlan({str(job.id): 0.0 for job in tried})
    assert solver.improved(NOW_S + 100.0, *stated(seen, HostLaws(seen), tried), idle) is idle
    assert len(calls) == 1, "nothing waits"


# --- sums that are kept ---------------------------------------------------------------------------------------------


@given(st.lists(st.sets(st.integers(11, 19)), max_size=6), st.sets(st.integers(11, 19)))
@settings(max_examples=25, deadline=None)
def test_sums_kept_between_questions_are_those_of_a_host_that_is_asked_once(
    asked_before: list[set[int]], gone: set[int]
) -> None:
    rng = np.random.default_rng(7)
    active = tuple(running(number) for number in range(11, 20))
    outlooks = {1: JobOutlook(cpus=of_values([0.5, 1.0, 2.0]), memory_bytes=of_values([GIB, 3.0 * GIB]))}
    for each in active:
        cpus, memory = rng.uniform(0.2, 1.5, 20), rng.uniform(0.2, 2.5, 20) * GIB
        outlooks[each.job.id] = JobOutlook(of_values([200.0, 300.0]), of_values(cpus), of_values(memory))
    active = tuple(replace(each, outlook=outlooks[each.job.id]) for each in active)
    job = waiting(1)
    host = HostLaws(view(job, active=active, outlooks=outlooks))
    whole = host.saved()
    for numbers in asked_before:
        host.without(sorted(numbers))
        host.admission(job)
        host.restored(whole)
    host.without(sorted(gone))
    left = tuple(each for each in active if each.job.id not in gone)
    afresh = HostLaws(view(job, active=left, outlooks=outlooks))
    assert host.admission(job).over == pytest.approx(afresh.admission(job).over, abs=1e-12)
    host.add(job)
    afresh.add(job)
    assert host.margin(CPU) == pytest.approx(afresh.margin(CPU))
