"""The batch queue in the daemon: takes jobs, starts them when the host has room, and follows them to their end.

    submitted -> on disk -> considered -> "starting" on disk -> unit started -> confirmed on disk -> ended on disk

Nothing here takes time on the loop: the queue's file, systemd or control groups, and plans have a thread each. The loop
keeps all jobs in memory as the file has them. One look at a time goes through these steps:

1. what became of the units of running jobs; 2. a step of the planner; 3. freezes, requeues and starts.

A job that runs is a batch workload like any other, and the same policies hold it back. A job that is cancelled or
requeued is so on disk before its processes are killed. Units of jobs that are not to run are ended whenever they are
found, and no job starts again before its earlier unit is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol, TypeVar

from perphd.agent.config_queue import QueueConfig
from perphd.agent.queue_event import QueueEvent
from perphd.agent.queue_logs import QueueLogs
from perphd.agent.queue_planning import QueuePlanner, Use, user_name
from perphd.batch.job import (
    CancelledBy,
    Confirmed,
    Exited,
    FrozenFor,
    JobEvent,
    JobSpec,
    JobState,
    NeverStarted,
    QueuedJob,
    RequeuedFor,
    Started,
    Thawed,
    TransitionRefused,
    UnitEvidence,
    attempt_of,
    recovery,
)
from perphd.batch.launching import dependencies
from perphd.batch.runner import JobRefused, JobRunner, StartFailed, UnitState
from perphd.batch.scheduling import QueueStep
from perphd.batch.store import QueueError, SqliteQueue
from perphd.batch.view import JobDetail, JobForecast, JobRow
from perphd.domain.allocation import KEEP, Settings
from perphd.domain.control import Actor
from perphd.domain.errors import ConfigError, KernelError, PerphError
from perphd.domain.host_account import HostAccount
from perphd.domain.queue import CopperOffer, EventStatus, QueueSummary
from perphd.domain.reading import NOT_MEASURED, Unavailable, available
from perphd.domain.sample import Quality, Sample
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.qos.event_mode import CopperEvent

log = logging.getLogger("perphd")
T = TypeVar("T")

FOLDER: Final = "queue"
"""Of the state directory: the file of jobs, their logs, and what launchers record."""
LOOK_S: Final = 1.0
"""Time between two looks, unless a submission or a cancellation asks for one."""
USE_S: Final = 5.0
"""What jobs and everything else use is averaged over this time for the planner."""
DECIDE_S: Final = 5.0
"""Time between two steps of the planner while nothing happens in the queue."""
START_PAUSE_S: Final = 10.0
"""After a start that failed for a reason of the host's, nothing is started for this time."""
REFUSED_STATUS: Final = 126
"""Status of a job that can never be started, as a shell has it for a file that is no program."""
FORGET_S: Final = 3600.0
LEAST_CEILING_CPUS: Final = 0.05
"""An event leaves a job at least this, unless its share is 0: then the job stands still."""


class Attached(Protocol):
    """What the queue needs of the agent that it serves."""

    async def add(self, spec: WorkloadSpec) -> None:
        """A job runs: look after its control group as batch."""

    async def let_go(self, name: str) -> None:
        """A job has ended: give back what was set on its group."""

    def enforced(self, name: str) -> bool:
        """True if settings of this workload are written."""

    def tell(self, text: str, workload: str = "", by: Actor | None = None) -> None:
        """Announce an event."""

    def problem(self, key: str, text: str | None) -> None:
        """State, or clear, a condition that an operator should read."""


class BatchQueue:
    """See the module. ``capacity``: CPUs and bytes of the host; ``boot``: id of the kernel's boot."""

    def __init__(
        self,
        config: QueueConfig,
        state_dir: Path,
        runner: JobRunner,
        boot: str,
        wall_clock: Callable[[], float],
        capacity: Callable[[], tuple[float, float]],
    ) -> None:
        self.config = config
        self._folder, self._runner, self._boot = state_dir / FOLDER, runner, boot
        self._wall_clock, self._capacity = wall_clock, capacity
        self._logs = QueueLogs(self._folder / "logs")
        self._event = QueueEvent(self._folder)
        self._offer: CopperOffer | None = None
        self._planner = QueuePlanner(config, state_dir)
        self._threads = {
            name: ThreadPoolExecutor(1, f"perphd-queue-{name}") for name in ("file", "units", "plans")
        }
        self._file: SqliteQueue | None = None
        self._opening = asyncio.Lock()
        self._looking = asyncio.Lock()
        self._live: dict[int, QueuedJob] = {}
        self._ended: dict[int, QueuedJob] = {}
        self._counts: Counter[str] = Counter()
        self._leaving: set[str] = set()
        """Units that are to be gone."""
        self._reasons: Mapping[int, str] = {}
        self._uses: list[Use] = []
        self._since_s: float | None = None
        self._sums: dict[int, list[float]] = {}
        self._attached: Attached | None = None
        self._workloads: dict[int, str] = {}
        self._task: asyncio.Task[None] | None = None
        self._looked_s = self._forgot_s = self._paused_until_s = 0.0
        self._decided_s = 0.0
        self._asked = True
        self._closed = False
        self._problem = ""

    def attach(self, attached: Attached) -> None:
        """Serve this agent from now on."""
        self._attached = attached

    # -- asked from outside -------------------------------------------------------------------------------------

    async def submit(self, specs: Sequence[JobSpec]) -> tuple[QueuedJob, ...]:
        """Store new jobs, all or none; they are on disk when this returns.

        Raises:
            ConfigError: they are refused.
            QueueError: they cannot be stored.
        """
        await self._open()
        cpus, memory_bytes = self._capacity()
        for spec in specs:
            if spec.cpus > cpus:
                raise _refused("cores", f"{spec.cpus:g} are more than the host has", f"at most {cpus:g}")
            if spec.memory_bytes > memory_bytes:
                raise _refused(
                    "memory", "it is more than the host has", f"at most {int(memory_bytes) >> 20} MiB"
                )
            for number in spec.after:
                if self.find(number) is None:
                    raise _refused("after", f"there is no job {number}", "the number of a job")
        waiting = sum(1 for job in self._live.values() if not job.state.active)
        if waiting + len(specs) > self.config.most_waiting:
            raise _refused(
                "queue", f"{waiting} jobs wait already", f"{self.config.most_waiting} ([queue] most_waiting)"
            )
        now_s = self._wall_clock()
        jobs = await self._in("file", lambda: self._opened.submit(list(specs), now_s))
        for job in jobs:
            self._live[job.id] = job
            self._counts[job.state.value] += 1
        self._asked = True
        return tuple(jobs)

    async def cancel(self, job: QueuedJob, by: str) -> QueuedJob:
        """Cancel a job; its processes are ended at once. Raises ConfigError if it has ended, QueueError."""
        after = await self._apply(job.id, CancelledBy(self._wall_clock(), f"cancelled by {by}"))
        if isinstance(after, TransitionRefused):
            raise _refused("job", after.reason, "a job that has not ended")
        if job.attempt:
            self._leaving.add(job.unit)
        self._asked = True
        return after

    def find(self, number: int) -> QueuedJob | None:
        """The job of this number."""
        return self._live.get(number) or self._ended.get(number)

    async def ready(self) -> None:
        """Return once the jobs of the file are known. Raises QueueError if they cannot be."""
        await self._open()

    async def rows(self, sees: Callable[[QueuedJob], bool], everything: bool, limit: int) -> list[JobRow]:
        """Jobs as rows: those that run, those that wait, with ``everything`` also those that ended, newest first."""
        await self._open()
        live, ended = list(self._live.values()), list(self._ended.values()) if everything else []
        reasons, now_s = self._reasons, self._wall_clock()

        def made() -> list[JobRow]:
            live.sort(key=lambda job: (not job.state.active, job.id))
            ended.sort(key=lambda job: -job.since_s)
            return [self._row(job, sees(job), reasons, now_s) for job in [*live, *ended][:limit]]

        return await self._in("plans", made)

    async def row(self, job: QueuedJob, sees: bool) -> JobRow:
        """One job, with its forecast."""
        now_s = self._wall_clock()
        row = self._row(job, sees, self._reasons, now_s)
        if row.detail is None or job.state.ended:
            return row
        waiting, active = self._waiting(), self._active()
        found = await self._in(
            "plans",
            lambda: self._planner.forecast(
                job.id, now_s, self._capacity(), waiting, active, self.copper_share
            ),
        )
        return replace(row, detail=replace(row.detail, forecast=found))

    async def log_part(self, job: QueuedJob, attempt: int, offset: int) -> tuple[bytes, int]:
        """Output of an attempt from ``offset`` on, and where it goes on."""
        return await self._in("units", lambda: self._logs.read(job.id, attempt, offset))

    def summary(self) -> QueueSummary:
        """The queue in a few figures."""
        counts = {state: count for state, count in self._counts.items() if count}
        return QueueSummary(counts, self._problem, self._offer, self._event.status(self._wall_clock()))

    @property
    def copper_share(self) -> float:
        """The share of what is left over that jobs may use now."""
        return self._event.share(self._wall_clock())

    async def begin_event(
        self, duration_s: float, copper_share: float, ramp_s: float, reason: str
    ) -> EventStatus:
        """Cut copper to a share for a stated time; on disk when this returns. Raises ConfigError."""
        await self._open()
        event = CopperEvent(self._wall_clock(), duration_s, copper_share, ramp_s, reason)
        self._asked = True
        return await self._in("file", lambda: self._event.begin(event))

    async def end_event(self) -> EventStatus | None:
        """End the event: copper comes back in its ramp. Raises ConfigError if there is none."""
        await self._open()
        now_s = self._wall_clock()
        if self._event.status(now_s) is None:
            raise _refused("event", "no event is in force", "perphctl event begin begins one")
        self._asked = True
        return await self._in("file", lambda: self._event.end(now_s))

    # -- asked by the loop --------------------------------------------------------------------------------------

    def over(self, name: str, wanted: Settings) -> Settings:
        """What is wanted for a workload: a frozen job stands still, and an event lowers copper's CPU ceiling."""
        number = next((number for number, each in self._workloads.items() if each == name), None)
        job = None if number is None else self._live.get(number)
        if job is None:
            return wanted
        if job.state is JobState.FROZEN:
            return replace(wanted, frozen=True)
        share = self.copper_share
        if share >= 1.0 or job.spec.band.protected:
            return wanted
        if share <= 0.0:
            return replace(wanted, frozen=True)
        ceiling = max(LEAST_CEILING_CPUS, share * job.spec.cpus)
        given = wanted.cpu_max_cores
        return replace(wanted, cpu_max_cores=ceiling if given is KEEP else min(ceiling, given))

    def is_job(self, name: str) -> bool:
        """True for the name of a running job's workload."""
        return name in self._workloads.values()

    def step(self, now_s: float, samples: Mapping[str, Sample], account: HostAccount | None) -> None:
        """One round of the loop: note what is used, and begin a look if one is due."""
        self._note(now_s, samples, account)
        if self._closed or (self._task is not None and not self._task.done()):
            return
        if self._asked or now_s - self._looked_s >= LOOK_S or now_s < self._looked_s:
            self._looked_s = now_s
            self._task = asyncio.get_running_loop().create_task(self._guarded())

    def close(self) -> None:
        """End looking. Jobs that run go on; the next daemon finds them."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
        if self._file is not None:
            file, self._file = self._file, None
            self._threads["file"].submit(file.close)
        for thread in self._threads.values():
            thread.shutdown(wait=True)

    def _note(self, now_s: float, samples: Mapping[str, Sample], account: HostAccount | None) -> None:
        """Average over ``USE_S`` what jobs use, and everything else."""
        if account is None:
            return
        used = {number: samples[name] for number, name in self._workloads.items() if name in samples}
        jobs = {
            number: (sample.cpu_usage_cores, sample.memory_working_set_bytes)
            for number, sample in used.items()
            if not sample.has(Quality.GONE, Quality.FIRST, Quality.RESTARTED)
        }
        busy = account.cpu.capacity - account.cpu.idle
        memory_bytes = (
            NOT_MEASURED
            if not available(account.memory_available_bytes)
            else (
                account.memory_total_bytes - account.memory_available_bytes  # type: ignore[operator]
            )
        )
        seconds = account.interval_s
        rows = {0: (busy, memory_bytes), **jobs}
        for number, (cpus, held) in rows.items():
            sums = self._sums.setdefault(number, [0.0, 0.0, 0.0, 0.0])
            if available(cpus):
                sums[0], sums[1] = sums[0] + cpus * seconds, sums[1] + seconds
            if available(held):
                sums[2], sums[3] = sums[2] + held * seconds, sums[3] + seconds
        self._since_s = now_s if self._since_s is None else self._since_s
        if now_s - self._since_s < USE_S:
            return
        means = {
            number: (each[0] / each[1] if each[1] else None, each[2] / each[3] if each[3] else None)
            for number, each in self._sums.items()
        }
        host_cpus, host_memory = means.pop(0, (None, None))
        others_cpus = (
            None if host_cpus is None else host_cpus - sum(each[0] or 0.0 for each in means.values())
        )
        others_memory = (
            None if host_memory is None else host_memory - sum(each[1] or 0.0 for each in means.values())
        )
        self._uses.append(Use(now_s - self._since_s, others_cpus, others_memory, means))
        self._since_s, self._sums = now_s, {}

    # -- one look -----------------------------------------------------------------------------------------------

    async def _guarded(self) -> None:
        try:
            await self.look()
        except (PerphError, OSError) as exc:
            self._problem = f"the batch queue: {exc}"
        except Exception:
            log.exception("a look of the batch queue failed")
            self._problem = "the batch queue: a look failed; the log has the details"
        else:
            self._problem = self._planner.problem or self._event.problem or self._problem_of_start()
        if self._attached is not None and not self._closed:
            self._attached.problem("queue", self._problem or None)

    def _problem_of_start(self) -> str:
        return self._problem if self._wall_clock() < self._paused_until_s else ""

    async def look(self) -> None:
        """One look; see the module.

        Raises:
            QueueError: the file cannot be read or written.
            KernelError: systemd does not answer.
        """
        async with self._looking:
            await self._open()
            await self._follow()
            now_s = self._wall_clock()
            if self._asked or not 0 <= now_s - self._decided_s < DECIDE_S:
                self._asked, self._decided_s = False, now_s
                await self._carry_out(await self._decided())
            if now_s - self._forgot_s >= FORGET_S:
                self._forgot_s = now_s
                await self._forget(now_s - 3600.0 * self.config.keep_h)
            running = [(job.id, job.attempt) for job in self._active()]
            await self._in("units", lambda: self._logs.trim(running))

    async def _follow(self) -> None:
        """What became of the units."""
        active = self._active()
        states = await self._in("units", lambda: self._runner.look(active))
        for job in active:
            event = self._news(job, states.get(job.id))
            if event is None:
                if job.id not in self._workloads:
                    await self._enter(job)
                continue
            after = await self._apply(job.id, event)
            if isinstance(after, TransitionRefused):
                continue  # it was cancelled meanwhile
            if after.state.active:
                await self._enter(after)
            else:
                await self._left(job, after)
        for unit in tuple(self._leaving):
            number, _ = attempt_of(unit) or (0, 0)
            if number in self._workloads:
                await self._leave(number)
            if await self._in("units", lambda unit=unit: self._runner.stop(unit)):  # type: ignore[misc]
                self._leaving.discard(unit)

    def _news(self, job: QueuedJob, state: UnitState | None) -> JobEvent | None:
        now_s = self._wall_clock()
        if job.boot != self._boot:
            return recovery(job, UnitEvidence.UNKNOWN, now_s, boot=self._boot)
        if state is None:
            return None
        if state.evidence is UnitEvidence.ENDED:
            return Exited(now_s, state.status, state.reason)
        if state.evidence is UnitEvidence.RUNS:
            return None if job.confirmed else Confirmed(now_s, "", state.cgroup)
        return recovery(job, state.evidence, now_s, boot=self._boot)

    async def _decided(self) -> QueueStep:
        now_s = self._wall_clock()
        live, active = list(self._live.values()), self._active()
        ended = dict(self._ended)
        uses, self._uses = self._uses, []
        leaving = {found[0] for unit in self._leaving if (found := attempt_of(unit)) is not None}
        preempts = self._attached is not None and any(
            self._attached.enforced(name) for name in self._workloads.values()
        )

        def made() -> tuple[QueueStep, Mapping[int, str], Mapping[int, str]]:
            self._planner.take(uses, {job.id: job for job in active}, self._capacity())
            self._offer = self._planner.offer(now_s)
            found = dependencies(live, {number: job.state for number, job in ended.items()})
            waiting = [job for job in found.startable if job.id not in leaving]
            step = self._planner.step(now_s, self._capacity(), waiting, active, preempts, self.copper_share)
            return step, {**step.reasons, **found.blocked}, found.impossible

        step, self._reasons, impossible = await self._in("plans", made)
        for number, reason in impossible.items():
            await self._apply(number, CancelledBy(now_s, reason))
        return step

    async def _carry_out(self, step: QueueStep) -> None:
        now_s = self._wall_clock()
        for number in step.requeue:
            job = self._live.get(number)
            if job is None:
                continue
            after = await self._apply(number, RequeuedFor(now_s, "a job with a deadline needs its memory"))
            if not isinstance(after, TransitionRefused):
                await self._left(job, after)
        for number in step.freeze:
            await self._apply(number, FrozenFor(now_s, "a job with a deadline needs its processors"))
        for number in step.thaw:
            await self._apply(number, Thawed(now_s))
        if now_s < self._paused_until_s:
            return
        for number in step.start:
            if not await self._start(number):
                return

    async def _start(self, number: int) -> bool:
        """Start one job; False if nothing can be started now."""
        job = await self._apply(number, Started(self._wall_clock(), "", self._boot))
        if isinstance(job, TransitionRefused):
            return True
        try:
            cgroup = await self._in(
                "units", lambda: self._runner.start(job, self._logs.path(job.id, job.attempt))
            )
        except JobRefused as exc:
            after = await self._apply(number, Exited(self._wall_clock(), REFUSED_STATUS, str(exc)))
            self._tell(f"job {number} cannot be started: {exc}")
        except StartFailed as exc:
            after = await self._apply(number, NeverStarted(self._wall_clock(), str(exc)))
            self._paused_until_s = self._wall_clock() + START_PAUSE_S
            self._problem = f"the batch queue starts nothing: {exc}"
            self._reasons = {**self._reasons, number: str(exc)}
            return False
        else:
            after = await self._apply(number, Confirmed(self._wall_clock(), "", cgroup))
        if not isinstance(after, TransitionRefused) and after.state.active:
            await self._in("plans", lambda: self._planner.started(after))
            await self._enter(after)
            self._tell(f"job {number} was started", workload_name(after))
        return True

    async def _left(self, job: QueuedJob, after: QueuedJob) -> None:
        """The present attempt of ``job`` is over: ``after`` is on disk."""
        await self._leave(job.id)
        self._leaving.add(job.unit)
        if await self._in("units", lambda: self._runner.stop(job.unit)):
            self._leaving.discard(job.unit)
        now_s = self._wall_clock()
        await self._in("plans", lambda: self._planner.ended(after, now_s))
        status = "" if after.status is None else f", status {after.status}"
        self._tell(f"job {job.id} is {after.state}{status}{f': {after.reason}' if after.reason else ''}")
        self._asked = True

    async def _enter(self, job: QueuedJob) -> None:
        """Let the loop look after a running job."""
        if self._attached is None or not job.cgroup or job.id in self._workloads:
            return
        self._workloads[job.id] = workload_name(job)
        band = job.spec.band.value
        await self._attached.add(WorkloadSpec(workload_name(job), Kind.BATCH, job.cgroup, band=band))

    async def _leave(self, number: int) -> None:
        name = self._workloads.pop(number, None)
        if name is not None and self._attached is not None:
            await self._attached.let_go(name)

    async def _forget(self, before_s: float) -> None:
        await self._in("file", lambda: self._opened.forget(before_s))
        for number, job in list(self._ended.items()):
            if job.since_s < before_s:
                del self._ended[number]
                self._counts[job.state.value] -= 1
                await self._in("units", lambda number=number: self._logs.remove(number))  # type: ignore[misc]

    # -- the file -----------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        """Read the file, and find out which units are left of jobs that are not to run."""
        async with self._opening:
            if self._file is not None:
                return
            if self._closed:
                raise QueueError("the daemon is stopping")
            self._file, jobs = await self._in("file", self._read)
            self._live = {job.id: job for job in jobs if not job.state.ended}
            self._ended = {job.id: job for job in jobs if job.state.ended}
            self._counts = Counter(job.state.value for job in jobs)
        units: Sequence[str] = ()
        with contextlib.suppress(KernelError, OSError):
            units = await self._in("units", self._runner.units)
        for unit in units:
            number, attempt = attempt_of(unit) or (0, 0)
            job = self.find(number)
            # A unit of a number that the file does not know is not touched: it may be another queue's.
            if (
                job is not None
                and not (job.state.active and job.attempt == attempt)
                and attempt <= job.attempt
            ):
                self._leaving.add(unit)

    def _read(self) -> tuple[SqliteQueue, list[QueuedJob]]:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._logs.prepare()
        except OSError as exc:
            raise QueueError(f"{exc.filename}: the queue cannot be kept: {exc.strerror}") from exc
        self._event.read(self._wall_clock())
        file = SqliteQueue(self._folder / "jobs.sqlite")
        return file, file.jobs()

    @property
    def _opened(self) -> SqliteQueue:
        if self._file is None:
            raise QueueError("the daemon is stopping")
        return self._file

    async def _apply(self, number: int, event: JobEvent) -> QueuedJob | TransitionRefused:
        after = await self._in("file", lambda: self._opened.apply(number, event))
        if isinstance(after, TransitionRefused):
            return after
        before = self._live.pop(number, None)
        if before is not None:
            self._counts[before.state.value] -= 1
        (self._ended if after.state.ended else self._live)[number] = after
        self._counts[after.state.value] += 1
        return after

    def _in(self, thread: str, call: Callable[[], T]) -> Awaitable[T]:
        return asyncio.get_running_loop().run_in_executor(self._threads[thread], call)

    # -- shown --------------------------------------------------------------------------------------------------

    def _waiting(self) -> list[QueuedJob]:
        return [job for job in self._live.values() if not job.state.active]

    def _active(self) -> list[QueuedJob]:
        return [job for job in self._live.values() if job.state.active]

    def announce(self, text: str, by: Actor) -> None:
        """Announce what somebody has asked for."""
        if self._attached is not None:
            self._attached.tell(text, by=by)

    def _tell(self, text: str, workload: str = "") -> None:
        if self._attached is not None:
            self._attached.tell(text, workload)

    def _row(self, job: QueuedJob, sees: bool, reasons: Mapping[int, str], now_s: float) -> JobRow:
        if not sees:
            return JobRow(job.id, job.spec.name, job.state)
        spec = job.spec
        waits = not job.state.active and not job.state.ended
        reason = reasons.get(job.id, job.reason) if waits else job.reason
        forecast: JobForecast | Unavailable = NOT_MEASURED
        detail = JobDetail(
            user_name(spec.uid),
            spec.command,
            spec.directory,
            spec.output,
            spec.cpus,
            spec.memory_bytes,
            spec.band,
            spec.deadline_s,
            spec.after,
            spec.array,
            job.submitted_s,
            job.since_s,
            reason,
            job.attempt,
            job.failures,
            spec.retries,
            job.status,
            job.has_run_s(now_s),
            job.lost_s,
            job.preemptions,
            job.unit if job.attempt else "",
            workload_name(job) if job.state.active else "",
            forecast,
        )
        return JobRow(job.id, spec.name, job.state, detail)


def workload_name(job: QueuedJob) -> str:
    """What a running job is called among the workloads."""
    return f"job-{job.id}"


def _refused(key: str, problem: str, allowed: str) -> ConfigError:
    return ConfigError("request", key, problem, allowed)
