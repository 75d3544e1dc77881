"""Predicts perphd's effect from observations: two linear models with the width of their errors.

The numbers come from ``python -m tools.bench.weeks``: simulated weeks, each run in observe and in enforce from the same
seed. The lines are fitted to all of them. The half widths are conformal: all bands of a week together hold with
probability ``BAND`` for a week outside the fit, whatever the distribution of errors. This applies to hosts like the
simulated ones; the deviation of other hosts is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Banded:
    """A predicted percentage with its band."""

    pct: float
    low_pct: float
    high_pct: float


BAND: Final = 0.95
"""Probability that all bands of a report hold, on hosts like the simulated ones."""

RECOVERED: Final = 0.969
"""Share of the missed time that perphd recovers, excluding time missed even without batch."""
OWN_MISS_PCT: Final = 3.6
"""Time (%) missed only with perphd, because of its own reductions."""
ON_TARGET_HALF_PCT: Final = 16.8

DOUBLED_AT_PCT: Final = 4.0
"""Time missed even without batch (%) at which the band is twice as wide."""

GIVEN: Final = 0.6
"""Share of its CPU time that batch gives up in runs in which an LRA needs protection."""
OWN_GIVEN_PCT: Final = 2.6
BATCH_HALF_PCT: Final = 26.6


def predicted_on_target(observed_pct: float, inherent_pct: float) -> Banded:
    """Share of time on target with perphd, from the share without perphd and the time missed even without batch."""
    missed = inherent_pct + (1.0 - RECOVERED) * (100.0 - observed_pct - inherent_pct) + OWN_MISS_PCT
    return _banded(100.0 - missed, ON_TARGET_HALF_PCT * doubt(inherent_pct))


def doubt(inherent_pct: float) -> float:
    """Factor on the band's width for an LRA that its own load overloads."""
    return 1.0 + inherent_pct / DOUBLED_AT_PCT


def predicted_batch_kept(touched_pct: float) -> Banded:
    """Share of batch's CPU time that remains, from its share in runs in which an LRA needed protection."""
    return _banded(100.0 - OWN_GIVEN_PCT - GIVEN * touched_pct, BATCH_HALF_PCT)


def _banded(pct: float, half_pct: float) -> Banded:
    inside = min(100.0, max(0.0, pct))
    return Banded(inside, max(0.0, pct - half_pct), min(100.0, pct + half_pct))
