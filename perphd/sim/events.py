"""What happens to the simulated host from outside, and when."""

from __future__ import annotations

from dataclasses import dataclass

from perphd.sim.node.workload import NodeWorkload


@dataclass(frozen=True, slots=True)
class Arrival:
    """At ``at_s`` a workload starts in its cgroup (made if it is not there)."""

    at_s: float
    name: str


@dataclass(frozen=True, slots=True)
class Departure:
    """At ``at_s`` a workload ends; its cgroup stays, empty, unless ``remove_cgroup``."""

    at_s: float
    name: str
    remove_cgroup: bool = False


@dataclass(frozen=True, slots=True)
class LoadChange:
    """From ``at_s`` on an LRA is asked ``factor`` times what its specification says."""

    at_s: float
    name: str
    factor: float


@dataclass(frozen=True, slots=True)
class WorkChange:
    """From ``at_s`` on a workload behaves as ``work`` says: its data set grew, a new version is out, a phase began.

    ``work`` has the workload's name; LRA stays LRA and batch stays batch.
    """

    at_s: float
    work: NodeWorkload

    @property
    def name(self) -> str:
        """The workload's name."""
        return self.work.name


Event = Arrival | Departure | LoadChange | WorkChange
