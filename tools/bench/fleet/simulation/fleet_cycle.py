"""Where a run of the fleet simulator is between two cycles, and the law of measured values."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from tools.bench.fleet.simulation.division import Floats


@dataclass(slots=True)
class FleetCycle:
    """Where a run is: the next cycle, and what is left over from the last one.

    ``tick_s``: when all nodes are evaluated next. ``submitted``: pods so far. ``waiting``: those without a node.
    ``dirty``: nodes whose pods have changed. ``retry``: waiting pods are tried again.
    """

    now_s: float = 0.0
    tick_s: float = 0.0
    submitted: int = 0
    waiting: deque[int] = field(default_factory=deque)
    dirty: set[int] = field(default_factory=set)
    retry: bool = True


def law_of(values: Floats) -> dict[float, float]:
    """The chance of each value."""
    found: dict[float, float] = {}
    for value in values.tolist():
        found[value] = found.get(value, 0.0) + 1.0 / len(values)
    return found
