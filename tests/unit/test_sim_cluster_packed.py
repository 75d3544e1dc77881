"""DistSched on the simulated cluster: the published order of machines, gangs, risk, evictions and mitigations."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perphd.sim.cluster.fleet_events import FleetEventKind, digest, replayed
from perphd.sim.cluster.gang_jobs import GIB, GangWork, drawn_gangs
from perphd.sim.cluster.packed import PackedCluster, PackedPolicy
from tools.bench.fleet.packing import MACHINES, SHAPE, packed_run

CORES, MEMORY = 8.0, 10.0 * GIB


def _job(
    number: int,
    gib: float,
    *,
    cores: float = 1.0,
    tasks: int = 1,
    run_s: float = 300.0,
    deadline_s: float | None = None,
    kind: int = 0,
    at_s: float = 0.0,
) -> GangWork:
    return GangWork(number, kind, 0, at_s, tasks, run_s, cores, gib * GIB, cores, gib * GIB, deadline_s)


def _cluster(
    works: list[GangWork],
    past: list[GangWork],
    machines: int = 2,
    policy: PackedPolicy = PackedPolicy.DISTRIBUTION,
) -> PackedCluster:
    return PackedCluster(works, past, machines, policy, CORES, MEMORY)


def test_jobs_go_where_risk_is_least_and_among_equals_where_least_is_left() -> None:
    """The published order of machines, with whole jobs: risk first, then the fullest."""
    past = [_job(n, gib, kind=kind) for kind, gib in enumerate((6.0, 2.0, 3.0)) for n in range(8)]
    works = [
        _job(0, 6.0, kind=0),
        _job(1, 2.0, kind=1, at_s=20.0),  # on the machine with 6 of 10 GiB: the fullest without risk
        _job(2, 3.0, kind=2, at_s=40.0),  # 8 + 3 exceeds that machine
    ]
    cluster = _cluster(works, past)
    cluster.run(100.0)
    at = {number: run.machines[0] for number, run in cluster._running.items()}
    assert at[1] == at[0]
    assert at[2] != at[0]


def test_a_gang_starts_as_a_whole_or_not_at_all() -> None:
    past = [_job(n, 4.0) for n in range(8)]
    works = [_job(0, 4.0, tasks=3), _job(1, 4.0, tasks=3)]
    cluster = _cluster(works, past)  # two tasks a machine: four in all
    cluster.run(100.0)
    assert len(cluster._running) == 1
    assert len(next(iter(cluster._running.values())).machines) == 3


def test_points_are_evicted_where_distributions_wait() -> None:
    """Half of the jobs take 3 GiB, half 7: two of the latter exceed a machine."""
    past = [_job(n, 7.0 if n % 2 else 3.0) for n in range(40)]
    works = [_job(n, 7.0) for n in range(4)]
    by_point = _cluster(works, past, 2, PackedPolicy.POINT).run(1200.0)
    by_law = _cluster(works, past, 2).run(1200.0)
    assert by_law.evictions == 0
    assert by_law.best_effort == 4
    assert by_point.evictions > 0


def test_a_throttled_task_takes_as_long_as_its_share_allows() -> None:
    """15 s at 4 CPUs become 30 s at 2; published for one task, here by equal requests of two."""
    past = [_job(n, 1.0, cores=4.0) for n in range(8)]
    works = [_job(n, 1.0, cores=8.0, run_s=15.0) for n in range(2)]
    cluster = _cluster(works, past, 1)
    cluster.run(60.0)
    ended = [event.at_s for event in cluster.events if event.kind is FleetEventKind.ENDED]
    assert ended == pytest.approx([30.0, 30.0])


def test_best_effort_gives_way_to_a_deadline_but_for_one_ablation() -> None:
    past = [_job(n, 8.0, run_s=300.0) for n in range(8)]
    works = [_job(0, 8.0, run_s=3000.0), _job(1, 8.0, run_s=300.0, deadline_s=500.0, at_s=60.0)]
    assert _cluster(works, past, 1).run(3600.0).missed == 0
    kept = _cluster(works, past, 1, PackedPolicy.NO_PREEMPTION).run(3600.0)
    assert (kept.missed, kept.preemptions) == (1, 0)


def test_a_job_that_its_history_rules_out_is_tried_where_overestimates_are_handled() -> None:
    past = [_job(n, 1.0, run_s=900.0) for n in range(8)]
    works = [_job(0, 1.0, run_s=100.0, deadline_s=180.0)]
    assert _cluster(works, past).run(600.0).missed == 0
    assert _cluster(works, past, policy=PackedPolicy.NO_OVERESTIMATE).run(600.0).missed == 1


def test_equal_seeds_give_equal_logs_and_these_replay() -> None:
    drawn = drawn_gangs(SHAPE, 1, lambda work: work.tasks / MACHINES, 10)
    runs = [PackedCluster(drawn.works[:60], drawn.past, 6, PackedPolicy.DISTRIBUTION) for _ in range(2)]
    for run in runs:
        run.run(600.0)
    assert digest(runs[0].events) == digest(runs[1].events)
    assert set(replayed(runs[0].events)) == set(runs[0]._running)


def test_overestimates_cost_deadlines_on_the_benchs_own_workload() -> None:
    policies = (PackedPolicy.DISTRIBUTION, PackedPolicy.NO_OVERESTIMATE)
    found = [packed_run(policy, 0, replace(SHAPE, hours=0.25)) for policy in policies]
    assert found[0].missed < found[1].missed
