"""Profiles an application: one allocation after another, from generous to tight, with a guard.

The explorer decides which allocations to try, what to record and when to stop. It acts on an ``ExploredSubject`` (a
live or a simulated application), and always leaves it with its original resources.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol, TypeAlias

import numpy as np

from perphd.agent.profiling.progress import MeasuredPoint, ProfileProgress, ReferencePoint
from perphd.domain.errors import PerphError
from perphd.domain.reading import Reading, available
from perphd.domain.sample import Quality, Sample
from perphd.domain.signals import performance
from perphd.domain.workload import Objective
from perphd.predictor.profile.lattice import Point, is_within

_Measured: TypeAlias = tuple[float, float | None, float | None]
"""Work, delay and load."""
_BAD = (Quality.FIRST, Quality.LATE, Quality.RESTARTED, Quality.MULTIPLEXED, Quality.SLI_MISSING,
        Quality.BETWEEN)  # fmt: skip
_IN_A_ROW = 2
"""Number of consecutive bad samples that end a point. A single bad sample is noise."""
_AGAIN = 25
"""Number of points between two measurements of the reference, which changes with the load."""
_RECOVER = 30
"""Number of samples within which an application must recover."""
_WAIT = 90
"""Number of samples within which an allocation should come into force. After these, the explorer measures the settings
that are in force.
"""


class Stop(StrEnum):
    """Reason for the end of the exploration."""

    DONE = "done"
    SUFFERED = "the application suffered"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class ExplorationGuard:
    """Limits for the application's performance. The objective's absolute limits apply as well.

    Attributes:
        objective: the application's own objective.
        max_loss_pct: accepted loss of work, in % of the reference.
        max_delay_ratio: accepted delay, as a ratio to the reference.
    """

    objective: Objective = Objective()
    max_loss_pct: float = 30.0
    max_delay_ratio: float = 3.0

    def complaint(self, sample: Sample, reference: ReferencePoint) -> str:
        """The limit that this sample violates, in words; empty if it violates none.

        Only a signal of the reference's source is compared with the reference, because the others have other units.
        """
        perf = performance(sample, self.objective.latency_percentile)
        least, most = self.objective.min_work_rate_per_s, self.objective.max_latency_ms
        if available(perf.work):
            if least is not None and perf.work < least:
                return f"work is {perf.work:.4g}/s, less than min_work_rate_per_s = {least:g}"
            lowest = (1.0 - self.max_loss_pct / 100.0) * reference.work
            if perf.work_source == reference.work_source and perf.work < lowest:
                return f"work fell to {perf.work / reference.work:.0%} of the reference"
        if available(perf.delay):
            if most is not None and perf.delay_source.startswith("latency") and perf.delay > most:
                return f"latency is {perf.delay:.3g} ms, more than max_latency_ms = {most:g}"
            if reference.delay is None or perf.delay_source != reference.delay_source:
                return ""
            if perf.delay > self.max_delay_ratio * reference.delay:
                return f"delay grew to {perf.delay / reference.delay:.1f} times the reference"
        return ""


@dataclass(frozen=True, slots=True)
class Pacing:
    """Number of samples (one per period) skipped after a change, and number of samples then measured.

    ``skip``: True: after a harmful allocation, continue with other points instead of ending. An allocation then counts
    as harmful only if it is harmful twice, since everything that grants no more is left out because of it.
    """

    settle: int = 4
    measure: int = 3
    skip: bool = False


@dataclass(frozen=True, slots=True)
class ExplorationStep:
    """Progress after every point: points done, their total, and the result.

    ``again``: the point seemed harmful (``complaint``) and is tried once more.
    """

    done: int
    total: int
    point: Point
    work: float | None
    complaint: str = ""
    again: bool = False


@dataclass(frozen=True, slots=True)
class ProbeOutcome:
    """Outcome of the exploration: why it ended, and the complaint if the application suffered."""

    stop: Stop
    reason: str = ""


class ExploredSubject(Protocol):
    """The subject of an exploration."""

    async def grant(self, point: Point | None) -> None:
        """Request this allocation from the next sample on; None: the original resources."""

    def ready(self) -> bool:
        """True once the requested settings are in force as far as possible."""

    def in_force(self, point: Point) -> tuple[float, ...]:
        """The settings in force for this allocation, in the axes' units."""

    async def look(self) -> Sample:
        """Wait for one period and take a sample. Raises PerphError if nothing runs."""


def looks_ahead(progress: ProfileProgress, pacing: Pacing) -> int:
    """Remaining samples of the exploration, if no point is harmful and every setting takes effect at once."""
    anchors: set[Point] = set()
    each = pacing.settle + pacing.measure
    looks, since = pacing.settle + 2 * pacing.measure, _AGAIN
    for point in progress.points:
        if progress.knows(point):
            continue
        anchor = progress.lattice.anchor(point)
        if since >= _AGAIN or anchor not in anchors:
            anchors.add(anchor)
            looks, since = looks + each, 0
        looks, since = looks + each, since + 1
    return looks


class Explorer:
    """Measures the points of a ``ProfileProgress`` in order, and skips those already tried.

    Args:
        subject: the application.
        progress: planned and completed points, saved after every point.
        guard: limits for its performance; None: no limits (a simulated application).
        pacing: number of samples per point.
        tell: called after every point.
    """

    def __init__(
        self,
        subject: ExploredSubject,
        progress: ProfileProgress,
        guard: ExplorationGuard | None,
        pacing: Pacing,
        tell: Callable[[ExplorationStep], None] = lambda step: None,
    ) -> None:
        self._subject, self._progress, self._guard, self._pacing = subject, progress, guard, pacing
        self._tell = tell
        self.interrupted = False
        """The caller sets this to end the exploration after the current sample."""

    async def run(self) -> ProbeOutcome:
        """Explore. Always grants the original resources again at the end.

        Raises:
            PerphError: the application is gone, or does no measurable work.
        """
        try:
            return await self._run()
        finally:
            await self._subject.grant(None)

    async def _run(self) -> ProbeOutcome:
        progress = self._progress
        first = reference = await self._refer()
        anchors: dict[Point, float] = {}
        since = _AGAIN
        for point in progress.points:
            if self._ends():
                return ProbeOutcome(Stop.INTERRUPTED)
            if progress.knows(point) or self._hurts(point):
                continue
            anchor = progress.lattice.anchor(point)
            if since >= _AGAIN or anchor not in anchors:
                again, complaint = await self._tried(anchor, reference)
                if complaint:
                    if ended := await self._suffered(anchor, complaint, reference):
                        return ended
                    continue  # skips this point, and all other points that grant no more
                if again is not None and anchor in anchors:  # the load has changed since then
                    reference = replace(first, work=first.work * again[0] / anchors[anchor])
                elif again is not None:
                    anchors[anchor] = again[0] * first.work / reference.work
                since = 0
            since += 1
            found, complaint = await self._tried(point, reference)
            if self._ends():
                return ProbeOutcome(Stop.INTERRUPTED)
            if complaint:
                if ended := await self._suffered(point, complaint, reference):
                    return ended
            elif found is None:
                progress.add_unknown(point)
            else:
                values = self._subject.in_force(point)
                progress.add(MeasuredPoint(point, values, *found, reference=reference.work))
                self._tell(
                    ExplorationStep(progress.done, len(progress.points), point, found[0] / reference.work)
                )
        return ProbeOutcome(Stop.DONE)

    async def _tried(self, point: Point, reference: ReferencePoint) -> tuple[_Measured | None, str]:
        """Grant an allocation and measure it, twice if it seems harmful and others are to be tried after it.

        Other work on the host, or the hypervisor, may have caused the trouble.
        """
        await self._subject.grant(point)
        found, complaint = await self._measure(reference)
        if not (complaint and self._pacing.skip):
            return found, complaint
        await self._restore()
        step = ExplorationStep(
            self._progress.done, len(self._progress.points), point, None, complaint, again=True
        )
        self._tell(step)
        await self._recover(reference)
        if self._ends():
            return None, ""
        await self._subject.grant(point)
        return await self._measure(reference)

    async def _restore(self) -> None:
        """Restore everything at once."""
        await self._subject.grant(None)
        await self._subject.look()  # a sample makes the agent apply the restored settings

    async def _suffered(self, point: Point, complaint: str, reference: ReferencePoint) -> ProbeOutcome | None:
        """Restore everything at once. Returns the outcome, or None to continue with other points."""
        await self._restore()
        self._progress.add_suffered(point, complaint)
        self._tell(ExplorationStep(self._progress.done, len(self._progress.points), point, None, complaint))
        if not self._pacing.skip:
            return ProbeOutcome(Stop.SUFFERED, complaint)
        await self._recover(reference)
        return None

    def _ends(self) -> bool:
        return self.interrupted

    def _hurts(self, point: Point) -> bool:
        """True if the point grants no more than a point that was harmful."""
        if self._guard is None:
            return False
        hurts = any(is_within(point, other) for other in self._progress.suffered)
        if hurts:
            self._progress.add_pruned(point)
        return hurts

    async def _refer(self) -> ReferencePoint:
        """Measure the reference, over more samples than a point, because all points are compared with it."""
        await self._subject.grant(None)
        for _ in range(self._pacing.settle):
            await self._subject.look()
        samples = [await self._subject.look() for _ in range(2 * self._pacing.measure)]
        perfs = [performance(s, self._percentile) for s in samples if not s.has(*_BAD)]
        works = [(p.work_source, p.work) for p in perfs if available(p.work) and p.work > 0]
        if not works:
            raise PerphError(
                "no work was measured with the original resources: neither an SLI nor MIPS nor CPU time"
            )
        work_source, work = _of_one_source(works)
        delays = [(p.delay_source, p.delay) for p in perfs if available(p.delay) and p.delay > 0]
        delay_source, delay = _of_one_source(delays)
        usage = [s.cpu_usage_cores for s in samples]
        memory = [s.memory_current_bytes for s in samples]
        reference = ReferencePoint(
            work=_mean(work),
            work_source=work_source,
            delay=_mean(delay) if delay else None,
            load=_known([p.load for p in perfs]),
            cpu_cores=_known(usage),
            memory_bytes=_known(memory),
            delay_source=delay_source,
        )
        self._progress.refer(reference)
        return reference

    async def _measure(self, reference: ReferencePoint) -> tuple[_Measured | None, str]:
        """Work, delay and load at the allocation in force (None: no usable sample), and the complaint, if any."""
        bad, complaint = 0, ""
        seen: list[Sample] = []
        waited = settled = 0
        while len(seen) < self._pacing.measure and settled < self._pacing.settle + 2 * self._pacing.measure:
            sample = await self._subject.look()
            waited += 1
            settled += self._subject.ready() or waited > _WAIT
            if self.interrupted:
                return None, ""
            if sample.has(Quality.GONE):
                raise PerphError("the application is gone")
            if self._guard is not None and not sample.has(*_BAD):
                complaint = self._guard.complaint(sample, reference)
                bad = bad + 1 if complaint else 0
                if bad >= _IN_A_ROW:
                    return None, complaint
            if settled > self._pacing.settle and not sample.has(*_BAD):
                seen.append(sample)
        perfs = [performance(sample, self._percentile) for sample in seen]
        work = [
            p.work
            for p in perfs
            if available(p.work) and p.work > 0 and p.work_source == reference.work_source
        ]
        if not work:
            return None, ""
        delay = _known([p.delay for p in perfs if p.delay_source == reference.delay_source])
        return (_mean(work), delay, _known([p.load for p in perfs])), ""

    async def _recover(self, reference: ReferencePoint) -> None:
        assert self._guard is not None
        good = 0
        for _ in range(_RECOVER):
            sample = await self._subject.look()
            if not sample.has(*_BAD):
                good = 0 if self._guard.complaint(sample, reference) else good + 1
            if good >= _IN_A_ROW or self.interrupted:
                return
        raise PerphError(
            f"the application did not recover within {_RECOVER} periods after everything was restored: check "
            "it before continuing"
        )

    @property
    def _percentile(self) -> str:
        return self._guard.objective.latency_percentile if self._guard is not None else "p95"


def _of_one_source(found: list[tuple[str, float]]) -> tuple[str, list[float]]:
    """The most frequent source, and its values."""
    if not found:
        return "", []
    source = Counter(source for source, _ in found).most_common(1)[0][0]
    return source, [value for each, value in found if each == source]


def _mean(values: list[float]) -> float:
    """Geometric mean, because rates are compared by ratios."""
    return float(math.exp(np.mean(np.log(values))))


def _known(values: list[Reading]) -> float | None:
    found = [v for v in values if available(v) and v > 0]
    return _mean(found) if found else None
