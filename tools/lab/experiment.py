"""Runs: one load, one batch job, one scheme, one repetition; and what is measured in each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tools.lab import groups as g
from tools.lab.batch import JOBS, Batch, Programs
from tools.lab.daemon import Daemon, Note
from tools.lab.groups import Groups
from tools.lab.latency import merge
from tools.lab.load import LOADS, Load, Mysqlslap, Second, Sysbench
from tools.lab.mariadb import Server
from tools.lab.processes import Ledger
from tools.lab.schemes import Scheme
from tools.lab.watch import Setting, Watcher

UNSETTLED_S = 5.0
"""The second window leaves out so much after the antagonist's start: time allowed for recovery."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A load and a batch job, e.g. ``closed-pi4``."""

    load: str
    job: str

    @property
    def name(self) -> str:
        """Its name in options and reports."""
        return f"{self.load}-{self.job}"


CELLS = tuple(
    Cell(load, job)
    for load, job in (
        ("closed", "pi4"), ("open", "pi4"), ("closed", "stream2"), ("open", "stream2"), ("slap", "pi4")
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Timing:
    """How long each part of a run takes, in seconds. ``learn``: the load alone under perphd's eyes."""

    warm: float = 4.0
    learn: float = 15.0
    window: float = 30.0

    def of(self, scheme: Scheme) -> float:
        """Length of one run."""
        return self.warm + (self.learn if scheme.daemon else 0.0) + self.window


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
    """One second of the timeline. ``end_s``: after the antagonist's start; ``batch``: work per second."""

    end_s: float
    seconds: float
    tps: float
    p95_ms: float | None
    batch: float


@dataclass(frozen=True)
class Run:
    """All that one run gave. Times are seconds after the antagonist's start.

    ``settings``: (time, group, knobs) as they were seen to change. ``cores``: CPUs used by each group.
    ``client_stalled``: share of the time in which some task of the load generator waited for a CPU.
    """

    cell: str
    scheme: str
    repetition: int
    whole: Window
    settled: Window
    timeline: tuple[Point, ...]
    settings: tuple[tuple[float, str, dict[str, str]], ...]
    decisions: tuple[Note, ...]
    cores: dict[str, float]
    client_stalled: float | None
    daemon_problem: str = ""
    started: str = field(default_factory=lambda: time.strftime("%Y-%m-%dT%H:%M:%S%z"))


class Bench:
    """The server, the groups and the batch programs that all runs share.

    ``folder`` is removed at the end; ``keep`` gets what the daemon leaves of every run.
    """

    def __init__(self, ledger: Ledger, groups: Groups, folder: Path, timing: Timing, keep: Path) -> None:
        self.ledger, self.groups, self.folder, self.timing = ledger, groups, folder, timing
        self._keep = keep
        self.programs = Programs(folder)
        self.server = Server(ledger, folder, groups.directories(g.LRA))
        self.server.load_tables()

    def run(self, cell: Cell, scheme: Scheme, repetition: int) -> Run:
        """One run, from groups at their defaults to groups at their defaults."""
        groups, timing = self.groups, self.timing
        groups.reset()
        groups.enter(scheme.lra_group, self.server.pid)
        scheme.prepare(groups)
        with ExitStack() as stack:
            load = self._load(LOADS[cell.load])
            stack.callback(load.stop)
            records = _Recorder(load)
            records.until(time.monotonic() + timing.warm)
            daemon: Daemon | None = None
            watcher = stack.enter_context(Watcher(groups, [g.LRA, g.BATCH]))
            if scheme.daemon:
                keep = self._keep / f"{cell.name}-{repetition + 1}"
                daemon = Daemon(self.ledger, self.folder, self.server, groups.directories(g.CLIENT), keep)
                stack.callback(daemon.stop)
                records.until(time.monotonic() + timing.learn)
            return self._measure(cell, scheme, repetition, records, watcher, daemon, stack)

    def _load(self, load: Load) -> Sysbench | Mysqlslap:
        where = self.groups.directories(g.CLIENT)
        if load.name == "slap":
            return Mysqlslap(self.ledger, self.server, where)
        return Sysbench(self.ledger, self.server, load, where)

    def _measure(
        self,
        cell: Cell,
        scheme: Scheme,
        repetition: int,
        records: _Recorder,
        watcher: Watcher,
        daemon: Daemon | None,
        stack: ExitStack,
    ) -> Run:
        groups = self.groups
        begin_s = time.monotonic()
        used = {name: groups.cpu_seconds(name) for name in g.CHILDREN}
        stalled = groups.stalled_seconds(g.CLIENT)
        batch: Batch | None = None
        if scheme.with_batch:
            where = groups.directories(scheme.batch_group)
            batch = Batch(self.ledger, JOBS[cell.job], self.programs, self.folder, where)
            stack.callback(batch.stop)
        before = len(records.seconds)
        counts: list[float] = []
        records.until(
            begin_s + self.timing.window, lambda: counts.append(batch.count() if batch is not None else 0.0)
        )
        spent_s = time.monotonic() - begin_s
        cores = {
            name.rpartition("/")[2]: (groups.cpu_seconds(name) - used[name]) / spent_s for name in g.CHILDREN
        }
        client_stalled = _share(stalled, groups.stalled_seconds(g.CLIENT), spent_s)
        if daemon is not None:
            daemon.stop()
        seconds = records.seconds[before:]
        timeline: list[Point] = []
        work = 0.0
        for second, count in zip(seconds, counts, strict=True):
            elapsed = second.at_s - (timeline[-1].end_s + begin_s if timeline else begin_s)
            timeline.append(
                Point(
                    second.at_s - begin_s, second.interval_s, second.rate, second.latency.percentile(95),
                    (count - work) / elapsed,
                )
            )  # fmt: skip
            work = count
        settled = [
            index for index, point in enumerate(timeline) if point.end_s - point.seconds >= UNSETTLED_S - 0.5
        ]
        return Run(
            cell.name,
            scheme.name,
            repetition,
            window(seconds, timeline),
            window([seconds[i] for i in settled], [timeline[i] for i in settled]),
            tuple(timeline),
            tuple(_relative(setting, begin_s) for setting in watcher.seen),
            daemon.notes(begin_s) if daemon is not None else (),
            cores,
            client_stalled,
            daemon.problem() if daemon is not None else "",
        )


class _Recorder:
    """Collects a load's records until a time."""

    def __init__(self, load: Sysbench | Mysqlslap) -> None:
        self._records = iter(load)
        self.seconds: list[Second] = []

    def until(self, at_s: float, each: Callable[[], object] = lambda: None) -> None:
        """Take records up to the last one that ends before about ``at_s``."""
        while True:
            self.seconds.append(next(self._records))
            each()
            if time.monotonic() > at_s - 0.3:
                return


def window(seconds: Sequence[Second], timeline: Sequence[Point]) -> Window:
    """The figures of these records."""
    span = sum(second.interval_s for second in seconds)
    latency = merge(second.latency for second in seconds)
    return Window(
        seconds=span,
        tps=sum(second.events for second in seconds) / span if span else 0.0,
        p50_ms=latency.percentile(50),
        p95_ms=latency.percentile(95),
        p99_ms=latency.percentile(99),
        batch=sum(point.batch * point.seconds for point in timeline) / span if span else 0.0,
        errors=sum(second.errors for second in seconds),
    )


def _share(before_s: float | None, after_s: float | None, spent_s: float) -> float | None:
    return None if before_s is None or after_s is None else (after_s - before_s) / spent_s


def _relative(setting: Setting, begin_s: float) -> tuple[float, str, dict[str, str]]:
    return (round(setting.at_s - begin_s, 2), setting.group.rpartition("/")[2], setting.knobs)
