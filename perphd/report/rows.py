"""Inputs of a report: windows of samples, decisions and outcomes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from perphd.domain.decision import Action, Cause, Health
from perphd.domain.reading import NOT_MEASURED, Reading
from perphd.domain.workload import Mode

WINDOW_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class ReportWindow:
    """Means of one workload over a window of ``WINDOW_S`` that ends at ``at_s`` (wall clock).

    ``covered_s``: seconds of the window that samples cover.
    """

    at_s: float
    covered_s: float
    delay: Reading
    delay_source: str
    work: Reading
    work_source: str
    cores: Reading


@dataclass(frozen=True, slots=True)
class Decided:
    """One stored decision about an LRA.

    ``chance``: chance of meeting the target with the chosen allocation, according to the model.
    ``batch_cores_lost``: predicted cost for batch. Both are unavailable if no candidates were compared.
    """

    at_s: float
    lra: str
    action: Action
    health: Health
    cause: Cause
    target_work: Reading
    target_delay: Reading
    mode: Mode
    reason: str
    chance: Reading = NOT_MEASURED
    batch_cores_lost: Reading = NOT_MEASURED


@dataclass(frozen=True, slots=True)
class JudgedWindow:
    """Outcome of a decision. ``kept``: the change stood at its review, which did not roll it back."""

    at_s: float
    lra: str
    kept: bool


@dataclass(frozen=True, slots=True)
class ReportHistory:
    """All rows of a report. LRAs are the workloads with decisions; all others are batch."""

    since_s: float
    until_s: float
    windows: dict[str, tuple[ReportWindow, ...]]
    decisions: dict[str, tuple[Decided, ...]]
    outcomes: tuple[JudgedWindow, ...] = ()

    @property
    def lras(self) -> tuple[str, ...]:
        """Names of the LRAs."""
        return tuple(sorted(self.decisions))

    @property
    def batch(self) -> tuple[str, ...]:
        """Names of the batch workloads."""
        return tuple(sorted(self.windows.keys() - self.decisions.keys()))
