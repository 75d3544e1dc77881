"""Exploring an application on purpose: one allocation after the other, from generous to tight, ready to stop.

The explorer decides what is tried, what is believed of it and when it is over; what it acts on is a ``Subject``
(a live application or a simulated one). It always leaves the subject with everything it had.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

import numpy as np

from perphd.agent.profiling.progress import Measured, ProfileProgress, Reference
from perphd.domain.errors import PerphError
from perphd.domain.reading import Reading, available
from perphd.domain.sample import Quality, Sample
from perphd.domain.signals import performance
from perphd.domain.workload import Objective
from perphd.predictor.profile.lattice import Point, is_within

_BAD = (Quality.FIRST, Quality.LATE, Quality.RESTARTED, Quality.MULTIPLEXED, Quality.SLI_MISSING,
        Quality.BETWEEN)  # fmt: skip
_IN_A_ROW = 2
"""Samples that must look bad one after the other: a single one is noise."""
_AGAIN = 25
"""Points between two looks at the reference, which moves with the load."""
_RECOVER = 30
"""Looks that an application has to recover in."""
_WAIT = 90
"""Looks that an allocation may take to come into force; what is in force then is what is measured."""


class Stop(StrEnum):
    """Why exploring ended."""

    DONE = "done"
    SUFFERED = "the application suffered"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Guard:
    """When an application suffers. The objective's absolute limits count as well.

    Attributes:
        objective: the application's own.
        max_loss_pct: loss of work against the reference.
        max_delay_ratio: growth of delay against it.
    """

    objective: Objective = Objective()
    max_loss_pct: float = 30.0
    max_delay_ratio: float = 3.0

    def complaint(self, sample: Sample, reference: Reference) -> str:
        """Why this sample cannot be used, or empty."""
        perf = performance(sample, self.objective.latency_percentile)
        least, most = self.objective.min_work_rate_per_s, self.objective.max_latency_ms
        if available(perf.work):
            if least is not None and perf.work < least:
                return f"work is {perf.work:.4g}/s, less than min_work_rate_per_s = {least:g}"
            if perf.work < (1.0 - self.max_loss_pct / 100.0) * reference.work:
                return f"work fell to {perf.work / reference.work:.0%} of the reference"
        if available(perf.delay):
            if most is not None and perf.delay_source.startswith("latency") and perf.delay > most:
                return f"latency is {perf.delay:.3g} ms, more than max_latency_ms = {most:g}"
            if reference.delay is not None and perf.delay > self.max_delay_ratio * reference.delay:
                return f"delay grew to {perf.delay / reference.delay:.1f} times the reference"
        return ""


@dataclass(frozen=True, slots=True)
class Pacing:
    """Looks (one a period) that are let pass after a change, and that are then measured; ``skip``: go on elsewhere
    after an allocation that hurt, instead of ending.
    """

    settle: int = 4
    measure: int = 3
    skip: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """What is told after every point: how many are done of how many, and what became of it."""

    done: int
    total: int
    point: Point
    work: float | None
    complaint: str = ""


@dataclass(frozen=True, slots=True)
class ProbeOutcome:
    """How it ended."""

    stop: Stop
    reason: str = ""


class Subject(Protocol):
    """The subject of an exploration."""

    async def grant(self, point: Point | None) -> None:
        """Want this allocation from the next look on; None: everything that it had."""

    def ready(self) -> bool:
        """True once the wanted settings are in force as far as possible."""

    def in_force(self, point: Point) -> tuple[float, ...]:
        """The settings in force for this allocation, in the axes' units."""

    async def look(self) -> Sample:
        """Let one period pass and look. Raises PerphError if there is nothing to look at."""


def looks_ahead(progress: ProfileProgress, pacing: Pacing) -> int:
    """Looks that exploring takes from here, if nothing hurts and everything comes into force at once."""
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
    """Runs through the points of a ``ProfileProgress``; what is in it already is not tried again.

    Args:
        subject: what is explored.
        progress: what is to be tried and what is known, saved after every point.
        guard: when it suffers; None: it may (a simulated application).
        pacing: how long it takes.
        tell: told after every point.
    """

    def __init__(
        self,
        subject: Subject,
        progress: ProfileProgress,
        guard: Guard | None,
        pacing: Pacing,
        tell: Callable[[Step], None] = lambda step: None,
    ) -> None:
        self._subject, self._progress, self._guard, self._pacing = subject, progress, guard, pacing
        self._tell = tell
        self.interrupted = False
        """Set from outside: end after the look at hand."""

    async def run(self) -> ProbeOutcome:
        """Explore. Whatever happens, everything is granted again at the end.

        Raises:
            PerphError: the application is gone, or shows no work.
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
                await self._subject.grant(anchor)
                again, complaint = await self._measure(reference)
                if complaint:
                    if ended := await self._suffered(anchor, complaint, reference):
                        return ended
                    continue  # so does all that grants no more, this point first
                if again is not None and anchor in anchors:  # the load has changed since then
                    reference = replace(first, work=first.work * again[0] / anchors[anchor])
                elif again is not None:
                    anchors[anchor] = again[0] * first.work / reference.work
                since = 0
            since += 1
            await self._subject.grant(point)
            found, complaint = await self._measure(reference)
            if self._ends():
                return ProbeOutcome(Stop.INTERRUPTED)
            if complaint:
                if ended := await self._suffered(point, complaint, reference):
                    return ended
            elif found is None:
                progress.add_unknown(point)
            else:
                values = self._subject.in_force(point)
                progress.add(Measured(point, values, *found, reference=reference.work))
                self._tell(Step(progress.done, len(progress.points), point, found[0] / reference.work))
        return ProbeOutcome(Stop.DONE)

    async def _suffered(self, point: Point, complaint: str, reference: Reference) -> ProbeOutcome | None:
        """Give everything back at once; the end, or None if it is to go on elsewhere."""
        await self._subject.grant(None)
        await self._subject.look()  # it is written before anything else is done
        self._progress.add_suffered(point, complaint)
        self._tell(Step(self._progress.done, len(self._progress.points), point, None, complaint))
        if not self._pacing.skip:
            return ProbeOutcome(Stop.SUFFERED, complaint)
        await self._recover(reference)
        return None

    def _ends(self) -> bool:
        return self.interrupted

    def _hurts(self, point: Point) -> bool:
        """It grants nothing that an allocation that hurt did not."""
        if self._guard is None:
            return False
        hurts = any(is_within(point, other) for other in self._progress.suffered)
        if hurts:
            self._progress.add_pruned(point)
        return hurts

    async def _refer(self) -> Reference:
        """How it does with everything. Averaged over more looks than a point: all else is compared with it."""
        await self._subject.grant(None)
        for _ in range(self._pacing.settle):
            await self._subject.look()
        samples = [await self._subject.look() for _ in range(2 * self._pacing.measure)]
        perfs = [performance(s, self._percentile) for s in samples if not s.has(*_BAD)]
        work = [p.work for p in perfs if available(p.work) and p.work > 0]
        if not work:
            raise PerphError(
                "the application shows no work with everything that it has: neither an SLI nor MIPS nor CPU time"
            )
        delay = [p.delay for p in perfs if available(p.delay) and p.delay > 0]
        usage = [s.cpu_usage_cores for s in samples]
        memory = [s.memory_current_bytes for s in samples]
        reference = Reference(
            work=_mean(work),
            work_source=perfs[-1].work_source,
            delay=_mean(delay) if delay else None,
            load=_known([p.load for p in perfs]),
            cpu_cores=_known(usage),
            memory_bytes=_known(memory),
        )
        self._progress.refer(reference)
        return reference

    async def _measure(
        self, reference: Reference
    ) -> tuple[tuple[float, float | None, float | None] | None, str]:
        """Work, delay, load at the allocation in force (None: nothing fit was seen), and the complaint, if any."""
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
        delay = _known([p.delay for p in perfs])
        return (_mean(work), delay, _known([p.load for p in perfs])), ""

    async def _recover(self, reference: Reference) -> None:
        assert self._guard is not None
        good = 0
        for _ in range(_RECOVER):
            sample = await self._subject.look()
            good = 0 if self._guard.complaint(sample, reference) else good + 1
            if good >= _IN_A_ROW or self.interrupted:
                return
        raise PerphError(
            f"the application did not recover within {_RECOVER} periods although everything was given back: look at "
            "it before going on"
        )

    @property
    def _percentile(self) -> str:
        return self._guard.objective.latency_percentile if self._guard is not None else "p95"


def _mean(values: list[float]) -> float:
    """Geometric: rates are compared by ratios."""
    return float(math.exp(np.mean(np.log(values))))


def _known(values: list[Reading]) -> float | None:
    found = [v for v in values if available(v) and v > 0]
    return _mean(found) if found else None
