"""The simulated fleet: seeded and replayable, work is conserved, memory evicts batch, schedulers conflict."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from perphd.cluster.scheduling.placement import POLICIES, PlacementSettings
from perphd.cluster.scheduling.profile import PodKind
from perphd.forecast.usage_profile import PodSample, UsageProfile, effective_ratio, observed
from perphd.sim.cluster.fleet_events import FleetEvent, FleetEventKind, digest, replayed
from perphd.sim.cluster.fleet_settings import FleetSettings
from perphd.sim.cluster.fleet_workload import FleetShape, FleetWorkload, Loads, drawn
from perphd.sim.cluster.learning import Learner
from perphd.sim.cluster.simulator import FleetSimulator

SHAPE = FleetShape(
    nodes=4, hours=0.25, service_requests=0.3, jobs_per_h=120, median_run_s=150, services=5, batches=4
)


def _run(policy: str = "alignment", seed: int = 1, workload: FleetWorkload | None = None, **more):
    simulator = FleetSimulator(
        workload if workload is not None else drawn(SHAPE, seed),
        SHAPE.nodes,
        FleetSettings(PlacementSettings(policy), **more),
    )
    return simulator.run(900.0)


def test_generator_has_the_published_facts():
    workload = drawn(FleetShape(20, 4.0, jobs_per_h=500), 3)
    services = [pod for pod in workload.pods if pod.kind is PodKind.SERVICE]
    batch = [pod for pod in workload.pods if pod.kind is PodKind.BATCH]
    loads = Loads(workload)
    day = np.mean([loads.at(t, np.arange(len(services))) for t in np.linspace(0, 86400, 97)], axis=0)
    gap = sum(pod.cores for pod in services) / day.sum()
    assert 4 <= gap <= 9  # five times; a popular application moves the mean
    assert 2 <= np.mean([1 / pod.used_ratio for pod in batch]) <= 5  # three times
    assert all(0.3 <= pod.memory_ratio <= 0.6 for pod in services)
    assert all(pod.memory_ratio >= 0.9 for pod in batch)
    times = [pod.submitted_s for pod in batch]
    gaps = np.diff(times)
    assert times == sorted(times)
    assert 2.5 <= np.var(gaps) / np.mean(gaps) ** 2 <= 6.5  # squared coefficient of variation of 4


def test_equal_seeds_give_equal_logs():
    first, again, other = _run(), _run(), _run(seed=2)
    assert digest(first.events) == digest(again.events)
    assert digest(first.events) != digest(other.events)


@pytest.mark.parametrize("policy", sorted(set(POLICIES) - {"prophet", "optum-matched"}))
def test_every_policy_runs_and_the_log_replays(policy):
    workload = drawn(SHAPE, 1)
    result = _run(policy, workload=workload)
    ended = ~np.isnan(result.ended_s)
    started = ~np.isnan(result.started_s)
    running = set(np.nonzero(started & ~ended)[0].tolist())
    assert set(replayed(result.events)) == running
    assert ended.sum() > 2
    assert all(first.at_s <= second.at_s for first, second in pairwise(result.events))
    work = np.array([pod.work_cpu_s for pod in workload.pods])
    assert result.work_done[ended] == pytest.approx(work[ended])
    # nobody is faster than its own demand allows
    most = np.array([pod.used_ratio * pod.cores for pod in workload.pods]) * 1.7
    assert (result.work_done[ended] <= most[ended] * (result.ended_s - result.started_s)[ended]).all()


def test_a_log_that_contradicts_itself_is_refused():
    start = FleetEvent(1.0, FleetEventKind.STARTED, 3, 0)
    with pytest.raises(ValueError, match="never submitted"):
        replayed([start])
    with pytest.raises(ValueError, match="is earlier than"):
        replayed([start.__class__(2.0, FleetEventKind.SUBMITTED, 3), start])


def test_memory_evicts_batch_alone():
    shape = replace(SHAPE, jobs_per_h=400, memory_per_core=7.0)
    workload = drawn(shape, 4)
    greedy = [
        replace(pod, memory_ratio=1.4 if pod.kind is PodKind.BATCH else pod.memory_ratio)
        for pod in workload.pods
    ]
    result = _run("borg", workload=FleetWorkload(workload.types, greedy, 4))
    hit = np.nonzero(result.evictions)[0]
    assert len(hit) > 0
    assert all(greedy[pod].kind is PodKind.BATCH for pod in hit.tolist())
    assert math.isfinite(result.ticks[-1].memory_ratio)
    assert result.ticks[-1].memory_ratio <= 0.97


def test_schedulers_that_meet_on_a_node_deploy_one():
    result = _run(schedulers=4)
    assert result.conflicts > 0
    assert result.conflicts == sum(event.kind is FleetEventKind.CONFLICT for event in result.events)
    assert np.isnan(result.started_s).sum() == np.isnan(_run(schedulers=1).started_s).sum()
    replayed(result.events)  # nobody runs twice


def test_a_limit_on_batch_counts_new_pods_at_their_requests():
    unlimited, roomy = _run(), _run(batch_limit=1e9)
    assert digest(roomy.events) == digest(unlimited.events)
    workload = drawn(SHAPE, 1)
    batch = np.array([pod.kind is PodKind.BATCH for pod in workload.pods])
    none = _run(workload=workload, batch_limit=0.0)
    assert np.isnan(none.started_s[batch]).all()
    assert not np.isnan(none.started_s[~batch]).any()
    simulator = FleetSimulator(
        workload, SHAPE.nodes, FleetSettings(PlacementSettings("alignment"), batch_limit=0.2)
    )
    simulator.run(900.0)
    first_s = np.nanmin(simulator.result.started_s[batch])
    together: dict[int, float] = {}
    for event in simulator.result.events:
        if event.kind is FleetEventKind.STARTED and event.at_s == first_s and batch[event.pod]:
            together[event.node] = together.get(event.node, 0.0) + workload.pods[event.pod].cores
    assert max(together.values()) <= 0.2 * simulator.machine.cpus


def test_pairs_are_learned_as_nodes_learn_them():
    rng = np.random.default_rng(0)
    names = ["a", "b", "c"]
    learner = Learner(names, [PodKind.SERVICE] * 3)
    expected = UsageProfile()
    for _ in range(5):
        node, app = rng.integers(0, 3, 12), rng.integers(0, 3, 12)
        request, used = rng.uniform(1, 4, 12), rng.uniform(0.1, 3, 12)
        learner.sample(node, app, request, used, np.zeros(12), np.full(12, 0.3), np.full(12, 0.5))
        for number in range(3):
            here = np.nonzero(node == number)[0].tolist()
            pods = [PodSample(names[app[i]], float(request[i]), float(used[i])) for i in here]
            expected = observed(expected, pods, 0)
    found = learner.learned().usage
    for first in names:
        for second in names:
            assert effective_ratio(found, first, second) == pytest.approx(
                effective_ratio(expected, first, second)
            )
