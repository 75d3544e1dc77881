"""One series followed window by window: its ladder, and the scores of its past bounds.

A gap of ``LONG_GAP`` windows or more restarts a series, because it shifts every season. Shorter gaps are
skipped. The long history of a new series is not replayed from its start: the ladder receives all but the
latest windows at once, and forecasts the latest ones one by one, including fits, as if they arrived live.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Final

import numpy as np

from perphd.domain.quick import replace
from perphd.domain.reading import Unavailable
from perphd.forecast.calibration import appended, pinball
from perphd.forecast.histogram import Floats
from perphd.forecast.ladder import (
    COVERAGE,
    GRACE,
    LOSSES,
    MODELS,
    SeriesLadder,
    due,
    forecast,
    forecast_all,
    observed,
    refitted,
    with_fits,
    with_miss,
)
from perphd.forecast.series import NEVER

LEAST_WINDOWS: Final = 60
"""Number of windows before a series is forecast: an hour. Fewer scores do not distinguish the models."""
EARLY_WINDOWS: Final = 20
"""Number of windows before a series with a prior is forecast: other hosts' scores distinguish its models."""
LONG_GAP: Final = 10
"""Number of consecutive missing windows after which a series restarts."""
CHOICE: Final = "ladder"
HEAVY: Final = frozenset(model.name for model in MODELS if 60 <= model.refit_every < NEVER)
"""Models whose fits take several milliseconds."""
_KEPT: Final = max(model.history for model in MODELS) + 1
_NORMAL: Final = NormalDist()


@dataclass(frozen=True, slots=True)
class ModelScore:
    """Scores of one model: mean pinball loss of its 99 % bound in the series' unit, and the share of values covered.

    ``name`` is ``ladder`` for the bounds of the model that acted at each time.
    """

    name: str
    scored: int
    loss: float
    covered_ratio: float


@dataclass(frozen=True, slots=True)
class NextWindow:
    """Forecast of the next window's maximum.

    ``p99`` is the calibrated bound. ``p90`` lies between ``p99`` and the mean as if errors were normal. Neither
    exceeds the host's capacity. Models do not know the capacity. After a jump, their bound may far exceed it;
    ``capped`` is then true.
    """

    model: str
    mean: float
    p50: float
    p90: float
    p99: float
    capped: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Followed:
    """A series: its ladder, which has forecast the window after ``number``, and the latest scores of its choice.

    ``missed``: see ``Track``.
    """

    number: int
    ladder: SeriesLadder
    losses: Floats = field(default_factory=lambda: np.empty(0))
    missed: int = 0


def started(
    numbers: Sequence[int], values: Sequence[float], replayed: int, prior: Mapping[str, float] | None = None
) -> Followed | None:
    """Start a series from its history; the latest ``replayed`` windows are forecast one by one.

    ``prior``: the models' losses elsewhere, for the first hour (``fleet_scores``). Returns None if there are
    no values.
    """
    first = _latest_start(numbers)
    stretch = np.asarray(values[first:], dtype=np.float64)
    if not len(stretch):
        return None
    known = max(min(GRACE, len(stretch)), len(stretch) - replayed)
    ladder = SeriesLadder(values=stretch[max(0, known - _KEPT) : known], seen=known)
    series = Followed(numbers[first + known - 1], forecast(_fitted(ladder), prior=_scaled(ladder, prior)))
    return _continued(series, numbers[first + known :], stretch[known:].tolist(), prior=prior)


def continued(
    series: Followed,
    numbers: Sequence[int],
    values: Sequence[float],
    *,
    may_fit: bool = True,
    ahead: bool = True,
    prior: Mapping[str, float] | None = None,
) -> Followed:
    """The series after further windows; known ones are ignored, and a long gap restarts it. ``prior``: see ``started``.

    ``may_fit``: False defers the most expensive part: ``HEAVY`` models that are due for a fit forecast with
    their present parameters. ``ahead``: False leaves the forecast of the next window to ``forecast_together``, which
    must follow.
    """
    new = [(number, value) for number, value in zip(numbers, values, strict=True) if number > series.number]
    if not new:
        return series
    later, given = [number for number, _ in new], [value for _, value in new]
    if later[0] - series.number > LONG_GAP or _latest_start(later):
        return started(later, given, len(later), prior) or series
    return _continued(series, later, given, may_fit, ahead, prior)


def forecast_together(
    series: Sequence[Followed], priors: Sequence[Mapping[str, float] | None]
) -> list[Followed]:
    """These series with the forecast of their next window, which ``continued`` left out."""
    ladders = [each.ladder for each in series]
    found = forecast_all(ladders, list(map(_scaled, ladders, priors)))
    return [replace(each, ladder=ladder) for each, ladder in zip(series, found, strict=True)]


def next_window(
    series: Followed, most: float = math.inf, least: int = LEAST_WINDOWS
) -> NextWindow | Unavailable:
    """The forecast of the next window, or the reason why there is none.

    ``most``: the host's capacity. ``least``: windows before the first forecast.
    """
    ladder = series.ladder
    if ladder.seen < least:
        return Unavailable(too_short(ladder.seen, least))
    found = ladder.forecast
    if ladder.acting is None or ladder.bound is None or found is None or not math.isfinite(ladder.bound):
        return Unavailable(
            "no forecast model reaches 99 % coverage with a finite bound: the reservation is kept"
        )
    most = max(most, float(ladder.values[-1]))  # a reading takes precedence over the stated capacity
    mean = min(max(0.0, found.mean), most)
    capped, bound = ladder.bound > most, min(max(mean, ladder.bound), most)
    p90 = mean + (bound - mean) * _NORMAL.inv_cdf(0.9) / _NORMAL.inv_cdf(COVERAGE)
    return NextWindow(ladder.acting, mean, mean, p90, bound, capped)


def scores(series: Followed) -> tuple[ModelScore, ...]:
    """Scores of every scored model, and of the ladder's choice."""
    tracks = [(model.name, series.ladder.tracks.get(model.name)) for model in MODELS]
    found = [_score(name, track.losses, track.missed) for name, track in tracks if track is not None]
    return tuple(each for each in (*found, choice_score(series)) if each is not None)


def choice_score(series: Followed) -> ModelScore | None:
    """The score of the ladder's own bounds; None before the first score."""
    return _score(CHOICE, series.losses, series.missed)


def too_short(windows: int, least: int = LEAST_WINDOWS) -> str:
    """Reason why a history of this length is refused."""
    left = least - windows
    return f"{windows} of {least} windows: {left} more minute{'' if left == 1 else 's'} of samples"


def latest_stretch(numbers: Sequence[int], values: Sequence[float]) -> Floats:
    """Values since the last long gap. ``numbers``: their window numbers, ascending."""
    return np.asarray(values[_latest_start(numbers) :], dtype=np.float64)


def _latest_start(numbers: Sequence[int]) -> int:
    for i in range(len(numbers) - 1, 0, -1):
        if numbers[i] - numbers[i - 1] > LONG_GAP:
            return i
    return 0


def change_scale(values: Floats) -> float:
    """The mean absolute difference of successive values, the unit in which losses of different series are
    compared.
    """
    return float(np.mean(np.abs(np.diff(values)))) if len(values) > 1 else 0.0


def heavy_fits(series: Followed) -> int:
    """Number of ``HEAVY`` models that were fitted for the next window's forecast."""
    tracks = series.ladder.tracks
    return sum(name in tracks and tracks[name].fitted_at == series.ladder.seen for name in HEAVY)


def _continued(
    series: Followed,
    numbers: Sequence[int],
    values: Sequence[float],
    may_fit: bool = True,
    ahead: bool = True,
    prior: Mapping[str, float] | None = None,
) -> Followed:
    ladder, losses, missed, last = series.ladder, series.losses, series.missed, series.number
    for place, (number, value) in enumerate(zip(numbers, values, strict=True), 1):
        if ladder.bound is not None:
            losses = appended(losses, pinball(COVERAGE, ladder.bound, value), LOSSES)
            missed = with_miss(missed, value > ladder.bound)
        ladder, last = _fitted(observed(ladder, value), may_fit), number
        if ahead or place < len(numbers):
            ladder = forecast(ladder, prior=_scaled(ladder, prior))
    return Followed(last, ladder, losses, missed)


def _fitted(ladder: SeriesLadder, may_fit: bool = True) -> SeriesLadder:
    names = due(ladder)
    if not may_fit:
        names = tuple(name for name in names if name not in HEAVY or ladder.tracks[name].fitted_at is None)
    return with_fits(ladder, refitted(ladder.values, names))


def _scaled(ladder: SeriesLadder, prior: Mapping[str, float] | None) -> Mapping[str, float]:
    """The prior in the series' unit; empty once the series' own scores suffice."""
    if not prior or ladder.seen >= LEAST_WINDOWS:
        return {}
    scale = change_scale(ladder.values)
    return {name: loss * scale for name, loss in prior.items()}


def _score(name: str, losses: Floats, missed: int) -> ModelScore | None:
    n = len(losses)
    if not n:
        return None
    return ModelScore(name, n, float(np.add.reduce(losses)) / n, 1.0 - missed.bit_count() / n)
