"""The interface through which the queue starts jobs on a host; ``perphd.isolation`` implements it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from perphd.batch.job import QueuedJob, UnitEvidence
from perphd.domain.errors import PerphError


class StartFailed(PerphError):
    """Jobs cannot be started on this host at present. This job was not started."""


class JobRefused(PerphError):
    """This job can never be started as submitted: the host would refuse another attempt as well."""


@dataclass(frozen=True, slots=True)
class UnitState:
    """State of a job's unit. ``status``: exit status once it has ended; ``reason``: details about its end."""

    evidence: UnitEvidence
    status: int = 0
    cgroup: str = ""
    reason: str = ""


class JobRunner(Protocol):
    """Starts jobs and watches their processes. Calls block, so they belong in the queue's thread."""

    def make_group(self, job: QueuedJob) -> str:
        """Create the control group of the present attempt, without a process, and return it.

        Returns an empty string if the group is created together with its first process.

        Raises:
            StartFailed: it was not created.
        """
        ...

    def start(self, job: QueuedJob, log: str) -> str:
        """Start the present attempt, at most once, and return its control group.

        ``log``: the file for output, unless the job names its own.

        Raises:
            StartFailed: it was not started.
            JobRefused: it can never be started as submitted.
            KernelError: it is unknown whether it was started; ``look`` finds out.
        """
        ...

    def look(self, jobs: Sequence[QueuedJob]) -> Mapping[int, UnitState]:
        """The unit states of the present attempts, by job. Jobs whose unit cannot be read are left out."""
        ...

    def stop(self, unit: str) -> bool:
        """End all processes of a unit and remove the unit; True once nothing is left."""
        ...

    def units(self) -> tuple[str, ...]:
        """Units of jobs that exist or have left records."""
        ...
