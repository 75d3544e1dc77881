"""How well a job fits the host if it starts now: the F/O score over CPUs, memory, bandwidth and cache (Prophet).

For each resource, what runs now is laid on a time line (``perphd.qos.availability``):

    available(t) = (capacity - others) * copper's share - sum of the peaks of the jobs that still run at t

``others`` and the peaks are the 90 % quantiles that plans and forecasts count with as well; a job runs until the median
of what its history leaves. The candidate's stages are laid over that line, and its score is the norm of the areas
that it leaves unused or over-allocates. Prophet scored disks and links. Here the same score serves every resource with
a known capacity: CPUs, memory, memory bandwidth (``[queue] memory_bandwidth``) and last-level cache (where resctrl
measures occupancy).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final

from perphd.batch.host_laws import HostLaws
from perphd.batch.job import QueuedJob
from perphd.batch.job_worth import demand_of, left_of, planned_use, run_time_of
from perphd.batch.look import BANDWIDTH, CPU, MEMORY, JobOutlook, QueueView
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
SCORED: Final = (CPU, MEMORY, BANDWIDTH, CACHE)
NOT_STATED: Final = "the candidate's use of it is not known"
NO_BANDWIDTH: Final = "the host's memory bandwidth is not known: set [queue] memory_bandwidth"


@dataclass(frozen=True, slots=True)
class CandidateStage:
    """One stage of a candidate: for ``seconds``, it uses at most ``peaks`` (CPUs, bytes, bytes/s), by resource."""

    seconds: float
    peaks: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class CacheFill:
    """Bytes of last-level cache: the host's, what each running job fills, and what all other workloads fill."""

    capacity: float
    jobs: Mapping[int, float]
    others: float


@dataclass(frozen=True, slots=True)
class ResourceScore:
    """A candidate on one resource. ``unused``, ``over``: weighted areas in the resource's unit times seconds.

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
    """How a candidate of length ``seconds`` fits. The lower ``distance``, the better.

    ``over_ratio``: what is over-allocated of all resources together, as a share of capacity and time; ``suits``: it is
    at most 0.15. ``left_out``: resources that do not count, each with the reason.
    """

    seconds: float
    distance: float
    over_ratio: float
    suits: bool
    resources: tuple[ResourceScore, ...]
    left_out: Mapping[str, str]


def stages_of(job: QueuedJob, outlook: JobOutlook) -> tuple[CandidateStage, ...]:
    """A waiting job as one stage: its median run time, and what plans count with. What nobody knows is absent."""
    peaks = demand_of(job, outlook)
    if (traffic := outlook.of(BANDWIDTH)).count:
        peaks[BANDWIDTH] = planned_use(traffic)
    return (CandidateStage(run_time_of(outlook).median_s, peaks),)


def start_score(
    view: QueueView, stages: Sequence[CandidateStage], cache: CacheFill | Unavailable
) -> StartScore:
    """The score of a candidate whose stages follow each other from now on; each names the same resources."""
    left_out: dict[str, str] = {}
    lines: dict[str, tuple[float, tuple[AvailableInterval, ...]]] = {}
    host = HostLaws(view)
    ends_s = {each.job.id: left_of(each, view.now_s).median_s for each in view.active}
    for name in SCORED:
        if any(name not in stage.peaks for stage in stages):
            left_out[name] = NOT_STATED
        elif name == CACHE:
            if isinstance(cache, Unavailable):
                left_out[name] = cache.reason
            else:
                lines[name] = _line(view, cache.capacity, cache.others, cache.jobs, ends_s)
        elif name not in view.resources:
            left_out[name] = NO_BANDWIDTH
        else:
            peaks = {number: host.planned_use(name, number) for number in ends_s}
            lines[name] = _line(view, host.capacity(name), planned_use(view.others(name)), peaks, ends_s)
    times = [0.0, *accumulate(stage.seconds for stage in stages)]
    demands = {
        name: [
            DemandStage(start_s, end_s, stage.peaks[name])
            for stage, (start_s, end_s) in zip(stages, pairwise(times), strict=True)
        ]
        for name in lines
    }
    fits = {name: fit(demands[name], line) for name, (_, line) in lines.items()}
    capacities = {name: capacity for name, (capacity, _) in lines.items()}
    over = over_ratio(fits, capacities, times[-1])
    return StartScore(
        times[-1],
        distance(fits, capacities, times[-1]),
        over,
        over <= GREATEST_OVER_RATIO,
        tuple(
            ResourceScore(name, capacities[name], each.unused, each.over, each.overall, lines[name][1])
            for name, each in fits.items()
        ),
        left_out,
    )


def _line(
    view: QueueView, capacity: float, others: float, peaks: Mapping[int, float], ends_s: Mapping[int, float]
) -> tuple[float, tuple[AvailableInterval, ...]]:
    """The capacity and the time line of one resource."""
    left = max(0.0, capacity - others) * view.copper_share
    running = [[DemandStage(0.0, ends_s[number], peak)] for number, peak in peaks.items() if number in ends_s]
    return capacity, availability(left, running)
