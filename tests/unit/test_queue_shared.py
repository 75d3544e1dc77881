"""Admission by the memory bandwidth and the cache ways that jobs are expected to use."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perphd.agent.composition import _with_bandwidth
from perphd.agent.queue.planning import PlannedUse, QueuePlanner
from perphd.agent.queue.use import QueueUse
from perphd.batch.job import JobState, QueuedJob
from perphd.batch.look import BANDWIDTH, CPU, MEMORY, WAYS, JobOutlook, QueueStep
from perphd.batch.scheduling import scheduled
from perphd.config.file import Config
from perphd.config.tables import QueueConfig
from perphd.domain.cpuset import CpuSet
from perphd.domain.host_account import CpuAccount, HostAccount
from perphd.domain.sample import Quality, Sample
from perphd.domain.throttle import ThrottleCurve, whole_bandwidth
from perphd.domain.topology import Core, L3Domain, Topology
from perphd.forecast.histogram import Histogram, of_values
from perphd.host.actuators import Actuators
from perphd.host.throttle import Throttle
from tests.unit.queue_world import spec
from tests.unit.test_queue_scheduling import NOW_S, running, view, waiting

GB = 1e9
RISKS = {CPU: 0.1, MEMORY: 0.01, WAYS: 0.01, BANDWIDTH: 0.1}


def look(resource: str, whole: float, law: Histogram, active: float = 0.0, **changes: Any) -> QueueStep:
    """One look at a job with this law of a resource, beside a job that uses ``active`` of it."""
    job = waiting(1, cpus=0.1, memory_bytes=1 << 20, **changes)
    other = running(8, 100.0, cpus=0.1, memory_bytes=1 << 20)
    other = replace(other, outlook=JobOutlook(shared={resource: of_values([active])}))
    outlooks = {1: JobOutlook(shared={resource: law}), 8: other.outlook}
    return scheduled(
        view(job, active=(other,), outlooks=outlooks, epsilon=RISKS, shared={resource: whole}, preempts=True)
    )


@pytest.mark.parametrize(("resource", "whole"), [(BANDWIDTH, 64 * GB), (WAYS, 16.0)])
def test_a_job_starts_only_if_what_is_left_is_enough(resource: str, whole: float) -> None:
    small, large = of_values([0.25 * whole] * 9), of_values([0.75 * whole] * 9)
    assert look(resource, whole, small, active=0.5 * whole).start == (1,)
    step = look(resource, whole, large, active=0.5 * whole)
    assert step.start == ()
    assert step.over[1][resource] == pytest.approx(1.0)
    assert "too little with a probability of 100%" in step.reasons[1]


def test_the_probability_is_that_of_the_sum() -> None:
    """Half of such jobs move 10 GB/s and half 30, and a histogram has values between: too much is what exceeds 24."""
    step = look(BANDWIDTH, 64 * GB, of_values([10 * GB] * 50 + [30 * GB] * 50), active=40 * GB)
    assert step.over[1][BANDWIDTH] == pytest.approx(0.4, abs=0.01)
    assert step.start == ()


def test_a_resource_of_unknown_amount_is_not_considered() -> None:
    job = waiting(1, cpus=0.1)
    seen = view(job, outlooks={1: JobOutlook(shared={BANDWIDTH: of_values([1e15])})})
    step = scheduled(seen)
    assert step.start == (1,)
    assert set(step.over[1]) == {CPU, MEMORY}


def test_a_job_without_a_history_counts_by_its_part_of_the_cpus() -> None:
    assert look(BANDWIDTH, 64 * GB, Histogram(), active=63.5 * GB).over[1][BANDWIDTH] > 0.9
    assert look(BANDWIDTH, 64 * GB, Histogram(), active=60 * GB).over[1][BANDWIDTH] == 0.0


def test_bandwidth_is_made_room_for_by_freezing() -> None:
    urgent = waiting(1, cpus=0.1, memory_bytes=1 << 20, deadline_s=NOW_S + 300.0)
    other = running(8, 100.0, cpus=0.1, memory_bytes=1 << 20)
    other = replace(other, outlook=JobOutlook(of_values([7200.0]), shared={BANDWIDTH: of_values([32 * GB])}))
    mine = JobOutlook(of_values([60.0]), shared={BANDWIDTH: of_values([48 * GB] * 9)})
    seen = view(urgent, active=(other,), outlooks={1: mine, 8: other.outlook}, epsilon=RISKS, preempts=True)
    step = scheduled(replace(seen, shared={BANDWIDTH: 64 * GB}))
    assert (step.freeze, step.requeue, step.start) == ((8,), (), (1,))


def test_the_planner_learns_traffic_and_keeps_jobs_apart_that_need_too_much(tmp_path: Path) -> None:
    config = QueueConfig(memory_bandwidth_bytes=int(60 * GB))
    planner = QueuePlanner(config, tmp_path, tmp_path)
    capacity = (8.0, float(1 << 34))
    stream = QueuedJob(1, spec("stream"), NOW_S, JobState.RUNNING, since_s=NOW_S, attempt=1, confirmed=True)
    for _ in range(3):
        used = {CPU: 0.5, MEMORY: 1e6, BANDWIDTH: 40 * GB}
        planner.take([PlannedUse(60.0, {}, {1: used})], {1: stream}, capacity)
    planner.ended(replace(stream, state=JobState.DONE, ran_s=180.0), NOW_S + 180.0)
    jobs = [QueuedJob(n, spec("stream"), NOW_S + 200.0, since_s=NOW_S + 200.0) for n in (2, 3)]
    step = planner.step(NOW_S + 200.0, capacity, jobs, [], False, 1.0)
    assert step.start == (2,)
    assert "memory bandwidth would be too little" in step.reasons[3]
    unbounded = QueuePlanner(QueueConfig(), tmp_path, tmp_path)
    assert unbounded.step(NOW_S + 200.0, capacity, jobs, [], False, 1.0).start == (2, 3)


def test_uses_are_averaged_by_resource_and_missing_ones_are_left_out() -> None:
    use = QueueUse()
    cpu = CpuAccount(8.0, 3.0, 1.0, 0.0, 0.0, 0.0, 4.0)
    host = HostAccount(0.0, 3.0, cpu, memory_total_bytes=100.0, memory_available_bytes=40.0)
    job = Sample("job-1", 0.0, 3.0, 1.0, memory_working_set_bytes=20.0, mbw_bytes_per_s=5.0)
    blind = Sample("job-2", 0.0, 3.0, cpu_usage_cores=0.5)
    db, web = (Sample(name, 0.0, 3.0, mbw_bytes_per_s=10.0) for name in ("db", "web"))
    for now_s in (3.0, 6.0, 9.0):
        traffic = replace(db, mbw_bytes_per_s=now_s)
        samples = {
            "job-1": job,
            "job-2": blind,
            "db": traffic,
            "web": web,
            "queue": Sample("queue", 0.0, 3.0),
        }
        use.note(now_s, {1: "job-1", 2: "job-2", 3: "job-3"}, samples, host)
    first, found = use.taken()
    assert first.others == {CPU: 2.5, MEMORY: 40.0, BANDWIDTH: 13.0}, "one round is enough to begin with"
    assert found.jobs == {1: {CPU: 1.0, MEMORY: 20.0, BANDWIDTH: 5.0}, 2: {CPU: 0.5}}
    assert found.others == {CPU: 2.5, MEMORY: 40.0, BANDWIDTH: 17.5}
    assert use.taken() == []


def test_a_job_that_was_not_sampled_yet_does_not_count_as_others() -> None:
    """A host whose others use 3 CPUs and 40 bytes; a job uses 4 CPUs and 30 bytes from the third round to the fifth."""
    use, known = QueueUse(), Sample("job-1", 0.0, 5.0, 4.0, memory_working_set_bytes=30.0)
    found = []
    for n in range(7):
        runs, sampled = 2 <= n < 6, 3 <= n < 5  # it ends within the sixth round
        cpu = CpuAccount(8.0, 3.0, 1.0, 0.0, 0.0, 0.0, 1.0 if runs else 5.0)
        host = HostAccount(
            0.0, 5.0, cpu, memory_total_bytes=100.0, memory_available_bytes=30.0 if runs else 60.0
        )
        started = Sample("job-1", 0.0, 5.0, quality=(Quality.FIRST,))
        samples = {"job-1": known if sampled else started} if 2 <= n < 5 else {}
        use.note(5.0 * (n + 1), {1: "job-1"} if 2 <= n < 5 else {}, samples, host)
        found += use.taken()
    assert [each.others[CPU] for each in found] == [3.0] * 7
    assert [each.others[MEMORY] for each in found] == [40.0] * 7


def test_others_count_as_all_that_jobs_do_not_account_for_where_no_round_can_tell() -> None:
    use = QueueUse()
    cpu = CpuAccount(8.0, 3.0, 1.0, 0.0, 0.0, 0.0, 1.0)
    host = HostAccount(0.0, 5.0, cpu, memory_total_bytes=100.0, memory_available_bytes=30.0)
    for now_s in (5.0, 10.0):
        use.note(now_s, {1: "job-1"}, {}, host)
    assert [found.others for found in use.taken()] == [{CPU: 7.0, MEMORY: 70.0}] * 2
    idle = replace(host, cpu=replace(cpu, idle=5.0), memory_available_bytes=60.0)
    use.note(15.0, {}, {}, host)
    for now_s in (20.0, 25.0):  # the second of these tells
        use.note(now_s, {}, {}, idle)
    for now_s in range(30, 100, 5):  # jobs come and go in every round
        use.note(now_s, {now_s: "job"}, {}, host)
    later = [each.others[CPU] for each in use.taken()]
    assert later[2] == 3.0
    assert later[5] == 3.0
    assert later[-1] == 7.0, "what was known is too old"


def test_the_hosts_bandwidth_is_that_of_all_domains_measured_with_enough_cores() -> None:
    curves = [
        ThrottleCurve(0, 1, ((50, 5e9), (100, 10e9))),
        ThrottleCurve(0, 4, ((50, 15e9), (100, 30e9))),
        ThrottleCurve(1, 8, ((50, 14e9), (100, 28e9))),
    ]
    assert whole_bandwidth(curves, {0: 8, 1: 8}) == 58e9
    assert whole_bandwidth(curves, {0: 9, 1: 8}) is None, "four of nine cores may not fill its channels"
    assert whole_bandwidth(curves, {0: 8, 1: 8, 2: 8}) is None
    assert whole_bandwidth([], {}) is None


@pytest.mark.parametrize(("stated", "expected"), [(0, 58e9), (int(7e9), 7e9)])
def test_the_queue_counts_with_what_was_calibrated_unless_the_operator_states_it(
    stated: int, expected: float
) -> None:
    cores = tuple(Core(n, n, CpuSet.of([n])) for n in range(2))
    domains = tuple(L3Domain(n, CpuSet.of([n]), 1 << 20) for n in range(2))
    topology = Topology(cores, domains, (), CpuSet.of(range(2)))
    curves = (ThrottleCurve(0, 1, ((100, 30e9),)), ThrottleCurve(1, 1, ((100, 28e9),)))
    config = Config(queue=QueueConfig(memory_bandwidth_bytes=stated))
    bounds = Actuators(throttle=Throttle(curves=curves))
    assert _with_bandwidth(config, topology, bounds).queue.memory_bandwidth_bytes == expected
    assert _with_bandwidth(config, topology, Actuators()) is config
