"""Before a load spike comes: what is idle now may go to the LRA that is expected to need it; batch loses nothing.

A forecast (``forecast.load``) is evidence for a step, with what it expects and how far off it has been of late. The
step is only into what batch does not use; trouble that comes all the same is answered as any other.
"""

from __future__ import annotations

import math
from dataclasses import replace

from perphd.admission import inferer
from perphd.admission.context import batch_demand_cores, model_context
from perphd.admission.detector import Target
from perphd.admission.scene import Scene
from perphd.admission.thresholds import SURE
from perphd.domain.allocation import Allocation
from perphd.domain.decision import Evidence
from perphd.domain.policy import ResPerfModel
from perphd.domain.reading import Reading, available
from perphd.forecast import load as load_forecast
from perphd.forecast.load import Expected, LoadForecast

NO_FORECASTS = (LoadForecast(), LoadForecast(bin_s=load_forecast.DAY_BIN_S))
"""One of minutes, one of days."""
LEAST_GAIN = 0.15
"""By how much the chance to keep the target must grow for a step to be worth a change."""


def observe(states: tuple[LoadForecast, ...], load: Reading, now_s: float) -> tuple[LoadForecast, ...]:
    """Both forecasts after one more load."""
    if not available(load):
        return states
    return tuple(load_forecast.observe(state, load, now_s) for state in states)


def spike(
    states: tuple[LoadForecast, ...], load: Reading, horizon_s: float, least_growth: float
) -> Expected | None:
    """The growth of the load that is to be prepared for, if forecasts are good enough to speak of one.

    One that follows a season comes before a trend. It must be larger than what forecasts of late were off by.
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
    """The forecast as a record of the decision."""
    season = f"a season of {expected.season_s:.0f} s" if expected.season_s else "the trend"
    off = f"forecasts of late were off by {100.0 * (expected.error_factor - 1.0):.0f} %"
    return Evidence("forecast load", expected.load_per_s, load, "/s", f"expected soon, by {season}; {off}")


def advise(
    scene: Scene, model: ResPerfModel, target: Target, load: Reading, expected: Expected
) -> Allocation | None:
    """The step into idle resources that keeps the target under the expected load; None if none is worth it."""
    if not available(load) or load <= 0:
        return None
    z = scene.settings.confidence_z
    now = model_context(scene.snapshot, scene.view, model)
    growth = expected.load_per_s / load
    then = replace(now, lra_demand_cores=min(now.lra_demand_cores * growth, now.total_cores))
    allocations = inferer.lattice(scene.current, scene.floor_cores(), scene.knobs())
    today = inferer.assess(allocations, model, now, target, z)
    later = inferer.assess(allocations, model, then, target, z)
    used = batch_demand_cores(scene.snapshot)
    here = next(i for i, a in enumerate(allocations) if a == scene.current)
    has = today[here].batch_cores
    least = inferer.chance(later[here].prediction, 1.0, z)
    if least >= SURE:
        return None
    best: tuple[float, Allocation] | None = None
    for a, item, spiked in zip(allocations, today, later, strict=True):
        idle_only = (
            a.cpu.batch_cores >= math.ceil(used) and item.batch_cores >= has - inferer.NEGLIGIBLE_CORES
        )
        if a == scene.current or not idle_only or inferer.protects_no_more(a.cpu, scene.current.cpu):
            continue
        keeps = inferer.chance(spiked.prediction, 1.0, z)
        if keeps >= least + LEAST_GAIN and (best is None or keeps > best[0]):
            best = (keeps, a)
    return best[1] if best is not None else None
