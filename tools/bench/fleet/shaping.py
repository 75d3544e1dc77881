"""Shaping in the loop of a scheduler: the published grid of modes and forecasters (Pace 2018, 4.3), smaller.

Applications have the memory requests of the Google cluster of 2011, and their use is drawn by the published generator.
Unlike the publication, applications have at most 40 components and log-normal run times (median an hour, 10 minutes to
6 hours).
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import numpy as np

from perphd.forecast.arima import Arima
from perphd.forecast.gaussian_process import GaussianProcess
from perphd.forecast.series import Forecaster, LastValue, Smoothing
from perphd.sim.cluster.shaped import WINDOW_S, Limit, ShapedApplication, ShapedCluster
from perphd.sim.cluster.workloads import HOST_GIB, google_2011
from perphd.sizing.shaper import Resource, ShaperMode, ShaperSettings
from tools.bench.forecasts.families import author

HOSTS: Final = 10
LOAD: Final = 3.0
GREATEST_COMPONENTS: Final = 40
RUN_MEDIAN_S: Final = 3600.0
RUN_FROM_S, RUN_TO_S = 600.0, 6 * 3600.0
FORECASTERS: Final[dict[str, Forecaster | None]] = {
    "oracle": None,
    "last": LastValue(),
    "ses": Smoothing(),
    "arima": Arima(),
    "gp": GaussianProcess(10, 10, refit_every=10),
}


@dataclass(frozen=True, slots=True)
class Shaping:
    """One run's settings. ``k1``: share of the reservation that is always kept; ``k2``: number of spreads that are
    always kept.
    """

    mode: ShaperMode
    forecaster: str
    k1: float = 0.05
    k2: float = 3.0
    limit: Limit = Limit.HARD


@dataclass(frozen=True, slots=True)
class ShapedFigures:
    """One run's figures."""

    mean_s: float
    slack_ratio: float
    crashed_ratio: float
    preempted: int


CASES: Final = (
    Shaping(ShaperMode.OFF, "oracle"),
    Shaping(ShaperMode.OPTIMISTIC, "oracle"),
    Shaping(ShaperMode.PESSIMISTIC, "oracle"),
    Shaping(ShaperMode.OPTIMISTIC, "ses"),
    Shaping(ShaperMode.PESSIMISTIC, "ses"),
    Shaping(ShaperMode.PESSIMISTIC, "last"),
    Shaping(ShaperMode.PESSIMISTIC, "arima"),
    Shaping(ShaperMode.PESSIMISTIC, "gp"),
    Shaping(ShaperMode.PESSIMISTIC, "ses", k1=0.0, k2=0.0),
    Shaping(ShaperMode.PESSIMISTIC, "ses", k2=0.0),
    Shaping(ShaperMode.PESSIMISTIC, "ses", k1=1.0),
    Shaping(ShaperMode.OPTIMISTIC, "ses", limit=Limit.SOFT),
    Shaping(ShaperMode.PESSIMISTIC, "ses", limit=Limit.SOFT),
)


@lru_cache(8)
def workload(seed: int, count: int) -> tuple[ShapedApplication, ...]:
    """Applications that reserve ``LOAD`` times the memory of the hosts while they are submitted."""
    drawn, _ = google_2011(seed, count, HOSTS, LOAD, interactive=False)
    rng = np.random.default_rng([seed, 1])
    found = []
    for each in drawn:
        components = min(each.components, GREATEST_COMPONENTS)
        core = min(each.core // each.unit, components) if each.elastic else components
        run_s = float(np.clip(RUN_MEDIAN_S * math.exp(rng.standard_normal()), RUN_FROM_S, RUN_TO_S))
        use = author(rng, max(30, int(run_s / WINDOW_S)))
        found.append(
            ShapedApplication(
                each.name, each.submitted_s, core, components - core, run_s, each.unit / 1024.0, use
            )
        )
    work = sum((each.core + each.elastic) * each.reserved_gib * each.run_s for each in found)
    scale = work / (HOSTS * HOST_GIB * LOAD) / max(1e-9, drawn[-1].submitted_s)
    return tuple(replace(each, submitted_s=each.submitted_s * scale) for each in found)


def shaped(case: Shaping, seed: int, count: int) -> ShapedFigures:
    """One run and its figures."""
    settings = ShaperSettings(k1=case.k1, k2={Resource.MEMORY: case.k2})
    found = ShapedCluster(
        workload(seed, count), HOSTS, HOST_GIB, case.mode, FORECASTERS[case.forecaster], settings, case.limit
    ).run()
    return ShapedFigures(
        statistics.mean(found.turnaround_s), found.slack_ratio, found.crashed_ratio, found.preempted
    )
