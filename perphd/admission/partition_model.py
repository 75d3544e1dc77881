"""The score of an LRA with k own cores: its model's prediction, with the queue estimate as the prior. Pure.

The Res-Perf model of each LRA is asked once per tick, for a lattice of core counts under the cache and bandwidth in
force. Both estimates are log-normal bands of the score. Their weights are their precisions, the model's multiplied by
its support / ``VISITED``: without samples near k the queue estimate remains, with ample ones the model decides.

The model places samples by their share of the host's cores, so that on a large host it hardly distinguishes 3 own cores
from 6. Its weight therefore also falls with the distance to how busy its own cores were when it was measured
(``likeness``).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from perphd.admission import inferer
from perphd.admission.context import model_context
from perphd.admission.domains import protections_beside
from perphd.admission.inferer import VISITED
from perphd.admission.ladder import strictest_cache
from perphd.admission.member import Look
from perphd.domain.allocation import Allocation, CpuGrant, Weight
from perphd.domain.decision import Prediction
from perphd.domain.policy import Band, Snapshot

REACH_BUSY: Final = 0.06
"""Difference in busy share over which samples lose most of their relevance, as near the knee the score does."""
NEAR: Final = 4
"""Distance from the present number of cores up to which every number is asked for."""
LEAST_SD: Final = 0.02
"""Least standard deviation of a combined estimate (log units)."""


@dataclass(frozen=True, slots=True)
class CoreAnswer:
    """The model's answer for one number of own cores.

    ``prediction``: the score. ``room``: accepted over predicted delay, or work over target if no delay is judged; it
    shows spare capacity better than the score. ``work``: work over target if a delay is judged as well, else None.
    """

    prediction: Prediction
    room: Band
    work: Band | None


@dataclass(frozen=True, slots=True)
class CoreCurve:
    """The model's answers for ascending numbers of own cores, made non-decreasing."""

    counts: tuple[int, ...] = ()
    room: tuple[Band, ...] = ()
    work: tuple[Band, ...] = ()

    def at(self, cores: int) -> tuple[Band, Band | None] | None:
        """Room and work with this number of cores, interpolated in logarithms; None if the model was not asked."""
        if not self.counts:
            return None
        return _between(self.counts, self.room, cores), _between(
            self.counts, self.work, cores
        ) if self.work else None


class CoreModels:
    """The models of several LRAs at one tick.

    Args:
        snapshot: the host now.
        total: usable cores.
        most: greatest number of cores that one LRA can have.
        weight: batch's weight; idle if it runs on LRAs' cores.
    """

    def __init__(self, snapshot: Snapshot, total: int, most: int, weight: Weight) -> None:
        self._snapshot, self._total, self._most, self._weight = snapshot, total, most, weight
        self._curves: dict[str, CoreCurve] = {}

    def ask(self, look: Look, counts: Sequence[int]) -> tuple[CoreAnswer, ...]:
        """The model's answers for these numbers of own cores; empty while its reference is unknown."""
        model, target, z = look.view.model, look.target, look.settings.confidence_z
        by_work, by_delay = inferer.work_factor(target), inferer.delay_factor(target)
        if model is None or (by_work is None and by_delay is None):
            return ()
        cache = strictest_cache(protections_beside(self._snapshot, look.view))
        asked = [Allocation(self._grant(cores), 0, *cache) for cores in counts]
        context = model_context(self._snapshot, look.view, model)
        work, delay = model.predict_work(asked, context), model.predict_delay(asked, context)
        found = []
        for done, waited in zip(work, delay, strict=True):
            works = None if by_work is None else Band(by_work * done.value, done.sd, done.support)
            room = works if by_delay is None else Band(by_delay / waited.value, waited.sd, waited.support)
            assert room is not None
            prediction = inferer.score_of(done, waited, target, z)
            found.append(CoreAnswer(prediction, room, None if by_delay is None else works))
        return tuple(found)

    def curve(self, look: Look, present: int) -> CoreCurve:
        """The model's answers for all numbers of own cores; ``present``: the LRA's own cores now."""
        known = self._curves.get(look.name)
        if known is None:
            near = range(max(1, present - NEAR), min(present + NEAR, self._most) + 1)
            counts = tuple(sorted({*inferer.core_steps(self._most, 1), *near}))
            answers = self.ask(look, counts)
            known = self._curves[look.name] = (
                CoreCurve(
                    counts,
                    rising([a.room for a in answers]),
                    rising([a.work for a in answers if a.work is not None]),
                )
                if answers
                else CoreCurve()
            )
        return known

    def _grant(self, cores: int) -> CpuGrant:
        left = max(0, self._total - cores)
        return CpuGrant(self._total, left, self._weight, exclusive=True, own_cores=cores)


def likeness(busy: float, seen: Sequence[float]) -> float:
    """Relevance (0 to 1) of samples taken at the busy shares ``seen``; 0 if there are none."""
    if not seen:
        return 0.0
    return math.exp(-0.5 * (min(abs(busy - each) for each in seen) / REACH_BUSY) ** 2)


def with_prior(told: tuple[Band, Band | None] | None, prior: Band, alike: float = 1.0) -> Band:
    """The score expected from the model's room and work (``CoreCurve.at``) and the queue estimate ``prior``.

    ``alike``: relevance of the model's samples. The work rate counts if it is predicted to miss its target.
    """
    if told is None:
        return prior
    room, work = told
    found = _pooled(room, prior, alike)
    return _pooled(work, found, alike) if work is not None and work.value < min(found.value, 1.0) else found


def _pooled(model: Band, prior: Band, alike: float) -> Band:
    """Both bands, weighted by precision and the model's support; their disagreement widens the result."""
    if model.support <= 0.0 or model.value <= 0.0 or not math.isfinite(model.sd):
        return prior
    by_model = model.support / VISITED / max(model.sd, LEAST_SD) ** 2
    share = alike * by_model / (by_model + 1.0 / max(prior.sd, LEAST_SD) ** 2)
    apart = math.log(model.value / prior.value)
    var = share * model.sd**2 + (1.0 - share) * prior.sd**2 + share * (1.0 - share) * apart * apart
    return Band(prior.value * math.exp(share * apart), max(math.sqrt(var), LEAST_SD), alike * model.support)


def rising(bands: Sequence[Band]) -> tuple[Band, ...]:
    """These bands with non-decreasing values: contradicting ones are pooled by precision (isotonic regression)."""
    pools: list[tuple[float, float, int]] = []  # log value, precision, number of members
    for band in bands:
        pool = math.log(max(band.value, 1e-6)), 1.0 / max(band.sd, LEAST_SD) ** 2, 1
        while pools and pools[-1][0] > pool[0]:
            before, precision, many = pools.pop()
            both = precision + pool[1]
            pool = (before * precision + pool[0] * pool[1]) / both, both, many + pool[2]
        pools.append(pool)
    values = [math.exp(value) for value, _, many in pools for _ in range(many)]
    return tuple(Band(value, b.sd, b.support) for value, b in zip(values, bands, strict=True))


def _between(counts: Sequence[int], bands: Sequence[Band], cores: int) -> Band:
    place = bisect_left(counts, cores)
    if place >= len(counts) or counts[place] == cores or place == 0:
        return bands[min(place, len(counts) - 1)]
    low, high = bands[place - 1], bands[place]
    part = (cores - counts[place - 1]) / (counts[place] - counts[place - 1])
    return Band(
        low.value * (high.value / low.value) ** part,
        low.sd + part * (high.sd - low.sd),
        low.support + part * (high.support - low.support),
    )
