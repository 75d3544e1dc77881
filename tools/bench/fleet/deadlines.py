"""Gangs with deadlines on a simulated cluster: 3Sigma, its ablations and what it is compared with (chapter 4).

64 nodes, an hour, load 1.4 of which half have deadlines. The history has 40 jobs of each kind, and the jobs that end.
``sampled``: 3Sigma with a history of n jobs of each kind alone, beside perfect point estimates.
"""

from __future__ import annotations

from typing import Final

from perphd.forecast.history.store import JobHistory
from perphd.sim.cluster.gang_jobs import DrawnGangs, GangShape, drawn_gangs
from perphd.sim.cluster.planned import (
    PlannedCluster,
    PlannedOutcome,
    PlannedPolicy,
    PlannedSettings,
    learned,
)

NODES: Final = 64
SHAPE: Final = GangShape(hours=1.0, load=1.4)
PAST: Final = 40
SAMPLES: Final = (5, 10, 25, 50)
FIXED: Final = PlannedSettings(learns=False)


def planned_runs(
    seed: int, shape: GangShape = SHAPE, policies: tuple[PlannedPolicy, ...] = tuple(PlannedPolicy)
) -> list[PlannedOutcome]:
    """All policies on one seed's jobs, in their order."""
    drawn = _drawn(shape, seed, PAST)
    known = list(learned(drawn.past).exported())
    return [_run(drawn, shape, policy, _copied(known)) for policy in policies]


def sampled(seed: int, shape: GangShape = SHAPE, samples: tuple[int, ...] = SAMPLES) -> list[PlannedOutcome]:
    """Perfect point estimates, then 3Sigma with each number of earlier jobs of a kind."""
    drawn = _drawn(shape, seed, max(samples))
    found = [_run(drawn, shape, PlannedPolicy.PERFECT, JobHistory(":memory:"), FIXED)]
    for most in samples:
        found.append(_run(drawn, shape, PlannedPolicy.DISTRIBUTION, learned(drawn.past, most), FIXED))
    return found


def _drawn(shape: GangShape, seed: int, past: int) -> DrawnGangs:
    return drawn_gangs(shape, seed, lambda work: work.tasks / NODES, past)


def _copied(lines: list[str]) -> JobHistory:
    history = JobHistory(":memory:")
    history.merge(lines, "memory")
    return history


def _run(
    drawn: DrawnGangs,
    shape: GangShape,
    policy: PlannedPolicy,
    history: JobHistory,
    settings: PlannedSettings | None = None,
) -> PlannedOutcome:
    with history:
        return PlannedCluster(drawn.works, NODES, policy, history, settings).run(shape.hours * 3600.0)
