"""What the agent announces as it happens: the lines of the event stream."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from perphd.domain.decision import Decision, Outcome
from perphd.domain.plan import ChangeSet


class EventKind(StrEnum):
    """What happened."""

    TICK = "tick"  # one round of the loop ended
    DECISION = "decision"  # an LRA's protection was decided anew (``detail``: Decision)
    OUTCOME = "outcome"  # an earlier decision was judged (``detail``: Outcome)
    CHANGE = "change"  # kernel files were written, or would have been (``detail``: ChangeSet)
    MODE = "mode"  # observe or enforce was set
    TRIAL = "trial"  # a trial began, went on to its next block, or ended
    PAUSE = "pause"  # a pause began or ended
    WORKLOAD = "workload"  # a workload was added, removed, appeared or vanished
    JOB = "job"  # a job of the batch queue was started, or ended
    SIZING = "sizing"  # the shaper made somebody make room, or let it resume; a crash was seen
    RESTORE = "restore"  # original values were put back
    HOST = "host"  # the host itself changed: CPUs came or went
    RELOAD = "reload"  # the configuration was read again
    PROBLEM = "problem"  # something that an operator should read


@dataclass(frozen=True, slots=True)
class Event:
    """One announcement. ``at_s`` is monotonic; ``text`` is a sentence; ``workload`` empty: the host's.

    ``by``: who asked for it; empty where nobody did.
    """

    at_s: float
    kind: EventKind
    text: str
    workload: str = ""
    detail: Decision | Outcome | ChangeSet | None = None
    by: str = ""
