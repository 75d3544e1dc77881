"""Results of the demo: three recordings of the same scenario, compared and evaluated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from rich.table import Table

RECOVERED: Final = 0.95
"""Share of the target that counts as recovered."""
STEADY_S: Final = 3
"""Consecutive seconds at ``RECOVERED`` of the target after which the database counts as recovered."""
SETTLED_S: Final = 10
"""Length in seconds of the final part of the disturbance. The result of control is taken from this part."""


@dataclass(frozen=True, slots=True)
class Second:
    """Figures for one virtual second. ``batch_work``: operations; only their ratios are meaningful."""

    at_s: int
    work_per_s: float
    p95_ms: float
    batch_work: float


Recording = Sequence[Second]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The same scenario ``alone``, ``native`` (without control) and with ``perphd``.

    ``from_s``, ``to_s``: interval in which batch ran. ``tolerance_pct``: the accepted loss of work rate
    relative to running alone. ``batch``: the job's name.
    """

    alone: Recording
    native: Recording
    perphd: Recording
    from_s: int
    to_s: int
    tolerance_pct: float
    batch: str = "batch"

    def during(self, recording: Recording) -> list[Second]:
        """The seconds in which batch ran."""
        return [second for second in recording if self.from_s < second.at_s <= self.to_s]

    @property
    def alone_per_s(self) -> float:
        """Mean work rate without batch, in the same seconds."""
        return _work(self.during(self.alone))

    @property
    def target_per_s(self) -> float:
        """The target work rate."""
        return (1.0 - self.tolerance_pct / 100.0) * self.alone_per_s

    def recovery_s(self, recording: Recording) -> float | None:
        """Seconds from batch's arrival until the target was met steadily; 0: never missed; None: never met steadily."""
        missed, row = False, 0
        for second in self.during(recording):
            met = second.work_per_s >= RECOVERED * self.target_per_s
            missed, row = missed or not met, row + 1 if met else 0
            if row == STEADY_S:
                return float(second.at_s - STEADY_S + 1 - self.from_s) if missed else 0.0
        return None

    def problems(self) -> list[str]:
        """The claims that the demo failed to show, as sentences."""
        found: list[str] = []
        wanted = RECOVERED * self.target_per_s
        if _work(self.during(self.native)) >= wanted:
            found.append(f"{self.batch} did not disturb the application, so perphd's effect cannot be shown")
        settled = self.during(self.perphd)[-SETTLED_S:]
        if self.recovery_s(self.perphd) is None or _work(settled) < wanted:
            target = f"its target of {self.target_per_s:.0f}/s"
            found.append(f"beside {self.batch}, perphd did not bring the application back to {target}")
        return found

    def table(self) -> Table:
        """The closing summary."""
        table = Table(title=f"While {self.batch} ran ({self.from_s} s to {self.to_s} s)")
        table.add_column("phase")
        for name in ("work/s", "of alone", "p95 ms", "batch work", "recovery"):
            table.add_column(name, justify="right")
        perphd = self.during(self.perphd)
        natively = _batch(self.during(self.native))
        rows = (
            ("alone", self.during(self.alone), "-"),
            ("native (no control)", self.during(self.native), self._recovery_text(self.native)),
            ("perphd", perphd, self._recovery_text(self.perphd)),
            (f"perphd, last {SETTLED_S} s", perphd[-SETTLED_S:], ""),
        )
        for name, seconds, recovery in rows:
            work = _work(seconds)
            batch = _batch(seconds)
            table.add_row(
                name,
                f"{work:.0f}",
                f"{work / self.alone_per_s:.0%}",
                f"{fmean(second.p95_ms for second in seconds):.1f}",
                f"{batch / natively:.0%}" if batch and natively else "-",
                recovery,
            )
        return table

    def _recovery_text(self, recording: Recording) -> str:
        recovered_s = self.recovery_s(recording)
        return "never" if recovered_s is None else f"{recovered_s:.0f} s"


def _work(seconds: Recording) -> float:
    return fmean(second.work_per_s for second in seconds)


def _batch(seconds: Recording) -> float:
    return fmean(second.batch_work for second in seconds)
