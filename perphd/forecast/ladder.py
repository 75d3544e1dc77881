"""The ladder of forecasters of one series: all of them forecast, one acts.

For every window:

1. Every pending forecast is scored against the new value: pinball loss of its bound, covered or missed.
2. The value enters the series and the calibrations.
3. ``due`` names the models whose parameters are due; a worker runs ``refitted``, and ``with_fits`` takes the
   result. A model forecasts with its last parameters meanwhile.
4. Every fitted model forecasts the next value. With e, the root mean square of its last errors, its bound is

       mean + multiplier * sqrt(spread^2 + e^2)

   The spread alone is not enough: just before a burst, a model's spread is small and its error is many times larger.

The model with the least mean loss over the last ``LOSSES`` scores acts, among those that reach their coverage; it is
replaced only by a model that is better by ``MARGIN``. A model reaches its coverage while its misses are no more than
``GREATEST_MISSES`` in ``WINDOW`` scores, which a bound of true coverage .99 exceeds 1.8 % of the time. If no
model reaches it, or before ``GRACE`` values, no model acts and the reservation is kept.

A low recent loss is partly due to chance, so the chosen bounds miss more often than each model's own.
Therefore the misses of the choice itself calibrate the distance between mean and chosen bound once more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from perphd.domain.quick import changer
from perphd.forecast.arima import Arima
from perphd.forecast.calibration import (
    Calibration,
    appended,
    multipliers,
    pinball,
    root_mean_squares,
    with_residual,
)
from perphd.forecast.gaussian_process import GaussianProcess
from perphd.forecast.histogram import Floats
from perphd.forecast.series import (
    NEVER,
    Fitted,
    Forecaster,
    LastValue,
    Seasonal,
    SeriesForecast,
    Smoothing,
    predictions,
)

COVERAGE: Final = 0.99
GRACE: Final = 10
"""Values before the first forecast: ten minutes of 60-second windows."""
WINDOW: Final = 100
LOSSES: Final = 300
"""Number of scores to compare. The loss of a quantile comes mostly from its few misses, so fewer scores would
choose by chance.
"""
LEAST_AGE: Final = 10
SURPRISES: Final = 2
GREATEST_MISSES: Final = 3
MARGIN: Final = 0.02
PRIOR_SCORES: Final = 20
"""Weight of the prior from other hosts, as a number of the series' own scores."""
WIDENING_GAIN: Final = 0.02
GREATEST_WIDENING: Final = 1.0
LEAST_SPREAD_RATIO: Final = 1e-3
"""Minimum spread for calibration, as a share of the series' greatest absolute value; residuals are in units of it."""
LEAST_VALUE: Final = 1e-12
"""Minimum of the greatest absolute value, for a series of zeros."""

MODELS: Final[tuple[Forecaster, ...]] = (LastValue(), Smoothing(), Arima(), GaussianProcess(), Seasonal())
_KEPT: Final = max(model.history for model in MODELS) + 1


@dataclass(frozen=True, slots=True, eq=False)
class Track:
    """One model on one series: its parameters, its pending forecast and bound, and its scores."""

    fitted: Fitted | None = None
    fitted_at: int | None = None
    forecast: SeriesForecast | None = None
    bound: float = math.nan
    scale: float = math.nan
    calibration: Calibration = field(default_factory=lambda: Calibration(COVERAGE, COVERAGE))
    errors: Floats = field(default_factory=lambda: np.empty(0))
    losses: Floats = field(default_factory=lambda: np.empty(0))
    missed: int = 0
    """Bits of the last ``LOSSES`` scores, the newest one lowest; 1 if the value exceeded the bound."""

    @property
    def loss(self) -> float:
        """Mean loss over the last scores; infinite without scores."""
        return float(np.add.reduce(self.losses)) / len(self.losses) if len(self.losses) else math.inf

    @property
    def misses(self) -> int:
        """Misses among the last ``WINDOW`` scores."""
        return newest_misses(self.missed, WINDOW)


@dataclass(frozen=True, slots=True, eq=False)
class SeriesLadder:
    """One series: its latest values (oldest first), their total number, its models, and the acting one.

    ``bound`` is the calibrated bound of the next value; it and ``acting`` are None if no model acts.
    """

    values: Floats = field(default_factory=lambda: np.empty(0))
    seen: int = 0
    tracks: Mapping[str, Track] = field(default_factory=dict)
    acting: str | None = None
    bound: float | None = None
    widening: float = 0.0

    @property
    def forecast(self) -> SeriesForecast | None:
        """The acting model's forecast; None if no model acts."""
        return self.tracks[self.acting].forecast if self.acting else None


_NEW_TRACK: Final = Track()
_ALL_MISSES: Final = (1 << LOSSES) - 1
_scored_as = changer(Track, "forecast", "bound", "scale", "calibration", "errors", "losses", "missed")
_fitted_as = changer(Track, "fitted", "fitted_at")
_forecast_as = changer(Track, "forecast", "bound", "scale")
_observed_as = changer(SeriesLadder, "values", "seen", "tracks", "bound", "widening")
_chosen_as = changer(SeriesLadder, "tracks", "acting", "bound")
_with_tracks = changer(SeriesLadder, "tracks")


def observed(
    ladder: SeriesLadder, value: float, models: Sequence[Forecaster] = MODELS, kept: int = _KEPT
) -> SeriesLadder:
    """The ladder after one more window's value, which must be finite. ``forecast`` must follow."""
    if not math.isfinite(value):
        raise ValueError(f"a series needs finite values, not {value!r}")
    tracks = {model.name: _scored(ladder.tracks.get(model.name, _NEW_TRACK), value) for model in models}
    values = appended(ladder.values, value, kept)
    widening = _widened(ladder, value)
    return _observed_as(ladder, values, ladder.seen + 1, tracks, None, widening)


def noted(ladder: SeriesLadder, value: float, kept: int = _KEPT) -> SeriesLadder:
    """The ladder after a window that it did not forecast: it learns the value without scores."""
    if not math.isfinite(value):
        raise ValueError(f"a series needs finite values, not {value!r}")
    tracks = {
        name: track if track.forecast is None else _forecast_as(track, None, math.nan, math.nan)
        for name, track in ladder.tracks.items()
    }
    values = appended(ladder.values, value, kept)
    return _observed_as(ladder, values, ladder.seen + 1, tracks, None, ladder.widening)


def due(ladder: SeriesLadder, models: Sequence[Forecaster] = MODELS) -> tuple[str, ...]:
    """Models that need a fit: they have enough values, and the last fit is ``refit_every`` windows old or missing."""
    if len(ladder.values) < GRACE:
        return ()
    return tuple(
        model.name
        for model in models
        if len(ladder.values) >= model.least
        and _is_due(ladder.tracks.get(model.name, _NEW_TRACK), model, ladder.seen)
    )


def refitted(
    values: Floats, names: Sequence[str], models: Sequence[Forecaster] = MODELS
) -> dict[str, Fitted | None]:
    """Parameters of the named models. This is the expensive part and runs in a worker process."""
    return {model.name: model.fit(values) for model in models if model.name in names}


def with_fits(ladder: SeriesLadder, fits: Mapping[str, Fitted | None]) -> SeriesLadder:
    """The ladder with these parameters; None withdraws a model until its next fit."""
    tracks = dict(ladder.tracks)
    for name, fitted in fits.items():
        tracks[name] = _fitted_as(tracks.get(name, _NEW_TRACK), fitted, ladder.seen)
    return _with_tracks(ladder, tracks)


def forecast(
    ladder: SeriesLadder, models: Sequence[Forecaster] = MODELS, prior: Mapping[str, float] | None = None
) -> SeriesLadder:
    """The ladder with forecasts of every fitted model, and the acting model chosen.

    ``prior``: the models' losses elsewhere, in the series' unit, which count as ``PRIOR_SCORES`` scores.
    """
    return forecast_all([ladder], [prior or {}], models)[0]


def forecast_all(
    ladders: Sequence[SeriesLadder],
    priors: Sequence[Mapping[str, float]],
    models: Sequence[Forecaster] = MODELS,
) -> list[SeriesLadder]:
    """``forecast`` for many series, each with its prior."""
    leasts = [LEAST_SPREAD_RATIO * max(_greatest(ladder.values), LEAST_VALUE) for ladder in ladders]
    tracks: list[dict[str, Track]] = [{} for _ in ladders]
    for model in models:
        known = [ladder.tracks.get(model.name, _NEW_TRACK) for ladder in ladders]
        places = [place for place, track in enumerate(known) if track.fitted is not None]
        fitted = [track.fitted for track in known if track.fitted is not None]
        found = predictions(model, fitted, [ladders[place].values for place in places])
        scored = [known[place] for place in places]
        many = multipliers([track.calibration for track in scored])
        errors = root_mean_squares([track.errors for track in scored])
        for place, each, multiplier, error in zip(places, found, many, errors, strict=True):
            scale = max(math.hypot(each.spread, error), leasts[place])
            known[place] = _with_forecast(known[place], each, multiplier, scale)
        for own, track in zip(tracks, known, strict=True):
            own[model.name] = track
    return [_chosen(*each) for each in zip(ladders, tracks, priors, strict=True)]


def _chosen(ladder: SeriesLadder, tracks: Mapping[str, Track], prior: Mapping[str, float]) -> SeriesLadder:
    acting = _best(tracks, ladder.acting, prior) if ladder.seen >= GRACE else None
    return _chosen_as(ladder, tracks, acting, _bound(tracks[acting], ladder.widening) if acting else None)


def with_miss(missed: int, miss: bool) -> int:
    """The bits of the last ``LOSSES`` scores after one more."""
    return (missed << 1 | int(miss)) & _ALL_MISSES


def newest_misses(missed: int, scores: int) -> int:
    """Number of misses among the newest ``scores`` scores."""
    return (missed & ((1 << scores) - 1)).bit_count()


def _greatest(values: Floats) -> float:
    """The greatest absolute value; 0 if there are no values."""
    if not len(values):
        return 0.0
    return max(float(np.maximum.reduce(values)), -float(np.minimum.reduce(values)))


def _is_due(track: Track, model: Forecaster, seen: int) -> bool:
    """Whether to fit now. A young series and a model that has just missed twice are fitted sooner."""
    if track.fitted_at is None:
        return True
    age = seen - track.fitted_at
    young = max(LEAST_AGE, track.fitted_at // 4)
    if age >= min(model.refit_every, young):
        return True
    surprising = model.refit_every < NEVER and age >= LEAST_AGE
    return surprising and newest_misses(track.missed, LEAST_AGE) >= SURPRISES


def _scored(track: Track, value: float) -> Track:
    if track.forecast is None:
        return track
    missed = value > track.bound
    error = value - track.forecast.mean
    return _scored_as(
        track,
        None,
        math.nan,
        math.nan,
        with_residual(track.calibration, error / track.scale, missed),
        appended(track.errors, error, WINDOW),
        appended(track.losses, pinball(COVERAGE, track.bound, value), LOSSES),
        with_miss(track.missed, missed),
    )


def _with_forecast(track: Track, found: SeriesForecast, multiplier: float, scale: float) -> Track:
    if not (math.isfinite(found.mean) and math.isfinite(found.spread)):
        return _forecast_as(track, None, math.nan, track.scale)
    return _forecast_as(track, found, found.mean + multiplier * scale, scale)


def _bound(track: Track, widening: float) -> float:
    """The acting model's bound, moved away from its mean: the distance is multiplied by exp(``widening``)."""
    distance = track.bound - track.forecast.mean if track.forecast else 0.0
    return track.bound + max(0.0, distance) * math.expm1(widening)


def _widened(ladder: SeriesLadder, value: float) -> float:
    if ladder.bound is None:
        return ladder.widening
    missed = float(value > ladder.bound)
    return min(GREATEST_WIDENING, max(0.0, ladder.widening + WIDENING_GAIN * (missed - (1 - COVERAGE))))


def _best(tracks: Mapping[str, Track], acting: str | None, prior: Mapping[str, float]) -> str | None:
    reaching = {
        name: track.loss
        for name, track in tracks.items()
        if track.forecast and track.misses <= GREATEST_MISSES
    }
    if not reaching:
        return None
    reaching = {
        name: _with_prior(tracks[name], prior[name]) for name in reaching if name in prior
    } or reaching
    best = min(reaching, key=lambda name: reaching[name])
    if acting in reaching and reaching[acting] <= reaching[best] * (1 + MARGIN):
        return acting
    return best


def _with_prior(track: Track, prior: float) -> float:
    n = len(track.losses)
    return (float(np.add.reduce(track.losses)) + PRIOR_SCORES * prior) / (n + PRIOR_SCORES)
