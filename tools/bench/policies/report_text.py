"""Small things that every part of the report needs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

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


def pct(value: float) -> str:
    """A share in whole per cent."""
    return "-" if math.isnan(value) else f"{100 * value:.0f} %"


def number(value: float, digits: int) -> str:
    """With so many digits after the point."""
    return "-" if math.isnan(value) else f"{value:.{digits}f}"
