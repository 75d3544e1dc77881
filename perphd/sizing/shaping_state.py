"""Types of ``perphd.sizing.shaping``: its input, state and output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from perphd.domain.forecast import MemoryForecast
from perphd.domain.reading import NOT_MEASURED, Reading, Unavailable
from perphd.forecast.ladder import SeriesLadder
from perphd.sizing.shaper import Role, Rung, ShaperMode, ShaperSettings, ShapingAction

EMPTY_BYTES: Final = 256 << 10
"""Bytes; a group that uses less memory contains no process worth sizing."""


@dataclass(frozen=True, slots=True)
class ShapingRules:
    """The operator's settings. ``hard_limit``: ``memory.max`` follows the target too."""

    mode: ShaperMode
    interval_s: float
    settings: ShaperSettings
    hard_limit: bool = False


@dataclass(frozen=True, slots=True)
class ShapedSubject:
    """The present state of one workload.

    ``shaped``: its owner opted in to the shaper; otherwise it is only advised. ``kills``: out-of-memory kills
    in its group so far. ``full_ratio``: share of time in which all its tasks waited for memory.
    ``restarted``: the group at its path was replaced since the last pass. ``ahead``: the worker's forecast of
    the interval that begins now.
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
class ShapedMember:
    """The shaper's state of one workload.

    ``target_bytes``: None before the first decision. ``history_restarted``: the shaper restarted its history.
    ``model``: the forecaster in use. ``proposed``: the actions that the last plan proposed for it.
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
    history_restarted: bool = False
    model: str = ""
    proposed: tuple[ShapingAction, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class ShapingState:
    """All workloads, the end of the last interval, and those that have not learned from it yet (``pending``).

    ``limits``: limits from the last pass over each present workload. ``tight``: a plan of all is due once all
    have learned.
    """

    members: Mapping[str, ShapedMember] = field(default_factory=dict)
    closed_s: float | None = None
    pending: tuple[str, ...] = ()
    limits: Mapping[str, ShapedLimits] = field(default_factory=dict)
    tight: bool = False


@dataclass(frozen=True, slots=True)
class ShapedLimits:
    """The limits of one workload; None: unchanged."""

    low_bytes: int | None = None
    high_bytes: int | None = None
    max_bytes: int | None = None
    frozen: bool = False


@dataclass(frozen=True, slots=True)
class ShapingStep:
    """Output of one pass: limits in force, workloads to end with reasons, and notes to announce."""

    limits: Mapping[str, ShapedLimits]
    ends: tuple[tuple[str, str], ...] = ()
    notes: tuple[tuple[str, str], ...] = ()


def is_there(subject: ShapedSubject, member: ShapedMember) -> bool:
    """Whether the workload is running and not about to end."""
    return (
        not isinstance(subject.used_bytes, Unavailable)
        and subject.used_bytes >= EMPTY_BYTES
        and member.rung is not Rung.END
    )
