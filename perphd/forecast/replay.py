"""Replays a stored history through the ladder: past forecasts of each model, and the next forecast."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from perphd.domain.reading import Unavailable
from perphd.forecast.following import (
    LEAST_WINDOWS,
    ModelScore,
    NextWindow,
    next_window,
    scores,
    started,
    too_short,
)
from perphd.forecast.histogram import Floats
from perphd.forecast.ladder import LOSSES

SCORED: Final = LOSSES


@dataclass(frozen=True, slots=True)
class Outlook:
    """One series: its windows, the forecast or the reason why there is none, and the models' scores."""

    windows: int
    next_window: NextWindow | Unavailable
    scores: tuple[ModelScore, ...] = ()


def outlook(values: Floats, most: float = math.inf) -> Outlook:
    """The forecast after ``values``, oldest first, and the models' scores on the latest of them.

    ``most``: the host's capacity.
    """
    series = started(range(len(values)), values.tolist(), SCORED)
    if series is None:
        return Outlook(0, Unavailable(too_short(0)))
    found = next_window(series, most)
    said = () if series.ladder.seen < LEAST_WINDOWS else scores(series)
    return Outlook(series.ladder.seen, found, said)
