"""Water-filling of the CPUs of many nodes at once: weighted max-min fairness in segments.

Pods of all nodes lie in flat columns; ``pool`` names the CPUs that each pod may use. In a pool of C CPUs with
demands d and weights w, pod i gets

    got_i = min(d_i, L w_i)    with the level L at which G(L) = sum of min(d_j, L w_j) = C; L is infinite if all fit

The entitlement of pod i is its share if it asks for everything: L_i w_i with G(L_i) - min(d_i, L_i w_i) + L_i
w_i = C. G is piecewise linear between the ratios d_j / w_j, so prefix sums in the order of the ratios give G
at any level.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]
Places: TypeAlias = npt.NDArray[np.intp]

_TINY: Final = 1e-12
_SPAN: Final = 1e5
"""Upper limit on the ratio of demand to weight, so that pool and ratio fit into one sort key."""
_STEPS: Final = 6
"""Newton steps to an entitlement. G is concave, so the steps approach the level from one side."""


@dataclass(frozen=True, slots=True, eq=False)
class Division:
    """``got``: cores of each pod; ``entitled``: cores that the pod gets if it asks for the whole pool."""

    got: Floats
    entitled: Floats


def divided(pool: Places, capacity: Floats, weight: Floats, demand: Floats) -> Division:
    """Divide each pool's CPUs among its pods.

    Args:
        pool: index into ``capacity`` for each pod.
        capacity: CPUs of each pool.
        weight: weight of each pod relative to the others in its pool; positive.
        demand: cores that each pod wants.
    """
    ratio = np.minimum(demand / weight, _SPAN * 0.999)
    key = pool * _SPAN + ratio
    order = np.argsort(key, kind="stable")
    key = key[order]
    pools = np.arange(len(capacity))
    first = np.searchsorted(key, pools * _SPAN)
    past = np.searchsorted(key, (pools + 1) * _SPAN)
    sum_d = np.concatenate([[0.0], np.cumsum(demand[order])])
    sum_w = np.concatenate([[0.0], np.cumsum(weight[order])])
    all_w = sum_w[past] - sum_w[first]

    def reached(level: Floats, of: Places) -> tuple[Floats, Floats]:
        """G at these levels in these pools, and the weight of the pods that they leave unsatisfied."""
        place = np.searchsorted(key, of * _SPAN + np.minimum(level, _SPAN * 0.999), side="right")
        open_w = np.maximum(all_w[of] - (sum_w[place] - sum_w[first[of]]), 0.0)
        return sum_d[place] - sum_d[first[of]] + level * open_w, open_w

    level = capacity / np.maximum(all_w, _TINY)
    mine = level[pool]
    for _ in range(_STEPS):
        used, open_w = reached(level, pools)
        level = np.minimum(level + np.maximum(capacity - used, 0.0) / np.maximum(open_w, _TINY), _SPAN)
        used, open_w = reached(mine, pool)
        used = used + np.maximum(mine * weight - demand, 0.0)
        slope = open_w + np.where(mine >= ratio, weight, 0.0)
        mine = np.minimum(mine + np.maximum(capacity[pool] - used, 0.0) / np.maximum(slope, _TINY), _SPAN)
    fits = (sum_d[past] - sum_d[first] <= capacity)[pool]
    got = np.where(fits, demand, np.minimum(demand, level[pool] * weight))
    return Division(got, np.minimum(mine * weight, capacity[pool]))
