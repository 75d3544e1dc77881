"""Plans for the batch queue: keeps measured use, and asks the history of jobs.

Only one thread at a time may use a planner.
"""

from __future__ import annotations

import pwd
import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from perphd.agent.queue.calibration import KeptCalibration
from perphd.agent.queue.given import GivenCpus
from perphd.agent.queue.solver import QueueSolver
from perphd.batch.admission import EPSILON_SOFT
from perphd.batch.choice import candidates
from perphd.batch.gangs import led
from perphd.batch.job import JobState, QueuedJob
from perphd.batch.look import BANDWIDTH, CPU, DISK, MEMORY, JobOutlook, QueueStep, QueueView
from perphd.batch.observations import JobUse, Observations
from perphd.batch.outlook import forecast_of
from perphd.batch.scheduling import scheduled
from perphd.batch.view import JobForecast
from perphd.batch.work import LEAST_SCORED, WorkKind, WorkOutlook, error_share
from perphd.config.tables import ForecastConfig, QueueConfig
from perphd.domain.errors import PerphError
from perphd.domain.job import HISTORY_FILE
from perphd.domain.queue import CopperOffer
from perphd.domain.reading import Unavailable
from perphd.forecast.histogram import Histogram
from perphd.forecast.history.features import JobDescription
from perphd.forecast.history.store import JobHistory, JobPrediction, Quantity
from perphd.qos.bands import MEMORY_LIMIT_RATIO
from perphd.qos.offers import FollowedOffer, followed, shown, with_use

MEMORY_SHARE: Final = 0.95
"""Share of the host's memory that jobs and everything else may use together."""
LEAST_OTHERS_SHARE: Final = MEMORY_SHARE - MEMORY_LIMIT_RATIO
"""Minimum share of the host's memory that counts as used by everything else.

It keeps jobs from getting more than copper may use.
"""
ASKED: Final = (
    Quantity.RUN_TIME_S,
    Quantity.ENOUGH_CORES,
    Quantity.MEMORY_BYTES,
    Quantity.ENOUGH_BYTES_PER_S,
    Quantity.ENOUGH_DISK_BYTES_PER_S,
)
"""Quantities that an outlook needs from the history."""
ASKED_OF_WORK: Final = (Quantity.CPU_TIME_S, Quantity.INSTRUCTIONS, Quantity.WORK_ERROR_SHARE)
"""Quantities that an outlook needs beside ``ASKED`` if the history knows the job's run time."""
WAITS: Final = 100
"""Number of most recently started jobs over which the wait is averaged."""
HISTORY_ROWS: Final = ForecastConfig().history_rows
PRUNED_EVERY: Final = 100
"""Number of recorded jobs after which the history is pruned. Each of them adds at most 200 rows."""
CYCLE_S: Final = 10.0
"""Cycle in seconds: the expected end of a job that outlasts its prediction moves by 1, 2, 4, 8 ... cycles."""


@dataclass(frozen=True, slots=True)
class PlannedUse:
    """Use measured over a few seconds, by resource: that of everything except jobs, and that of each job by number."""

    seconds: float
    others: Mapping[str, float]
    jobs: Mapping[int, Mapping[str, float]]


class QueuePlanner:
    """Decides for the queue. ``state_dir``: directory with the history of jobs; ``folder``: the queue's folder.

    ``history_rows``: number of rows that the history keeps; 0: jobs are not recorded.
    """

    def __init__(
        self, config: QueueConfig, state_dir: Path, folder: Path, history_rows: int = HISTORY_ROWS
    ) -> None:
        self._config, self._path = config, state_dir / HISTORY_FILE
        self._history_rows, self._recorded = history_rows, 0
        self._epsilon = {CPU: config.cpu_risk, MEMORY: config.memory_risk, BANDWIDTH: EPSILON_SOFT}
        bandwidth = float(config.memory_bandwidth_bytes)
        self._shared = {BANDWIDTH: bandwidth} if bandwidth > 0 else {}
        self._kept = KeptCalibration(folder)
        self._observed = Observations(self._kept.read())
        self._outlooks: dict[tuple[object, ...], JobOutlook] = {}
        self._waits: list[float] = []
        self._given = GivenCpus({})
        self._disk_most = 0.0
        """The most bytes that the host's disks moved per second since this daemon started."""
        self._solver = QueueSolver()
        self._offer: FollowedOffer | None = None
        self._problem = ""

    @property
    def problem(self) -> str:
        """Sentences for an operator; empty if there is no problem."""
        return self._problem or self._kept.problem

    def offer(self, now_s: float) -> CopperOffer | None:
        """Copper's offer for the next minutes; None before the first measurement."""
        return None if self._offer is None else shown(self._offer, now_s)

    def take(
        self,
        uses: Sequence[PlannedUse],
        active: Mapping[int, QueuedJob],
        capacity: tuple[float, float],
        given: GivenCpus | None = None,
    ) -> None:
        """Add the measurements since the last scheduling pass. ``given``: CPUs in force for running jobs."""
        self._given = given or GivenCpus({})
        for use in uses:
            self._offer = with_use(
                self._offer or followed(*capacity), use.seconds, use.others.get(CPU), use.others.get(MEMORY)
            )
            for resource, used in use.others.items():
                least = LEAST_OTHERS_SHARE * capacity[1] if resource == MEMORY else 0.0
                self._observed.see_others(resource, max(least, used), use.seconds)
            moved = use.others.get(DISK, 0.0) + sum(known.get(DISK, 0.0) for known in use.jobs.values())
            self._disk_most = max(self._disk_most, moved)
            for number, known in use.jobs.items():
                job = active.get(number)
                if job is None or job.state is not JobState.RUNNING:
                    continue
                stands = number in self._given.standing
                self._observed.see(job, use.seconds, known, self._outlook(job, job.since_s), stands)

    def step(
        self,
        now_s: float,
        capacity: tuple[float, float],
        waiting: Sequence[QueuedJob],
        active: Sequence[QueuedJob],
        preempts: bool,
        copper_share: float,
    ) -> QueueStep:
        """Decide what to start, freeze or requeue in this scheduling pass.

        ``capacity``: the host's CPUs, and its memory in bytes.
        """
        considered, together, workers = led(waiting)
        view = self.view(None, now_s, capacity, considered, active, copper_share, preempts)
        if workers or together:
            outlooks = dict(view.outlooks) | {job.id: self._outlook(job, now_s) for job in workers}
            view = replace(view, together=together, workers=workers, outlooks=outlooks)
        step = scheduled(view, lambda *problem: self._solver.improved(now_s, *problem))
        self._observed.decided(step.expected)
        return step

    def forecast(
        self,
        job: QueuedJob,
        now_s: float,
        capacity: tuple[float, float],
        waiting: Sequence[QueuedJob],
        active: Sequence[QueuedJob],
        copper_share: float,
    ) -> JobForecast | Unavailable:
        """Forecast when the job will start and end. ``waiting``: all jobs that may start."""
        view = self.view(job, now_s, capacity, waiting, active, copper_share)
        return forecast_of(view, job.id, lambda each: self._outlook(each, now_s))

    def started(self, job: QueuedJob) -> None:
        """Note that a job began to run; its first start adds its wait to the average."""
        if job.attempt == 1:
            self._waits = [*self._waits[1 - WAITS :], max(0.0, job.since_s - job.submitted_s)]

    def remember(self, waits: Sequence[tuple[float, float]]) -> None:
        """Set the waits of jobs that started before this daemon: start and submission of each, in order of starts."""
        self._waits = [max(0.0, at_s - since_s) for at_s, since_s in waits[-WAITS:]]

    def ended(self, job: QueuedJob, now_s: float) -> None:
        """Learn from a job that completed; discard the measurements of one that failed or was cancelled."""
        seen = self._observed.forget(job, job.state is JobState.DONE)
        self._kept.write(self._observed.calibration)
        if job.state is not JobState.DONE or not self._history_rows:
            return
        took = {Quantity.RUN_TIME_S: job.ran_s}
        if seen is not None:
            cpus, memory = seen.seen[CPU], seen.seen[MEMORY]
            if cpus.count:
                took[Quantity.ENOUGH_CORES] = cpus.most
            if memory.count:
                took[Quantity.MEMORY_BYTES] = memory.most
            if (traffic := seen.seen[BANDWIDTH]).count:
                took[Quantity.ENOUGH_BYTES_PER_S] = traffic.most
            if (disk := seen.seen[DISK]).count:
                took[Quantity.ENOUGH_DISK_BYTES_PER_S] = disk.most
            took |= _work_of(seen, job.ran_s)
        try:
            with JobHistory(self._path) as history:
                history.complete(facts_of(job, now_s), took, now_s)
                self._recorded += 1
                if self._recorded % PRUNED_EVERY == 1:
                    history.prune(self._history_rows)
        except (PerphError, sqlite3.Error, ValueError) as exc:
            self._problem = f"the history does not learn from job {job.id}: {exc}"
        else:
            self._problem = ""
        self._outlooks.clear()

    def view(
        self,
        also: QueuedJob | None,
        now_s: float,
        capacity: tuple[float, float],
        waiting: Sequence[QueuedJob],
        active: Sequence[QueuedJob],
        copper_share: float,
        preempts: bool = False,
    ) -> QueueView:
        """The input of a scheduling pass. ``also``: a job whose outlook is included even if the pass would not
        consider the job.
        """
        running = [
            self._observed.active(job, self._outlook(job, now_s), now_s, CYCLE_S, self._given.of(job.id))
            for job in active
        ]
        average_s = sum(self._waits) / len(self._waits) if self._waits else 0.0
        view = QueueView(
            now_s=now_s,
            cpus=capacity[0],
            memory_bytes=MEMORY_SHARE * capacity[1],
            waiting=waiting,
            active=running,
            outlooks={},
            others_cpus=self._observed.others[CPU].whole,
            others_memory=self._observed.others[MEMORY].whole,
            average_wait_s=average_s,
            epsilon=self._epsilon,
            most_running=self._config.most_running,
            preempts=preempts,
            copper_share=copper_share,
            calibration=self._observed.calibration,
            shared=self._shared,
            others_shared={name: self._observed.others[name].whole for name in (*self._shared, DISK)},
            earlier=self._observed.earlier,
            batch_cpus=self._given.batch,
        )
        tried = {job.id: job for job in candidates(view)}
        tried |= {} if also is None else {also.id: also}
        outlooks = {number: self._outlook(job, now_s) for number, job in tried.items()}
        outlooks |= {each.job.id: each.outlook for each in running}
        return replace(view, outlooks=outlooks, scored=self._disks(outlooks.values()))

    def _disks(self, outlooks: Iterable[JobOutlook]) -> dict[str, float]:
        """Capacity of the disks: the highest known rate of all disks or of one job; empty if unknown."""
        known = [disk.most for each in outlooks if (disk := each.of(DISK)).count]
        most = max([self._disk_most, *known])
        return {DISK: most} if most > 0 else {}

    def _outlook(self, job: QueuedJob, now_s: float) -> JobOutlook:
        """The history's predictions for jobs like ``job``."""
        facts = facts_of(job, now_s)
        key = (facts.user, facts.name, facts.argv, facts.requested_cores, facts.requested_bytes, facts.hour)
        known = self._outlooks.get(key)
        if known is None:
            known = self._outlooks[key] = self._asked(facts)
        return known

    def _asked(self, facts: JobDescription) -> JobOutlook:
        if not self._path.exists():
            return JobOutlook()
        try:
            with JobHistory(self._path) as history:
                found = _predicted(history, facts, ASKED)
                if Quantity.RUN_TIME_S in found:
                    found |= _predicted(history, facts, ASKED_OF_WORK)
        except (PerphError, sqlite3.Error, ValueError) as exc:
            self._problem = f"the history of jobs cannot be read: {exc}"
            return JobOutlook()
        law = {quantity: each.distribution for quantity, each in found.items()}
        return JobOutlook(
            law.get(Quantity.RUN_TIME_S, Histogram()),
            law.get(Quantity.ENOUGH_CORES, Histogram()),
            law.get(Quantity.MEMORY_BYTES, Histogram()),
            {
                BANDWIDTH: law.get(Quantity.ENOUGH_BYTES_PER_S, Histogram()),
                DISK: law.get(Quantity.ENOUGH_DISK_BYTES_PER_S, Histogram()),
            },
            _works(found),
        )


def _predicted(
    history: JobHistory, facts: JobDescription, asked: Sequence[Quantity]
) -> dict[Quantity, JobPrediction]:
    """The predictions that the history has."""
    found = ((quantity, history.predict(facts, quantity)) for quantity in asked)
    return {quantity: each for quantity, each in found if each is not None}


def _work_of(seen: JobUse, ran_s: float) -> dict[Quantity, float]:
    """The work of a completed job, as far as it is known, and the accuracy of the run time predicted from it."""
    kinds = {Quantity.CPU_TIME_S: WorkKind.CPU_TIME, Quantity.INSTRUCTIONS: WorkKind.INSTRUCTIONS}
    done = {quantity: seen.done.of(kind, ran_s) for quantity, kind in kinds.items()}
    took = {quantity: each[0] for quantity, each in done.items() if each is not None and each[0] > 0.0}
    share = error_share(seen.predicted, ran_s)
    return took if share is None else took | {Quantity.WORK_ERROR_SHARE: share}


def _works(found: Mapping[Quantity, JobPrediction]) -> tuple[WorkOutlook, ...]:
    """The work of similar jobs: instructions first, because contention does not change their number."""
    run, cores = found.get(Quantity.RUN_TIME_S), found.get(Quantity.ENOUGH_CORES)
    cpu = found.get(Quantity.CPU_TIME_S)
    if run is None or cpu is None or not run.estimate > 0.0:
        return ()
    scored = found.get(Quantity.WORK_ERROR_SHARE)
    share = None if scored is None or scored.distribution.count < LEAST_SCORED else scored.estimate
    cpus = cpu.estimate / run.estimate
    peak = max(cpus, cores.estimate) if cores is not None else cpus
    kinds = ((WorkKind.INSTRUCTIONS, found.get(Quantity.INSTRUCTIONS)), (WorkKind.CPU_TIME, cpu))
    return tuple(
        WorkOutlook(kind, each.distribution, each.estimate / run.estimate, cpus, peak, share)
        for kind, each in kinds
        if each is not None and each.estimate > 0.0
    )


def facts_of(job: QueuedJob, now_s: float) -> JobDescription:
    """The job's features in the history, equal for all jobs of an array."""
    spec = job.spec
    name = spec.name if spec.array is None else spec.name.removesuffix(f"[{spec.array[0]}]")
    return JobDescription(
        user_name(spec.uid),
        "",
        name,
        spec.command,
        spec.cpus,
        float(spec.memory_bytes),
        time.localtime(now_s).tm_hour,
    )


def user_name(uid: int) -> str:
    """The user's name, or the user's number if there is no name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
