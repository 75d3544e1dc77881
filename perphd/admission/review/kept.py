"""Allocations that recently kept an LRA's target.

When the protection in force turns out slightly too weak, the model corrects its predictions for similar allocations,
including some that have kept the target in recent measurements. It would then protect far more than necessary.
Measurements therefore take precedence over predictions: among the allocations that kept the target, the one that leaves
the most to batch is preferred. Pure.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from perphd.admission.inference import inferer
from perphd.admission.review.lra_context import LraContext
from perphd.admission.review.outcomes import Setting
from perphd.domain.allocation import Allocation
from perphd.domain.quick import replace
from perphd.domain.reading import Reading, available

LEAST_SAMPLES: Final = 6
"""Number of clean samples from which an allocation counts as measured."""
SURELY: Final = 1.5
"""Number of standard errors by which the mean score under an allocation must exceed the target."""
LASTS_S: Final = 600.0
"""Seconds after an allocation last kept the target until it is forgotten, because programs and their data change."""
MOST: Final = 8
"""Maximum number of allocations to remember."""
LOAD_GREW: Final = 1.1
"""Factor on the load from which an earlier sufficient allocation may no longer suffice."""


@dataclass(frozen=True, slots=True)
class Kept:
    """An allocation that kept the target. ``at_s``: last time at which it did (monotonic); ``setting``:
    circumstances at that time.
    """

    allocation: Allocation
    at_s: float
    setting: Setting


def noted(
    kept: tuple[Kept, ...], lra: LraContext, loads: Sequence[float], scores: Sequence[float], noise_sd: float
) -> tuple[Kept, ...]:
    """The allocations that kept the target, after one more clean sample.

    Args:
        kept: the allocations so far.
        lra: the LRA now.
        loads: its recent loads, newest last; their median is recorded, because a single load scatters.
        scores: clean scores since the last change.
        noise_sd: scatter of one score, in log units.
    """
    if len(scores) < LEAST_SAMPLES:
        return kept
    setting = lra.setting()
    others = tuple(k for k in kept if (k.allocation, k.setting.beside) != (lra.current, setting.beside))
    log = sum(math.log(max(score, 1e-3)) for score in scores) / len(scores)
    if log <= SURELY * noise_sd / math.sqrt(len(scores)):
        return others  # the allocation is no longer enough
    if loads:
        setting = replace(setting, load=statistics.median(loads))
    return (*others, Kept(lra.current, lra.now_s, setting))[-MOST:]


def enough_here(
    kept: Sequence[Kept], lra: LraContext, loads: Sequence[float], regretted: Sequence[Allocation]
) -> tuple[Allocation, ...]:
    """Allocations that were enough in similar circumstances and protect more than the present one in some dimension.

    Allocations that can no longer be set are left out.

    Args:
        kept: allocations that kept the target.
        lra: the LRA now.
        loads: its recent loads, newest last; a rise counts at once.
        regretted: allocations in cooldown.
    """
    here = lra.setting()
    asked = max(statistics.median(loads), loads[-1]) if loads else here.load
    return tuple(
        each.allocation
        for each in kept
        if lra.now_s - each.at_s <= LASTS_S
        and each.setting.beside == here.beside
        and not _grew(each.setting.load, asked)
        and not inferer.asks_no_more(each.allocation, lra.current)
        and each.allocation not in regretted
        and lra.can_set(each.allocation)
    )


def _grew(before: Reading, now: Reading) -> bool:
    return available(before) and available(now) and now > LOAD_GREW * before
