"""Missed seconds beyond those of ``oracle-late``, which knows everything one period late.

The optimum of a situation is found without fluctuations, and lies as near to the targets as possible. In a run, loads
and needs wander, caches fill and backlogs drain, and samples are a period old. The misses of ``oracle-late`` are
therefore the price of ORACLE's batch work, not a lower bound: a step back from the edge misses less.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from tools.bench.policies import held
from tools.bench.policies.measure import Result

TOLD: Final = (
    "*beyond late*: missed, without what oracle-late misses in the same scenario and seed (0 where less is missed). "
    "oracle-held and oracle-late set ORACLE's settings in the same world, where loads wander and backlogs drain: held "
    "knows a situation as it begins, late a second after. What they miss "
    "is the price of standing on the edge of the targets for the most batch work; a step back misses less."
)


def beyond(runs: Sequence[Result]) -> dict[tuple[str, str, int], float]:
    """By scenario, policy and seed: the share of the time missed beyond ``oracle-late``; absent without such a run."""
    floors = {(r.scenario, r.seed): r.excess_s for r in runs if r.policy == held.LATE}
    return {
        (r.scenario, r.policy, r.seed): max(0.0, r.excess_s - floors[r.scenario, r.seed])
        / max(r.seconds, 1e-9)
        for r in runs
        if (r.scenario, r.seed) in floors and not math.isnan(r.excess_s)
    }
