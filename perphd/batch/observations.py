"""Records the usage of running jobs, and compares it with predictions. For use in one thread at a time.

In its first minute a job counts by its history. Its usage is then compared with its history, and the total of
all running jobs with the distribution that admitted it. When the job is done, its peak usage is compared with
that of its first minute.

Usage of an attempt that failed or was evicted counts for the next one. Otherwise the history that led to an eviction
would admit the job again at every pass.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from perphd.batch.admission import LEAST_OBSERVED_S
from perphd.batch.calibration import UsageCalibration, score, with_job, with_scores, with_sum
from perphd.batch.job import QueuedJob
from perphd.batch.job_worth import both_ends, with_overrun
from perphd.batch.look import (
    CPU,
    EVERY,
    INSTRUCTIONS,
    MEMORY,
    RESOURCES,
    ActiveJob,
    EarlierUse,
    ExpectedSum,
    JobOutlook,
)
from perphd.batch.work import FIRST_LOOK_S, WorkDone
from perphd.forecast.histogram import Histogram, insert, merge
from perphd.forecast.running import Overrun

HALF_S: Final = 3600.0
"""Half of the longest time for which the usage of everything else on the host is remembered, in seconds."""


@dataclass(slots=True)
class UsageWindow:
    """Distribution of the values of the last ``HALF_S`` to twice ``HALF_S``, and the latest value."""

    before: Histogram = field(default_factory=Histogram)
    now: Histogram = field(default_factory=Histogram)
    seconds: float = 0.0
    last: float = 0.0

    def add(self, value: float, seconds: float) -> None:
        """Add a value that held for ``seconds``."""
        if self.seconds >= HALF_S:
            self.before, self.now, self.seconds = self.now, Histogram(), 0.0
        self.now, self.seconds, self.last = insert(self.now, value), self.seconds + seconds, value

    @property
    def whole(self) -> Histogram:
        """Distribution of the values of both halves together."""
        return merge(self.before, self.now) if self.before.count else self.now


@dataclass(slots=True)
class JobUse:
    """Usage of one attempt so far.

    ``first``: peak usage in the first minute, by resource. ``scores``: normal scores of the first minute's mean usage
    in the history. ``predicted``: the run time as predicted by its work and by the clock, at 1, 2, 4, 8 ... minutes.
    """

    attempt: int
    failures: int = 0
    seen: dict[str, Histogram] = field(default_factory=lambda: {name: Histogram() for name in EVERY})
    seconds: float = 0.0
    done: WorkDone = WorkDone()
    predicted: list[tuple[float, float]] = field(default_factory=list)
    overrun: Overrun = Overrun()
    first: dict[str, float] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)


class Observations:
    """Observed usage of running jobs and of everything else, by resource. ``calibration``: learned from jobs."""

    def __init__(self, calibration: Mapping[str, UsageCalibration] = MappingProxyType({})) -> None:
        self.calibration = {name: calibration.get(name, UsageCalibration()) for name in EVERY}
        self._uses: dict[int, JobUse] = {}
        self.earlier: dict[int, EarlierUse] = {}
        """Usage of earlier attempts that failed or were evicted, by job that has not ended."""
        self.others: dict[str, UsageWindow] = {name: UsageWindow() for name in EVERY}
        self._expected: dict[int, list[tuple[ExpectedSum, dict[int, float]]]] = {}

    def of(self, job: QueuedJob) -> JobUse:
        """Observed usage of this attempt."""
        use = self._uses.get(job.id)
        if use is None or use.attempt != job.attempt:
            use = self._uses[job.id] = JobUse(job.attempt, job.failures)
        return use

    def active(
        self, job: QueuedJob, outlook: JobOutlook, now_s: float, cycle_s: float, given: float = math.inf
    ) -> ActiveJob:
        """The job as a scheduling pass sees it.

        If it has run longer than all similar jobs, its expected end is moved. ``given``: CPUs that it may use now.
        """
        use = self.of(job)
        known = self._with_earlier(job, use)
        seen, shared = known.seen, {name: known.seen[name] for name in EVERY if name not in RESOURCES}
        each = ActiveJob(
            job, outlook, seen[CPU], seen[MEMORY], known.seconds, use.overrun, shared, use.done, given
        )
        use.overrun = with_overrun(each, now_s, cycle_s)
        if use.done.seconds >= FIRST_LOOK_S * 2 ** len(use.predicted):
            both = both_ends(each, now_s)
            use.predicted += [] if both is None else [both]
        return each

    def decided(self, sums: Sequence[ExpectedSum]) -> None:
        """Remember the distributions that admitted the jobs that are about to start."""
        for number in {each.job for each in sums}:
            self._expected[number] = []
        for each in sums:
            self._expected[each.job].append((each, {}))

    def see_others(self, resource: str, used: float, seconds: float) -> None:
        """Record the usage of everything that is not a job over the last ``seconds``."""
        self.others[resource].add(used, seconds)

    def see(
        self,
        job: QueuedJob,
        seconds: float,
        used: Mapping[str, float],
        outlook: JobOutlook,
        stands: bool = False,
    ) -> None:
        """Record the job's usage over the last ``seconds``, by resource.

        ``stands``: it stood still, which says nothing about the usage of the job when it goes on.
        """
        use = self.of(job)
        if CPU in used:
            use.done = use.done.with_use(seconds, used[CPU], used.get(INSTRUCTIONS))
        if stands:
            return
        use.seconds += seconds
        for resource, value in used.items():
            if resource in use.seen:
                use.seen[resource] = insert(use.seen[resource], max(0.0, value))
        for sums in self._expected.values():
            for expected, found in sums:
                if job.id in expected.members and expected.resource in used:
                    found[job.id] = used[expected.resource]
        if not use.first and use.seconds >= LEAST_OBSERVED_S:
            self._compare(job, use, outlook)

    def forget(self, job: QueuedJob, done: bool, evicted: bool = False) -> JobUse | None:
        """Forget an ended attempt and return its usage. ``done``: learn how far usage exceeds that of the first minute.

        ``evicted``: remember its usage for the job's next attempt, as after a failure.
        """
        self._expected.pop(job.id, None)
        use = self._uses.pop(job.id, None)
        if done or job.state.ended:
            self.earlier.pop(job.id, None)
        if use is None or use.attempt != job.attempt:
            return None
        if not job.state.ended and (evicted or job.failures > use.failures):
            self.earlier[job.id] = self._with_earlier(job, use)
        if done and use.seconds >= 2 * LEAST_OBSERVED_S:
            for resource, first in use.first.items():
                self.calibration[resource] = with_job(
                    self.calibration[resource], first, use.seen[resource].most
                )
        return use

    def _with_earlier(self, job: QueuedJob, use: JobUse) -> EarlierUse:
        """Usage of all attempts of the job together."""
        earlier = self.earlier.get(job.id)
        if earlier is None:
            return EarlierUse(dict(use.seen), use.seconds)
        seen = {name: merge(earlier.seen[name], now) for name, now in use.seen.items()}
        return EarlierUse(seen, earlier.seconds + use.seconds)

    def _compare(self, job: QueuedJob, use: JobUse, outlook: JobOutlook) -> None:
        """Compare the first minute's usage with the predictions."""
        for resource, seen in use.seen.items():
            prior = outlook.of(resource)
            if not seen.count:
                continue
            use.first[resource] = seen.most
            if prior.count:
                beside = [other.scores[resource] for other in self._uses.values() if resource in other.scores]
                use.scores[resource] = score(prior, seen.mean)
                self.calibration[resource] = with_scores(
                    self.calibration[resource], use.scores[resource], beside
                )
        for expected, found in self._expected.pop(job.id, []):
            if len(found) == len(expected.members):
                self.calibration[expected.resource] = with_sum(
                    self.calibration[expected.resource],
                    expected.law,
                    self.others[expected.resource].last + sum(found.values()),
                    expected.resource != MEMORY,
                )
