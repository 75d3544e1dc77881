"""What real servers' indicators are held against: the requests that their clients count themselves."""

from __future__ import annotations

import asyncio
import bisect
import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from perphd.domain.reading import Awaited, available
from perphd.monitor.sli import SliSource
from perphd.monitor.sli.postgresql import PostgreSqlSource


@dataclass(frozen=True, slots=True)
class Told:
    """One reading: asked at ``asked_s``, answered by ``answered_s``; what it counted in its window, if it was due.

    ``at_s``: when the window ended, as far as the source knows. ``sigma``: the noise that the reading states.
    """

    asked_s: float
    answered_s: float
    at_s: float
    events: float | None
    window_s: float
    awaited: bool
    sigma: float


@dataclass
class Truth:
    """When each request was done (seconds since the epoch), by client."""

    clients: list[list[float]] = field(default_factory=list)

    def settle(self) -> None:
        """All requests in order of time."""
        self._all = sorted(at_s for client in self.clients for at_s in client)

    def until(self, at_s: float) -> int:
        """Requests done until then."""
        return bisect.bisect_right(self._all, at_s)

    @property
    def longest_gap_s(self) -> float:
        """The longest time between two requests of one client."""
        return max(after - before for client in self.clients for before, after in pairwise(sorted(client)))

    def between(self, since_s: float, until_s: float) -> int:
        """Requests done in this window."""
        return self.until(until_s) - self.until(since_s)


def pgbench_log(folder: Path) -> Truth:
    """The log of ``pgbench --log``: client, transaction, latency, script, seconds and microseconds when it ended."""
    found: dict[str, list[float]] = {}
    for file in folder.glob("pgbench_log.*"):
        for line in file.read_text().splitlines():
            words = line.split()
            found.setdefault(words[0], []).append(int(words[4]) + int(words[5]) / 1e6)
    truth = Truth(list(found.values()))
    truth.settle()
    return truth


class Clients:
    """Threads that each ask again and again, with a pause, and note when they were answered."""

    def __init__(self, ask: Callable[[], Callable[[], object]], threads: int, pause_s: float) -> None:
        self.truth = Truth([[] for _ in range(threads)])
        self._ask, self._pause_s = ask, pause_s
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(done,)) for done in self.truth.clients]

    def _run(self, done: list[float]) -> None:
        ask = self._ask()
        while not self._over.is_set():
            ask()
            done.append(time.time())
            if self._pause_s:
                time.sleep(self._pause_s)

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        self.truth.settle()


def _ended_s(source: SliSource, answered_s: float) -> float:
    """When the last reading's window ended, in seconds since the epoch."""
    if isinstance(source, PostgreSqlSource):
        return source.ended_s + time.time() - time.monotonic()
    return answered_s


async def watch(source: SliSource, pace_s: float, until_s: float) -> list[Told]:
    """The source read at this pace, as the agent's board does it, until a time (seconds since the epoch)."""
    told: list[Told] = []
    while time.time() < until_s:
        asked_s = time.time()
        reading = await source.read(asked_s)
        answered_s = time.time()
        rate, equal, window_s = reading.work_rate_per_s, reading.work.events, reading.work.window_s
        events, sigma = None, math.nan
        if available(rate) and available(equal) and available(window_s):
            events = rate * window_s
            sigma = events / math.sqrt(equal) if equal else 1.0
        told.append(
            Told(
                asked_s,
                answered_s,
                _ended_s(source, answered_s),
                events,
                window_s if available(window_s) else math.nan,
                isinstance(rate, Awaited),
                sigma,
            )
        )
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(max(0.0, pace_s - (time.time() - asked_s)))
    await source.close()
    return told


def windows(told: Sequence[Told]) -> list[tuple[Told, Told]]:
    """(Where its window began, the reading) of all readings that were due: each begins where the last ended."""
    found: list[tuple[Told, Told]] = []
    for k, one in enumerate(told):
        if one.events is None:
            continue
        began_s = one.answered_s - one.window_s
        first = found[-1][1] if found else min(told[:k], key=lambda other: abs(other.answered_s - began_s))
        found.append((first, one))
    return found
