"""Loads, and the reports of their generators: a stream of records of about one second."""

from __future__ import annotations

import math
import re
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tools.lab.latency import Histogram, histogram_line
from tools.lab.processes import LabError, Ledger

_SECOND = re.compile(r"second ([0-9.]+) interval ([0-9.]+) events ([0-9]+) errors ([0-9]+)")
_END = re.compile(r"client ([0-9]+) at ([0-9.]+)")
STEADY_S, STEADY_RISE = 8, 0.03
"""A rate is steady if its mean over the last ``STEADY_S`` seconds exceeds the mean over as many seconds before by at
most the share ``STEADY_RISE``.
"""


@dataclass(frozen=True, slots=True)
class Second:
    """About one second of load. ``at_s``: monotonic time when it ended; ``latency`` is empty if it is not measured.

    ``ends``: (client, monotonic time) of each event, from loads that repeat a cycle.
    """

    at_s: float
    interval_s: float
    events: int
    errors: int
    latency: Histogram
    ends: tuple[tuple[int, float], ...] = ()

    @property
    def rate(self) -> float:
        """Transactions (queries, for mysqlslap) per second."""
        return self.events / self.interval_s


@dataclass(frozen=True, slots=True)
class Load:
    """A kind of load.

    ``server``: its server; ``open_loop``: work arrives independently of answers, so that latency and not the rate shows
    harm; ``slow``: events are rare, so that learning and the measured window last twice as long. ``cycle``: number of
    events that every client repeats, so that only whole cycles are comparable; 0: all events are alike. ``warm_s``:
    seconds for which its clients run before their rate counts.
    """

    name: str
    server: str
    unit: str
    text: str
    open_loop: bool = False
    slow: bool = False
    cycle: int = 0
    warm_s: float = 0.0


class Running(Protocol):
    """A running load. Iterate over it for its records until it is stopped."""

    def __iter__(self) -> Iterator[Second]:
        """Its records.

        Raises:
            LabError: it ended by itself.
        """

    def stop(self) -> None:
        """End it."""


def steady(rates: Sequence[float], span: int = STEADY_S, rise: float = STEADY_RISE) -> bool:
    """True if these rates, one a second, rise no longer."""
    if len(rates) < 2 * span:
        return False
    before, last = sum(rates[-2 * span : -span]), sum(rates[-span:])
    return last <= (1 + rise) * before


def warm_up(load: Running, at_most_s: float) -> list[float]:
    """Run a load until its rate is steady, at most for ``at_most_s``, and end it; returns its rates.

    Raises:
        LabError: it ended by itself.
    """
    rates: list[float] = []
    elapsed_s = 0.0
    try:
        for second in load:
            rates.append(second.rate)
            elapsed_s += second.interval_s
            if steady(rates) or elapsed_s >= at_most_s:
                break
    finally:
        load.stop()
    return rates


class SysbenchReport:
    """Turns the output of sysbench (with native/report.lua) and of the lab's own generators into records."""

    def __init__(self) -> None:
        self._last = Histogram()
        self._head: tuple[float, float, int, int] | None = None
        self._epoch_s = math.inf
        self._counts: dict[float, int] = {}
        self._ends: list[tuple[int, float]] = []

    def feed(self, line: str, at_s: float) -> Second | None:
        """Take one line that was read at ``at_s`` (monotonic); a record when it completes one."""
        head = _SECOND.match(line)
        if head:
            self._head = (float(head[1]), float(head[2]), int(head[3]), int(head[4]))
            self._counts, self._ends = {}, []
            return None
        if self._head is None:
            return None
        bucket = histogram_line(line)
        if bucket is not None:
            self._counts[bucket[0]] = bucket[1]
            return None
        end = _END.match(line)
        if end:
            self._ends.append((int(end[1]), float(end[2])))
            return None
        if line.strip() != "end":
            return None
        now = Histogram(self._counts)
        elapsed_s, interval_s, events, errors = self._head
        self._head = None
        # A line may be read late but never early, so the earliest start computed from any line is the true one.
        self._epoch_s = min(self._epoch_s, at_s - elapsed_s)
        ends = tuple((client, self._epoch_s + end_s) for client, end_s in self._ends)
        record = Second(self._epoch_s + elapsed_s, interval_s, events, errors, now - self._last, ends)
        self._last = now
        return record


class Reporting:
    """A generator that prints a report every second. It must not end by itself.

    sysbench runs without an end, because at its end it cancels the thread that prints, which may hold a lock forever.
    """

    def __init__(
        self, ledger: Ledger, command: Sequence[str], groups: list[str], env: Mapping[str, str] | None = None
    ) -> None:
        self._ledger, self._name = ledger, command[0]
        self._process = ledger.start(
            command, groups=groups, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env
        )

    def __iter__(self) -> Iterator[Second]:
        assert self._process.stdout is not None
        report, tail = SysbenchReport(), ""
        for raw in self._process.stdout:
            line = raw.decode(errors="replace")
            tail = (tail + line)[-2000:]
            record = report.feed(line, time.monotonic())
            if record is not None:
                yield record
        raise LabError(f"{self._name} ended with status {self._process.wait()}; its output ends: {tail}")

    def stop(self) -> None:
        """End it."""
        self._ledger.end(self._process)
