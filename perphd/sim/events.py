"""External events of the simulated host, with their times."""

from __future__ import annotations

from dataclasses import dataclass

from perphd.sim.node.workload import NodeWorkload


@dataclass(frozen=True, slots=True)
class Arrival:
    """A workload starts at ``at_s`` in its cgroup (created if missing)."""

    at_s: float
    name: str


@dataclass(frozen=True, slots=True)
class Departure:
    """A workload ends at ``at_s``; its empty cgroup stays unless ``remove_cgroup``."""

    at_s: float
    name: str
    remove_cgroup: bool = False


@dataclass(frozen=True, slots=True)
class LoadChange:
    """From ``at_s`` on, the load of an LRA is ``factor`` times its specification."""

    at_s: float
    name: str
    factor: float


@dataclass(frozen=True, slots=True)
class WorkChange:
    """From ``at_s`` on, a workload behaves like ``work``: its data set grew, a new version runs, a phase began.

    ``work`` has the workload's name; its kind cannot change.
    """

    at_s: float
    work: NodeWorkload

    @property
    def name(self) -> str:
        """The workload's name."""
        return self.work.name


Event = Arrival | Departure | LoadChange | WorkChange
