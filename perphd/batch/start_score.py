"""Scores how a job that starts now fits the shared resources: unused and over-allocated areas (Prophet).

For each resource, the use by running jobs forms a time line (``perphd.qos.availability``):

    available(t) = (capacity - others) * copper's share - sum of the peaks of the jobs that still run at t

``others`` and the peaks are the 90 % quantiles that plans and forecasts use as well. A job is assumed to run for the
median of its remaining time. The score compares the candidate's stages with that line: it is the norm of the areas that
the candidate leaves unused or over-allocates. Prophet scored disks and links. Here the same score serves every resource
with a known capacity: CPUs, memory, memory bandwidth (``[tuning.queue] memory_bandwidth``) and last-level cache (where
resctrl measures occupancy).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final

from perphd.batch.host_laws import HostLaws
from perphd.batch.job import JobState, QueuedJob
from perphd.batch.job_worth import demand_of, planned_use, run_time_of
from perphd.batch.look import BANDWIDTH, CPU, DISK, MEMORY, ActiveJob, JobOutlook, QueueView
from perphd.domain.reading import Unavailable
from perphd.qos.availability import (
    GREATEST_OVER_RATIO,
    AvailableInterval,
    DemandStage,
    availability,
    distance,
    fit,
    over_ratio,
)

CACHE: Final = "cache"
SCORED: Final = (CPU, MEMORY, BANDWIDTH, CACHE, DISK)
CHOSEN_BY: Final = (BANDWIDTH, DISK)
"""Resources that decide the choice among waiting jobs, as in Prophet. Admission covers CPUs and memory, because it
knows their distributions. A fit that counted them would prefer large jobs, and the mean wait would grow.
"""
_DECIMALS: Final = 9
"""Decimals to which norms are rounded. Candidates whose norms differ only by a rounding error are equal."""
NOT_STATED: Final = "the candidate's use of it is not known"
NO_BANDWIDTH: Final = (
    "the host's memory bandwidth is not known: set [tuning.queue] memory_bandwidth, or calibrate"
)
NO_DISK: Final = "perphd has not observed any traffic of this host's disks yet"
NO_CACHE: Final = Unavailable("the cache is not counted in the choice among jobs")


@dataclass(frozen=True, slots=True)
class CandidateStage:
    """One stage of a candidate: for ``seconds``, it uses at most ``peaks`` (CPUs, bytes, bytes/s), by resource."""

    seconds: float
    peaks: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class CacheFill:
    """Bytes of last-level cache: the host's capacity, the occupancy of each running job, and that of all other
    workloads.
    """

    capacity: float
    jobs: Mapping[int, float]
    others: float


@dataclass(frozen=True, slots=True)
class ResourceScore:
    """Fit of a candidate on one resource. ``unused``, ``over``: weighted areas in the resource's unit times seconds.

    ``overall``: 0.7 ``over`` + 0.3 ``unused``. ``available``: the time line from now on; negative: over-allocated.
    """

    resource: str
    capacity: float
    unused: float
    over: float
    overall: float
    available: tuple[AvailableInterval, ...]


@dataclass(frozen=True, slots=True)
class StartScore:
    """The fit of a candidate of length ``seconds``. The lower ``distance``, the better.

    ``over_ratio``: the over-allocated part of all resources together, as a share of capacity and time; ``suits``: it is
    at most 0.15. ``left_out``: resources that do not count, each with the reason.
    """

    seconds: float
    distance: float
    over_ratio: float
    suits: bool
    resources: tuple[ResourceScore, ...]
    left_out: Mapping[str, str]


def stages_of(view: QueueView, job: QueuedJob) -> tuple[CandidateStage, ...]:
    """A waiting job, and those that start with it, as one stage: the median run time, and the demand that plans use.

    Unknown amounts are absent.
    """
    outlook, tasks = view.outlooks.get(job.id, JobOutlook()), view.tasks(job)
    peaks = demand_of(job, outlook)
    peaks |= {name: planned_use(known) for name in (BANDWIDTH, DISK) if (known := outlook.of(name)).count}
    whole = {name: tasks * peak for name, peak in peaks.items()}
    return (CandidateStage(run_time_of(outlook, view.given(job)).median_s, whole),)


class TimeLines:
    """Availability of each resource from now on. ``host``: includes the jobs that this pass has started."""

    def __init__(self, view: QueueView, host: HostLaws, cache: CacheFill | Unavailable = NO_CACHE) -> None:
        self._view, self._host, self._cache = view, host, cache
        self._lines: dict[str, tuple[float, tuple[AvailableInterval, ...]]] = {}

    def changed(self) -> None:
        """Forget the lines: a job has started."""
        self._lines.clear()

    def of(self, resource: str) -> tuple[float, tuple[AvailableInterval, ...]] | Unavailable:
        """The capacity and the time line of one resource."""
        if resource not in self._lines:
            found = self._found(resource)
            if isinstance(found, Unavailable):
                return found
            capacity, others, peaks = found
            left = max(0.0, capacity - others) * self._view.copper_share
            ends_s = self._host.ends_s
            stages = [
                [DemandStage(0.0, ends_s[number], peak)] for number, peak in peaks.items() if number in ends_s
            ]
            self._lines[resource] = capacity, availability(left, stages)
        return self._lines[resource]

    def _found(self, resource: str) -> tuple[float, float, Mapping[int, float]] | Unavailable:
        """Capacity, use by others, and the peak of each running job."""
        view, host = self._view, self._host
        if resource == CACHE:
            known = self._cache
            return known if isinstance(known, Unavailable) else (known.capacity, known.others, known.jobs)
        if resource in view.resources:
            return host.capacity(resource), planned_use(view.others(resource)), host.planned_uses(resource)
        if resource not in view.scored:
            return Unavailable(NO_DISK if resource == DISK else NO_BANDWIDTH)
        peaks = {each.job.id: _peak(each, resource) for each in view.active}
        for number in host.ends_s.keys() - peaks.keys():  # the jobs that this pass has started
            peaks[number] = planned_use(view.outlooks.get(number, JobOutlook()).of(resource))
        return view.scored[resource], planned_use(view.others(resource)), peaks


def start_score(
    view: QueueView, stages: Sequence[CandidateStage], cache: CacheFill | Unavailable
) -> StartScore:
    """The score of a candidate whose stages follow each other from now on; each names the same resources."""
    return score_on(TimeLines(view, HostLaws(view), cache), stages)


def score_on(lines: TimeLines, stages: Sequence[CandidateStage]) -> StartScore:
    """The score of a candidate on these time lines."""
    left_out: dict[str, str] = {}
    known: dict[str, tuple[float, tuple[AvailableInterval, ...]]] = {}
    for name in SCORED:
        line = lines.of(name)
        if any(name not in stage.peaks for stage in stages):
            left_out[name] = NOT_STATED
        elif isinstance(line, Unavailable):
            left_out[name] = line.reason
        else:
            known[name] = line
    times = [0.0, *accumulate(stage.seconds for stage in stages)]
    demands = {
        name: [
            DemandStage(start_s, end_s, stage.peaks[name])
            for stage, (start_s, end_s) in zip(stages, pairwise(times), strict=True)
        ]
        for name in known
    }
    fits = {name: fit(demands[name], line) for name, (_, line) in known.items()}
    capacities = {name: capacity for name, (capacity, _) in known.items()}
    over = over_ratio(fits, capacities, times[-1])
    return StartScore(
        times[-1],
        distance(fits, capacities, times[-1]),
        over,
        over <= GREATEST_OVER_RATIO,
        tuple(
            ResourceScore(name, capacities[name], each.unused, each.over, each.overall, known[name][1])
            for name, each in fits.items()
        ),
        left_out,
    )


def distances(scores: Mapping[int, StartScore]) -> dict[int, float]:
    """The norm of each candidate over the resources of ``CHOSEN_BY`` that at least one candidate is known to use.

    A candidate whose use of a resource is not known gets the mean of the others there.
    """
    parts = {
        number: {
            each.resource: each.overall / (each.capacity * score.seconds)
            for each in score.resources
            if each.resource in CHOSEN_BY and score.seconds > 0 and each.capacity > 0
        }
        for number, score in scores.items()
    }
    means = {}
    for name in CHOSEN_BY:
        known = [own[name] for own in parts.values() if name in own]
        if known:
            means[name] = math.fsum(known) / len(known)
    return {
        number: round(math.hypot(*(own.get(name, mean) for name, mean in means.items())), _DECIMALS)
        for number, own in parts.items()
    }


def _peak(active: ActiveJob, resource: str) -> float:
    """Planned use of a resource by a running job, where ``HostLaws`` has no distribution of that resource.

    A frozen job uses nothing.
    """
    if active.job.state is JobState.FROZEN:
        return 0.0
    return max(planned_use(active.outlook.of(resource)), planned_use(active.of(resource)))
