"""The score of a start: the time line of every resource, the F/O areas, and what does not count."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perphd.batch.look import BANDWIDTH, CPU, MEMORY, JobOutlook
from perphd.batch.start_score import (
    CACHE,
    CacheFill,
    CandidateStage,
    ResourceScore,
    StartScore,
    stages_of,
    start_score,
)
from perphd.control.client import Client, NotPermitted, Refused
from perphd.control.limits import ApiLimits
from perphd.domain.reading import Unavailable
from perphd.forecast.histogram import Histogram, of_values
from tests.unit.control_fake import READER, ROOT, SUBMITTER, Served, serving
from tests.unit.queue_world import GIB, World, spec
from tests.unit.test_queue_scheduling import running, view, waiting

GB = 1e9
NO_CACHE = Unavailable("nobody measures it")


def resource(score: StartScore, name: str) -> ResourceScore:
    return next(each for each in score.resources if each.resource == name)


def busy(seconds: float, **shared: float) -> Any:
    """A running job that used 6 of 8 CPUs, and ends after ``seconds``."""
    job = running(8, 100.0, cpus=6.0, memory_bytes=GIB)
    known = {name: of_values([value] * 9) for name, value in shared.items()}
    return replace(
        job,
        outlook=JobOutlook(
            of_values([100.0 + seconds] * 9), of_values([6.0] * 9), of_values([GIB] * 9), known
        ),
    )


def test_a_candidate_is_laid_over_the_time_line_of_what_ends() -> None:
    seen = view(active=(busy(50.0),))
    score = start_score(seen, (CandidateStage(100.0, {CPU: 4.0}),), NO_CACHE)
    cpu = resource(score, CPU)
    (first, then) = cpu.available
    assert first.available == pytest.approx(2.0, abs=0.1)
    assert then.available == 8.0
    assert first.end_s == pytest.approx(50.0, rel=0.1)
    # 2 CPUs too few while the job runs, 4 too many after it.
    assert cpu.over == pytest.approx(2.0 * first.end_s, rel=0.1)
    assert cpu.unused == pytest.approx(4.0 * (100.0 - first.end_s), rel=0.05)
    assert cpu.overall == pytest.approx(0.7 * cpu.over + 0.3 * cpu.unused)
    assert score.distance == pytest.approx(cpu.overall / (8.0 * 100.0))
    assert score.over_ratio == pytest.approx(cpu.over / (8.0 * 100.0))


def test_near_stages_weigh_more_and_a_candidate_that_fits_is_nearer() -> None:
    seen = view(active=(busy(50.0),))
    early = (CandidateStage(50.0, {CPU: 8.0}), CandidateStage(50.0, {CPU: 2.0}))
    late = tuple(reversed(early))
    scores = [start_score(seen, stages, NO_CACHE) for stages in (early, late)]
    assert scores[1].distance < scores[0].distance
    assert (scores[0].suits, scores[1].suits) == (False, True)


def test_bandwidth_and_cache_count_where_the_host_s_are_known() -> None:
    stage = CandidateStage(100.0, {CPU: 1.0, MEMORY: float(GIB), BANDWIDTH: 30 * GB, CACHE: 4e6})
    blind = start_score(view(active=(busy(200.0),)), (stage,), NO_CACHE)
    assert [each.resource for each in blind.resources] == [CPU, MEMORY]
    assert blind.left_out[CACHE] == NO_CACHE.reason
    assert "[tuning.queue] memory_bandwidth" in blind.left_out[BANDWIDTH]
    sees = view(
        active=(busy(200.0, **{BANDWIDTH: 40 * GB}),),
        shared={BANDWIDTH: 60 * GB},
        others_shared={BANDWIDTH: Histogram()},
        epsilon={CPU: 0.1, MEMORY: 0.01, BANDWIDTH: 0.1},
    )
    score = start_score(sees, (stage,), CacheFill(16e6, {8: 10e6}, 3e6))
    assert [each.resource for each in score.resources] == [CPU, MEMORY, BANDWIDTH, CACHE]
    assert set(score.left_out) == {"disk"}
    assert resource(score, BANDWIDTH).over == pytest.approx(10 * GB * 100.0, rel=0.05)
    assert resource(score, CACHE).over == pytest.approx(1e6 * 100.0)
    assert resource(score, CACHE).unused == 0.0


def test_others_and_an_event_leave_less() -> None:
    stage = (CandidateStage(10.0, {CPU: 1.0}),)
    half = start_score(view(others_cpus=of_values([4.0] * 20), copper_share=0.5), stage, NO_CACHE)
    (line,) = resource(half, CPU).available
    assert line.available == pytest.approx(2.0, abs=0.1)
    assert line.end_s == float("inf")


def test_a_waiting_job_is_what_its_history_says_or_what_it_asked_for() -> None:
    job = waiting(1, cpus=3.0, memory_bytes=2 * GIB)
    (asked,) = stages_of(view(job), job)
    assert asked.peaks == {CPU: 3.0, MEMORY: 2.0 * GIB}
    known = JobOutlook(of_values([600.0] * 9), of_values([1.0] * 9), shared={BANDWIDTH: of_values([GB] * 9)})
    (stage,) = stages_of(view(job, outlooks={1: known}), job)
    assert stage.seconds == pytest.approx(600.0, rel=0.02)
    assert stage.peaks[CPU] == pytest.approx(1.0)
    assert stage.peaks[BANDWIDTH] == pytest.approx(GB)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path, ApiLimits(shutdown_s=0.5, rest=0.0)) as server:
        world = World(tmp_path / "host")
        server.agent.queue = world.daemon()
        server.peer = SUBMITTER
        yield server
        server.agent.queue.close()


def asked(served: Served, **body: Any) -> dict[str, Any]:
    found: dict[str, Any] = Client(served.socket).send("POST", "score", body)["score"]
    return found


def test_anybody_who_may_read_asks_about_stages_and_owners_about_their_job(served: Served) -> None:
    (number,) = Client(served.socket).send("POST", "jobs", {"command": ["true"], "cores": 2})["jobs"]
    mine = asked(served, job=number)
    assert [each["resource"] for each in mine["resources"]] == ["cpu", "memory"]
    assert mine["resources"][0]["capacity"] == 8.0
    assert mine["resources"][0]["available"] == [{"start_s": 0.0, "end_s": "inf", "available": 8.0}]
    assert set(mine["left_out"]) == {"memory_bandwidth", "cache", "disk"}
    served.peer = READER
    fits = asked(served, stages=[{"seconds": 60, "cpu": 8}])
    assert (fits["distance"], fits["over_ratio"], fits["suits"]) == (0.0, 0.0, True)
    with pytest.raises(NotPermitted, match="belongs to another user"):
        asked(served, job=number)
    served.peer = ROOT
    with pytest.raises(Refused, match="no job 77"):
        asked(served, job=77)
    Client(served.socket).send("DELETE", f"jobs/{number}")
    with pytest.raises(Refused, match="cancelled"):
        asked(served, job=number)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({}, "job or stages"),
        ({"job": 1, "stages": [{"seconds": 1, "cpu": 1}]}, "job or stages"),
        ({"stages": []}, "1 to 100 stages"),
        ({"stages": [{"seconds": 10}]}, "some of cpu"),
        ({"stages": [{"cpu": 1}]}, "some of cpu"),
        ({"stages": [{"seconds": 10, "cpu": 1}, {"seconds": 10, "memory": 1}]}, "same keys"),
        ({"stages": [{"seconds": 10, "network": 1}]}, "some of cpu"),
        ({"stages": [{"seconds": 0, "cpu": 1}]}, "a number from 0.001"),
        ({"stages": [{"seconds": 10, "cpu": -1}]}, "a number from 0"),
        ({"stages": [7]}, "some of cpu"),
    ],
)
def test_what_makes_no_sense_is_refused(served: Served, body: dict[str, Any], named: str) -> None:
    with pytest.raises(Refused) as refused:
        asked(served, **body)
    assert named in str(refused.value)


def test_a_running_job_takes_its_part_of_the_line(tmp_path: Path) -> None:
    async def scored() -> StartScore:
        world = World(tmp_path)
        queue = world.daemon()
        await queue.submit([spec("sleep", cpus=6.0)])
        await world.look(queue)
        seen = await queue.view()
        queue.close()
        return start_score(seen, (CandidateStage(10.0, {CPU: 4.0}),), NO_CACHE)

    score = asyncio.run(scored())
    assert resource(score, CPU).available[0].available == pytest.approx(2.0, abs=0.1)
    assert not score.suits
