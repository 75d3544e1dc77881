"""Formatting and statistics shared by all parts of the report."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from tools.bench.policies.catalogue import place
from tools.bench.policies.measure import Result

_T95: Final = {5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
_T95_MANY: Final = 2.228
"""Student's t for a two-sided 95 % interval, by the number of values; for more than ten values, that of eleven."""


def present(runs: Sequence[Result]) -> list[str]:
    """Policies of the runs, in the catalogue's order."""
    return sorted({r.policy for r in runs}, key=place)


def mean(values: Iterable[float]) -> float:
    """Mean of the values that are numbers; nan if there is none."""
    found = [v for v in values if not math.isnan(v)]
    return statistics.fmean(found) if found else math.nan


def over(runs: Iterable[Result], value: Callable[[Result], float]) -> float:
    """Mean over scenarios of the mean over seeds, so that the number of runs does not affect the weight."""
    by_scenario: dict[str, list[float]] = {}
    for run in runs:
        by_scenario.setdefault(run.scenario, []).append(value(run))
    return mean(mean(values) for values in by_scenario.values())


def scatter(runs: Sequence[Result], value: Callable[[Result], float]) -> float:
    """Half of the 95 % interval of the mean over scenarios and seeds (Student's t); nan with fewer than five seeds.

    Seeds are random; the scenarios are fixed. For missing seeds of a scenario, its mean takes their place.
    """
    seeds = min(
        (n for s in {r.scenario for r in runs} if (n := sum(r.scenario == s for r in runs)) > 1), default=0
    )
    if seeds < 5:
        return math.nan
    known = {(r.scenario, r.seed): value(r) for r in runs}
    middle = {s: mean(v for (name, _), v in known.items() if name == s) for s in {r.scenario for r in runs}}
    spread = statistics.stdev(
        mean(known.get((scenario, seed), middle[scenario]) for scenario in middle) for seed in range(seeds)
    )
    return _T95.get(seeds, _T95_MANY) * spread / math.sqrt(seeds)


def pct(value: float) -> str:
    """A share in whole per cent."""
    return "-" if math.isnan(value) else f"{100 * value:.0f} %"


def pct_with(value: float, scattered: float) -> str:
    """A share in per cent, with its scatter where that is known."""
    return pct(value) if math.isnan(scattered) else f"{100 * value:.1f} ± {100 * scattered:.1f} %"


def number(value: float, digits: int) -> str:
    """The number with this many digits after the point."""
    return "-" if math.isnan(value) else f"{value:.{digits}f}"
