"""Small things that every part of the report needs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence

from tools.bench.policies.catalogue import ENTRANTS
from tools.bench.policies.measure import Result


def present(runs: Sequence[Result]) -> list[str]:
    """Those of the runs, in the catalogue's order."""
    found = {r.policy for r in runs}
    return [name for name in ENTRANTS if name in found]


def mean(values: Iterable[float]) -> float:
    """Of the values that are numbers; nan if there is none."""
    found = [v for v in values if not math.isnan(v)]
    return statistics.fmean(found) if found else math.nan


def over(runs: Iterable[Result], value: Callable[[Result], float]) -> float:
    """Mean over scenarios of the mean over seeds: how often a scenario was run gives it no more weight."""
    by_scenario: dict[str, list[float]] = {}
    for run in runs:
        by_scenario.setdefault(run.scenario, []).append(value(run))
    return mean(mean(values) for values in by_scenario.values())


def scatter(runs: Sequence[Result], value: Callable[[Result], float]) -> float:
    """Standard deviation between seeds of the mean over scenarios; nan with fewer than five seeds.

    A scenario that was run less often than others has its mean in every seed's stead.
    """
    seeds = min(
        (n for s in {r.scenario for r in runs} if (n := sum(r.scenario == s for r in runs)) > 1), default=0
    )
    if seeds < 5:
        return math.nan
    known = {(r.scenario, r.seed): value(r) for r in runs}
    middle = {s: mean(v for (name, _), v in known.items() if name == s) for s in {r.scenario for r in runs}}
    return statistics.stdev(
        mean(known.get((scenario, seed), middle[scenario]) for scenario in middle) for seed in range(seeds)
    )


def pct(value: float) -> str:
    """A share in whole per cent."""
    return "-" if math.isnan(value) else f"{100 * value:.0f} %"


def pct_with(value: float, scattered: float) -> str:
    """A share in per cent, with its scatter where that is known."""
    return pct(value) if math.isnan(scattered) else f"{100 * value:.1f} ± {100 * scattered:.1f} %"


def number(value: float, digits: int) -> str:
    """With so many digits after the point."""
    return "-" if math.isnan(value) else f"{value:.{digits}f}"
