"""perphd's goals in the lab, and the results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tools.lab.analysis import OPEN_P95_RATIO, Ratios, paired, rows
from tools.lab.catalogue import load_of
from tools.lab.records import Run
from tools.lab.schemes import PERPHD, is_perphd
from tools.lab.stats import Spread

_RECOVERY_S = 5.0
_SBS = ("sbs-1024", "sbs-64")


@dataclass(frozen=True, slots=True)
class Goal:
    """One goal of one cell. ``reached``: the spread of the figure; the median decides."""

    cell: str
    scheme: str
    text: str
    at_least: bool
    bound: float
    reached: Spread | None
    complete: bool = True

    @property
    def met(self) -> bool | None:
        """True, False, or None if it was not measured."""
        if self.reached is None:
            return None if self.complete else False
        good = self.reached.median >= self.bound if self.at_least else self.reached.median <= self.bound
        return good and self.complete


def goals(runs: Sequence[Run]) -> list[Goal]:
    """The goals of the sysbench cells that ran with perphd, in the order of the cells."""
    found: list[Goal] = []
    for row in rows(runs):
        load = load_of(row.cell)
        if not is_perphd(row.scheme) or load.name == "slap":
            continue
        of_cell = [run for run in runs if run.cell == row.cell]
        found += (
            _open(row.cell, row.whole, row.scheme)
            if load.open_loop
            else _closed(row.cell, row.whole, of_cell, row.scheme)
        )
        found.append(
            Goal(row.cell, row.scheme, "recovery after the antagonist's start, s", False, _RECOVERY_S, row.recovery_s,
                 complete=row.recovered == row.repetitions)
        )  # fmt: skip
    return found


def _open(cell: str, whole: Ratios, scheme: str = PERPHD) -> list[Goal]:
    return [
        Goal(cell, scheme, "p95 / run-alone's", False, OPEN_P95_RATIO, whole.p95_to_alone),
        Goal(cell, scheme, "batch work / native's", True, 0.95, whole.batch_to_native),
    ]


def _closed(cell: str, whole: Ratios, of_cell: Sequence[Run], scheme: str) -> list[Goal]:
    mine = [run for run in of_cell if run.scheme == scheme]
    found = [
        Goal(cell, scheme, "rate / native's", True, 1.35, whole.rate_to_native),
        Goal(cell, scheme, "p95 / native's", False, 0.5, whole.p95_to_native),
    ]
    for sbs in (name for name in _SBS if any(run.scheme == name for run in of_cell)):
        found += [
            Goal(cell, scheme, f"rate / {sbs}'s", True, 1.0, paired(mine, of_cell, sbs, lambda run: run.whole.tps)),
            Goal(
                cell, scheme, f"batch work / {sbs}'s", True, 1.0,
                paired(mine, of_cell, sbs, lambda run: run.whole.batch),
            ),
        ]  # fmt: skip
    return found
