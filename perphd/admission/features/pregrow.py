"""Prepares an LRA for a forecast load spike with idle resources only; batch loses nothing.

The evidence is a load forecast (``forecast.load``) with its recent error. The step takes only resources that batch does
not use. If trouble occurs nevertheless, the controller handles it as usual.
"""

from __future__ import annotations

import math
from dataclasses import replace

from perphd.admission.context import batch_demand_cores, model_context
from perphd.admission.detector.judge import Target
from perphd.admission.inference import inferer
from perphd.admission.review.lra_context import LraContext
from perphd.admission.thresholds import SURE
from perphd.domain.allocation import Allocation
from perphd.domain.decision import Evidence
from perphd.domain.policy import ResPerfModel
from perphd.domain.reading import Reading, available
from perphd.forecast import load as load_forecast
from perphd.forecast.load import Expected, LoadForecast

NO_FORECASTS = (LoadForecast(), LoadForecast(bin_s=load_forecast.DAY_BIN_S))
"""Forecasts over minutes, and over days."""
LEAST_GAIN = 0.15
"""Minimum gain in the chance of meeting the target that justifies a step."""


def observe(states: tuple[LoadForecast, ...], load: Reading, now_s: float) -> tuple[LoadForecast, ...]:
    """Update both forecasts with one more load."""
    if not available(load):
        return states
    return tuple(load_forecast.observe(state, load, now_s) for state in states)


def spike(
    states: tuple[LoadForecast, ...], load: Reading, horizon_s: float, least_growth: float
) -> Expected | None:
    """The growth of the load to prepare for; None if no forecast is good enough.

    A seasonal forecast is preferred to a trend. The growth must exceed the forecasts' recent error.
    """
    if not available(load) or load <= 0:
        return None
    found = [e for e in (load_forecast.expect(state, horizon_s) for state in states) if e is not None]
    seasonal = [e for e in found if e.season_s > 0]
    for expected in (*seasonal, *found[:1]):
        growth = expected.load_per_s / load
        if growth >= least_growth and growth >= expected.error_factor**2:
            return expected
    return None


def evidence(expected: Expected, load: Reading) -> Evidence:
    """The forecast as evidence of the decision."""
    season = f"a season of {expected.season_s:.0f} s" if expected.season_s else "the trend"
    off = f"recent forecasts were off by {100.0 * (expected.error_factor - 1.0):.0f} %"
    return Evidence("forecast load", expected.load_per_s, load, "/s", f"expected soon, by {season}; {off}")


def advise(
    lra: LraContext, model: ResPerfModel, target: Target, load: Reading, expected: Expected
) -> Allocation | None:
    """The step into idle resources that keeps the target under the expected load; None if no step gains enough."""
    if not available(load) or load <= 0:
        return None
    z = lra.settings.confidence_z
    now = model_context(lra.snapshot, lra.view, model)
    growth = expected.load_per_s / load
    then = replace(now, lra_demand_cores=min(now.lra_demand_cores * growth, now.total_cores))
    allocations = inferer.lattice(lra.current, lra.floor_cores(), lra.knobs())
    today = inferer.assess(allocations, model, now, target, z)
    later = inferer.assess(allocations, model, then, target, z)
    used = batch_demand_cores(lra.snapshot)
    here = next(i for i, a in enumerate(allocations) if a == lra.current)
    has = today[here].batch_cores
    least = inferer.chance(later[here].prediction, 1.0, z)
    if least >= SURE:
        return None
    best: tuple[float, Allocation] | None = None
    for a, item, spiked in zip(allocations, today, later, strict=True):
        idle_only = (
            a.cpu.batch_cores >= math.ceil(used) and item.batch_cores >= has - inferer.NEGLIGIBLE_CORES
        )
        if a == lra.current or not idle_only or inferer.protects_no_more(a.cpu, lra.current.cpu):
            continue
        keeps = inferer.chance(spiked.prediction, 1.0, z)
        if keeps >= least + LEAST_GAIN and (best is None or keeps > best[0]):
            best = (keeps, a)
    return best[1] if best is not None else None
