"""The results of one run as values, and their computation from records."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
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
    """Figures of a stretch of time. ``batch``: work per second, in the job's unit.

    ``cycles``: number of whole cycles per client from which ``tps`` was computed; None: from all events.
    """

    seconds: float
    tps: float
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    batch: float
    errors: int
    cycles: int | None = None


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


def whole_cycles(ends: Iterable[tuple[int, float]], cycle: int) -> tuple[float, int] | None:
    """Events per second over whole cycles, and their number per client; None if some client has not completed one.

    A client repeats ``cycle`` events of unequal length, so a count of events in a fixed time depends on which of them
    fall into it. From any of its events to the one ``cycle`` later is a whole cycle. Each client's rate is that of the
    largest number of cycles that fits, averaged over all positions; the rates of the clients are added.

    Args:
        ends: (client, time) of each completed event.
        cycle: number of events in a cycle.
    """
    by_client: dict[int, list[float]] = {}
    for client, end_s in ends:
        by_client.setdefault(client, []).append(end_s)
    fewest = min((len(times) for times in by_client.values()), default=0)
    number = (fewest - 1) // cycle
    if number < 1:
        return None
    rate = 0.0
    for times in by_client.values():
        times.sort()
        spans = [later - earlier for earlier, later in zip(times, times[number * cycle :], strict=False)]
        rate += number * cycle * len(spans) / sum(spans)
    return rate, number


def window(
    seconds: Sequence[Second], points: Sequence[Point], *, after_s: float = 0.0, cycle: int = 0
) -> Window:
    """The figures of intervals that begin at ``after_s`` or later (with half a second's tolerance).

    ``cycle``: the load's; if a whole one is there, the rate comes from whole ones alone.
    """
    chosen = [index for index, point in enumerate(points) if point.end_s - point.seconds >= after_s - 0.5]
    span = sum(seconds[index].interval_s for index in chosen)
    latency = merge(seconds[index].latency for index in chosen)
    whole = whole_cycles((end for index in chosen for end in seconds[index].ends), cycle) if cycle else None
    counted = sum(seconds[index].events for index in chosen) / span if span else 0.0
    return Window(
        seconds=span,
        tps=counted if whole is None else whole[0],
        p50_ms=latency.percentile(50),
        p95_ms=latency.percentile(95),
        p99_ms=latency.percentile(99),
        batch=sum(points[index].batch * points[index].seconds for index in chosen) / span if span else 0.0,
        errors=sum(seconds[index].errors for index in chosen),
        cycles=None if whole is None else whole[1],
    )
