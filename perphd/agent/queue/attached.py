"""The interface that the batch queue needs of the agent."""

from __future__ import annotations

from typing import Protocol

from perphd.domain.control import Actor
from perphd.domain.workload import WorkloadSpec


class Attached(Protocol):
    """What the queue needs of the agent that it serves."""

    async def add(self, spec: WorkloadSpec) -> None:
        """A job runs: look after its control group as batch."""

    async def let_go(self, name: str) -> None:
        """A job has ended: give back what was set on its group."""

    def enforced(self, name: str) -> bool:
        """True if settings of this workload are written."""

    def tell(self, text: str, workload: str = "", by: Actor | None = None) -> None:
        """Announce an event."""

    def problem(self, key: str, text: str | None) -> None:
        """State, or clear, a condition that an operator should read."""
