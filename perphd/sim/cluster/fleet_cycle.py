"""The state of a fleet simulator's run between two cycles, and its stateless calculations."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perphd.cluster.scheduling.fleet import Rows
from perphd.sim.cluster.division import Floats


@dataclass(slots=True)
class FleetCycle:
    """The state of a run between two cycles.

    ``now_s``: time of the next cycle. ``tick_s``: time at which all nodes are evaluated next. ``submitted``: number
    of pods submitted so far. ``waiting``: pods without a node. ``dirty``: nodes whose pods have changed since their
    last evaluation. ``retry``: whether the next cycle tries to place the waiting pods again.
    """

    now_s: float = 0.0
    tick_s: float = 0.0
    submitted: int = 0
    waiting: deque[int] = field(default_factory=deque)
    dirty: set[int] = field(default_factory=set)
    retry: bool = True


def law_of(values: Floats) -> dict[float, float]:
    """The relative frequency of each value."""
    found: dict[float, float] = {}
    for value in values.tolist():
        found[value] = found.get(value, 0.0) + 1.0 / len(values)
    return found


def with_room(used: Floats, node: NDArray[np.integer[Any]], nodes: int, most: float) -> Rows:
    """Nodes whose pods use at most ``most`` CPUs together.

    ``used``: CPUs of each pod; ``node``: its node, negative if it has none. ``nodes``: number of nodes.
    """
    running = np.nonzero(node >= 0)[0]
    return np.nonzero(np.bincount(node[running], used[running], nodes) <= most)[0]
