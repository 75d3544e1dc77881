"""Which job a pass tries next: fairness first, then the fit to the resources that are free over the run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perphd.batch.fairness import StartCandidate, tiers
from perphd.batch.host_laws import HostLaws
from perphd.batch.look import CPU, DISK, MEMORY, ActiveJob, JobOutlook, QueueView
from perphd.batch.scheduling import scheduled
from perphd.batch.start_score import CandidateStage, TimeLines, distances, score_on, start_score
from perphd.domain.reading import Unavailable
from perphd.forecast.histogram import Histogram, of_values
from tests.unit.queue_world import GIB, World, spec
from tests.unit.test_queue_scheduling import NOW_S, running, view, waiting

MB = 1e6
NO_CACHE = Unavailable("not measured")


def known(cpus: float = 1.0, run_s: float = 600.0, disk: float | None = None) -> JobOutlook:
    """The history of jobs that always take the same."""
    shared = {} if disk is None else {DISK: of_values([disk] * 9)}
    return JobOutlook(of_values([run_s] * 9), of_values([cpus] * 9), of_values([float(GIB)] * 9), shared)


def busy(number: int, outlook: JobOutlook) -> ActiveJob:
    """A running job with a history, ten minutes before its end."""
    return replace(running(number, 1.0, cpus=outlook.cpus.most), outlook=outlook)


def seen(outlooks: dict[int, JobOutlook], *active: ActiveJob, **changes: Any) -> QueueView:
    """Jobs that arrived a second after each other, the lowest number first."""
    jobs = [waiting(n, NOW_S - 100.0 + n, cpus=known.cpus.most) for n, known in sorted(outlooks.items())]
    return view(*jobs, active=active, outlooks=outlooks, **changes)


def test_tiers_are_overdue_jobs_the_longest_waiting_half_and_the_rest() -> None:
    jobs = [StartCandidate(str(n), float(n), n + 95.0, True) for n in range(1, 6)]
    found = tiers(jobs[::-1], 97.0)
    assert [[job.name for job in tier] for tier in (found.overdue, found.longest, found.others)] == [
        ["1"],
        ["2", "3"],
        ["4", "5"],
    ]
    assert not tiers(jobs, 0.0, among=10).others, "the other half is not among those given"


def test_of_the_longest_waiting_half_the_job_that_fits_best_starts() -> None:
    writer = busy(9, known(4.0, disk=90 * MB))
    outlooks = {1: known(4.0, disk=90 * MB), 2: known(4.0, disk=8 * MB), 3: known(4.0), 4: known(4.0)}
    step = scheduled(seen(outlooks, writer, scored={DISK: 100 * MB}, others_shared={DISK: Histogram()}))
    assert step.start == (2,)
    assert "fits the free resources better than one job that waited longer" in step.causes[2]
    assert "job 1: " in step.causes[2]
    assert step.order[1].startswith("in the half that has waited longest")
    assert "in 1701 s, having waited three times the average" in step.order[1]
    assert step.order[4].startswith("after the half that has waited longest")


def test_cpus_and_memory_are_left_to_admission() -> None:
    """A fit that counted them would prefer large jobs."""
    step = scheduled(seen({1: known(1.0), 2: known(3.8)}, busy(9, known(4.0))))
    assert step.start == (1,)
    assert step.causes == {}
    assert "fit" not in step.order[2]


def test_jobs_that_fit_alike_start_by_arrival_and_without_a_cause() -> None:
    step = scheduled(seen({n: known(1.0) for n in range(1, 13)}))
    assert step.start == tuple(range(1, 9))
    assert step.causes == {}


def test_an_overdue_job_goes_before_a_better_fit_and_a_deadline_before_both() -> None:
    outlooks = {1: known(3.8, disk=90 * MB), 2: known(3.8, disk=8 * MB)}
    disks: dict[str, Any] = {"scored": {DISK: 100 * MB}, "others_shared": {DISK: Histogram()}}
    late = seen(outlooks, busy(9, known(4.0, disk=90 * MB)), average_wait_s=20.0, **disks)
    step = scheduled(late)
    assert step.start == (1,)
    assert step.causes[1] == "it has waited more than three times the average"
    assert step.order[2] == f"before all jobs without a deadline: {step.causes[1]}"
    urgent = waiting(3, cpus=3.8, deadline_s=NOW_S + 700.0)
    step = scheduled(
        replace(late, waiting=[*late.waiting, urgent], outlooks={**late.outlooks, 3: known(3.8)})
    )
    assert step.start == (3,)


def test_disks_count_where_the_history_knows_them_and_every_start_takes_its_part() -> None:
    heavy, light = known(disk=90 * MB), known(disk=8 * MB)
    outlooks = {1: heavy, 2: heavy, 3: light, 4: light} | {n: known() for n in range(5, 9)}
    look = seen(outlooks, scored={DISK: 100 * MB}, others_shared={DISK: Histogram()}, most_running=3)
    assert scheduled(look).start[:2] == (1, 3), "the first heavy one leaves room for a light one alone"
    assert scheduled(replace(look, scored={})).start == (1, 2, 3), "without a capacity, by arrival"


def test_what_nobody_knows_of_a_job_neither_favours_nor_disfavours_it() -> None:
    look = seen({}, scored={DISK: 100 * MB}, others_shared={DISK: Histogram()})
    lines = TimeLines(look, HostLaws(look))
    same = {CPU: 2.0, MEMORY: 1.0}  # does not count
    good, bad, blind = (
        score_on(lines, (CandidateStage(60.0, same | more),))
        for more in ({DISK: 100 * MB}, {DISK: 200 * MB}, {})
    )
    near = distances({1: good, 2: bad, 3: blind})
    assert near[1] == 0.0
    assert near[2] == pytest.approx(0.7)
    assert near[3] == pytest.approx(0.35)
    assert distances({}) == {}


def test_a_running_job_holds_its_part_of_the_disk_until_it_ends() -> None:
    writer = busy(9, known(disk=60 * MB, run_s=601.0))
    look = seen({}, writer, scored={DISK: 100 * MB}, others_shared={DISK: of_values([10 * MB] * 9)})
    score = start_score(look, (CandidateStage(1200.0, {DISK: 50 * MB}),), NO_CACHE)
    (disk,) = score.resources
    assert [each.available / MB for each in disk.available] == [pytest.approx(30.0), pytest.approx(90.0)]
    assert disk.over == pytest.approx(20 * MB * disk.available[0].end_s)
    assert start_score(replace(look, scored={}), (CandidateStage(1.0, {DISK: 1.0}),), NO_CACHE).left_out[DISK]


async def test_a_job_says_when_it_is_considered_and_why_it_was_chosen(tmp_path: Path) -> None:
    world = World(tmp_path)
    queue = world.daemon()
    await queue.submit([spec("sleep", cpus=6.0)])
    await world.look(queue)
    await queue.submit([spec("large", cpus=4.0), spec("small", cpus=1.0), spec("new", cpus=1.0)])
    await world.look(queue, 1.0)
    large, new = [(await queue.row(job, True)).detail for job in (queue.find(2), queue.find(4)) if job]
    assert large is not None
    assert new is not None
    assert large.order.startswith("in the half that has waited longest")
    assert not new.order, "it runs"
    await world.look(queue, 1000.0)
    after = queue.find(2)
    assert after is not None
    row = await queue.row(after, True)
    assert row.detail is not None
    assert row.detail.order.startswith("before all jobs without a deadline")
    queue.close()


async def test_the_average_wait_outlives_a_restart(tmp_path: Path) -> None:
    world = World(tmp_path)
    first = world.daemon()
    await first.submit([spec("short"), spec("long", cpus=7.0)])
    await world.look(first, 40.0)
    world.units.end(1)
    await world.look(first, 500.0)
    first.close()
    again = world.daemon()
    await again.ready()
    assert (await again.view()).average_wait_s == 40.0
    again.close()
