"""A stored history run through the ladder: what each model would have forecast, and the forecast that follows.

The ladder is given all but the latest windows at once and forecasts the latest ``SCORED`` one by one, fits included, as
it would have done while they came. Missing windows are skipped; what lies before a long gap is not used, since a gap
moves every season.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np

from perphd.domain.reading import Unavailable
from perphd.forecast.calibration import pinball
from perphd.forecast.histogram import Floats
from perphd.forecast.ladder import (
    COVERAGE,
    GRACE,
    LOSSES,
    MODELS,
    SeriesLadder,
    due,
    forecast,
    observed,
    refitted,
    with_fits,
)

LEAST_WINDOWS: Final = 60
"""Windows before anything is said of a series: an hour. Fewer scores do not tell the models apart."""
SCORED: Final = LOSSES
LONG_GAP: Final = 10
"""Missing windows in a row that end a stretch."""
CHOICE: Final = "ladder"
_NORMAL: Final = NormalDist()


@dataclass(frozen=True, slots=True)
class ModelScore:
    """How one model did: mean pinball loss of its 99 % bound in the series' unit, and the share that it covered.

    ``name`` is ``ladder`` for the bounds of whichever model acted at the time.
    """

    name: str
    scored: int
    loss: float
    covered_ratio: float


@dataclass(frozen=True, slots=True)
class NextWindow:
    """The next window's greatest value.

    ``p99`` is the calibrated bound. ``p90`` lies between it and the mean as if errors were normal.
    """

    model: str
    mean: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True)
class Outlook:
    """One series: the windows that were used, the forecast or why there is none, and the models' scores."""

    windows: int
    next_window: NextWindow | Unavailable
    scores: tuple[ModelScore, ...] = ()


class _Tally:
    """Scores of one source of bounds."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.missed = 0

    def add(self, bound: float, value: float) -> None:
        self.losses.append(pinball(COVERAGE, bound, value))
        self.missed += value > bound

    def score(self, name: str) -> ModelScore:
        n = len(self.losses)
        return ModelScore(name, n, sum(self.losses) / n, 1.0 - self.missed / n)


def latest_stretch(numbers: Sequence[int], values: Sequence[float]) -> Floats:
    """The values since the last long gap. ``numbers``: of their windows, ascending."""
    start = 0
    for i in range(1, len(numbers)):
        if numbers[i] - numbers[i - 1] > LONG_GAP:
            start = i
    return np.asarray(values[start:], dtype=np.float64)


def outlook(values: Floats) -> Outlook:
    """The forecast after ``values``, oldest first, and how the models did on the latest of them."""
    n = len(values)
    if n < LEAST_WINDOWS:
        return Outlook(n, Unavailable(too_short(n)))
    start = max(GRACE, n - SCORED)
    kept = max(model.history for model in MODELS) + 1
    ladder = SeriesLadder(values=values[max(0, start - kept) : start], seen=start)
    tallies = {name: _Tally() for name in (*(model.name for model in MODELS), CHOICE)}
    for value in values[start:].tolist():
        ladder = _forecast(ladder)
        for name, track in ladder.tracks.items():
            if track.forecast is not None:
                tallies[name].add(track.bound, value)
        if ladder.bound is not None:
            tallies[CHOICE].add(ladder.bound, value)
        ladder = observed(ladder, value)
    return Outlook(
        n, _next(_forecast(ladder)), tuple(t.score(name) for name, t in tallies.items() if t.losses)
    )


def too_short(windows: int) -> str:
    """Why a history is refused."""
    left = LEAST_WINDOWS - windows
    return f"{windows} of {LEAST_WINDOWS} windows: {left} more minute{'' if left == 1 else 's'} of samples"


def _forecast(ladder: SeriesLadder) -> SeriesLadder:
    return forecast(with_fits(ladder, refitted(ladder.values, due(ladder))))


def _next(ladder: SeriesLadder) -> NextWindow | Unavailable:
    found = ladder.forecast
    if ladder.acting is None or ladder.bound is None or found is None or not math.isfinite(ladder.bound):
        return Unavailable("no model reaches its coverage of 99 %: the reservation stands")
    mean = max(0.0, found.mean)
    bound = max(mean, ladder.bound)
    p90 = mean + (bound - mean) * _NORMAL.inv_cdf(0.9) / _NORMAL.inv_cdf(COVERAGE)
    return NextWindow(ladder.acting, mean, mean, p90, bound)
