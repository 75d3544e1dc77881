"""Jobs of the batch queue: their specification, states and transitions.

    queued ----> waiting ----> running <---> frozen
      |             |          |  |  ^         |
      |             |          |  |  |         v
      |             |          |  +--------> requeued ---> waiting, running
      v             v          v
    cancelled   cancelled   done, failed, cancelled

A start has two steps. ``Started`` is stored before the unit is started, and names it. ``Confirmed`` follows
when the unit runs. After a crash in between, the unit's name shows whether the job ran, and ``recovery``
turns that evidence into an event. If it is unknown whether a job ran, the job fails and is never started a
second time.

A preemption freezes a job and may requeue it later; its work is then lost. Each preemption begins a backoff
in which the job is not preempted again. The backoff doubles with every preemption, from 5 minutes to 6 hours.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, TypeAlias

from perphd.domain.backoff import BackoffRule
from perphd.qos.bands import QosBand

PREEMPTION_BACKOFF: Final = BackoffRule(300.0, 6 * 3600.0)
MAX_NAME: Final = 128


class JobState(StrEnum):
    """The state of a job."""

    QUEUED = "queued"  # accepted, not yet considered
    WAITING = "waiting"  # considered; its reason says why it does not run
    RUNNING = "running"
    FROZEN = "frozen"  # preempted, its memory kept
    REQUEUED = "requeued"  # stopped, failed or never started; will start again
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """True if no further transition is possible."""
        return self in _ENDED

    @property
    def active(self) -> bool:
        """True if the job has a unit."""
        return self in (JobState.RUNNING, JobState.FROZEN)


_ENDED: Final = frozenset({JobState.DONE, JobState.FAILED, JobState.CANCELLED})
STARTABLE: Final = frozenset({JobState.QUEUED, JobState.WAITING, JobState.REQUEUED})


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A submitted job. ``deadline_s`` is on the system's clock (seconds since 1970); None: best effort.

    ``groups``: supplementary groups. ``elastic``: minimum and maximum number of workers of an elastic job.
    ``after``: jobs that must be done before this one starts. ``retries``: number of restarts after failures.
    ``limited``: ``memory_bytes`` is also an upper limit. ``array``: the job's index in its array, and the array's
    size. ``output``: the file to which the job's output is appended; empty: perphd keeps the output.
    ``hints``: the job reads backoff hints.
    """

    name: str
    command: tuple[str, ...]
    uid: int
    gid: int
    directory: str
    cpus: float
    memory_bytes: int
    environment: tuple[tuple[str, str], ...] = ()
    band: QosBand = QosBand.COPPER
    deadline_s: float | None = None
    elastic: tuple[int, int] | None = None
    after: tuple[int, ...] = ()
    retries: int = 0
    groups: tuple[int, ...] = ()
    limited: bool = False
    array: tuple[int, int] | None = None
    output: str = ""
    hints: bool = False

    def __post_init__(self) -> None:
        texts = (
            *self.command,
            self.name,
            self.directory,
            self.output,
            *(text for pair in self.environment for text in pair),
        )
        if not self.command or not self.command[0]:
            raise ValueError("the command of a job is empty; it must begin with a program")
        if any("\0" in text for text in texts):
            raise ValueError(
                "the command, name, folder, output and environment of a job must not contain NUL"
            )
        if not self.name or len(self.name) > MAX_NAME or "\n" in self.name:
            raise ValueError(f"the name of a job must be one line of 1 to {MAX_NAME} characters")
        if not self.cpus > 0 or not self.memory_bytes > 0:
            raise ValueError("a job must request more than 0 CPUs and more than 0 bytes of memory")
        if self.band not in (QosBand.COPPER, QosBand.SILVER):
            raise ValueError(f"a job must be copper or silver, not {self.band}")
        if self.elastic is not None and not 1 <= self.elastic[0] <= self.elastic[1]:
            raise ValueError(
                "an elastic job needs a minimum of at least 1 worker, and a maximum that is not below the minimum"
            )
        if self.retries < 0:
            raise ValueError(f"the number of retries is {self.retries}; it must not be negative")
        if any(not name or "=" in name for name, _ in self.environment):
            raise ValueError("the name of an environment variable must not be empty or contain =")


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """One job with its history. Times are on the system's clock, in seconds since 1970.

    ``attempt`` counts starts. ``failures`` counts attempts that ended with a status other than 0 or with a restart
    of the host. ``ran_s`` is the run time of the present attempt up to ``since_s``, and ``lost_s`` that of earlier
    attempts whose work was lost. ``boot`` is the kernel's boot id at the last start, and ``cgroup`` the control group
    of the present attempt, once known.
    """

    id: int
    spec: JobSpec
    submitted_s: float
    state: JobState = JobState.QUEUED
    since_s: float = 0.0
    reason: str = ""
    attempt: int = 0
    confirmed: bool = False
    failures: int = 0
    status: int | None = None
    ran_s: float = 0.0
    lost_s: float = 0.0
    preemptions: int = 0
    not_preempted_before_s: float = 0.0
    boot: str = ""
    cgroup: str = ""

    @property
    def unit(self) -> str:
        """Name of the transient unit of the present attempt; contains no text chosen by the user."""
        return f"perphd-job-{self.id}-{self.attempt}.service"

    def has_run_s(self, now_s: float) -> float:
        """Run time of the present attempt at ``now_s``, in seconds."""
        return self.ran_s + (max(0.0, now_s - self.since_s) if self.state is JobState.RUNNING else 0.0)


_UNIT: Final = re.compile(r"perphd-job-([0-9]+)-([0-9]+)\.service")


def attempt_of(unit: str) -> tuple[int, int] | None:
    """The job and the attempt that a unit name denotes; None if it is not a job's unit."""
    found = _UNIT.fullmatch(unit)
    return None if found is None else (int(found[1]), int(found[2]))


@dataclass(frozen=True, slots=True)
class Considered:
    """The planner considered the job and did not start it."""

    at_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class Started:
    """The job is about to start as its next attempt, in the boot with this id."""

    at_s: float
    reason: str = ""
    boot: str = ""


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The unit of the present attempt runs in this control group."""

    at_s: float
    reason: str = ""
    cgroup: str = ""


@dataclass(frozen=True, slots=True)
class FrozenFor:
    """The job was frozen. ``preempted``: False for an elastic worker, which has no claim to its slot."""

    at_s: float
    reason: str
    preempted: bool = True


@dataclass(frozen=True, slots=True)
class Thawed:
    """The job continues after a freeze."""

    at_s: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RequeuedFor:
    """The job was stopped to run again later.

    ``preempted``: it makes room for another job, which is allowed only after its backoff.
    """

    at_s: float
    reason: str
    preempted: bool = True


@dataclass(frozen=True, slots=True)
class Exited:
    """The job's processes ended. ``status``: the exit status, or 128 plus the number of the signal that killed it."""

    at_s: float
    status: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class CancelledBy:
    """A user or an administrator cancelled the job."""

    at_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class NeverStarted:
    """The present attempt was stored, but its unit never started."""

    at_s: float
    reason: str = "the daemon ended before the unit started"


@dataclass(frozen=True, slots=True)
class Lost:
    """The fate of the present attempt is unknown. ``again``: it has certainly ended, so a retry is allowed."""

    at_s: float
    reason: str = "it is unknown how the job ended"
    again: bool = False


JobEvent: TypeAlias = (
    Considered
    | Started
    | Confirmed
    | FrozenFor
    | Thawed
    | RequeuedFor
    | Exited
    | CancelledBy
    | NeverStarted
    | Lost
)


@dataclass(frozen=True, slots=True)
class TransitionRefused:
    """A refused transition: the unchanged job and the reason."""

    job: QueuedJob
    reason: str


def after(job: QueuedJob, event: JobEvent) -> QueuedJob | TransitionRefused:
    """The job after the event, or the reason why the event cannot happen."""
    refusal = _refusal(job, event)
    if refusal:
        return TransitionRefused(job, f"job {job.id} is {job.state}: {refusal}")
    ran_s = job.ran_s
    if job.state is JobState.RUNNING and not isinstance(event, Confirmed):
        ran_s += max(0.0, event.at_s - job.since_s)
    known = replace(job, since_s=event.at_s, reason=event.reason, ran_s=ran_s)
    match event:
        case Considered():
            return replace(known, state=JobState.WAITING)
        case Started():
            started = replace(known, state=JobState.RUNNING, attempt=job.attempt + 1, confirmed=False)
            return replace(started, ran_s=0.0, status=None, boot=event.boot, cgroup="")
        case Confirmed():
            since_s = job.since_s if job.confirmed else event.at_s
            return replace(known, confirmed=True, since_s=since_s, cgroup=event.cgroup or job.cgroup)
        case FrozenFor():
            frozen = replace(known, state=JobState.FROZEN)
            return _preempted(frozen, event.at_s) if event.preempted else frozen
        case Thawed():
            return replace(known, state=JobState.RUNNING)
        case RequeuedFor():
            again = _preempted(known, event.at_s) if _new_preemption(job, event) else known
            return _again(again)
        case Exited():
            return _exited(known, event)
        case CancelledBy():
            return replace(known, state=JobState.CANCELLED)
        case NeverStarted():
            return replace(known, state=JobState.REQUEUED, attempt=job.attempt - 1, ran_s=0.0)
        case Lost():
            return _failed(known) if event.again else replace(known, state=JobState.FAILED)


def _refusal(job: QueuedJob, event: JobEvent) -> str:
    """Why ``event`` cannot happen to ``job``; empty if it can."""
    if job.state.ended:
        return "no further change is possible"
    match event:
        case Considered() | Started():
            return "" if job.state in STARTABLE else "it has been started"
        case Confirmed() | Exited():
            return "" if job.state.active else "it has not been started"
        case FrozenFor():
            if job.state is not JobState.RUNNING:
                return "only a running job can be frozen"
            return _backoff(job, event.at_s) if event.preempted else ""
        case Thawed():
            return "" if job.state is JobState.FROZEN else "only a frozen job can be thawed"
        case RequeuedFor():
            if not job.state.active:
                return "it has not been started"
            return _backoff(job, event.at_s) if _new_preemption(job, event) else ""
        case NeverStarted():
            unconfirmed = job.state is JobState.RUNNING and not job.confirmed
            return "" if unconfirmed else "it is known to have started"
        case Lost():
            return "" if job.state.active else "it has not been started"
        case CancelledBy():
            return ""


def _backoff(job: QueuedJob, at_s: float) -> str:
    """Why ``job`` may not be preempted at ``at_s``; empty if it may. Silver is never preempted."""
    if job.spec.band.protected:
        return f"a {job.spec.band} job is never preempted"
    wait_s = job.not_preempted_before_s - at_s
    return f"it was preempted before and is protected for another {wait_s:.0f} s" if wait_s > 0 else ""


def _new_preemption(job: QueuedJob, event: RequeuedFor) -> bool:
    """False for a frozen job: freezing it was the preemption."""
    return event.preempted and job.state is JobState.RUNNING


def _preempted(job: QueuedJob, at_s: float) -> QueuedJob:
    backoff_s = PREEMPTION_BACKOFF.nth(job.preemptions)
    return replace(job, preemptions=job.preemptions + 1, not_preempted_before_s=at_s + backoff_s)


def _again(job: QueuedJob) -> QueuedJob:
    return replace(job, state=JobState.REQUEUED, lost_s=job.lost_s + job.ran_s, ran_s=0.0)


def _exited(job: QueuedJob, event: Exited) -> QueuedJob:
    job = replace(job, status=event.status)
    if event.status == 0:
        return replace(job, state=JobState.DONE)
    return _failed(job)


def _failed(job: QueuedJob) -> QueuedJob:
    """Count a failure; the job starts again while retries are left."""
    failed = replace(job, failures=job.failures + 1)
    return _again(failed) if failed.failures <= job.spec.retries else replace(failed, state=JobState.FAILED)


class UnitEvidence(StrEnum):
    """Evidence about a job's unit when the daemon starts."""

    RUNS = "runs"
    ENDED = "ended"  # its exit status is known
    NEVER_STARTED = (
        "never started"  # it left no trace since the boot or login in which it should have started
    )
    UNKNOWN = "unknown"


def recovery(
    job: QueuedJob, evidence: UnitEvidence, at_s: float, status: int = 0, boot: str = ""
) -> JobEvent | None:
    """The event that updates ``job`` after a restart; None if there is none. ``boot``: the present boot's id."""
    if not job.state.active:
        return None
    if job.boot != boot:
        return Lost(at_s, "the host was restarted while it ran", again=True)
    match evidence:
        case UnitEvidence.RUNS:
            return None if job.confirmed else Confirmed(at_s, "found running after a restart")
        case UnitEvidence.ENDED:
            return Exited(at_s, status, "ended while the daemon was not running")
        case UnitEvidence.NEVER_STARTED if not job.confirmed and job.state is JobState.RUNNING:
            return NeverStarted(at_s)
        case _:
            return Lost(at_s)
