"""Every model and the ladder on every series: violations, slack, pinball loss and coverage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from perphd.forecast.calibration import pinball
from perphd.forecast.gaussian_process import GaussianProcess
from perphd.forecast.histogram import Floats
from perphd.forecast.ladder import (
    COVERAGE,
    MODELS,
    SeriesLadder,
    due,
    forecast,
    observed,
    refitted,
    with_fits,
)
from perphd.forecast.series import Forecaster, LastValue, SeriesForecast, Smoothing

K1: Final = 0.05
K2S: Final = (0, 1, 2, 3)
WARM_UP: Final = 100
"""Number of unscored windows at the start, which models and calibrations need."""
LADDER: Final = "ladder"
PUBLISHED_MODELS: Final[tuple[Forecaster, ...]] = (
    LastValue(10, name="last-10"),
    Smoothing(10, name="ses-10"),
    GaussianProcess(10, 10, name="gp-10-10", refit_every=10),
)
"""Configurations of the published re-test that the ladder does not use."""


@dataclass(slots=True)
class Figures:
    """Sums over the scored windows of a family, for one model."""

    windows: int = 0
    violations: dict[int, int] = field(default_factory=lambda: dict.fromkeys(K2S, 0))
    slack: dict[int, float] = field(default_factory=lambda: dict.fromkeys(K2S, 0.0))
    absolute_error: float = 0.0
    loss: float = 0.0
    covered: int = 0
    bound_slack: float = 0.0
    absent: int = 0

    def add(self, found: SeriesForecast | None, bound: float | None, value: float) -> None:
        """Score one window. Without a forecast, the reservation of 1 is used."""
        self.windows += 1
        self.absent += found is None
        for k2 in K2S:
            target = 1.0 if found is None else min(1.0, max(0.0, found.mean + K1 + k2 * found.spread))
            self.violations[k2] += value > target
            self.slack[k2] += target - value
        if found is not None:
            self.absolute_error += abs(found.mean - value)
        limit = 1.0 if bound is None else min(1.0, bound)
        self.loss += pinball(COVERAGE, limit, value)
        self.covered += value <= limit
        self.bound_slack += limit - value


def run(series: Iterable[Floats], models: Sequence[Forecaster] = MODELS) -> dict[str, Figures]:
    """Figures of every model and of the ladder over these series."""
    found = {name: Figures() for name in (*(model.name for model in models), LADDER)}
    for values in series:
        state = SeriesLadder()
        for value in values.tolist():
            if state.seen >= WARM_UP:
                for model in models:
                    track = state.tracks[model.name]
                    bound = track.bound if track.forecast else None
                    found[model.name].add(track.forecast, bound, value)
                found[LADDER].add(state.forecast, state.bound, value)
            state = observed(state, value, models)
            names = due(state, models)
            state = with_fits(state, refitted(state.values, names, models)) if names else state
            state = forecast(state, models)
    return found


def single_best(found: dict[str, Figures]) -> str:
    """The model with the least mean loss of its calibrated bound."""
    return min((name for name in found if name != LADDER), key=lambda name: found[name].loss)


def relative_loss(found: dict[str, Figures]) -> float:
    """The ladder's loss over that of the best single model."""
    return found[LADDER].loss / found[single_best(found)].loss


def mean_over_families(families: dict[str, dict[str, Figures]], name: str) -> float:
    """A model's mean loss, with equal weight for each family."""
    return float(np.mean([found[name].loss / found[name].windows for found in families.values()]))
