"""The settings of a run of the fleet simulator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from perphd.cluster.scheduling.placement import PlacementSettings
from perphd.cluster.scheduling.profile import NodeProfile, Pod
from perphd.forecast.peaks import HostUsage
from perphd.sim.cluster.bands import CopperSettings
from perphd.sim.cluster.node_agents import NodeAgents

KNOWN_ROUNDS: Final = 3
"""Rounds of the node model per tick, for nodes whose last result is known."""


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """Settings of a run. ``schedulers``: number of schedulers that decide at once. ``learn``: collect samples
    for ``Learned``. ``placed``: pods submitted at 0 are already running, distributed over the nodes in turn.
    ``agents``: judge services against the same node without batch, and act on nodes if they are active;
    None: ``targets.late_services``. ``rounds``: rounds of the node model per tick. ``together``: places up to
    ``group`` waiting services at once, in place of the policy. ``copper``: batch is placed by the nodes'
    offers to copper, in place of the policy. ``pairing``: computes the least sum over Optum's pairings of
    pods; None: the product's own. ``batch_limit``: batch starts only on nodes whose use leaves room for its
    request within this share of the CPUs; a pod counts at its request until its use is measured.
    """

    placement: PlacementSettings
    cycle_s: float = 15.0
    tick_s: float = 300.0
    schedulers: int = 1
    learn: bool = False
    placed: bool = False
    agents: NodeAgents | None = None
    rounds: int = KNOWN_ROUNDS
    together: Callable[[Sequence[NodeProfile], Sequence[Pod]], Sequence[str | None]] | None = None
    group: int = 15
    copper: CopperSettings | None = None
    pairing: Callable[[HostUsage], float] | None = None
    batch_limit: float | None = None
