"""A stored history run through the ladder: what each model would have forecast, and the forecast that follows."""

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
    """One series: the windows that were used, the forecast or why there is none, and the models' scores."""

    windows: int
    next_window: NextWindow | Unavailable
    scores: tuple[ModelScore, ...] = ()


def outlook(values: Floats, most: float = math.inf) -> Outlook:
    """The forecast after ``values``, oldest first, and how the models did on the latest of them.

    ``most``: what the host has.
    """
    series = started(range(len(values)), values.tolist(), SCORED)
    if series is None:
        return Outlook(0, Unavailable(too_short(0)))
    found = next_window(series, most)
    said = () if series.ladder.seen < LEAST_WINDOWS else scores(series)
    return Outlook(series.ladder.seen, found, said)
