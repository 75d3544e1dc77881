"""Progress on a terminal while a command waits for jobs of the batch queue."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from perphd.batch.job import JobState
from perphd.domain.reading import Unavailable

if TYPE_CHECKING:
    from perphd.batch.view import JobRow


class Teller(Protocol):
    """Receives the progress of a wait."""

    def __call__(self, ended: int, row: JobRow) -> None:
        """Report the number of ended jobs, and the job awaited now."""


def note_of(row: JobRow, now_s: float) -> tuple[str, float | None]:
    """The state of a job, and the completed share of its run time where that is predicted."""
    detail = row.detail
    if detail is None or row.state not in (JobState.RUNNING, JobState.FROZEN):
        return f"job {row.id} ({row.name}): {row.state}", None
    forecast, share = detail.forecast, None
    if not isinstance(forecast, Unavailable):
        left_s = max(0.0, forecast.end.p50 - now_s)
        share = detail.ran_s / (detail.ran_s + left_s) if detail.ran_s + left_s > 0 else None
    return f"job {row.id} ({row.name}): {row.state} for {detail.ran_s:.0f} s", share


@contextmanager
def waiting(count: int, shown: bool) -> Iterator[Teller]:
    """A progress bar on stderr if that is a terminal and ``shown``: over all jobs, or over the run of a single job."""
    if not shown or not sys.stderr.isatty():
        yield lambda ended, row: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    parts = (MofNCompleteColumn(), *columns) if count > 1 else columns
    with Progress(*parts, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=count if count > 1 else None)

        def told(ended: int, row: JobRow) -> None:
            text, share = note_of(row, time.time())
            if count > 1:
                bar.update(task, completed=ended, description=text)
            else:
                bar.update(
                    task, total=None if share is None else 1.0, completed=share or 0.0, description=text
                )

        yield told
