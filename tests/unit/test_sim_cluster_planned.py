"""3Sigma on the simulated cluster: the published scenarios, the facts of the generator, and that nothing is lost."""

from __future__ import annotations

import numpy as np
import pytest

from perphd.forecast.history.store import JobHistory, Quantity
from perphd.sim.cluster.fleet_events import FleetEventKind, digest, replayed
from perphd.sim.cluster.gang_jobs import SLACKS, DrawnGangs, GangShape, GangWork, drawn_gangs
from perphd.sim.cluster.planned import PlannedCluster, PlannedPolicy, PlannedSettings, learned

SLOTS_OF_2500_MS = PlannedSettings(cycle_s=2.5, replan_s=2.5, slot_s=2.5, slots=8, learns=False)
SHAPE = GangShape(0.5, 1.4)
NODES = 16


def _job(
    number: int,
    run_s: float,
    tasks: int = 1,
    deadline_s: float | None = None,
    at_s: float = 0.0,
    kind: int = 0,
) -> GangWork:
    return GangWork(number, kind, kind, at_s, tasks, run_s, 1.0, 1e9, 1.0 + kind, 1e9 + kind, deadline_s)


def _uniform(least_s: float, most_s: float) -> JobHistory:
    past = [_job(n, float(run_s)) for n, run_s in enumerate(np.linspace(least_s, most_s, 81))]
    return learned(past)


def _drawn(seed: int, shape: GangShape = SHAPE) -> DrawnGangs:
    return drawn_gangs(shape, seed, lambda work: work.tasks / NODES, 20)


@pytest.mark.parametrize(
    ("bounds", "first"), [((0.05, 10.0), "deadline"), ((2.5, 7.5), "best effort")]
)  # published as U(0, 10) and U(2.5, 7.5)
def test_both_published_scenarios(bounds: tuple[float, float], first: str) -> None:
    """One node, a deadline after 15 s: wide run times start it first, narrow ones the best-effort job."""
    works = [_job(0, 5.0, deadline_s=15.0), _job(1, 5.0)]
    cluster = PlannedCluster(works, 1, PlannedPolicy.DISTRIBUTION, _uniform(*bounds), SLOTS_OF_2500_MS)
    outcome = cluster.run(60.0)
    started = [event.pod for event in cluster.events if event.kind is FleetEventKind.STARTED]
    assert started == ([0, 1] if first == "deadline" else [1, 0])
    assert (outcome.deadlines, outcome.missed, outcome.best_effort) == (1, 0, 1)


@pytest.mark.parametrize(
    ("policy", "missed"),
    [(PlannedPolicy.POINT, 1), (PlannedPolicy.NO_OVERESTIMATE, 1), (PlannedPolicy.DISTRIBUTION, 0)],
)
def test_a_job_that_its_history_rules_out_runs_where_overestimates_are_handled(
    policy: PlannedPolicy, missed: int
) -> None:
    works = [_job(0, 5.0, deadline_s=8.0)]
    outcome = PlannedCluster(works, 1, policy, _uniform(20.0, 30.0), SLOTS_OF_2500_MS).run(60.0)
    assert outcome.missed == missed


@pytest.mark.parametrize("policy", [PlannedPolicy.PRIORITY, PlannedPolicy.DISTRIBUTION])
def test_best_effort_gives_way_to_a_gang_with_a_deadline(policy: PlannedPolicy) -> None:
    works = [_job(0, 500.0, kind=1), _job(1, 500.0, kind=1), _job(2, 6.0, 2, 35.0, at_s=20.0)]
    history = learned([_job(n, 6.0 if n % 2 else 500.0, kind=1 - n % 2) for n in range(40)])
    cluster = PlannedCluster(works, 2, policy, history, SLOTS_OF_2500_MS)
    outcome = cluster.run(2000.0)
    assert outcome.missed == 0
    assert outcome.preemptions >= 2
    assert outcome.best_effort == 2


def test_no_plan_takes_more_nodes_than_there_are_and_the_log_replays() -> None:
    works = _drawn(1).works
    cluster = PlannedCluster(works, NODES, PlannedPolicy.DISTRIBUTION, learned(_drawn(1).past, 5))
    outcome = cluster.run(1800.0)
    held: dict[int, int] = {}
    for event in cluster.events:
        if event.kind is FleetEventKind.STARTED:
            held[event.pod] = works[event.pod].tasks
        elif event.kind is not FleetEventKind.SUBMITTED:
            del held[event.pod]
        assert sum(held.values()) <= NODES
    assert set(replayed(cluster.events)) == set(held)
    assert outcome.deadlines == sum(work.deadline_s is not None for work in works)
    again = PlannedCluster(works, NODES, PlannedPolicy.DISTRIBUTION, learned(_drawn(1).past, 5))
    again.run(1800.0)
    assert digest(again.events) == digest(cluster.events)


def test_the_generator_has_the_published_facts() -> None:
    shape = GangShape(40.0, 1.4)
    works = _drawn(2, shape).works
    gaps = np.diff([work.submitted_s for work in works])
    assert 3.0 <= np.var(gaps) / np.mean(gaps) ** 2 <= 5.0
    assert np.mean([work.tasks == 1 for work in works]) == pytest.approx(0.77, abs=0.03)
    due = [work for work in works if work.deadline_s is not None]
    assert len(due) / len(works) == pytest.approx(0.5, abs=0.04)
    slacks = {round(((work.deadline_s or 0.0) - work.submitted_s) / work.run_s - 1.0, 6) for work in due}
    assert slacks == set(SLACKS)
    offered = sum(work.tasks * work.run_s for work in works) / (NODES * 40.0 * 3600.0)
    assert offered == pytest.approx(1.4, abs=0.05)
    asked = np.array([work.requested_cores / work.cores for work in works])
    assert np.mean((asked > 0.5) & (asked < 2.0)) == pytest.approx(0.2, abs=0.12)
    assert np.mean(asked > 2.0) == pytest.approx(0.74, abs=0.12)


def test_the_products_predictor_is_as_good_on_these_jobs_as_published() -> None:
    drawn = _drawn(3, GangShape(8.0, 1.4))
    history = learned(drawn.past)
    ratios = []
    for work in drawn.works:
        found = history.predict(work.facts, Quantity.RUN_TIME_S)
        assert found is not None
        ratios.append(found.estimate / work.run_s)
    within = np.mean([0.5 <= ratio <= 2.0 for ratio in ratios])
    assert 0.74 <= within <= 0.92  # four traces: .77 to .92
