"""Events that the agent announces as they happen: the lines of the event stream."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from perphd.domain.decision import Decision, Outcome
from perphd.domain.plan import ChangeSet


class EventKind(StrEnum):
    """Kinds of events."""

    TICK = "tick"  # one iteration of the control loop ended
    DECISION = "decision"  # an LRA's protection was decided (``detail``: Decision)
    OUTCOME = "outcome"  # an earlier decision was evaluated (``detail``: Outcome)
    CHANGE = "change"  # kernel files were written, or would have been (``detail``: ChangeSet)
    MODE = "mode"  # observe or enforce was set
    TRIAL = "trial"  # a trial began, entered its next block, or ended
    PAUSE = "pause"  # a pause began or ended
    WORKLOAD = "workload"  # a workload was added, removed, appeared or vanished
    JOB = "job"  # a job of the batch queue started or ended
    SIZING = "sizing"  # the shaper reclaimed memory from a workload or let it resume; or a crash was observed
    RESTORE = "restore"  # original values were restored
    HOST = "host"  # the host itself changed, e.g. CPU hotplug
    RELOAD = "reload"  # the configuration was read again
    PROBLEM = "problem"  # a condition on which an operator should act


@dataclass(frozen=True, slots=True)
class Event:
    """One event.

    ``at_s``: monotonic time. ``text``: one sentence. ``workload``: empty if the event concerns the whole host.
    ``by``: the user or program that requested the change; empty if nobody requested it.
    """

    at_s: float
    kind: EventKind
    text: str
    workload: str = ""
    detail: Decision | Outcome | ChangeSet | None = None
    by: str = ""
