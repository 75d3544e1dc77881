"""The load: sysbench in a closed or an open loop, and mysqlslap in chunks; both as a stream of one-second records."""

from __future__ import annotations

import math
import re
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass

from tools.lab.latency import Histogram, histogram_line
from tools.lab.mariadb import DATABASE, TABLE_ROWS, Server
from tools.lab.processes import LabError, Ledger

CLOSED_THREADS = 4
OPEN_RATE, OPEN_THREADS = 500, 16
SLAP_CLIENTS, SLAP_CHUNK = 4, 25_000

_SECOND = re.compile(r"second ([0-9.]+) interval ([0-9.]+) events ([0-9]+) errors ([0-9]+)")


@dataclass(frozen=True, slots=True)
class Second:
    """About one second of load. ``at_s``: monotonic time when it ended; ``latency`` is empty for mysqlslap."""

    at_s: float
    interval_s: float
    events: int
    errors: int
    latency: Histogram

    @property
    def rate(self) -> float:
        """Transactions (queries, for mysqlslap) per second."""
        return self.events / self.interval_s


@dataclass(frozen=True, slots=True)
class Load:
    """A kind of load. ``open_loop``: work arrives whatever happens, so latency and not the rate tells."""

    name: str
    unit: str
    open_loop: bool = False


LOADS = {
    "closed": Load("closed", "transactions"),
    "open": Load("open", "transactions", open_loop=True),
    "slap": Load("slap", "queries"),
}


class SysbenchReport:
    """Turns sysbench's output (with native/oltp.lua) into records, line by line."""

    def __init__(self) -> None:
        self._last = Histogram()
        self._head: tuple[float, float, int, int] | None = None
        self._epoch_s = math.inf
        self._counts: dict[float, int] = {}

    def feed(self, line: str, at_s: float) -> Second | None:
        """Take one line that was read at ``at_s`` (monotonic); a record when it completes one."""
        head = _SECOND.match(line)
        if head:
            self._head = (float(head[1]), float(head[2]), int(head[3]), int(head[4]))
            self._counts = {}
            return None
        if self._head is None:
            return None
        bucket = histogram_line(line)
        if bucket is not None:
            self._counts[bucket[0]] = bucket[1]
            return None
        if line.strip() != "end":
            return None
        now = Histogram(self._counts)
        elapsed_s, interval_s, events, errors = self._head
        self._head = None
        # A line may be read late, never early: the earliest start that any line speaks of is the true one.
        self._epoch_s = min(self._epoch_s, at_s - elapsed_s)
        record = Second(self._epoch_s + elapsed_s, interval_s, events, errors, now - self._last)
        self._last = now
        return record


class Sysbench:
    """A running sysbench. Iterate for its records, one a second, until it is stopped.

    It never ends by itself: at its own end it cancels the thread that prints, which may then hold a lock forever.
    """

    def __init__(self, ledger: Ledger, server: Server, load: Load, groups: list[str]) -> None:
        self._ledger = ledger
        loop = (
            [f"--threads={OPEN_THREADS}", f"--rate={OPEN_RATE}"]
            if load.open_loop
            else [f"--threads={CLOSED_THREADS}"]
        )
        command = server.sysbench(*loop, "--time=0", "--report-interval=1", "run")
        self._process = ledger.start(command, groups=groups, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def __iter__(self) -> Iterator[Second]:
        assert self._process.stdout is not None
        report, tail = SysbenchReport(), ""
        for raw in self._process.stdout:
            line = raw.decode(errors="replace")
            tail = (tail + line)[-2000:]
            record = report.feed(line, time.monotonic())
            if record is not None:
                yield record
        raise LabError(f"sysbench ended with status {self._process.wait()}; its output ends: {tail}")

    def stop(self) -> None:
        """End it."""
        self._ledger.end(self._process)


class Mysqlslap:
    """mysqlslap runs of a fixed number of queries, one after the other, until stopped; each is a record."""

    def __init__(self, ledger: Ledger, server: Server, groups: list[str]) -> None:
        self._ledger, self._groups = ledger, groups
        self._command = [
            "mysqlslap", "--no-defaults", *server.client(), f"--create-schema={DATABASE}",
            f"--concurrency={SLAP_CLIENTS}", f"--number-of-queries={SLAP_CHUNK}", "--query",
            f"SELECT SUM(k) FROM sbtest1 WHERE id BETWEEN {TABLE_ROWS // 2} AND {TABLE_ROWS // 2 + 99}",
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    def __iter__(self) -> Iterator[Second]:
        while True:
            began_s = time.monotonic()
            self._process = self._ledger.start(
                self._command, groups=self._groups, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
            assert self._process.stdout is not None
            output = self._process.stdout.read().decode(errors="replace")
            process, self._process = self._process, None
            status = self._ledger.end(process)
            if status != 0:
                raise LabError(f"mysqlslap ended with status {status}: {output[-2000:]}")
            now_s = time.monotonic()
            yield Second(now_s, now_s - began_s, SLAP_CHUNK, 0, Histogram())

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            self._ledger.end(self._process)
