"""What nobody avoids who stands where ORACLE stands: missed seconds beyond those of ``oracle-late``.

The optimum of a situation is found where nothing fluctuates. In a run, loads and needs wander, caches fill and backlogs
drain, and what was sampled is a period old: ``oracle-late`` sets the optimum of the situation as it was a period ago,
and what it misses is the floor for everybody who leaves batch as much. Who leaves batch less may miss less.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from tools.bench.policies import held
from tools.bench.policies.measure import Result

TOLD: Final = (
    "*beyond the floor*: missed, without what oracle-late misses in the same scenario and seed (0 where less is "
    "missed). oracle-held and oracle-late set ORACLE's settings in the same world, where loads wander and backlogs "
    "drain: held knows a situation as it begins, late a second after, as everybody does who samples once a second. "
    "They are the floor for a policy that leaves batch as much as ORACLE; who leaves it less may miss less."
)


def beyond(runs: Sequence[Result]) -> dict[tuple[str, str, int], float]:
    """By scenario, policy and seed: the share of the time that was missed beyond the floor. Without a floor: absent."""
    floors = {(r.scenario, r.seed): r.excess_s for r in runs if r.policy == held.LATE}
    return {
        (r.scenario, r.policy, r.seed): max(0.0, r.excess_s - floors[r.scenario, r.seed])
        / max(r.seconds, 1e-9)
        for r in runs
        if (r.scenario, r.seed) in floors and not math.isnan(r.excess_s)
    }
