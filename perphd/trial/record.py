"""The record of a trial: its plan, one row per block, notes, and its end."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from perphd.domain.workload import Mode
from perphd.trial.design import Plan

MAX_NOTES: Final = 100


class End(StrEnum):
    """How a trial ended."""

    COMPLETE = "complete"  # all blocks ran
    STOPPED = "stopped"  # perphctl trial stop ended it
    HARM = "harm"  # a guard rail ended it
    CHANGED = "changed"  # a manual change made the rest a different experiment


@dataclass(frozen=True, slots=True)
class Ending:
    """Time, kind, reason and author (empty: none) of a trial's end."""

    at_unix_s: float
    how: End
    text: str
    by: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    """An event during the trial: a pause, a reload, a restart of the daemon."""

    at_unix_s: float
    text: str


@dataclass(frozen=True, slots=True)
class BlockMean:
    """The mean of a metric over the used part of a block. ``covered_s``: seconds that its readings cover."""

    metric: str
    mean: float
    covered_s: float


@dataclass(frozen=True, slots=True)
class Block:
    """One finished block. ``void``: reason why it does not count; empty if it does."""

    number: int
    mode: Mode
    means: tuple[BlockMean, ...]
    void: str = ""


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """A trial, running while ``ending`` is None."""

    plan: Plan
    blocks: tuple[Block, ...] = ()
    notes: tuple[Note, ...] = ()
    ending: Ending | None = None
