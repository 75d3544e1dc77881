"""Decisions and their evidence: stored, streamed and shown by ``perphctl explain``."""

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
"""Health values of an LRA that misses its target, or seems to."""


TO_BEST: Final = "back to the best setting"
"""Beginning of the reason of a decision that returns to the best setting, and its effect in displays."""


class Cause(StrEnum):
    """The contended resource, as far as the evidence identifies it."""

    CPU = "cpu"  # its threads wait for a processor (run-queue delay)
    SMT = "smt"  # its threads run beside busy hyperthreads
    MEMORY = "memory"
    LLC = "llc"
    MBW = "mbw"
    IO = "io"  # disks
    STORAGE = (
        "storage"  # the storage behind its I/O is slow, and no other workload of this host keeps it busy
    )
    NETWORK = "network"
    THROTTLED = "throttled"  # its own CPU limit holds it back
    NEIGHBOUR = "neighbour"  # undeclared work uses the CPUs
    HYPERVISOR = "hypervisor"  # CPU time is stolen from this virtual machine
    SELF = "self"  # its load exceeds the host's capacity; no other workload contends
    REMOTE = (
        "remote"  # no resource of this host explains it: a remote dependency of the application is slower
    )
    UNKNOWN = "unknown"
    NONE = "none"


class Action(StrEnum):
    """The effect of a decision on an LRA's protection."""

    HOLD = "hold"  # nothing
    GROW = "grow"  # more protection
    SHRINK = "shrink"  # one step of protection returned to batch
    EXPLORE = "explore"  # a step that the model cannot predict yet, tried because the target is missed
    ROLLBACK = "rollback"  # the last change did not help and is undone
    RELEASE = "release"  # no threat is left: all original settings are restored


AWAITED: Final = "events"
"""Name of the signal under which evidence states which input a judgement still lacks."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One examined signal: observed value, expected value, and the conclusion in words."""

    signal: str
    observed: Reading
    expected: Reading
    unit: str
    text: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """Health with its evidence.

    ``since_s``: monotonic time at which this health began. ``culprit``: the antagonist's name, None if none
    was identified.
    """

    health: Health
    cause: Cause
    since_s: float
    evidence: tuple[Evidence, ...]
    culprit: str | None = None


@dataclass(frozen=True, slots=True)
class Prediction:
    """A model's answer for one allocation: performance score with a band.

    The score is performance divided by its target: work / target work, or target delay / delay, whichever is
    lower. A score >= 1 meets the target. ``support``: effective number of samples near this allocation.
    """

    score: float
    lower: float
    upper: float
    support: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """Score of a candidate from a rule instead of the model. Such a score has no band."""

    score: float
    basis: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """An allocation that was considered.

    ``batch_cores_lost``: CPUs that batch would lose under it. ``prediction``: the model's answer, None if no model was
    asked. ``estimate``: the score used instead of the prediction, if any. ``verdict``: why it was chosen or
    not.
    """

    allocation: Allocation
    prediction: Prediction | None
    batch_cores_lost: float
    verdict: str
    estimate: Estimate | None = None

    @property
    def score(self) -> float:
        """The score by which the candidate was ranked; NaN if it was not ranked."""
        if self.estimate is not None:
            return self.estimate.score
        return self.prediction.score if self.prediction is not None else math.nan


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision about one LRA, complete enough to explain and to replay.

    ``mode``: the LRA's mode at that time; None outside of the daemon. ``to_best``: the target is out of reach, and the
    decision returns to the best setting, which may protect more or less than the present one. ``target_provisional``:
    a target value was learned while undeclared work or the hypervisor filled the host.
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
    to_best: bool = False
    target_provisional: bool = False


PROVISIONAL_TARGET: Final = (
    "the target is provisional: it was learned while undeclared work or the hypervisor used the host's CPUs"
)
"""What ``Decision.target_provisional`` means, for operators."""


def target_reachable(decision: Decision) -> bool | None:
    """True if some considered allocation is predicted to meet the missed target.

    None if the target is met, or if no allocations were compared.
    """
    if decision.verdict.health is not Health.DEGRADED or not decision.candidates:
        return None
    return any(item.score >= 1.0 for item in decision.candidates)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Evaluation of a decision after the settle time: scores before and after it, and whether it was kept."""

    at_s: float
    workload: str
    decided_at_s: float
    score_before: Reading
    score_after: Reading
    kept: bool
    text: str


@dataclass(frozen=True, slots=True)
class Consequences:
    """Consequences of a decision: the writes with their result, and the outcome.

    ``written``: texts "path: before -> after"; empty if nothing was written. ``outcome``: None before the decision
    has been evaluated, or if perphd no longer stores the outcome.
    """

    decided_at_s: float
    written: tuple[str, ...] = ()
    result: str = ""
    outcome: Outcome | None = None
