"""The values of ``perphd.sizing.shaping``: what it decides from, what it remembers, and what follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from perphd.domain.forecast import MemoryForecast
from perphd.domain.reading import NOT_MEASURED, Reading, Unavailable
from perphd.forecast.ladder import SeriesLadder
from perphd.sizing.shaper import Mode, Role, Rung, ShaperSettings, ShapingAction

EMPTY_BYTES: Final = 256 << 10
"""A group that uses less holds no process worth a size."""


@dataclass(frozen=True, slots=True)
class ShapingRules:
    """What the operator chose. ``hard_limit``: ``memory.max`` follows the target too."""

    mode: Mode
    interval_s: float
    settings: ShaperSettings
    hard_limit: bool = False


@dataclass(frozen=True, slots=True)
class Subject:
    """One workload as it is now.

    ``shaped``: its owner gave it to the shaper; without that it is advised. ``kills``: out-of-memory kills in its group
    so far. ``full_ratio``: share of time in which all its tasks waited for memory. ``restarted``: its group is another
    one than at the last look, with the same path. ``ahead``: the worker's forecast of the interval that begins now.
    """

    name: str
    application: str
    lra: bool
    role: Role
    reserved_bytes: float
    used_bytes: Reading
    least_bytes: float = 0.0
    shaped: bool = True
    degraded: bool = False
    unreclaimable_bytes: Reading = NOT_MEASURED
    kills: Reading = NOT_MEASURED
    full_ratio: Reading = NOT_MEASURED
    refaults_per_s: Reading = NOT_MEASURED
    restarted: bool = False
    ahead: MemoryForecast | None = None
    peak_bytes: float = 0.0


NOT_YET: Final = "no interval has ended yet"


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """What is remembered of one workload.

    ``target_bytes`` None: none decided yet. ``anew``: its history began again here. ``model``: which forecast counted.
    ``proposed``: what the last plan of it would do.
    """

    began_s: float
    greatest_bytes: float | None = None
    ladder: SeriesLadder = field(default_factory=SeriesLadder)
    kills: float | None = None
    crashes: int = 0
    crashed: bool = False
    target_bytes: float | None = None
    reason: str = NOT_YET
    rung: Rung | None = None
    usual_refaults_per_s: float | None = None
    guarded_until_s: float = -1.0
    rung_intervals: int = 0
    anew: bool = False
    model: str = ""
    proposed: tuple[ShapingAction, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class ShapingState:
    """All workloads, the end of the last interval, and whose maximum is yet to be learned from.

    ``limits``: of the last look at each workload that is there. ``tight``: the plan of all is due once all are learned.
    """

    members: Mapping[str, Member] = field(default_factory=dict)
    closed_s: float | None = None
    pending: tuple[str, ...] = ()
    limits: Mapping[str, ShapedLimits] = field(default_factory=dict)
    tight: bool = False


@dataclass(frozen=True, slots=True)
class ShapedLimits:
    """What one workload is to have; None: as it was found."""

    low_bytes: int | None = None
    high_bytes: int | None = None
    max_bytes: int | None = None
    frozen: bool = False


@dataclass(frozen=True, slots=True)
class ShapingStep:
    """What follows from one look: limits in force, workloads to end with the reason, and sentences to announce."""

    limits: Mapping[str, ShapedLimits]
    ends: tuple[tuple[str, str], ...] = ()
    notes: tuple[tuple[str, str], ...] = ()


def is_there(subject: Subject, member: Member) -> bool:
    """Whether the workload runs, and is not about to end."""
    return (
        not isinstance(subject.used_bytes, Unavailable)
        and subject.used_bytes >= EMPTY_BYTES
        and member.rung is not Rung.END
    )
