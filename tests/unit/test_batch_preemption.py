"""Whom a look preempts for a job with a deadline: as few as needed, copper alone, and only if waiting costs more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from perphd.batch.job import JobState
from perphd.batch.look import ActiveJob, JobOutlook, QueueStep
from perphd.batch.scheduling import scheduled
from perphd.forecast.histogram import Histogram, of_values
from perphd.qos.bands import QosBand
from tests.unit.queue_world import GIB
from tests.unit.test_queue_scheduling import NOW_S, running, view, waiting

SHORT = of_values([60.0 + n for n in range(10)])


def takes(active: ActiveJob, left_s: float) -> ActiveJob:
    """With a history in which jobs like it end ``left_s`` from now."""
    ran_s = active.job.has_run_s(NOW_S)
    return replace(active, outlook=JobOutlook(of_values([ran_s + left_s + n for n in range(10)])))


def look(*active: ActiveJob, deadline_s: float = 100.0, **asked: Any) -> QueueStep:
    """One look at a job of a minute with this deadline, beside these on a host of 8 CPUs and 16 GiB."""
    urgent = waiting(1, deadline_s=NOW_S + deadline_s, **({"cpus": 1.0, "memory_bytes": 8 * GIB} | asked))
    outlooks = {1: JobOutlook(SHORT, Histogram(), Histogram())}
    outlooks |= {each.job.id: each.outlook for each in active}
    return scheduled(view(urgent, active=active, preempts=True, outlooks=outlooks))


def copper(
    number: int, gib: int = 12, cpus: float = 1.0, left_s: float = 3600.0, **changes: Any
) -> ActiveJob:
    return takes(running(number, 100.0, cpus=cpus, memory_bytes=gib * GIB, **changes), left_s)


def test_memory_is_made_room_for_at_once_and_the_job_starts() -> None:
    step = look(copper(8))
    assert (step.requeue, step.freeze, step.start) == ((8,), (), (1,))
    assert "job 1 needs its memory to meet a deadline (cost 1.03, gain " in step.causes[8]


def test_processors_are_made_room_for_by_freezing() -> None:
    step = look(copper(8, gib=1, cpus=7.5))
    assert (step.requeue, step.freeze, step.start) == ((), (8,), (1,))
    assert "job 1 needs its CPUs to meet a deadline (cost 1.03, gain " in step.causes[8]


def test_nobody_is_preempted_who_is_expected_to_end_in_time() -> None:
    step = look(copper(8, left_s=10.0))
    assert (step.requeue, step.start) == ((), ())
    step = look(copper(8, left_s=200.0), deadline_s=1000.0)
    assert (step.requeue, step.start) == ((), ())


def test_a_deadline_that_cannot_be_met_is_worth_nobodys_work() -> None:
    """Its history rules it out, so that it is worth less than what it displaces for hours."""
    step = look(replace(copper(8), job=replace(copper(8).job, since_s=NOW_S - 9 * 3600.0)), deadline_s=20.0)
    assert (step.requeue, step.start) == ((), ())


def test_as_few_as_are_needed_and_those_that_free_most_for_their_cost() -> None:
    step = look(copper(7, gib=3), copper(8, gib=8), copper(9, gib=3))
    assert step.requeue == (8,)
    worked = copper(8, gib=8)
    worked = takes(replace(worked, job=replace(worked.job, since_s=NOW_S - 5 * 3600.0)), 3600.0)
    step = look(copper(7, gib=4), worked, copper(9, gib=4))
    assert sorted(step.requeue) == [7, 9], "five hours of work are worth more than two fresh jobs"


@pytest.mark.parametrize("spared", ["silver", "deadline", "lately"])
def test_some_are_never_preempted(spared: str) -> None:
    each = {
        "silver": lambda: copper(8, band=QosBand.SILVER),
        "deadline": lambda: copper(8, deadline_s=NOW_S + 9000.0),
        "lately": lambda: replace(copper(8), job=replace(copper(8).job, not_preempted_before_s=NOW_S + 60.0)),
    }[spared]()
    step = look(each)
    assert (step.requeue, step.freeze, step.start) == ((), (), ())


def test_a_job_that_stands_still_is_requeued_before_one_that_runs() -> None:
    frozen = copper(8, gib=6)
    frozen = replace(
        frozen, job=replace(frozen.job, state=JobState.FROZEN, not_preempted_before_s=NOW_S + 60)
    )
    step = look(copper(7, gib=6), frozen)
    assert (step.requeue, step.start) == ((8,), (1,))


def test_an_admitted_deadline_does_not_wait_for_a_plan_that_counts_with_more() -> None:
    """The plan keeps 90 % quantiles of others free of it; admission knows how rarely they are reached."""
    others = of_values([0.5] * 85 + [7.5] * 15)
    urgent = waiting(1, cpus=1.0, memory_bytes=GIB, deadline_s=NOW_S + 100.0)
    seen = view(
        urgent, outlooks={1: JobOutlook(SHORT)}, others_cpus=others, epsilon={"cpu": 0.2, "memory": 0.01}
    )
    assert scheduled(seen).start == (1,)
