"""The results of one run as values, and their computation from records."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tools.lab.latency import merge
from tools.lab.load import Second

UNSETTLED_S = 5.0
"""Seconds after the antagonist's start that the settled part excludes, to allow for recovery."""


@dataclass(frozen=True, slots=True)
class Note:
    """A decision, verdict or problem of the daemon; ``at_s``: seconds after the antagonist's start."""

    at_s: float
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Window:
    """Figures of a stretch of time. ``batch``: work per second, in the job's unit."""

    seconds: float
    tps: float
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    batch: float
    errors: int


@dataclass(frozen=True, slots=True)
class Point:
    """One interval of the timeline. ``end_s``: after the antagonist's start; ``batch``: work per second."""

    end_s: float
    seconds: float
    tps: float
    p95_ms: float | None
    batch: float


@dataclass(frozen=True, slots=True)
class Cores:
    """Average CPU use over the window, by owner. ``others``: everything outside the lab. None: unknown.

    ``stolen``: CPUs that the hypervisor took away.
    """

    database: float
    batch: float
    client: float
    others: float | None
    stolen: float | None


@dataclass(frozen=True)
class Run:
    """All results of one run. Times are seconds after the antagonist's start.

    ``settings``: (time, group, knobs) at every observed change. ``client_stalled``: share of the time in which some
    task of the load generator waited for a CPU; None if the kernel does not report it. ``attempt``: number of earlier
    attempts that were discarded because other processes used the CPUs.
    """

    cell: str
    scheme: str
    repetition: int
    whole: Window
    settled: Window
    timeline: tuple[Point, ...]
    settings: tuple[tuple[float, str, dict[str, str]], ...]
    notes: tuple[Note, ...]
    cores: Cores
    client_stalled: float | None
    daemon_problem: str = ""
    attempt: int = 0
    started: str = field(default_factory=lambda: time.strftime("%Y-%m-%dT%H:%M:%S%z"))


def timeline(
    seconds: Sequence[Second], counts: Sequence[tuple[float, float]], begin_s: float
) -> tuple[Point, ...]:
    """The points of a window.

    Args:
        seconds: the load's records in the window.
        counts: (monotonic time, batch work until then), in order of time; empty: no batch.
        begin_s: monotonic time of the antagonist's start, when its count was 0.
    """
    points: list[Point] = []
    last_s, last_work = begin_s, 0.0
    known = [(begin_s, 0.0), *counts]
    for second in seconds:
        work = interpolate(known, second.at_s)
        elapsed = second.at_s - last_s
        rate = (work - last_work) / elapsed if elapsed > 0 else 0.0
        points.append(
            Point(second.at_s - begin_s, second.interval_s, second.rate, second.latency.percentile(95), rate)
        )
        last_s, last_work = second.at_s, work
    return tuple(points)


def interpolate(known: Sequence[tuple[float, float]], at: float) -> float:
    """Linear interpolation between these points at ``at``; outside of them the nearest point's value."""
    before = known[0]
    for point in known:
        if point[0] >= at:
            if point[0] == before[0]:
                return point[1]
            share = max(0.0, (at - before[0]) / (point[0] - before[0]))
            return before[1] + share * (point[1] - before[1])
        before = point
    return before[1]


def window(seconds: Sequence[Second], points: Sequence[Point], *, after_s: float = 0.0) -> Window:
    """The figures of intervals that begin at ``after_s`` or later (with half a second's tolerance)."""
    chosen = [index for index, point in enumerate(points) if point.end_s - point.seconds >= after_s - 0.5]
    span = sum(seconds[index].interval_s for index in chosen)
    latency = merge(seconds[index].latency for index in chosen)
    return Window(
        seconds=span,
        tps=sum(seconds[index].events for index in chosen) / span if span else 0.0,
        p50_ms=latency.percentile(50),
        p95_ms=latency.percentile(95),
        p99_ms=latency.percentile(99),
        batch=sum(points[index].batch * points[index].seconds for index in chosen) / span if span else 0.0,
        errors=sum(seconds[index].errors for index in chosen),
    )
