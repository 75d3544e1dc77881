"""Keeps all jobs of the queue in memory, as in its file. Every change reaches the disk before the memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from perphd.batch.job import JobEvent, JobSpec, QueuedJob, TransitionRefused
from perphd.batch.store import QueueError, SqliteQueue

T = TypeVar("T")


class QueueJobs:
    """The jobs of the queue; see the module. Methods raise QueueError if the file cannot be read or written.

    ``in_thread``: runs a call in the file's own thread.
    """

    def __init__(self, path: Path, in_thread: Callable[[Callable[[], object]], Awaitable[object]]) -> None:
        self._path, self._in_thread = path, in_thread
        self._file: SqliteQueue | None = None
        self._counts: Counter[str] = Counter()
        self.live: dict[int, QueuedJob] = {}
        """Jobs that have not ended, by number."""
        self.ended: dict[int, QueuedJob] = {}

    @property
    def is_open(self) -> bool:
        """True if the file has been read."""
        return self._file is not None

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of jobs in each state."""
        return {state: count for state, count in self._counts.items() if count}

    async def open(self, used: int = 0) -> None:
        """Read the file. Raises QueueError.

        ``used``: greatest number of a job of which the file need not know. New jobs get greater ones.
        """
        path = self._path

        def read() -> tuple[SqliteQueue, list[QueuedJob]]:
            file = SqliteQueue(path)
            if used:
                file.skip_to(used)
            return file, file.jobs()

        self._file, jobs = await self._run(read)
        self.live = {job.id: job for job in jobs if not job.state.ended}
        self.ended = {job.id: job for job in jobs if job.state.ended}
        self._counts = Counter(job.state.value for job in jobs)

    def closed(self) -> SqliteQueue | None:
        """Hand over the file for its thread to close; nothing may read or write it afterwards."""
        file, self._file = self._file, None
        return file

    def find(self, number: int) -> QueuedJob | None:
        """The job with this number; None if there is none."""
        return self.live.get(number) or self.ended.get(number)

    @property
    def waiting(self) -> list[QueuedJob]:
        """Jobs that have not ended and have no unit."""
        return [job for job in self.live.values() if not job.state.active]

    @property
    def active(self) -> list[QueuedJob]:
        """Jobs with a unit."""
        return [job for job in self.live.values() if job.state.active]

    async def waits(self) -> list[tuple[float, float]]:
        """Start and submission of every job that was started once, in order of the starts. Raises QueueError."""
        starts = await self._run(self._opened.last_starts)
        jobs = (*self.live.values(), *self.ended.values())
        once = [job for job in jobs if job.attempt == 1 and job.id in starts]
        return sorted((starts[job.id], job.submitted_s) for job in once)

    async def submit(self, specs: Sequence[JobSpec], now_s: float) -> tuple[QueuedJob, ...]:
        """Store new jobs, all or none. Raises QueueError."""
        jobs = await self._run(lambda: self._opened.submit(list(specs), now_s))
        for job in jobs:
            self.live[job.id] = job
            self._counts[job.state.value] += 1
        return tuple(jobs)

    async def apply(self, number: int, event: JobEvent) -> QueuedJob | TransitionRefused:
        """Store the job as changed by ``event``. Raises QueueError."""
        after = await self._run(lambda: self._opened.apply(number, event))
        if isinstance(after, TransitionRefused):
            return after
        before = self.live.pop(number, None)
        if before is not None:
            self._counts[before.state.value] -= 1
        (self.ended if after.state.ended else self.live)[number] = after
        self._counts[after.state.value] += 1
        return after

    async def forget(self, before_s: float) -> list[int]:
        """Delete jobs that ended before this time and that no live job follows; returns their numbers.

        Raises QueueError.
        """
        followed = {number for job in self.live.values() for number in job.spec.after}
        gone = [job for job in self.ended.values() if job.since_s < before_s and job.id not in followed]
        await self._run(lambda: self._opened.forget(before_s, followed))
        for job in gone:
            del self.ended[job.id]
            self._counts[job.state.value] -= 1
        return [job.id for job in gone]

    @property
    def _opened(self) -> SqliteQueue:
        if self._file is None:
            raise QueueError("the daemon is stopping")
        return self._file

    async def _run(self, call: Callable[[], T]) -> T:
        return await self._in_thread(call)  # type: ignore[return-value]
