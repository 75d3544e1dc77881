"""The score of an LRA with k own cores: its model's prediction, with the queue estimate as the prior. Pure.

The Res-Perf model of each LRA is asked once per tick, for a lattice of core counts under the cache and bandwidth in
force. It is not asked while experience leaves no number of cores open, or while its samples count for nothing. Both
estimates are log-normal bands of the score. Their weights are their precisions, the model's multiplied by its support /
``VISITED``: without samples near k the queue estimate remains, with ample ones the model decides.

The model places samples by their share of the host's cores, so that on a large host it hardly distinguishes 3 own cores
from 6. Its weight therefore also falls with the distance to how busy its own cores were when it was measured
(``likeness``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from perphd.admission.arbiter.member import Look
from perphd.admission.arbiter.partition import Floats, ScoreBands
from perphd.admission.context import model_context
from perphd.admission.inference import inferer
from perphd.admission.inference.domains import protections_beside
from perphd.admission.inference.inferer import VISITED
from perphd.admission.inference.ladder import strictest_cache
from perphd.domain.allocation import Allocation, CpuGrant, Weight
from perphd.domain.decision import Prediction
from perphd.domain.policy import Band, Snapshot

REACH_BUSY: Final = 0.06
"""Difference in busy share over which samples lose most of their relevance, as near the knee the score does."""
NEAR: Final = 4
"""Distance from the present number of cores up to which every number is asked for."""
LEAST_SD: Final = 0.02
"""Least standard deviation of a combined estimate (log units)."""


NOT_ASKED: Final = Band(1.0, 0.0, 0.0)
"""In place of the answer about work or delay that is not judged."""


@dataclass(frozen=True, slots=True, eq=False)
class CoreCurve:
    """The model's answers for 1, 2, ... own cores, made non-decreasing.

    ``room``: accepted over predicted delay, or work over target if no delay is judged; it shows spare capacity better
    than the score. ``work``: work over target if a delay is judged as well, else None.
    """

    room: ScoreBands
    work: ScoreBands | None = None


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
        self._steps = inferer.core_steps(most, 1)
        self._curves: dict[str, CoreCurve | None] = {}
        self._answers: dict[str, dict[int, tuple[Band, Band]]] = {}
        self._allocations: dict[tuple[int, int, int], Allocation] = {}

    def predictions(self, look: Look, counts: Sequence[int]) -> tuple[Prediction, ...]:
        """The scores that the model predicts for these numbers of own cores; empty while its reference is unknown."""
        target, z = look.target, look.settings.confidence_z
        return tuple(inferer.score_of(*answer, target, z) for answer in self._ask(look, counts))

    def curve(self, look: Look, present: int) -> CoreCurve | None:
        """The model's answers for all numbers of own cores; None while its reference is unknown.

        ``present``: the LRA's own cores now.
        """
        if look.name not in self._curves:
            near = range(max(1, present - NEAR), min(present + NEAR, self._most) + 1)
            counts = sorted({*self._steps, *near})
            self._curves[look.name] = self._curve(look, counts)
        return self._curves[look.name]

    def _curve(self, look: Look, counts: Sequence[int]) -> CoreCurve | None:
        answers = self._ask(look, counts)
        if not answers:
            return None
        by_work, by_delay = inferer.work_factor(look.target), inferer.delay_factor(look.target)
        work = room = None
        if by_work is not None:
            done = ScoreBands.of([answer[0] for answer in answers])
            work = self._everywhere(counts, ScoreBands(by_work * done.value, done.sd, done.support))
        if by_delay is not None:
            waited = ScoreBands.of([answer[1] for answer in answers])
            room = self._everywhere(counts, ScoreBands(by_delay / waited.value, waited.sd, waited.support))
        if room is not None:
            return CoreCurve(room, work)
        return CoreCurve(work) if work is not None else None

    def _ask(self, look: Look, counts: Sequence[int]) -> list[tuple[Band, Band]]:
        """Relative work and delay with these numbers of own cores; each number is asked for once."""
        model, target = look.view.model, look.target
        judges_work = inferer.work_factor(target) is not None
        judges_delay = inferer.delay_factor(target) is not None
        if model is None or not (judges_work or judges_delay):
            return []
        known = self._answers.setdefault(look.name, {})
        if new := [cores for cores in counts if cores not in known]:
            cache = strictest_cache(protections_beside(self._snapshot, look.view))
            asked = tuple(self._allocation(cores, *cache) for cores in new)
            context = model_context(self._snapshot, look.view, model)
            nothing = (NOT_ASKED,) * len(new)
            work = model.predict_work(asked, context) if judges_work else nothing
            delay = model.predict_delay(asked, context) if judges_delay else nothing
            known.update(zip(new, zip(work, delay, strict=True), strict=True))
        return [known[cores] for cores in counts]

    def _allocation(self, cores: int, llc_ways: int, mbw_pct: int) -> Allocation:
        """An LRA's own cores as models see them: the cores of other LRAs are batch's (``without_own_cores``)."""
        key = cores, llc_ways, mbw_pct
        found = self._allocations.get(key)
        if found is None:
            grant = CpuGrant(self._total, max(0, self._total - cores), self._weight, exclusive=True)
            found = self._allocations[key] = Allocation(grant, 0, llc_ways, mbw_pct)
        return found

    def _everywhere(self, counts: Sequence[int], bands: ScoreBands) -> ScoreBands:
        """Bands for all numbers of cores, interpolated in logarithms, from those for ``counts``."""
        ordered, cores = rising(bands), np.arange(1.0, self._total + 1.0)
        return ScoreBands(
            np.exp(np.interp(cores, counts, np.log(ordered.value))),
            np.interp(cores, counts, ordered.sd),
            np.interp(cores, counts, ordered.support),
        )


def likeness(busy: Floats, seen: Sequence[float]) -> Floats:
    """Relevance (0 to 1) at each busy share of samples taken at the busy shares ``seen``; 0 if there are none."""
    if not seen:
        return np.zeros_like(busy)
    apart = np.abs(busy[:, None] - np.array(seen)).min(axis=1)
    return np.asarray(np.exp(-0.5 * (apart / REACH_BUSY) ** 2), dtype=np.float64)


def with_prior(told: CoreCurve, prior: ScoreBands, alike: Floats | float = 1.0) -> ScoreBands:
    """The scores expected from the model's answers and the queue estimate ``prior``.

    ``alike``: relevance of the model's samples. The work rate counts where it is predicted to miss its target.
    """
    found = _pooled(told.room, prior, alike)
    if told.work is None:
        return found
    lower = told.work.value < np.minimum(found.value, 1.0)
    return _either(lower, _pooled(told.work, found, alike), found) if lower.any() else found


def _pooled(model: ScoreBands, prior: ScoreBands, alike: Floats | float) -> ScoreBands:
    """Both bands, weighted by precision and the model's support; their disagreement widens the result."""
    told = (model.support > 0.0) & (model.value > 0.0) & np.isfinite(model.sd)
    if not told.all():
        model = _either(told, model, ScoreBands(prior.value, prior.sd, np.zeros_like(prior.value)))
    by_model = model.support / VISITED / np.maximum(model.sd, LEAST_SD) ** 2
    share = alike * by_model / (by_model + 1.0 / np.maximum(prior.sd, LEAST_SD) ** 2)
    apart = np.log(model.value / prior.value)
    var = share * model.sd**2 + (1.0 - share) * prior.sd**2 + share * (1.0 - share) * apart * apart
    value, sd = prior.value * np.exp(share * apart), np.maximum(np.sqrt(var), LEAST_SD)
    both = ScoreBands(value, sd, alike * model.support)
    return both if told.all() else _either(told, both, prior)


def _either(first: NDArray[np.bool_], one: ScoreBands, other: ScoreBands) -> ScoreBands:
    """The bands of ``one`` where ``first`` is true, else those of ``other``."""
    return ScoreBands(
        np.where(first, one.value, other.value),
        np.where(first, one.sd, other.sd),
        np.where(first, one.support, other.support),
    )


def rising(bands: ScoreBands) -> ScoreBands:
    """These bands with non-decreasing values: contradicting ones are pooled by precision (isotonic regression)."""
    values = np.maximum(bands.value, 1e-6)
    if not (values[1:] < values[:-1]).any():
        return ScoreBands(values, bands.sd, bands.support)
    precisions = 1.0 / np.maximum(bands.sd, LEAST_SD) ** 2
    pools: list[tuple[float, float, int]] = []  # log value, precision, number of members
    for value, precise in zip(np.log(values).tolist(), precisions.tolist(), strict=True):
        pool = value, precise, 1
        while pools and pools[-1][0] > pool[0]:
            before, precision, many = pools.pop()
            both = precision + pool[1]
            pool = (before * precision + pool[0] * pool[1]) / both, both, many + pool[2]
        pools.append(pool)
    pooled = np.array([value for value, _, many in pools for _ in range(many)])
    return ScoreBands(np.exp(pooled), bands.sd, bands.support)
