"""The batch queue in the daemon: accepts jobs, starts them when the host has room, and follows them to their end.

    submitted -> on disk -> considered -> "starting" on disk -> unit started -> confirmed on disk -> ended on disk

Nothing here blocks the loop: the queue's file, systemd or control groups, and plans each have a thread. The
loop holds the file's jobs in memory. At most one scheduling pass runs at a time, with these steps:

1. check the units of running jobs; 2. run a step of the planner; 3. freeze, requeue and start jobs.

A running job is a batch workload like any other, under the same policies. The file records a cancellation or a requeue
before the job's processes are killed. The queue ends units of jobs that must not run whenever it finds them,
and restarts no job before its earlier unit is gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

from perphd.agent.queue.attached import Attached
from perphd.agent.queue.event import QueueEvent
from perphd.agent.queue.given import QueueGiven
from perphd.agent.queue.jobs import QueueJobs
from perphd.agent.queue.planning import HISTORY_ROWS, QueuePlanner
from perphd.agent.queue.rows import row_of, workload_name, workload_of
from perphd.agent.queue.submitting import check, refused
from perphd.agent.queue.units import QueueUnits
from perphd.agent.queue.use import QueueUse
from perphd.batch.gangs import Slots, gang_of, slots_of
from perphd.batch.job import (
    CancelledBy,
    Confirmed,
    Exited,
    FrozenFor,
    JobSpec,
    JobState,
    NeverStarted,
    QueuedJob,
    RequeuedFor,
    Started,
    Thawed,
    TransitionRefused,
)
from perphd.batch.launching import dependencies
from perphd.batch.look import QueueStep, QueueView
from perphd.batch.runner import JobRefused, JobRunner, StartFailed
from perphd.batch.store import QueueError
from perphd.batch.view import JobRow
from perphd.config.tables import QueueConfig
from perphd.domain.allocation import Settings
from perphd.domain.control import Actor
from perphd.domain.errors import PerphError
from perphd.domain.host_account import HostAccount
from perphd.domain.queue import CopperOffer, EventStatus, QueueSummary
from perphd.domain.sample import Sample
from perphd.qos.event_mode import CopperEvent

log = logging.getLogger("perphd")
T = TypeVar("T")

FOLDER: Final = "queue"
"""Folder in the state directory for the file of jobs, their logs, and launchers' records."""
LOOK_S: Final = 1.0
"""Seconds between two scheduling passes, unless a submission or a cancellation requests one."""
DECIDE_S: Final = 5.0
"""Seconds between two steps of the planner while nothing happens in the queue."""
START_PAUSE_S: Final = 10.0
"""Seconds without further starts after a start that failed because of the host."""
REFUSED_STATUS: Final = 126
"""Exit status of a job that can never be started; a shell uses it for a file that is not executable."""
FORGET_S: Final = 3600.0
"""Seconds between two deletions of jobs that ended long ago."""
UNMEASURED_S: Final = 30.0
"""Longest time in seconds for which decisions wait for the first measurement of the host's use after a start."""


class BatchQueue:
    """The batch queue; see the module.

    ``capacity``: returns CPUs and memory bytes of the host; ``boot``: id of the kernel's boot.

    ``slots``: folder of files with the number of running workers of elastic jobs; None: no files. ``hints``: folder of
    hints for jobs that read them. ``history_rows``: see ``QueuePlanner``.
    """

    def __init__(
        self,
        config: QueueConfig,
        state_dir: Path,
        runner: JobRunner,
        boot: str,
        wall_clock: Callable[[], float],
        capacity: Callable[[], tuple[float, float]],
        slots: Path | None = None,
        hints: Path | None = None,
        history_rows: int = HISTORY_ROWS,
    ) -> None:
        self.config = config
        self._folder, self._boot = state_dir / FOLDER, boot
        self._wall_clock, self._capacity = wall_clock, capacity
        self._event = QueueEvent(self._folder)
        self._offer: CopperOffer | None = None
        self._planner = QueuePlanner(config, state_dir, self._folder, history_rows)
        names = ("file", "units", "plans")
        self._threads = {name: ThreadPoolExecutor(1, f"perphd-queue-{name}") for name in names}
        self._jobs = QueueJobs(self._folder / "jobs.sqlite", lambda call: self._in("file", call))
        self._units = QueueUnits(
            runner, boot, self._folder / "logs", slots, hints, lambda call: self._in("units", call)
        )
        self._use = QueueUse()
        self._given = QueueGiven()
        self._opening = asyncio.Lock()
        self._looking = asyncio.Lock()
        self._reasons: Mapping[int, str] = {}
        self._order: Mapping[int, str] = {}
        self._attached: Attached | None = None
        self._workloads: dict[int, str] = {}
        self._task: asyncio.Task[None] | None = None
        self._looked_s = self._forgot_s = self._paused_until_s = 0.0
        self._decided_s = 0.0
        self._first_step_s: float | None = None
        self._asked = True
        self._closed = False
        self._problem = ""

    def attach(self, attached: Attached) -> None:
        """Attach to this agent."""
        self._attached = attached

    # -- asked from outside -------------------------------------------------------------------------------------

    async def submit(self, specs: Sequence[JobSpec]) -> tuple[QueuedJob, ...]:
        """Store new jobs, all or none. On return they are on disk.

        Raises:
            ConfigError: they are refused.
            QueueError: they cannot be stored.
        """
        await self._open()
        check(specs, self.config, self._capacity(), self.find, len(self._jobs.waiting))
        jobs = await self._jobs.submit(specs, self._wall_clock())
        self._asked = True
        return jobs

    async def cancel(self, job: QueuedJob, by: str) -> QueuedJob:
        """Cancel a job; its processes end at once.

        Raises:
            ConfigError: the job has ended already.
            QueueError: the cancellation cannot be stored.
        """
        after = await self._jobs.apply(job.id, CancelledBy(self._wall_clock(), f"cancelled by {by}"))
        if isinstance(after, TransitionRefused):
            raise refused("job", after.reason, "a job that has not ended")
        if after.attempt:  # ``job`` may be from before its start
            self._units.leaving.add(after.unit)
        self._asked = True
        return after

    def find(self, number: int) -> QueuedJob | None:
        """The job with this number; None if there is none."""
        return self._jobs.find(number)

    async def ready(self) -> None:
        """Wait until the file's jobs are loaded. Raises QueueError if they cannot be loaded."""
        await self._open()

    async def rows(self, sees: Callable[[QueuedJob], bool], everything: bool, limit: int) -> list[JobRow]:
        """Jobs as rows: running and waiting jobs and, with ``everything``, ended ones, newest first."""
        await self._open()
        live, ended = list(self._jobs.live.values()), list(self._jobs.ended.values()) if everything else []
        reasons, order, now_s = self._reasons, self._order, self._wall_clock()

        def made() -> list[JobRow]:
            live.sort(key=lambda job: (not job.state.active, job.id))
            ended.sort(key=lambda job: -job.since_s)
            return [row_of(job, sees(job), reasons, order, now_s) for job in [*live, *ended][:limit]]

        return await self._in("plans", made)

    async def row(self, job: QueuedJob, sees: bool) -> JobRow:
        """One job, with its forecast."""
        now_s = self._wall_clock()
        row = row_of(job, sees, self._reasons, self._order, now_s)
        if row.detail is None or job.state.ended:
            return row
        found = await self._asked_about(lambda *known: self._planner.forecast(job, *known))
        return replace(row, detail=replace(row.detail, forecast=found))

    async def view(self, also: QueuedJob | None = None) -> QueueView:
        """The present input of a scheduling pass. ``also``: a job whose forecast is requested."""
        return await self._asked_about(lambda *known: self._planner.view(also, *known))

    async def _asked_about(self, ask: Callable[..., T]) -> T:
        """Call a function of the planner with jobs that may start, running jobs, and copper's share."""
        now_s, live, ended = self._wall_clock(), list(self._jobs.live.values()), dict(self._jobs.ended)
        capacity, active, share = self._capacity(), self._jobs.active, self.copper_share

        def asked() -> T:
            return ask(now_s, capacity, dependencies(live, ended).startable, active, share)

        return await self._in("plans", asked)

    async def log_part(self, job: QueuedJob, attempt: int, offset: int) -> tuple[bytes, int]:
        """Output of an attempt from ``offset`` on, and the offset of the next part."""
        return await self._units.log_part(job, attempt, offset)

    def slots(self, job: QueuedJob) -> tuple[int, Slots, str] | None:
        """The number of the elastic job, its slots and their file; None if it is not elastic."""
        gang = gang_of(job)
        if gang is None:
            return None
        found = slots_of(each for each in self._jobs.live.values() if gang_of(each) == gang)
        least, most = job.spec.elastic or (1, 1)
        return gang, found.get(gang, Slots(0, least, most)), self._units.slots.path(gang)

    def summary(self) -> QueueSummary:
        """A summary of the queue."""
        return QueueSummary(
            self._jobs.counts, self._problem, self._offer, self._event.status(self._wall_clock())
        )

    @property
    def copper_share(self) -> float:
        """The share of unused resources that jobs may use now."""
        return self._event.share(self._wall_clock())

    async def begin_event(
        self, duration_s: float, copper_share: float, ramp_s: float, reason: str
    ) -> EventStatus:
        """Reduce copper to a share of its offer for a time, and store the event. Raises ConfigError if that fails."""
        await self._open()
        event = CopperEvent(self._wall_clock(), duration_s, copper_share, ramp_s, reason)
        self._asked = True
        return await self._in("file", lambda: self._event.begin(event))

    async def end_event(self) -> EventStatus | None:
        """End the event: copper returns step by step. Raises ConfigError if there is none."""
        await self._open()
        now_s = self._wall_clock()
        if self._event.status(now_s) is None:
            raise refused("event", "no event is in force", "perphctl event begin starts one")
        self._asked = True
        return await self._in("file", lambda: self._event.end(now_s))

    # -- asked by the loop --------------------------------------------------------------------------------------

    def over(self, name: str, wanted: Settings) -> Settings:
        """The settings of a workload, with the planner's freezes and an event's lower CPU ceiling for copper."""
        number = next((number for number, each in self._workloads.items() if each == name), None)
        job = None if number is None else self._jobs.live.get(number)
        return wanted if job is None else self._given.over(job, wanted, self.copper_share)

    def step(self, now_s: float, samples: Mapping[str, Sample], account: HostAccount | None) -> None:
        """Run one round of the loop: record use, and begin a scheduling pass if one is due."""
        self._use.note(now_s, self._workloads, samples, account)
        self._given.round_over()
        if self._first_step_s is None:
            self._first_step_s = self._wall_clock()
        if self._closed or (self._task is not None and not self._task.done()):
            return
        if self._asked or now_s - self._looked_s >= LOOK_S or now_s < self._looked_s:
            self._looked_s = now_s
            self._task = asyncio.get_running_loop().create_task(self._guarded())

    async def settled(self) -> None:
        """Wait for the present scheduling pass to finish, for virtual time."""
        if self._task is not None:
            await self._task

    def close(self) -> None:
        """Stop the queue. Running jobs continue; the next daemon finds them."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
        file = self._jobs.closed()
        if file is not None:
            self._threads["file"].submit(file.close)
        for thread in self._threads.values():
            thread.shutdown(wait=True)

    # -- one pass -----------------------------------------------------------------------------------------------

    async def _guarded(self) -> None:
        try:
            await self.look()
        except (PerphError, OSError) as exc:
            self._problem = f"the batch queue: {exc}"
        except Exception:
            log.exception("a pass of the batch queue failed")
            self._problem = "the batch queue: a pass failed; the log has the details"
        else:
            self._problem = (
                self._planner.problem
                or self._event.problem
                or self._units.slots.problem
                or self._problem_of_start()
            )
        if self._attached is not None and not self._closed:
            self._attached.problem("queue", self._problem or None)

    def _problem_of_start(self) -> str:
        return self._problem if self._starts_paused(self._wall_clock()) else ""

    def _starts_paused(self, now_s: float) -> bool:
        """True for a moment after a failed start, also if the clock was set back since."""
        return 0.0 < self._paused_until_s - now_s <= START_PAUSE_S

    async def look(self) -> None:
        """Run one scheduling pass; see the module.

        Raises:
            QueueError: the file cannot be read or written.
            KernelError: systemd does not answer.
        """
        async with self._looking:
            await self._open()
            await self._units.found(self.find)
            await self._follow()
            now_s = self._wall_clock()
            due = self._asked or not 0 <= now_s - self._decided_s < DECIDE_S
            if due and not self._waits_for_use(now_s):
                self._asked, self._decided_s = False, now_s
                await self._carry_out(await self._decided())
            if now_s - self._forgot_s >= FORGET_S:
                self._forgot_s = now_s
                await self._forget(now_s - 3600.0 * self.config.keep_h)
            await self._units.tidied(self._jobs.active, tuple(self._jobs.live.values()))

    def _waits_for_use(self, now_s: float) -> bool:
        """True while the host's use is not measured yet: decisions wait, because it would count as 0."""
        first_s = self._first_step_s
        return first_s is not None and not self._use.measured and 0.0 <= now_s - first_s < UNMEASURED_S

    async def _follow(self) -> None:
        """Process ended units."""
        for job, event in await self._units.news(self._jobs.active, self._wall_clock()):
            if event is None:
                if job.id not in self._workloads:
                    await self._enter(job)
                continue
            after = await self._jobs.apply(job.id, event)
            if isinstance(after, TransitionRefused):
                continue  # the job was cancelled meanwhile
            if after.state.active:
                await self._enter(after)
            else:
                await self._left(job, after)
        for number in self._units.leaving_numbers & self._workloads.keys():
            await self._leave(number)
        await self._units.end_leaving()

    async def _decided(self) -> QueueStep:
        now_s = self._wall_clock()
        live, active = list(self._jobs.live.values()), self._jobs.active
        ended = dict(self._jobs.ended)
        uses, leaving, given = self._use.taken(), self._units.leaving_numbers, self._given.cpus
        preempts = self._attached is not None and any(
            self._attached.enforced(name) for name in self._workloads.values()
        )

        def made() -> tuple[QueueStep, Mapping[int, str], Mapping[int, str]]:
            self._planner.take(uses, {job.id: job for job in active}, self._capacity(), given)
            self._offer = self._planner.offer(now_s)
            found = dependencies(live, ended)
            waiting = [job for job in found.startable if job.id not in leaving]
            step = self._planner.step(now_s, self._capacity(), waiting, active, preempts, self.copper_share)
            return step, {**step.reasons, **found.blocked}, found.impossible

        step, self._reasons, impossible = await self._in("plans", made)
        self._order = step.order
        for number, reason in impossible.items():
            await self._jobs.apply(number, CancelledBy(now_s, reason))
        return step

    async def _carry_out(self, step: QueueStep) -> None:
        now_s = self._wall_clock()
        for number in step.requeue:
            job = self._jobs.live.get(number)
            if job is None:
                continue
            after = await self._jobs.apply(number, RequeuedFor(now_s, step.causes.get(number, "")))
            if not isinstance(after, TransitionRefused):
                await self._left(job, after)
        for number in step.freeze:
            await self._moved(number, FrozenFor(now_s, step.causes.get(number, "")))
        for number in step.revoke:
            await self._moved(number, FrozenFor(now_s, step.causes.get(number, ""), False))
        for number in step.thaw:
            await self._moved(number, Thawed(now_s, step.causes.get(number, "")))
        if self._starts_paused(now_s):
            return
        for number in step.start:
            if not await self._start(number, step.causes.get(number, "")):
                return

    async def _moved(self, number: int, event: FrozenFor | Thawed) -> None:
        """Freeze or thaw one job, and announce it with the reason."""
        after = await self._jobs.apply(number, event)
        if not isinstance(after, TransitionRefused):
            text = f"job {number} is {after.state}: {event.reason}"
            log.info("%s", text)
            self._tell(text, workload_name(after))

    async def _start(self, number: int, why: str) -> bool:
        """Start one job; False if no job can be started now. ``why``: reason why the job goes before others."""
        job = await self._jobs.apply(number, Started(self._wall_clock(), why, self._boot))
        if isinstance(job, TransitionRefused):
            return True
        try:
            # Its group gets the settings of other batch before its first process runs.
            await self._enter(replace(job, cgroup=await self._units.make_group(job)))
            cgroup = await self._units.start(job, tuple(self._jobs.live.values()))
        except JobRefused as exc:
            await self._leave(number)
            after = await self._jobs.apply(number, Exited(self._wall_clock(), REFUSED_STATUS, str(exc)))
            self._tell(f"job {number} cannot be started: {exc}")
        except StartFailed as exc:
            await self._leave(number)
            after = await self._jobs.apply(number, NeverStarted(self._wall_clock(), str(exc)))
            self._paused_until_s = self._wall_clock() + START_PAUSE_S
            self._problem = f"the batch queue starts nothing: {exc}"
            self._reasons = {**self._reasons, number: str(exc)}
            return False
        else:
            after = await self._jobs.apply(number, Confirmed(self._wall_clock(), why, cgroup))
        if not isinstance(after, TransitionRefused) and after.state.active:
            await self._in("plans", lambda: self._planner.started(after))
            await self._enter(after)
            self._tell(f"job {number} was started{f': {why}' if why else ''}", workload_name(after))
        return True

    async def _left(self, job: QueuedJob, after: QueuedJob) -> None:
        """End the present attempt of ``job``; ``after`` is the job as stored."""
        await self._leave(job.id)
        await self._units.end(job.unit)
        now_s = self._wall_clock()
        await self._in("plans", lambda: self._planner.ended(after, now_s))
        status = "" if after.status is None else f", status {after.status}"
        text = f"job {job.id} is {after.state}{status}{f': {after.reason}' if after.reason else ''}"
        if after.state is JobState.REQUEUED:
            log.info("%s", text)
        self._tell(text)
        self._asked = True

    async def _enter(self, job: QueuedJob) -> None:
        """Hand a running job to the control loop."""
        if self._attached is None or not job.cgroup or job.id in self._workloads:
            return
        self._workloads[job.id] = workload_name(job)
        await self._attached.add(workload_of(job))

    async def _leave(self, number: int) -> None:
        name = self._workloads.pop(number, None)
        if name is not None and self._attached is not None:
            await self._attached.let_go(name)

    async def _forget(self, before_s: float) -> None:
        for number in await self._jobs.forget(before_s):
            await self._units.forget(number)

    async def _open(self) -> None:
        """Read the file."""
        async with self._opening:
            if self._jobs.is_open:
                return
            if self._closed:
                raise QueueError("the daemon is stopping")
            await self._jobs.open(await self._in("file", self._prepare))
            waits = await self._jobs.waits()
            await self._in("plans", lambda: self._planner.remember(waits))

    def _prepare(self) -> int:
        """Create the folders and read the event; returns the greatest number of a job with a log, for new numbers."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            used = self._units.prepare()
        except OSError as exc:
            raise QueueError(f"{exc.filename}: the queue cannot be stored: {exc.strerror}") from exc
        self._event.read(self._wall_clock())
        return used

    def _in(self, thread: str, call: Callable[[], T]) -> Awaitable[T]:
        return asyncio.get_running_loop().run_in_executor(self._threads[thread], call)

    # -- shown --------------------------------------------------------------------------------------------------

    def announce(self, text: str, by: Actor) -> None:
        """Announce a request."""
        if self._attached is not None:
            self._attached.tell(text, by=by)

    def _tell(self, text: str, workload: str = "") -> None:
        if self._attached is not None:
            self._attached.tell(text, workload)
