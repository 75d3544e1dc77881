"""Limits of running jobs: an event's ceilings and freezes, and the CPUs that are in force for each job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from perphd.batch.job import JobState, QueuedJob
from perphd.batch.look import event_ceiling
from perphd.domain.allocation import KEEP, Settings


@dataclass(frozen=True, slots=True)
class GivenCpus:
    """Maximum CPUs of each job, by number, and the CPUs to which batch is confined (infinity: not confined).

    ``standing``: jobs that stand still, such as copper during an event that leaves it nothing.
    """

    jobs: Mapping[int, float]
    batch: float = float("inf")
    standing: frozenset[int] = frozenset()

    def of(self, number: int) -> float:
        """The CPUs that one job may use; infinity if no limit is in force."""
        return self.jobs.get(number, float("inf"))


class QueueGiven:
    """Settings of jobs in each round of the loop: event ceilings, freezes, and the CPUs that result."""

    def __init__(self) -> None:
        self._noted: dict[int, Settings] = {}
        self._last: dict[int, Settings] = {}

    def over(self, job: QueuedJob, wanted: Settings, copper_share: float) -> Settings:
        """The settings of a job, with the planner's freezes and an event's lower CPU ceiling for copper."""
        settings = self._noted[job.id] = _settings(job, wanted, copper_share)
        return settings

    def round_over(self) -> None:
        """End a round. Jobs that got no settings in that round have no limit in force."""
        self._last, self._noted = self._noted, {}

    @property
    def cpus(self) -> GivenCpus:
        """The CPUs in force in the last round."""
        confined = [float(len(each.cpus)) for each in self._last.values() if each.cpus is not KEEP]
        most = {number: _most_cpus(each) for number, each in self._last.items()}
        standing = frozenset(number for number, each in self._last.items() if each.frozen is True)
        return GivenCpus(most, max(confined, default=float("inf")), standing)


def _settings(job: QueuedJob, wanted: Settings, copper_share: float) -> Settings:
    if job.state is JobState.FROZEN:
        return replace(wanted, frozen=True)
    if copper_share >= 1.0 or job.spec.band.protected:
        return wanted
    if copper_share <= 0.0:
        return replace(wanted, frozen=True)
    ceiling, given = event_ceiling(copper_share, job), wanted.cpu_max_cores
    return replace(wanted, cpu_max_cores=ceiling if given is KEEP else min(ceiling, given))


def _most_cpus(settings: Settings) -> float:
    """The CPUs that these settings allow."""
    most = float("inf") if settings.cpus is KEEP else float(len(settings.cpus))
    return most if settings.cpu_max_cores is KEEP else min(most, settings.cpu_max_cores)
