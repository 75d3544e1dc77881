"""The calibration of reports: two straight lines fitted to weeks, and bands that hold for whole weeks.

The lines are least squares. The bands are conformal at the level of the week: its score is the greatest error of any of
its predictions, in units of that prediction's typical error. Each week is scored with the lines of the other weeks (the
jackknife), so the score is that of an unseen week. The width of the bands is the score that a share ``BAND`` of the
weeks does not exceed, counting one additional week.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from perphd.report.calibration import BAND

_LEAST_PCT: Final = 1.0
"""Least typical error; a smaller one is due to chance."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A figure of the observed week, and the predicted figure as it was in the enforced week; both in %.

    ``doubt``: factor on its usual error.
    """

    observed: float
    enforced: float
    doubt: float = 1.0


@dataclass(frozen=True, slots=True)
class Week:
    """One week: time on target of every LRA; batch's restricted share of time and its remaining CPU time."""

    seed: int
    on_target: tuple[Pair, ...]
    batch: Pair | None


@dataclass(frozen=True, slots=True)
class Calibration:
    """The constants of ``perphd.report.calibration``."""

    recovered: float
    own_miss_pct: float
    on_target_half_pct: float
    given: float
    own_given_pct: float
    batch_half_pct: float

    def holds(self, week: Week) -> bool:
        """True if every prediction of the week is within its band."""
        on_target = all(
            abs(self._on_target(pair.observed) - pair.enforced) <= self.on_target_half_pct * pair.doubt
            for pair in week.on_target
        )
        batch = week.batch
        return on_target and (
            batch is None or abs(self._kept(batch.observed) - batch.enforced) <= self.batch_half_pct
        )

    def _on_target(self, observed: float) -> float:
        return 100.0 - (1.0 - self.recovered) * (100.0 - observed) - self.own_miss_pct

    def _kept(self, touched: float) -> float:
        return 100.0 - self.own_given_pct - self.given * touched


def calibrate(weeks: Sequence[Week]) -> Calibration:
    """The constants from these weeks."""
    lines = _lines(weeks)
    scores = [_score(week, _lines([*weeks[:i], *weeks[i + 1 :]]), lines) for i, week in enumerate(weeks)]
    width = sorted(scores)[min(len(scores), math.ceil((len(scores) + 1) * BAND)) - 1]
    (slope, own_miss), on_error = lines.on_target
    (share, own_given), batch_error = lines.batch
    return Calibration(1.0 - slope, own_miss, width * on_error, share, own_given, width * batch_error)


@dataclass(frozen=True, slots=True)
class _Lines:
    """Slope, offset and typical error of missed time and of batch's loss."""

    on_target: tuple[tuple[float, float], float]
    batch: tuple[tuple[float, float], float]


def _lines(weeks: Sequence[Week]) -> _Lines:
    missed = [(100.0 - p.observed, 100.0 - p.enforced) for week in weeks for p in week.on_target]
    given = [(week.batch.observed, 100.0 - week.batch.enforced) for week in weeks if week.batch]
    return _Lines(_line(missed), _line(given))


def _score(week: Week, lines: _Lines, units: _Lines) -> float:
    """The greatest error of a week by these lines, in units of the typical errors."""
    slope, own_miss = lines.on_target[0]
    errors = [
        abs(slope * (100.0 - p.observed) + own_miss - (100.0 - p.enforced)) / units.on_target[1] / p.doubt
        for p in week.on_target
    ]
    if week.batch:
        share, own_given = lines.batch[0]
        error = abs(share * week.batch.observed + own_given - (100.0 - week.batch.enforced))
        errors.append(error / units.batch[1])
    return max(errors, default=0.0)


def coverage(weeks: Sequence[Week]) -> list[bool]:
    """For every week, whether it lies within the bands of all others."""
    return [calibrate([*weeks[:i], *weeks[i + 1 :]]).holds(week) for i, week in enumerate(weeks)]


def _line(points: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], float]:
    """Slope and offset by least squares, and the typical error."""
    x, y = np.array(points).T
    slope, offset = np.polyfit(x, y, 1)
    error = float(np.sqrt(np.mean((slope * x + offset - y) ** 2)))
    return (float(slope), float(offset)), max(error, _LEAST_PCT)
