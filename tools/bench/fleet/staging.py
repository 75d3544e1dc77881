"""Prophet beside CS, DRF and Tetris on the published 90 applications, one server for all (ICAC 2016).

``ideal back-off`` is not the product's backoff: contention then costs a quarter of ``kappa``, as in a re-test of the
source.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from typing import Final

from perphd.qos.availability import GREATEST_OVER_RATIO
from perphd.sim.cluster.staged import (
    KAPPA,
    StagedOutcome,
    StagedPolicy,
    StagedServer,
    StagedSettings,
    ninety_applications,
)

IDEAL: Final = 0.25
CONTESTANTS: Final[dict[str, StagedSettings]] = {
    "CS": StagedSettings(StagedPolicy.CAPACITY),
    "DRF": StagedSettings(StagedPolicy.DRF),
    "Tetris": StagedSettings(StagedPolicy.TETRIS),
    "Prophet": StagedSettings(StagedPolicy.PROPHET, backoff=True),
    "Prophet, no back-off": StagedSettings(StagedPolicy.PROPHET),
    "Prophet, cap": StagedSettings(StagedPolicy.PROPHET, backoff=True, most_over=GREATEST_OVER_RATIO),
    "Prophet, cap, no back-off": StagedSettings(StagedPolicy.PROPHET, most_over=GREATEST_OVER_RATIO),
    "Prophet, ideal back-off": StagedSettings(StagedPolicy.PROPHET, kappa=IDEAL),
    "CS, back-off": StagedSettings(StagedPolicy.CAPACITY, backoff=True),
}
"""Policies whose ``kappa`` is a multiple of the bench's."""


@dataclass(frozen=True, slots=True)
class StagedFigures:
    """One run: makespan, and medians over the applications."""

    makespan_s: float
    execution_s: float
    completion_s: float
    over_ratio: float
    rounds: int


def staged_run(contestant: str, seed: int, kappa: float = KAPPA) -> StagedFigures:
    """One contestant on one seed's applications."""
    settings = CONTESTANTS[contestant]
    factor = settings.kappa if settings.kappa == IDEAL else 1.0
    return _of(StagedServer(ninety_applications(seed), replace(settings, kappa=kappa * factor)).run())


def _of(outcome: StagedOutcome) -> StagedFigures:
    return StagedFigures(
        outcome.makespan_s,
        statistics.median(outcome.execution_s),
        statistics.median(outcome.completion_s),
        outcome.over_ratio,
        outcome.restricted,
    )
