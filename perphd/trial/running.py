"""A trial in progress: follows the plan by the wall clock, averages each block's readings, and consults the guard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from perphd.domain.reading import NOT_MEASURED, Reading, available
from perphd.domain.workload import Mode
from perphd.trial.design import Metric, Plan, Signal
from perphd.trial.guard import Guard, LraReading
from perphd.trial.record import MAX_NOTES, Block, BlockMean, End, Ending, Note, TrialRecord

ENOUGH: Final = 0.5
"""Minimum share of a block's used part that a metric's readings must cover."""
_RESTARTED: Final = "perphd was restarted during it"
_ENDED: Final = "the trial ended in it"
_DID_NOT_RUN: Final = "perphd was not running"


@dataclass(frozen=True, slots=True)
class Readings:
    """One sample of everything that the plan names.

    ``reach_s``: time span that its readings cover. A reading from another source than planned is Unavailable.
    """

    seconds: float
    reach_s: float
    lras: Mapping[str, LraReading]
    batch: Reading = NOT_MEASURED


class Running:
    """A trial that has not ended.

    Args:
        record: the stored record; the block in which the daemon was restarted does not count.
        now_unix_s: the present time.
    """

    def __init__(self, record: TrialRecord, now_unix_s: float) -> None:
        self.record = record
        plan = record.plan
        self._guard = Guard(plan.lras, plan.bound_pct, plan.block_s - plan.washout_s)
        self._sums: dict[str, tuple[float, float]] = {}
        done = len(record.blocks)
        self._number = done
        self._void = ""
        if now_unix_s > plan.began_unix_s + 1.0 or done:  # started by an earlier process
            self._void = _RESTARTED
            self._move(plan.number(now_unix_s), now_unix_s, missed=_DID_NOT_RUN)
            self._void = _RESTARTED

    @property
    def plan(self) -> Plan:
        """The plan as fixed at the start."""
        return self.record.plan

    @property
    def number(self) -> int:
        """The present block; 0 is the run-in."""
        return self._number

    @property
    def mode(self) -> Mode | None:
        """The mode of the present block; None once the trial has ended."""
        return None if self.record.ending is not None else self.plan.mode(self._number)

    @property
    def void(self) -> str:
        """Reason why the present block does not count; empty if it does."""
        return self._void

    def look(self, now_unix_s: float) -> bool:
        """Advance to the present time; returns True if a block ended. Never goes back, even if the wall
        clock is set back.
        """
        if self.record.ending is not None:
            return False
        number = max(self._number, self.plan.number(now_unix_s))
        if number == self._number:
            return False
        self._move(number, now_unix_s, missed=_DID_NOT_RUN)
        return True

    def take(self, now_unix_s: float, readings: Readings) -> None:
        """Process one sample that ends now."""
        if self.record.ending is not None or readings.seconds <= 0:
            return
        plan, mode = self.plan, self.plan.mode(self._number)
        began_s = plan.starts_unix_s(self._number)
        used = now_unix_s - readings.reach_s >= began_s + plan.washout_s
        if used:
            for metric in plan.metrics:
                value = _value(metric, readings)
                if available(value):
                    total, covered = self._sums.get(metric.name, (0.0, 0.0))
                    self._sums[metric.name] = (total + value * readings.seconds, covered + readings.seconds)
        if self._void:
            return
        inside = now_unix_s - readings.seconds >= began_s
        if inside and (harm := self._guard.take(mode, readings.lras, readings.seconds, used)):
            self._end_block(_ENDED)
            self.end(now_unix_s, End.HARM, harm)

    def interrupt(self, now_unix_s: float, why: str) -> bool:
        """Exclude the present block; returns True if it was not excluded before."""
        if self.record.ending is not None or self._void:
            return False
        self._void = why
        self.note(now_unix_s, f"block {self._number}: {why}")
        return True

    def note(self, now_unix_s: float, text: str) -> None:
        """Add a note to the record."""
        if len(self.record.notes) < MAX_NOTES:
            self.record = replace(self.record, notes=(*self.record.notes, Note(now_unix_s, text)))

    def end(self, now_unix_s: float, how: End, text: str, by: str = "") -> None:
        """End the trial; the block in progress does not count."""
        if self.record.ending is None:
            in_progress = len(self.record.blocks) == self._number <= self.plan.blocks
            if in_progress and how not in (End.HARM, End.COMPLETE):  # these end with a block
                self._end_block(self._void or _ENDED)
            self.record = replace(self.record, ending=Ending(now_unix_s, how, text, by))

    def _move(self, number: int, now_unix_s: float, missed: str) -> None:
        """Advance to this block; skipped blocks do not count."""
        while self._number < number and self.record.ending is None:
            harm = self._end_block(self._void)
            self._number += 1
            self._void = missed if self._number < number else ""
            if harm:
                self.end(now_unix_s, End.HARM, harm)
            elif self._number > self.plan.blocks:
                self.end(now_unix_s, End.COMPLETE, f"all {self.plan.blocks} blocks ran")

    def _end_block(self, void: str) -> str:
        plan, mode = self.plan, self.plan.mode(self._number)
        needed_s = ENOUGH * (plan.block_s - plan.washout_s)
        means = tuple(
            BlockMean(name, total / covered, covered)
            for name, (total, covered) in self._sums.items()
            if covered >= needed_s
        )
        self._sums = {}
        if not void and not means:
            void = "too few readings"
        self.record = replace(
            self.record, blocks=(*self.record.blocks, Block(self._number, mode, means, void))
        )
        return self._guard.end_block(mode, counts=not void)


def _value(metric: Metric, readings: Readings) -> Reading:
    if metric.signal is Signal.BATCH:
        return readings.batch
    found = readings.lras.get(metric.workload)
    if found is None:
        return NOT_MEASURED
    return found.delay if metric.signal is Signal.DELAY else found.work
