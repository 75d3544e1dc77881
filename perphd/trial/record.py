"""What is kept of a trial: its plan, a row per block, notes, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from perphd.domain.workload import Mode
from perphd.trial.design import Plan

MAX_NOTES: Final = 100


class End(StrEnum):
    """How a trial ended."""

    COMPLETE = "complete"  # every block ran
    STOPPED = "stopped"  # by perphctl trial stop
    HARM = "harm"  # by a guard rail
    CHANGED = "changed"  # something was changed by hand that makes the rest another experiment


@dataclass(frozen=True, slots=True)
class Ending:
    """When, how, why, and by whom (empty: nobody)."""

    at_unix_s: float
    how: End
    text: str
    by: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    """Something that happened during the trial: a pause, a reload, a restart of the daemon."""

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
    """One block that has ended. ``void``: why it does not count; empty: it does."""

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
