"""A model's predictions for many allocations, as columns, before conversion to bands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from perphd.domain.allocation import Allocation
from perphd.domain.policy import Band
from perphd.predictor.physics import CpuGrants, Floats

_TINY: Final = 1e-6
_MOST_PCT: Final = 10**7
_MOST_WAYS: Final = 4096


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """Predicted values, standard deviations of their logarithms, and support, each of shape (n,).

    ``domain.policy.Band`` explains the three.
    """

    value: Floats
    sd: Floats
    support: Floats

    def bands(self) -> tuple[Band, ...]:
        """One band per allocation."""
        return tuple(map(Band, self.value.tolist(), self.sd.tolist(), self.support.tolist()))

    def at_most(self, most: Floats | float) -> Answer:
        """The same predictions, with values limited to ``most``."""
        return Answer(np.minimum(self.value, most), self.sd, self.support)

    def monotone(
        self, allocations: Sequence[Allocation], grants: CpuGrants, heavier_is_more: bool = False
    ) -> Answer:
        """Enforce monotonicity: on the same cores, a lower batch weight is never worse for the LRA.

        Contradicting predictions are pooled, weighted by precision, so that measurements outweigh expectations
        (isotonic regression by pooling adjacent violators). ``heavier_is_more``: True for batch's own share,
        which never falls as its weight grows. More exclusive *cores* are not assumed to be better: on a small host,
        a split can cost more than it saves.
        """
        if len(self.value) < 2:
            return self
        alike = _same_but_weight(allocations, grants)
        order = np.lexsort((grants.weight if heavier_is_more else -grants.weight, alike))
        sorted_alike, rising = alike[order], self.value[order]
        begins = np.flatnonzero(np.diff(sorted_alike)) + 1
        falls = (sorted_alike[1:] == sorted_alike[:-1]) & (rising[1:] < rising[:-1])
        if not falls.any():
            return self
        value = self.value.copy()
        for members in np.split(order, begins):
            if len(members) > 1 and (np.diff(self.value[members]) < 0).any():
                value[members] = _pooled(self.value[members], self.sd[members])
        return Answer(value, self.sd, self.support)


def _same_but_weight(allocations: Sequence[Allocation], grants: CpuGrants) -> NDArray[np.int64]:
    """A number per allocation, equal for allocations that differ only in batch's weight (and memory)."""
    cores = grants.batch.astype(np.int64) * 2 + grants.exclusive
    ways = np.array([a.llc_ways for a in allocations], dtype=np.int64)
    throttle = np.array([a.mbw_pct for a in allocations], dtype=np.int64)
    return np.asarray((cores * (_MOST_WAYS + 1) + ways) * (_MOST_PCT + 1) + throttle, dtype=np.int64)


def _pooled(values: Floats, sds: Floats) -> list[float]:
    """The non-decreasing values closest to ``values``, weighted by precision (isotonic regression)."""
    pools: list[tuple[float, float, int]] = []  # log value, precision, number of members
    for value, sd in zip(values.tolist(), sds.tolist(), strict=True):
        pool = math.log(max(value, _TINY)), 1.0 / max(sd, 1e-3) ** 2, 1
        while pools and pools[-1][0] > pool[0]:
            before, precision, many = pools.pop()
            both = precision + pool[1]
            pool = (before * precision + pool[0] * pool[1]) / both, both, many + pool[2]
        pools.append(pool)
    return [math.exp(value) for value, _, many in pools for _ in range(many)]
