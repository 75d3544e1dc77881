"""What a report is made of: windows of samples, and decisions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from perphd.domain.decision import Action, Cause, Health
from perphd.domain.reading import NOT_MEASURED, Reading
from perphd.domain.workload import Mode

WINDOW_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Window:
    """The means of one workload over ``WINDOW_S`` that end at ``at_s`` (wall clock). ``covered_s``: seconds of
    samples.
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
    """One stored decision about an LRA. ``chance``: of meeting the target under what was chosen, by the model.

    ``batch_cores_lost``: what the model expects it to cost batch. Both are missing where no candidates were
    compared.
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
class Judged:
    """What came of a decision."""

    at_s: float
    lra: str
    kept: bool


@dataclass(frozen=True, slots=True)
class History:
    """Everything read. LRAs are the workloads about which something was decided; all others are batch."""

    since_s: float
    until_s: float
    windows: dict[str, tuple[Window, ...]]
    decisions: dict[str, tuple[Decided, ...]]
    outcomes: tuple[Judged, ...] = ()

    @property
    def lras(self) -> tuple[str, ...]:
        """The LRAs."""
        return tuple(sorted(self.decisions))

    @property
    def batch(self) -> tuple[str, ...]:
        """Everybody else."""
        return tuple(sorted(self.windows.keys() - self.decisions.keys()))
