"""The interface that the batch queue needs from the agent."""

from __future__ import annotations

from typing import Protocol

from perphd.domain.control import Actor
from perphd.domain.workload import WorkloadSpec


class Attached(Protocol):
    """The operations of the agent that the queue calls."""

    async def add(self, spec: WorkloadSpec) -> None:
        """Manage the control group of a running job as batch."""

    async def let_go(self, name: str) -> None:
        """Restore the settings of an ended job's group."""

    def enforced(self, name: str) -> bool:
        """True if perphd writes settings of this workload."""

    def tell(self, text: str, workload: str = "", by: Actor | None = None) -> None:
        """Announce an event."""

    def problem(self, key: str, text: str | None) -> None:
        """Report a condition that an operator should know about, or clear it (``text`` None)."""
