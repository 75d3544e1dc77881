"""Copper on a simulated fleet: every node offers what its services leave, and schedulers place batch by these
offers.

Two levels share one published state. Services are placed by the policy; batch is copper and goes to the node with the
most of its offer left. If several schedulers choose the same node, the proposal with the highest score is
deployed (``placement.resolved``).

Offers are computed as in the daemon (``qos.offers``): the capacity beyond the services' peak use in the last
window and a margin. The margin follows from the errors of earlier windows. Memory offers stay within 80 % of
the host. An event (``qos.event_mode``) cuts the offers, and the CPU ceiling of running copper to the same
share of its requests. Copper is counted by its requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from perphd.cluster.scheduling.fleet import Fleet, Mask, Scores, node_names
from perphd.cluster.scheduling.placement import PlacementDecision
from perphd.cluster.scheduling.profile import Pod
from perphd.qos.event_mode import CopperEvent, share_at
from perphd.qos.offers import FollowedOffer, FollowedResource, followed, with_use
from perphd.sim.cluster.division import Floats, Places
from perphd.sim.node.machine import Machine

TOO_LITTLE: Final = "copper has too little room"
_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class CopperSettings:
    """Settings of copper. ``event``: cuts the offers of all nodes; its times are simulation times."""

    event: CopperEvent | None = None


class CopperOffers:
    """The offers of all nodes, and the part that copper holds."""

    def __init__(self, nodes: int, machine: Machine, settings: CopperSettings) -> None:
        self._settings = settings
        start = followed(float(machine.cpus), float(machine.memory_bytes))
        self._states: list[FollowedOffer] = [start] * nodes
        self._seen_s = np.zeros(nodes)
        self._offered = np.zeros((2, nodes))
        self.held = np.zeros((2, nodes))

    def used(self, nodes: Places, cores: Floats, memory_bytes: Floats, now_s: float) -> None:
        """Update the services' use on these nodes up to now."""
        for node, cpus, held in zip(nodes.tolist(), cores.tolist(), memory_bytes.tolist(), strict=True):
            passed_s = now_s - float(self._seen_s[node])
            state = self._states[node] = with_use(self._states[node], passed_s, cpus, held)
            self._offered[:, node] = _copper(state.cpus), _copper(state.memory)
        self._seen_s[nodes] = now_s

    def hold(self, node: int, pod: Pod, sign: int) -> None:
        """Record that a copper pod starts (1) or ends (-1) on a node."""
        self.held[:, node] += sign * np.array([pod.cores, pod.memory_bytes])

    def share(self, now_s: float) -> float:
        """The share of each offer that copper gets now."""
        return share_at(self._settings.event, now_s)

    def left(self, now_s: float) -> Floats:
        """CPUs and memory that copper may still take; (2, nodes)."""
        result: Floats = np.maximum(self._offered * self.share(now_s) - self.held, 0.0)
        return result

    def decided(self, fleet: Fleet, pod: Pod, now_s: float) -> PlacementDecision:
        """The node on which this copper pod leaves the largest share of the offer free."""
        left = self.left(now_s)
        asked = np.array([[pod.cores], [pod.memory_bytes]])
        after = (left - asked) / np.maximum(self._offered, 1.0)
        terms = {"CPU left": 0.5 * after[0], "memory left": 0.5 * after[1]}
        little: Mask = np.any(left < asked * (1.0 - _ROUNDING), axis=0)
        rows = fleet.rows
        scores = Scores("bands", node_names(fleet), rows, after.mean(axis=0), terms, {TOO_LITTLE: little})
        return PlacementDecision(pod.name, scores.best(), scores, len(rows), 0, f"{len(rows)} offers")


def _copper(resource: FollowedResource) -> float:
    """The resource's offer to copper; 0 until the first window is over."""
    return 0.0 if resource.given is None else resource.given.copper
