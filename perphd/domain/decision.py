"""Everything that decided, as records: stored, streamed and shown by ``perphctl explain``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from perphd.domain.allocation import Allocation
from perphd.domain.reading import Reading
from perphd.domain.workload import Mode


class Health(StrEnum):
    """The detector's verdict on an LRA."""

    HEALTHY = "healthy"
    SUSPECT = "suspect"
    DEGRADED = "degraded"
    OVERPROVISIONED = "overprovisioned"
    UNKNOWN = "unknown"


TROUBLED: Final = frozenset({Health.SUSPECT, Health.DEGRADED})
"""Below what is expected of it, or perhaps."""


class Cause(StrEnum):
    """Which resource is contended, as far as it can be told."""

    CPU = "cpu"  # its threads wait for a processor: the run-queue
    SMT = "smt"  # they run beside busy hyperthreads
    MEMORY = "memory"
    LLC = "llc"
    MBW = "mbw"
    IO = "io"  # disks
    STORAGE = "storage"  # what serves its I/O is slow, and nobody else on this host keeps it busy
    NETWORK = "network"
    THROTTLED = "throttled"  # its own CPU limit holds it back
    NEIGHBOUR = "neighbour"  # work that nobody declared uses the CPUs
    HYPERVISOR = "hypervisor"  # CPU time is stolen from this virtual machine
    SELF = "self"  # it is asked for more than the host can do; nobody else is in the way
    REMOTE = "remote"  # nothing of this host explains it: what the application itself waits for is slower
    UNKNOWN = "unknown"
    NONE = "none"


class Action(StrEnum):
    """What a decision does to an LRA's protection."""

    HOLD = "hold"  # nothing
    GROW = "grow"  # more protection
    SHRINK = "shrink"  # one step back to batch
    EXPLORE = "explore"  # a step that the model cannot judge yet, tried because the target is missed
    ROLLBACK = "rollback"  # the last change did not help
    RELEASE = "release"  # nothing is left to protect against: everything as found


AWAITED: Final = "events"
"""The signal of the evidence that says what a judgement waits for."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One signal that was looked at: what was seen, what was expected, and in words what follows."""

    signal: str
    observed: Reading
    expected: Reading
    unit: str
    text: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """Health with its reasons. ``since_s``: monotonic time at which this health began."""

    health: Health
    cause: Cause
    since_s: float
    evidence: tuple[Evidence, ...]
    culprit: str | None = None


@dataclass(frozen=True, slots=True)
class Prediction:
    """A model's answer for one allocation: performance score with a band.

    The score is performance divided by its target (work / target work, or target delay / delay, the worse
    of both): >= 1 meets the target. ``support``: effective number of samples that speak for it near here.
    """

    score: float
    lower: float
    upper: float
    support: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """The score by which a candidate was ranked, where a rule and not the model alone gave it. No band.

    ``score``: as in ``Prediction``; ``basis``: the rule, in words.
    """

    score: float
    basis: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """An allocation that was considered. ``batch_cores_lost``: what it costs batch, in CPUs of work per second.

    ``prediction``: the model's own answer, None where no model was asked; ``estimate``: what was used instead of it.
    """

    allocation: Allocation
    prediction: Prediction | None
    batch_cores_lost: float
    verdict: str
    estimate: Estimate | None = None

    @property
    def score(self) -> float:
        """The score by which it was ranked; NaN if it was not."""
        if self.estimate is not None:
            return self.estimate.score
        return self.prediction.score if self.prediction is not None else math.nan


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision about one LRA, complete enough to explain and to replay.

    ``mode``: that of the LRA when it was decided; None where the policy was asked outside of the daemon.
    """

    at_s: float
    workload: str
    verdict: Verdict
    action: Action
    target_work: Reading
    target_delay: Reading
    current: Allocation
    chosen: Allocation
    candidates: tuple[Candidate, ...]
    reason: str
    policy: str
    mode: Mode | None = None


def target_reachable(decision: Decision) -> bool | None:
    """Whether any setting that was considered is predicted to meet a missed target.

    None while the target is kept, or while nothing was compared.
    """
    if decision.verdict.health is not Health.DEGRADED or not decision.candidates:
        return None
    return any(item.score >= 1.0 for item in decision.candidates)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a decision, judged after the settle time: scores before and after, kept or rolled back."""

    at_s: float
    workload: str
    decided_at_s: float
    score_before: Reading
    score_after: Reading
    kept: bool
    text: str


@dataclass(frozen=True, slots=True)
class Aftermath:
    """What followed a decision: what was written ("path: before -> after") and with what result, and what came of it.

    ``written`` is empty where nothing was, ``outcome`` None while nothing was judged (or nothing is remembered).
    """

    decided_at_s: float
    written: tuple[str, ...] = ()
    result: str = ""
    outcome: Outcome | None = None
