"""What the queue asks of whoever starts jobs on this host: an interface without a host behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from perphd.batch.job import QueuedJob, UnitEvidence
from perphd.domain.errors import PerphError


class StartFailed(PerphError):
    """Jobs cannot be started here now. This one was not started."""


class JobRefused(PerphError):
    """This job can never be started as it was submitted: another attempt would be refused as well."""


@dataclass(frozen=True, slots=True)
class UnitState:
    """What is found of a job's unit. ``status``: its exit status once it has ended; ``reason``: more about its end."""

    evidence: UnitEvidence
    status: int = 0
    cgroup: str = ""
    reason: str = ""


class JobRunner(Protocol):
    """Starts jobs and looks after their processes. Calls block: they belong in the queue's thread."""

    def start(self, job: QueuedJob, log: str) -> str:
        """Start the present attempt, once at most, and return its control group.

        ``log``: where output goes that the job does not send elsewhere.

        Raises:
            StartFailed: it was not started.
            JobRefused: it cannot be started.
            KernelError: whether it was started is not known; ``look`` tells.
        """
        ...

    def look(self, jobs: Sequence[QueuedJob]) -> Mapping[int, UnitState]:
        """What is found of the present attempts. A job that cannot be looked at is left out."""
        ...

    def stop(self, unit: str) -> bool:
        """End all processes of a unit and remove what is left of it; True once nothing is left."""
        ...

    def units(self) -> tuple[str, ...]:
        """The units of jobs that exist, or of which records are left."""
        ...
