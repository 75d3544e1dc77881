"""Decides the node of one pod: candidates, a policy, the fallback for stale profiles, conflicts between schedulers.

candidates   a random share of the nodes (5 % in Optum); all of them if none of the sample is feasible
fresh        profiles within their time to live are scored by the policy
stale        only if no fresh node is feasible: scored by requests alone (``packing.balanced``)
conflicts    of several proposals for one node, the highest score is deployed; all others return (Optum, 1.8)
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

import numpy as np

from perphd.cluster.scheduling.distribution import by_risk
from perphd.cluster.scheduling.fleet import BaseColumns, Fleet, NodeScore, Rows, Scores
from perphd.cluster.scheduling.optum import AS_PRINTED, OptumSettings, optum
from perphd.cluster.scheduling.packing import PACKING, balanced
from perphd.cluster.scheduling.profile import Pod
from perphd.cluster.scheduling.prophet import prophet

SAMPLED_RATIO: Final = 0.05
"""Share of nodes that Optum samples for one pod."""
LEAST_SAMPLED: Final = 50
"""Number of nodes below which sampling saves no time."""

PlacementPolicy: TypeAlias = Callable[[Fleet, Pod, Rows], Scores]

POLICIES: Final[Mapping[str, PlacementPolicy]] = {
    "optum": optum,
    "optum-eq11": partial(optum, settings=AS_PRINTED),
    "optum-matched": partial(optum, settings=OptumSettings(tightest=True)),
    "distribution": by_risk,
    "prophet": prophet,
    **PACKING,
}
"""All policies by the names that configuration and answers use."""


@dataclass(frozen=True, slots=True)
class PlacementSettings:
    """Settings of a decision.

    ``seed`` and the pod's name choose the sample, so equal questions get equal answers.
    """

    policy: str = "optum"
    sampled_ratio: float = SAMPLED_RATIO
    seed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class PlacementDecision:
    """The node for a pod.

    ``chosen``: None if there is none now. ``scores``: the scores of all candidates considered. ``why``: how the
    candidates were chosen.
    """

    pod: str
    chosen: NodeScore | None
    scores: Scores
    fresh: int
    stale: int
    why: str


def decided(
    fleet: Fleet,
    pod: Pod,
    now_s: float,
    settings: PlacementSettings | None = None,
    allowed: Rows | None = None,
) -> PlacementDecision:
    """The decision for one pod at ``now_s``. ``allowed``: rows that pass the scheduler's own filters; None: all.

    Raises:
        KeyError: there is no such policy.
    """
    settings = settings if settings is not None else PlacementSettings()
    policy = POLICIES[settings.policy]
    rows = fleet.rows if allowed is None else allowed
    base = fleet.columns(BaseColumns)
    is_fresh = now_s - base.of("made_s", rows) <= base.of("ttl_s", rows)
    fresh, stale = rows[is_fresh], rows[~is_fresh]
    chosen_rows = sampled(fresh, pod.name, settings)
    scores = policy(fleet, pod, chosen_rows)
    best, why = scores.best(), f"{len(chosen_rows)} of {len(fresh)} fresh nodes"
    if best is None and len(chosen_rows) < len(fresh):
        scores = policy(fleet, pod, fresh)
        best, why = scores.best(), f"all {len(fresh)} fresh nodes, since none of a sample was feasible"
    if best is None and len(stale):
        scores = balanced(fleet, pod, stale)
        best, why = (
            scores.best(),
            f"no fresh node is feasible: {len(stale)} nodes with stale profiles, compared by requests alone",
        )
    return PlacementDecision(pod.name, best, scores, len(fresh), len(stale), why)


def sampled(rows: Rows, pod: str, settings: PlacementSettings) -> Rows:
    """A random share of the rows, in ascending order; all rows if sampling saves no time."""
    wanted = max(LEAST_SAMPLED, int(np.ceil(settings.sampled_ratio * len(rows))))
    if wanted >= len(rows):
        return rows
    digest = hashlib.sha256(f"{settings.seed}:{pod}".encode()).digest()
    rng = np.random.default_rng(int.from_bytes(digest[:8], "little"))
    return np.sort(rng.choice(rows, size=wanted, replace=False))


@dataclass(frozen=True, slots=True)
class PlacementProposal:
    """A scheduler's proposal to deploy a pod on a node, with its score."""

    scheduler: str
    pod: str
    node: str
    score: float


@dataclass(frozen=True, slots=True)
class ProposalResolution:
    """The proposals to deploy, at most one per node, and those returned to their schedulers."""

    deployed: tuple[PlacementProposal, ...]
    redispatched: tuple[PlacementProposal, ...]


def resolved(proposals: Iterable[PlacementProposal]) -> ProposalResolution:
    """Optum's conflict rule: on each node, the proposal with the highest score wins, the first of several equal ones.
    Both results keep the order of ``proposals``.
    """
    given = tuple(proposals)
    winners: dict[str, PlacementProposal] = {}
    for each in given:
        known = winners.get(each.node)
        if known is None or each.score > known.score:
            winners[each.node] = each
    deployed = {id(each) for each in winners.values()}
    return ProposalResolution(
        tuple(each for each in given if id(each) in deployed),
        tuple(each for each in given if id(each) not in deployed),
    )
