"""Manages units of jobs: starts them, reports their ends, stops those that must not run, and keeps their output.

A unit whose job must not run is recorded as leaving until it is completely gone. The runner blocks, so a
separate thread calls it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from perphd.agent.devices.hints import NO_HINT, hints_file
from perphd.agent.queue.logs import QueueLogs
from perphd.agent.queue.rows import workload_name
from perphd.agent.queue.slots import QueueSlots
from perphd.batch.gangs import gang_of
from perphd.batch.job import (
    Confirmed,
    Exited,
    JobEvent,
    QueuedJob,
    UnitEvidence,
    attempt_of,
    recovery,
)
from perphd.batch.runner import JobRunner, UnitState
from perphd.host.state_files import replace_readable

T = TypeVar("T")


class QueueUnits:
    """The units; see the module. ``in_thread`` runs a call in the units' own thread; ``boot``: id of the
    kernel's boot.
    """

    def __init__(
        self,
        runner: JobRunner,
        boot: str,
        logs: Path,
        slots: Path | None,
        hints: Path | None,
        in_thread: Callable[[Callable[[], object]], Awaitable[object]],
    ) -> None:
        self._runner, self._boot, self._in_thread = runner, boot, in_thread
        self._logs = QueueLogs(logs)
        self.slots = QueueSlots(slots)
        self._hints = hints
        self.leaving: set[str] = set()
        """Units that are being removed."""
        self._searched = False

    @property
    def leaving_numbers(self) -> set[int]:
        """Numbers of the jobs to which the leaving units belong."""
        return {found[0] for unit in self.leaving if (found := attempt_of(unit)) is not None}

    def prepare(self) -> int:
        """Create the folder of logs, and return the greatest job number in it; blocks. Raises OSError."""
        self._logs.prepare()
        return self._logs.greatest()

    async def found(self, find: Callable[[int], QueuedJob | None]) -> None:
        """Note existing units of jobs that must not run, once, before this daemon starts any; ``leaving`` lists them.

        Raises KernelError: systemd does not answer, and a job might start while its earlier attempt runs.
        """
        if self._searched:
            return
        for unit in await self._run(self._runner.units):
            number, attempt = attempt_of(unit) or (0, 0)
            job = find(number)
            # A unit whose number is not in the file is left alone: it may belong to another queue.
            if (
                job is not None
                and not (job.state.active and job.attempt == attempt)
                and attempt <= job.attempt
            ):
                self.leaving.add(unit)
        self._searched = True

    async def make_group(self, job: QueuedJob) -> str:
        """Create the group of the present attempt; see ``JobRunner``."""
        return await self._run(lambda: self._runner.make_group(job))

    async def start(self, job: QueuedJob, live: Sequence[QueuedJob]) -> str:
        """Start the present attempt; see ``JobRunner``. Its slots and hints files exist before it starts.

        ``live``: all jobs that have not ended.
        """
        hints = hints_file(self._hints, workload_name(job)) if job.spec.hints and self._hints else None
        told = () if hints is None else (("PERPHD_HINTS_FILE", str(hints)),)
        environment = (*job.spec.environment, *self.slots.environment(job), *told)
        started = replace(job, spec=replace(job.spec, environment=environment))

        def begin() -> str:
            if gang_of(job) is not None:
                self.slots.write(live)
            if hints is not None:
                with contextlib.suppress(OSError):  # the loop retries, and reports the problem
                    replace_readable(hints, NO_HINT)
            return self._runner.start(started, self._logs.path(job.id, job.attempt))

        return await self._run(begin)

    async def news(
        self, active: Sequence[QueuedJob], now_s: float
    ) -> list[tuple[QueuedJob, JobEvent | None]]:
        """Each active job with the event of its present attempt since the last call; None if nothing has happened.

        Raises KernelError if the units cannot be read.
        """
        states = await self._run(lambda: self._runner.look(active))
        return [(job, self._event(job, states.get(job.id), now_s)) for job in active]

    def _event(self, job: QueuedJob, state: UnitState | None, now_s: float) -> JobEvent | None:
        if job.boot != self._boot:
            return recovery(job, UnitEvidence.UNKNOWN, now_s, boot=self._boot)
        if state is None:
            return None
        if state.evidence is UnitEvidence.ENDED:
            return Exited(now_s, state.status, state.reason)
        if state.evidence is UnitEvidence.RUNS:
            return None if job.confirmed else Confirmed(now_s, "", state.cgroup)
        return recovery(job, state.evidence, now_s, boot=self._boot)

    async def end(self, unit: str) -> None:
        """End a unit. If that fails now, the unit is marked as leaving and retried."""
        self.leaving.add(unit)
        if await self._run(lambda: self._runner.stop(unit)):
            self.leaving.discard(unit)

    async def end_leaving(self) -> None:
        """Try again to end the leaving units."""
        for unit in tuple(self.leaving):
            await self.end(unit)

    async def log_part(self, job: QueuedJob, attempt: int, offset: int) -> tuple[bytes, int]:
        """Output of an attempt from ``offset`` on, and the offset of the next part."""
        return await self._run(lambda: self._logs.read(job.id, attempt, offset))

    async def tidied(self, active: Sequence[QueuedJob], live: Sequence[QueuedJob]) -> None:
        """Trim logs to their maximum size, and update the slots files of elastic jobs."""
        running = [(job.id, job.attempt) for job in active]

        def tidy() -> None:
            self._logs.trim(running)
            self.slots.write(live)

        await self._run(tidy)

    async def forget(self, number: int) -> None:
        """Remove the logs of a job."""
        await self._run(lambda: self._logs.remove(number))

    async def _run(self, call: Callable[[], T]) -> T:
        return await self._in_thread(call)  # type: ignore[return-value]
