"""Many computations in parallel processes, with progress, remaining time, and immediate storage of results."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import Any, TextIO

from tools.bench.policies.results import Lines


@dataclass(frozen=True, slots=True)
class Task:
    """One computation: its key among the results, and its approximate duration (in any unit, the same for all).

    ``rank``: tasks of lower ranks run first, so that an interrupted run has complete ranks.
    """

    key: str
    call: Callable[..., Any]
    args: tuple[Any, ...]
    cost: float = 1.0
    rank: int = 0


@dataclass(slots=True)
class Progress:
    """Progress over all kinds. ``failed``: key and exception."""

    told: TextIO = sys.stderr
    failed: list[tuple[str, str]] = field(default_factory=list)
    done: int = 0
    worker_s: float = 0.0

    def line(self, text: str) -> None:
        """Print a line that replaces the last one on a terminal; elsewhere, print a line from time to time."""
        if self.told.isatty():
            print(f"\r\x1b[K{text}", end="", file=self.told, flush=True)

    def end(self, text: str) -> None:
        """Print a permanent line."""
        print(f"\r\x1b[K{text}" if self.told.isatty() else text, file=self.told, flush=True)


def timed(call: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, float]:
    """The result, and the CPU time that it took (in a worker)."""
    began = time.process_time()
    return call(*args), time.process_time() - began


def work(
    pool: ProcessPoolExecutor, what: str, lines: Lines, tasks: Iterable[Task], progress: Progress
) -> None:
    """Run all tasks, in each rank the longest first, and store every result at once.

    An interruption loses only the running tasks. A failed task is reported and omitted; the others continue.
    """
    todo = sorted(tasks, key=lambda task: (task.rank, -task.cost))
    if not todo:
        return
    total, reached, began = sum(task.cost for task in todo), 0.0, time.monotonic()
    said_s = began
    futures: dict[Future[tuple[Any, float]], Task] = {
        pool.submit(timed, task.call, task.args): task for task in todo
    }
    try:
        for count, future in enumerate(as_completed(futures), 1):
            task = futures[future]
            reached += task.cost
            try:
                value, seconds = future.result()
            except Exception as exc:
                progress.failed.append((task.key, "".join(traceback.format_exception_only(exc)).strip()))
            else:
                lines.add(task.key, value)
                progress.done += 1
                progress.worker_s += seconds
            now = time.monotonic()
            left = (now - began) / reached * (total - reached)
            text = f"{what}: {count} of {len(todo)}, {now - began:.0f} s, about {left:.0f} s left"
            progress.line(text)
            if not progress.told.isatty() and now - said_s > 30.0:
                said_s = now
                progress.end(text)
    except BaseException:
        for future in futures:
            future.cancel()
        raise
    progress.end(f"{what}: {len(todo)} in {time.monotonic() - began:.0f} s")
