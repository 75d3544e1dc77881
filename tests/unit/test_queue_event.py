"""Events and copper's offer: kept on disk, obeyed by the queue, and published."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perphd.agent.queue.event import STEP, QueueEvent
from perphd.agent.queue.given import QueueGiven
from perphd.agent.queue.planning import PlannedUse, QueuePlanner
from perphd.batch.job import JobState
from perphd.batch.look import CPU, MEMORY
from perphd.commands.render_jobs import event_parts, event_text, queue_lines
from perphd.config.tables import QueueConfig
from perphd.control.metrics.collect import add_queue
from perphd.control.metrics.text import Page
from perphd.control.table import plain
from perphd.domain.allocation import UNTOUCHED, Settings
from perphd.domain.errors import ConfigError
from perphd.domain.reading import available
from perphd.qos.bands import MEMORY_LIMIT_RATIO, QosBand
from perphd.qos.event_mode import CopperEvent, share_at
from perphd.qos.offers import FollowedOffer, followed, shown, with_use
from perphd.qos.overcommit import WINDOW_S
from tests.unit.queue_world import GIB, World, spec
from tests.unit.test_queue_scheduling import NOW_S, running

HOST = (8.0, 16.0 * GIB)


async def test_an_event_keeps_jobs_waiting_and_ends_by_itself(tmp_path: Path) -> None:
    world = World(tmp_path)
    queue = world.daemon()
    begun = await queue.begin_event(3600.0, 0.25, 600.0, "sale")
    assert (begun.share, begun.ends_unix_s) == (0.25, world.now_s + 3600.0)
    await queue.submit([spec(), spec(), spec(), spec(cpus=2.0)])
    await world.look(queue)
    states = [job.state for n in range(1, 5) if (job := queue.find(n))]
    assert states == [JobState.RUNNING, JobState.RUNNING, JobState.QUEUED, JobState.QUEUED], "2 of 8 CPUs"
    await world.look(queue, 3600.0 + 600.0)
    assert queue.copper_share == 1.0
    assert queue.summary().event is None
    assert queue.summary().counts == {"running": 4}
    queue.close()


async def test_an_event_holds_copper_at_any_accepted_risk_and_silver_at_none(tmp_path: Path) -> None:
    world = World(tmp_path, QueueConfig(enabled=True, cpu_risk=1.0, memory_risk=1.0))
    queue = world.daemon()
    await queue.begin_event(3600.0, 0.0, 0.0, "sale")
    await queue.submit([spec(), spec(band=QosBand.SILVER, cpus=4.0), spec(band=QosBand.SILVER, cpus=4.0)])
    await world.look(queue)
    found = [job for n in (1, 2, 3) if (job := queue.find(n))]
    assert [job.state for job in found] == [JobState.QUEUED, JobState.RUNNING, JobState.RUNNING]
    row = await queue.row(found[0], True)
    assert row.detail is not None
    assert row.detail.reason == "an event leaves copper nothing"
    queue.close()


async def test_a_waiting_job_says_what_an_event_leaves(tmp_path: Path) -> None:
    world = World(tmp_path)
    queue = world.daemon()
    await queue.begin_event(3600.0, 0.1, 0.0, "sale")
    (job,) = await queue.submit([spec(cpus=2.0)])
    await world.look(queue)
    row = await queue.row(job, True)
    assert row.detail is not None
    assert row.detail.reason.startswith(
        "an event leaves copper 10% of the host's unused part: 2 CPUs would be too many"
    )
    queue.close()


async def test_running_copper_gets_a_lower_ceiling_and_silver_none(tmp_path: Path) -> None:
    world = World(tmp_path)
    queue = world.daemon()
    await queue.submit([spec(cpus=4.0), spec(cpus=2.0, band=QosBand.SILVER)])
    await world.look(queue)
    assert queue.over("job-1", UNTOUCHED) == UNTOUCHED
    await queue.begin_event(60.0, 0.25, 100.0, "")
    assert queue.over("job-1", UNTOUCHED).cpu_max_cores == pytest.approx(1.0)
    assert queue.over("job-1", Settings(cpu_max_cores=0.5)).cpu_max_cores == 0.5, "never above what is wanted"
    assert queue.over("job-2", UNTOUCHED) == UNTOUCHED
    world.now_s += 60.0 + 50.0  # half of the ramp
    assert queue.over("job-1", UNTOUCHED).cpu_max_cores == pytest.approx(4.0 * 0.6)
    await queue.begin_event(60.0, 0.0, 0.0, "")
    assert queue.over("job-1", UNTOUCHED).frozen is True
    world.now_s += 61.0
    assert queue.over("job-1", UNTOUCHED) == UNTOUCHED
    queue.close()


def test_a_job_that_stands_still_for_an_event_is_not_taken_for_a_small_one(tmp_path: Path) -> None:
    planner, limits = QueuePlanner(QueueConfig(), tmp_path, tmp_path), QueueGiven()
    job = running(1, cpus=4.0).job

    def used(cpus: float, copper_share: float) -> None:
        limits.over(job, UNTOUCHED, copper_share)
        limits.round_over()
        planner.take([PlannedUse(5.0, {}, {1: {CPU: cpus, MEMORY: GIB}})], {1: job}, HOST, limits.cpus)

    for _ in range(20):
        used(4.0, 1.0)
    for _ in range(2000):
        used(0.0, 0.0)
    (seen,) = planner.view(None, NOW_S, HOST, [], [job], 1.0).active
    assert (seen.cpus.count, seen.cpus.mean, seen.observed_s) == (20, 4.0, 100.0)
    assert seen.done.cpu_s == 400.0
    assert seen.done.seconds == 5.0 * 2020, "it has had no CPU meanwhile"


async def test_an_event_outlives_the_daemon_and_can_be_ended(tmp_path: Path) -> None:
    world = World(tmp_path)
    queue = world.daemon()
    with pytest.raises(ConfigError, match="no event is in force"):
        await queue.end_event()
    await queue.begin_event(3600.0, 0.1, 300.0, "a sale")
    queue.close()
    queue = world.daemon()
    await queue.ready()
    assert queue.copper_share == pytest.approx(0.1)
    world.now_s += 60.0
    left = await queue.end_event()
    assert left is not None
    assert left.over_unix_s == world.now_s + 300.0
    assert "ended; copper gets 10% of its offer now, and all of it in 5 m" in event_text(left, world.now_s)
    world.now_s += 301.0
    assert queue.copper_share == 1.0
    queue.close()


def test_a_record_that_cannot_be_read_is_no_event(tmp_path: Path) -> None:
    (tmp_path / "event.json").write_text('{"begins_s": "soon"')
    event = QueueEvent(tmp_path)
    event.read(1e9)
    assert event.share(1e9) == 1.0
    assert "no event is in force" in event.problem


@settings(deadline=None, max_examples=60)
@given(
    st.floats(0.0, 1.0),
    st.floats(1.0, 1e5),
    st.floats(0.0, 1e4),
    st.lists(st.floats(0.0, 2e5), min_size=2, max_size=9),
)
def test_a_share_in_steps_is_never_above_the_exact_one_nor_a_step_below(
    copper_share: float, duration_s: float, ramp_s: float, times: list[float]
) -> None:
    event = QueueEvent(Path("/nowhere"))
    event._event = CopperEvent(0.0, duration_s, copper_share, ramp_s)
    for at_s in sorted(times):
        exact = share_at(event._event, at_s)
        assert copper_share - 1e-9 <= event.share(at_s) <= exact + 1e-6
        assert event.share(at_s) >= min(exact, 1.0) - STEP - 1e-6


def lived(values: list[float]) -> FollowedOffer:
    """The offer after windows with these peaks, in CPUs; memory is the same share."""
    offer = followed(*HOST)
    for value in values:
        offer = with_use(offer, WINDOW_S, value, value / HOST[0] * HOST[1])
    return offer


def test_an_offer_is_what_the_last_peak_and_the_margin_leave() -> None:
    offer = shown(followed(*HOST), 0.0)
    assert not available(offer.cpus.copper)
    offer = shown(lived([2.0]), 0.0)
    assert (offer.generation, offer.cpus.predicted) == (1, 2.0)
    assert offer.cpus.copper == pytest.approx(8.0 - 2.0 - 0.05 * 8.0)
    assert offer.memory.copper == pytest.approx((MEMORY_LIMIT_RATIO - 0.25 - 0.05) * HOST[1])
    assert "5.6 of 8 CPUs" in plain(event_parts(None, offer, 0.0))


def test_a_window_that_nobody_measured_teaches_nothing() -> None:
    offer = with_use(lived([2.0, 3.0]), WINDOW_S, None, None)
    assert not available(shown(offer, 0.0).cpus.copper)
    assert shown(with_use(offer, WINDOW_S, 4.0, None), 0.0).cpus.windows == 1


@settings(deadline=None, max_examples=30)
@given(st.lists(st.floats(0.0, 8.0), min_size=1, max_size=40))
def test_an_offer_is_never_negative_nor_more_than_the_host(values: list[float]) -> None:
    offer = shown(lived(values), 0.0)
    for resource in (offer.cpus, offer.memory):
        assert available(resource.copper)
        assert 0.0 <= resource.copper <= resource.capacity
    assert offer.cpus.windows == len(values) - 1


def test_offers_on_a_wandering_series_are_seldom_too_much() -> None:
    """4,000 windows of an autoregressive load with a day's period: at most 1 % are exceeded."""
    chosen = np.random.default_rng(5)
    load, values = 0.0, []
    for n in range(4000):
        load = 0.9 * load + chosen.normal(0.0, 0.15)
        values.append(float(np.clip(3.0 + np.sin(2 * np.pi * n / 288) + load, 0.0, 8.0)))
    resource = shown(lived(values), 0.0).cpus
    assert resource.windows == 3999
    assert resource.exceeded_ratio <= 0.01
    assert resource.given_ratio > 0.3


async def test_what_is_published(tmp_path: Path) -> None:
    world = World(tmp_path)
    queue = world.daemon()
    await queue.submit([spec(), spec(cpus=8.0)])
    await world.look(queue)
    await queue.begin_event(600.0, 0.5, 60.0, "sale")
    summary = queue.summary()
    assert summary.counts == {"running": 1, "queued": 1}
    assert queue_lines(summary, world.now_s) == [
        "queue: 1 queued, 1 running (perphctl jobs)",
        "event (sale): copper gets 50% of its offer for 10 min more, and all of it within 60 s after that",
    ]
    page = Page()
    add_queue(page, summary)
    text = page.text().decode()
    assert 'perphd_queue_jobs{state="running"} 1' in text
    assert "perphd_queue_copper_share 0.5" in text
    queue.close()
