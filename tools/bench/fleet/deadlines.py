"""Gangs with deadlines on a simulated cluster: 3Sigma, its ablations and the policies of its comparison (chapter 4).

The cluster has 64 nodes and runs for an hour at load 1.4, half of it with deadlines. The history has 40 jobs of each
kind, and receives the jobs that end. ``sampled_run``: 3Sigma with a history of n jobs of each kind alone, beside
perfect point estimates.
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
SAMPLES: Final = (0, 5, 10, 25, 50)
"""Earlier jobs of each kind; 0: perfect point estimates instead."""
FIXED: Final = PlannedSettings(learns=False)


def planned_run(policy: PlannedPolicy, seed: int, shape: GangShape = SHAPE) -> PlannedOutcome:
    """One policy on one seed's jobs."""
    drawn = _drawn(shape, seed, PAST)
    return _run(drawn, shape, policy, learned(drawn.past))


def sampled_run(samples: int, seed: int, shape: GangShape = SHAPE) -> PlannedOutcome:
    """3Sigma with this number of earlier jobs of each kind; 0: perfect point estimates."""
    drawn = _drawn(shape, seed, max(SAMPLES))
    if not samples:
        return _run(drawn, shape, PlannedPolicy.PERFECT, JobHistory(":memory:"), FIXED)
    return _run(drawn, shape, PlannedPolicy.DISTRIBUTION, learned(drawn.past, samples), FIXED)


def _drawn(shape: GangShape, seed: int, past: int) -> DrawnGangs:
    return drawn_gangs(shape, seed, lambda work: work.tasks / NODES, past)


def _run(
    drawn: DrawnGangs,
    shape: GangShape,
    policy: PlannedPolicy,
    history: JobHistory,
    settings: PlannedSettings | None = None,
) -> PlannedOutcome:
    with history:
        return PlannedCluster(drawn.works, NODES, policy, history, settings).run(shape.hours * 3600.0)
