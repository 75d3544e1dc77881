"""SQL on the store for the control API, in a few separate threads, so that no query delays a tick.

The daemon has priority on its CPUs (nice -10), from which readers must not benefit. Queries therefore run at normal
priority and share a budget of CPU time. When the budget is used up, queries are refused for the rest of a minute.
"""

from __future__ import annotations

import asyncio
import math
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final

from perphd.config.file import Config
from perphd.control.errors import ApiError, Code
from perphd.control.limits import ApiLimits
from perphd.domain.wire import json_of
from perphd.monitor.query import Cell, QueryError, QueryResult, fetch, reading

_ROWS_AT_ONCE: Final = 500
"""Number of rows encoded as JSON at a time.

Encoding holds the interpreter lock, so the event loop may wait one or two milliseconds.
"""


class Queries:
    """Answers queries on the configured store.

    Args:
        config: names the store.
        limits: concurrency, duration, CPU time.
        now_s: returns monotonic seconds.
        cpu_s: returns the CPU time of the calling thread, in seconds.
    """

    def __init__(
        self,
        config: Config,
        limits: ApiLimits,
        now_s: Callable[[], float] = time.monotonic,
        cpu_s: Callable[[], float] = time.thread_time,
    ) -> None:
        self._config, self._limits, self._cpu_s = config, limits, cpu_s
        self._running = 0
        self._ended = False
        self._share = CpuShare(limits.queries_cpu_within_s, now_s)
        self._threads = ThreadPoolExecutor(
            limits.queries,
            thread_name_prefix="perphd-query",
            initializer=_at_normal_priority,
            initargs=(limits,),
        )

    async def answer(self, sql: str, limit: int, may_change: bool) -> bytes:
        """The JSON answer to a query. ``may_change``: an administrator asks, who may use the reserved limits too.

        Raises:
            ApiError: the store is disabled, the query is refused, or a limit is reached.
        """
        return await self.ask(lambda connection: _json(fetch(connection, sql, limit)), may_change)

    async def ask(self, job: Callable[[sqlite3.Connection], bytes], may_change: bool) -> bytes:
        """The result of a job on the store, within the same limits. Raises the errors of ``answer``."""
        if not self._config.store.enabled:
            raise ApiError(Code.UNAVAILABLE, "the store is disabled", "store.enabled", "true")
        if self._ended:
            raise ApiError(Code.UNAVAILABLE, "perphd is stopping")
        if self._running >= self._limits.queries - (0 if may_change else self._limits.reserved_queries):
            raise ApiError(Code.BUSY, f"{self._running} queries are running already; try again")
        most_s = self._limits.queries_cpu_s - (0.0 if may_change else self._limits.reserved_queries_cpu_s)
        if (free_s := self._share.free_in_s(most_s)) > 0:
            raise ApiError(Code.BUSY, f"{self._used_up(most_s)}; try again in {math.ceil(free_s)} s")
        self._running += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, self._run, job, most_s)
        finally:
            self._running -= 1

    def end(self) -> None:
        """Cancel running queries and accept no more."""
        self._ended = True
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _run(self, job: Callable[[sqlite3.Connection], bytes], most_s: float) -> bytes:
        before_s = self._cpu_s()

        def count() -> None:
            nonlocal before_s
            now_s = self._cpu_s()
            self._share.add(now_s - before_s)
            before_s = now_s

        def stop() -> str:
            count()
            if self._ended:
                return "the query was cancelled: perphd is stopping"
            if self._share.used_s() >= most_s:
                return f"the query was cancelled: {self._used_up(most_s)}; narrow it by workload and wall_s"
            return ""

        try:
            limits = self._limits
            with reading(
                self._config.store_path, limits.query_s, stop, limits.query_spill_bytes
            ) as connection:
                return job(connection)
        except QueryError as exc:
            raise ApiError(Code.REFUSED, str(exc), "sql", "one SELECT statement") from exc
        finally:
            count()

    def _used_up(self, most_s: float) -> str:
        return (
            f"query CPU budget exceeded: {self._share.used_s():.1f} s used in the last "
            f"{self._share.within_s:g} s (limit {most_s:g} s)"
        )


def answer(result: QueryResult) -> dict[str, Any]:
    """A query's result in the form in which the API sends it."""
    return {
        "columns": list(result.columns),
        "rows": [[_cell(cell) for cell in row] for row in result.rows],
        "truncated": result.truncated,
    }


def _json(result: QueryResult) -> bytes:
    """``answer`` as JSON, encoded in chunks of ``_ROWS_AT_ONCE`` rows."""
    parts = [
        json_of([[_cell(cell) for cell in row] for row in result.rows[start : start + _ROWS_AT_ONCE]])[1:-1]
        for start in range(0, len(result.rows), _ROWS_AT_ONCE)
    ]
    head = f'{{"columns":{json_of(result.columns)},"rows":['
    return f'{head}{",".join(parts)}],"truncated":{json_of(result.truncated)}}}'.encode()


def _cell(value: Cell) -> str | float | int | None:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _at_normal_priority(limits: ApiLimits) -> None:
    """Set the niceness of this thread only: on Linux each thread has its own, inherited by its children."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), limits.query_nice)


class CpuShare:
    """CPU time used in the last ``within_s`` seconds, summed by second. Safe to use from any thread.

    Args:
        within_s: older usage is forgotten.
        now_s: a monotonic clock.
    """

    def __init__(self, within_s: float, now_s: Callable[[], float]) -> None:
        self.within_s, self._now_s = within_s, now_s
        self._lock = threading.Lock()
        self._used: deque[tuple[int, float]] = deque()

    def add(self, cpu_s: float) -> None:
        """Add CPU time used just now."""
        with self._lock:
            second = math.floor(self._now_s())
            if self._used and self._used[-1][0] == second:
                cpu_s += self._used.pop()[1]
            self._used.append((second, cpu_s))

    def used_s(self) -> float:
        """CPU time used within ``within_s``."""
        with self._lock:
            return sum(cpu_s for _, cpu_s in self._recent())

    def free_in_s(self, most_s: float) -> float:
        """Seconds until the used time falls below ``most_s`` without further use; 0: it is below now."""
        with self._lock:
            used = list(self._recent())
            free_s = 0.0
            for index, (second, _) in enumerate(used):
                # Summed as in ``used_s``: a running difference would round differently.
                if sum(cpu_s for _, cpu_s in used[index:]) < most_s:
                    break
                free_s = second + 1 + self.within_s - self._now_s()
            return free_s

    def _recent(self) -> deque[tuple[int, float]]:
        oldest = self._now_s() - self.within_s
        while self._used and self._used[0][0] + 1 <= oldest:
            self._used.popleft()
        return self._used
